//! The cluster that an entry's pods run in: a client that is given, or one of our own, made at its first use.
//!
//! Never keeps a failure: a kubeconfig that appears is found by the next call.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Config};
use tokio::sync::OnceCell;

use super::calls::LIMIT;

/// Where a pod finds the name of its own namespace.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Cheap to clone; all clones use one client.
#[derive(Clone)]
pub struct Cluster(Arc<Inside>);

struct Inside {
    client: OnceCell<Client>,
    operator_namespace: Option<String>,
}

impl Cluster {
    /// With this client. It should not be the one that watches or holds the claim: calls here may be many.
    /// `operator_namespace` is where the operator's own pods run, which are let in to probe.
    pub fn of(client: Client, operator_namespace: Option<String>) -> Self {
        Self(Arc::new(Inside { client: OnceCell::new_with(Some(client)), operator_namespace }))
    }

    /// As kubectl would find it: KUBECONFIG, `~/.kube/config`, or the `ServiceAccount` of the pod that we are.
    pub fn inferred() -> Self {
        let operator_namespace = std::fs::read_to_string(Path::new(OWN_NAMESPACE)).ok();
        let operator_namespace = operator_namespace.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        Self(Arc::new(Inside { client: OnceCell::new(), operator_namespace }))
    }

    pub(super) fn operator_namespace(&self) -> Option<&str> {
        self.0.operator_namespace.as_deref()
    }

    /// The client, or why there is none.
    pub(super) async fn client(&self) -> Result<Client, String> {
        self.0.client.get_or_try_init(infer).await.cloned()
    }
}

async fn infer() -> Result<Client, String> {
    let config =
        tokio::time::timeout(LIMIT, Config::infer()).await.map_err(|_| "reading it took too long".to_owned())?;
    let mut config = config.map_err(|error| error.to_string())?;
    config.connect_timeout = Some(CONNECT_WITHIN);
    // Whoever asked has a backoff of its own.
    config.default_retry = false;
    Client::try_from(config).map_err(|error| error.to_string())
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("connected", &self.0.client.initialized()).finish_non_exhaustive()
    }
}
