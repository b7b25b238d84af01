//! Claims about calls that run to their end.

use futures::future::join_all;

use super::{ConformanceRig, absent, all_rows, assert_conflict, eventually, exactly_one, gone, made, rows, running};
use crate::domain::error::Class;
use crate::domain::id::OperatorId;
use crate::domain::reason::Reason;

pub async fn the_check_of_a_well_host_passes(rig: &dyn ConformanceRig) {
    rig.backend().check().await.expect("a well host");
}

pub async fn what_was_never_made_is_not_found(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let error = rig.backend().get(&mark).await.expect_err("nothing is there");
    assert_eq!((error.class, error.reason), (Class::NotFound, Reason::NotFound), "{error}");
    assert!(rows(rig, &mark.operator, &mark).await.is_empty());
    rig.backend().delete(&mark).await.expect("deleting what was never made is done already");
    absent(rig, &mark).await.expect("a delete makes nothing");
}

pub async fn a_created_instance_is_got_and_listed(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let got = made(rig, &mark).await;
    exactly_one(rig, &mark).await;

    let listed = eventually("the list shows it as get does", || async {
        match rows(rig, &mark.operator, &mark).await.as_slice() {
            [one] if one.state == got.state && one.endpoint == got.endpoint => Ok(one.clone()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(listed.provider_id, got.provider_id);
    assert!(listed.generated == got.generated, "list and get differ in the generated credentials");
    eventually("a list of every entry shows it as get does", || async {
        match all_rows(rig, &mark.operator, &mark).await.as_slice() {
            [one] if (one.state, &one.endpoint) == (got.state, &got.endpoint) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;

    let other = OperatorId::parse("somebody-else").expect("a valid id");
    assert!(rows(rig, &other, &mark).await.is_empty(), "another operator's list has our instance");
    gone(rig, &mark).await;
    assert!(rows(rig, &mark.operator, &mark).await.is_empty());
}

pub async fn a_second_create_makes_no_second_instance(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    let first = made(rig, &mark).await;
    let second = made(rig, &mark).await;
    assert_eq!((&first.provider_id, &first.endpoint), (&second.provider_id, &second.endpoint));
    assert!(first.generated == second.generated, "the second create changed the credentials");
    exactly_one(rig, &mark).await;
    gone(rig, &mark).await;

    // Also when both are under way.
    let mark = rig.mark();
    let (backend, spec) = (rig.backend(), rig.spec(&mark));
    for answer in join_all((0..4).map(|_| backend.create(&spec))).await {
        if let Err(error) = answer {
            assert_eq!(error.class, Class::Transient, "{error}");
        }
    }
    running(rig, &mark).await;
    exactly_one(rig, &mark).await;
    gone(rig, &mark).await;
}

pub async fn deleting_twice_is_once(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    made(rig, &mark).await;
    gone(rig, &mark).await;
    rig.backend().delete(&mark).await.expect("a second delete is done already");
    absent(rig, &mark).await.expect("still nothing");
    // The name is free again.
    made(rig, &mark).await;
    exactly_one(rig, &mark).await;
    gone(rig, &mark).await;
}

pub async fn creates_and_deletes_side_by_side_do_not_mix(rig: &dyn ConformanceRig) {
    let marks = [rig.mark(), rig.mark(), rig.mark()];
    let instances = join_all(marks.iter().map(|mark| made(rig, mark))).await;
    for (n, instance) in instances.iter().enumerate() {
        exactly_one(rig, &marks[n]).await;
        for other in &instances[..n] {
            assert_ne!(instance.provider_id, other.provider_id);
            assert_ne!(instance.endpoint, other.endpoint);
        }
    }
    gone(rig, &marks[0]).await;
    for n in [1, 2] {
        let kept = running(rig, &marks[n]).await;
        assert_eq!((&kept.provider_id, &kept.endpoint), (&instances[n].provider_id, &instances[n].endpoint));
        assert_eq!(rows(rig, &marks[n].operator, &marks[n]).await.len(), 1);
    }
    join_all(marks.iter().map(|mark| gone(rig, mark))).await;
}

pub async fn a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched(rig: &dyn ConformanceRig) {
    let mark = rig.mark();
    if !rig.make_foreign(&mark).await {
        return;
    }
    let backend = rig.backend();
    assert_conflict("create over a foreign instance", backend.create(&rig.spec(&mark)).await);
    assert_conflict("delete of a foreign instance", backend.delete(&mark).await);
    // Whether ours is absent or its place is taken: both are true, and neither is an instance of ours.
    let error = backend.get(&mark).await.expect_err("get of a foreign instance");
    assert!(error.class == Class::NotFound || error.reason == Reason::NameConflict, "{error}");
    assert!(rows(rig, &mark.operator, &mark).await.is_empty(), "a foreign instance is listed as ours");
    assert!(rig.foreign_is_untouched(&mark).await);
}
