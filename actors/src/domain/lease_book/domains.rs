//! Failure domains: which Proxies fail together, and how many leases each domain carries.

use std::collections::HashMap;
use std::sync::Arc;

use slab::Slab;

use super::slots::SlotSet;

#[derive(Debug, Default)]
pub(super) struct Domains {
    all: Slab<Domain>,
    by_name: HashMap<Arc<str>, usize>,
    /// By slot.
    domain_of: Vec<Option<usize>>,
}

#[derive(Debug)]
struct Domain {
    name: Arc<str>,
    members: SlotSet,
    leases: usize,
}

impl Domains {
    /// Puts the Proxy with its leases into the named domain.
    pub(super) fn assign(&mut self, slot: usize, name: &Arc<str>, leases: usize) {
        if let Some(at) = self.at(slot) {
            if self.all[at].name == *name {
                return;
            }
            self.all[at].leases -= leases;
            self.clear(slot);
        }
        let at = *self.by_name.entry(Arc::clone(name)).or_insert_with(|| {
            self.all.insert(Domain { name: Arc::clone(name), members: SlotSet::default(), leases: 0 })
        });
        self.all[at].members.insert(slot);
        self.all[at].leases += leases;
        if self.domain_of.len() <= slot {
            self.domain_of.resize(slot + 1, None);
        }
        self.domain_of[slot] = Some(at);
    }

    /// Takes the Proxy out of its domain; its leases must have been counted off.
    pub(super) fn clear(&mut self, slot: usize) {
        let Some(at) = self.at(slot) else { return };
        self.domain_of[slot] = None;
        self.all[at].members.remove(slot);
        if self.all[at].members.is_empty() {
            let domain = self.all.remove(at);
            self.by_name.remove(&domain.name);
        }
    }

    /// One lease more (`1`) or less (`-1`) on this Proxy.
    pub(super) fn count(&mut self, slot: usize, change: isize) {
        if let Some(at) = self.at(slot) {
            let leases = &mut self.all[at].leases;
            *leases = leases.checked_add_signed(change).expect("every lease that is counted off was counted before");
        }
    }

    pub(super) fn leases_of(&self, slot: usize) -> usize {
        self.at(slot).map_or(0, |at| self.all[at].leases)
    }

    pub(super) fn set_of(&self, slot: usize) -> Option<&SlotSet> {
        self.at(slot).map(|at| &self.all[at].members)
    }

    fn at(&self, slot: usize) -> Option<usize> {
        self.domain_of.get(slot).copied().flatten()
    }
}
