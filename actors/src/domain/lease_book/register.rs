//! The leases themselves: those that are out, by id, end and holder, and those that ended lately.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use super::answer::{Ended, EndedBy, Gone, Lease, NotHeld};
use super::ask::{Offer, Target, Terms};
use super::holders::Holders;
use crate::domain::id::LeaseId;

/// A lease that is out.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    pub(super) slot: usize,
    /// Where it stands in its Proxy's list.
    pub(super) place: usize,
}

/// What is kept of a lease that ended.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) generation: u64,
    pub(super) proxy: Arc<Offer>,
    pub(super) target: Option<Target>,
    pub(super) gone: Gone,
}

#[derive(Debug)]
enum Entry {
    Held(usize),
    Past(Past),
}

/// An id looked up.
#[derive(Debug)]
pub(super) enum Found<'a> {
    Held(usize, &'a Held),
    Past(&'a Past),
}

#[derive(Debug, Default)]
pub(super) struct Register {
    held: Slab<Held>,
    by_id: HashMap<LeaseId, Entry>,
    /// By the end of the lease.
    pub(super) ends: BTreeSet<(Instant, usize)>,
    pub(super) holders: Holders,
    /// In the order of their ends.
    past: VecDeque<(Instant, LeaseId)>,
}

impl Register {
    pub(super) fn get(&self, number: usize) -> &Held {
        &self.held[number]
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn remembered(&self) -> usize {
        self.past.len()
    }

    pub(super) fn find(&self, id: &LeaseId) -> Option<Found<'_>> {
        Some(match self.by_id.get(id)? {
            Entry::Held(number) => Found::Held(*number, &self.held[*number]),
            Entry::Past(past) => Found::Past(past),
        })
    }

    /// The number of a lease that is out and, if a generation is given, of that generation.
    pub(super) fn holding(&self, id: &LeaseId, generation: Option<u64>) -> Result<usize, NotHeld> {
        match self.find(id).ok_or(NotHeld::Unknown)? {
            Found::Past(past) => Err(NotHeld::Gone(past.gone)),
            Found::Held(_, held) if generation.is_some_and(|given| given != held.lease.generation) => {
                Err(NotHeld::GenerationMismatch { held: held.lease.generation })
            }
            Found::Held(number, _) => Ok(number),
        }
    }

    /// The number that the next lease will have.
    pub(super) fn next_number(&self) -> usize {
        self.held.vacant_key()
    }

    pub(super) fn add(&mut self, held: Held) {
        let lease = &held.lease;
        let number = self.next_number();
        self.ends.insert((lease.expires, number));
        self.holders.add(&lease.token, lease.owner.as_ref(), number);
        self.by_id.insert(lease.id.clone(), Entry::Held(number));
        self.held.insert(held);
    }

    pub(super) fn prolong(&mut self, number: usize, now: Instant, ttl: Duration) {
        let lease = &mut self.held[number].lease;
        self.ends.remove(&(lease.expires, number));
        lease.expires = now + ttl;
        lease.renew_after = ttl / 2;
        self.ends.insert((lease.expires, number));
    }

    /// Another lease of the same Proxy ended, and this one took its place in the list.
    pub(super) fn moved(&mut self, number: usize, place: usize) {
        self.held[number].place = place;
    }

    /// Ends the lease; it is only remembered from now on. Ends must come in the order of time.
    pub(super) fn end(&mut self, number: usize, how: EndedBy, when: Instant) -> (Held, Ended) {
        let held = self.held.remove(number);
        let (lease, gone) = (&held.lease, Gone { how, when });
        self.ends.remove(&(lease.expires, number));
        self.holders.remove(&lease.token, lease.owner.as_ref(), number);
        let past =
            Past { generation: lease.generation, proxy: Arc::clone(&lease.proxy), target: lease.target.clone(), gone };
        self.by_id.insert(lease.id.clone(), Entry::Past(past));
        self.past.push_back((when, lease.id.clone()));
        let ended = Ended {
            id: lease.id.clone(),
            generation: lease.generation,
            key: lease.proxy.key.clone(),
            uid: lease.proxy.uid.clone(),
            owner: lease.owner.clone(),
            token: Arc::clone(&lease.token),
            gone,
        };
        (held, ended)
    }

    /// Forgets what ended long ago, and the oldest of too many.
    pub(super) fn forget(&mut self, now: Instant, terms: &Terms) {
        while let Some((when, id)) = self.past.front() {
            if self.past.len() <= terms.max_remembered && *when + terms.remember > now {
                return;
            }
            self.by_id.remove(id);
            self.past.pop_front();
        }
    }

    /// The earliest end among these leases.
    pub(super) fn first_end(&self, numbers: &[usize]) -> Option<Instant> {
        numbers.iter().map(|&number| self.held[number].lease.expires).min()
    }
}
