//! Both clocks in one reading.

use std::time::{Instant, SystemTime};

use crate::domain::clock::Now;

/// Where readings come from.
#[derive(Debug, Clone, Copy, Default)]
pub enum Clock {
    /// The runtime's monotonic clock and the machine's wall clock.
    #[default]
    System,
    /// The wall clock moves with the runtime's: for tests under a paused clock.
    Derived { mono: Instant, wall: SystemTime },
}

impl Clock {
    /// A derived clock that begins now.
    pub fn derived() -> Self {
        let now = Self::System.now();
        Self::Derived { mono: now.mono, wall: now.wall }
    }

    pub fn now(self) -> Now {
        let mono = tokio::time::Instant::now().into_std();
        match self {
            Self::System => Now { mono, wall: SystemTime::now() },
            Self::Derived { mono: start, wall } => Now { mono, wall: wall + mono.saturating_duration_since(start) },
        }
    }
}
