//! The cluster as its admin sees it, and the figures that the claims leave.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Mutex;

use egress_operator::crd::proxy::Proxy;
use k8s_openapi::api::core::v1::{Event, Pod, Secret, Service};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::eventually;
use crate::target::Target;

pub(crate) const SYSTEM: &str = "egress-system";
pub(crate) const NAME: &str = "egress-proxies-operator";
/// Where the Proxies are, and where their pods are.
pub(crate) const CRAWL: &str = "crawl";
pub(crate) const SQUIDS: &str = "crawl-proxies";

pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) target: Target,
    figures: Mutex<String>,
}

impl Cluster {
    pub(crate) async fn connect() -> Self {
        let mut config = Config::infer().await.expect("KUBECONFIG is that of the node: run `make e2e`");
        // A refused eviction is an answer, and kube would ask again until it is granted.
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        Self { client, target: Target::start(), figures: Mutex::default() }
    }

    pub(crate) fn figure(&self, what: &str, value: &str) {
        println!("        {what}: {value}");
        let mut figures = self.figures.lock().unwrap();
        writeln!(figures, "  {what:<58} {value}").unwrap();
    }

    pub(crate) fn figures(&self) -> String {
        format!("Figures\n{}", self.figures.lock().unwrap())
    }

    // --- tools, as a person runs them in the checkout

    pub(crate) async fn run(&self, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(program)
            .args(arguments)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap()
    }

    /// Fails with what kubectl said; else what it printed.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> String {
        let output = self.run("kubectl", arguments, &[]).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "kubectl {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// What a person would look at first, when a claim has failed.
    pub(crate) async fn tell_state(&self) {
        for arguments in [
            &["get", "pods", "-A", "-o", "wide", "-L", "crawl.example.com/role"][..],
            &["get", "px,ph", "-A", "-o", "wide"],
            &["-n", SYSTEM, "get", "lease,endpointslices"],
            &["-n", SYSTEM, "logs", "-l", "app.kubernetes.io/name=egress-proxies-operator", "--tail=8", "--prefix"],
        ] {
            let output = self.run("kubectl", arguments, &[]).await;
            println!("$ kubectl {}\n{}", arguments.join(" "), String::from_utf8_lossy(&output.stdout));
        }
    }

    // --- the operator

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn replicas(&self) -> Vec<Pod> {
        let ours = ListParams::default().labels("app.kubernetes.io/name=egress-proxies-operator");
        let all = self.pods(SYSTEM).list(&ours).await.unwrap().items;
        all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect()
    }

    pub(crate) async fn leader(&self) -> Pod {
        eventually("one pod has the leader's label", async || {
            let mut leaders = self.replicas().await;
            leaders.retain(|pod| pod.labels().get("crawl.example.com/role").is_some_and(|role| role == "leader"));
            (leaders.len() == 1).then(|| leaders.remove(0))
        })
        .await
    }

    /// Both replicas ready, one with the label.
    pub(crate) async fn settled(&self) -> Pod {
        eventually("two replicas are ready", async || {
            let replicas = self.replicas().await;
            (replicas.len() == 2 && replicas.iter().all(is_ready)).then_some(())
        })
        .await;
        self.leader().await
    }

    pub(crate) async fn token(&self) -> String {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), SYSTEM);
        let secret = secrets.get("egress-proxies-operator-tokens").await.unwrap();
        String::from_utf8(secret.data.unwrap()["DISCOVERY_TOKEN"].0.clone()).unwrap()
    }

    /// The lease API at its Service's own address.
    pub(crate) async fn discovery(&self) -> String {
        let services = Api::<Service>::namespaced(self.client.clone(), SYSTEM);
        let service = services.get("egress-discovery").await.unwrap();
        format!("http://{}:8090", service.spec.unwrap().cluster_ip.unwrap())
    }

    // --- Proxies

    pub(crate) fn proxies(&self) -> Api<Proxy> {
        Api::namespaced(self.client.clone(), CRAWL)
    }

    /// A Proxy of the entry `pods`, probed each second. `placement` is YAML, or empty.
    pub(crate) async fn apply(&self, name: &str, placement: &str) {
        let placement: Value =
            if placement.is_empty() { Value::Null } else { serde_saphyr::from_str(placement).unwrap() };
        let mut managed = json!({"provider": "pods"});
        if !placement.is_null() {
            managed["placement"] = placement;
        }
        let object = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy",
            "metadata": {"name": name, "namespace": CRAWL},
            "spec": {
                "managed": managed, "attributes": {"tier": "dc", "n": name}, "maxLeases": 50,
                "healthCheck": {"interval": "1s", "timeout": "1s", "failureThreshold": 2},
            },
        });
        self.proxies().patch(name, &PatchParams::apply("a-person"), &Patch::Apply(&object)).await.unwrap();
    }

    pub(crate) async fn ready(&self, name: &str) -> Proxy {
        eventually(&format!("{name} is Ready"), async || {
            let proxy = self.proxies().get(name).await.unwrap();
            (phase(&proxy) == "Ready").then_some(proxy)
        })
        .await
    }

    /// The pod of a Proxy that is there and not on its way out.
    pub(crate) async fn squid(&self, name: &str) -> Option<Pod> {
        let all = self.pods(SQUIDS).list(&ListParams::default()).await.unwrap().items;
        all.into_iter().find(|pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod
                    .annotations()
                    .get("crawl.example.com/owner-proxy")
                    .is_some_and(|owner| *owner == format!("{CRAWL}/{name}"))
        })
    }

    /// The reasons and notes of the events about an object.
    pub(crate) async fn told(&self, namespace: &str, name: &str) -> Vec<String> {
        let events =
            Api::<Event>::namespaced(self.client.clone(), namespace).list(&ListParams::default()).await.unwrap();
        let about = events.items.into_iter().filter(|event| event.involved_object.name.as_deref() == Some(name));
        about.map(|e| format!("{}: {}", e.reason.unwrap_or_default(), e.message.unwrap_or_default())).collect()
    }
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(crate) fn phase(proxy: &Proxy) -> &str {
    proxy.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
