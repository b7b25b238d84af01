//! How well the hosts of a provider entry are, and what that makes of the entry.

use std::time::{Duration, SystemTime};

use super::error::OpError;
use super::id::HostName;
use super::reason::Reason;
use super::status::Truth;

/// The verdict of the latest check of one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetHealth {
    pub name: HostName,
    /// What the check failed with; none if the host is well.
    pub trouble: Option<OpError>,
    /// How long the check took.
    pub latency: Duration,
    pub checked_at: SystemTime,
}

impl TargetHealth {
    pub fn is_ready(&self) -> bool {
        self.trouble.is_none()
    }

    pub fn reason(&self) -> Reason {
        self.trouble.as_ref().map_or(Reason::Healthy, |trouble| trouble.reason)
    }

    pub fn message(&self) -> &str {
        self.trouble.as_ref().map_or("the latest check succeeded", |trouble| &trouble.detail)
    }
}

/// How many of the hosts passed their latest check, of all: `2/3`.
pub fn targets_ready(targets: &[TargetHealth]) -> String {
    format!("{}/{}", targets.iter().filter(|target| target.is_ready()).count(), targets.len())
}

/// What the verdicts on its hosts make of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryHealth {
    /// Unknown before the first verdict on every host.
    pub ready: Truth,
    pub reason: Reason,
    pub message: String,
}

/// An entry with this many hosts is as well as its worst one.
pub fn entry_health(hosts: usize, targets: &[TargetHealth]) -> EntryHealth {
    let bad: Vec<_> = targets.iter().filter(|target| !target.is_ready()).collect();
    match bad.first() {
        Some(first) => {
            let all: Vec<_> = bad.iter().map(|t| format!("{}: {} ({})", t.name, t.reason(), t.message())).collect();
            EntryHealth { ready: Truth::False, reason: first.reason(), message: all.join("; ") }
        }
        None if targets.len() >= hosts => EntryHealth {
            ready: Truth::True,
            reason: Reason::Healthy,
            message: "every target passed its latest check".to_owned(),
        },
        None => EntryHealth {
            ready: Truth::Unknown,
            reason: Reason::Pending,
            message: "not every target has been checked yet".to_owned(),
        },
    }
}
