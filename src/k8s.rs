//! Cluster mode: the adapters of the ports for a Kubernetes API server.
//!
//! ```text
//! client   configuration and clients           source   Proxies and Secrets, watched -> SourceEvent
//! records  finalizers, statuses, ProviderHealth events   events.k8s.io, off the actors
//! secrets  read on use                          claim    the Lease of the election, the leader's label
//! failure  what an answer of the API server means to those above
//! seen     the version of each object that was seen last: what the next write is written over
//! ```
//! Each call has a deadline here beside the caller's, is tried once, and never decides anything: what to write and when
//! is the actors' business. Nothing here caches an object, but for its version. Names of fields and kinds are those of `crd`.

mod claim;
mod client;
mod events;
mod failure;
mod identity;
mod records;
mod secrets;
mod seen;
mod source;

use std::fmt;
use std::sync::Arc;

use egress_actors::domain::id::{OperatorId, Uid};
use egress_actors::kit::supervisor::ChildSpec;
use egress_actors::ports::{ClaimStore, EventSink, ProxySource, Records, Secrets};

use self::claim::LeaseClaim;
use self::client::Clients;
pub use self::client::ClusterError;
use self::events::Events;
pub use self::identity::Identity;
use self::records::ClusterRecords;
use self::secrets::ClusterSecrets;
use self::seen::Seen;
use self::source::Source;

/// What we are called where Kubernetes asks for a name: field manager, reporting controller, Lease.
pub const NAME: &str = "egress-proxies-operator";

/// A cluster, connected.
pub struct Cluster {
    clients: Clients,
    events: Arc<Events>,
    identity: Identity,
    operator: OperatorId,
    namespace: Option<Arc<str>>,
    seen: Seen<Uid>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("identity", &self.identity)
            .field("operator", &self.operator)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Cluster {
    /// Finds the cluster (in a pod its own, else the one of the kubeconfig) and asks it who it is. `namespace`: look at
    /// Proxies there only. `operator`: as given by a flag.
    pub async fn connect(
        namespace: Option<Arc<str>>,
        operator: Option<OperatorId>,
        identity: Identity,
    ) -> Result<Self, ClusterError> {
        Self::of(client::config().await?, namespace, operator, identity).await
    }

    /// The one of this configuration.
    pub async fn of(
        config: kube::Config,
        namespace: Option<Arc<str>>,
        operator: Option<OperatorId>,
        identity: Identity,
    ) -> Result<Self, ClusterError> {
        let clients = Clients::new(config)?;
        let identity = identity.in_namespace(clients.default_namespace());
        let operator = match operator {
            Some(given) => given,
            None => identity.operator_id(&clients.cluster_uid().await?, namespace.as_deref())?,
        };
        let events = Arc::new(Events::new(clients.calls().clone(), &identity, operator.clone()));
        Ok(Self { clients, events, identity, operator, namespace, seen: Seen::default() })
    }

    /// Who this operator is in its owner marks.
    pub fn operator_id(&self) -> &OperatorId {
        &self.operator
    }

    /// Which replica this is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A client for backends that make pods: their calls may be many, and stand in nobody's way.
    pub fn another_client(&self) -> Result<kube::Client, ClusterError> {
        self.clients.another()
    }

    /// The server, for people.
    pub fn url(&self) -> String {
        self.clients.url()
    }

    pub fn source(&self) -> Arc<dyn ProxySource> {
        Arc::new(Source::new(self.clients.watches().clone(), self.namespace.clone(), self.seen.clone()))
    }

    pub fn records(&self) -> Arc<dyn Records> {
        Arc::new(ClusterRecords::new(self.clients.calls().clone(), self.operator.clone(), self.seen.clone()))
    }

    pub fn event_sink(&self) -> Arc<dyn EventSink> {
        self.events.clone()
    }

    pub fn secrets(&self) -> Arc<dyn Secrets> {
        Arc::new(ClusterSecrets::new(self.clients.calls().clone()))
    }

    /// The record of the election. Its connection belongs to the runtime that this is called on.
    pub fn claim_store(&self) -> Result<Arc<dyn ClaimStore>, ClusterError> {
        Ok(Arc::new(LeaseClaim::new(self.clients.another()?, self.identity.clone())))
    }

    /// What has to run for all of this to work.
    pub fn children(&self) -> Vec<ChildSpec> {
        vec![self.events.writer()]
    }
}
