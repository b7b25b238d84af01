//! Which probe is next: due times, slots, caps per failure domain, lanes for newcomers and suspects. Pure.
//!
//! ```text
//!   Sleeping --due--> Waiting in a lane --next--> Running --ended--> Sleeping
//!                        ^ as a suspect               | slow, and its slot is wanted by others
//!                        '------------- cut ----------'
//! ```
//!
//! Domains take turns: those with somebody waiting stand in a ring, and a domain at its cap stands aside until one of its
//! probes ends. Every step costs the same however many Proxies there are.
//!
//! A domain cannot hold up another, but five hundred bought proxies may be of as many domains. So nobody has a free hand
//! before a probe through its domain went well: newcomers and suspects have lanes of half of the slots each, and a quarter
//! is always left to those that are known to be good. And nobody keeps it: those that were good until now and swallow
//! their probes all at once are found out one by one, as a probe that is slow gives its slot up to whoever needs it.
//! Against the opposite, more known good ones than the slots can serve, newcomers and suspects have a few slots first.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Instant;

use crate::domain::health::FailureDomain;
use crate::domain::id::Uid;

/// Where a Proxy waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    Usual,
    /// No probe of it, nor of any other of its domain, went through lately.
    Newcomer,
    /// Its latest probe failed.
    Suspect,
}

impl Lane {
    /// In the order in which they are served.
    const ALL: [Self; 3] = [Self::Usual, Self::Newcomer, Self::Suspect];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until its due time, which is its key in the schedule.
    Sleeping(Instant, u64),
    /// Due, waiting for a slot.
    Waiting,
    Running(Pace),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Usual,
    /// Its slot is free for others; the number is its key among those.
    Slow(u64),
}

#[derive(Debug)]
struct Entry {
    domain: FailureDomain,
    lane: Lane,
    /// Its own latest probe went through: it vouches for its domain.
    proven: bool,
    state: State,
}

/// One lane: domains that wait, in turns.
#[derive(Debug, Default)]
struct Queue {
    waiting: HashMap<FailureDomain, VecDeque<Uid>>,
    running: usize,
    /// Domains with somebody waiting and, when they lined up, a free place, in the order of their turns.
    ring: VecDeque<FailureDomain>,
    in_ring: HashSet<FailureDomain>,
}

#[derive(Debug)]
pub struct Schedule {
    workers: usize,
    entries: HashMap<Uid, Entry>,
    sleeping: BTreeSet<(Instant, u64, Uid)>,
    lanes: [Queue; 3],
    /// Probes under way in each lane, by domain; none with three zeros.
    running: HashMap<FailureDomain, [usize; 3]>,
    /// How many of each domain are proven; none with zero.
    proven: HashMap<FailureDomain, usize>,
    /// Slow probes, the oldest first. Not those of suspects: they have their time.
    slow: BTreeSet<(u64, Uid)>,
    next: u64,
}

impl Schedule {
    pub fn new(workers: usize) -> Self {
        Self {
            workers: workers.max(1),
            entries: HashMap::new(),
            sleeping: BTreeSet::new(),
            lanes: Default::default(),
            running: HashMap::new(),
            proven: HashMap::new(),
            slow: BTreeSet::new(),
            next: 0,
        }
    }

    /// True if one more probe of this domain may run in this lane.
    fn has_room(&self, lane: Lane, domain: &FailureDomain) -> bool {
        let cap = (self.workers / 8).max(2);
        let in_lane = match lane {
            Lane::Usual => cap,
            Lane::Newcomer => cap / 2,
            Lane::Suspect => (cap / 4).max(1),
        };
        let running = self.running.get(domain).copied().unwrap_or_default();
        running[lane as usize] < in_lane && running.iter().sum::<usize>() < cap
    }

    /// True if the lane may have one more slot.
    fn is_open(&self, lane: Lane) -> bool {
        let [usual, newcomers, suspects] = [0, 1, 2].map(|lane| self.lanes[lane].running);
        let unproven = newcomers + suspects;
        usual + unproven < self.workers
            && match lane {
                Lane::Usual => true,
                Lane::Newcomer | Lane::Suspect => {
                    self.lanes[lane as usize].running < (self.workers / 2).max(1)
                        && unproven < (self.workers * 3 / 4).max(1)
                }
            }
    }

    /// A Proxy that is due at `due`; one of that uid must not be there.
    pub fn add(&mut self, uid: &Uid, domain: &FailureDomain, lane: Lane, due: Instant) {
        let state = self.sleep(uid, due);
        let proven = lane == Lane::Usual;
        if proven {
            self.vouch(domain);
        }
        self.entries.insert(uid.clone(), Entry { domain: domain.clone(), lane, proven, state });
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn sleep(&mut self, uid: &Uid, due: Instant) -> State {
        let number = self.number();
        self.sleeping.insert((due, number, uid.clone()));
        State::Sleeping(due, number)
    }

    /// One more of the domain is proven. With the first, those that wait as newcomers there need not wait as such.
    fn vouch(&mut self, domain: &FailureDomain) {
        let proven = self.proven.entry(domain.clone()).or_default();
        *proven += 1;
        if *proven > 1 {
            return;
        }
        let Some(waiting) = self.lanes[Lane::Newcomer as usize].waiting.remove(domain) else { return };
        for uid in &waiting {
            if let Some(entry) = self.entries.get_mut(uid) {
                entry.lane = Lane::Usual;
            }
        }
        self.lanes[Lane::Usual as usize].waiting.entry(domain.clone()).or_default().extend(waiting);
        self.line_up(Lane::Usual, domain);
    }

    fn unvouch(&mut self, domain: &FailureDomain) {
        if let Some(proven) = self.proven.get_mut(domain) {
            *proven -= 1;
            if *proven == 0 {
                self.proven.remove(domain);
            }
        }
    }

    /// Takes it out; a slot that it holds is free.
    pub fn remove(&mut self, uid: &Uid) {
        let Some(entry) = self.entries.remove(uid) else { return };
        if entry.proven {
            self.unvouch(&entry.domain);
        }
        match entry.state {
            State::Sleeping(due, number) => {
                self.sleeping.remove(&(due, number, uid.clone()));
            }
            State::Waiting => {
                let queue = &mut self.lanes[entry.lane as usize];
                if let Some(waiting) = queue.waiting.get_mut(&entry.domain) {
                    waiting.retain(|other| other != uid);
                    if waiting.is_empty() {
                        queue.waiting.remove(&entry.domain);
                    }
                }
            }
            State::Running(pace) => self.free(uid, entry.lane, pace, &entry.domain),
        }
    }

    /// Its probe ended; it is due again at `due`.
    pub fn ended(&mut self, uid: &Uid, lane: Lane, due: Instant) {
        let Some(entry) = self.entries.get_mut(uid) else { return };
        let proven = lane == Lane::Usual;
        let was_proven = std::mem::replace(&mut entry.proven, proven);
        let (domain, old_lane, old_state) = (entry.domain.clone(), entry.lane, entry.state);
        if let State::Running(pace) = old_state {
            self.free(uid, old_lane, pace, &domain);
        }
        match (was_proven, proven) {
            (false, true) => self.vouch(&domain),
            (true, false) => self.unvouch(&domain),
            (true, true) | (false, false) => {}
        }
        let state = self.sleep(uid, due);
        if let Some(entry) = self.entries.get_mut(uid) {
            (entry.lane, entry.state) = (lane, state);
        }
    }

    /// Its probe has no answer for so long that others may have its slot.
    pub fn is_slow(&mut self, uid: &Uid) {
        let number = self.number();
        let Some(entry) = self.entries.get_mut(uid) else { return };
        if entry.state == State::Running(Pace::Usual) && entry.lane != Lane::Suspect {
            entry.state = State::Running(Pace::Slow(number));
            self.slow.insert((number, uid.clone()));
        }
    }

    /// Makes it due now, if it sleeps.
    pub fn hasten(&mut self, uid: &Uid, now: Instant) {
        let Some(State::Sleeping(due, number)) = self.entries.get(uid).map(|entry| entry.state) else { return };
        self.sleeping.remove(&(due, number, uid.clone()));
        let state = self.sleep(uid, now);
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.state = state;
        }
    }

    /// The next one to probe now; it holds a slot from then on.
    pub fn next(&mut self, now: Instant) -> Option<Uid> {
        self.wake(now);
        let few = if self.workers < 4 { 0 } else { (self.workers / 16).max(1) };
        let first = [Lane::Newcomer, Lane::Suspect].map(|lane| (lane, self.lanes[lane as usize].running < few));
        let first = first.into_iter().filter_map(|(lane, lacks)| lacks.then_some(lane));
        first.chain(Lane::ALL).find_map(|lane| self.take(lane))
    }

    /// When there is no next one: a Proxy whose slow probe is over, if that lets somebody start who is no suspect. It waits
    /// for a slot as a suspect from then on. Says nothing about the Proxy.
    pub fn cut(&mut self) -> Option<Uid> {
        let from: &[Lane] = if self.slow.is_empty() {
            &[]
        } else if self.waits(Lane::Usual) {
            &[Lane::Usual, Lane::Newcomer]
        } else if self.waits(Lane::Newcomer) {
            &[Lane::Newcomer]
        } else {
            &[]
        };
        let holds = |uid: &&Uid| self.entries.get(*uid).is_some_and(|entry| from.contains(&entry.lane));
        let uid = self.slow.iter().map(|(_, uid)| uid).find(holds)?.clone();
        let entry = self.entries.get_mut(&uid)?;
        let State::Running(pace) = entry.state else { return None };
        let (lane, domain) = (entry.lane, entry.domain.clone());
        (entry.lane, entry.state) = (Lane::Suspect, State::Waiting);
        self.free(&uid, lane, pace, &domain);
        self.wait(Lane::Suspect, domain, uid.clone());
        Some(uid)
    }

    /// True if somebody in this lane would start if there were a slot.
    fn waits(&mut self, lane: Lane) -> bool {
        while let Some(domain) = self.lanes[lane as usize].ring.front() {
            if self.has_room(lane, domain) && self.lanes[lane as usize].waiting.contains_key(domain) {
                return true;
            }
            let queue = &mut self.lanes[lane as usize];
            if let Some(domain) = queue.ring.pop_front() {
                queue.in_ring.remove(&domain);
            }
        }
        false
    }

    /// When to ask again although nothing happens. Who waits for a slot is served when one ends.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.sleeping.first().map(|(due, _, _)| (*due).max(now))
    }

    fn wake(&mut self, now: Instant) {
        while let Some((due, _, _)) = self.sleeping.first() {
            if *due > now {
                break;
            }
            let Some((_, _, uid)) = self.sleeping.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&uid) else { continue };
            entry.state = State::Waiting;
            if entry.lane == Lane::Newcomer && self.proven.contains_key(&entry.domain) {
                entry.lane = Lane::Usual;
            }
            let (lane, domain) = (entry.lane, entry.domain.clone());
            self.wait(lane, domain, uid);
        }
    }

    fn wait(&mut self, lane: Lane, domain: FailureDomain, uid: Uid) {
        self.lanes[lane as usize].waiting.entry(domain.clone()).or_default().push_back(uid);
        self.line_up(lane, &domain);
    }

    fn take(&mut self, lane: Lane) -> Option<Uid> {
        if !self.is_open(lane) {
            return None;
        }
        loop {
            let queue = &mut self.lanes[lane as usize];
            let domain = queue.ring.pop_front()?;
            queue.in_ring.remove(&domain);
            // It may have filled since it lined up, through another lane; the end of one of its probes lines it up again.
            if !self.has_room(lane, &domain) {
                continue;
            }
            let queue = &mut self.lanes[lane as usize];
            // Or it may have emptied.
            let Some(waiting) = queue.waiting.get_mut(&domain) else { continue };
            let uid = waiting.pop_front();
            if waiting.is_empty() {
                queue.waiting.remove(&domain);
            }
            let Some(uid) = uid else { continue };
            queue.running += 1;
            self.running.entry(domain.clone()).or_default()[lane as usize] += 1;
            self.line_up(lane, &domain);
            if let Some(entry) = self.entries.get_mut(&uid) {
                entry.state = State::Running(Pace::Usual);
            }
            return Some(uid);
        }
    }

    fn free(&mut self, uid: &Uid, lane: Lane, pace: Pace, domain: &FailureDomain) {
        if let Pace::Slow(number) = pace {
            self.slow.remove(&(number, uid.clone()));
        }
        self.lanes[lane as usize].running -= 1;
        if let Some(running) = self.running.get_mut(domain) {
            running[lane as usize] -= 1;
            if *running == [0; 3] {
                self.running.remove(domain);
            }
        }
        for lane in Lane::ALL {
            self.line_up(lane, domain);
        }
    }

    /// Gives the domain a turn if somebody waits there and it is below its cap.
    fn line_up(&mut self, lane: Lane, domain: &FailureDomain) {
        let room = self.has_room(lane, domain);
        let queue = &mut self.lanes[lane as usize];
        if room && queue.waiting.contains_key(domain) && queue.in_ring.insert(domain.clone()) {
            queue.ring.push_back(domain.clone());
        }
    }
}

#[cfg(test)]
mod tests;
