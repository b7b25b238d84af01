//! The whole life of one Proxy as one function: what is wanted and what was seen go in, the next step comes out.
//!
//! ```text
//! managed   Reserve -> Adopt (finalizer + host, then *seen* on the object) -> Get -> Create -> address -> track
//!           -> healthy -> offer        stopped, gone, recreate: withdraw -> drain -> Delete -> seen gone -> Create
//! external  secrets -> track -> healthy -> offer
//! deletion  withdraw -> drain -> Delete -> seen gone -> Release;   given up: acked event -> Release
//! ```
//!
//! The `proxy` actor drives it: every message becomes one `on_*` of [`Observed`], then [`plan`] is asked, then
//! [`Observed::on_planned`] is told that the step has begun. Nothing here waits, reads a clock or touches the world, and
//! `plan` asked twice says the same. At most one backend operation runs at a time. An ended operation is not an ended
//! effect: what was cut short is looked for before anything is concluded (design.md 4).
//!
//! Never: a create without finalizer and host seen on the object; a delete on another host than the recorded one; a
//! released finalizer while an instance may still appear, unless it was given up and the event about that was written.

mod ending;
mod facts;
mod making;
mod observed;
mod outcomes;
mod telling;
mod tries;
mod view;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Now;
use super::desired::{Desired, Endpoint};
use super::id::HostName;
use super::instance::Credentials;
use super::lease_book::Cordon;
use super::reason::Reason;
use super::status::Status;
use view::View;

pub use facts::{HostFacts, ProviderFacts, ProviderSeen, SecretsRead};
pub use observed::Observed;
pub use tries::Task;

/// What is the same for every Proxy of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How long a deletion or a replacement waits for leases (`--drain-timeout`).
    pub drain_timeout: Duration,
    /// How often each host is listed; how long a Proxy recorded as provisioned waits for the list before it looks itself.
    pub list_interval: Duration,
    /// First and longest delay after failures.
    pub retry: (Duration, Duration),
    /// First and longest delay between looks at an instance that is coming or going.
    pub poll: (Duration, Duration),
    /// A permanent failure is looked at again after this, as what was wrong outside tells nobody when it is put right.
    pub reevaluate_after: Duration,
    /// A backend that takes longer to remove an instance is told of; and so long a deletion goes on without a look that can
    /// answer, once the backend has accepted it.
    pub removed_within: Duration,
    /// A write to the object that no later look has shown by then is made again.
    pub seen_within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            drain_timeout: Duration::ZERO,
            list_interval: secs(15),
            retry: (secs(1), secs(120)),
            poll: (secs(1), secs(15)),
            reevaluate_after: secs(600),
            removed_within: secs(120),
            seen_within: secs(15),
        }
    }
}

/// What to do now, what to be, and what to tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The one thing to start now.
    pub step: Step,
    /// The running backend operation is not wanted any more: cut it short. Its outcome is still awaited.
    pub cancel: bool,
    /// When to ask again though nothing has happened.
    pub wake: Option<Instant>,
    pub serving: Serving,
    /// What the probe pool is to track; `None`: nothing.
    pub track: Option<Track>,
    /// Not to be granted, though it may be offered, and until when its holders have it: the drain annotation is set, or
    /// a deletion or a replacement waits for them.
    pub cordon: Option<Cordon>,
    /// The whole status that we own; written when it [differs](Status::differs_from) from the one written before.
    pub status: Arc<Status>,
    /// Events about transitions, each told once.
    pub notices: Vec<Notice>,
}

/// One thing to start. Each but `Nothing` and `Done` ends in exactly one `on_*` of [`Observed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Ask the provider for a host: `on_reserved`.
    ReserveHost,
    /// Write the finalizer and the host onto the object in one patch: `on_adopted`.
    RecordFinalizer {
        host: HostName,
    },
    /// Read the credentials and, where it is in a Secret, the user data: `on_secrets`.
    ReadSecrets,
    /// `on_get`.
    Get {
        host: HostName,
    },
    /// With the owner mark in the same call: `on_create`.
    Create {
        host: HostName,
    },
    /// `on_delete`. The reason says what for.
    Delete {
        host: HostName,
        why: Reason,
    },
    /// Write this Warning and wait until it is written: `on_given_up`.
    EmitGivenUp {
        reason: Reason,
        note: String,
    },
    /// Drop our finalizer: `on_released`.
    ReleaseFinalizer,
    /// The object is being deleted and nothing of ours is left. Another owner's finalizer may keep the object for a while;
    /// should ours show up late, the next plan goes on.
    Done,
}

/// How the proxy is reached. Credentials never show in `Debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub endpoint: Endpoint,
    pub credentials: Option<Credentials>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    Offer(Route),
    /// Recorded Ready before a restart, and its credentials are about to be read: neither offer nor withdraw. What a
    /// surviving registry has of it goes on.
    AsBefore,
    /// Not to be leased.
    Withdraw {
        reason: Reason,
        /// What is leased is gone or about to go, and does not come back: leases that are out end. Else they go on, as the
        /// instance may be well again in a moment, or is waited for until it is drained.
        ends_leases: bool,
    },
}

impl Serving {
    /// Leases may be out, or be granted at any moment.
    pub const fn is_on(&self) -> bool {
        match self {
            Self::Offer(_) | Self::AsBefore => true,
            Self::Withdraw { .. } => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    pub route: Route,
    /// Offered on the word of the recorded status: probe it first, and start with
    /// [`Streak::presumed_healthy`](super::health::Streak::presumed_healthy).
    pub presumed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// Something worth an event on the object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub severity: Severity,
    pub reason: Reason,
    pub note: Arc<str>,
}

/// What is to be done, before it is put into words.
#[derive(Debug)]
struct Intent {
    step: Step,
    cancel: bool,
    wake: Wake,
    serving: Serving,
    track: Option<Track>,
    /// The instance is to be, or is being, made anew.
    replacing: Option<Reason>,
    cordon: Option<Cordon>,
}

/// The earliest of several instants.
#[derive(Debug, Default, Clone, Copy)]
struct Wake(Option<Instant>);

impl Wake {
    fn at(&mut self, at: Instant) {
        self.0 = Some(self.0.map_or(at, |before| before.min(at)));
    }
}

/// What comes next in the life of this Proxy.
pub fn plan(desired: &Desired, seen: &Observed, settings: &Settings, now: Now) -> Plan {
    let view = View { desired, seen, settings, now };
    let intent = if desired.deleting { ending::intent(&view) } else { making::intent(&view) };
    let status = Arc::new(telling::status(&view, &intent));
    let notices = telling::notices(seen.told(), &status);
    Plan {
        step: intent.step,
        cancel: intent.cancel,
        wake: intent.wake.0,
        serving: intent.serving,
        track: intent.track,
        cordon: intent.cordon,
        status,
        notices,
    }
}
