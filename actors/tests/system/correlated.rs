//! Many fail at once: is it the target, or the proxies?

use egress_actors::domain::health::Blame;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{Path, Plan, World, external, managed, on};

use crate::{MINUTE, SECOND, is_on_offer, pass};

const TARGET_FAULT: Path = Path::Fails(Blame::Target, Reason::TargetTimeout);

fn plan() -> Plan {
    Plan { entries: vec![("lab", vec![("hv1", None), ("hv2", None)])], ..Plan::default() }
}

/// 60 on `hv1`, 10 on `hv2`, and 10 bought ones of 10 sellers.
async fn eighty(world: &World) {
    for n in 0..60 {
        world.store.apply(on(managed(&format!("a-{n}"), "lab"), "hv1"));
    }
    for n in 0..10 {
        world.store.apply(on(managed(&format!("b-{n}"), "lab"), "hv2"));
        world.store.apply(external(&format!("c-{n}"), &format!("seller-{n}.example")));
    }
    world.eventually("all Ready", 5 * MINUTE, |world| world.store.count_in(Phase::Ready) == 80).await;
    pass(2 * MINUTE).await;
}

fn ready(world: &World) -> usize {
    world.store.count_in(Phase::Ready)
}

#[tokio::test(start_paused = true)]
async fn a_target_that_fails_for_all_withdraws_nobody_and_recovers() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    let before = world.store.writes("status");
    world.prober.set("", TARGET_FAULT);
    pass(30 * MINUTE).await;
    assert_eq!(ready(&world), 80);
    assert!(is_on_offer(&world, "a-0").await && is_on_offer(&world, "c-0").await);
    assert_eq!(world.store.writes("status"), before);
    world.prober.set("", Path::Open);
    pass(5 * MINUTE).await;
    assert_eq!(ready(&world), 80);
    // The guard is down again: a proxy's own trouble at the target counts.
    world.prober.set("seller-0.example", TARGET_FAULT);
    world.eventually("it counts", 5 * MINUTE, |world| world.store.phase("c-0") == Some(Phase::Unhealthy)).await;
    assert_eq!(ready(&world), 79);
}

#[tokio::test(start_paused = true)]
async fn a_proxys_own_fault_counts_while_the_target_is_suspect() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    world.prober.set("", TARGET_FAULT);
    pass(5 * MINUTE).await;
    world.prober.set("a-7.hv1", Path::Fails(Blame::Proxy, Reason::ProxyConnectionRefused));
    world.eventually("it is withdrawn", 5 * MINUTE, |world| world.store.phase("a-7") == Some(Phase::Unhealthy)).await;
    assert_eq!(ready(&world), 79);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_without_a_verdict_stays_unoffered_while_the_target_is_suspect() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    world.prober.set("", TARGET_FAULT);
    pass(5 * MINUTE).await;
    world.store.apply(external("new", "new.example"));
    pass(10 * MINUTE).await;
    assert_ne!(world.store.phase("new"), Some(Phase::Ready));
    assert!(!is_on_offer(&world, "new").await);
    world.prober.set("", Path::Open);
    world.eventually("all Ready", 3 * MINUTE, |world| ready(world) == 81).await;
}

#[tokio::test(start_paused = true)]
async fn sixty_proxies_that_die_with_their_host_are_no_reason_to_doubt_the_target() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    world.prober.set(".hv1", Path::Fails(Blame::Proxy, Reason::ProxyUnreachable));
    // 30 s apart, three in a row, in the suspects' lane: but every one of them.
    world.eventually("all sixty are withdrawn", 15 * MINUTE, |world| ready(world) == 20).await;
    assert!(is_on_offer(&world, "b-0").await && is_on_offer(&world, "c-0").await);
    world.prober.set(".hv1", Path::Open);
    world.eventually("all are back", 15 * MINUTE, |world| ready(world) == 80).await;
}

#[tokio::test(start_paused = true)]
async fn one_host_whose_way_out_is_broken_does_not_make_the_target_suspect() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    // 60 of 80 in one domain: neither three domains nor 80 %.
    world.prober.set(".hv1", TARGET_FAULT);
    world.eventually("they are withdrawn", 15 * MINUTE, |world| ready(world) == 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_direct_look_that_fails_after_it_had_succeeded_freezes_the_verdicts() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    assert!(world.prober.direct_looks() >= 1, "we proved that we can look");
    // Only one host sees it; alone that would count against its proxies.
    world.prober.set_direct_fails(true);
    world.prober.set(".hv1", TARGET_FAULT);
    pass(30 * MINUTE).await;
    assert_eq!(ready(&world), 80);
    world.prober.set_direct_fails(false);
    world.eventually("the look succeeds", 15 * MINUTE, |world| ready(world) == 20).await;
}

#[tokio::test(start_paused = true)]
async fn a_direct_look_that_never_succeeded_says_nothing() {
    let world = World::start_with(&plan());
    world.prober.set_direct_fails(true);
    eighty(&world).await;
    world.prober.set(".hv1", TARGET_FAULT);
    world.eventually("they are withdrawn", 15 * MINUTE, |world| ready(world) == 20).await;
}

#[tokio::test(start_paused = true)]
async fn direct_looks_are_few() {
    let world = World::start_with(&plan());
    eighty(&world).await;
    pass(30 * MINUTE).await;
    assert!(world.prober.direct_looks() <= 2, "{} looks while nobody doubts", world.prober.direct_looks());
    world.prober.set("", TARGET_FAULT);
    let before = world.prober.direct_looks();
    pass(10 * MINUTE).await;
    let looks = world.prober.direct_looks() - before;
    assert!((20..=45).contains(&looks), "{looks} looks in ten minutes of doubt");
}

#[tokio::test(start_paused = true)]
async fn a_prober_that_panics_or_never_ends_is_a_failed_probe_and_nothing_more() {
    for path in [Path::Panics, Path::Hangs] {
        let world = World::start_with(&plan());
        world.store.apply(external("good", "good.example"));
        world.ready("good").await;
        world.prober.set("bad.example", path.clone());
        world.store.apply(external("bad", "bad.example"));
        world.eventually("unhealthy", 5 * MINUTE, |world| world.store.phase("bad") == Some(Phase::Unhealthy)).await;
        assert_eq!(world.restarts("/operator/fleet/probes"), Some(0), "{path:?}");
        world.prober.set("bad.example", Path::Open);
        world.ready("bad").await;
        pass(SECOND).await;
        assert_eq!(world.store.phase("good"), Some(Phase::Ready));
    }
}
