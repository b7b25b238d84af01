//! The whole life of Proxies in a cluster, seen with a real API server, the real binary and real Squids.

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use reqwest::Method;
use serde_json::json;

use egress_operator::crd::FINALIZER;
use egress_operator::crd::proxy::Proxy;

use crate::api::fetch;
use crate::eventually;
use crate::manifest::{Manifest, managed};
use crate::plane::Plane;
use crate::site::Site;

/// The Proxies of one namespace.
pub(crate) struct Proxies(pub(crate) Api<Proxy>);

impl Proxies {
    pub(crate) async fn of(plane: &Plane, namespace: &str) -> Self {
        Self(Api::namespaced(plane.client().await, namespace))
    }

    pub(crate) async fn apply(&self, manifest: &Manifest) {
        let object: serde_json::Value = serde_saphyr::from_str(&manifest.yaml()).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        self.0.patch(&name, &PatchParams::apply("a-person"), &Patch::Apply(&object)).await.unwrap();
    }

    pub(crate) async fn get(&self, name: &str) -> Option<Proxy> {
        self.0.get_opt(name).await.unwrap()
    }

    /// Waits for this phase.
    pub(crate) async fn becomes(&self, name: &str, phase: &str) -> Proxy {
        eventually(&format!("{name} is {phase}"), async || {
            let proxy = self.get(name).await?;
            (proxy.status.as_ref()?.phase.as_deref() == Some(phase)).then_some(proxy)
        })
        .await
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) async fn all(&self) -> Vec<Proxy> {
        self.0.list(&ListParams::default()).await.unwrap().items
    }
}

#[tokio::test]
async fn a_proxy_is_applied_recorded_made_probed_leased_used_and_deleted_and_nothing_is_left() {
    let plane = Plane::shared().await;
    let Some(site) = Site::new() else { return };
    let namespace = plane.namespace("life").await;
    let proxies = Proxies::of(plane, &namespace).await;
    let operator =
        site.operator().in_cluster(&plane.kubeconfig()).args(&["--proxy-namespace", &namespace]).start().await;

    proxies.apply(&managed("px-1").namespace(&namespace)).await;
    let ready = proxies.becomes("px-1", "Ready").await;
    assert_eq!(ready.metadata.finalizers.unwrap(), [FINALIZER]);
    assert_eq!(ready.metadata.annotations.unwrap()["crawl.example.com/host"], "local");
    let status = ready.status.unwrap();
    assert_eq!(status.observed_generation, ready.metadata.generation);
    let lease = eventually("it is leased", async || {
        let (code, mut body) = operator.api.try_lease("px-1").await;
        (code == 201).then(|| body["leases"][0].take())
    })
    .await;
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
    assert_eq!(lease["proxy"]["name"], format!("{namespace}/px-1"));

    proxies.delete("px-1").await;
    eventually("the object is gone", async || proxies.get("px-1").await.is_none().then_some(())).await;
    assert!(site.squids().is_empty() && site.folders().is_empty(), "{:?}", site.folders());
    let renew = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
    assert_eq!(operator.api.call(Method::POST, &renew, Some(&json!({}))).await.0, 410);
    assert_eq!(operator.terminate().await.code, Some(0));
}
