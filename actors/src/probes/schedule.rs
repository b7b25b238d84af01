//! Which probe is next: due times, slots, caps per failure domain, a lane for suspects. Pure.
//!
//! Domains take turns: those with somebody waiting stand in a ring, and a domain at its cap stands aside until one of its
//! probes ends. Every step costs the same however many Proxies there are.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Instant;

use crate::domain::health::FailureDomain;
use crate::domain::id::Uid;

/// Where a Proxy waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    Usual,
    /// Its latest probe failed.
    Suspect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Until its due time, which is its key in the schedule.
    Sleeping(Instant, u64),
    /// Due, waiting for a slot.
    Waiting,
    Running,
}

#[derive(Debug)]
struct Entry {
    domain: FailureDomain,
    lane: Lane,
    state: State,
}

/// One lane: domains that wait, in turns.
#[derive(Debug, Default)]
struct Queue {
    waiting: HashMap<FailureDomain, VecDeque<Uid>>,
    running: HashMap<FailureDomain, usize>,
    total: usize,
    /// Domains with somebody waiting and a free place, in the order of their turns.
    ring: VecDeque<FailureDomain>,
    in_ring: HashSet<FailureDomain>,
}

#[derive(Debug)]
pub struct Schedule {
    workers: usize,
    entries: HashMap<Uid, Entry>,
    sleeping: BTreeSet<(Instant, u64, Uid)>,
    usual: Queue,
    suspect: Queue,
    running: usize,
    next: u64,
}

impl Schedule {
    pub fn new(workers: usize) -> Self {
        Self {
            workers: workers.max(1),
            entries: HashMap::new(),
            sleeping: BTreeSet::new(),
            usual: Queue::default(),
            suspect: Queue::default(),
            running: 0,
            next: 0,
        }
    }

    /// Most probes of one failure domain at once.
    fn domain_cap(&self, lane: Lane) -> usize {
        let cap = (self.workers / 8).max(2);
        match lane {
            Lane::Usual => cap,
            Lane::Suspect => (cap / 4).max(1),
        }
    }

    /// Most probes of a lane at once.
    fn lane_cap(&self, lane: Lane) -> usize {
        match lane {
            Lane::Usual => self.workers,
            Lane::Suspect => (self.workers / 2).max(1),
        }
    }

    fn queue(&mut self, lane: Lane) -> &mut Queue {
        match lane {
            Lane::Usual => &mut self.usual,
            Lane::Suspect => &mut self.suspect,
        }
    }

    /// A Proxy that is due at `due`; one of that uid must not be there.
    pub fn add(&mut self, uid: &Uid, domain: &FailureDomain, lane: Lane, due: Instant) {
        let state = self.sleep(uid, due);
        self.entries.insert(uid.clone(), Entry { domain: domain.clone(), lane, state });
    }

    fn sleep(&mut self, uid: &Uid, due: Instant) -> State {
        self.next += 1;
        self.sleeping.insert((due, self.next, uid.clone()));
        State::Sleeping(due, self.next)
    }

    /// Takes it out; a slot that it holds is free.
    pub fn remove(&mut self, uid: &Uid) {
        let Some(entry) = self.entries.remove(uid) else { return };
        match entry.state {
            State::Sleeping(due, number) => {
                self.sleeping.remove(&(due, number, uid.clone()));
            }
            State::Waiting => {
                let queue = self.queue(entry.lane);
                if let Some(waiting) = queue.waiting.get_mut(&entry.domain) {
                    waiting.retain(|other| other != uid);
                    if waiting.is_empty() {
                        queue.waiting.remove(&entry.domain);
                    }
                }
            }
            State::Running => self.free(entry.lane, &entry.domain),
        }
    }

    /// Its probe ended; it is due again at `due`.
    pub fn ended(&mut self, uid: &Uid, lane: Lane, due: Instant) {
        let Some(entry) = self.entries.get(uid) else { return };
        let (domain, old_lane) = (entry.domain.clone(), entry.lane);
        if entry.state == State::Running {
            self.free(old_lane, &domain);
        }
        let state = self.sleep(uid, due);
        if let Some(entry) = self.entries.get_mut(uid) {
            (entry.lane, entry.state) = (lane, state);
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
        self.take(Lane::Usual).or_else(|| self.take(Lane::Suspect))
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
            let (lane, domain) = (entry.lane, entry.domain.clone());
            let cap = self.domain_cap(lane);
            let queue = self.queue(lane);
            queue.waiting.entry(domain.clone()).or_default().push_back(uid);
            queue.line_up(&domain, cap);
        }
    }

    fn take(&mut self, lane: Lane) -> Option<Uid> {
        if self.running >= self.workers {
            return None;
        }
        let (lane_cap, domain_cap) = (self.lane_cap(lane), self.domain_cap(lane));
        let queue = self.queue(lane);
        if queue.total >= lane_cap {
            return None;
        }
        let uid = loop {
            let domain = queue.ring.pop_front()?;
            queue.in_ring.remove(&domain);
            // It may have emptied since it lined up.
            let Some(waiting) = queue.waiting.get_mut(&domain) else { continue };
            let uid = waiting.pop_front();
            if waiting.is_empty() {
                queue.waiting.remove(&domain);
            }
            let Some(uid) = uid else { continue };
            *queue.running.entry(domain.clone()).or_default() += 1;
            queue.total += 1;
            queue.line_up(&domain, domain_cap);
            break uid;
        };
        self.running += 1;
        if let Some(entry) = self.entries.get_mut(&uid) {
            entry.state = State::Running;
        }
        Some(uid)
    }

    fn free(&mut self, lane: Lane, domain: &FailureDomain) {
        self.running -= 1;
        let cap = self.domain_cap(lane);
        let queue = self.queue(lane);
        queue.total -= 1;
        if let Some(running) = queue.running.get_mut(domain) {
            *running -= 1;
            if *running == 0 {
                queue.running.remove(domain);
            }
        }
        queue.line_up(domain, cap);
    }
}

impl Queue {
    /// Gives the domain a turn if somebody waits there and it is below its cap.
    fn line_up(&mut self, domain: &FailureDomain, cap: usize) {
        let below = self.running.get(domain).copied().unwrap_or(0) < cap;
        if below && self.waiting.contains_key(domain) && self.in_ring.insert(domain.clone()) {
            self.ring.push_back(domain.clone());
        }
    }
}
