//! A network in memory: how proxies answer probes, and what was probed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::world::lock;
use crate::domain::health::{Blame, Probe, ProbeFault, ProbeOutcome};
use crate::domain::reason::Reason;
use crate::ports::Prober;

/// How the proxies of one host name answer probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    Open,
    /// Takes the probe and never answers.
    Swallows,
    /// Never even ends by its deadline.
    Hangs,
    Fails(Blame, Reason),
    /// The prober panics.
    Panics,
    /// Open to who gives this user and password.
    Asks(String, String),
}

/// One probe as it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub host: Arc<str>,
    pub username: Option<Arc<str>>,
    pub at: Instant,
}

/// Every endpoint is open unless a test says otherwise, by suffix of its host name.
#[derive(Debug, Default)]
pub struct ScriptedProber {
    paths: Mutex<Vec<(String, Path)>>,
    direct_fails: Mutex<bool>,
    looks: Mutex<Vec<Look>>,
    direct: Mutex<u64>,
    exit_ip: Mutex<Option<Arc<str>>>,
}

impl ScriptedProber {
    /// From now on the endpoints whose host ends with `suffix` answer like this.
    pub fn set(&self, suffix: &str, path: Path) {
        let mut paths = lock(&self.paths);
        paths.retain(|(known, _)| known != suffix);
        paths.push((suffix.to_owned(), path));
    }

    pub fn set_direct_fails(&self, fails: bool) {
        *lock(&self.direct_fails) = fails;
    }

    /// What the target tells of where the probes come from.
    pub fn set_exit_ip(&self, ip: &str) {
        *lock(&self.exit_ip) = Some(ip.into());
    }

    pub(super) fn forget(&self) {
        *lock(&self.looks) = Vec::new();
    }

    pub fn probes(&self) -> usize {
        lock(&self.looks).len()
    }

    /// Our own looks at targets so far.
    pub fn direct_looks(&self) -> u64 {
        *lock(&self.direct)
    }

    /// The probes of the endpoints whose host ends with `suffix`, in order.
    pub fn looks(&self, suffix: &str) -> Vec<Look> {
        lock(&self.looks).iter().filter(|look| look.host.ends_with(suffix)).cloned().collect()
    }
}

#[async_trait]
impl Prober for ScriptedProber {
    async fn probe(&self, probe: &Probe) -> ProbeOutcome {
        let credentials = probe.credentials.as_ref();
        lock(&self.looks).push(Look {
            host: probe.endpoint.host.clone(),
            username: credentials.map(|credentials| credentials.username.clone()),
            at: Instant::now(),
        });
        let found =
            lock(&self.paths).iter().rev().find(|(s, _)| probe.endpoint.host.ends_with(s)).map(|(_, p)| p.clone());
        let fault = |blame, reason| Some(ProbeFault { blame, reason, detail: format!("scripted {reason}") });
        let quick = Duration::from_millis(5);
        let (latency, fault) = match found.unwrap_or(Path::Open) {
            Path::Open => (quick, None),
            Path::Swallows => (probe.timeout, fault(Blame::Proxy, Reason::ProxyTimeout)),
            Path::Hangs => std::future::pending().await,
            Path::Fails(blame, reason) => (quick, fault(blame, reason)),
            Path::Panics => panic!("scripted panic of the prober"),
            Path::Asks(username, password) => {
                let right = credentials
                    .is_some_and(|given| *given.username == *username && given.password.expose_secret() == password);
                (quick, if right { None } else { fault(Blame::Proxy, Reason::ProxyAuthRequired) })
            }
        };
        tokio::time::sleep(latency).await;
        let exit_ip = lock(&self.exit_ip).clone().filter(|_| fault.is_none());
        ProbeOutcome { latency, exit_ip, fault }
    }

    async fn direct(&self, _: &Probe) -> ProbeOutcome {
        *lock(&self.direct) += 1;
        let fails = *lock(&self.direct_fails);
        let fault = ProbeFault { blame: Blame::Target, reason: Reason::TargetTimeout, detail: "scripted".to_owned() };
        ProbeOutcome { latency: Duration::ZERO, exit_ip: None, fault: fails.then_some(fault) }
    }
}
