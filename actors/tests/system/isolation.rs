//! Who stalls, stalls only itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egress_actors::domain::error::Class;
use egress_actors::domain::id::{HostName, OperatorId, ProviderName, Uid};
use egress_actors::domain::instance::OwnerMark;
use egress_actors::domain::plan::Settings;
use egress_actors::domain::status::Phase;
use egress_actors::host::{Call, HostHandle, Job, OpOutcome};
use egress_actors::kit::Reply;
use egress_actors::proxy::Deadlines;
use egress_actors::testkit::world::{Mood, Path, Plan, World, external, key, managed, on};
use tokio::time::Instant;

use crate::{HOUR, MINUTE, SECOND, fleet, lease, pass, release, tasks};

const GOOD_HOSTS: [&str; 5] = ["g1", "g2", "g3", "g4", "g5"];
const GOOD: usize = 50;
const BAD: usize = 500;

/// Readings are whole milliseconds, and two timers of one moment fire in some order.
const SLACK: Duration = Duration::from_millis(20);

fn good(n: usize) -> String {
    format!("good-{n}")
}

/// What the good ones see, counted from when somebody wanted it.
#[derive(Debug, Default)]
struct Course {
    /// For each good one, in turn: its create on the host, its first probe, Ready on the object, its delete on the host.
    marks: Vec<[Duration; 4]>,
    /// The creates and deletes on each good host: each as often. When they came is in `marks`; which of two of one moment
    /// is the first is nobody's promise.
    mutations: Vec<Vec<(&'static str, Uid)>>,
    /// The longest time between two probes of a good one.
    longest_gap: Duration,
    /// The longest time that a grant took.
    longest_grant: Duration,
    gone: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Neighbours {
    None,
    /// A host that answers nothing and holds 500 Proxies, and 500 proxies of one seller that swallow probes.
    OneHostAndOneSeller,
    /// 500 Proxies were made and well on the host before it stopped to answer, and their probes with it.
    Followed,
}

async fn course(neighbours: Neighbours) -> Course {
    let hosts = ["bad"].into_iter().chain(GOOD_HOSTS).map(|name| (name, None)).collect();
    let world = World::start_with(&Plan { entries: vec![("lab", hosts)], ..Plan::default() });
    world.prober.set("swallow.example", Path::Swallows);
    let bad = |n: usize| on(managed(&format!("bad-{n}"), "lab"), "bad");
    match neighbours {
        Neighbours::None => {}
        Neighbours::OneHostAndOneSeller => {
            world.host("bad").set(Mood::Hangs);
            for n in 0..BAD {
                world.store.apply(bad(n));
                world.store.apply(external(&format!("swallows-{n}"), "swallow.example"));
            }
        }
        Neighbours::Followed => {
            world.host("bad").set(Mood::Works(Duration::from_millis(1)));
            for n in 0..BAD {
                world.store.apply(bad(n));
            }
            world
                .eventually("the bad ones are Ready", 30 * MINUTE, |world| world.store.count_in(Phase::Ready) == BAD)
                .await;
            world.host("bad").set(Mood::Hangs);
            world.prober.set(".bad", Path::Swallows);
        }
    }
    pass(MINUTE).await;

    let begun = Instant::now();
    for n in 0..GOOD {
        world.store.apply(on(managed(&good(n), "lab"), GOOD_HOSTS[n % GOOD_HOSTS.len()]));
    }
    world
        .eventually("the good ones are Ready", 5 * MINUTE, |world| {
            (0..GOOD).all(|n| world.store.phase(&good(n)) == Some(Phase::Ready))
        })
        .await;
    let mut longest_grant = Duration::ZERO;
    for n in 0..GOOD {
        let asked = Instant::now();
        let held = lease(&world, &good(n)).await;
        assert!(release(&world, &held).await);
        longest_grant = longest_grant.max(asked.elapsed());
    }
    pass(4 * MINUTE).await;
    assert!((0..GOOD).all(|n| world.store.phase(&good(n)) == Some(Phase::Ready)));

    let deleted = Instant::now();
    for n in 0..GOOD {
        world.store.delete(&good(n));
    }
    world
        .eventually("the good ones are gone", 5 * MINUTE, |world| (0..GOOD).all(|n| !world.store.exists(&good(n))))
        .await;
    let mut course = Course { gone: deleted.elapsed(), longest_grant, ..Course::default() };
    let mut calls: HashMap<(Uid, &'static str), Instant> = HashMap::new();
    for host in GOOD_HOSTS {
        let mutations = world.host(host).seen().into_iter().filter(|call| matches!(call.kind, "create" | "delete"));
        let mut made = Vec::new();
        for call in mutations {
            made.push((call.kind, call.uid.clone()));
            calls.entry((call.uid, call.kind)).or_insert(call.at);
        }
        made.sort_unstable_by(|a, b| (a.0, a.1.as_str()).cmp(&(b.0, b.1.as_str())));
        course.mutations.push(made);
    }
    for n in 0..GOOD {
        let uid = Uid::parse(&format!("uid-{}", good(n))).unwrap();
        let looks = world.prober.looks(&format!("{}.{}", good(n), GOOD_HOSTS[n % GOOD_HOSTS.len()]));
        for pair in looks.windows(2) {
            course.longest_gap = course.longest_gap.max(pair[1].at - pair[0].at);
        }
        course.marks.push([
            calls[&(uid.clone(), "create")] - begun,
            looks[0].at - begun,
            world.store.became(&good(n), Phase::Ready).unwrap() - begun,
            calls[&(uid, "delete")] - deleted,
        ]);
    }
    course
}

fn same(with: &Course, without: &Course, what: &str) {
    for (n, (with, without)) in with.marks.iter().zip(&without.marks).enumerate() {
        for (mark, (with, without)) in ["create", "first probe", "Ready", "delete"].iter().zip(with.iter().zip(without))
        {
            assert!(with.abs_diff(*without) <= SLACK, "{what}: {mark} of good-{n} after {with:?}, alone {without:?}");
        }
    }
    assert_eq!(with.mutations, without.mutations, "{what}");
    assert!(with.gone.abs_diff(without.gone) <= Duration::from_millis(100), "{what}: gone after {:?}", with.gone);
    // 30 s, a tenth of jitter, and the probe itself: none of it is lateness.
    let due = Duration::from_millis(33_005) + SLACK;
    assert!(with.longest_gap <= due && without.longest_gap <= due, "{what}: probed after {:?}", with.longest_gap);
    assert!(with.longest_grant <= SLACK, "{what}: granted after {:?}", with.longest_grant);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_never_answers_and_proxies_that_swallow_probes_change_nothing_for_others() {
    let alone = course(Neighbours::None).await;
    for neighbours in [Neighbours::OneHostAndOneSeller, Neighbours::Followed] {
        same(&course(neighbours).await, &alone, &format!("{neighbours:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn five_hundred_newcomers_of_as_many_sellers_that_swallow_probes_make_no_known_good_one_wait() {
    let world = World::start();
    let names: Vec<_> = (0..20).map(good).collect();
    fleet(&world, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    pass(5 * MINUTE).await;
    world.prober.set("swallow.example", Path::Swallows);
    let begun = Instant::now();
    for n in 0..BAD {
        world.store.apply(external(&format!("swallows-{n}"), &format!("s{n}.swallow.example")));
    }
    // One that is well, behind all of them.
    world.store.apply(external("late", "late.example"));
    pass(20 * MINUTE).await;
    for name in &names {
        let looks = world.prober.looks(&format!("{name}.hv1"));
        let gap = looks.windows(2).map(|pair| pair[1].at - pair[0].at).max().unwrap();
        assert!(gap <= Duration::from_millis(33_005) + SLACK, "{name} was probed after {gap:?}");
        assert_eq!(world.store.phase(name), Some(Phase::Ready));
    }
    // 500 times 10 s over half of the slots.
    let waited = world.store.became("late", Phase::Ready).expect("it became Ready") - begun;
    assert!(waited <= 3 * MINUTE, "{waited:?}");
}

// --- operations that are stuck

pub(crate) fn host(world: &World, name: &str) -> HostHandle {
    let card = world.handles.directory.entry(&ProviderName::parse("lab").unwrap()).expect("the entry is there");
    card.hosts[&HostName::parse(name).unwrap()].clone()
}

pub(crate) fn mark(name: &str) -> OwnerMark {
    OwnerMark {
        operator: OperatorId::parse("test").unwrap(),
        entry: ProviderName::parse("lab").unwrap(),
        key: key(name),
        uid: Uid::parse(&format!("uid-{name}")).unwrap(),
    }
}

/// Every outcome with when it came, by number of the operation.
type Outcomes = Arc<Mutex<Vec<(usize, Instant, OpOutcome)>>>;

fn submit(host: &HostHandle, number: usize, call: Call, within: Duration, outcomes: &Outcomes) {
    let outcomes = outcomes.clone();
    let lost = || OpOutcome {
        kind: egress_actors::host::CallKind::Get,
        result: Err(egress_actors::domain::error::OpError::transient(
            egress_actors::domain::reason::Reason::Lost,
            "dropped unanswered",
        )),
    };
    let reply = Reply::new(move |outcome| outcomes.lock().unwrap().push((number, Instant::now(), outcome)), lost);
    host.submit(Job { call, deadline: (Instant::now() + within).into_std(), epoch: Some(1), reply });
}

#[tokio::test(start_paused = true)]
async fn every_stuck_operation_ends_at_its_deadline_with_exactly_one_outcome() {
    let world = World::start();
    pass(SECOND).await;
    world.host("hv1").set(Mood::Hangs);
    let (host, outcomes) = (host(&world, "hv1"), Outcomes::default());
    let begun = Instant::now();
    for number in 0..200 {
        let mark = mark(&format!("px-{number}"));
        let call = if number % 2 == 0 { Call::Get(mark) } else { Call::Delete(mark) };
        submit(&host, number, call, 10 * SECOND, &outcomes);
    }
    pass(MINUTE).await;
    let outcomes = outcomes.lock().unwrap();
    let mut numbers: Vec<_> = outcomes.iter().map(|(number, ..)| *number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..200).collect::<Vec<_>>(), "each exactly once");
    let mut started = 0;
    for (number, at, outcome) in &*outcomes {
        let late = at.duration_since(begun).abs_diff(10 * SECOND);
        assert!(late <= SLACK, "number {number} ended {late:?} off its deadline");
        let class = outcome.result.as_ref().expect_err("nothing works here").class;
        match class {
            // It was let in. Of a delete nobody knows what came of it, and of a look there is nothing to know.
            Class::EffectUnknown | Class::Transient => {
                assert_eq!(class == Class::EffectUnknown, number % 2 == 1);
                started += 1;
            }
            Class::Cancelled => {}
            other => panic!("number {number}: {other:?}"),
        }
    }
    assert_eq!(started, 4, "as many as there are slots");
}

#[tokio::test(start_paused = true)]
async fn more_operations_than_a_host_takes_hear_busy_at_once() {
    let world = World::start();
    pass(SECOND).await;
    world.host("hv1").set(Mood::Hangs);
    let (host, outcomes) = (host(&world, "hv1"), Outcomes::default());
    for number in 0..1000 {
        submit(&host, number, Call::Get(mark(&format!("px-{number}"))), 10 * SECOND, &outcomes);
    }
    pass(SECOND).await;
    assert_eq!(outcomes.lock().unwrap().len(), 1000 - 4 - 256);
    pass(MINUTE).await;
    assert_eq!(outcomes.lock().unwrap().len(), 1000);
}

fn readings(world: &World) -> (usize, usize, usize) {
    let depth = world.handles.env.registry.all().iter().map(|stat| stat.depth()).sum();
    (world.handles.env.registry.len(), tasks(), depth)
}

#[tokio::test(start_paused = true)]
async fn a_thousand_rounds_of_stuck_operations_leave_actors_tasks_and_mailboxes_flat() {
    let world = World::start();
    pass(SECOND).await;
    let (host, ended) = (host(&world, "hv1"), Arc::new(AtomicUsize::new(0)));
    world.host("hv1").set(Mood::Hangs);
    let mut first = None;
    for round in 0..1000 {
        for number in 0..20 {
            let ended = ended.clone();
            let reply = Reply::new(
                move |_: OpOutcome| {
                    ended.fetch_add(1, Relaxed);
                },
                || unreachable!("the host answers"),
            );
            let mark = mark(&format!("px-{number}"));
            let call = if number % 2 == 0 { Call::Get(mark) } else { Call::Delete(mark) };
            let deadline = (Instant::now() + Duration::from_millis(50)).into_std();
            host.submit(Job { call, deadline, epoch: Some(1), reply });
            if number % 5 == 0 {
                host.cancel(&Uid::parse(&format!("uid-px-{number}")).unwrap());
            }
        }
        pass(Duration::from_millis(100)).await;
        assert_eq!(ended.load(Relaxed), (round + 1) * 20, "in round {round}");
        let now = readings(&world);
        let first = *first.get_or_insert(now);
        // A list or a check of the hung host may begin or end: two places, three tasks each.
        assert!(now.0 <= first.0 + 2 && now.1 <= first.1 + 6, "round {round}: {now:?} after {first:?}");
        assert_eq!(now.2, 0, "round {round}: nothing is left in a mailbox");
    }
    assert!(world.host("hv1").running() <= 2, "only a list and a check: {}", world.host("hv1").running());
}

#[tokio::test(start_paused = true)]
async fn proxies_that_retry_on_a_stuck_host_leave_actors_tasks_and_mailboxes_flat() {
    let millis = Duration::from_millis;
    let world = World::start_with(&Plan {
        deadlines: Deadlines { get: millis(100), create: millis(200), delete: millis(200) },
        life: Settings { retry: (millis(100), SECOND), poll: (millis(100), SECOND), ..Settings::default() },
        ..Plan::default()
    });
    let names: Vec<_> = (0..20).map(|n| format!("px-{n}")).collect();
    fleet(&world, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    pass(MINUTE).await;
    let before = readings(&world);
    world.host("hv1").set(Mood::Hangs);
    for name in &names {
        world.store.edit(name, |desired| desired.annotations.recreate = Some("1".into()));
    }
    pass(MINUTE).await;
    let stuck = readings(&world);
    for _ in 0..25 {
        pass(10 * SECOND).await;
        let now = readings(&world);
        assert!(now.0 <= stuck.0 + 8 && now.1 <= stuck.1 + 40, "{now:?} after {stuck:?}");
    }
    let calls = world.host("hv1").all_calls("delete") + world.host("hv1").all_calls("get");
    assert!(calls >= 1000, "{calls} calls ended at their deadlines");
    world.host("hv1").set(Mood::Works(millis(50)));
    world.eventually("all are Ready again", 5 * MINUTE, |world| world.store.count_in(Phase::Ready) == 20).await;
    pass(MINUTE).await;
    let after = readings(&world);
    assert!(after.0 <= before.0 + 2 && after.1 <= before.1 + 6, "{after:?}, before {before:?}");
    assert_eq!(world.host("hv1").instances().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_hung_check_is_a_verdict_and_holds_nobody() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.host("hv1").set_for("check", Mood::Hangs);
    let is_well = |world: &World| world.store.health("lab").map(|health| health.targets[0].is_ready());
    world.eventually("it is told", 2 * MINUTE, |world| is_well(world) == Some(false)).await;
    assert_eq!(world.store.phase("px-1"), Some(Phase::Ready));
    world.host("hv1").set_for("check", Mood::Works(SECOND));
    world.eventually("it is well again", 2 * MINUTE, |world| is_well(world) == Some(true)).await;
}

#[tokio::test(start_paused = true)]
async fn a_host_that_comes_back_after_hours_serves_all_its_proxies() {
    let world = World::start();
    world.host("hv1").set(Mood::Hangs);
    for n in 0..120 {
        world.store.apply(managed(&format!("px-{n}"), "lab"));
    }
    pass(2 * HOUR).await;
    world.host("hv1").set(Mood::Works(Duration::from_millis(50)));
    world.eventually("all are Ready", HOUR, |world| world.store.count_in(Phase::Ready) == 120).await;
    assert_eq!(world.host("hv1").instances().len(), 120);
}
