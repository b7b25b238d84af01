//! What is written onto the objects, and how often.

use egress_actors::domain::error::OpError;
use egress_actors::domain::health::Blame;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{ConditionType, Phase};
use egress_actors::testkit::world::{Path, World, external, managed};

use crate::{HOUR, MINUTE, SECOND, fleet, is_on_offer, pass, ready_of};

#[tokio::test(start_paused = true)]
async fn a_proxy_costs_at_most_three_writes_until_it_is_ready_and_none_in_an_hour_of_peace() {
    let world = World::start();
    for n in 0..20 {
        world.store.apply(managed(&format!("px-{n}"), "lab"));
        world.store.apply(external(&format!("bought-{n}"), &format!("seller-{n}.example")));
    }
    world.eventually("all Ready", MINUTE, |world| world.store.count_in(Phase::Ready) == 40).await;
    assert_eq!(world.store.writes("finalizer"), 20, "external ones have none");
    for n in 0..20 {
        let (managed, external) = (format!("px-{n}"), format!("bought-{n}"));
        assert!(world.store.statuses(&managed).len() <= 2, "{:?}", world.store.statuses(&managed));
        assert!(world.store.statuses(&external).len() <= 2, "{:?}", world.store.statuses(&external));
    }
    let before = (world.store.writes("status"), world.store.writes("finalizer"));
    pass(HOUR).await;
    assert_eq!((world.store.writes("status"), world.store.writes("finalizer")), before);
    assert!(
        world.store.writes("health") <= 16,
        "{} in an hour: `checkedAt` every five minutes",
        world.store.writes("health")
    );
}

#[tokio::test(start_paused = true)]
async fn a_newer_version_that_is_not_valid_is_told_on_the_object_while_the_old_one_goes_on() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.reject("px-1", "spec.managed.port: 70000 is not a port");
    world.eventually("it is told", 5 * SECOND, |world| ready_of(world, "px-1").1.contains("70000")).await;
    let status = world.store.status("px-1").unwrap();
    assert_eq!(status.observed_generation, 2);
    assert!(status.is_ready(), "the last valid version goes on");
    let before = world.store.writes("status");
    pass(HOUR).await;
    assert!(ready_of(&world, "px-1").1.contains("70000"), "it stays told: {:?}", ready_of(&world, "px-1"));
    assert!(world.store.writes("status") - before <= 2, "{} writes", world.store.writes("status") - before);
    assert!(is_on_offer(&world, "px-1").await);
    // A crash of its actor does not make it forget.
    world.curse("/operator/fleet/proxies/proxy/crawl/px-1", 1);
    pass(2 * MINUTE).await;
    assert!(ready_of(&world, "px-1").1.contains("70000"));
    world.store.respec("px-1", |_| ());
    world.eventually("it is fine", 5 * SECOND, |world| !ready_of(world, "px-1").1.contains("70000")).await;
    assert_eq!(world.host("hv1").all_calls("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_fails_while_its_newer_spec_is_not_valid_tells_both() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.reject("px-1", "managed.port: 70000 is not a port");
    world.eventually("it is told", 5 * SECOND, |world| ready_of(world, "px-1").1.contains("70000")).await;
    assert_eq!(ready_of(&world, "px-1").0, Reason::Healthy);
    let address = world.store.status("px-1").unwrap().address.unwrap();
    world.prober.set(&address, Path::Fails(Blame::Proxy, Reason::ProxyTimeout));
    world.eventually("that too", 5 * MINUTE, |world| ready_of(world, "px-1").0 == Reason::Unhealthy).await;
    let message = ready_of(&world, "px-1").1;
    assert!(message.contains("70000") && message.contains("the probes fail"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_never_was_valid_is_told_so_once() {
    let world = World::start();
    world.store.reject("px-1", "spec: exactly one of managed and external");
    world.eventually("it is told", 5 * SECOND, |world| world.store.status("px-1").is_some()).await;
    let (reason, message) = ready_of(&world, "px-1");
    assert_eq!(reason, Reason::SpecInvalid);
    assert!(message.contains("exactly one"), "{message}");
    assert_eq!(world.store.phase("px-1"), Some(Phase::Failed));
    // The source tells of it again because of our own write, and with each new list.
    pass(HOUR).await;
    world.store.cut_streams();
    pass(MINUTE).await;
    assert_eq!(world.store.writes("status"), 1);
    world.store.reject("px-1", "another mistake");
    world.eventually("that one too", 5 * SECOND, |world| ready_of(world, "px-1").1.contains("another")).await;
    world.store.apply(managed("px-1", "lab"));
    world.ready("px-1").await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_delays_the_telling_and_nothing_else() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.refuse("status", Some(OpError::transient(Reason::APIError, "away")));
    world.store.apply(external("bought", "seller.example"));
    pass(10 * SECOND).await;
    assert!(is_on_offer(&world, "bought").await, "it is leased though nobody could write that");
    let before = world.store.writes("status");
    pass(10 * MINUTE).await;
    let tries = world.store.writes("status") - before;
    assert!(tries <= 25, "{tries} attempts in ten minutes");
    world.store.refuse("status", None);
    world.eventually("it is told", 70 * SECOND, |world| world.store.phase("bought") == Some(Phase::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_cannot_be_written_holds_the_create() {
    let world = World::start();
    world.store.refuse("finalizer", Some(OpError::permanent(Reason::Forbidden, "no right to patch proxies")));
    world.store.apply(managed("px-1", "lab"));
    pass(10 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("create"), 0);
    assert!(ready_of(&world, "px-1").1.contains("no right to patch"), "{:?}", ready_of(&world, "px-1"));
    world.store.refuse("finalizer", None);
    world.eventually("Ready", 3 * MINUTE, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn transitions_keep_their_time_while_the_truth_stays() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let since = |world: &World| {
        let status = world.store.status("px-1").unwrap();
        status.condition(ConditionType::Ready).unwrap().since
    };
    let first = since(&world);
    pass(HOUR).await;
    world.store.respec("px-1", |desired| desired.max_leases = 9);
    world.eventually("told", 5 * SECOND, |world| world.store.status("px-1").unwrap().observed_generation == 2).await;
    assert_eq!(since(&world), first);
    let world = world.restart().await;
    world.store.respec("px-1", |desired| desired.max_leases = 8);
    world.eventually("told", 5 * SECOND, |world| world.store.status("px-1").unwrap().observed_generation == 3).await;
    assert_eq!(since(&world), first);
}
