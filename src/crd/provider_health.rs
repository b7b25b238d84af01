//! The ProviderHealth object: how well an entry of the providers config is. Written and removed by the operator only.

#![allow(clippy::duplicated_attributes, reason = "columns of one type are no duplicates")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ProviderHealthSpec {
    /// The type of the entry, as in the providers config: process, kubernetes, kvm, gcp, proxmox ...
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
}

/// What the checks of its hosts make of the entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderHealthStatus {
    /// Ready: whether instances can be made on every host. `ProbeTargetSuspect`: whether probes fail for a reason that
    /// is not the proxies'. With a reason of a closed list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "super::proxy::conditions")]
    pub conditions: Vec<Condition>,
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

/// The status as it is written.
pub fn written(health: &egress_actors::ports::ProviderHealth) -> ProviderHealthStatus {
    ProviderHealthStatus {
        conditions: health
            .conditions
            .iter()
            .map(|condition| super::status::condition_written(condition, None))
            .collect(),
        targets: health
            .targets
            .iter()
            .map(|target| TargetStatus {
                name: target.name.to_string(),
                ready: target.is_ready(),
                reason: target.reason().as_str().to_owned(),
                message: target.trouble.as_ref().map_or_else(String::new, |trouble| trouble.detail.clone()),
                latency_milliseconds: i64::try_from(target.latency.as_millis()).unwrap_or(i64::MAX),
                checked_at: super::status::time(target.checked_at),
            })
            .collect(),
    }
}
