//! The kinds of facts that [`Observed`](super::Observed) is made of: values only, nothing happens here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tries::Task;
use crate::domain::error::OpError;
use crate::domain::id::HostName;
use crate::domain::instance::{Credentials, Instance, SecretBytes};

/// What is known of the provider that the Proxy names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProviderSeen {
    /// Nobody has told yet: nothing is done and nothing is given up.
    #[default]
    Unknown,
    /// There is evidence that no such entry is configured.
    NotConfigured,
    Configured(ProviderFacts),
}

/// What a life depends on, out of a configured entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderFacts {
    /// Changes when the entry's configuration does.
    pub revision: u64,
    pub hosts: Arc<[HostFacts]>,
    /// How long after an effect that was not seen a look at the backend counts as clean.
    pub settle: Duration,
    /// An instance without an address for this long is told as `AddressTimeout`.
    pub address_timeout: Duration,
    /// The backend may give instances credentials of their own, which only a look tells: a Proxy recorded Ready is then
    /// not offered after a restart before that look. True when in doubt.
    pub may_generate_credentials: bool,
}

/// One host of a configured entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    pub name: HostName,
    /// What the provider ids of the instances there begin with.
    pub ids: Arc<str>,
}

impl ProviderFacts {
    pub(super) fn host(&self, name: &HostName) -> Option<&HostFacts> {
        self.hosts.iter().find(|host| host.name == *name)
    }
}

/// What was read for one Proxy. Never shows in `Debug`.
#[derive(Debug, Clone, Default)]
pub struct SecretsRead {
    pub credentials: Option<Credentials>,
    /// Only where the user data is in a Secret. That one alone may be unreadable: the credentials are as good as ever.
    pub user_data: Option<Result<SecretBytes, OpError>>,
}

/// The instance, as last seen by a look.
#[derive(Debug, Clone)]
pub(super) enum Sight {
    /// Not looked yet, or something was done to it since whose end was not seen.
    Unseen,
    /// A look found evidence that there is none.
    Absent,
    Present(Box<Instance>),
}

/// The removal of an instance, from the first `Delete` until it is seen gone.
#[derive(Debug, Clone, Default)]
pub(super) struct Removal {
    /// A delete succeeded, and no look has contradicted it since.
    pub(super) asked: bool,
    /// When the first delete succeeded.
    pub(super) accepted_at: Option<Instant>,
    /// The first clean look of the two that a doubt asks for.
    pub(super) clean_at: Option<Instant>,
    /// Since a delete succeeded, each look has ended with a permanent error: the first and the latest.
    pub(super) blind: Option<(Instant, Instant)>,
}

/// An operation that has begun and not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Running {
    pub(super) task: Task,
    pub(super) since: Instant,
}

/// A permanent failure: nothing is tried until something changes, or a long time has passed.
#[derive(Debug, Clone)]
pub(super) struct Latch {
    pub(super) task: Task,
    pub(super) error: OpError,
    pub(super) since: Instant,
}
