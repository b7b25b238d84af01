//! Where the cluster is, and the clients for it.
//!
//! Two kinds: one for calls and one for watches, as the limits of the one would cut the other. kube has no limit of
//! reading by default and tries a call again up to 15 times; both are set here.

use std::net::IpAddr;
use std::time::Duration;

use egress_actors::domain::reason::Reason;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::failure;
use crate::causes;

/// The server ends each watch after this long; it goes on from where it was, without a list. A watch whose network
/// swallows everything is noticed soon after.
pub(super) const WATCH_FOR: Duration = Duration::from_secs(60);

/// An answer that stalls longer between two bytes is not coming any more.
const CALL_STALLS_AFTER: Duration = Duration::from_secs(20);

/// Why there is no cluster. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "no cluster: {0}; run in a pod, set KUBECONFIG to a readable kubeconfig, or pass --standalone DIR to run without one"
    )]
    NoCluster(String),
    #[error(
        "the cluster's client cannot be made: {0}; look at the certificates, the credentials and the `proxy-url` of the kubeconfig, and at HTTPS_PROXY (http and https proxies are supported)"
    )]
    Client(String),
    #[error("the API server does not answer: {0}; look at its address in the kubeconfig, and at the network")]
    Away(String),
    #[error(
        "the cluster does not tell its id: {0}; allow `get` of the namespace kube-system (config/rbac has it), or pass --operator-id"
    )]
    NoId(String),
    #[error("the operator's id cannot be made of cluster, namespace and name: {0}; pass --operator-id")]
    OperatorId(String),
}

/// In a pod the cluster that it runs in, else that of `KUBECONFIG` or `~/.kube/config`.
pub(super) async fn config() -> Result<Config, ClusterError> {
    let none = |error: &dyn std::error::Error| ClusterError::NoCluster(causes::told(error));
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster().map_err(|error| none(&error));
    }
    let read = Kubeconfig::read().map_err(|error| none(&error))?;
    let is_named = read.clusters.iter().filter_map(|cluster| cluster.cluster.as_ref()).any(|it| it.proxy_url.is_some());
    let mut config =
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(|error| none(&error))?;
    // kube takes a proxy of the environment for every server: it compares NO_PROXY with the proxy's own name.
    let except = ["NO_PROXY", "no_proxy"].into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
    if !is_named && config.cluster_url.host().is_some_and(|host| is_direct(host, &except)) {
        config.proxy_url = None;
    }
    Ok(config)
}

/// Whether a server is reached without the proxy of the environment, as other programs read `NO_PROXY`: names with all
/// that is below them, addresses, networks, `*`. What is on this machine never goes through a proxy.
fn is_direct(host: &str, except: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    except.split(',').map(|entry| entry.trim().to_ascii_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        if let (Some(address), Ok(network)) = (address, entry.parse::<IpNet>()) {
            return network.contains(&address);
        }
        let name = entry.trim_start_matches('*').trim_start_matches('.');
        entry == "*" || host == name || (address.is_none() && host.ends_with(&format!(".{name}")))
    })
}

/// The clients of one runtime, and what to make more of them from.
#[derive(Clone)]
pub(super) struct Clients {
    config: Config,
    calls: Client,
    watches: Client,
}

impl Clients {
    pub(super) fn new(config: Config) -> Result<Self, ClusterError> {
        let mut calls = config;
        calls.default_retry = false;
        calls.connect_timeout = Some(Duration::from_secs(5));
        calls.read_timeout = Some(CALL_STALLS_AFTER);
        calls.reset_reader_on_write = true;
        let mut watches = calls.clone();
        watches.read_timeout = Some(WATCH_FOR + Duration::from_secs(20));
        Ok(Self { calls: client(&calls)?, watches: client(&watches)?, config: calls })
    }

    pub(super) fn calls(&self) -> &Client {
        &self.calls
    }

    pub(super) fn watches(&self) -> &Client {
        &self.watches
    }

    /// One more for calls, with connections of its own on the runtime that this is called on.
    pub(super) fn another(&self) -> Result<Client, ClusterError> {
        client(&self.config)
    }

    pub(super) fn default_namespace(&self) -> &str {
        &self.config.default_namespace
    }

    pub(super) fn url(&self) -> String {
        self.config.cluster_url.to_string()
    }

    /// The uid of `kube-system`: the usual name for a cluster that has none.
    pub(super) async fn cluster_uid(&self) -> Result<String, ClusterError> {
        let namespaces: Api<Namespace> = Api::all(self.calls.clone());
        let found = failure::call("read the namespace kube-system", namespaces.get_metadata("kube-system")).await;
        let found = found.map_err(|error| match error.reason {
            Reason::Unreachable | Reason::Timeout | Reason::APIError => ClusterError::Away(error.detail),
            _ => ClusterError::NoId(error.detail),
        })?;
        found.metadata.uid.ok_or_else(|| ClusterError::NoId("the namespace kube-system has no uid".to_owned()))
    }
}

fn client(config: &Config) -> Result<Client, ClusterError> {
    Client::try_from(config.clone()).map_err(|error| ClusterError::Client(causes::told(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_directly_where_no_proxy_says_so() {
        for (host, except, direct) in [
            ("10.1.2.3", "", false),
            ("127.0.0.1", "", true),
            ("[::1]", "", true),
            ("localhost", "", true),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8, 11.1.2.3", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("api.cluster.example", "cluster.example", true),
            ("api.cluster.example", ".Cluster.example", true),
            ("api.cluster.example", "*.cluster.example", true),
            ("apicluster.example", "cluster.example", false),
            ("api.cluster.example", "*", true),
            ("api.cluster.example", ",", false),
        ] {
            assert_eq!(is_direct(host, except), direct, "{host} {except}");
        }
    }
}
