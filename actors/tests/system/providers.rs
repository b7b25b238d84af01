//! The providers config changes while the operator runs.

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{Mood, Plan, World, managed};

use crate::{MINUTE, SECOND, all_is_well, fleet, is_on_offer, lease, pass, ready_of, release};

const HOST: &str = "/operator/providers/lab/host/hv1";

#[tokio::test(start_paused = true)]
async fn a_changed_entry_restarts_its_hosts_and_keeps_instances_leases_and_followers() {
    let mut world = World::start();
    fleet(&world, &["px-1", "px-2"]).await;
    let held = lease(&world, "px-1").await;
    let before = world.host("hv1").all_calls("list");
    world.reconfigure("lab", |entry| entry.address_timeout = 10 * MINUTE);
    pass(SECOND).await;
    assert!(world.host("hv1").all_calls("list") > before, "the host began anew");
    world.host("hv1").lose("px-2");
    world
        .eventually("its list is heard", MINUTE, |world| {
            world.host("hv1").calls("create", "px-2") == 2 && world.store.phase("px-2") == Some(Phase::Ready)
        })
        .await;
    assert_eq!(world.host("hv1").calls("create", "px-1"), 1);
    assert!(release(&world, &held).await);
    all_is_well(&world, &["px-1", "px-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_entry_cuts_what_was_in_flight_and_it_ends_in_one_instance() {
    let mut world = World::start();
    world.host("hv1").set_for("create", Mood::Late(5 * SECOND));
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it is being made", MINUTE, |world| world.host("hv1").all_calls("create") == 1).await;
    world.host("hv1").set(Mood::Works(SECOND));
    world.reconfigure("lab", |_| ());
    world.ready("px-1").await;
    pass(MINUTE).await;
    assert_eq!(world.host("hv1").instances().len(), 1);
    assert!(world.handles.env.registry.get(HOST).is_some());
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_left_alone_is_not_restarted() {
    let mut world = World::start_with(&Plan {
        entries: vec![("lab", vec![("hv1", None)]), ("other", vec![("hv2", None)])],
        ..Plan::default()
    });
    fleet(&world, &["px-1"]).await;
    let seen = world.handles.env.registry.get(HOST).unwrap();
    world.reconfigure("other", |_| ());
    let other = world.unconfigure("other");
    pass(MINUTE).await;
    world.configure(other);
    pass(MINUTE).await;
    assert!(std::sync::Arc::ptr_eq(&seen, &world.handles.env.registry.get(HOST).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_added_at_run_time_makes_a_latched_proxy_go_on() {
    let mut world = World::start();
    let entry = world.unconfigure("lab");
    pass(SECOND).await;
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it is told", MINUTE, |world| world.store.phase("px-1") == Some(Phase::Failed)).await;
    let (reason, message) = ready_of(&world, "px-1");
    assert_eq!(reason, Reason::ProviderNotConfigured);
    assert!(message.contains("lab"), "{message}");
    pass(MINUTE).await;
    world.configure(entry);
    world.eventually("Ready", 20 * SECOND, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_latches_until_the_entry_changes() {
    let mut world = World::start();
    world.host("hv1").set_for("create", Mood::Fails(OpError::permanent(Reason::ImageNotFound, "no image `x`")));
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it failed", MINUTE, |world| world.store.phase("px-1") == Some(Phase::Failed)).await;
    pass(5 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("create"), 1, "nothing is tried while nothing changed");
    world.host("hv1").set(Mood::Works(SECOND));
    world.reconfigure("lab", |_| ());
    world.eventually("Ready", 20 * SECOND, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_looked_at_again_on_a_slow_timer_or_a_new_generation() {
    let world = World::start();
    world.host("hv1").set_for("create", Mood::Fails(OpError::permanent(Reason::ImageNotFound, "no image `x`")));
    fleet_failed(&world).await;
    world.store.respec("px-1", |desired| desired.max_leases = 2);
    world.eventually("tried", 5 * SECOND, |world| world.host("hv1").all_calls("create") == 2).await;
    pass(9 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("create"), 2);
    world.host("hv1").set(Mood::Works(SECOND));
    world.eventually("Ready", 2 * MINUTE, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
}

async fn fleet_failed(world: &World) {
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it failed", MINUTE, |world| world.store.phase("px-1") == Some(Phase::Failed)).await;
}

#[tokio::test(start_paused = true)]
async fn a_proxy_whose_entry_is_removed_and_put_back_goes_on_with_its_instance() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    let entry = world.unconfigure("lab");
    pass(10 * MINUTE).await;
    assert!(is_on_offer(&world, "px-1").await, "what works is left alone");
    assert!(world.store.health("lab").is_none(), "the health of a removed entry is removed");
    world.configure(entry);
    world.eventually("it has its health again", 2 * MINUTE, |world| world.store.health("lab").is_some()).await;
    pass(MINUTE).await;
    assert_eq!((world.host("hv1").all_calls("create"), world.host("hv1").all_calls("delete")), (1, 0));
    all_is_well(&world, &["px-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn capacity_is_kept_and_a_place_that_comes_free_is_used() {
    let world = World::start_with(&Plan {
        entries: vec![("lab", vec![("hv1", Some(2)), ("hv2", Some(1))])],
        ..Plan::default()
    });
    for n in 0..5 {
        world.store.apply(managed(&format!("px-{n}"), "lab"));
    }
    world.eventually("three fit", MINUTE, |world| world.store.count_in(Phase::Ready) == 3).await;
    pass(5 * MINUTE).await;
    assert_eq!(world.store.count_in(Phase::Ready), 3);
    assert_eq!(world.host("hv1").instances().len(), 2);
    let waiting: Vec<_> =
        (0..5).map(|n| format!("px-{n}")).filter(|n| world.store.phase(n) != Some(Phase::Ready)).collect();
    for name in &waiting {
        assert_eq!(ready_of(&world, name).0, Reason::NoHostAvailable);
    }
    let happy = (0..5).map(|n| format!("px-{n}")).find(|n| !waiting.contains(n)).unwrap();
    world.store.delete(&happy);
    world
        .eventually("the next one fits", 5 * MINUTE, |world| {
            world.store.len() == 4 && world.store.count_in(Phase::Ready) == 3
        })
        .await;
    assert!(world.host("hv1").instances().len() <= 2 && world.host("hv2").instances().len() <= 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_configured_is_unknown_before_it_was_opened_also_if_that_is_nothing() {
    for entries in [vec![("lab", vec![("hv1", None)])], vec![]] {
        let world = World::start_with(&Plan { entries, ..Plan::default() });
        assert!(!world.handles.directory.is_known());
        world.store.apply(managed("px-1", "other"));
        world.eventually("it is told", MINUTE, |world| world.store.phase("px-1") == Some(Phase::Failed)).await;
        assert!(world.handles.directory.is_known());
        assert_eq!(ready_of(&world, "px-1").0, Reason::ProviderNotConfigured);
    }
}

fn no_squid() -> Mood {
    Mood::Fails(OpError::permanent(Reason::BinaryMissing, "squid at `/usr/sbin/squid` does not exist"))
}

#[tokio::test(start_paused = true)]
async fn a_host_without_its_program_fails_its_proxies_whether_it_was_checked_before_or_after_they_came() {
    for checked_first in [true, false] {
        let world = World::start();
        world.host("hv1").set_for("check", no_squid());
        world.host("hv1").set_for("create", no_squid());
        if checked_first {
            let ill = |world: &World| world.store.health("lab").is_some_and(|health| !health.targets[0].is_ready());
            world.eventually("the check failed", 5 * MINUTE, ill).await;
        }
        fleet_failed(&world).await;
        let (reason, message) = ready_of(&world, "px-1");
        assert_eq!(reason, Reason::BinaryMissing, "{message}");
        assert!(message.contains("/usr/sbin/squid"), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_that_was_installed_is_used_with_the_next_check_and_nobody_has_to_say_so() {
    for checked_first in [true, false] {
        let world = World::start();
        world.host("hv1").set_for("check", no_squid());
        world.host("hv1").set_for("create", no_squid());
        if checked_first {
            pass(2 * MINUTE).await;
        }
        fleet_failed(&world).await;
        pass(2 * MINUTE).await;
        world.host("hv1").set(Mood::Works(SECOND));
        let ready = |world: &World| world.store.phase("px-1") == Some(Phase::Ready);
        world.eventually("Ready", MINUTE + 30 * SECOND, ready).await;
    }
}
