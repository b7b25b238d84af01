//! Whole operators on scripted ports, under a paused clock: what a user sees of the actor system, one file a subject.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

mod correlated;
mod deletion;
mod election;
mod healths;
mod isolation;
mod leasing;
mod life;
mod panics;
mod parking;
mod providers;
mod replacement;
mod restart;
mod scale;
mod secrets;
mod swallowed;
mod sweep;
mod sweep_random;
mod writes;

use std::time::Duration;

use egress_actors::domain::lease_book::{Lease, NotHeld, Release};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{ConditionType, Phase};
use egress_actors::testkit::world::{World, managed, only};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Applies managed Proxies of the entry `lab` and waits until all are Ready.
async fn fleet(world: &World, names: &[&str]) {
    for name in names {
        world.store.apply(managed(name, "lab"));
    }
    for name in names {
        world.ready(name).await;
    }
}

async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// One lease of this Proxy, which must be on offer.
async fn lease(world: &World, name: &str) -> Lease {
    let granted = world.lease(only(name)).await;
    granted.unwrap_or_else(|why| panic!("{name} is not leased: {why:?}")).remove(0)
}

async fn release(world: &World, lease: &Lease) -> bool {
    let released = world.handles.leases.release(lease.id.clone()).await.expect("the registry answers");
    matches!(released, Release::Released(_))
}

async fn renew(world: &World, lease: &Lease) -> Result<Lease, NotHeld> {
    let renewed = world.handles.leases.renew(lease.id.clone(), 10 * MINUTE, None).await;
    renewed.expect("the registry answers")
}

async fn is_on_offer(world: &World, name: &str) -> bool {
    match world.lease(only(name)).await {
        Ok(leases) => {
            release(world, &leases[0]).await;
            true
        }
        Err(_) => false,
    }
}

/// Reason and message of Ready, as written on the object.
fn ready_of(world: &World, name: &str) -> (Reason, String) {
    let status = world.store.status(name).expect("a status was written");
    let ready = status.condition(ConditionType::Ready).expect("it tells Ready");
    (ready.reason, ready.message.to_string())
}

/// The system works: what was Ready is leased, renewed and released, and a new Proxy is made.
async fn all_is_well(world: &World, names: &[&str]) {
    for name in names {
        world.eventually("it is Ready", 2 * MINUTE, |world| world.store.phase(name) == Some(Phase::Ready)).await;
        let limit = tokio::time::Instant::now() + MINUTE;
        while !is_on_offer(world, name).await {
            assert!(tokio::time::Instant::now() < limit, "{name} is not on offer\n{}", world.tree());
            pass(SECOND).await;
        }
        let held = lease(world, name).await;
        let renewed = world.handles.leases.renew(held.id.clone(), MINUTE, Some(held.generation)).await.unwrap();
        assert!(renewed.is_ok(), "{renewed:?}");
        assert!(release(world, &held).await);
    }
    fleet(world, &["afterwards"]).await;
    release(world, &lease(world, "afterwards").await).await;
    world.store.delete("afterwards");
    world.eventually("it is gone", MINUTE, |world| !world.store.exists("afterwards")).await;
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// Places in the tree and tasks, once nothing is under way.
async fn at_rest(world: &World) -> (usize, usize) {
    // An operation, a write or a probe may be under way at any moment: the smallest of several readings has none.
    let mut least = (usize::MAX, usize::MAX);
    for _ in 0..40 {
        pass(SECOND / 3).await;
        least = (least.0.min(world.handles.env.registry.len()), least.1.min(tasks()));
    }
    least
}
