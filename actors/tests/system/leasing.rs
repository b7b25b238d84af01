//! The lease registry as part of the whole.

use std::time::Duration;

use egress_actors::domain::lease_book::{Ask, Outcome, Refusal, Report};
use egress_actors::domain::status::Phase;
use egress_actors::kit::CallError;
use egress_actors::leases::NotGranted;
use egress_actors::testkit::world::{World, any, external, only};
use futures::FutureExt;

use crate::{MINUTE, SECOND, fleet, is_on_offer, lease, pass};

fn trouble() -> Report {
    Report { outcome: Outcome::ProxyError, target: None, release: false, generation: None }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_concurrent_asks_for_twenty_proxies_get_exactly_twenty() {
    let world = World::start();
    for n in 0..20 {
        world.store.apply(external(&format!("px-{n}"), &format!("seller-{n}.example")));
    }
    world.eventually("all Ready", MINUTE, |world| world.store.count_in(Phase::Ready) == 20).await;
    let asks = (0..200).map(|_| {
        let leases = world.handles.leases.clone();
        tokio::spawn(async move { leases.acquire(any()).await })
    });
    let answers = futures::future::join_all(asks).await;
    let mut holders = std::collections::HashSet::new();
    let mut refused = 0;
    for answer in answers {
        match answer.unwrap().unwrap() {
            Ok(granted) => {
                assert_eq!(granted.leases.len(), 1);
                assert!(holders.insert(granted.leases[0].proxy.key.clone()), "two holders of one");
            }
            Err(NotGranted::Refused(Refusal::NoneAvailable(why))) => {
                refused += 1;
                assert_eq!((why.matching, why.healthy, why.leased_out), (20, 20, 20));
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!((holders.len(), refused), (20, 180));
}

#[tokio::test(start_paused = true)]
async fn a_report_of_trouble_makes_a_probe_at_once_and_at_most_one_in_five_seconds() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let held = lease(&world, "px-1").await;
    pass(3 * SECOND).await;
    let probes = || world.prober.looks("px-1.hv1").len();
    let before = probes();
    world.handles.leases.report(held.id.clone(), trouble()).await.unwrap().unwrap();
    pass(Duration::from_millis(100)).await;
    assert_eq!(probes(), before + 1, "at once");
    for _ in 0..40 {
        world.handles.leases.report(held.id.clone(), trouble()).await.unwrap().unwrap();
        pass(Duration::from_millis(100)).await;
    }
    assert_eq!(probes(), before + 1, "41 reports within 5 s");
    pass(2 * SECOND).await;
    world.handles.leases.report(held.id.clone(), trouble()).await.unwrap().unwrap();
    pass(Duration::from_millis(100)).await;
    assert_eq!(probes(), before + 2);
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_caller_is_gone_holds_nothing_wherever_it_was_on_its_way() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    // Gone before the registry looked at the ask.
    drop(world.handles.leases.acquire(only("px-1")).now_or_never());
    pass(SECOND).await;
    assert!(is_on_offer(&world, "px-1").await);
    // Gone after the registry had answered, with the answer on its way.
    let mut asked = Box::pin(world.handles.leases.acquire(only("px-1")));
    assert!(futures::poll!(&mut asked).is_pending());
    pass(SECOND).await;
    assert_eq!(world.handles.leases.list("default".into(), None).await.unwrap().len(), 1, "it is granted by now");
    drop(asked);
    pass(SECOND).await;
    assert_eq!(world.handles.leases.list("default".into(), None).await.unwrap(), []);
    assert!(is_on_offer(&world, "px-1").await);
    assert!(is_on_offer(&world, "px-1").await);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_takes_its_answer_late_still_has_it() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let mut asked = Box::pin(world.handles.leases.acquire(only("px-1")));
    assert!(futures::poll!(&mut asked).is_pending());
    pass(SECOND).await;
    let granted = asked.await.unwrap().unwrap();
    assert!(world.handles.leases.get(granted.leases[0].id.clone()).await.unwrap().is_ok());
    pass(SECOND).await;
    assert!(!is_on_offer(&world, "px-1").await);
}

#[tokio::test(start_paused = true)]
async fn more_calls_than_there_are_places_hear_full_at_once() {
    let world = World::start();
    pass(SECOND).await;
    let asks: Vec<_> = (0..5000).map(|_| world.handles.leases.acquire(any()).now_or_never()).collect();
    let full = asks.iter().filter(|answer| **answer == Some(Err(CallError::Full))).count();
    // Those that waited are gone with their futures, and their places stay taken until the registry looks.
    assert_eq!(full, 5000 - 4096);
    pass(SECOND).await;
    assert!(world.lease(any()).await.is_err(), "it answers again");
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_with_its_time_and_its_proxy_is_leased_again() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let held = world.lease(Ask { ttl: MINUTE, ..only("px-1") }).await.unwrap().remove(0);
    pass(59 * SECOND).await;
    assert!(!is_on_offer(&world, "px-1").await);
    pass(2 * SECOND).await;
    assert!(is_on_offer(&world, "px-1").await);
    assert!(world.handles.leases.get(held.id).await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_recreated_name_inherits_nothing() {
    let world = World::start();
    world.store.apply(external("px-1", "one.example"));
    world.ready("px-1").await;
    let held = lease(&world, "px-1").await;
    let mut other = external("px-1", "two.example");
    other.uid = egress_actors::domain::id::Uid::parse("uid-other").unwrap();
    world.store.apply(other);
    world
        .eventually("the new one is Ready", MINUTE, |world| {
            world
                .store
                .status("px-1")
                .is_some_and(|s| s.is_ready() && s.endpoint.as_deref() == Some("http://two.example:3128"))
        })
        .await;
    assert!(world.handles.leases.get(held.id).await.unwrap().is_err());
    assert_eq!(&*lease(&world, "px-1").await.proxy.endpoint.host, "two.example");
}
