//! Delays between attempts: capped exponential with jitter.
//!
//! The jitter is drawn from a seed that the caller gives, so that a decision stays a function of its arguments and the
//! actors of one host, seeded by their uids, do not come back all at once.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// How long to wait before the next attempt; each call of [`Backoff::next`] counts one failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// In milliseconds: every Proxy has several of these.
    base: u32,
    cap: u32,
    failures: u32,
}

impl Backoff {
    /// The first delay is about `base`, none is longer than `cap`. Both in whole milliseconds, and at most 49 days.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { base: millis(base), cap: millis(cap), failures: 0 }
    }

    /// Counts a failure and says how long to wait: between half and the whole of `base * 2^failures`, at most `cap`.
    pub fn next(&mut self, seed: u64) -> Duration {
        let doubled = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let whole = Duration::from_millis(self.base.saturating_mul(doubled).min(self.cap).into());
        let mut rng = SmallRng::seed_from_u64(seed ^ u64::from(self.failures).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.failures = self.failures.saturating_add(1);
        whole.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// It worked: the next failure starts at `base` again.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn every_delay_is_within_half_and_whole_of_the_doubled_base_and_under_the_cap(
            seed: u64, base in 1_u64..5_000, cap in 1_u64..500_000, failures in 0_usize..80,
        ) {
            let (base, cap) = (Duration::from_millis(base), Duration::from_millis(cap));
            let mut backoff = Backoff::new(base, cap);
            let mut whole = base;
            for _ in 0..failures {
                let delay = backoff.next(seed);
                let bound = whole.min(cap);
                prop_assert!(delay <= bound && delay >= bound / 2, "{delay:?} of {bound:?}");
                whole = whole.saturating_mul(2);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_delays_and_another_seed_gives_others() {
        let delays = |seed| {
            let mut backoff = Backoff::new(SECOND, SECOND * 60);
            (0..6).map(|_| backoff.next(seed)).collect::<Vec<_>>()
        };
        assert_eq!(delays(1), delays(1));
        assert_ne!(delays(1), delays(2));
    }

    #[test]
    fn a_reset_starts_at_the_base_again() {
        let mut backoff = Backoff::new(SECOND, SECOND * 60);
        for _ in 0..5 {
            backoff.next(7);
        }
        backoff.reset();
        assert!(backoff.next(7) <= SECOND);
    }
}
