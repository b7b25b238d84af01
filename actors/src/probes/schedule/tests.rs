use std::time::Duration;

use proptest::prelude::*;

use super::*;

const WORKERS: usize = 16;

fn uid(n: u8) -> Uid {
    Uid::parse(&format!("uid-{n}")).expect("a valid uid")
}

fn domain(n: u8) -> FailureDomain {
    FailureDomain::External(format!("d{}.example", n % 4).as_str().into())
}

fn lane(n: u8) -> Lane {
    Lane::ALL[usize::from(n) % 3]
}

#[derive(Debug, Clone)]
enum Op {
    Add(u8, u8),
    Remove(u8),
    End(u8, u8),
    Hasten(u8),
    Pass(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..60_u8, any::<u8>()).prop_map(|(n, lane)| Op::Add(n, lane)),
        1 => (0..60_u8).prop_map(Op::Remove),
        3 => (0..60_u8, any::<u8>()).prop_map(|(n, lane)| Op::End(n, lane)),
        1 => (0..60_u8).prop_map(Op::Hasten),
        2 => any::<u8>().prop_map(Op::Pass),
    ]
}

/// What runs, as a test sees it: from `next` to `ended` or `remove`.
type Running = HashMap<Uid, (Lane, FailureDomain)>;

fn counted(running: &Running, of: impl Fn(&(Lane, FailureDomain)) -> bool) -> usize {
    running.values().filter(|one| of(one)).count()
}

fn caps_hold(running: &Running) {
    assert!(running.len() <= WORKERS);
    let [newcomers, suspects] = [Lane::Newcomer, Lane::Suspect].map(|lane| counted(running, |one| one.0 == lane));
    assert!(newcomers <= WORKERS / 2 && suspects <= WORKERS / 2 && newcomers + suspects <= WORKERS * 3 / 4);
    for n in 0..4 {
        assert!(counted(running, |one| one.1 == domain(n)) <= 2);
        assert!(counted(running, |one| one.1 == domain(n) && one.0 != Lane::Usual) <= 2);
        assert!(counted(running, |one| *one == (Lane::Suspect, domain(n))) <= 1);
    }
}

/// Nobody waits who could run: whatever the order of events, no turn was lost.
fn nobody_is_forgotten(schedule: &Schedule) {
    for entry in schedule.entries.values().filter(|entry| entry.state == State::Waiting) {
        assert!(!schedule.is_open(entry.lane) || !schedule.has_room(entry.lane, &entry.domain), "{entry:?} could run");
    }
}

proptest! {
    #[test]
    fn caps_hold_and_nobody_who_could_run_waits(ops in prop::collection::vec(op(), 1..300)) {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(WORKERS);
        let mut lanes: HashMap<Uid, Lane> = HashMap::new();
        let mut running = Running::new();
        for op in ops {
            match op {
                Op::Add(n, l) if !lanes.contains_key(&uid(n)) => {
                    lanes.insert(uid(n), lane(l));
                    schedule.add(&uid(n), &domain(n), lane(l), now + Duration::from_secs(u64::from(l % 3)));
                }
                Op::Add(..) => {}
                Op::Remove(n) => {
                    lanes.remove(&uid(n));
                    running.remove(&uid(n));
                    schedule.remove(&uid(n));
                }
                Op::End(n, l) if running.remove(&uid(n)).is_some() => {
                    lanes.insert(uid(n), lane(l));
                    schedule.ended(&uid(n), lane(l), now + Duration::from_secs(u64::from(l % 7)));
                }
                Op::End(..) => {}
                Op::Hasten(n) => schedule.hasten(&uid(n), now),
                Op::Pass(seconds) => now += Duration::from_secs(u64::from(seconds % 5)),
            }
            while let Some(next) = schedule.next(now) {
                let n = next.as_str().trim_start_matches("uid-").parse().expect("a number");
                let twice = running.insert(next.clone(), (lanes[&next], domain(n)));
                prop_assert!(twice.is_none(), "{next} runs twice");
            }
            caps_hold(&running);
            nobody_is_forgotten(&schedule);
        }
    }
}

#[test]
fn domains_take_turns() {
    let now = Instant::now();
    let mut schedule = Schedule::new(8);
    for n in (0..40).filter(|n| n % 4 == 0).chain([1, 2, 3]) {
        schedule.add(&uid(n), &domain(n), Lane::Usual, now);
    }
    let first: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
    assert_eq!(first, [0, 1, 2, 3, 4].map(uid), "the three behind ten of another domain do not wait for it");
}

#[test]
fn known_good_ones_keep_a_quarter_of_the_slots() {
    let now = Instant::now();
    let mut schedule = Schedule::new(WORKERS);
    for n in 0..200 {
        let place = FailureDomain::External(format!("{n}.example").as_str().into());
        let lane = if n % 2 == 0 { Lane::Newcomer } else { Lane::Suspect };
        schedule.add(&uid(n), &place, lane, now);
    }
    assert_eq!(std::iter::from_fn(|| schedule.next(now)).count(), WORKERS * 3 / 4);
    schedule.add(&uid(200), &domain(0), Lane::Usual, now);
    assert_eq!(schedule.next(now), Some(uid(200)));
}
