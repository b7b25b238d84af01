//! The objects of `crawl.example.com/v1alpha1` as they are written down, and the way from there into the domain.
//!
//! `proxy` has the shapes (serde and schema), `accept` parses them into [`Desired`](egress_actors::domain::desired::Desired)
//! and is the only place that does, `status` goes both ways, `duration` reads `1h30m`. Both sources use them: the
//! manifests of standalone mode and the API server. Nothing here does I/O or knows where an object came from.

pub mod accept;
pub mod duration;
pub mod manifests;
pub mod provider_health;
pub mod proxy;
mod rules;
pub mod secret;
pub mod status;

/// The API group of all our kinds; also the prefix of our annotations and labels.
pub const GROUP: &str = "crawl.example.com";
/// The version we read and write.
pub const VERSION: &str = "v1alpha1";
/// `group/version`, as in `apiVersion`.
pub const API_VERSION: &str = "crawl.example.com/v1alpha1";

/// Our finalizer: while it is on an object, there may be an instance.
pub const FINALIZER: &str = "crawl.example.com/instance";

/// Only Secrets with this label and the value `true` are read (contract.md 1, Secrets).
pub const SECRET_LABEL: &str = "crawl.example.com/proxy-secret";

/// Give the instance up on deletion.
pub const SKIP_CLEANUP: &str = "crawl.example.com/skip-cleanup";
/// Cordon: never granted again.
pub const DRAIN: &str = "crawl.example.com/drain";
/// A new value asks for a fresh instance.
pub const RECREATE: &str = "crawl.example.com/recreate";
/// Written by the operator: the host chosen for the instance.
pub const HOST: &str = "crawl.example.com/host";
/// On each ProviderHealth: the id of the operator that made it and keeps it.
pub const OWNER: &str = "crawl.example.com/owner-operator";
/// On each ProviderHealth, for people who look for what is ours.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// On the operator's pod that leads, with the value `leader`.
pub const ROLE_LABEL: &str = "crawl.example.com/role";
