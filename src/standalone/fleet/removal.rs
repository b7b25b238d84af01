//! When a manifest that is gone counts as removed.
//!
//! After two looks, a while apart. Not if too many are gone at once: more than two, and more than half of the fleet as
//! it was, counting what is absent now and what was removed within the last minute (so that a slow `rm` is seen as
//! one). One more that goes while they are away is held back with them, however late: a directory that goes on shrinking
//! looks the same. What was held back stays so until its manifest is back, or the operator is started with `--allow-mass-removal`.
//! An unmounted, emptied or half-copied directory thus costs nothing.

use std::collections::{BTreeSet, VecDeque};
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
    fleet: usize,
}

impl Removals {
    pub(super) fn new(after: Duration, allow_mass: bool) -> Self {
        Self { after, allow_mass, recent: VecDeque::new(), held: BTreeSet::new(), fleet: 0 }
    }

    /// Which of the absent objects are removed now. `live` counts all objects that are not deleting, absent or not.
    pub(super) fn due(&mut self, live: usize, absent: &[(ProxyKey, Instant)], now: Instant) -> Vec<ProxyKey> {
        while self.recent.front().is_some_and(|at| now.duration_since(*at) > AT_ONCE) {
            self.recent.pop_front();
        }
        self.fleet = live + self.recent.len();
        let gone = absent.len() + self.recent.len();
        let absent_keys: BTreeSet<_> = absent.iter().map(|(key, _)| key).collect();
        self.held.retain(|key| absent_keys.contains(key));
        if !self.allow_mass && gone > ALWAYS_ALLOWED && 2 * gone > self.fleet {
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

    pub(super) fn held_back(&self) -> Option<(usize, usize)> {
        (!self.held.is_empty()).then_some((self.held.len(), self.fleet))
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
            let mut removals = Removals::new(seconds(2), false);
            assert_eq!(removals.due(live, &gone, start).len(), 0, "one look is not enough");
            let due = removals.due(live, &gone, start + seconds(2)).len();
            assert_eq!(due, if expect_removed { absent } else { 0 }, "{absent} of {live}");
            assert_eq!(removals.held_back(), (!expect_removed).then_some((absent, live)));
            let mut allowed = Removals::new(seconds(2), true);
            allowed.due(live, &gone, start);
            assert_eq!(allowed.due(live, &gone, start + seconds(2)).len(), absent);
            assert_eq!(allowed.held_back(), None);
        }
    }

    #[test]
    fn a_slow_removal_counts_as_one() {
        let start = Instant::now();
        let mut removals = Removals::new(seconds(2), false);
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
        assert_eq!(removals.held_back(), Some((10 - removed.len(), 10)));
    }

    #[test]
    fn one_more_that_goes_while_most_are_away_is_held_back_with_them() {
        let (start, late) = (Instant::now(), Instant::now() + seconds(600));
        let mut removals = Removals::new(seconds(2), false);
        let mut gone: Vec<_> = keys(5).into_iter().map(|key| (key, start)).collect();
        let last = gone.pop().unwrap().0;
        assert_eq!(removals.due(6, &gone, start), []);
        gone.push((last.clone(), late));
        assert_eq!(removals.due(6, &gone, late + seconds(600)), []);
        assert_eq!(removals.held_back(), Some((5, 6)));
        // The others are back: it is one by itself again, and still nobody has said that it may go.
        assert_eq!(removals.due(6, &gone[4..], late + seconds(601)), []);
        assert_eq!(removals.due(6, &[], late + seconds(602)), []);
        assert_eq!(removals.due(6, &[(last.clone(), late + seconds(603))], late + seconds(605)), [last]);
    }

    #[test]
    fn what_is_held_back_stays_so_until_it_is_back() {
        let start = Instant::now();
        let mut removals = Removals::new(seconds(2), false);
        let gone: Vec<_> = keys(3).into_iter().map(|key| (key, start)).collect();
        assert_eq!(removals.due(4, &gone, start), []);
        // One is put back: the two others would be few enough by themselves, but nobody has said so.
        assert_eq!(removals.due(4, &gone[..2], start + seconds(600)), []);
        assert_eq!(removals.held_back(), Some((2, 4)));
        assert_eq!(removals.due(4, &[], start + seconds(601)), []);
        assert_eq!(removals.held_back(), None);
        assert_eq!(removals.due(4, &gone[..1], start + seconds(602)).len(), 1);
    }
}
