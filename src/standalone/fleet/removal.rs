//! When a manifest that is gone counts as removed.
//!
//! After two looks, a while apart. Not if too many are gone at once: more than two, and more than half of the fleet as
//! it was, counting what is absent now and what was removed within the last minute (so that a slow `rm` is seen as
//! one). One more that goes while they are away is held back with them, however late: a directory that goes on shrinking
//! looks the same. What was held back stays so until its manifest is back, or the operator is started with `--allow-mass-removal`;
//! the store remembers it over a restart.
//! An unmounted, emptied or half-copied directory thus costs nothing.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use egress_actors::domain::id::ProxyKey;

/// So many may go at once in any fleet, however small.
const ALWAYS_ALLOWED: usize = 2;

/// Removals within this time belong together.
const AT_ONCE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(super) struct Removals {
    after: Duration,
    allow_mass: bool,
    recent: VecDeque<Instant>,
    held: BTreeSet<ProxyKey>,
    /// How many were removed shortly before the first of `held` was.
    removed_before: usize,
    live: usize,
}

/// What is absent and kept all the same, for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::standalone) struct HeldBack {
    pub(in crate::standalone) proxies: Vec<ProxyKey>,
    live: usize,
    removed_before: usize,
}

impl Removals {
    /// `held`: what an earlier operator held back. It may go with `allow_mass`.
    pub(super) fn new(after: Duration, allow_mass: bool, held: BTreeSet<ProxyKey>) -> Self {
        let held = if allow_mass { BTreeSet::new() } else { held };
        Self { after, allow_mass, recent: VecDeque::new(), held, removed_before: 0, live: 0 }
    }

    /// Which of the absent objects are removed now. `live` counts all objects that are not deleting, absent or not.
    pub(super) fn due(&mut self, live: usize, absent: &[(ProxyKey, Instant)], now: Instant) -> Vec<ProxyKey> {
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > AT_ONCE) {
            self.recent.pop_front();
        }
        self.live = live;
        let fleet = live + self.recent.len();
        let gone = absent.len() + self.recent.len();
        let absent_keys: BTreeSet<_> = absent.iter().map(|(key, _)| key).collect();
        self.held.retain(|key| absent_keys.contains(key));
        if !self.allow_mass && gone > ALWAYS_ALLOWED && 2 * gone > fleet {
            if self.held.is_empty() {
                self.removed_before = self.recent.len();
            }
            self.held.extend(absent.iter().map(|(key, _)| key.clone()));
        }
        let due: Vec<_> = absent
            .iter()
            .filter(|(key, since)| !self.held.contains(key) && now.duration_since(*since) >= self.after)
            .map(|(key, _)| key.clone())
            .collect();
        self.recent.extend(due.iter().map(|_| now));
        due
    }

    /// The last removals did not happen.
    pub(super) fn forget(&mut self) {
        self.recent.clear();
    }

    pub(super) fn holds(&self, key: &ProxyKey) -> bool {
        self.held.contains(key)
    }

    pub(super) fn held_back(&self) -> Option<HeldBack> {
        (!self.held.is_empty()).then(|| HeldBack {
            proxies: self.held.iter().cloned().collect(),
            live: self.live,
            removed_before: self.removed_before,
        })
    }
}

impl HeldBack {
    /// At most so many are named.
    const NAMED: usize = 10;

    pub(in crate::standalone) fn names(&self) -> String {
        let named: Vec<_> = self.proxies.iter().take(Self::NAMED).map(|key| format!("`{key}`")).collect();
        match self.proxies.len().saturating_sub(Self::NAMED) {
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.proxies.len();
        let (has, its, manifests) = if held == 1 { ("has", "its", "manifest") } else { ("have", "their", "manifests") };
        let proxies = if self.live == 1 { "Proxy" } else { "Proxies" };
        write!(f, "{held} of {} {proxies} ({}) {has} no manifest any more", self.live, self.names())?;
        match self.removed_before {
            0 => {}
            1 => f.write_str(", after 1 other was removed within a minute")?,
            others => write!(f, ", after {others} others were removed within a minute")?,
        }
        write!(
            f,
            "; {its} removal is held back, and so is that of each that goes meanwhile: put the {manifests} back, or restart \
             with --allow-mass-removal"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(n: usize) -> Vec<ProxyKey> {
        (0..n).map(|i| ProxyKey::new("crawl", &format!("px-{i}")).unwrap()).collect()
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn held(removals: &Removals) -> Option<(usize, usize)> {
        removals.held_back().map(|held| (held.proxies.len(), held.live))
    }

    #[test]
    fn what_is_held_back_is_told_by_number_and_name() {
        let told = |held, live, removed_before| HeldBack { proxies: keys(held), live, removed_before }.to_string();
        for (held, live, before, expect) in [
            (
                3,
                4,
                0,
                "3 of 4 Proxies (`crawl/px-0`, `crawl/px-1`, `crawl/px-2`) have no manifest any more; their removal",
            ),
            (
                1,
                4,
                2,
                "1 of 4 Proxies (`crawl/px-0`) has no manifest any more, after 2 others were removed within a minute; its",
            ),
            (
                1,
                1,
                1,
                "1 of 1 Proxy (`crawl/px-0`) has no manifest any more, after 1 other was removed within a minute; its",
            ),
        ] {
            let told = told(held, live, before);
            assert!(told.starts_with(expect), "{told}");
            assert!(told.ends_with("back, or restart with --allow-mass-removal"), "{told}");
        }
        let told = told(12, 12, 0);
        assert!(told.contains("`crawl/px-9` and 2 more) have"), "{told}");
    }

    #[test]
    fn more_than_half_of_a_fleet_is_held_back_and_less_is_removed() {
        for (live, absent, expect_removed) in [
            (1, 1, true),
            (2, 2, true),
            (3, 2, true),
            (3, 3, false),
            (4, 3, false),
            (5, 3, false),
            (6, 3, true),
            (1000, 500, true),
            (1000, 501, false),
            (1000, 1000, false),
        ] {
            let start = Instant::now();
            let gone: Vec<_> = keys(absent).into_iter().map(|key| (key, start)).collect();
            let mut removals = Removals::new(seconds(2), false, BTreeSet::new());
            assert_eq!(removals.due(live, &gone, start).len(), 0, "one look is not enough");
            let due = removals.due(live, &gone, start + seconds(2)).len();
            assert_eq!(due, if expect_removed { absent } else { 0 }, "{absent} of {live}");
            assert_eq!(held(&removals), (!expect_removed).then_some((absent, live)));
            let mut allowed = Removals::new(seconds(2), true, BTreeSet::new());
            allowed.due(live, &gone, start);
            assert_eq!(allowed.due(live, &gone, start + seconds(2)).len(), absent);
            assert_eq!(allowed.held_back(), None);
        }
    }

    #[test]
    fn a_slow_removal_counts_as_one() {
        let start = Instant::now();
        let mut removals = Removals::new(seconds(2), false, BTreeSet::new());
        let all = keys(10);
        let mut removed = Vec::new();
        // One manifest a second vanishes.
        for second in 0..20 {
            let now = start + seconds(second);
            let absent: Vec<_> = all
                .iter()
                .enumerate()
                .take(usize::try_from(second).unwrap())
                .filter(|(_, key)| !removed.contains(*key))
                .map(|(i, key)| (key.clone(), start + seconds(i as u64 + 1)))
                .collect();
            removed.extend(removals.due(all.len() - removed.len(), &absent, now));
        }
        assert!((1..=5).contains(&removed.len()), "{} were removed", removed.len());
        assert_eq!(held(&removals), Some((10 - removed.len(), 10 - removed.len())));
        let told = removals.held_back().unwrap().to_string();
        assert!(told.contains(&format!(" any more, after {} others were removed", removed.len())), "{told}");
    }

    #[test]
    fn one_more_that_goes_while_most_are_away_is_held_back_with_them() {
        let (start, late) = (Instant::now(), Instant::now() + seconds(600));
        let mut removals = Removals::new(seconds(2), false, BTreeSet::new());
        let mut gone: Vec<_> = keys(5).into_iter().map(|key| (key, start)).collect();
        let last = gone.pop().unwrap().0;
        assert_eq!(removals.due(6, &gone, start), []);
        gone.push((last.clone(), late));
        assert_eq!(removals.due(6, &gone, late + seconds(600)), []);
        assert_eq!(held(&removals), Some((5, 6)));
        // The others are back: it is one by itself again, and still nobody has said that it may go.
        assert_eq!(removals.due(6, &gone[4..], late + seconds(601)), []);
        assert_eq!(removals.due(6, &[], late + seconds(602)), []);
        assert_eq!(removals.due(6, &[(last.clone(), late + seconds(603))], late + seconds(605)), [last]);
    }

    #[test]
    fn what_is_held_back_stays_so_until_it_is_back() {
        let start = Instant::now();
        let mut removals = Removals::new(seconds(2), false, BTreeSet::new());
        let gone: Vec<_> = keys(3).into_iter().map(|key| (key, start)).collect();
        assert_eq!(removals.due(4, &gone, start), []);
        // One is put back: the two others would be few enough by themselves, but nobody has said so.
        assert_eq!(removals.due(4, &gone[..2], start + seconds(600)), []);
        assert_eq!(held(&removals), Some((2, 4)));
        assert_eq!(removals.due(4, &[], start + seconds(601)), []);
        assert_eq!(removals.held_back(), None);
        assert_eq!(removals.due(4, &gone[..1], start + seconds(602)).len(), 1);
    }
}
