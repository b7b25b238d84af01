//! The operator ends and begins again.

use egress_actors::domain::health::Blame;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::proxy::Deadlines;
use egress_actors::testkit::world::{Mood, Path, Plan, World, any, external, managed, only, with_secret};

use crate::{MINUTE, SECOND, all_is_well, fleet, is_on_offer, lease, pass, ready_of, release};

const NAMES: [&str; 2] = ["px-1", "px-2"];

/// Two managed and one bought Proxy are Ready; then the operator ended in order and another one began.
async fn restarted(prepare: impl FnOnce(&World)) -> World {
    let world = World::start();
    fleet(&world, &NAMES).await;
    world.store.apply(external("bought", "seller.example"));
    world.ready("bought").await;
    prepare(&world);
    world.restart().await
}

#[tokio::test(start_paused = true)]
async fn recorded_ready_ones_are_offered_before_their_first_new_probe() {
    // Every probe hangs: whatever is offered is offered on the word of the record.
    let mut before = 0;
    let world = restarted(|world| {
        world.prober.set("", Path::Swallows);
        before = world.store.writes("status");
    })
    .await;
    pass(SECOND).await;
    for name in ["px-1", "px-2", "bought"] {
        assert!(is_on_offer(&world, name).await, "{name}");
        assert_eq!(world.store.phase(name), Some(Phase::Ready));
    }
    assert_eq!(world.host("hv1").all_calls("create"), 2);
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    assert_eq!(world.store.writes("status"), before, "a restart of ours is no news");
}

#[tokio::test(start_paused = true)]
async fn a_recorded_ready_one_is_probed_first_and_withdrawn_on_the_first_failure() {
    let world = restarted(|world| {
        world.prober.set("px-1.hv1", Path::Fails(Blame::Proxy, Reason::ProxyConnectionRefused));
    })
    .await;
    world.eventually("it is told", 10 * SECOND, |world| world.store.phase("px-1") == Some(Phase::Unhealthy)).await;
    assert!(!is_on_offer(&world, "px-1").await);
    assert!(is_on_offer(&world, "px-2").await);
    world.prober.set("px-1.hv1", Path::Open);
    world.ready("px-1").await;
    assert_eq!(world.host("hv1").all_calls("create"), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_or_removed_by_a_restart_and_one_list_tells_all() {
    let mut gets = 0;
    let world = restarted(|world| gets = world.host("hv1").all_calls("get")).await;
    pass(10 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("create"), 2);
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    assert!(world.host("hv1").all_calls("get") - gets <= 2, "{} gets", world.host("hv1").all_calls("get") - gets);
    all_is_well(&world, &NAMES).await;
}

#[tokio::test(start_paused = true)]
async fn fencing_numbers_grow_over_restarts() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..3 {
            let held = lease(&world, "px-1").await;
            assert!(held.generation > last, "{} after {last}", held.generation);
            last = held.generation;
            release(&world, &held).await;
        }
        world.curse("/operator/fleet/leases", 1);
        assert!(world.handles.leases.acquire(any()).await.is_err());
        world.eventually("back", MINUTE, |world| world.restarts("/operator/fleet/leases") == Some(1)).await;
        pass(SECOND).await;
        let held = lease(&world, "px-1").await;
        assert!(held.generation > last, "{} after {last}", held.generation);
        last = held.generation;
        world = world.restart().await;
        pass(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_while_the_operator_was_down_is_cleaned_up() {
    let world = restarted(|_| ()).await;
    let world = {
        let store = world.store.clone();
        // Between the two operators nobody listens.
        let restart = world.restart();
        store.delete("px-1");
        restart.await
    };
    world.eventually("it is gone", MINUTE, |world| !world.store.exists("px-1")).await;
    assert_eq!(world.host("hv1").instances().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_under_way_goes_on_after_a_restart_and_gives_nothing_up() {
    let world = restarted(|world| {
        world.host("hv1").set_for("delete", Mood::Hangs);
        world.store.delete("px-1");
    })
    .await;
    pass(MINUTE).await;
    assert!(world.store.exists("px-1"));
    let world = world.restart().await;
    pass(MINUTE).await;
    assert_eq!(world.sink.acked_about("px-1"), []);
    world.host("hv1").set(Mood::Works(SECOND));
    world.eventually("it is gone", 5 * MINUTE, |world| !world.store.exists("px-1")).await;
    assert_eq!(world.host("hv1").instances().len(), 1);
    assert_eq!(world.sink.acked_about("px-1"), []);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_landed_after_the_operator_had_ended_is_found_and_not_doubled() {
    let deadlines = Deadlines { create: 50 * SECOND, ..Deadlines::default() };
    let world = World::start_with(&Plan { deadlines, ..Plan::default() });
    world.host("hv1").set_for("create", Mood::Late(30 * SECOND));
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it is being made", MINUTE, |world| world.host("hv1").calls("create", "px-1") == 1).await;
    let world = world.restart().await;
    world.ready("px-1").await;
    pass(5 * MINUTE).await;
    assert_eq!(world.host("hv1").instances().len(), 1);
    assert_eq!(world.store.phase("px-1"), Some(Phase::Ready));
}

#[tokio::test(start_paused = true)]
async fn one_with_credentials_is_offered_again_as_soon_as_they_are_read_and_drained_ones_are_not() {
    let world = World::start();
    world.secrets.put("s", "user", "right");
    world.store.apply(with_secret(external("bought", "seller.example"), "s"));
    world.ready("bought").await;
    world.store.edit("bought", |desired| desired.annotations.drain = true);
    world
        .eventually("drained", MINUTE, |world| {
            let told = world.store.status("bought").unwrap();
            told.condition(egress_actors::domain::status::ConditionType::Drained).unwrap().reason == Reason::Drained
        })
        .await;
    world.prober.set("", Path::Swallows);
    let world = world.restart().await;
    for _ in 0..50 {
        let answer = world.handles.leases.acquire(only("bought")).await;
        assert!(!matches!(answer, Ok(Ok(_))), "granted while the drain annotation is set");
        pass(SECOND / 10).await;
    }
    assert_eq!(ready_of(&world, "bought").0, Reason::Healthy);
    world.store.edit("bought", |desired| desired.annotations.drain = false);
    pass(SECOND).await;
    assert!(is_on_offer(&world, "bought").await);
}

#[tokio::test(start_paused = true)]
async fn an_operator_ends_in_order_while_every_host_hangs() {
    let world = World::start();
    world.host("hv1").set(Mood::Hangs);
    for n in 0..50 {
        world.store.apply(managed(&format!("px-{n}"), "lab"));
    }
    pass(MINUTE).await;
    let begun = tokio::time::Instant::now();
    assert!(world.stop().await, "it ended in order");
    assert!(begun.elapsed() < 10 * SECOND, "in {:?}", begun.elapsed());
    pass(SECOND).await;
    assert_eq!(crate::tasks(), 0);
}
