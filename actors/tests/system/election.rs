//! Two replicas on one cluster: who leads, and what the other one does not do.

use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::lease_book::Lease;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::election::ClaimState;
use egress_actors::host::{Call, Job, OpOutcome};
use egress_actors::kit::{CallError, Reply};
use egress_actors::leases::NotGranted;
use egress_actors::testkit::world::{Mood, Outage, Plan, World, any, external, managed};
use tokio::time::Instant;

use crate::isolation::{host, mark};
use crate::{HOUR, MINUTE, SECOND, all_is_well, fleet, lease, pass, release};

fn plan() -> Plan {
    Plan { identity: Some("a"), ..Plan::default() }
}

async fn leads(world: &World, within: Duration) {
    world
        .eventually("it leads", within, |world| matches!(world.handles.claim.state(), ClaimState::Leading { .. }))
        .await;
}

/// `a` leads and has made these; `b` stands by.
async fn pair(names: &[&str]) -> (World, World) {
    let a = World::start_with(&plan());
    leads(&a, SECOND).await;
    let b = a.beside("b");
    fleet(&a, names).await;
    (a, b)
}

/// `a` leads alone and has made these.
async fn alone(names: &[&str]) -> World {
    let a = World::start_with(&plan());
    leads(&a, SECOND).await;
    fleet(&a, names).await;
    a
}

/// Another replica holds the claim for so long.
async fn other_leads(world: &World, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        world.claims().usurp("other");
        pass(3 * SECOND).await;
    }
}

fn proxies(world: &World) -> usize {
    world.handles.env.registry.all().iter().filter(|stat| stat.kind() == "proxy").count()
}

fn mutations(world: &World) -> usize {
    world.line.calls_of("create") + world.line.calls_of("delete")
}

async fn renews(world: &World, held: &Lease) -> bool {
    world
        .handles
        .leases
        .renew(held.id.clone(), MINUTE, Some(held.generation))
        .await
        .is_ok_and(|renewed| renewed.is_ok())
}

#[tokio::test(start_paused = true)]
async fn a_standby_knows_the_fleet_and_does_nothing() {
    let (a, b) = pair(&["px-1", "px-2"]).await;
    a.store.reject("px-3", "spec.maxLeases: must be at least 1");
    pass(HOUR).await;
    assert!(b.handles.watch.state().synced);
    assert_eq!(b.handles.claim.state(), ClaimState::Standby);
    assert_eq!(b.handles.claim.holder().as_deref(), Some("a"));
    assert_eq!((proxies(&a), proxies(&b)), (2, 0), "{}", b.tree());
    assert_eq!((b.line.writes(), b.line.calls()), (vec![], vec![]));
    assert_eq!(b.prober.looks("px-1.hv1").len(), 0);
    assert_eq!(b.claims().writes_of("b"), []);
    assert_eq!(b.handles.leases.acquire(any()).await, Ok(Err(NotGranted::NotLeading)));
    // An answer about a lease that it does not know would be a lie: the edge hears nothing, and says so.
    assert_eq!(b.handles.leases.proxies().await.map(|_| ()), Err(CallError::Down));
    assert!(a.stop().await && b.stop().await);
}

#[tokio::test(start_paused = true)]
async fn after_a_kill_the_other_takes_over_with_the_recorded_fleet() {
    let (a, b) = pair(&["px-1", "px-2"]).await;
    a.store.apply(external("bought", "seller.example"));
    a.ready("bought").await;
    let held = lease(&a, "px-1").await;
    let (before, writes) = (a.host("hv1").instance_id("px-1"), a.store.writes("status"));
    let killed = Instant::now();
    a.kill().await;
    leads(&b, 20 * SECOND).await;
    let took = killed.elapsed();
    assert!(took >= 10 * SECOND, "before the claim of the killed one was over: {took:?}");
    b.eventually("all are there", 5 * SECOND, |world| proxies(world) == 3).await;
    pass(2 * SECOND).await;
    let next = lease(&b, "px-1").await;
    assert!(next.generation > held.generation, "{} after {}", next.generation, held.generation);
    release(&b, &next).await;
    assert_eq!(b.host("hv1").instance_id("px-1"), before);
    assert_eq!((mutations(&b), b.host("hv1").all_calls("create")), (0, 2), "nothing is made anew");
    pass(MINUTE).await;
    assert_eq!(b.store.writes("status"), writes, "nothing changed, nothing is written");
    assert_eq!(b.claims().marked(), ["b"]);
    all_is_well(&b, &["px-1", "px-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_end_in_order_hands_over_at_once_and_last_of_all() {
    let (a, b) = pair(&["px-1"]).await;
    assert!(a.stop().await);
    let record = b.claims().record().unwrap();
    assert!(record.is_free() && *record.holder == *"a", "{record:?}");
    let stopped = Instant::now();
    leads(&b, 3 * SECOND).await;
    assert!(stopped.elapsed() < 3 * SECOND);
    all_is_well(&b, &["px-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_rollout_of_both_hands_the_claim_on_each_time() {
    let (mut a, mut b) = pair(&["px-1"]).await;
    let mut epochs = vec![a.handles.claim.epoch()];
    for _ in 0..3 {
        let again = a.beside("again");
        assert!(a.stop().await);
        leads(&b, 3 * SECOND).await;
        epochs.push(b.handles.claim.epoch());
        (a, b) = (b, again);
    }
    assert!(epochs.is_sorted_by(|one, next| one < next), "{epochs:?}");
    assert_eq!(a.host("hv1").all_calls("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_suspends_and_the_same_book_goes_on_afterwards() {
    for outage in [Outage::Refuses, Outage::Hangs] {
        let (a, b) = pair(&["px-1", "px-2"]).await;
        let held = lease(&a, "px-1").await;
        let epoch = a.handles.claim.epoch();
        let actors = a.restarts("/operator/fleet/proxies");
        for replica in [&a, &b] {
            replica.line.cut(Some(outage));
        }
        pass(9 * SECOND).await;
        assert!(matches!(a.handles.claim.state(), ClaimState::Leading { .. } | ClaimState::Suspended { .. }));
        pass(2 * SECOND).await;
        assert_eq!(Some(a.handles.claim.state()), epoch.map(|epoch| ClaimState::Suspended { epoch }), "{outage:?}");
        pass(HOUR / 60).await;
        assert_eq!(a.handles.leases.acquire(any()).await, Ok(Err(NotGranted::NotLeading)));
        assert!(renews(&a, &held).await);
        let mutated = mutations(&a);
        for replica in [&a, &b] {
            replica.line.cut(None);
        }
        leads(&a, 10 * SECOND).await;
        assert_eq!((a.handles.claim.epoch(), b.handles.claim.state()), (epoch, ClaimState::Standby));
        assert!(renews(&a, &held).await && release(&a, &held).await);
        assert_eq!((a.restarts("/operator/fleet/proxies"), mutations(&a)), (actors, mutated));
        pass(HOUR).await;
        assert_eq!((a.handles.claim.epoch(), b.handles.claim.state()), (epoch, ClaimState::Standby));
        all_is_well(&a, &["px-1", "px-2"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_claim_no_object_is_written_no_backend_changed_and_all_is_done_when_it_is_back() {
    let (a, b) = pair(&["px-1", "px-2"]).await;
    // Everything else of the API server can be reached.
    a.line.cut_claims(Some(Outage::Refuses));
    b.line.cut_claims(Some(Outage::Refuses));
    pass(11 * SECOND).await;
    let (writes, mutated) = (a.line.writes().len(), mutations(&a));
    a.store.delete("px-1");
    a.store.apply(managed("px-3", "lab"));
    a.store.apply(external("bought", "seller.example"));
    a.store.reject("px-4", "spec.maxLeases: must be at least 1");
    a.host("hv1").lose("px-2");
    pass(10 * MINUTE).await;
    assert_eq!((a.line.writes().len(), mutations(&a)), (writes, mutated));
    assert!(a.store.exists("px-1"));
    a.line.cut_claims(None);
    b.line.cut_claims(None);
    a.eventually("the deletion is done", MINUTE, |world| !world.store.exists("px-1")).await;
    a.ready("px-3").await;
    a.ready("bought").await;
    a.eventually("the invalid one is told", MINUTE, |world| world.store.phase("px-4") == Some(Phase::Failed)).await;
    // The events that were kept follow within a second.
    pass(MINUTE).await;
    let warned: Vec<_> = a.sink.about("px-4").into_iter().map(|event| event.note).collect();
    assert_eq!(warned, ["spec.maxLeases: must be at least 1"], "what happened meanwhile is told, once");
    all_is_well(&a, &["px-2", "px-3"]).await;
    assert_eq!((b.line.writes(), mutations(&b)), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_frozen_wakes_and_starts_no_write_but_the_removal_of_its_label() {
    let a = alone(&["px-1", "px-2"]).await;
    let held = lease(&a, "px-1").await;
    let (writes, mutated, renewals) = (a.line.writes().len(), mutations(&a), a.claims().writes_of("a").len());
    let told = a.sink.events().len();
    // The first check after it woke fails, which would be told.
    a.host("hv1").set_for("check", Mood::Fails(OpError::transient(Reason::Unreachable, "away")));
    // While it sleeps another one takes over, and much is to be done.
    a.claims().usurp("other");
    a.store.delete("px-1");
    a.store.respec("px-2", |desired| desired.max_leases = 9);
    a.host("hv1").touch("px-2", |instance| instance.state = egress_actors::domain::instance::InstanceState::Stopped);
    a.store.apply(managed("px-3", "lab"));
    tokio::time::advance(MINUTE).await;
    assert!(!a.handles.claim.may_mutate(Instant::now().into_std()), "the value says so itself, before anybody ran");
    other_leads(&a, MINUTE).await;
    assert_eq!(a.handles.claim.state(), ClaimState::Standby);
    assert_eq!((a.line.writes().len(), mutations(&a)), (writes, mutated));
    assert_eq!(a.claims().writes_of("a").len(), renewals, "it looked before it wrote");
    assert_eq!(a.sink.events().len(), told, "{:?}", a.sink.events());
    assert_eq!(a.claims().marked(), ["other"]);
    assert_eq!(proxies(&a), 0);
    assert!(!renews(&a, &held).await);
}

#[tokio::test(start_paused = true)]
async fn who_sees_another_holder_is_torn_down_to_a_standby_and_may_lead_again() {
    let a = alone(&["px-1", "px-2"]).await;
    let held = lease(&a, "px-1").await;
    let restarts = a.restarts("/operator/fleet");
    a.claims().usurp("other");
    a.eventually("it stands by", 5 * SECOND, |world| proxies(world) == 0).await;
    assert!(a.handles.board.is_empty());
    pass(SECOND).await;
    assert!(a.handles.watch.state().synced, "it knows the fleet again");
    assert!(!renews(&a, &held).await);
    assert_eq!(a.restarts("/operator/fleet"), restarts, "the process and the fleet's supervisor go on");
    let (probes, calls) = (a.prober.looks("px-1.hv1").len(), a.line.calls().len());
    other_leads(&a, 10 * MINUTE).await;
    assert_eq!((a.prober.looks("px-1.hv1").len(), a.line.calls().len()), (probes, calls), "neither probes nor lists");
    a.claims().let_go();
    leads(&a, 3 * SECOND).await;
    pass(2 * SECOND).await;
    let next = lease(&a, "px-1").await;
    assert!(next.generation > held.generation);
    assert!(release(&a, &next).await);
    assert_eq!(a.host("hv1").all_calls("create"), 2, "what is there is adopted");
    all_is_well(&a, &["px-1", "px-2"]).await;
    assert!(a.stop().await);
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_claim_had_under_way_and_waiting_is_ended_and_never_begun() {
    let a = World::start_with(&Plan { slots: 1, ..plan() });
    leads(&a, SECOND).await;
    fleet(&a, &["px-1"]).await;
    a.host("hv1").set_for("create", Mood::Hangs);
    for name in ["px-2", "px-3", "px-4"] {
        a.store.apply(managed(name, "lab"));
    }
    a.eventually("one is under way", MINUTE, |world| world.line.calls_of("create") == 2).await;
    a.claims().usurp("other");
    a.eventually("it is cut", 5 * SECOND, |world| world.host("hv1").running() == 0).await;
    // The other one is quick: a write that waited is not done under the next claim of ours either.
    let (creates, writes) = (a.line.calls_of("create"), a.line.writes().len());
    a.host("hv1").set(Mood::Fails(OpError::transient(Reason::Unreachable, "away")));
    pass(5 * SECOND).await;
    assert_eq!((a.line.calls_of("create"), a.line.writes().len()), (creates, writes));
    a.claims().let_go();
    leads(&a, 5 * SECOND).await;
    a.host("hv1").set(Mood::Works(SECOND));
    for name in ["px-2", "px-3", "px-4"] {
        a.ready(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_status_that_was_not_written_under_a_lost_claim_never_overwrites_the_next_leaders() {
    let a = alone(&["px-1"]).await;
    a.store.refuse("status", Some(OpError::transient(Reason::APIError, "too many requests")));
    a.store.respec("px-1", |desired| desired.max_leases = 3);
    pass(5 * SECOND).await;
    a.claims().usurp("other");
    pass(5 * SECOND).await;
    assert_eq!(proxies(&a), 0);
    // The other one wrote, and gave way.
    a.store.refuse("status", None);
    a.store.respec("px-1", |desired| desired.max_leases = 4);
    let written = a.store.status("px-1").unwrap();
    let other = egress_actors::domain::status::Status { observed_generation: 3, ..written };
    let desired = a.store.desired("px-1").unwrap();
    let mandate = egress_actors::ports::Mandate::always();
    egress_actors::ports::Records::write_status(&*a.store, &desired.key, &desired.uid, &other, &mandate).await.unwrap();
    a.claims().let_go();
    leads(&a, 5 * SECOND).await;
    pass(2 * MINUTE).await;
    assert_eq!(a.store.statuses("px-1").last(), Some(&other));
}

#[tokio::test(start_paused = true)]
async fn a_mutation_that_was_decided_under_another_claim_is_not_begun() {
    let a = alone(&["px-1"]).await;
    let host = host(&a, "hv1");
    for (epoch, deletes) in [(Some(99), 0), (None, 0), (a.handles.claim.epoch(), 1)] {
        let (tell, outcome) = tokio::sync::oneshot::channel();
        let reply = Reply::new(move |outcome: OpOutcome| drop(tell.send(outcome)), || unreachable!("the host answers"));
        let deadline = (Instant::now() + MINUTE).into_std();
        host.submit(Job { call: Call::Delete(mark("px-9")), deadline, epoch, reply });
        let result = outcome.await.unwrap().result;
        assert_eq!((result.is_ok(), a.line.calls_of("delete")), (deletes == 1, deletes), "{epoch:?}: {result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn serving_without_the_claim_grants_while_suspended_and_never_while_another_leads() {
    let a = World::start_with(&Plan { serve_without_claim: true, ..plan() });
    leads(&a, SECOND).await;
    fleet(&a, &["px-1"]).await;
    a.line.cut(Some(Outage::Refuses));
    pass(MINUTE).await;
    assert!(matches!(a.handles.claim.state(), ClaimState::Suspended { .. }));
    let held = lease(&a, "px-1").await;
    assert!(renews(&a, &held).await && release(&a, &held).await);
    a.claims().usurp("other");
    a.line.cut(None);
    a.eventually("it stands by", 10 * SECOND, |world| proxies(world) == 0).await;
    assert_eq!(a.handles.leases.acquire(any()).await, Ok(Err(NotGranted::NotLeading)));
}

#[tokio::test(start_paused = true)]
async fn an_election_that_crashes_keeps_what_was_published_and_its_epoch() {
    let (a, b) = pair(&["px-1"]).await;
    let held = lease(&a, "px-1").await;
    let epoch = a.handles.claim.epoch();
    for _ in 0..3 {
        a.curse("/operator/election", 1);
        pass(20 * SECOND).await;
        assert_eq!((a.handles.claim.epoch(), b.handles.claim.state()), (epoch, ClaimState::Standby));
        assert!(a.handles.claim.may_mutate(Instant::now().into_std()));
    }
    assert_eq!(a.restarts("/operator/election"), Some(3));
    assert!(renews(&a, &held).await);
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_crashes_while_suspended_comes_back_under_the_same_claim() {
    let (a, b) = pair(&["px-1"]).await;
    let before = lease(&a, "px-1").await;
    a.line.cut_claims(Some(Outage::Hangs));
    b.line.cut_claims(Some(Outage::Hangs));
    pass(20 * SECOND).await;
    a.curse("/operator/fleet/leases", 1);
    pass(20 * SECOND).await;
    assert_eq!(a.restarts("/operator/fleet/leases"), Some(1));
    a.line.cut_claims(None);
    leads(&a, 10 * SECOND).await;
    pass(2 * SECOND).await;
    let after = lease(&a, "px-1").await;
    assert!(after.generation > before.generation, "{} after {}", after.generation, before.generation);
    assert_eq!(mutations(&a), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_record_is_made_again_by_its_holder_and_deposes_nobody() {
    let (a, b) = pair(&["px-1"]).await;
    let held = lease(&a, "px-1").await;
    let epoch = a.handles.claim.epoch();
    a.claims().remove();
    pass(MINUTE).await;
    assert_eq!((a.handles.claim.epoch(), b.handles.claim.state()), (epoch, ClaimState::Standby));
    assert_eq!(a.claims().record().map(|record| Some(record.transitions)), Some(epoch));
    assert!(renews(&a, &held).await);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_proxies_are_taken_over_and_each_is_on_offer_again() {
    let a = World::start_with(&plan());
    leads(&a, SECOND).await;
    let b = a.beside("b");
    for n in 0..1000 {
        a.store.apply(external(&format!("px-{n}"), &format!("seller-{n}.example")));
    }
    a.eventually("all Ready", 2 * MINUTE, |world| world.store.count_in(Phase::Ready) == 1000).await;
    let writes = a.store.writes("status");
    assert!(a.stop().await);
    leads(&b, 3 * SECOND).await;
    assert!(!b.handles.proxies.are_announced(), "until then nobody hears that there is none");
    b.eventually("all are announced", 10 * SECOND, |world| world.handles.proxies.are_announced()).await;
    assert_eq!(proxies(&b), 1000);
    let ask = egress_actors::domain::lease_book::Ask { count: 1000, ..any() };
    assert_eq!(b.lease(ask).await.map(|leases| leases.len()), Ok(1000));
    assert_eq!(b.store.writes("status"), writes);
}
