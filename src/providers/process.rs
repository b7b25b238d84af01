//! Provider `process`: a real Squid child per Proxy on this machine.
//!
//! Owns the directory `<state-dir>/process/<entry>`, one folder a uid with the owner mark, the generated configuration,
//! the credentials and the logs, and the Squid processes that run on these configurations. Spoken to by the host actor
//! through [`Backend`]. Never keeps an instance in memory: every call looks at the directory and at `/proc` anew, so
//! that a restart, a kill -9 of the operator, or a second value of this type on the same directory adopts what runs.
//!
//! # Steps and cancelling
//! A call is a chain of short *steps* ([`steps`]): file work and looks at `/proc`, run on blocking threads, a bounded
//! number at once, each with a deadline that frees its caller. The directory is on a local disk; a disk that hangs
//! holds those threads and nobody else. Between the steps the call awaits timers only. A call that is dropped ends
//! after the step it is in; the *turn* of its uid is held until then, so the next call for this uid sees whole steps:
//! - the folder appears by one rename, with the mark in it, before the child starts, and goes by one rename after the
//!   child's end;
//! - start and record of the child are one step.
//!
//! # Evidence
//! A process is ours if its arguments end in `-N -n <its service name> -f <the absolute path of that configuration>`. The recorded pid and
//! start time only shorten the look. A signal goes through a pidfd whose process was looked at again: a reused pid is
//! never signalled. What cannot be read is an error, never "absent" and never "stopped".

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName, Uid};
use egress_actors::domain::instance::{Instance, InstanceSpec, Listed, OwnerMark};
use egress_actors::ports::Backend;

use crate::config::providers::ProcessEntry;
use crate::providers::squid_conf::Opening;

mod auth;
mod check;
mod create;
mod delete;
mod directory;
mod errors;
mod evidence;
mod get;
mod list;
mod mark;
mod oneshot;
mod port;
mod spawn;
mod steps;

/// What a host of this kind takes at once: a start costs 30 ms of CPU, and an end mostly waits for Squid.
pub const SLOTS: usize = 8;

/// After an effect that was not seen, the longest that a step may still be under way: its own limit.
pub const SETTLE: Duration = steps::STEP_LIMIT;

/// A Squid that does not listen by then never will.
pub const ADDRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// Squid needs about 2.5 s with `shutdown_lifetime 1 seconds`, whether it has clients or not.
const GRACE: Duration = Duration::from_secs(4);

/// The backend of one entry of type `process`, which has one host.
#[derive(Debug, Clone)]
pub struct ProcessBackend {
    site: Arc<Site>,
}

/// What all steps of one entry look at; it never changes.
#[derive(Debug)]
struct Site {
    entry: ProcessEntry,
    state_dir: PathBuf,
    /// `<state-dir>/process/<entry>`, absolute.
    base: PathBuf,
    openings: Vec<Opening>,
    grace: Duration,
    shared: Arc<steps::Shared>,
}

impl ProcessBackend {
    /// `targets` are the operator's own probe targets: allowed by themselves, beside the entry's `allowDestinations`.
    pub fn new(entry: ProcessEntry, state_dir: &Path, targets: impl IntoIterator<Item = Opening>) -> Self {
        // One spelling of the path for all time, as it is part of the evidence. A state directory that is missing now
        // is reported by each call.
        let state_dir = state_dir
            .canonicalize()
            .or_else(|_| std::path::absolute(state_dir))
            .unwrap_or_else(|_| state_dir.to_owned());
        let base = base_of(&state_dir, &entry.name);
        let openings = entry.allow_destinations.iter().copied().map(Opening::destination).chain(targets).collect();
        let shared = steps::Shared::of(&base);
        Self { site: Arc::new(Site { entry, state_dir, base, openings, grace: GRACE, shared }) }
    }

    /// How long a Squid may take to end by itself before it is killed.
    #[must_use]
    pub fn with_grace(self, grace: Duration) -> Self {
        let Site { entry, state_dir, base, openings, shared, .. } = &*self.site;
        let site = Site {
            entry: entry.clone(),
            state_dir: state_dir.clone(),
            base: base.clone(),
            openings: openings.clone(),
            grace,
            shared: Arc::clone(shared),
        };
        Self { site: Arc::new(site) }
    }

    /// One port a Proxy: the most instances that this entry can have.
    pub fn capacity(&self) -> u32 {
        u32::try_from(self.site.entry.ports.len()).unwrap_or(u32::MAX)
    }
}

/// Where all entries have their directories, and one of them has its own.
fn all_bases(state_dir: &Path) -> PathBuf {
    state_dir.join("process")
}

fn base_of(state_dir: &Path, entry: &ProviderName) -> PathBuf {
    all_bases(state_dir).join(entry.as_str())
}

impl Site {
    /// The one in which instances of that entry are, which may not be configured any more: where they are looked at and
    /// removed, and never made.
    fn of(self: &Arc<Self>, entry: &ProviderName) -> Arc<Self> {
        if *entry == self.entry.name {
            return Arc::clone(self);
        }
        let base = base_of(&self.state_dir, entry);
        Arc::new(Self {
            entry: ProcessEntry { name: entry.clone(), ..self.entry.clone() },
            state_dir: self.state_dir.clone(),
            openings: self.openings.clone(),
            grace: self.grace,
            shared: steps::Shared::of(&base),
            base,
        })
    }

    fn folder(&self, uid: &Uid) -> PathBuf {
        self.base.join(uid.as_str())
    }

    /// What a Squid of this uid was started with.
    fn conf(&self, uid: &Uid) -> PathBuf {
        self.folder(uid).join(directory::CONF)
    }
}

#[async_trait]
impl Backend for ProcessBackend {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        create::create(&self.site, spec).await
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        get::get(&self.site.of(&mark.entry), mark).await
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        delete::delete(&self.site.of(&mark.entry), mark).await
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        list::list(&self.site, operator, entry).await
    }

    async fn check(&self) -> Result<(), OpError> {
        check::check(&self.site).await
    }
}

#[cfg(test)]
mod tests;
