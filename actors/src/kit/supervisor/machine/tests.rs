//! Tables of (strategy, restart type, kind of exit) to effects, scenes in the middle of a restart, and random play against
//! a naive model.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::{Just, ProptestConfig, TestCaseError, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::*;
use crate::kit::supervisor::Intensity;

/// A machine with a readable tongue: effects come as text.
struct Play {
    machine: Machine,
    now: Instant,
}

impl Play {
    fn new(strategy: Strategy, overflow: Overflow, restarts: u32) -> Self {
        let intensity = Intensity { restarts, within: Duration::from_secs(10) };
        Self { machine: Machine::new(Supervision { strategy, intensity, overflow }), now: Instant::now() }
    }

    fn rest_for_one(children: &str) -> Self {
        let mut play = Self::new(Strategy::RestForOne, Overflow::Escalate, 100);
        for id in children.chars() {
            assert_eq!(play.start(&id.to_string(), Restart::Permanent), format!("start {id}"));
        }
        play
    }

    fn start(&mut self, id: &str, restart: Restart) -> String {
        text(&self.machine.start(id.into(), restart))
    }

    fn stop(&mut self, id: &str) -> String {
        text(&self.machine.stop(&id.into()))
    }

    fn exit(&mut self, id: &str, exit: Exit) -> String {
        text(&self.machine.exited(&id.into(), exit, self.now))
    }

    fn fails(&mut self, id: &str) -> String {
        self.exit(id, failed())
    }

    /// The exit that an asked stop brings.
    fn gone(&mut self, id: &str) -> String {
        self.exit(id, Exit::Normal)
    }

    fn later(&mut self, seconds: u64) -> &mut Self {
        self.now += Duration::from_secs(seconds);
        self
    }
}

/// How an end looks from outside.
type Looks = fn() -> Exit;

fn failed() -> Exit {
    Exit::Failed("boom".into())
}

fn text(effects: &[Effect]) -> String {
    let words: Vec<String> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Start(id) => format!("start {id}"),
            Effect::Stop(id) => format!("stop {id}"),
            Effect::Ended(end) => {
                let exit = match &end.exit {
                    Exit::Normal => "normal",
                    Exit::Asked => "asked",
                    Exit::Failed(_) => "failed",
                    Exit::Killed => "killed",
                    Exit::Abandoned => "abandoned",
                    Exit::GaveUp(_) => "gave up",
                };
                format!("end {} {exit}", end.id)
            }
            Effect::GiveUp(_) => "give up".to_owned(),
        })
        .collect();
    words.join(", ")
}

#[test]
fn an_exit_that_nobody_asked_for_is_answered_by_strategy_and_restart_type() {
    use Restart::{Permanent, Temporary, Transient};
    use Strategy::{OneForOne, RestForOne};
    let (normal, killed) = (|| Exit::Normal, || Exit::Killed);
    // The children are a, b, c; b is of this type and ends like this; c is permanent.
    let rows: [(Strategy, Restart, Looks, &str); 18] = [
        (OneForOne, Permanent, normal, "start b"),
        (OneForOne, Permanent, failed, "start b"),
        (OneForOne, Permanent, killed, "start b"),
        (OneForOne, Transient, normal, "end b normal"),
        (OneForOne, Transient, failed, "start b"),
        (OneForOne, Transient, killed, "start b"),
        (OneForOne, Temporary, normal, "end b normal"),
        (OneForOne, Temporary, failed, "end b failed"),
        (OneForOne, Temporary, killed, "end b killed"),
        (RestForOne, Permanent, normal, "stop c"),
        (RestForOne, Permanent, failed, "stop c"),
        (RestForOne, Permanent, killed, "stop c"),
        (RestForOne, Transient, normal, "end b normal"),
        (RestForOne, Transient, failed, "stop c"),
        (RestForOne, Transient, killed, "stop c"),
        (RestForOne, Temporary, normal, "end b normal"),
        (RestForOne, Temporary, failed, "end b failed"),
        (RestForOne, Temporary, killed, "end b killed"),
    ];
    for (strategy, restart, exit, expected) in rows {
        let mut play = Play::new(strategy, Overflow::Escalate, 5);
        play.start("a", Permanent);
        play.start("b", restart);
        play.start("c", Permanent);
        assert_eq!(play.exit("b", exit()), expected, "{strategy:?} {restart:?} {:?}", exit());
    }
}

#[test]
fn an_exit_that_was_asked_for_is_the_end_whatever_it_looks_like() {
    let looks = [(Exit::Normal, "asked"), (failed(), "asked"), (Exit::Killed, "asked"), (Exit::Abandoned, "abandoned")];
    for restart in [Restart::Permanent, Restart::Transient, Restart::Temporary] {
        for strategy in [Strategy::OneForOne, Strategy::RestForOne] {
            for (exit, told) in &looks {
                let mut play = Play::new(strategy, Overflow::Escalate, 5);
                play.start("a", restart);
                play.start("b", restart);
                assert_eq!(play.stop("a"), "stop a");
                assert_eq!(play.stop("a"), "", "asking twice is asking once");
                assert_eq!(play.start("a", restart), "", "its id is taken until it is gone");
                assert_eq!(play.exit("a", exit.clone()), format!("end a {told}"));
                assert_eq!(play.start("a", restart), "start a");
            }
        }
    }
}

#[test]
fn a_rest_for_one_restart_stops_in_reverse_one_by_one_and_starts_in_order() {
    let mut play = Play::rest_for_one("abcd");
    assert_eq!(play.fails("b"), "stop d");
    assert_eq!(play.gone("d"), "stop c");
    assert_eq!(play.gone("c"), "start b, start c, start d");
    assert_eq!(play.fails("d"), "start d");
}

#[test]
fn a_temporary_child_stopped_for_another_is_not_started_again() {
    let mut play = Play::rest_for_one("ab");
    play.start("t", Restart::Temporary);
    play.start("u", Restart::Transient);
    assert_eq!(play.fails("b"), "stop u");
    assert_eq!(play.gone("u"), "stop t");
    assert_eq!(play.gone("t"), "end t asked, start b, start u");
}

#[test]
fn a_child_started_during_a_restart_waits_for_its_turn_even_if_temporary() {
    let mut play = Play::rest_for_one("ab");
    assert_eq!(play.fails("a"), "stop b");
    assert_eq!(play.start("t", Restart::Temporary), "");
    assert_eq!(play.start("c", Restart::Permanent), "");
    assert_eq!(play.gone("b"), "start a, start b, start t, start c");
}

#[test]
fn a_child_stopped_during_a_restart_ends_and_the_restart_goes_on() {
    // The one that waits to be started.
    let mut play = Play::rest_for_one("abc");
    play.fails("a");
    assert_eq!(play.stop("a"), "end a asked");
    assert_eq!(play.gone("c"), "stop b");
    assert_eq!(play.gone("b"), "start b, start c");
    // The one that is being stopped for the restart.
    let mut play = Play::rest_for_one("abc");
    play.fails("a");
    assert_eq!(play.stop("c"), "");
    assert_eq!(play.gone("c"), "end c asked, stop b");
    assert_eq!(play.gone("b"), "start a, start b");
    // The one whose turn to be stopped has not come.
    let mut play = Play::rest_for_one("abc");
    play.fails("a");
    assert_eq!(play.stop("b"), "stop b");
    assert_eq!(play.gone("b"), "end b asked");
    assert_eq!(play.gone("c"), "start a, start c");
    // All of them.
    let mut play = Play::rest_for_one("ab");
    play.fails("a");
    assert_eq!((play.stop("a"), play.stop("b")), ("end a asked".into(), String::new()));
    assert_eq!(play.gone("b"), "end b asked");
    assert_eq!(play.start("c", Restart::Permanent), "start c", "the restart is over");
}

#[test]
fn an_exit_in_the_middle_of_a_restart_widens_it_and_loses_nobody() {
    // An earlier one.
    let mut play = Play::rest_for_one("abcd");
    assert_eq!(play.fails("c"), "stop d");
    assert_eq!(play.fails("a"), "");
    assert_eq!(play.gone("d"), "stop b");
    assert_eq!(play.gone("b"), "start a, start b, start c, start d");
    // A later one, whose turn to be stopped has not come.
    let mut play = Play::rest_for_one("abc");
    assert_eq!(play.fails("a"), "stop c");
    assert_eq!(play.fails("b"), "");
    assert_eq!(play.gone("c"), "start a, start b, start c");
    // One that ignored its kill is replaced like the others.
    let mut play = Play::rest_for_one("ab");
    assert_eq!(play.fails("a"), "stop b");
    assert_eq!(play.exit("b", Exit::Abandoned), "start a, start b");
}

#[test]
fn restarts_are_counted_within_the_window_only() {
    for strategy in [Strategy::OneForOne, Strategy::RestForOne] {
        let mut play = Play::new(strategy, Overflow::Escalate, 2);
        play.start("a", Restart::Permanent);
        assert_eq!(play.fails("a"), "start a");
        assert_eq!(play.later(10).fails("a"), "start a");
        assert_eq!(play.later(1).fails("a"), "start a", "the first one is 11 s ago");
        assert_eq!(play.fails("a"), "give up");
    }
}

#[test]
fn escalation_counts_all_children_and_parking_each_by_itself() {
    let mut play = Play::new(Strategy::OneForOne, Overflow::Escalate, 1);
    play.start("a", Restart::Permanent);
    play.start("b", Restart::Permanent);
    assert_eq!(play.fails("a"), "start a");
    assert_eq!(play.fails("b"), "give up");

    let mut play = Play::new(Strategy::OneForOne, Overflow::Park, 1);
    play.start("a", Restart::Permanent);
    play.start("b", Restart::Permanent);
    assert_eq!(play.fails("a"), "start a");
    assert_eq!(play.fails("b"), "start b");
    assert_eq!(play.fails("a"), "end a gave up");
    assert_eq!(play.start("a", Restart::Permanent), "start a", "its parent may wake it");
    assert_eq!(play.fails("a"), "start a", "and its count begins anew");
    assert_eq!(play.fails("b"), "end b gave up");
}

#[test]
fn stops_that_were_asked_for_are_no_restarts() {
    let mut play = Play::rest_for_one("ab");
    play.machine.supervision.intensity.restarts = 1;
    play.fails("a");
    play.gone("b");
    assert_eq!(play.stop("b"), "stop b");
    assert_eq!(play.fails("b"), "end b asked");
    assert_eq!(play.fails("a"), "give up");
}

#[test]
fn unknown_ids_have_no_effect() {
    let mut play = Play::rest_for_one("a");
    assert_eq!((play.stop("x"), play.fails("x")), (String::new(), String::new()));
    play.stop("a");
    play.gone("a");
    assert_eq!((play.stop("a"), play.fails("a")), (String::new(), String::new()));
}

#[derive(Debug, Clone)]
enum Event {
    Start(usize, Restart),
    Stop(usize),
    /// A child that runs ends; `usize` picks which.
    Exit(usize, u8),
    Later(u64),
}

fn event() -> impl proptest::strategy::Strategy<Value = Event> {
    let restart =
        prop_oneof![3 => Just(Restart::Permanent), 2 => Just(Restart::Transient), 2 => Just(Restart::Temporary)];
    prop_oneof![
        4 => (0..6_usize, restart).prop_map(|(id, restart)| Event::Start(id, restart)),
        2 => (0..6_usize).prop_map(Event::Stop),
        6 => (0..6_usize, 0..3_u8).prop_map(|(id, exit)| Event::Exit(id, exit)),
        1 => (0..8_u64).prop_map(Event::Later),
    ]
}

/// The world as a naive onlooker keeps it: who should be there, who runs, who was asked to stop.
struct World {
    play: Play,
    limit: u32,
    /// In the order of starting: id, type, every restart that it ever had.
    wanted: Vec<(ChildId, Restart, Vec<Instant>)>,
    running: BTreeSet<ChildId>,
    asked: BTreeSet<ChildId>,
    /// Its end will be told: asked to stop by the parent, or temporary and stopped for another.
    leaving: BTreeSet<ChildId>,
}

impl World {
    fn position(&self, id: &ChildId) -> usize {
        self.wanted.iter().position(|(other, ..)| other == id).expect("an effect names a known child")
    }

    fn apply(&mut self, effects: Vec<Effect>, by_parent: bool) -> Result<(), TestCaseError> {
        let mut started = None;
        for effect in effects {
            match effect {
                Effect::Start(id) => {
                    prop_assert!(self.running.insert(id.clone()), "{id} was started twice");
                    let position = self.position(&id);
                    prop_assert!(started.is_none_or(|before| before < position), "started out of order");
                    started = Some(position);
                }
                Effect::Stop(id) => {
                    prop_assert!(
                        self.running.contains(&id) && self.asked.insert(id.clone()),
                        "a needless stop of {id}"
                    );
                    let behind = self.wanted.iter().rev().map(|(other, ..)| other);
                    let last = behind
                        .clone()
                        .find(|other| self.running.contains(*other) && (**other == id || !self.asked.contains(*other)));
                    prop_assert!(by_parent || last == Some(&id), "{id} was stopped before those behind it");
                }
                Effect::Ended(end) => {
                    prop_assert!(!self.running.contains(&end.id), "{} ended while it runs", end.id);
                    prop_assert!(self.leaving.remove(&end.id), "the end of {} was not due", end.id);
                    let position = self.position(&end.id);
                    self.wanted.remove(position);
                }
                Effect::GiveUp(_) => return Err(TestCaseError::fail("escalated below its limit")),
            }
        }
        Ok(())
    }

    fn exit(&mut self, id: &ChildId, exit: Exit) -> Result<(), TestCaseError> {
        self.running.remove(id);
        let asked = self.asked.remove(id);
        let position = self.position(id);
        let now = self.play.now;
        let (_, restart, log) = &mut self.wanted[position];
        let again = match restart {
            Restart::Permanent => true,
            Restart::Transient => exit != Exit::Normal,
            Restart::Temporary => false,
        };
        if !asked && !again {
            self.leaving.insert(id.clone());
        } else if !asked {
            log.push(now);
            let recent = log.iter().filter(|&&at| now - at <= Duration::from_secs(10)).count();
            if recent > self.limit as usize {
                self.leaving.insert(id.clone());
            } else if self.play.machine.supervision.strategy == Strategy::RestForOne {
                for (other, restart, _) in &self.wanted[position + 1..] {
                    if *restart == Restart::Temporary && self.running.contains(other) {
                        self.leaving.insert(other.clone());
                    }
                }
            }
        }
        let effects = self.play.machine.exited(id, exit, now);
        self.apply(effects, false)
    }

    /// Every stop that was asked for is answered, until none is left.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        while let Some(id) = self.asked.first().cloned() {
            self.exit(&id, Exit::Normal)?;
        }
        let wanted: BTreeSet<_> = self.wanted.iter().map(|(id, ..)| id.clone()).collect();
        prop_assert_eq!(&wanted, &self.running, "who should be there is there, and nobody else");
        prop_assert!(self.leaving.is_empty(), "an end was not told: {:?}", self.leaving);
        prop_assert!(wanted.iter().all(|id| self.play.machine.knows(id)));
        prop_assert_eq!(self.play.machine.children.len(), wanted.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn random_events_never_lose_double_or_misorder_a_child(
        rest_for_one in any::<bool>(),
        limit in prop_oneof![Just(1_u32), Just(3), Just(1_000)],
        events in proptest::collection::vec(event(), 1..60),
        settle_every in 1..20_usize,
    ) {
        let strategy = if rest_for_one { Strategy::RestForOne } else { Strategy::OneForOne };
        let play = Play::new(strategy, Overflow::Park, limit);
        let (wanted, running) = (Vec::new(), BTreeSet::new());
        let mut world = World { play, limit, wanted, running, asked: BTreeSet::new(), leaving: BTreeSet::new() };
        for (step, event) in events.into_iter().enumerate() {
            match event {
                Event::Start(id, restart) => {
                    let id: ChildId = id.to_string().into();
                    let known = world.wanted.iter().any(|(other, ..)| *other == id);
                    if !known {
                        world.wanted.push((id.clone(), restart, Vec::new()));
                    }
                    let effects = world.play.machine.start(id, restart);
                    prop_assert!(!known || effects.is_empty());
                    world.apply(effects, true)?;
                }
                Event::Stop(id) => {
                    let id: ChildId = id.to_string().into();
                    if world.wanted.iter().any(|(other, ..)| *other == id) {
                        world.leaving.insert(id.clone());
                    }
                    let effects = world.play.machine.stop(&id);
                    world.apply(effects, true)?;
                }
                Event::Exit(pick, exit) => {
                    let Some(id) = world.running.iter().nth(pick % world.running.len().max(1)).cloned() else { continue };
                    world.exit(&id, [Exit::Normal, failed(), Exit::Killed][usize::from(exit)].clone())?;
                }
                Event::Later(seconds) => {
                    world.play.later(seconds);
                }
            }
            if step % settle_every == 0 {
                world.settle()?;
            }
        }
        world.settle()?;
    }
}
