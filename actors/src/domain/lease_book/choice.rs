//! Which Proxies to hand out, and how many stand where: the questions that are asked of the stock.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::answer::Breakdown;
use super::ask::Target;
use super::cooling::Resting;
use super::slots::{Filter, SlotSet};
use super::stock::Stock;
use crate::domain::desired::Attributes;

/// Starting points of so many (selector, target) pairs are kept: losing them costs evenness only.
const MAX_CURSORS: usize = 65_536;

/// How many other failure domains are looked at before one is chosen, and how far (in steps of 512 Proxies).
const OTHER_DOMAINS: usize = 3;
const LOOK_FAR: usize = 16;

/// What one search is about, beside the selector.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) target: Option<&'a Target>,
    pub(super) resting: Option<&'a Resting>,
    pub(super) excluded: &'a SlotSet,
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
        let mut out: Vec<(usize, usize, usize)> =
            picked.iter().map(|&slot| (self.get(slot).leases.len() + 1, self.get(slot).spare() - 1, slot)).collect();
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
                [one, two, more @ ..] => all.add(&more.iter().fold(one.and(two), |both, set| both.and(set))),
            }
        }
        all
    }

    /// Where the Proxies of `matching` stand; `next_free_in` is left for who knows of time.
    pub(super) fn breakdown(&self, matching: &SlotSet, search: Search<'_>) -> Breakdown {
        let whole = self.count(matching, search.resting);
        if search.excluded.is_empty() {
            return whole;
        }
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
        let full_and_free = |set: &SlotSet| {
            let free: usize = self.shelves.iter().map(|shelf| set.common(shelf)).sum();
            (set.common(&self.full), free)
        };
        let resting =
            |set: fn(&Resting) -> &SlotSet| resting.map_or((0, 0), |resting| full_and_free(&pool.and(set(resting))));
        let (full, free) = full_and_free(pool);
        let (full_banned, free_banned) = resting(|resting| &resting.banned);
        let (full_limited, free_limited) = resting(|resting| &resting.limited);
        let draining = pool.common(&self.draining);
        Breakdown {
            matching: pool.len(),
            healthy: full + free + draining,
            available: free - free_banned - free_limited,
            leased_out: full - full_banned - full_limited,
            cooling_down: full_limited + free_limited,
            banned_for_target: full_banned + free_banned,
            draining,
            provisioning: pool.common(&self.provisioning),
            unhealthy: pool.common(&self.unhealthy),
            excluded: 0,
            next_free_in: None,
        }
    }
}

/// A short name for what is searched. A collision shares a starting point, which harms nobody.
fn name_of(selector: &Attributes, target: Option<&Target>) -> u64 {
    let mut hasher = DefaultHasher::new();
    selector.hash(&mut hasher);
    target.hash(&mut hasher);
    hasher.finish()
}
