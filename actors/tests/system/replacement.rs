//! Instances that are made anew, and those that are left alone.

use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::health::Blame;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::lease_book::{EndedBy, Gone, NotHeld};
use egress_actors::domain::plan::Settings;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{ConditionType, Phase, Truth};
use egress_actors::ports::Severity;
use egress_actors::testkit::world::{Mood, Path, Plan, World, any, managed};

use crate::{HOUR, MINUTE, SECOND, fleet, is_on_offer, lease, pass, ready_of, release, renew};

/// A new instance is there, Ready, and the old one is gone.
async fn anew(world: &World, name: &str, within: Duration) {
    let creates = 2;
    world
        .eventually("it was made anew", within, |world| {
            world.host("hv1").calls("create", name) == creates && world.store.phase(name) == Some(Phase::Ready)
        })
        .await;
    pass(5 * MINUTE).await;
    assert_eq!(world.host("hv1").calls("create", name), creates, "once");
    assert_eq!(world.host("hv1").instances().len(), 1);
    assert!(is_on_offer(world, name).await);
}

fn warned(world: &World, name: &str, reason: Reason) -> bool {
    world.sink.about(name).iter().any(|event| event.reason == reason && event.severity == Severity::Warning)
}

fn drained(world: &World, name: &str) -> bool {
    let status = world.store.status(name).unwrap();
    status.condition(ConditionType::Drained).unwrap().truth == Truth::True
}

#[tokio::test(start_paused = true)]
async fn a_new_recreate_value_makes_a_fresh_instance_once() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let before = world.host("hv1").instance_id("px-1");
    let held = lease(&world, "px-1").await;
    world.store.edit("px-1", |desired| desired.annotations.recreate = Some("1".into()));
    anew(&world, "px-1", MINUTE).await;
    let gone = renew(&world, &held).await;
    assert!(matches!(gone, Err(NotHeld::Gone(Gone { how: EndedBy::ProxyReplaced, .. }))), "{gone:?}");
    assert_ne!(world.host("hv1").instance_id("px-1"), before);
    assert_eq!(world.store.status("px-1").unwrap().recreated.as_deref(), Some("1"));
    let world = world.restart().await;
    pass(5 * MINUTE).await;
    assert_eq!(world.host("hv1").calls("create", "px-1"), 2, "a restart does not ask for it again");
}

#[tokio::test(start_paused = true)]
async fn a_recreation_waits_for_leases_up_to_the_drain_timeout() {
    let life = Settings { drain_timeout: 10 * MINUTE, ..Settings::default() };
    let world = World::start_with(&Plan { life, ..Plan::default() });
    fleet(&world, &["px-1"]).await;
    let held = lease(&world, "px-1").await;
    world.store.edit("px-1", |desired| desired.annotations.recreate = Some("1".into()));
    pass(2 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    assert!(!is_on_offer(&world, "px-1").await);
    release(&world, &held).await;
    anew(&world, "px-1", MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_stays_unhealthy_for_recreate_after_is_made_anew() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.respec("px-1", |desired| desired.recreate_after = Some(10 * MINUTE));
    world.prober.set("px-1.hv1", Path::Fails(Blame::Proxy, Reason::ProxyTimeout));
    world.eventually("unhealthy", 3 * MINUTE, |world| world.store.phase("px-1") == Some(Phase::Unhealthy)).await;
    pass(9 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    world.eventually("it goes", 2 * MINUTE, |world| world.host("hv1").all_calls("delete") == 1).await;
    world.prober.set("px-1.hv1", Path::Open);
    anew(&world, "px-1", 2 * MINUTE).await;
    assert!(warned(&world, "px-1", Reason::RecreateAfterUnhealthy));
}

#[tokio::test(start_paused = true)]
async fn the_drain_annotation_keeps_it_from_being_granted_and_tells_when_no_lease_is_left() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let held = lease(&world, "px-1").await;
    world.store.respec("px-1", |desired| {
        desired.annotations.drain = true;
        desired.max_leases = 3;
    });
    pass(MINUTE).await;
    assert!(!is_on_offer(&world, "px-1").await);
    assert!(!drained(&world, "px-1"));
    // Its offer changes meanwhile: another place to be reached from.
    world.prober.set_exit_ip("203.0.113.9");
    pass(MINUTE).await;
    assert!(!is_on_offer(&world, "px-1").await);
    release(&world, &held).await;
    world.eventually("it is told", 10 * SECOND, |world| ready_of(world, "px-1").0 == Reason::Healthy).await;
    pass(10 * SECOND).await;
    assert!(drained(&world, "px-1"), "{:?}", world.store.status("px-1"));
    for _ in 0..20 {
        assert!(world.lease(any()).await.is_err());
        pass(MINUTE).await;
    }
    assert_eq!(world.store.phase("px-1"), Some(Phase::Ready), "the instance stays");
    world.store.edit("px-1", |desired| desired.annotations.drain = false);
    pass(SECOND).await;
    assert!(is_on_offer(&world, "px-1").await);
}

#[tokio::test(start_paused = true)]
async fn a_cordon_that_was_lifted_while_its_actor_crashed_does_not_stay() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.edit("px-1", |desired| desired.annotations.drain = true);
    pass(MINUTE).await;
    assert!(!is_on_offer(&world, "px-1").await);
    world.curse("/operator/fleet/proxies/proxy/crawl/px-1", 1);
    world.store.edit("px-1", |desired| desired.annotations.drain = false);
    pass(MINUTE).await;
    assert!(is_on_offer(&world, "px-1").await);
}

#[tokio::test(start_paused = true)]
async fn one_that_unhealthy_is_drained_too_once_its_lease_ends() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let held = lease(&world, "px-1").await;
    world.store.edit("px-1", |desired| desired.annotations.drain = true);
    world.prober.set("px-1.hv1", Path::Fails(Blame::Proxy, Reason::ProxyTimeout));
    world.eventually("unhealthy", 3 * MINUTE, |world| world.store.phase("px-1") == Some(Phase::Unhealthy)).await;
    world.prober.set("px-1.hv1", Path::Open);
    world.eventually("back", 3 * MINUTE, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
    assert!(!drained(&world, "px-1"));
    release(&world, &held).await;
    pass(10 * SECOND).await;
    assert!(drained(&world, "px-1"));
}

#[tokio::test(start_paused = true)]
async fn a_stopped_instance_is_made_anew_with_a_warning() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.host("hv1").touch("px-1", |instance| instance.state = InstanceState::Stopped);
    world.eventually("the list tells", 20 * SECOND, |world| world.host("hv1").calls("delete", "px-1") == 1).await;
    anew(&world, "px-1", MINUTE).await;
    assert!(warned(&world, "px-1", Reason::InstanceStopped));
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_the_backend_paused_or_cannot_tell_of_is_left_alone() {
    for state in [InstanceState::Paused, InstanceState::Unknown] {
        let world = World::start();
        fleet(&world, &["px-1"]).await;
        world.host("hv1").touch("px-1", |instance| instance.state = state);
        world.prober.set("px-1.hv1", Path::Fails(Blame::Proxy, Reason::ProxyTimeout));
        pass(HOUR).await;
        assert_eq!(world.store.phase("px-1"), Some(Phase::Unhealthy), "{state:?}: its probes say so");
        assert_eq!((world.host("hv1").all_calls("create"), world.host("hv1").all_calls("delete")), (1, 0), "{state:?}");
        world.host("hv1").touch("px-1", |instance| instance.state = InstanceState::Running);
        world.prober.set("px-1.hv1", Path::Open);
        world.ready("px-1").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_lost_behind_our_back_is_made_anew_after_a_look() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let gets = world.host("hv1").calls("get", "px-1");
    world.host("hv1").lose("px-1");
    anew(&world, "px-1", MINUTE).await;
    assert!(world.host("hv1").calls("get", "px-1") > gets, "a list alone does not decide");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_lost_right_after_it_was_made_is_seen_by_the_lists_alone() {
    let world = World::start();
    // Its probes swallow time and never fail: only the list can tell.
    world.prober.set("px-1.hv1", Path::Hangs);
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it is made", MINUTE, |world| world.host("hv1").instances().len() == 1).await;
    world.host("hv1").lose("px-1");
    world.eventually("it is made anew", 2 * MINUTE, |world| world.host("hv1").calls("create", "px-1") == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_list_fails_or_hangs_demotes_nobody() {
    let error = OpError::transient(Reason::APIError, "cannot list");
    for mood in [Mood::Fails(error), Mood::Hangs, Mood::Panics] {
        let world = World::start();
        fleet(&world, &["px-1", "px-2"]).await;
        let before = world.store.writes("status");
        world.host("hv1").set_for("list", mood.clone());
        pass(HOUR).await;
        assert_eq!(world.store.count_in(Phase::Ready), 2, "{mood:?}");
        assert!(is_on_offer(&world, "px-1").await, "{mood:?}");
        assert_eq!(world.store.writes("status"), before, "{mood:?}");
        assert_eq!(world.host("hv1").all_calls("create"), 2, "{mood:?}");
        world.host("hv1").set(Mood::Works(SECOND));
        world.host("hv1").lose("px-1");
        world.eventually("lists work again", 3 * MINUTE, |world| world.host("hv1").calls("create", "px-1") == 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_proxy_is_not_replaced() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.respec("px-1", |desired| desired.paused = true);
    pass(SECOND).await;
    world.host("hv1").lose("px-1");
    world.store.edit("px-1", |desired| desired.annotations.recreate = Some("1".into()));
    pass(HOUR).await;
    assert_eq!((world.host("hv1").all_calls("create"), world.host("hv1").all_calls("delete")), (1, 0));
    assert!(!is_on_offer(&world, "px-1").await);
    world.store.respec("px-1", |desired| desired.paused = false);
    world.ready("px-1").await;
    assert_eq!(world.host("hv1").instances().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_again_and_again_is_made_anew_later_and_later() {
    let world = World::start();
    world.prober.set("px-1.hv1", Path::Fails(Blame::Proxy, Reason::ProxyTimeout));
    world.store.apply(managed("px-1", "lab"));
    for _ in 0..360 {
        if world.host("hv1").instances().len() == 1 {
            world.host("hv1").touch("px-1", |instance| instance.state = InstanceState::Stopped);
        }
        pass(10 * SECOND).await;
    }
    let creates = world.host("hv1").calls("create", "px-1");
    assert!((5..=45).contains(&creates), "{creates} creates in an hour");
}

#[tokio::test(start_paused = true)]
async fn a_verdict_on_the_old_address_is_none_on_the_new_one() {
    let life = Settings { list_interval: SECOND, ..Settings::default() };
    let world = World::start_with(&Plan { life, workers: 512, ..Plan::default() });
    let names: Vec<_> = (0..200).map(|n| format!("px-{n}")).collect();
    for name in &names {
        let mut wish = managed(name, "lab");
        (wish.check.interval, wish.check.timeout) = (SECOND, SECOND);
        world.store.apply(wish);
    }
    world.eventually("all Ready", MINUTE, |world| world.store.count_in(Phase::Ready) == 200).await;
    world.prober.set(".moved", Path::Swallows);
    let move_to = |suffix: &str| {
        for name in &names {
            world.host("hv1").touch(name, |instance| {
                let endpoint = instance.endpoint.as_mut().expect("it has an address");
                endpoint.host = format!("{name}.{suffix}").into();
            });
        }
    };
    // So many that somewhere a probe of the old address ends in the very moment in which the list tells the new one.
    for _ in 0..10 {
        move_to("moved");
        for _ in 0..15 {
            pass(SECOND / 10).await;
            while let Ok(leases) = world.lease(any()).await {
                assert!(!leases[0].proxy.endpoint.host.ends_with(".moved"), "offered unseen: {:?}", leases[0].proxy);
            }
            for held in world.handles.leases.list("default".into(), None).await.unwrap() {
                release(&world, &held).await;
            }
        }
        move_to("hv1");
        world
            .eventually("all are back", 2 * MINUTE, |world| {
                world.handles.board.all().iter().all(|view| view.status.is_ready())
            })
            .await;
    }
}
