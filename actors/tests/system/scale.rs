//! Many Proxies, and nothing left of them.

use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{Plan, World, external, managed};

use crate::{HOUR, MINUTE, all_is_well, at_rest, fleet, pass};

const MANY: usize = 1000;

fn depths(world: &World) -> usize {
    world.handles.env.registry.all().iter().map(|stat| stat.depth()).sum()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_external_proxies_come_and_go_and_leave_nothing() {
    let world = World::start_with(&Plan { workers: 400, ..Plan::default() });
    fleet(&world, &["px-1"]).await;
    let before = at_rest(&world).await;
    for round in 0..3 {
        for n in 0..MANY {
            world.store.apply(external(&format!("bought-{n}"), &format!("seller-{}.example", n % 50)));
        }
        world.eventually("all Ready", 5 * MINUTE, |world| world.store.count_in(Phase::Ready) == MANY + 1).await;
        assert_eq!(world.handles.board.len(), MANY + 1);
        assert_eq!(world.handles.leases.proxies().await.unwrap().len(), MANY + 1);
        for n in 0..MANY {
            world.store.delete(&format!("bought-{n}"));
        }
        world.eventually("the board is empty", MINUTE, |world| world.handles.board.len() == 1).await;
        assert_eq!(at_rest(&world).await, before, "after round {round}");
        assert_eq!(world.handles.leases.proxies().await.unwrap().len(), 1);
        assert_eq!(depths(&world), 0);
    }
    all_is_well(&world, &["px-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn objects_that_vanish_between_two_lists_are_forgotten_with_the_second() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let before = at_rest(&world).await;
    for n in 0..100 {
        world.store.apply(external(&format!("bought-{n}"), &format!("seller-{n}.example")));
    }
    world.eventually("all Ready", 5 * MINUTE, |world| world.store.count_in(Phase::Ready) == 101).await;
    // Nobody hears of the ends.
    world.store.cut_streams();
    for n in 0..100 {
        world.store.delete(&format!("bought-{n}"));
    }
    world.eventually("the list tells", MINUTE, |world| world.handles.board.len() == 1).await;
    assert_eq!(at_rest(&world).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_at_rest_for_hours_stays_as_it_is() {
    let world = World::start();
    for n in 0..20 {
        world.store.apply(managed(&format!("px-{n}"), "lab"));
    }
    world.eventually("all Ready", 5 * MINUTE, |world| world.store.count_in(Phase::Ready) == 20).await;
    let before = at_rest(&world).await;
    pass(4 * HOUR).await;
    assert_eq!(at_rest(&world).await, before);
    assert_eq!(world.store.count_in(Phase::Ready), 20);
    assert_eq!(depths(&world), 0);
}
