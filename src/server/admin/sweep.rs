//! What `/admin/providers` tells of the sweep for instances without a Proxy.

use egress_actors::sweep::{HostSwept, Swept};
use serde::Serialize;

use crate::server::dto::timestamp;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SweepBody {
    /// `--gc-dry-run`: nothing is deleted, whatever the verdicts.
    dry_run: bool,
    /// All that are known, over all hosts.
    orphans: usize,
    /// Since the entry's sweep began to run.
    deleted: u64,
    /// Empty before the first sweep, and where nothing is swept.
    hosts: Vec<HostBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HostBody {
    name: String,
    /// When the latest sweep ended; null while the first one runs.
    ended_at: Option<String>,
    took_milliseconds: Option<u64>,
    /// Why it could not be done. The orphans are then those of an earlier one.
    error: Option<ErrorBody>,
    orphans: usize,
    /// The oldest of them.
    oldest: Vec<OrphanBody>,
}

#[derive(Debug, Serialize)]
struct ErrorBody {
    reason: &'static str,
    message: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct OrphanBody {
    proxy: String,
    uid: String,
    #[serde(rename = "providerID")]
    provider_id: String,
    /// By the backend, or since it was first seen.
    age_seconds: u64,
    /// `SeenOnce`, `Young`, or `Ripe`: to be deleted as soon as the cap allows (and this is no dry run).
    verdict: &'static str,
}

impl SweepBody {
    pub(super) fn new(swept: &Swept, dry_run: bool) -> Self {
        let hosts: Vec<_> = swept.hosts.iter().map(|(name, host)| HostBody::new(name.as_str(), host)).collect();
        let orphans = hosts.iter().map(|host| host.orphans).sum();
        Self { dry_run, orphans, deleted: swept.deleted, hosts }
    }

    /// How many there are for people: a dash as long as nobody knows, a question mark behind a number that may be old.
    pub(super) fn told_orphans(&self) -> String {
        let old = self.hosts.iter().any(|host| host.error.is_some());
        match (self.hosts.iter().any(|host| host.ended_at.is_some()), old) {
            (false, _) => "-".to_owned(),
            (true, false) => self.orphans.to_string(),
            (true, true) => format!("{}?", self.orphans),
        }
    }
}

impl HostBody {
    fn new(name: &str, host: &HostSwept) -> Self {
        Self {
            name: name.to_owned(),
            ended_at: host.ended.map(|(at, _)| timestamp(at)),
            took_milliseconds: host.ended.map(|(_, took)| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            error: host
                .trouble
                .as_ref()
                .map(|trouble| ErrorBody { reason: trouble.reason.as_str(), message: trouble.detail.clone() }),
            orphans: host.orphans,
            oldest: host
                .shown
                .iter()
                .map(|orphan| OrphanBody {
                    proxy: orphan.mark.key.to_string(),
                    uid: orphan.mark.uid.to_string(),
                    provider_id: orphan.provider_id.to_string(),
                    age_seconds: orphan.age.as_secs(),
                    verdict: orphan.verdict.as_str(),
                })
                .collect(),
        }
    }
}
