//! Provider `kubernetes`: a Squid pod per Proxy in one namespace.
//!
//! Owns, per instance, a Pod, a `ConfigMap` with the generated configuration, a Secret where credentials are asked for, and
//! a `NetworkPolicy` where the entry names the namespaces that may come in. All four have one name, which follows from the
//! Proxy's name and uid ([`mark`]), and carry the owner mark. Spoken to by the host actor through [`Backend`]. Never keeps
//! an instance in memory, and never touches an object without our mark on it, read at that time.
//!
//! # Order
//! ```text
//! create   ConfigMap -> Secret -> NetworkPolicy -> Pod        a Pod that is there has all that it needs
//! delete   Pod -> (seen gone) -> Secret -> NetworkPolicy -> ConfigMap
//! ```
//! The `ConfigMap` is so the first trace of an instance and the last. Where it stands alone, an earlier call was cut: such
//! a half instance is told as stopped, is deleted, and made anew. The policy stays until the Pod is seen gone, so that a
//! Squid that is ending is open to nobody either. There are no owner references: nothing in this namespace could own
//! them before the Pod exists, and the Proxy lives in another one, over which they are not allowed (fault 109).
//!
//! # Calls
//! Each call of the API has a limit of its own ([`calls`]), within the deadline of the operation. The middle is pure:
//! [`manifest`] makes objects out of a spec, [`reading`] an instance out of a Pod.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName};
use egress_actors::domain::instance::{Instance, InstanceSpec, Listed, OwnerMark};
use egress_actors::ports::Backend;

use self::manifest::Current;
use crate::config::providers::KubernetesEntry;
use crate::providers::squid_conf::Opening;

mod calls;
mod check;
mod cluster;
mod create;
mod delete;
mod errors;
mod look;
mod manifest;
mod mark;
mod reading;

pub use self::cluster::Cluster;

/// Operations at once: each is a handful of small calls, and the API server has others to serve.
pub const SLOTS: usize = 8;

/// After a call that was given up, the longest that the API server may still be at it: its own limit of a write is
/// below this, unless it hangs.
pub const SETTLE: Duration = Duration::from_secs(40);

/// Time to find a node and to pull an image over a slow line.
pub const ADDRESS_TIMEOUT: Duration = Duration::from_mins(5);

/// The backend of one entry of type `kubernetes`, which has one host.
#[derive(Debug, Clone)]
pub struct KubernetesBackend {
    site: Arc<Site>,
}

/// What all calls of one entry look at; it never changes.
#[derive(Debug)]
struct Site {
    entry: KubernetesEntry,
    openings: Vec<Opening>,
    current: Current,
    cluster: Cluster,
}

impl KubernetesBackend {
    /// `targets` are the operator's own probe targets: allowed by themselves, beside the entry's `allowDestinations`.
    pub fn new(entry: KubernetesEntry, cluster: Cluster, targets: impl IntoIterator<Item = Opening>) -> Self {
        let openings: Vec<_> =
            entry.allow_destinations.iter().copied().map(Opening::destination).chain(targets).collect();
        let current = Current::of(&entry, &openings);
        Self { site: Arc::new(Site { entry, openings, current, cluster }) }
    }
}

#[async_trait]
impl Backend for KubernetesBackend {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        // Boxed, as the state of a create holds every object of it.
        Box::pin(create::create(&self.site, spec)).await
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        look::get(&self.site, mark).await
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        delete::delete(&self.site, mark).await
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        look::list(&self.site, operator, entry).await
    }

    async fn check(&self) -> Result<(), OpError> {
        check::check(&self.site).await
    }
}
