//! Operators as the replicas of one Deployment: each with a pod, a ServiceAccount and a token of its own, so that the
//! audit log tells them apart.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, ListParams, PostParams};
use reqwest::Method;
use serde_json::{Value, json};

use crate::eventually;
use crate::operator::Launch;
use crate::plane::{Audited, Plane};
use crate::relay::Relay;
use crate::site::Site;

/// The name of the Deployment, hence of the Lease.
const NAME: &str = "op";

/// The replicas of one Deployment, in a namespace of their own.
pub(crate) struct Group<'p> {
    plane: &'p Plane,
    pub(crate) namespace: String,
    pods: Api<Pod>,
}

impl<'p> Group<'p> {
    pub(crate) async fn new(plane: &'p Plane, prefix: &str) -> Self {
        let namespace = plane.namespace(prefix).await;
        let pods = Api::namespaced(plane.client().await, &namespace);
        Self { plane, namespace, pods }
    }

    /// A replica on its own site, not started yet. Its Proxies are those of the namespace.
    pub(crate) async fn replica<'s>(&self, site: &'s Site, name: &str) -> Launch<'s> {
        let kubeconfig = self.kubeconfig(name).await;
        self.launch(site, name, kubeconfig).await
    }

    /// One whose way to the API server can be cut.
    pub(crate) async fn cuttable<'s>(&self, site: &'s Site, name: &str) -> (Launch<'s>, Relay) {
        let relay = Relay::before(self.plane.port()).await;
        let kubeconfig = self.kubeconfig(name).await;
        let text = std::fs::read_to_string(&kubeconfig).unwrap();
        std::fs::write(&kubeconfig, text.replace(&self.plane.url(), &format!("https://127.0.0.1:{}", relay.port)))
            .unwrap();
        (self.launch(site, name, kubeconfig).await, relay)
    }

    async fn launch<'s>(&self, site: &'s Site, name: &str, kubeconfig: PathBuf) -> Launch<'s> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "egress-proxies-operator"}},
            "spec": {"containers": [{"name": "manager", "image": "operator.invalid"}]},
        });
        let made = self.pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        site.operator()
            .in_cluster(&kubeconfig)
            .env("POD_NAME", name)
            .env("POD_UID", made.metadata.uid.unwrap())
            .env("POD_NAMESPACE", &self.namespace)
            .env("EGRESS_OPERATOR_NAME", NAME)
            .args(&["--proxy-namespace", &self.namespace])
    }

    /// With the token of a ServiceAccount that may do everything: which rights are needed is another test's subject.
    async fn kubeconfig(&self, name: &str) -> PathBuf {
        self.plane.service_account(&self.namespace, name).await;
        let binding = json!({
            "metadata": {"name": format!("{}-{name}", self.namespace)},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.namespace}],
        });
        let bindings = Api::<ClusterRoleBinding>::all(self.plane.client().await);
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        self.plane.kubeconfig_for(&self.plane.token(&self.namespace, name).await)
    }

    /// The pods that the Service would send crawlers to.
    pub(crate) async fn labelled(&self) -> Vec<String> {
        let leaders = ListParams::default().labels("crawl.example.com/role=leader");
        let found = self.pods.list_metadata(&leaders).await.unwrap();
        found.items.into_iter().filter_map(|pod| pod.metadata.name).collect()
    }

    /// Waits until this pod, and no other, has the label.
    pub(crate) async fn only_labelled(&self, name: &str) {
        eventually(&format!("{name} alone has the leader's label"), async || {
            (self.labelled().await == [name]).then_some(())
        })
        .await;
    }

    /// What this replica has asked the API server for since then, each request once.
    pub(crate) fn asked_since(&self, name: &str, since: Timestamp) -> Vec<Audited> {
        let user = format!("system:serviceaccount:{}:{name}", self.namespace);
        let mut lines = self.plane.audited();
        lines.retain(|line| line.is_complete() && line.user.username == user);
        lines.retain(|line| line.request_received_timestamp > since);
        lines
    }
}

/// What a replica answers to a lease call: status, `Retry-After`, body.
pub(crate) async fn ask(site: &Site, method: Method, path: &str) -> (u16, Option<u64>, Value) {
    egress_operator::crypto::install();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().unwrap();
    let url = format!("http://{}{path}", site.discovery);
    let answer = client.request(method, url).bearer_auth(crate::operator::TOKEN).json(&json!({})).send().await.unwrap();
    let retry_after = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    (answer.status().as_u16(), retry_after, answer.json().await.unwrap())
}

/// Waits until this replica grants a lease of that Proxy: the lease, and how long that took.
pub(crate) async fn granted(api: &crate::api::Api, name: &str) -> (Value, Duration) {
    let begun = Instant::now();
    let lease = eventually(&format!("{name} is leased"), async || {
        let (code, mut body) = api.try_lease(name).await;
        (code == 201).then(|| body["leases"][0].take())
    })
    .await;
    (lease, begun.elapsed())
}
