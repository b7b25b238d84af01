//! Who gets a slot, and what must hold whatever comes.

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

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
        3 => (0..60_usize, 0..12_usize, lane()).prop_map(|(n, at, lane)| Op::Add(n, at, lane)),
        1 => (0..60_usize).prop_map(Op::Remove),
        5 => (0..60_usize, lane(), 0..50_u64).prop_map(|(n, lane, after)| Op::End(n, lane, after)),
        3 => (0..60_usize).prop_map(Op::Slow),
        1 => (0..60_usize).prop_map(Op::Hasten),
        2 => (0..60_u64).prop_map(Op::Pass),
    ];
    proptest::collection::vec(op, 0..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn bounds_hold_and_nobody_is_forgotten(workers in 1..40_usize, ops in ops()) {
        let mut rig = Rig::new(workers);
        let mut there: HashMap<Uid, usize> = HashMap::new();
        for op in ops {
            match op {
                Op::Add(n, at, lane) => {
                    if there.insert(uid(n), at).is_some() {
                        rig.schedule.remove(&uid(n));
                        rig.running.retain(|other| *other != uid(n));
                    }
                    rig.add(n, at, lane);
                }
                Op::Remove(n) => {
                    there.remove(&uid(n));
                    rig.schedule.remove(&uid(n));
                    rig.running.retain(|other| *other != uid(n));
                }
                // Only what runs can end.
                Op::End(n, lane, after) => {
                    if rig.running.contains(&uid(n)) {
                        rig.end(n, lane, MS * u32::try_from(after).unwrap());
                    }
                }
                Op::Slow(n) => rig.schedule.is_slow(&uid(n)),
                Op::Hasten(n) => rig.schedule.hasten(&uid(n), rig.now),
                Op::Pass(millis) => rig.now += MS * u32::try_from(millis).unwrap(),
            }
            rig.pump();
            prop_assert!(rig.running.len() <= workers);
            let mut by_domain: HashMap<usize, usize> = HashMap::new();
            for uid in &rig.running {
                *by_domain.entry(there[uid]).or_default() += 1;
            }
            prop_assert!(by_domain.values().all(|&running| running <= (workers / 8).max(2)), "{by_domain:?}");
        }
        // All that runs ends well, again and again: everybody has a turn.
        let mut waiting: Vec<_> = there.keys().cloned().collect();
        for _ in 0..200 {
            rig.now += MS * 100;
            rig.pump();
            for uid in std::mem::take(&mut rig.running) {
                waiting.retain(|other| *other != uid);
                rig.schedule.ended(&uid, Lane::Usual, rig.now + MS * 1_000_000);
            }
        }
        prop_assert!(waiting.is_empty(), "never probed: {waiting:?}");
        prop_assert!(rig.schedule.slow.is_empty() && rig.schedule.running.is_empty());
        for uid in there.keys() {
            rig.schedule.remove(uid);
        }
        prop_assert!(rig.schedule.proven.is_empty() && rig.schedule.entries.is_empty());
    }
}
