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
    /// On ProviderHealth only: whether the providers config on disk is the one in use.
    ConfigAccepted,
}

impl ConditionType {
    pub const ALL: [Self; 6] =
        [Self::Ready, Self::Provisioned, Self::Healthy, Self::Drained, Self::ProbeTargetSuspect, Self::ConfigAccepted];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Provisioned => "Provisioned",
            Self::Healthy => "Healthy",
            Self::Drained => "Drained",
            Self::ProbeTargetSuspect => "ProbeTargetSuspect",
            Self::ConfigAccepted => "ConfigAccepted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
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
        keep_transitions(&mut self.conditions, |kind| {
            old.and_then(|old| old.condition(kind)).map(|before| (before.truth, before.since))
        });
        self
    }
}

/// Takes over `since` from what is stored for every condition whose truth did not flip.
pub fn keep_transitions(conditions: &mut [Condition], stored: impl Fn(ConditionType) -> Option<(Truth, SystemTime)>) {
    for condition in conditions {
        if let Some((_, since)) = stored(condition.kind).filter(|(truth, _)| *truth == condition.truth) {
            condition.since = since;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_moves_only_when_the_truth_flips() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (stored, then) in [
            (None, 9),
            (Some((Truth::True, at(1))), 1),
            (Some((Truth::False, at(1))), 9),
            (Some((Truth::Unknown, at(1))), 9),
        ] {
            let condition = |kind| Condition {
                kind,
                truth: Truth::True,
                reason: Reason::Healthy,
                message: "well".into(),
                since: at(9),
            };
            let mut conditions = [condition(ConditionType::Ready), condition(ConditionType::ConfigAccepted)];
            keep_transitions(&mut conditions, |kind| stored.filter(|_| kind == ConditionType::Ready));
            assert_eq!(conditions.map(|condition| condition.since), [at(then), at(9)], "{stored:?}");
        }
    }

    #[test]
    fn every_condition_type_reads_back() {
        for kind in ConditionType::ALL {
            assert_eq!(ConditionType::parse(kind.as_str()), Some(kind));
        }
    }
}
