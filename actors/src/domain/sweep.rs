//! Which instances of ours have no Proxy, and which of them may be deleted now. Pure.
//!
//! ```text
//!   listed, and its uid does not live --> SeenOnce --> seen again by the next complete sweep --> Young --> Ripe
//!        '-- its uid lives, an operation runs for it, or a complete list is without it --> forgotten
//! ```
//!
//! Nothing is concluded from a list that failed: the caller does not come here with one. And nothing from what the fleet
//! does not know: there is a [`Roll`] only after a complete list of all Proxies (fault 118). What is ripe here is still
//! asked for by its uid at the source, and its mark is read again by the delete itself.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Now;
use super::id::Uid;
use super::instance::{Listed, OwnerMark};

/// Who lives, as the fleet knows it after a complete list of the Proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roll {
    /// The incarnation of the fleet that says so. Another one has heard of the Proxies anew.
    pub epoch: u64,
    pub uids: HashSet<Uid>,
}

/// When an instance without a Proxy is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// What is younger may be an instance whose Proxy we have not heard of (fault 117).
    pub min_age: Duration,
    /// Deletions in one sweep of an entry; none at all if 0.
    pub max_deletes: usize,
    /// Only tell.
    pub dry_run: bool,
    /// Only Proxies of this namespace are known to us, so that nothing can be said about the instances of others.
    pub namespace: Option<Arc<str>>,
}

impl Terms {
    fn can_judge(&self, mark: &OwnerMark) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| mark.key.namespace() == &**namespace)
    }
}

/// An instance of ours without a Proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Orphan {
    pub mark: OwnerMark,
    /// The backend's own name of it.
    pub provider_id: Arc<str>,
    /// How old it is as far as is known: by the backend, or since it was first seen here.
    pub age: Duration,
    pub verdict: Verdict,
    /// Deletions of it that failed.
    pub failed: u32,
}

/// Whether an orphan may be deleted now. In the order in which it gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// It was no orphan in the complete sweep before this one.
    SeenOnce,
    /// Younger than [`Terms::min_age`].
    Young,
    /// It may be deleted, if its Proxy is not found by a live look either.
    Ripe,
}

impl Verdict {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SeenOnce => "SeenOnce",
            Self::Young => "Young",
            Self::Ripe => "Ripe",
        }
    }
}

/// What the sweeps of one host have seen so far.
#[derive(Debug, Default)]
pub struct Suspects {
    epoch: Option<u64>,
    seen: HashMap<OwnerMark, Suspect>,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    first_seen: Instant,
    /// Complete sweeps in a row that found it an orphan, this one included.
    sweeps: u32,
    failed: u32,
}

impl Suspects {
    /// Judges one complete list of a host. `busy`: an operation for this uid runs or waits there, so that its instance
    /// comes or goes. Those whose deletion failed less often come first, and of them the oldest.
    pub fn judge(
        &mut self,
        listed: &[Listed],
        roll: &Roll,
        busy: &HashSet<Uid>,
        terms: &Terms,
        now: Now,
    ) -> Vec<Orphan> {
        let mut before = std::mem::take(&mut self.seen);
        if self.epoch.replace(roll.epoch) != Some(roll.epoch) {
            // What an earlier fleet did not know says nothing about this one: "in a row" begins anew.
            for suspect in before.values_mut() {
                suspect.sweeps = 0;
            }
        }
        let mut orphans = Vec::new();
        for Listed { mark, instance } in listed {
            let lives = roll.uids.contains(&mark.uid) || busy.contains(&mark.uid);
            if lives || !terms.can_judge(mark) || self.seen.contains_key(mark) {
                continue;
            }
            let mut suspect = before.remove(mark).unwrap_or(Suspect { first_seen: now.mono, sweeps: 0, failed: 0 });
            suspect.sweeps = suspect.sweeps.saturating_add(1);
            self.seen.insert(mark.clone(), suspect);
            // One from the future is as old as we know it to be: one of two clocks is wrong.
            let known_for = now.mono.saturating_duration_since(suspect.first_seen);
            let told = instance.created_at.and_then(|created| now.wall.duration_since(created).ok());
            let age = told.unwrap_or(known_for);
            let verdict = match suspect.sweeps {
                0 | 1 => Verdict::SeenOnce,
                _ if age < terms.min_age => Verdict::Young,
                _ => Verdict::Ripe,
            };
            let (mark, provider_id) = (mark.clone(), instance.provider_id.clone());
            orphans.push(Orphan { mark, provider_id, age, verdict, failed: suspect.failed });
        }
        // What cannot be deleted must not use up the cap for ever: it comes after all that was not tried so often.
        let order = |orphan: &Orphan| (orphan.failed, Reverse(orphan.age));
        orphans.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.mark.key.cmp(&b.mark.key)));
        orphans
    }

    /// It could not be deleted.
    pub fn failed(&mut self, mark: &OwnerMark) {
        if let Some(suspect) = self.seen.get_mut(mark) {
            suspect.failed = suspect.failed.saturating_add(1);
        }
    }

    /// Its Proxy was found after all, or somebody else's mark is on it: it begins anew.
    pub fn forget(&mut self, mark: &OwnerMark) {
        self.seen.remove(mark);
    }
}

/// Deletions of the latest sweep of an entry, whichever of its hosts they were on.
#[derive(Debug, Default)]
pub struct Spent(VecDeque<Instant>);

impl Spent {
    /// How many more there may be now, of at most `most` within `per`.
    pub fn left(&mut self, most: usize, per: Duration, now: Instant) -> usize {
        while self.0.front().is_some_and(|at| now.saturating_duration_since(*at) >= per) {
            self.0.pop_front();
        }
        most.saturating_sub(self.0.len())
    }

    pub fn spend(&mut self, now: Instant) {
        self.0.push_back(now);
    }
}

#[cfg(test)]
mod tests;
