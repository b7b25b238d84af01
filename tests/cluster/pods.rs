//! The provider `kubernetes` on a real API server: what it makes is taken by it, also under the `restricted` pod security
//! standard, and all that a backend must do. The test plays scheduler and kubelet.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::desired::Placement;
use egress_actors::domain::error::Class;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{Credentials, Instance, InstanceSpec, InstanceState, OwnerMark};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_actors::testkit::conformance::{Breakage, ConformanceRig};
use egress_operator::config::providers::{Entry, KubernetesEntry, parse};
use egress_operator::providers::kubernetes::{Cluster, KubernetesBackend};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::eventually;
use crate::plane::Plane;

mod life;
mod refusals;
mod world;

/// A namespace of its own, under `restricted`, with a kubelet.
struct Rig {
    plane: &'static Plane,
    client: Client,
    namespace: String,
    entry: KubernetesEntry,
    kubelet: JoinHandle<()>,
    /// With few rights or none: what backends get while it is there.
    denied: Mutex<Option<Client>>,
}

fn entry(namespace: &str, fields: &str) -> KubernetesEntry {
    let text = format!("providers: [{{name: pods, type: kubernetes, namespace: {namespace}, {fields}}}]");
    match parse(std::path::Path::new("p.yaml"), text.as_bytes()).unwrap().entries.remove(0) {
        Entry::Kubernetes(entry) => *entry,
        other @ (Entry::Process(_) | Entry::Libvirt(_)) => panic!("{other:?}"),
    }
}

impl Rig {
    async fn new(fields: &str) -> Self {
        let plane = Plane::shared().await;
        let client = plane.client().await;
        let namespace = plane.namespace("pods").await;
        let restricted = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
        let namespaces = Api::<Namespace>::all(client.clone());
        namespaces.patch(&namespace, &PatchParams::default(), &Patch::Merge(&restricted)).await.unwrap();
        let kubelet = tokio::spawn(kubelet(Api::namespaced(client.clone(), &namespace)));
        Self { plane, client, entry: entry(&namespace, fields), namespace, kubelet, denied: Mutex::default() }
    }

    fn backend_of(&self, client: Client) -> KubernetesBackend {
        KubernetesBackend::new(self.entry.clone(), Cluster::of(client, None), Vec::new())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Kinds of what is there of this mark, by its label.
    async fn kinds(&self, mark: &OwnerMark) -> Vec<&'static str> {
        let of = ListParams::default().labels(&format!("crawl.example.com/instance={}", name(mark)));
        let policies = Api::<NetworkPolicy>::namespaced(self.client.clone(), &self.namespace);
        let counts = [
            ("Pod", self.pods().list_metadata(&of).await.unwrap().items.len()),
            ("ConfigMap", self.config_maps().list_metadata(&of).await.unwrap().items.len()),
            ("Secret", self.secrets().list_metadata(&of).await.unwrap().items.len()),
            ("NetworkPolicy", policies.list_metadata(&of).await.unwrap().items.len()),
        ];
        counts.into_iter().filter(|(_, count)| *count > 0).map(|(kind, _)| kind).collect()
    }

    /// Creates and waits until the kubelet has it up.
    async fn made(&self, spec: &InstanceSpec) -> Instance {
        let backend = self.backend();
        backend.create(spec).await.unwrap();
        self.until(&spec.mark, "it runs", |instance| instance.state == InstanceState::Running).await;
        backend.get(&spec.mark).await.unwrap()
    }

    async fn until(&self, mark: &OwnerMark, what: &str, is_so: impl Fn(&Instance) -> bool) {
        // A plain loop: as a closure it would not be known to be `Send` for the rig's boxed futures.
        let backend = self.backend();
        let begun = std::time::Instant::now();
        while !backend.get(mark).await.is_ok_and(|instance| is_so(&instance)) {
            assert!(begun.elapsed() < Duration::from_mins(1), "{what}: not within a minute");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Deletes until nothing is left.
    async fn gone(&self, mark: &OwnerMark) {
        let backend = self.backend();
        eventually("it is gone", async || {
            backend.delete(mark).await.unwrap();
            backend.get(mark).await.err().filter(|error| error.class == Class::NotFound)
        })
        .await;
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.kubelet.abort();
    }
}

/// The name that the provider must give: known here on its own, as scripts of people rely on it.
fn name(mark: &OwnerMark) -> String {
    use sha2::Digest as _;
    let hash: String = sha2::Sha256::digest(mark.uid.as_str()).iter().take(6).map(|b| format!("{b:02x}")).collect();
    format!("{}-{hash}", mark.key.name())
}

/// Gives each pod a node and an address, and ends those that go. A pod with the annotation `hold` keeps the status that
/// its test gave it.
async fn kubelet(pods: Api<Pod>) {
    static ADDRESS: AtomicU32 = AtomicU32::new(0x0a01_0001);
    loop {
        tokio::time::sleep(Duration::from_millis(25)).await;
        let Ok(list) = pods.list(&ListParams::default()).await else { continue };
        for pod in list.items {
            let name = pod.name_any();
            if pod.annotations().contains_key("hold") {
                continue;
            }
            if pod.metadata.deletion_timestamp.is_some() {
                let _gone = pods.delete(&name, &DeleteParams::default().grace_period(0)).await;
            } else if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_none()) {
                bind(&pods, &name).await;
            } else if pod.status.as_ref().is_none_or(|status| status.pod_ip.is_none()) {
                let address = std::net::Ipv4Addr::from(ADDRESS.fetch_add(1, Ordering::Relaxed));
                set_status(&pods, &name, &well(&address.to_string())).await;
            }
        }
    }
}

async fn bind(pods: &Api<Pod>, name: &str) {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    });
    let _bound: Result<Value, _> = pods.create_subresource("binding", name, &PostParams::default(), &binding).await;
}

fn well(address: &str) -> Value {
    json!({
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "containerStatuses": [container(true, &json!({"running": {}}), &json!({}))]
    })
}

fn container(ready: bool, state: &Value, last: &Value) -> Value {
    json!({
        "name": "squid", "image": "squid", "imageID": "", "ready": ready, "restartCount": 0,
        "state": state, "lastState": last
    })
}

async fn set_status(pods: &Api<Pod>, name: &str, status: &Value) {
    let patch = json!({"status": status});
    let _set = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
}

mod conforms {
    use super::Rig;

    egress_actors::conformance_tests!(Rig::new("auth: none").await);
}

mod conforms_with_auth_and_policy {
    use super::Rig;

    egress_actors::conformance_tests!(Rig::new("allowedNamespaces: [crawl]").await);
}
