//! What the book says: leases, refusals with their reasons, ends, views.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ask::{Offer, Target};
use crate::domain::id::{LeaseId, ProxyKey, Uid};

/// The right to use a Proxy until `expires`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    /// Fencing number: grows with each grant of this Proxy.
    pub generation: u64,
    /// The Proxy as it was offered when it was granted: a later address is another incarnation's.
    pub proxy: Arc<Offer>,
    pub target: Option<Target>,
    pub owner: Option<Arc<str>>,
    /// The name of the token that asked.
    pub token: Arc<str>,
    /// Which selector of the ask was met.
    pub selector: usize,
    pub issued: Instant,
    pub expires: Instant,
    /// After it the holder should renew: half of the TTL.
    pub renew_after: Duration,
    pub state: LeaseState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    Active,
    /// The Proxy is cordoned: finish, by then if it says so.
    Draining {
        by: Option<Instant>,
    },
}

/// The leases of one ask, all by one selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    pub leases: Vec<Lease>,
    pub selector: usize,
}

/// Why nothing was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No known Proxy matches any selector, whatever its state.
    NoSuchSelector,
    NoneAvailable(Breakdown),
}

/// Where the Proxies stand that match any of the selectors; each is counted once.
///
/// `matching = healthy + provisioning + unhealthy + excluded`, and
/// `healthy = available + leased_out + cooling_down + banned_for_target + draining`.
/// A Proxy that is both leased out and cooled is counted as cooled: its lease's end would not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breakdown {
    pub matching: usize,
    pub healthy: usize,
    pub available: usize,
    pub leased_out: usize,
    /// Rate limited by the target.
    pub cooling_down: usize,
    /// Banned by the target, or asked for a captcha.
    pub banned_for_target: usize,
    pub draining: usize,
    pub provisioning: usize,
    pub unhealthy: usize,
    /// Left out because the ask says so.
    pub excluded: usize,
    /// Until the first of the leased out and cooled is free again, if nobody renews.
    pub next_free_in: Option<Duration>,
}

/// What an ask would get, with no lease taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    pub verdict: Verdict,
    pub breakdown: Breakdown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    WouldGrant { selector: usize },
    NoneAvailable,
    NoSuchSelector,
}

/// How and when a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    pub how: EndedBy,
    pub when: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndedBy {
    Expired,
    Released,
    /// The Proxy is gone, or its name belongs to another one now.
    ProxyRemoved,
    /// The Proxy is there, and reached in another way: its instance was made anew, its address or credentials changed.
    ProxyReplaced,
}

impl EndedBy {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Released => "released",
            Self::ProxyRemoved => "proxy_removed",
            Self::ProxyReplaced => "proxy_replaced",
        }
    }
}

/// The fact that a lease ended, for whoever records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub id: LeaseId,
    pub generation: u64,
    pub key: ProxyKey,
    pub uid: Uid,
    pub owner: Option<Arc<str>>,
    pub token: Arc<str>,
    pub gone: Gone,
}

/// Why a lease cannot be renewed, reported on or shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotHeld {
    /// Never granted, or forgotten.
    Unknown,
    Gone(Gone),
    GenerationMismatch {
        held: u64,
    },
}

/// Releasing is idempotent: none of these is a failure of the caller's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Release {
    Released(Ended),
    AlreadyGone(Gone),
    Unknown,
}

/// What followed from a report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reported {
    pub cooled: Option<Cooled>,
    /// Ask the prober to look at this Proxy now.
    pub look_now: Option<LookNow>,
    pub ended: Option<Ended>,
}

/// The pair (proxy, target) rests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cooled {
    pub key: ProxyKey,
    pub uid: Uid,
    pub target: Target,
    pub until: Instant,
    /// How many times in a row.
    pub strikes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookNow {
    pub key: ProxyKey,
    pub uid: Uid,
}

/// One Proxy as the book sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyView {
    pub uid: Uid,
    pub offered: bool,
    pub cordoned: bool,
    pub leases: usize,
    pub capacity: u32,
    /// For so many targets it rests. For all others it is free.
    pub cooling_targets: usize,
    /// When the last of those rests ends.
    pub cooldown_until: Option<Instant>,
}

/// Numbers of the whole book.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    pub leases_active: usize,
    /// Held on a cordoned Proxy.
    pub leases_draining: usize,
    pub known: usize,
    pub offered: usize,
    /// (proxy, target) pairs that rest now.
    pub cooldowns: usize,
    /// Ended leases still remembered.
    pub remembered: usize,
}
