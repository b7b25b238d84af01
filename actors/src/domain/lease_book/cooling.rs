//! Which Proxy rests for which target: banned, asked for a captcha, rate limited.
//!
//! A pair goes Cooling -> Remembered -> forgotten. It is remembered for as long as it cooled, so that a ban soon after
//! the end counts as a repeat and cools twice as long. Bounded: crawlers choose the names of targets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::ask::{Target, Terms};
use super::slots::SlotSet;

/// Why a pair rests: the two that the breakdown tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    Banned,
    Limited,
}

/// One (proxy, target) pair.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cooldown {
    pub(super) strikes: u32,
    cause: Cause,
    /// The end of the rest; in the past once it is only remembered.
    pub(super) until: Instant,
    length: Duration,
    is_cooling: bool,
}

impl Cooldown {
    /// When the next thing happens to it.
    fn due(&self) -> Instant {
        if self.is_cooling { self.until } else { self.until + self.length }
    }
}

/// Who rests for one target.
#[derive(Debug, Default)]
pub(super) struct Resting {
    pub(super) banned: SlotSet,
    pub(super) limited: SlotSet,
    /// By the end of the rest.
    pub(super) ends: BTreeSet<(Instant, usize)>,
}

#[derive(Debug, Default)]
pub(super) struct Cooling {
    by_slot: HashMap<usize, BTreeMap<Target, Cooldown>>,
    by_target: HashMap<Target, Resting>,
    due: BTreeSet<(Instant, usize, Target)>,
    resting: usize,
}

impl Cooling {
    /// The pair was banned or limited. While it rests nothing changes: whoever reports then was granted before, and
    /// tells of the same incident. `None` if cooldowns are turned off.
    pub(super) fn strike(
        &mut self,
        slot: usize,
        target: &Target,
        cause: Cause,
        now: Instant,
        terms: &Terms,
    ) -> Option<Cooldown> {
        let before = self.by_slot.get(&slot).and_then(|pairs| pairs.get(target)).copied();
        if let Some(cooldown) = before.filter(|cooldown| cooldown.is_cooling) {
            return Some(cooldown);
        }
        if terms.cooldown.is_zero() {
            return None;
        }
        self.drop_pair(slot, target);
        self.make_room(slot, terms);
        let strikes = before.map_or(0, |cooldown| cooldown.strikes).saturating_add(1);
        let factor = 1_u32.checked_shl(strikes - 1).unwrap_or(u32::MAX);
        let length = terms.cooldown.saturating_mul(factor).min(terms.cooldown_cap.max(terms.cooldown));
        let cooldown = Cooldown { strikes, cause, until: now + length, length, is_cooling: true };
        self.by_slot.entry(slot).or_default().insert(target.clone(), cooldown);
        self.due.insert((cooldown.due(), slot, target.clone()));
        let resting = self.by_target.entry(target.clone()).or_default();
        match cause {
            Cause::Banned => resting.banned.insert(slot),
            Cause::Limited => resting.limited.insert(slot),
        };
        resting.ends.insert((cooldown.until, slot));
        self.resting += 1;
        Some(cooldown)
    }

    /// Ends what is over by now.
    pub(super) fn advance(&mut self, now: Instant) {
        while let Some((at, slot, target)) = self.due.first().cloned() {
            if at > now {
                return;
            }
            let Some(cooldown) = self.drop_pair(slot, &target) else { continue };
            let remembered = Cooldown { is_cooling: false, ..cooldown };
            if cooldown.is_cooling && remembered.due() > now {
                self.due.insert((remembered.due(), slot, target.clone()));
                self.by_slot.entry(slot).or_default().insert(target, remembered);
            }
        }
    }

    /// The Proxy of this slot is gone or has another address.
    pub(super) fn forget(&mut self, slot: usize) {
        let targets: Vec<Target> = self.by_slot.get(&slot).into_iter().flat_map(BTreeMap::keys).cloned().collect();
        for target in targets {
            self.drop_pair(slot, &target);
        }
    }

    pub(super) fn resting(&self, target: Option<&Target>) -> Option<&Resting> {
        self.by_target.get(target?)
    }

    /// When the rest of the pair ends, if it rests.
    pub(super) fn until(&self, slot: usize, target: Option<&Target>) -> Option<Instant> {
        let cooldown = self.by_slot.get(&slot)?.get(target?)?;
        cooldown.is_cooling.then_some(cooldown.until)
    }

    /// For how many targets one Proxy rests.
    pub(super) fn targets(&self, slot: usize) -> usize {
        self.by_slot.get(&slot).map_or(0, |rests| rests.values().filter(|cooldown| cooldown.is_cooling).count())
    }

    /// The latest end of the rests of one Proxy.
    pub(super) fn latest(&self, slot: usize) -> Option<Instant> {
        self.by_slot.get(&slot)?.values().filter(|cooldown| cooldown.is_cooling).map(|cooldown| cooldown.until).max()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, ..)| *at)
    }

    /// Pairs that rest now.
    pub(super) fn len(&self) -> usize {
        self.resting
    }

    /// Drops what ends first, of this Proxy or of all, until one more pair fits.
    fn make_room(&mut self, slot: usize, terms: &Terms) {
        while let Some(pairs) = self.by_slot.get(&slot).filter(|pairs| pairs.len() >= terms.max_cooldowns_per_proxy) {
            let Some(first) = pairs.iter().min_by_key(|(_, cooldown)| cooldown.due()).map(|(target, _)| target.clone())
            else {
                return;
            };
            self.drop_pair(slot, &first);
        }
        while self.due.len() >= terms.max_cooldowns {
            let Some((_, slot, target)) = self.due.first().cloned() else { return };
            self.drop_pair(slot, &target);
        }
    }

    fn drop_pair(&mut self, slot: usize, target: &Target) -> Option<Cooldown> {
        let pairs = self.by_slot.get_mut(&slot)?;
        let cooldown = pairs.remove(target)?;
        if pairs.is_empty() {
            self.by_slot.remove(&slot);
        }
        self.due.remove(&(cooldown.due(), slot, target.clone()));
        if cooldown.is_cooling
            && let Some(resting) = self.by_target.get_mut(target)
        {
            match cooldown.cause {
                Cause::Banned => resting.banned.remove(slot),
                Cause::Limited => resting.limited.remove(slot),
            };
            resting.ends.remove(&(cooldown.until, slot));
            if resting.ends.is_empty() {
                self.by_target.remove(target);
            }
            self.resting -= 1;
        }
        Some(cooldown)
    }
}
