//! Who gets a slot, and what must hold whatever comes.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Of the random runs.
const DOMAINS: usize = 12;

fn uid(n: usize) -> Uid {
    Uid::parse(&format!("u{n}")).unwrap()
}

fn domain(n: usize) -> FailureDomain {
    FailureDomain::External(format!("d{n}").into())
}

/// A schedule and what it was seen to do.
struct Rig {
    schedule: Schedule,
    now: Instant,
    running: Vec<Uid>,
    cut: Vec<Uid>,
}

impl Rig {
    fn new(workers: usize) -> Self {
        Self { schedule: Schedule::new(workers), now: Instant::now(), running: Vec::new(), cut: Vec::new() }
    }

    fn add(&mut self, n: usize, at: usize, lane: Lane) {
        self.schedule.add(&uid(n), &domain(at), lane, self.now);
    }

    fn pump(&mut self) -> &mut Self {
        loop {
            if let Some(uid) = self.schedule.next(self.now) {
                self.running.push(uid);
            } else if let Some(uid) = self.schedule.cut() {
                self.running.retain(|other| *other != uid);
                self.cut.push(uid);
            } else {
                return self;
            }
        }
    }

    fn end(&mut self, n: usize, lane: Lane, again: Duration) {
        self.running.retain(|other| *other != uid(n));
        self.schedule.ended(&uid(n), lane, self.now + again);
    }

    fn runs(&self, range: std::ops::Range<usize>) -> usize {
        range.filter(|n| self.running.contains(&uid(*n))).count()
    }
}

#[test]
fn each_kind_has_its_share_of_the_slots() {
    // Kind, Proxies of as many domains, in one domain: how many of 64 slots they get.
    for (lane, alone, together) in [(Lane::Usual, 64, 8), (Lane::Newcomer, 32, 4), (Lane::Suspect, 32, 2)] {
        let mut rig = Rig::new(64);
        (0..100).for_each(|n| rig.add(n, n, lane));
        assert_eq!(rig.pump().running.len(), alone, "{lane:?}");
        let mut rig = Rig::new(64);
        (0..100).for_each(|n| rig.add(n, 0, lane));
        assert_eq!(rig.pump().running.len(), together, "{lane:?}");
    }
    let mut rig = Rig::new(64);
    (0..100).for_each(|n| rig.add(n, n, Lane::Newcomer));
    (100..200).for_each(|n| rig.add(n, n, Lane::Suspect));
    rig.pump();
    (200..300).for_each(|n| rig.add(n, n, Lane::Usual));
    assert_eq!(rig.pump().runs(200..300), 16, "a quarter is left");
}

#[test]
fn newcomers_of_a_domain_that_is_known_to_be_good_are_none() {
    let mut rig = Rig::new(64);
    (0..300).for_each(|n| rig.add(n, n, Lane::Newcomer));
    rig.add(300, 999, Lane::Newcomer);
    rig.pump();
    assert_eq!(rig.runs(300..301), 0);
    // Another one of its domain is recorded as good: it need not wait any more.
    rig.add(301, 999, Lane::Usual);
    assert_eq!(rig.pump().runs(300..302), 2);
    // One that comes later neither.
    rig.add(302, 999, Lane::Newcomer);
    assert_eq!(rig.pump().runs(302..303), 1);
    // Nobody vouches any more.
    rig.end(301, Lane::Suspect, MS * 1000);
    rig.add(303, 999, Lane::Newcomer);
    assert_eq!(rig.pump().runs(303..304), 0);
}

#[test]
fn a_slow_probe_gives_its_slot_up_only_if_somebody_better_waits() {
    let mut rig = Rig::new(64);
    (0..64).for_each(|n| rig.add(n, n, Lane::Usual));
    rig.pump();
    (0..64).for_each(|n| rig.schedule.is_slow(&uid(n)));
    assert_eq!(rig.pump().cut, [], "nobody waits");
    rig.add(64, 64, Lane::Suspect);
    assert_eq!(rig.pump().cut, [], "a suspect waits");
    rig.add(65, 65, Lane::Usual);
    rig.pump();
    assert!(rig.runs(65..66) == 1);
    // The oldest ones: one for the waiting one, and few for the suspects, who have that many in any case.
    assert_eq!(rig.cut[0], uid(0));
    assert!(rig.cut.len() <= 1 + 64 / 16, "{} were cut", rig.cut.len());
    // As a suspect it has its time.
    let again = rig.cut[0].clone();
    if rig.running.contains(&again) {
        rig.schedule.is_slow(&again);
    }
    let cut = rig.cut.len();
    rig.add(66, 66, Lane::Usual);
    rig.pump();
    assert!(!rig.cut[cut..].contains(&again));
    // One that waits at the cap of its own domain takes nobody's slot.
    let mut rig = Rig::new(64);
    (0..9).for_each(|n| rig.add(n, 0, Lane::Usual));
    (9..65).for_each(|n| rig.add(n, n, Lane::Usual));
    rig.pump();
    (9..65).for_each(|n| rig.schedule.is_slow(&uid(n)));
    assert_eq!(rig.pump().cut, []);
}

#[test]
fn five_hundred_that_turn_silent_at_once_are_found_out_and_the_others_go_on() {
    let mut rig = Rig::new(64);
    (0..500).for_each(|n| rig.add(n, n, Lane::Usual));
    rig.pump();
    // A well one, behind all of them.
    rig.add(500, 500, Lane::Usual);
    let mut turns = 0;
    while rig.pump().runs(500..501) == 0 {
        turns += 1;
        for uid in rig.running.clone() {
            rig.schedule.is_slow(&uid);
        }
        assert!(turns < 20, "still waiting");
    }
    // From now on they are suspects, and hold half of the slots at most.
    for _ in 0..20 {
        for uid in rig.running.clone() {
            rig.schedule.is_slow(&uid);
        }
        rig.end(500, Lane::Usual, MS);
        rig.now += MS * 2;
        assert_eq!(rig.pump().runs(500..501), 1, "the well one starts when it is due");
    }
}

#[test]
fn more_good_ones_than_slots_do_not_starve_the_others() {
    let mut rig = Rig::new(64);
    (0..1000).for_each(|n| rig.add(n, n, Lane::Usual));
    rig.add(1000, 1000, Lane::Newcomer);
    rig.add(1001, 1001, Lane::Suspect);
    assert_eq!(rig.pump().runs(1000..1002), 2);
}

#[test]
fn domains_take_turns() {
    let mut rig = Rig::new(8);
    for (n, at) in (0..10).map(|n| (n, 0)).chain([(10, 1), (11, 2), (12, 3)]) {
        rig.add(n, at, Lane::Usual);
    }
    let expected = [0, 10, 11, 12, 1].map(uid);
    assert_eq!(rig.pump().running, expected, "the three behind ten of another domain do not wait for it");
}

// --- whatever comes

#[derive(Debug, Clone)]
enum Op {
    Add(usize, usize, Lane),
    Remove(usize),
    End(usize, Lane, u64),
    Slow(usize),
    Hasten(usize),
    Pass(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let lane = || prop_oneof![Just(Lane::Usual), Just(Lane::Newcomer), Just(Lane::Suspect)];
    let op = prop_oneof![
        3 => (0..60_usize, 0..DOMAINS, lane()).prop_map(|(n, at, lane)| Op::Add(n, at, lane)),
        1 => (0..60_usize).prop_map(Op::Remove),
        5 => (0..60_usize, lane(), 0..50_u64).prop_map(|(n, lane, after)| Op::End(n, lane, after)),
        3 => (0..60_usize).prop_map(Op::Slow),
        1 => (0..60_usize).prop_map(Op::Hasten),
        2 => (0..60_u64).prop_map(Op::Pass),
    ];
    proptest::collection::vec(op, 0..200)
}

impl Rig {
    fn forget(&mut self, n: usize) {
        self.running.retain(|other| *other != uid(n));
        self.schedule.remove(&uid(n));
    }

    fn perform(&mut self, op: &Op) {
        let millis = |n: u64| MS * u32::try_from(n).unwrap();
        match *op {
            Op::Add(n, at, lane) => {
                self.forget(n);
                self.add(n, at, lane);
            }
            Op::Remove(n) => self.forget(n),
            Op::End(n, lane, after) => {
                // Only what runs can end.
                if self.running.contains(&uid(n)) {
                    self.end(n, lane, millis(after));
                }
            }
            Op::Slow(n) => self.schedule.is_slow(&uid(n)),
            Op::Hasten(n) => self.schedule.hasten(&uid(n), self.now),
            Op::Pass(after) => self.now += millis(after),
        }
    }

    fn bounds_hold(&self) {
        let workers = self.schedule.workers;
        let counted = |of: &dyn Fn(&Entry) -> bool| {
            let running = self.running.iter().map(|uid| &self.schedule.entries[uid]);
            running.inspect(|entry| assert!(matches!(entry.state, State::Running(_)))).filter(|entry| of(entry)).count()
        };
        assert!(self.running.len() <= workers);
        let [newcomers, suspects] = [Lane::Newcomer, Lane::Suspect].map(|lane| counted(&|entry| entry.lane == lane));
        assert!(newcomers.max(suspects) <= (workers / 2).max(1), "{newcomers} newcomers, {suspects} suspects");
        assert!(newcomers + suspects <= (workers * 3 / 4).max(1), "{newcomers} newcomers, {suspects} suspects");
        let cap = (workers / 8).max(2);
        for domain in (0..DOMAINS).map(domain) {
            let there = |lane: Option<Lane>| {
                counted(&|entry| entry.domain == domain && lane.is_none_or(|lane| entry.lane == lane))
            };
            assert!(there(None) <= cap && there(Some(Lane::Newcomer)) <= cap / 2);
            assert!(there(Some(Lane::Suspect)) <= (cap / 4).max(1));
        }
    }

    /// Nobody waits who could run, and no slow one holds a slot that somebody better waits for.
    fn nobody_is_forgotten(&self) {
        let schedule = &self.schedule;
        let slow = |lane| schedule.slow.iter().any(|(_, uid)| schedule.entries[uid].lane == lane);
        for entry in schedule.entries.values().filter(|entry| entry.state == State::Waiting) {
            let room = schedule.has_room(entry.lane, &entry.domain);
            assert!(!room || !schedule.is_open(entry.lane), "{entry:?} could run");
            let waits_for_slow = match entry.lane {
                Lane::Usual => slow(Lane::Usual) || slow(Lane::Newcomer),
                Lane::Newcomer => slow(Lane::Newcomer),
                Lane::Suspect => false,
            };
            assert!(!room || !waits_for_slow, "{entry:?} waits for a slow one");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn bounds_hold_and_nobody_is_forgotten(workers in 1..40_usize, ops in ops()) {
        let mut rig = Rig::new(workers);
        for op in ops {
            rig.perform(&op);
            rig.pump().bounds_hold();
            rig.nobody_is_forgotten();
        }
        // All that runs ends well, again and again: everybody has a turn.
        let all: Vec<Uid> = rig.schedule.entries.keys().cloned().collect();
        let mut waiting = all.clone();
        for _ in 0..60 {
            rig.now += MS * 100;
            for uid in std::mem::take(&mut rig.pump().running) {
                waiting.retain(|other| *other != uid);
                rig.schedule.ended(&uid, Lane::Usual, rig.now + MS * 1_000_000);
            }
        }
        prop_assert!(waiting.is_empty(), "never probed: {waiting:?}");
        // And nothing is left of those that are gone.
        for uid in &all {
            rig.schedule.remove(uid);
        }
        let left = &rig.schedule;
        prop_assert!(left.slow.is_empty() && left.running.is_empty() && left.proven.is_empty());
        prop_assert!(left.sleeping.is_empty() && left.lanes.iter().all(|lane| lane.waiting.is_empty()));
    }
}
