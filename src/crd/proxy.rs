//! The Proxy object: what people write (`ProxySpec`) and what we answer (`ProxyStatus`).
//!
//! Only shapes: whether a value makes sense is decided in `accept`, which can name the field and the way out. Numbers
//! are therefore wider here than in the domain, and durations are still text. The doc comments become the descriptions
//! of the schema, so each names unit and default. Unknown fields are refused: a mistyped `maxLease` must not be silent.

#![allow(clippy::duplicated_attributes, reason = "columns of one type are no duplicates")]

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::rules;

/// A proxy that crawlers can lease: made by the operator (`managed`) or run by somebody else (`external`).
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "crawl.example.com",
    version = "v1alpha1",
    kind = "Proxy",
    plural = "proxies",
    shortname = "px",
    category = "egress",
    namespaced,
    status = "ProxyStatus",
    derive = "PartialEq",
    doc = "An egress proxy that crawlers can lease.",
    selectable = ".spec.managed.provider",
    selectable = ".status.phase",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.managed.provider"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Tier", type_ = "string", json_path = ".spec.attributes.tier"),
    printcolumn(
        name = "Leases",
        type_ = "integer",
        description = "How many leases may be out at once.",
        json_path = ".spec.maxLeases"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Why it is Ready, or is not.",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        priority = 1
    ),
    printcolumn(name = "ProviderID", type_ = "string", json_path = ".status.providerID", priority = 1)
)]
#[x_kube(validation = rules::one_of("managed", "external"), validation = rules::same_flavor())]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProxySpec {
    /// An instance that the operator makes. Exactly one of `managed` and `external` is set; which one cannot change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedSpec>,
    /// A proxy that somebody else runs: never created or deleted, only probed and leased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<ExternalSpec>,
    /// Labels of the leasing world, matched by the selectors of a lease. At most 32; values of at most 63 characters.
    /// Default: none. The keys target, ttl, session, count, partial, owner and exclude are reserved.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 63}))]
    #[x_kube(
        validation = rules::attribute_keys(),
        validation = rules::no_reserved_keys(),
        validation = rules::printable_values()
    )]
    pub attributes: BTreeMap<String, String>,
    /// How many leases may be out at once: 1 to 10000. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000), extend("default" = 1))]
    pub max_leases: Option<i64>,
    /// How the proxy is probed. Default: every 30s, with the target given by `--probe-target`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheckSpec>,
    /// A managed instance that is Unhealthy for this long is made anew, e.g. `30m`; at least `1m`. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::at_least("recreateAfter", "1m"))]
    pub recreate_after: Option<String>,
    /// While true the instance is left alone; a paused Proxy can still be deleted. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// An instance made by a provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = rules::same("provider"),
    validation = rules::same_or_absent("placement"),
    validation = rules::same_or_absent("cloudInit"),
    validation = rules::same_or_absent("port")
)]
pub struct ManagedSpec {
    /// The name of an entry of the providers config. Immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = rules::entry_name("provider"))]
    pub provider: String,
    /// Where and as what the instance is made. Default: whatever the provider has. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSpec>,
    /// User data for the instance. Default: none. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInitSpec>,
    /// The TCP port where the proxy listens in the instance: 1 to 65535. Default: 3128. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub port: Option<i64>,
    /// A labelled Secret with the keys `username` and `password`: what the instance's proxy asks for. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretRefSpec>,
}

/// Where and as what an instance is made; each part is optional.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlacementSpec {
    /// The name of a host (hypervisors) or of a zone (clouds). Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = rules::unspaced("zone"))]
    pub zone: Option<String>,
    /// A key of the entry's `images`. Default: the entry's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = rules::unspaced("image"))]
    pub image: Option<String>,
    /// A key of the entry's `sizes`. Default: the entry's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(validation = rules::unspaced("size"))]
    pub size: Option<String>,
}

/// User data; exactly one of `inline` and `secretRef`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = rules::one_of("inline", "secretRef"))]
pub struct CloudInitSpec {
    /// The text itself, byte for byte; at most 65536 bytes. Whoever may read the Proxy can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65_536))]
    #[x_kube(validation = rules::inline_bytes())]
    pub inline: Option<String>,
    /// A key of a labelled Secret of the Proxy's namespace that has the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretKeyRefSpec>,
}

impl fmt::Debug for CloudInitSpec {
    /// The text may hold passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudInitSpec")
            .field("inline", &self.inline.as_ref().map(|text| format!("{} bytes", text.len())))
            .field("secret_ref", &self.secret_ref)
            .finish()
    }
}

/// One key of a Secret of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRefSpec {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name("name"))]
    pub name: String,
    /// The key in it.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::secret_key())]
    pub key: String,
}

/// A Secret of the same namespace with the keys `username` and `password`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRefSpec {
    /// The name of the Secret.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = rules::object_name("name"))]
    pub name: String,
}

/// A proxy that somebody else runs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = rules::no_userinfo("url", "put them into a Secret and name it in credentialsSecretRef"),
    validation = rules::proxy_url("url")
)]
pub struct ExternalSpec {
    /// `http://host:port` or `https://host:port`: how the proxy itself is spoken to. Default port: 80 or 443. No user
    /// and password here: they go into a Secret.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// A labelled Secret with the keys `username` and `password`: what the proxy asks for. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretRefSpec>,
}

impl fmt::Debug for ExternalSpec {
    /// Somebody may have put a password into the URL; it is refused later, and must not be shown before.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalSpec")
            .field("url", &super::accept::without_userinfo(&self.url))
            .field("credentials_secret_ref", &self.credentials_secret_ref)
            .finish()
    }
}

/// How a proxy is probed: a tunnel through it to a target, and a request there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = rules::no_userinfo("target", "a probe target has to answer without them"),
    validation = rules::target_url("target"),
    validation = rules::timeout_within_interval()
)]
pub struct HealthCheckSpec {
    /// An http or https URL that is fetched through the proxy. Default: the operator's `--probe-target`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub target: Option<String>,
    /// HTTP statuses that count as success: 1 to 16 of 100 to 599. Default: 204.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        inner(range(min = 100, max = 599)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub expect_status: Option<Vec<i64>>,
    /// Time between two probes, e.g. `30s`; at least `1s`. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::at_least("interval", "1s"))]
    pub interval: Option<String>,
    /// Limit of one whole probe, e.g. `10s`; at least `1s`, at most `interval`. Default: 10s, or `interval` if that is
    /// shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = rules::at_least("timeout", "1s"))]
    pub timeout: Option<String>,
    /// So many failed probes in a row make the proxy Unhealthy: 1 to 100. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: Option<i64>,
    /// So many good probes in a row make it Healthy again: 1 to 100. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub success_threshold: Option<i64>,
}

/// What the operator tells about a Proxy. It owns all of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyStatus {
    /// Pending, Provisioning, Ready, Unhealthy, Failed or Deleting: a summary of the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub phase: Option<String>,
    /// The generation of the spec that this status answers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The instance in its backend: `type://entry/host/id`.
    #[serde(default, rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub provider_id: Option<String>,
    /// The address of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub address: Option<String>,
    /// Where the proxy listens, as a URL without credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub endpoint: Option<String>,
    /// The address under which targets see the proxy, when the probe target tells it.
    #[serde(default, rename = "exitIP", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub exit_ip: Option<String>,
    /// The latest probe at the time when something else changed; live values are in the lease API and the metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_probe: Option<LastProbeStatus>,
    /// The value of the `recreate` annotation that the instance answers to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub recreated: Option<String>,
    /// Ready, Provisioned, Healthy and Drained, with a reason of a closed list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// Conditions as Kubernetes has them, with the bounds that it advises; theirs come without.
pub(super) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the state, with the reason for it.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {"type": "string", "maxLength": 316, "description": "What it is about."},
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether it holds: True, False or Unknown."
                },
                "reason": {"type": "string", "maxLength": 1024, "description": "Why, as one word of a closed list."},
                "message": {"type": "string", "maxLength": 32_768, "description": "Why, as a sentence for people."},
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When the status last changed."
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "The generation of the spec that this answers to."
                }
            }
        }
    })
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastProbeStatus {
    /// When it ended.
    pub time: Time,
    /// Whether it went through.
    pub ok: bool,
    /// How long it took, in milliseconds.
    #[schemars(range(min = 0))]
    pub latency_milliseconds: i64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;

    use super::*;

    #[test]
    fn the_schema_describes_every_field_and_is_structural() {
        let crd = serde_json::to_value(Proxy::crd()).unwrap();
        assert_eq!(crd["spec"]["names"]["plural"], "proxies");
        assert_eq!(crd["spec"]["names"]["shortNames"][0], "px");
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut bare = Vec::new();
        undescribed("spec", &schema["properties"]["spec"], &mut bare);
        undescribed("status", &schema["properties"]["status"], &mut bare);
        assert!(bare.is_empty(), "fields without a description: {bare:?}");
        // The API server refuses `additionalProperties: false` beside `properties`.
        assert!(!crd.to_string().contains("\"additionalProperties\":false"), "the schema is not structural");
    }

    fn undescribed(path: &str, schema: &serde_json::Value, found: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if field["description"].as_str().is_none_or(str::is_empty) {
                found.push(path.clone());
            }
            undescribed(&path, field, found);
        }
    }

    #[test]
    fn unknown_fields_are_refused_at_every_depth_of_the_spec() {
        let good = serde_json::json!({
            "managed": {"provider": "p", "placement": {}, "cloudInit": {"secretRef": {"name": "a", "key": "k"}},
                        "credentialsSecretRef": {"name": "a"}},
            "external": {"url": "http://a:1"},
            "healthCheck": {}
        });
        serde_json::from_value::<ProxySpec>(good.clone()).unwrap();
        for pointer in [
            "",
            "/managed",
            "/managed/placement",
            "/managed/cloudInit",
            "/managed/cloudInit/secretRef",
            "/managed/credentialsSecretRef",
            "/external",
            "/healthCheck",
        ] {
            let mut bad = good.clone();
            bad.pointer_mut(pointer).unwrap()["extra"] = 1.into();
            let error = serde_json::from_value::<ProxySpec>(bad).unwrap_err().to_string();
            assert!(error.contains("unknown field `extra`"), "{pointer}: {error}");
        }
    }

    #[test]
    fn debug_shows_neither_cloud_init_nor_userinfo() {
        let spec: ProxySpec = serde_json::from_value(serde_json::json!({
            "managed": {"provider": "p", "cloudInit": {"inline": "password: hunter2"}},
            "external": {"url": "http://user:hunter2@a:1"}
        }))
        .unwrap();
        let shown = format!("{spec:?} {:?}", Proxy::new("a", spec.clone()));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
