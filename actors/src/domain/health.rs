//! Probes, streaks and verdicts.

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use super::desired::Endpoint;
use super::instance::Credentials;
use super::reason::Reason;

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
