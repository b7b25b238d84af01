//! Probes, streaks and verdicts.
//!
//! One probe says little: [`Streak`] turns a series of outcomes into a [`Verdict`] by the thresholds of the Proxy, and
//! [`TargetGuard`] says when a failure tells of the target and not of the proxy. Both are owned by the probe pool, which
//! tells the Proxy's actor what came of it ([`Probed`]).

mod guard;
mod streak;

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::desired::{Desired, Endpoint, Flavor};
use super::id::{HostName, ProviderName};
use super::instance::Credentials;
use super::reason::Reason;
use super::status::LastProbe;

pub use guard::{Sample, Suspicion, TargetGuard};
pub use streak::{Streak, Thresholds};

/// One probe to make.
#[derive(Debug, Clone)]
pub struct Probe {
    pub endpoint: Endpoint,
    pub credentials: Option<Credentials>,
    /// `http` or `https`.
    pub target: Arc<Url>,
    pub expect_status: Arc<[u16]>,
    /// For the whole probe.
    pub timeout: Duration,
}

/// How a probe ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOutcome {
    pub latency: Duration,
    /// The caller's address as the target tells it (`X-Egress-Address`).
    pub exit_ip: Option<Arc<str>>,
    pub fault: Option<ProbeFault>,
}

/// Whose fault a failed probe is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blame {
    Proxy,
    Target,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFault {
    pub blame: Blame,
    pub reason: Reason,
    /// For people, with the proxy's own words (`X-Squid-Error`).
    pub detail: String,
}

/// What a series of probes says of one Proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Too few probes have answered. Such a Proxy is not offered, unless it was recorded Ready before a restart.
    Unknown,
    Healthy,
    /// `reason` and `detail` are those of the failure that made it so.
    Unhealthy {
        reason: Reason,
        detail: Arc<str>,
    },
}

/// What one more probe came to: told by the probe pool to the Proxy's actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// After this probe.
    pub verdict: Verdict,
    pub probe: LastProbe,
    /// Whose fault it was, if it failed.
    pub blame: Option<Blame>,
    pub exit_ip: Option<Arc<str>>,
}

/// What fails together: the host of an entry, or the host of a bought proxy's URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FailureDomain {
    Host(ProviderName, HostName),
    External(Arc<str>),
}

impl FailureDomain {
    /// The domain of a Proxy; none while a managed one has no host yet.
    pub fn of(desired: &Desired) -> Option<Self> {
        match &desired.flavor {
            Flavor::Managed(managed) => desired.host.clone().map(|host| Self::Host(managed.provider.clone(), host)),
            Flavor::External(external) => Some(Self::External(external.endpoint.host.clone())),
        }
    }
}
