//! The ProviderHealth object: how well an entry of the providers config is. Written and removed by the operator only.

#![allow(clippy::duplicated_attributes, reason = "columns of one type are no duplicates")]

use std::time::SystemTime;

use egress_actors::domain::status::{ConditionType, Truth};
use egress_actors::domain::target::targets_ready;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::status;

/// What the entry is. Written by the operator.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "crawl.example.com",
    version = "v1alpha1",
    kind = "ProviderHealth",
    plural = "providerhealths",
    shortname = "ph",
    category = "egress",
    status = "ProviderHealthStatus",
    derive = "PartialEq",
    doc = "How well an entry of the providers config is. One per entry, named after it; made, kept and removed by the operator.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Targets", type_ = "string", json_path = ".status.targetsReady"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProviderHealthSpec {
    /// The type of the entry, as in the providers config: process, kubernetes, kvm, kvm2, gcp, proxmox ...
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

/// What the checks of its hosts make of the entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderHealthStatus {
    /// Ready: whether instances can be made on every host. `ProbeTargetSuspect`: whether probes fail for a reason that
    /// is not the proxies'. `ConfigAccepted`: whether the providers config on disk is the one in use. Each with a reason of a
    /// closed list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::proxy::conditions")]
    pub conditions: Vec<Condition>,
    /// The generation of the object that the conditions are of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many of the hosts passed their latest check, of all: `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub targets_ready: Option<String>,
    /// The hosts of the entry, each with its latest verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1024),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub targets: Vec<TargetStatus>,
}

/// One host. Written when its verdict changes; live values are in the metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetStatus {
    /// The name of the host in the providers config.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Whether its latest check succeeded.
    pub ready: bool,
    /// Healthy, or why the check failed: one word of a closed list.
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// The same as a sentence.
    #[schemars(length(max = 32_768))]
    pub message: String,
    /// How long the check took, in milliseconds.
    #[schemars(range(min = 0))]
    pub latency_milliseconds: i64,
    /// When it was checked; refreshed at most every 5 minutes while nothing changes.
    pub checked_at: Time,
}

/// As the schema has it. Each has a message of a kilobyte at most, as all errors have; an object may have 1.5 MB.
const TARGETS: usize = 1024;

/// The status as it is written, of the object of this generation.
pub fn written(health: &egress_actors::ports::ProviderHealth, generation: Option<i64>) -> ProviderHealthStatus {
    ProviderHealthStatus {
        conditions: health
            .conditions
            .iter()
            .map(|condition| status::condition_written(condition, generation))
            .collect(),
        observed_generation: generation,
        targets_ready: Some(targets_ready(&health.targets)),
        targets: health
            .targets
            .iter()
            .take(TARGETS)
            .map(|target| TargetStatus {
                name: target.name.to_string(),
                ready: target.is_ready(),
                reason: target.reason().as_str().to_owned(),
                message: target.trouble.as_ref().map_or_else(String::new, |trouble| trouble.detail.clone()),
                latency_milliseconds: i64::try_from(target.latency.as_millis()).unwrap_or(i64::MAX),
                checked_at: status::time(target.checked_at),
            })
            .collect(),
    }
}

/// Since when each condition is as it is written; what is not understood is left out.
pub fn turns(status: &ProviderHealthStatus) -> Vec<(ConditionType, Truth, SystemTime)> {
    let turn = |written: &Condition| {
        let (kind, truth) = (ConditionType::parse(&written.type_)?, Truth::parse(&written.status)?);
        Some((kind, truth, written.last_transition_time.0.into()))
    };
    status.conditions.iter().filter_map(turn).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use egress_actors::domain::error::OpError;
    use egress_actors::domain::id::{HostName, ProviderName};
    use egress_actors::domain::reason::Reason;
    use egress_actors::domain::target::TargetHealth;
    use egress_actors::ports::ProviderHealth;

    use super::*;

    fn health(hosts: usize, bad: usize, words: &str) -> ProviderHealth {
        let target = |n| TargetHealth {
            name: HostName::parse(&format!("h{n}")).unwrap(),
            trouble: (n < bad).then(|| OpError::permanent(Reason::PoolNotFound, words)),
            latency: Duration::from_millis(7),
            checked_at: SystemTime::UNIX_EPOCH,
        };
        let condition = egress_actors::domain::status::Condition {
            kind: ConditionType::Ready,
            truth: Truth::False,
            reason: Reason::PoolNotFound,
            message: words.into(),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_083_200),
        };
        ProviderHealth {
            entry: ProviderName::parse("kvm").unwrap(),
            kind: "kvm",
            conditions: vec![condition],
            targets: (0..hosts).map(target).collect(),
        }
    }

    #[test]
    fn what_is_written_counts_the_targets_and_keeps_to_the_limits() {
        let told = written(&health(3, 1, "no pool `fast`"), Some(4));
        assert_eq!((told.targets_ready.as_deref(), told.observed_generation), (Some("2/3"), Some(4)));
        assert_eq!(told.conditions[0].observed_generation, Some(4));
        assert_eq!(told.targets[0].message, "no pool `fast`");
        assert_eq!(told.targets[1].message, "");

        let told = written(&health(1500, 1500, &"ä".repeat(40_000)), None);
        assert_eq!((told.targets_ready.as_deref(), told.targets.len()), (Some("0/1500"), 1024));
        assert_eq!(told.conditions[0].message.chars().count(), 32_768);
        // An error is short by itself.
        assert!(told.targets.iter().all(|target| target.message.ends_with('…') && target.message.len() < 1100));
    }

    #[test]
    fn since_when_it_is_so_reads_back_and_what_another_version_wrote_is_left_out() {
        let mut told = written(&health(1, 1, "no pool"), Some(1));
        let other = Condition { type_: "FromTheFuture".to_owned(), ..told.conditions[0].clone() };
        told.conditions.push(other);
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_083_200);
        assert_eq!(turns(&told), [(ConditionType::Ready, Truth::False, since)]);
    }
}
