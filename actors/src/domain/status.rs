//! What we tell about a Proxy: the whole status we own, as a value.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::reason::Reason;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Provisioning,
    Ready,
    Unhealthy,
    Failed,
    Deleting,
}

impl Phase {
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Provisioning, Self::Ready, Self::Unhealthy, Self::Failed, Self::Deleting];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Provisioning => "Provisioning",
            Self::Ready => "Ready",
            Self::Unhealthy => "Unhealthy",
            Self::Failed => "Failed",
            Self::Deleting => "Deleting",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConditionType {
    Ready,
    Provisioned,
    Healthy,
    Drained,
    /// On ProviderHealth only.
    ProbeTargetSuspect,
}

impl ConditionType {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Provisioned => "Provisioned",
            Self::Healthy => "Healthy",
            Self::Drained => "Drained",
            Self::ProbeTargetSuspect => "ProbeTargetSuspect",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Truth {
    True,
    False,
    Unknown,
}

impl Truth {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::True, Self::False, Self::Unknown].into_iter().find(|truth| truth.as_str() == text)
    }
}

/// One condition; `since` moves only when `truth` flips.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: ConditionType,
    pub truth: Truth,
    pub reason: Reason,
    pub message: Arc<str>,
    pub since: SystemTime,
}

/// The latest probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastProbe {
    pub at: SystemTime,
    pub ok: bool,
    pub latency: Duration,
    /// Why it failed.
    pub reason: Option<Reason>,
}

/// The whole status we own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub phase: Phase,
    pub observed_generation: i64,
    pub provider_id: Option<Arc<str>>,
    pub address: Option<Arc<str>>,
    pub endpoint: Option<Arc<str>>,
    pub exit_ip: Option<Arc<str>>,
    pub last_probe: Option<LastProbe>,
    /// The value of the `recreate` annotation that the instance answers to.
    pub recreated: Option<Arc<str>>,
    pub conditions: Vec<Condition>,
}

impl Status {
    /// Of an object of which nothing is known yet but that it is in this phase.
    pub fn blank(phase: Phase, observed_generation: i64) -> Self {
        Self {
            phase,
            observed_generation,
            provider_id: None,
            address: None,
            endpoint: None,
            exit_ip: None,
            last_probe: None,
            recreated: None,
            conditions: Vec::new(),
        }
    }

    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|c| c.kind == kind)
    }

    pub fn is_ready(&self) -> bool {
        self.condition(ConditionType::Ready).is_some_and(|c| c.truth == Truth::True)
    }

    /// True if writing `self` over `old` tells somebody something new. `lastProbe` and `exitIP` are carried along
    /// only (contract.md 1, Writes): a fleet where nothing changes writes nothing.
    pub fn differs_from(&self, old: &Self) -> bool {
        let bare = |status: &Self| Self { exit_ip: None, last_probe: None, ..status.clone() };
        bare(self) != bare(old)
    }

    /// Takes over `since` from `old` for every condition whose truth did not flip.
    #[must_use]
    pub fn keeping_transitions_of(mut self, old: Option<&Self>) -> Self {
        for condition in &mut self.conditions {
            if let Some(before) = old.and_then(|o| o.condition(condition.kind))
                && before.truth == condition.truth
            {
                condition.since = before.since;
            }
        }
        self
    }
}
