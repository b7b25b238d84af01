//! Which operation of a host runs next: slots, a bounded queue, one mutation per uid at a time. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::CallKind;
use crate::domain::id::Uid;

/// Numbers the operations of one host incarnation.
pub type OpNumber = u64;

/// What is to be done with a job, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect<J> {
    /// Run it, after this time in the queue.
    Start(OpNumber, J),
    /// The queue is full.
    Busy(J),
    /// Its deadline passed while it waited.
    Expired(J),
    /// Cancelled while it waited.
    Cancelled(J),
    /// Cut what runs.
    Kill(OpNumber),
}

#[derive(Debug)]
struct Waiting<J> {
    uid: Uid,
    deadline: Instant,
    since: Instant,
    job: J,
}

impl<J> Waiting<J> {
    /// Enough of its time is left. What waited for longer would be cut in its middle: a call that the backend has begun
    /// for nothing, and for a mutation an effect that nobody saw.
    fn is_in_time(&self, now: Instant) -> bool {
        self.deadline.saturating_duration_since(now) * 4 > self.deadline.saturating_duration_since(self.since)
    }
}

#[derive(Debug)]
struct Running {
    uid: Uid,
    kind: CallKind,
}

#[derive(Debug)]
pub struct Admission<J> {
    slots: usize,
    queue: usize,
    next: OpNumber,
    /// In the order in which they are let in: kind, then arrival.
    waiting: BTreeMap<(CallKind, OpNumber), Waiting<J>>,
    running: HashMap<OpNumber, Running>,
    /// Time that the jobs which started since the last look had waited.
    waits: Vec<Duration>,
}

impl<J> Admission<J> {
    /// `slots` operations run at once, `queue` wait.
    pub fn new(slots: usize, queue: usize) -> Self {
        Self {
            slots: slots.max(1),
            queue,
            next: 0,
            waiting: BTreeMap::new(),
            running: HashMap::new(),
            waits: Vec::new(),
        }
    }

    pub fn submit(&mut self, uid: Uid, kind: CallKind, deadline: Instant, job: J, now: Instant) -> Vec<Effect<J>> {
        if deadline <= now {
            return vec![Effect::Expired(job)];
        }
        self.next += 1;
        self.waiting.insert((kind, self.next), Waiting { uid, deadline, since: now, job });
        let mut effects = self.admit(now);
        if self.waiting.len() > self.queue {
            // The one that would be let in last gives way: a delete is not refused because of waiting looks.
            if let Some((_, last)) = self.waiting.pop_last() {
                effects.push(Effect::Busy(last.job));
            }
        }
        effects
    }

    /// An operation ended; its slot is free.
    pub fn ended(&mut self, number: OpNumber, now: Instant) -> Vec<Effect<J>> {
        self.running.remove(&number);
        self.admit(now)
    }

    /// Answers what waited past its deadline.
    pub fn expire(&mut self, now: Instant) -> Vec<Effect<J>> {
        let late: Vec<_> = self.waiting.iter().filter(|(_, w)| w.deadline <= now).map(|(key, _)| *key).collect();
        late.into_iter().filter_map(|key| self.waiting.remove(&key)).map(|w| Effect::Expired(w.job)).collect()
    }

    /// Ends all that waits or runs for this uid.
    pub fn cancel(&mut self, uid: &Uid) -> Vec<Effect<J>> {
        let waiting: Vec<_> = self.waiting.iter().filter(|(_, w)| w.uid == *uid).map(|(key, _)| *key).collect();
        let mut effects: Vec<_> =
            waiting.into_iter().filter_map(|key| self.waiting.remove(&key)).map(|w| Effect::Cancelled(w.job)).collect();
        effects.extend(self.running.iter().filter(|(_, r)| r.uid == *uid).map(|(number, _)| Effect::Kill(*number)));
        effects
    }

    /// Ends all that waits, and what runs and mutates: another leads.
    pub fn cancel_mutations(&mut self) -> Vec<Effect<J>> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut effects: Vec<_> = waiting.into_values().map(|w| Effect::Cancelled(w.job)).collect();
        effects.extend(self.running.iter().filter(|(_, r)| r.kind.mutates()).map(|(number, _)| Effect::Kill(*number)));
        effects
    }

    /// For whom something waits or runs.
    pub fn uids(&self) -> impl Iterator<Item = &Uid> {
        self.waiting.values().map(|waiting| &waiting.uid).chain(self.running.values().map(|running| &running.uid))
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|w| w.deadline).min()
    }

    /// How long the operations that started since the last call had waited for a slot.
    pub fn take_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.waits)
    }

    fn admit(&mut self, now: Instant) -> Vec<Effect<J>> {
        let mut effects = Vec::new();
        while self.running.len() < self.slots {
            let free = |key: &&(CallKind, OpNumber), waiting: &Waiting<J>| {
                !(key.0.mutates() && self.running.values().any(|r| r.kind.mutates() && r.uid == waiting.uid))
            };
            let Some(key) = self.waiting.iter().find(|(key, w)| w.is_in_time(now) && free(key, w)).map(|(key, _)| *key)
            else {
                break;
            };
            if let Some(Waiting { uid, since, job, .. }) = self.waiting.remove(&key) {
                self.waits.push(now.saturating_duration_since(since));
                self.running.insert(key.1, Running { uid, kind: key.0 });
                effects.push(Effect::Start(key.1, job));
            }
        }
        effects
    }
}

#[cfg(test)]
mod tests;
