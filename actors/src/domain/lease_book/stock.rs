//! The Proxies that the book knows: who they are, where they stand, and which to hand out.
//!
//! Every Proxy stands in exactly one place: not offered (provisioning, unhealthy), draining, full, or free on one of
//! the shelves, which are sorted by how many leases are out. Nothing here knows of time or of single leases' terms.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use slab::Slab;

use super::answer::Breakdown;
use super::ask::{Absence, Announcement, Cordon, Offer, Target};
use super::cooling::Resting;
use super::domains::Domains;
use super::slots::{Filter, SlotSet};
use crate::domain::desired::Attributes;
use crate::domain::id::{ProxyKey, Uid};

/// Up to so many leases a Proxy has a shelf of its own; above, four shelves share each doubling.
const EXACT_SHELVES: usize = 16;

/// Fencing numbers of so many Proxies that are gone are kept, in case the same uid comes back.
const MAX_RETIRED: usize = 4096;

/// Starting points of so many (selector, target) pairs are kept: losing them costs evenness only.
const MAX_CURSORS: usize = 65_536;

/// How many other failure domains are looked at before one is chosen, and how far (in steps of 512 Proxies).
const OTHER_DOMAINS: usize = 3;
const LOOK_FAR: usize = 16;

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
    pub(super) looked_at: Option<std::time::Instant>,
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

/// What one search is about, beside the selector.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) target: Option<&'a Target>,
    pub(super) resting: Option<&'a Resting>,
    pub(super) excluded: &'a SlotSet,
}

#[derive(Debug, Default)]
pub(super) struct Stock {
    proxies: Slab<Proxy>,
    by_key: HashMap<ProxyKey, usize>,
    by_attribute: HashMap<Arc<str>, HashMap<Arc<str>, SlotSet>>,
    known: SlotSet,
    provisioning: SlotSet,
    unhealthy: SlotSet,
    draining: SlotSet,
    pub(super) full: SlotSet,
    /// By number of leases: see [`shelf`].
    shelves: Vec<SlotSet>,
    domains: Domains,
    /// Where the next search for the same thing starts, so that the least recently granted comes next.
    cursors: HashMap<u64, usize>,
    retired: HashMap<Uid, u64>,
    retired_order: VecDeque<Uid>,
    /// No new Proxy starts below: it covers those that `retired` had to drop.
    counter_floor: u64,
    leases_draining: usize,
}

// --- who is there ----------------------------------------------------------------------------------------------------

impl Stock {
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
        self.slot(key).is_some_and(|slot| self.proxies[slot].uid != *uid) && self.retired.contains_key(uid)
    }

    pub(super) fn announce(&mut self, news: Announcement) {
        let slot = self.known_slot(&news.key, &news.uid, &news.attributes);
        let proxy = &mut self.proxies[slot];
        proxy.capacity = news.capacity.max(1);
        proxy.absence = Some(news.absence);
        self.settle(slot);
    }

    /// Returns the slot, and whether targets see another exit than at the offer before.
    pub(super) fn offer(&mut self, offer: Offer) -> (usize, bool) {
        let slot = self.known_slot(&offer.key, &offer.uid, &offer.attributes);
        let proxy = &mut self.proxies[slot];
        let is_new_exit = proxy.offer.as_ref().is_some_and(|before| !before.is_same_exit(&offer));
        proxy.capacity = offer.capacity.max(1);
        proxy.absence = None;
        self.domains.assign(slot, &offer.domain, proxy.leases.len());
        if proxy.offer.as_deref() != Some(&offer) {
            proxy.offer = Some(Arc::new(offer));
        }
        self.settle(slot);
        (slot, is_new_exit)
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
        if self.retired.insert(proxy.uid.clone(), proxy.counter).is_none() {
            self.retired_order.push_back(proxy.uid);
        }
        if self.retired_order.len() > MAX_RETIRED
            && let Some(counter) = self.retired_order.pop_front().and_then(|uid| self.retired.remove(&uid))
        {
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
            counter: self.retired.get(uid).copied().unwrap_or(self.counter_floor),
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

    pub(super) fn looked_at(&mut self, slot: usize, now: std::time::Instant) {
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

// --- choosing --------------------------------------------------------------------------------------------------------

impl Stock {
    /// Up to `wanted` slots for one selector, none of them taken yet; a slot comes twice only when there are not
    /// enough different ones. Fewest leases first, then other failure domains, then the least recently granted.
    pub(super) fn pick(&self, selector: &Attributes, search: Search<'_>, wanted: usize) -> Vec<usize> {
        let Some(within) = self.sets_of(selector) else { return Vec::new() };
        let mut from = self.cursor(selector, search.target);
        let mut without: Vec<&SlotSet> = Vec::with_capacity(3);
        if !search.excluded.is_empty() {
            without.push(search.excluded);
        }
        if let Some(resting) = search.resting {
            without.extend([&resting.banned, &resting.limited]);
        }
        let filter = Filter { within, without };
        let mut picked = Vec::new();
        let (mut taken, mut used) = (SlotSet::default(), SlotSet::default());
        while picked.len() < wanted {
            let Some(mut slot) = self.best(&filter, &taken, &used, from) else { break };
            if wanted == 1 {
                return vec![slot];
            }
            if used.contains(slot) {
                // Every domain had its turn: begin another round.
                used = SlotSet::default();
                slot = self.best(&filter, &taken, &used, from).unwrap_or(slot);
            }
            picked.push(slot);
            if let Some(domain) = self.domains.set_of(slot) {
                used.add(domain);
            }
            taken.insert(slot);
            from = slot + 1;
        }
        self.repeat(picked, wanted)
    }

    /// Remembers that `slot` was granted for this.
    pub(super) fn granted(&mut self, selector: &Attributes, target: Option<&Target>, slot: usize) {
        if self.cursors.len() + 2 > MAX_CURSORS {
            self.cursors.clear();
        }
        self.cursors.insert(name_of(selector, None), slot + 1);
        if target.is_some() {
            self.cursors.insert(name_of(selector, target), slot + 1);
        }
    }

    /// Fills up with second leases on the same Proxies, the emptiest first.
    fn repeat(&self, mut picked: Vec<usize>, wanted: usize) -> Vec<usize> {
        let mut out: Vec<(usize, usize, usize)> = picked
            .iter()
            .map(|&slot| (self.proxies[slot].leases.len() + 1, self.proxies[slot].spare() - 1, slot))
            .collect();
        while picked.len() < wanted {
            let Some(next) = out.iter_mut().filter(|(_, spare, _)| *spare > 0).min_by_key(|(leases, ..)| *leases)
            else {
                break;
            };
            next.0 += 1;
            next.1 -= 1;
            picked.push(next.2);
        }
        picked
    }

    fn best(&self, filter: &Filter<'_>, taken: &SlotSet, used: &SlotSet, from: usize) -> Option<usize> {
        self.shelves
            .iter()
            .filter(|shelf| !shelf.is_empty())
            .find_map(|shelf| filter.first(shelf, &[taken], from, usize::MAX).map(|first| (shelf, first)))
            .map(|(shelf, first)| self.spread(filter, shelf, first, [taken, used], from))
    }

    /// Among equals of one shelf: a domain not used in this answer, then the domain with fewer leases. It compares a
    /// few domains, as many as there may be: the best of four is close to the best of all.
    fn spread(
        &self,
        filter: &Filter<'_>,
        shelf: &SlotSet,
        first: usize,
        [taken, used]: [&SlotSet; 2],
        from: usize,
    ) -> usize {
        let rank = |slot| (used.contains(slot), self.domains.leases_of(slot));
        let (mut best, mut best_rank, mut latest) = (first, rank(first), first);
        let nothing = SlotSet::default();
        let mut avoid = [&nothing; 2 + OTHER_DOMAINS];
        avoid[..2].copy_from_slice(&[taken, used]);
        for turn in 2..2 + OTHER_DOMAINS {
            let Some(domain) = self.domains.set_of(latest) else { break };
            if best_rank == (false, 0) || domain.len() == self.known.len() {
                break;
            }
            avoid[turn] = domain;
            let Some(next) = filter.first(shelf, &avoid, from, LOOK_FAR) else { break };
            if rank(next) < best_rank {
                (best, best_rank) = (next, rank(next));
            }
            latest = next;
        }
        best
    }

    /// The sets that a selector asks for; `None` if it names a value that nobody has.
    fn sets_of(&self, selector: &Attributes) -> Option<Vec<&SlotSet>> {
        selector.iter().map(|(name, value)| self.by_attribute.get(name)?.get(value)).collect()
    }

    fn cursor(&self, selector: &Attributes, target: Option<&Target>) -> usize {
        let known = |target| self.cursors.get(&name_of(selector, target)).copied();
        known(target).or_else(|| known(None)).unwrap_or(0)
    }
}

// --- counting --------------------------------------------------------------------------------------------------------

impl Stock {
    /// All known Proxies that any of the selectors matches, whatever their state.
    pub(super) fn matching(&self, selectors: &[Attributes]) -> SlotSet {
        let mut all = SlotSet::default();
        for sets in selectors.iter().filter_map(|selector| self.sets_of(selector)) {
            match sets.as_slice() {
                [] => return self.known.clone(),
                [one] => all.add(one),
                [one, more @ ..] => all.add(&more.iter().fold((*one).clone(), |both, set| both.and(set))),
            }
        }
        all
    }

    /// Where the Proxies of `matching` stand; `next_free_in` is left for who knows of time.
    pub(super) fn breakdown(&self, matching: &SlotSet, search: Search<'_>) -> Breakdown {
        let whole = self.count(matching, search.resting);
        let out = self.count(&matching.and(search.excluded), search.resting);
        let less = |field: fn(&Breakdown) -> usize| field(&whole) - field(&out);
        Breakdown {
            matching: whole.matching,
            healthy: less(|b| b.healthy),
            available: less(|b| b.available),
            leased_out: less(|b| b.leased_out),
            cooling_down: less(|b| b.cooling_down),
            banned_for_target: less(|b| b.banned_for_target),
            draining: less(|b| b.draining),
            provisioning: less(|b| b.provisioning),
            unhealthy: less(|b| b.unhealthy),
            excluded: out.matching,
            next_free_in: None,
        }
    }

    fn count(&self, pool: &SlotSet, resting: Option<&Resting>) -> Breakdown {
        let full = pool.and(&self.full);
        let mut free = SlotSet::default();
        for shelf in self.shelves.iter().filter(|shelf| !shelf.is_empty()) {
            free.add(&pool.and(shelf));
        }
        let resting_of = |set: &SlotSet| {
            resting.map_or((0, 0), |resting| (set.common(&resting.banned), set.common(&resting.limited)))
        };
        let ((full_banned, full_limited), (free_banned, free_limited)) = (resting_of(&full), resting_of(&free));
        let draining = pool.common(&self.draining);
        Breakdown {
            matching: pool.len(),
            healthy: full.len() + free.len() + draining,
            available: free.len() - free_banned - free_limited,
            leased_out: full.len() - full_banned - full_limited,
            cooling_down: full_limited + free_limited,
            banned_for_target: full_banned + free_banned,
            draining,
            provisioning: pool.common(&self.provisioning),
            unhealthy: pool.common(&self.unhealthy),
            excluded: 0,
            next_free_in: None,
        }
    }

    /// True if the Proxy could be granted now or after a wait: offered and not cordoned.
    pub(super) fn is_grantable(&self, slot: usize) -> bool {
        matches!(self.proxies[slot].standing, Standing::Full | Standing::Free(_))
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

/// A short name for what is searched. A collision shares a starting point, which harms nobody.
fn name_of(selector: &Attributes, target: Option<&Target>) -> u64 {
    let mut hasher = DefaultHasher::new();
    selector.hash(&mut hasher);
    target.hash(&mut hasher);
    hasher.finish()
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
