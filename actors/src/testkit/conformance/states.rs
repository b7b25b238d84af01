//! Claims about what an instance says of itself: stopped, paused, unreadable, and how old it is.

use std::time::{Duration, SystemTime};

use super::lists::nothing_looks_absent;
use super::{ConformanceRig, all_rows, eventually, exactly_one, gone, listed, made, rows, running, skipped};
use crate::domain::error::{Class, OpError};
use crate::domain::instance::{Instance, InstanceState};

/// Longer than what backends round a time to.
const TICK: Duration = Duration::from_millis(1_100);

/// Clocks of one laboratory.
const SKEW: Duration = Duration::from_mins(1);

pub async fn a_stopped_instance_is_told_as_stopped_and_can_be_made_anew(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    made(rig, &mark).await;
    if !rig.stop(&mark).await {
        skipped("an instance that stopped");
        return gone(rig, &mark).await;
    }
    let backend = rig.backend();
    eventually("get and list tell it as stopped", || async {
        let got = backend.get(&mark).await.map_err(|error| error.to_string())?;
        match (got.state, rows(rig, &mark.operator, &mark).await.as_slice()) {
            (InstanceState::Stopped, [row]) if row.state == InstanceState::Stopped => Ok(()),
            (_, listed) => Err(format!("{got:?}, and listed {listed:?}")),
        }
    })
    .await;
    made(rig, &mark).await;
    exactly_one(rig, &mark).await;
    gone(rig, &mark).await;
}

pub async fn a_paused_instance_is_not_stopped_and_not_absent(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let before = made(rig, &mark).await;
    listed(rig, &mark).await;
    if !rig.pause(&mark).await {
        skipped("an instance that is paused");
        return gone(rig, &mark).await;
    }
    // At once, and when everything that watches it has had its time.
    for wait in [Duration::ZERO, rig.settle()] {
        tokio::time::sleep(wait).await;
        let got = rig.backend().get(&mark).await.expect("a paused instance is there");
        assert_is_kept("get", &got);
        match all_rows(rig, &mark.operator, &mark).await.as_slice() {
            [row] => assert_is_kept("list", row),
            other => panic!("rows of a paused instance: {other:?}"),
        }
    }
    rig.resume(&mark).await;
    let after = running(rig, &mark).await;
    assert_eq!(after.provider_id, before.provider_id);
    exactly_one(rig, &mark).await;
    gone(rig, &mark).await;
}

pub async fn an_instance_that_cannot_be_read_is_never_stopped_or_absent(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let before = made(rig, &mark).await;
    listed(rig, &mark).await;
    if !rig.make_unreadable(&mark).await {
        skipped("an instance that cannot be read");
        return gone(rig, &mark).await;
    }
    let backend = rig.backend();
    match backend.get(&mark).await {
        Ok(instance) => assert_is_kept("get", &instance),
        Err(error) => assert_is_a_failed_look("get", &error),
    }
    for entry in [Some(&mark.entry), None] {
        match backend.list(&mark.operator, entry).await {
            Ok(list) => nothing_looks_absent(rig, entry, &mark, &list).await,
            Err(error) => assert_is_a_failed_look("list", &error),
        }
    }
    // Whatever it answers, nothing comes beside what cannot be read.
    let _answer = backend.create(&rig.spec(&mark)).await;
    rig.make_readable(&mark).await;
    exactly_one(rig, &mark).await;
    let after = running(rig, &mark).await;
    assert_eq!((after.provider_id, after.endpoint), (before.provider_id, before.endpoint));
    gone(rig, &mark).await;
}

pub async fn created_at_is_told_and_stays(rig: &dyn ConformanceRig) {
    let begun = SystemTime::now();
    let mark = rig.mark();
    let first = made(rig, &mark).await;
    let now = SystemTime::now();
    match first.created_at {
        Some(at) => {
            assert!(at <= now + Duration::from_secs(1), "made in the future: {at:?}, and it is {now:?}");
            assert!(at + SKEW >= begun, "made before it was asked for: {at:?}, and that was {begun:?}");
        }
        None => skipped("the age of an instance"),
    }
    for round in ["at once", "later", "after another create"] {
        if round != "at once" {
            tokio::time::sleep(TICK).await;
        }
        if round == "after another create" {
            made(rig, &mark).await;
        }
        let got = rig.backend().get(&mark).await.expect("an instance");
        assert_eq!(got.created_at, first.created_at, "get, {round}");
        assert_eq!(listed(rig, &mark).await.created_at, first.created_at, "list, {round}");
    }
    gone(rig, &mark).await;
}

pub async fn two_looks_at_an_instance_that_did_not_change_are_equal(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    made(rig, &mark).await;
    let backend = rig.backend();
    let got = backend.get(&mark).await.expect("an instance");
    let row = listed(rig, &mark).await;
    tokio::time::sleep(TICK).await;
    // Not `assert_eq`, which would print the credentials if they were to differ.
    let again = rig.backend().get(&mark).await.expect("an instance");
    assert!(again == got, "two looks differ: {got:?} and {again:?}");
    let again = listed(rig, &mark).await;
    assert!(again == row, "two lists differ: {row:?} and {again:?}");
    gone(rig, &mark).await;
}

/// In doubt it lives: what is stopped or on its way out is made anew.
pub(super) fn assert_is_kept(what: &str, instance: &Instance) {
    match instance.state {
        InstanceState::Running | InstanceState::Starting | InstanceState::Paused | InstanceState::Unknown => {}
        InstanceState::Stopped | InstanceState::Deleting => panic!("{what} gives it up: {instance:?}"),
    }
}

pub(super) fn assert_is_a_failed_look(what: &str, error: &OpError) {
    match error.class {
        Class::Transient | Class::Permanent => {}
        Class::NotFound => panic!("{what} calls absent what it cannot read: {error}"),
        Class::Cancelled | Class::EffectUnknown => panic!("{what} is a look, and answers {:?}: {error}", error.class),
    }
}
