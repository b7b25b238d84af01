//! Panics of the other actors: the right part restarts, instances stay, no stale reference is left.

use egress_actors::domain::error::OpError;
use egress_actors::domain::lease_book::Ask;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::kit::stat::Status;
use egress_actors::kit::{CallError, tree};
use egress_actors::proxy::Deadlines;
use egress_actors::testkit::world::{Mood, Plan, World, any, managed, on, only};

use crate::{MINUTE, SECOND, all_is_well, at_rest, fleet, is_on_offer, lease, pass, release};

const FLEET: [&str; 4] =
    ["/operator/fleet/leases", "/operator/fleet/probes", "/operator/fleet/proxies", "/operator/fleet/watch"];

const NAMES: [&str; 3] = ["px-1", "px-2", "px-3"];

fn fleet_restarts(world: &World) -> Vec<u32> {
    FLEET.iter().map(|path| world.restarts(path).unwrap_or(99)).collect()
}

/// Nothing was made or removed again, and nobody was told unready.
fn instances_are_the_same(world: &World) {
    assert_eq!(world.host("hv1").all_calls("create"), NAMES.len());
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    for name in NAMES {
        let phases: Vec<_> = world.store.statuses(name).iter().map(|status| status.phase).collect();
        let first = phases.iter().position(|phase| *phase == Phase::Ready).expect("it became Ready");
        assert!(phases[first..].iter().all(|phase| *phase == Phase::Ready), "{name}: {phases:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_registry_restarts_all_that_stands_behind_it_and_all_is_on_offer_again() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    let before = lease(&world, "px-1").await;
    world.curse(FLEET[0], 1);
    assert_eq!(world.handles.leases.acquire(any()).await, Err(CallError::Down));
    world.eventually("the fleet is back", MINUTE, |world| fleet_restarts(world) == [1, 1, 1, 1]).await;
    pass(SECOND).await;
    for name in NAMES {
        assert!(world.lease(only(name)).await.is_ok(), "{name} is offered again at once");
    }
    let after = world.lease(Ask { count: 1, ..only("px-1") }).await;
    assert!(after.is_err(), "it is leased out already");
    let all = world.handles.leases.list("default".into(), None).await.unwrap();
    let again = all.iter().find(|lease| lease.proxy.key == before.proxy.key).unwrap();
    assert!(again.generation > before.generation, "{} after {}", again.generation, before.generation);
    for lease in &all {
        release(&world, lease).await;
    }
    instances_are_the_same(&world);
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_crashed_is_not_taken_for_the_whole_fleet_before_it_was_read_again() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    let is_known = |world: &World| world.handles.watch.state().synced;
    assert!(is_known(&world));
    world.store.hold_lists();
    world.curse(FLEET[0], 1);
    assert_eq!(world.handles.leases.acquire(any()).await, Err(CallError::Down));
    world.eventually("the fleet is back", MINUTE, |world| fleet_restarts(world) == [1, 1, 1, 1]).await;
    pass(MINUTE).await;
    // The book is empty, and who asks must not hear that there is no such proxy.
    assert!(!is_known(&world));
    world.store.release_lists();
    world.eventually("it was read again", SECOND, is_known).await;
    pass(SECOND).await;
    assert!(is_on_offer(&world, "px-1").await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_probe_pool_keeps_registry_and_leases() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    let held = lease(&world, "px-1").await;
    world.curse(FLEET[1], 1);
    world.eventually("it is back", MINUTE, |world| fleet_restarts(world) == [0, 1, 1, 1]).await;
    pass(SECOND).await;
    let renewed = world.handles.leases.renew(held.id.clone(), MINUTE, None).await.unwrap();
    assert!(renewed.is_ok(), "{renewed:?}");
    assert!(release(&world, &held).await);
    pass(2 * MINUTE).await;
    instances_are_the_same(&world);
    let probes = world.prober.looks("px-1.hv1").len();
    pass(5 * MINUTE).await;
    let more = world.prober.looks("px-1.hv1").len() - probes;
    assert!((8..=12).contains(&more), "{more} probes in 5 minutes at one in 30 s");
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_index_of_the_fleet_keeps_registry_and_leases() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    let held = lease(&world, "px-1").await;
    world.curse(FLEET[2], 1);
    world.store.edit("px-2", |desired| desired.max_leases = 1);
    world.eventually("it is back", MINUTE, |world| fleet_restarts(world) == [0, 0, 1, 1]).await;
    pass(MINUTE).await;
    assert!(release(&world, &held).await, "the lease survived");
    instances_are_the_same(&world);
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn what_went_while_the_index_was_down_is_forgotten_everywhere() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    world.store.apply(egress_actors::testkit::world::external("bought", "seller.example"));
    world.ready("bought").await;
    let before = at_rest(&world).await;
    // The panic takes the message about its end along.
    world.curse(FLEET[2], 1);
    world.store.delete("bought");
    world.eventually("it is back", MINUTE, |world| fleet_restarts(world) == [0, 0, 1, 1]).await;
    pass(MINUTE).await;
    let probes = world.prober.looks("seller.example").len();
    pass(5 * MINUTE).await;
    assert_eq!(world.prober.looks("seller.example").len(), probes, "it is not probed any more");
    assert_eq!(world.handles.board.len(), NAMES.len());
    assert!(!world.handles.leases.proxies().await.unwrap().keys().any(|key| key.name() == "bought"));
    assert_eq!(at_rest(&world).await.0, before.0 - 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_watch_loses_no_change() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    world.curse(FLEET[3], 1);
    world.store.apply(managed("px-4", "lab"));
    world.ready("px-4").await;
    assert_eq!(fleet_restarts(&world), [0, 0, 0, 1]);
    world.store.delete("px-4");
    world.eventually("it is gone", MINUTE, |world| !world.store.exists("px-4")).await;
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_opened_again_and_nothing_is_taken_for_gone() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    world.store.cut_streams();
    world.store.apply(managed("px-4", "lab"));
    world.ready("px-4").await;
    assert_eq!(world.restarts("/operator/fleet/watch/feed"), Some(1));
    assert_eq!(fleet_restarts(&world), [0, 0, 0, 0]);
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_host_with_a_create_in_flight_ends_in_one_instance() {
    let deadlines = Deadlines { create: 50 * SECOND, ..Deadlines::default() };
    let world = World::start_with(&Plan { deadlines, ..Plan::default() });
    fleet(&world, &NAMES).await;
    let host = world.host("hv1");
    // The backend goes on making it, whoever waits or not.
    host.set_for("create", Mood::Late(40 * SECOND));
    world.store.apply(managed("px-4", "lab"));
    world.eventually("it is being made", MINUTE, |world| world.host("hv1").calls("create", "px-4") == 1).await;
    world.curse("/operator/providers/lab/host/hv1", 1);
    world
        .eventually("the host is back", MINUTE, |world| world.restarts("/operator/providers/lab/host/hv1") == Some(1))
        .await;
    pass(SECOND).await;
    assert_eq!(host.running(), 1, "what the dead host had running was dropped");
    host.set_for("create", Mood::Works(SECOND));
    world.ready("px-4").await;
    pass(2 * MINUTE).await;
    assert_eq!(host.instances().len(), 4);
    assert_eq!(world.store.phase("px-4"), Some(Phase::Ready));
    assert_eq!(host.all_calls("delete"), 0);
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_provider_answers_whoever_asked_it_for_a_host() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    world.curse("/operator/providers/lab", 1);
    world.store.apply(managed("px-4", "lab"));
    world.ready("px-4").await;
    assert_eq!(world.restarts("/operator/providers/lab"), Some(1));
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_providers_restarts_their_hosts_and_keeps_the_followers() {
    let world = World::start();
    fleet(&world, &NAMES).await;
    world.curse("/operator/providers", 1);
    world.handles.providers.configure(world.entries());
    world.eventually("they are back", MINUTE, |world| world.restarts("/operator/providers") == Some(1)).await;
    pass(MINUTE).await;
    assert_eq!(fleet_restarts(&world), [0, 0, 0, 0]);
    world.host("hv1").lose("px-1");
    world
        .eventually("its loss is seen by the list of the new host", MINUTE, |world| {
            world.host("hv1").calls("create", "px-1") == 2
        })
        .await;
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn statuses_that_were_pending_in_a_crashed_writer_are_written_by_its_successor() {
    let world = World::start();
    world.store.refuse("status", Some(OpError::transient(Reason::APIError, "the API server is away")));
    for name in NAMES {
        world.store.apply(managed(name, "lab"));
    }
    world
        .eventually("all are on offer", MINUTE, |world| {
            world.handles.board.all().iter().all(|v| v.status.is_ready()) && world.handles.board.len() == 3
        })
        .await;
    world.curse("/operator/records", 1);
    world.store.refuse("status", None);
    world.eventually("it is back", 2 * MINUTE, |world| world.restarts("/operator/records") == Some(1)).await;
    for name in NAMES {
        world.eventually("it is written", 30 * SECOND, |world| world.store.phase(name) == Some(Phase::Ready)).await;
    }
    world.eventually("so is the entry's health", 2 * MINUTE, |world| world.store.health("lab").is_some()).await;
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_dies_with_a_finalizer_on_its_way_holds_nobody_up() {
    let world = World::start();
    world.curse("/operator/records", 1);
    world.store.apply(managed("px-1", "lab"));
    world.ready("px-1").await;
    world.curse("/operator/records", 1);
    world.store.delete("px-1");
    world.eventually("it is gone", 2 * MINUTE, |world| world.store.is_empty()).await;
    assert_eq!(world.host("hv1").all_calls("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_writer_that_dies_still_lets_a_deletion_end_with_its_event() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    world.curse("/operator/events", 1);
    world.unconfigure("lab");
    world.store.delete("px-1");
    world.eventually("it is gone", 2 * MINUTE, |world| world.store.is_empty()).await;
    assert_eq!(world.restarts("/operator/events"), Some(1));
    assert_eq!(world.sink.acked_about("px-1").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_keeps_crashing_is_parked_told_and_revived_and_its_siblings_never_notice() {
    let world =
        World::start_with(&Plan { entries: vec![("lab", vec![("hv1", None), ("hv2", None)])], ..Plan::default() });
    for (name, host) in [("px-1", "hv1"), ("px-2", "hv2")] {
        world.store.apply(on(managed(name, "lab"), host));
        world.ready(name).await;
    }
    let path = "/operator/providers/lab/host/hv1";
    world.curse(path, u32::MAX);
    let parked =
        |world: &World| world.handles.env.registry.get(path).is_some_and(|stat| stat.status() == Status::Parked);
    world.eventually("it is parked", 3 * MINUTE, parked).await;
    assert!(tree::draw(&tree::snapshot(&world.handles.env.registry)).contains("parked"));
    let is_well = |world: &World| {
        world.store.health("lab").and_then(|h| {
            h.targets
                .iter()
                .find(|t| t.name.as_str() == "hv1")
                .map(egress_actors::domain::target::TargetHealth::is_ready)
        })
    };
    world.eventually("its health says so", 10 * SECOND, |world| is_well(world) == Some(false)).await;
    // What works goes on: its proxy still answers probes.
    assert_eq!(world.store.phase("px-1"), Some(Phase::Ready));
    // New ones go elsewhere.
    world.store.apply(managed("px-3", "lab"));
    world.ready("px-3").await;
    assert_eq!(world.store.desired("px-3").unwrap().host.unwrap().as_str(), "hv2");
    assert_eq!(world.restarts("/operator/providers/lab/host/hv2"), Some(0));
    assert_eq!(world.restarts("/operator/providers/lab"), Some(0));

    world.curse(path, 0);
    world.eventually("it is revived", 2 * MINUTE, |world| !parked(world)).await;
    world.eventually("and well", 2 * MINUTE, |world| is_well(world) == Some(true)).await;
    world.store.delete("px-1");
    world.eventually("it works", MINUTE, |world| !world.store.exists("px-1")).await;
    assert!(world.host("hv1").instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_panics_fails_its_operation_and_not_its_host() {
    let world = World::start();
    world.host("hv1").set_for("create", Mood::Panics);
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it was tried", MINUTE, |world| world.host("hv1").calls("create", "px-1") >= 2).await;
    assert_eq!(world.restarts("/operator/providers/lab/host/hv1"), Some(0));
    world.host("hv1").set(Mood::Works(SECOND));
    world.ready("px-1").await;
    assert_eq!(world.host("hv1").instances().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_crashes_as_it_is_deleted_is_not_probed_for_its_predecessor() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.host("hv1").set_for("delete", Mood::Hangs);
    world.curse("/operator/fleet/proxies/proxy/crawl/px-1", 1);
    world.store.delete("px-1");
    pass(MINUTE).await;
    assert_eq!(world.restarts("/operator/fleet/proxies/proxy/crawl/px-1"), Some(0), "a new actor, not a restarted one");
    let probes = world.prober.probes();
    pass(5 * MINUTE).await;
    assert_eq!(world.prober.probes(), probes);
}
