//! Proxies that swallow their probes: what others feel of them, and what becomes of them.

use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{Path, World, external, managed};
use tokio::time::Instant;

use crate::SECOND;

/// `count` bought Proxies, each a failure domain of its own, whose names begin with `kind`.
fn bought(world: &World, kind: &str, count: usize) {
    for n in 0..count {
        world.store.apply(external(&format!("{kind}-{n}"), &format!("{kind}{n}.example")));
    }
}

#[tokio::test(start_paused = true)]
async fn a_fresh_proxy_on_a_good_host_does_not_wait_behind_five_hundred_that_swallow() {
    let world = World::start();
    world.store.apply(managed("px-1", "lab"));
    bought(&world, "known", 250);
    world.eventually("all Ready", 60 * SECOND, |world| world.store.count_in(Phase::Ready) == 251).await;
    world.prober.set(".example", Path::Swallows);
    bought(&world, "new", 250);
    // Into the minute in which the probes of the known ones come due.
    tokio::time::sleep(40 * SECOND).await;
    for n in 2..20 {
        let (name, begun) = (format!("px-{n}"), Instant::now());
        world.store.apply(managed(&name, "lab"));
        world.ready(&name).await;
        assert!(begun.elapsed() < 2 * SECOND, "{name} was Ready after {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_cut_for_others_is_no_failure_and_silence_is_still_found_out() {
    let world = World::start();
    bought(&world, "known", 500);
    world.eventually("all Ready", 60 * SECOND, |world| world.store.count_in(Phase::Ready) == 500).await;
    world.prober.set(".example", Path::Swallows);
    // Three failures make one Unhealthy: at 30 s between them and 10 s each, nobody can be before this.
    tokio::time::sleep(75 * SECOND).await;
    assert_eq!(world.store.count_in(Phase::Ready), 500);
    world.eventually("all are Unhealthy", 1200 * SECOND, |world| world.store.count_in(Phase::Unhealthy) == 500).await;
    world.prober.set(".example", Path::Open);
    world.eventually("all are Ready again", 1200 * SECOND, |world| world.store.count_in(Phase::Ready) == 500).await;
}
