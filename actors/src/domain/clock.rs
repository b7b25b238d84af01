//! Time as a value: one reading of the two clocks.
//!
//! Decisions use the monotonic clock only, so that a step of the wall clock neither ends nor prolongs a lease
//! (fault 138). The wall clock is for what people and files read.

use std::time::{Duration, Instant, SystemTime};

/// One reading of both clocks, taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic: for deadlines, expiries, backoff.
    pub mono: Instant,
    /// Wall: for display and for what outlives the process.
    pub wall: SystemTime,
}

impl Now {
    /// This reading moved forward by `by` on both clocks.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self { mono: self.mono + by, wall: self.wall + by }
    }

    /// The wall time at which the monotonic instant `at` will be, or was, reached.
    #[must_use]
    pub fn wall_at(self, at: Instant) -> SystemTime {
        if at >= self.mono { self.wall + (at - self.mono) } else { self.wall - (self.mono - at) }
    }

    /// Time left until `at`; zero once it has passed.
    #[must_use]
    pub fn until(self, at: Instant) -> Duration {
        at.saturating_duration_since(self.mono)
    }
}
