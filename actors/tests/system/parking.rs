//! A Proxy whose actor keeps crashing.

use std::sync::Arc;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{ConditionType, Phase};
use egress_actors::kit::stat::Status;
use egress_actors::testkit::world::{World, external, managed};

use crate::{MINUTE, SECOND, all_is_well, fleet, lease, pass, ready_of, release};

const PATH: &str = "/operator/fleet/proxies/proxy/crawl/px-1";

fn is_parked(world: &World) -> bool {
    world.handles.env.registry.get(PATH).is_some_and(|stat| stat.status() == Status::Parked)
}

/// `px-1` and its siblings are Ready; then `px-1` panics at every message.
async fn parked() -> World {
    let world = World::start();
    fleet(&world, &["px-1", "px-2", "px-3"]).await;
    world.curse(PATH, u32::MAX);
    world.store.edit("px-1", |desired| desired.max_leases = 2);
    world.eventually("it is parked", MINUTE, is_parked).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_panics_at_every_message_is_parked_and_its_siblings_never_notice() {
    let world = World::start();
    fleet(&world, &["px-1", "px-2", "px-3"]).await;
    let held = lease(&world, "px-2").await;
    world.curse(PATH, u32::MAX);
    world.store.edit("px-1", |desired| desired.max_leases = 2);
    world.eventually("it is told", MINUTE, |world| ready_of(world, "px-1").0 == Reason::Crashed).await;
    pass(2 * MINUTE).await;

    let status = world.store.status("px-1").unwrap();
    assert_eq!(status.phase, Phase::Failed);
    assert!(!status.is_ready());
    assert!(status.provider_id.is_some(), "where its instance is stays written");
    let tree = world.tree();
    assert!(tree.lines().any(|line| line.contains("px-1") && line.contains("parked")), "{tree}");
    assert!(world.lease(egress_actors::testkit::world::only("px-1")).await.is_err());
    assert!(world.sink.about("px-1").iter().any(|event| event.reason == Reason::Crashed));

    for sibling in ["px-2", "px-3"] {
        assert_eq!(world.restarts(&format!("/operator/fleet/proxies/proxy/crawl/{sibling}")), Some(0));
        assert!(world.store.statuses(sibling).iter().filter(|s| s.phase == Phase::Ready).count() == 1);
    }
    assert_eq!(world.restarts("/operator/fleet/proxies"), Some(0));
    let renewed = world.handles.leases.renew(held.id.clone(), MINUTE, None).await.unwrap();
    assert!(renewed.is_ok(), "{renewed:?}");
    assert!(release(&world, &held).await);
    assert_eq!(world.host("hv1").all_calls("create"), 3);
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    all_is_well(&world, &["px-2", "px-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_proxy_is_deleted_with_skip_cleanup_and_an_event_says_what_is_left() {
    let world = parked().await;
    let left = world.host("hv1").instance_id("px-1").unwrap();
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    world.store.delete("px-1");
    world.eventually("it is gone", 2 * MINUTE, |world| !world.store.exists("px-1")).await;

    let acked = world.sink.acked_about("px-1");
    // Each incarnation may have told before it crashed.
    assert!((1..=5).contains(&acked.len()), "{acked:?}");
    for event in &acked {
        assert_eq!(event.reason, Reason::CleanupSkipped);
        assert!(event.note.contains(&*left), "{}", event.note);
    }
    world.eventually("its place is gone", MINUTE, |world| world.handles.env.registry.get(PATH).is_none()).await;
    assert!(world.handles.board.get(&egress_actors::testkit::world::key("px-1")).is_none());
    assert!(world.host("hv1").instance_id("px-1").is_some(), "it was given up, not deleted");
}

#[tokio::test(start_paused = true)]
async fn what_a_parked_proxy_leaves_is_told_though_events_cannot_be_written_just_then() {
    let world = parked().await;
    world.sink.refuse(Some(OpError::transient(Reason::APIError, "the API server is away")));
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    world.store.delete("px-1");
    pass(5 * SECOND).await;
    assert!(world.store.exists("px-1"), "not told, not released");
    world.sink.refuse(None);
    world.eventually("it is gone", MINUTE, |world| !world.store.exists("px-1")).await;
    assert_eq!(world.sink.acked_about("px-1").last().map(|event| event.reason), Some(Reason::CleanupSkipped));
}

#[tokio::test(start_paused = true)]
async fn a_parked_proxy_whose_skip_cleanup_is_taken_back_in_time_is_not_given_up() {
    let world = parked().await;
    world.sink.refuse(Some(OpError::transient(Reason::APIError, "the API server is away")));
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    world.store.delete("px-1");
    pass(5 * SECOND).await;
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = false);
    world.sink.refuse(None);
    pass(5 * MINUTE).await;
    assert!(world.store.exists("px-1") && is_parked(&world), "its instance is there, and nobody gives it up");
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_cannot_be_dropped_just_now_does_not_hold_a_given_up_proxy_for_long() {
    let world = parked().await;
    world.store.refuse("release", Some(OpError::transient(Reason::APIError, "the API server is away")));
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    world.store.delete("px-1");
    world.eventually("it is given up", MINUTE, |world| world.store.writes("release") > 0).await;
    let told = world.sink.acked_about("px-1").len();
    pass(2 * MINUTE).await;
    assert!(world.store.exists("px-1"));
    world.store.refuse("release", None);
    world.eventually("it is gone", 20 * SECOND, |world| !world.store.exists("px-1")).await;
    assert_eq!(world.sink.acked_about("px-1").len(), told, "told once, however often the finalizer was tried");
}

#[tokio::test(start_paused = true)]
async fn a_parked_proxy_that_is_deleted_says_the_way_out() {
    let world = parked().await;
    world.store.delete("px-1");
    world
        .eventually("it says so", 2 * MINUTE, |world| {
            world.store.phase("px-1") == Some(Phase::Deleting) && ready_of(world, "px-1").1.contains("skip-cleanup")
        })
        .await;
    assert!(is_parked(&world));
    assert!(world.store.exists("px-1"));
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    world.eventually("it is gone", 2 * MINUTE, |world| !world.store.exists("px-1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_a_parked_proxy_and_it_goes_on_with_its_instance() {
    let world = parked().await;
    let before = world.host("hv1").instance_id("px-1");
    world.curse(PATH, 0);
    pass(MINUTE).await;
    assert!(is_parked(&world), "an echo of our own status is not a change");
    world.store.edit("px-1", |desired| {
        desired.attributes = Arc::new([(Arc::from("tier"), Arc::from("b"))].into_iter().collect());
    });
    world.ready("px-1").await;
    assert_eq!(world.host("hv1").instance_id("px-1"), before);
    assert!(!is_parked(&world));
    world.store.edit("px-1", |desired| Arc::make_mut(&mut desired.attributes).extend([("name".into(), "px-1".into())]));
    all_is_well(&world, &["px-1", "px-2", "px-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_proxy_is_tried_again_after_a_while_though_nothing_changed() {
    let world = parked().await;
    world.curse(PATH, 0);
    pass(5 * MINUTE).await;
    assert!(is_parked(&world));
    world.eventually("it is Ready", 6 * MINUTE, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
    assert_eq!(world.host("hv1").all_calls("create"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_parked_proxy_that_still_crashes_is_parked_again_and_told_the_same() {
    let world = parked().await;
    world.eventually("it is told", MINUTE, |world| ready_of(world, "px-1").0 == Reason::Crashed).await;
    let writes = world.store.writes("status");
    pass(35 * MINUTE).await;
    assert!(is_parked(&world));
    assert!(world.store.writes("status") - writes <= 6, "{} writes", world.store.writes("status") - writes);
}

#[tokio::test(start_paused = true)]
async fn a_parked_proxy_whose_object_is_replaced_leaves_nothing_to_its_successor() {
    let world = parked().await;
    world.curse(PATH, 0);
    // Somebody dropped the finalizer by hand, and made an object of the same name.
    let mut other = external("px-1", "other.example");
    other.uid = egress_actors::domain::id::Uid::parse("uid-other").unwrap();
    world.store.apply(other);
    world.ready("px-1").await;
    assert_eq!(&*lease(&world, "px-1").await.proxy.endpoint.host, "other.example");
}

#[tokio::test(start_paused = true)]
async fn two_crashes_are_no_reason_to_park() {
    let world = World::start();
    world.store.apply(managed("px-1", "lab"));
    world.curse(PATH, 2);
    world.ready("px-1").await;
    assert_eq!(world.host("hv1").instances().len(), 1);
    let status = world.store.status("px-1").unwrap();
    assert_ne!(status.condition(ConditionType::Ready).unwrap().reason, Reason::Crashed);
}
