//! The Proxies that the book knows: who they are and where they stand. Which to hand out is in `choice`.
//!
//! Every Proxy stands in exactly one place: not offered (provisioning, unhealthy), draining, full, or free on one of
//! the shelves, which are sorted by how many leases are out. Nothing here knows of time or of single leases' terms.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use slab::Slab;

use super::ask::{Absence, Announcement, Cordon, Offer};
use super::domains::Domains;
use super::slots::SlotSet;
use crate::domain::desired::Attributes;
use crate::domain::id::{ProxyKey, Uid};

/// Up to so many leases a Proxy has a shelf of its own; above, four shelves share each doubling.
const EXACT_SHELVES: usize = 16;

/// Fencing numbers of so many Proxies that are gone are kept, in case the same name comes back.
const MAX_RETIRED: usize = 4096;

#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) key: ProxyKey,
    pub(super) uid: Uid,
    attributes: Arc<Attributes>,
    pub(super) capacity: u32,
    /// The latest offer; kept while it is not offered, to know whether it comes back as the same.
    pub(super) offer: Option<Arc<Offer>>,
    /// `None` while it is offered.
    absence: Option<Absence>,
    pub(super) cordon: Option<Cordon>,
    /// Numbers of the leases that are out.
    pub(super) leases: Vec<usize>,
    /// Of its latest grant.
    pub(super) counter: u64,
    standing: Standing,
    /// When the prober was last asked to look because of a report.
    pub(super) looked_at: Option<Instant>,
}

impl Proxy {
    pub(super) fn is_offered(&self) -> bool {
        self.absence.is_none()
    }

    pub(super) fn spare(&self) -> usize {
        (self.capacity as usize).saturating_sub(self.leases.len())
    }

    fn stands(&self) -> Standing {
        match (self.absence, self.cordon) {
            (Some(Absence::Provisioning), _) => Standing::Provisioning,
            (Some(Absence::Unhealthy), _) => Standing::Unhealthy,
            (None, Some(_)) => Standing::Draining,
            (None, None) if self.spare() == 0 => Standing::Full,
            (None, None) => Standing::Free(shelf(self.leases.len())),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Provisioning,
    Unhealthy,
    Draining,
    Full,
    /// On which shelf.
    Free(usize),
}

/// What an offer changed for those who had the one before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    /// Targets see another exit.
    pub(super) is_new_exit: bool,
    /// Holders would have to connect in another way.
    pub(super) is_new_way_in: bool,
}

#[derive(Debug, Default)]
pub(super) struct Stock {
    proxies: Slab<Proxy>,
    by_key: HashMap<ProxyKey, usize>,
    pub(super) by_attribute: HashMap<Arc<str>, HashMap<Arc<str>, SlotSet>>,
    pub(super) known: SlotSet,
    pub(super) provisioning: SlotSet,
    pub(super) unhealthy: SlotSet,
    pub(super) draining: SlotSet,
    pub(super) full: SlotSet,
    /// By number of leases: see [`shelf`].
    pub(super) shelves: Vec<SlotSet>,
    pub(super) domains: Domains,
    /// Where the next search for the same thing starts, so that the least recently granted comes next.
    pub(super) cursors: HashMap<u64, usize>,
    /// Objects that are gone: late news of them is not news.
    retired: HashSet<Uid>,
    /// The latest fencing numbers of names that are gone.
    counters: HashMap<ProxyKey, u64>,
    /// Oldest first.
    retired_order: VecDeque<(Uid, ProxyKey)>,
    /// No new Proxy starts below: it covers those that `counters` had to drop.
    counter_floor: u64,
    leases_draining: usize,
}

// --- who is there ----------------------------------------------------------------------------------------------------

impl Stock {
    pub(super) fn counting_from(counted: u64) -> Self {
        Self { counter_floor: counted, ..Self::default() }
    }

    pub(super) fn get(&self, slot: usize) -> &Proxy {
        &self.proxies[slot]
    }

    pub(super) fn slot(&self, key: &ProxyKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// The slot of exactly this object.
    pub(super) fn slot_of(&self, key: &ProxyKey, uid: &Uid) -> Option<usize> {
        self.slot(key).filter(|&slot| self.proxies[slot].uid == *uid)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Proxy)> {
        self.proxies.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.proxies.len()
    }

    pub(super) fn offered(&self) -> usize {
        self.known.len() - self.provisioning.len() - self.unhealthy.len()
    }

    pub(super) fn leases_draining(&self) -> usize {
        self.leases_draining
    }

    /// True if this is late news of an object whose name belongs to another one by now.
    pub(super) fn is_stale(&self, key: &ProxyKey, uid: &Uid) -> bool {
        self.slot(key).is_some_and(|slot| self.proxies[slot].uid != *uid) && self.retired.contains(uid)
    }

    pub(super) fn announce(&mut self, news: Announcement) {
        let slot = self.known_slot(&news.key, &news.uid, &news.attributes);
        let proxy = &mut self.proxies[slot];
        proxy.capacity = news.capacity.max(1);
        proxy.absence = Some(news.absence);
        self.settle(slot);
    }

    /// Returns the slot, and what is other than at the offer before.
    pub(super) fn offer(&mut self, offer: Arc<Offer>) -> (usize, Change) {
        let slot = self.known_slot(&offer.key, &offer.uid, &offer.attributes);
        let proxy = &mut self.proxies[slot];
        let before = proxy.offer.as_ref();
        let change = Change {
            is_new_exit: before.is_some_and(|before| !before.is_same_exit(&offer)),
            is_new_way_in: before.is_some_and(|before| !before.is_same_way_in(&offer)),
        };
        proxy.capacity = offer.capacity.max(1);
        proxy.absence = None;
        self.domains.assign(slot, &offer.domain, proxy.leases.len());
        if proxy.offer.as_ref() != Some(&offer) {
            proxy.offer = Some(offer);
        }
        self.settle(slot);
        (slot, change)
    }

    pub(super) fn withdraw(&mut self, slot: usize, absence: Absence) {
        self.proxies[slot].absence = Some(absence);
        self.settle(slot);
    }

    pub(super) fn cordon(&mut self, slot: usize, cordon: Option<Cordon>) {
        let proxy = &mut self.proxies[slot];
        match (proxy.cordon, cordon) {
            (None, Some(_)) => self.leases_draining += proxy.leases.len(),
            (Some(_), None) => self.leases_draining -= proxy.leases.len(),
            (None, None) | (Some(_), Some(_)) => {}
        }
        proxy.cordon = cordon;
        self.settle(slot);
    }

    /// Takes the Proxy out. Its leases must have been ended before.
    pub(super) fn remove(&mut self, slot: usize) {
        self.unindex(slot);
        self.leave(slot, self.proxies[slot].standing);
        self.domains.clear(slot);
        self.known.remove(slot);
        let proxy = self.proxies.remove(slot);
        debug_assert!(proxy.leases.is_empty(), "the leases of {} were not ended", proxy.key);
        self.by_key.remove(&proxy.key);
        self.counters.insert(proxy.key.clone(), proxy.counter);
        if self.retired.insert(proxy.uid.clone()) {
            self.retired_order.push_back((proxy.uid, proxy.key));
        }
        if self.retired_order.len() > MAX_RETIRED
            && let Some((uid, key)) = self.retired_order.pop_front()
        {
            self.retired.remove(&uid);
            let counter = self.counters.remove(&key).unwrap_or(0);
            self.counter_floor = self.counter_floor.max(counter);
        }
    }

    /// The slot of this object, made if it is new. Whoever had the name must have been removed before.
    fn known_slot(&mut self, key: &ProxyKey, uid: &Uid, attributes: &Arc<Attributes>) -> usize {
        if let Some(slot) = self.slot(key) {
            if self.proxies[slot].attributes != *attributes {
                self.unindex(slot);
                self.proxies[slot].attributes = Arc::clone(attributes);
                self.index(slot);
            }
            return slot;
        }
        let slot = self.proxies.insert(Proxy {
            key: key.clone(),
            uid: uid.clone(),
            attributes: Arc::clone(attributes),
            capacity: 1,
            offer: None,
            absence: Some(Absence::Provisioning),
            cordon: None,
            leases: Vec::new(),
            counter: self.counters.get(key).copied().unwrap_or(0).max(self.counter_floor),
            standing: Standing::Provisioning,
            looked_at: None,
        });
        self.by_key.insert(key.clone(), slot);
        self.known.insert(slot);
        self.provisioning.insert(slot);
        self.index(slot);
        slot
    }

    fn index(&mut self, slot: usize) {
        for (name, value) in self.proxies[slot].attributes.iter() {
            self.by_attribute.entry(Arc::clone(name)).or_default().entry(Arc::clone(value)).or_default().insert(slot);
        }
    }

    fn unindex(&mut self, slot: usize) {
        for (name, value) in self.proxies[slot].attributes.iter() {
            let Some(values) = self.by_attribute.get_mut(name) else { continue };
            if let Some(set) = values.get_mut(value) {
                set.remove(slot);
                if set.is_empty() {
                    values.remove(value);
                }
            }
            if values.is_empty() {
                self.by_attribute.remove(name);
            }
        }
    }
}

// --- leases come and go ----------------------------------------------------------------------------------------------

impl Stock {
    /// True if the Proxy could be granted now or after a wait: offered and not cordoned.
    pub(super) fn is_grantable(&self, slot: usize) -> bool {
        matches!(self.proxies[slot].standing, Standing::Full | Standing::Free(_))
    }

    /// Returns the fencing counter of the grant, and where the lease stands among the Proxy's.
    pub(super) fn attach(&mut self, slot: usize, lease: usize) -> (u64, usize) {
        let proxy = &mut self.proxies[slot];
        proxy.leases.push(lease);
        proxy.counter += 1;
        let answer = (proxy.counter, proxy.leases.len() - 1);
        self.leases_draining += usize::from(proxy.cordon.is_some());
        self.domains.count(slot, 1);
        self.settle(slot);
        answer
    }

    /// Returns the lease that stands at `place` now, if another one was moved there.
    pub(super) fn detach(&mut self, slot: usize, place: usize) -> Option<usize> {
        let proxy = &mut self.proxies[slot];
        proxy.leases.swap_remove(place);
        let moved = proxy.leases.get(place).copied();
        self.leases_draining -= usize::from(proxy.cordon.is_some());
        self.domains.count(slot, -1);
        self.settle(slot);
        moved
    }

    pub(super) fn looked_at(&mut self, slot: usize, now: Instant) {
        self.proxies[slot].looked_at = Some(now);
    }

    /// Puts the Proxy where it stands now.
    fn settle(&mut self, slot: usize) {
        let (before, after) = (self.proxies[slot].standing, self.proxies[slot].stands());
        if before == after {
            return;
        }
        self.leave(slot, before);
        self.place(after).insert(slot);
        self.proxies[slot].standing = after;
    }

    fn leave(&mut self, slot: usize, standing: Standing) {
        self.place(standing).remove(slot);
    }

    fn place(&mut self, standing: Standing) -> &mut SlotSet {
        match standing {
            Standing::Provisioning => &mut self.provisioning,
            Standing::Unhealthy => &mut self.unhealthy,
            Standing::Draining => &mut self.draining,
            Standing::Full => &mut self.full,
            Standing::Free(shelf) => {
                if self.shelves.len() <= shelf {
                    self.shelves.resize_with(shelf + 1, SlotSet::default);
                }
                &mut self.shelves[shelf]
            }
        }
    }
}

/// The shelf of Proxies with so many leases: exact for few, rougher for many, so that a gateway with thousands of
/// leases does not make thousands of shelves.
fn shelf(leases: usize) -> usize {
    if leases < EXACT_SHELVES {
        return leases;
    }
    let log = leases.ilog2() as usize;
    let quarter = (leases >> (log - 2)) & 3;
    EXACT_SHELVES + (log - EXACT_SHELVES.ilog2() as usize) * 4 + quarter
}

#[cfg(test)]
mod tests {
    use super::shelf;

    #[test]
    fn shelves_keep_the_order_and_leave_no_gap() {
        let shelves: Vec<usize> = (0..100_000).map(shelf).collect();
        assert!(shelves.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1));
        assert_eq!(shelves[..17], (0..17).collect::<Vec<_>>());
        assert!(shelf(usize::MAX) < 300);
    }
}
