//! Proxies that are pods, from the object to the tunnel: the real binary, the real API server, real Squids.

use std::fs;

use kube::api::{Api, DeleteParams, ListParams};
use reqwest::Method;
use serde_json::json;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};

use crate::api::fetch;
use crate::eventually;
use crate::kubelet::Kubelet;
use crate::life::Proxies;
use crate::manifest::managed;
use crate::plane::Plane;
use crate::site::Site;

#[tokio::test]
async fn a_pod_is_made_for_a_proxy_probed_leased_replaced_when_it_is_lost_and_removed_without_a_trace() {
    let plane = Plane::shared().await;
    let Some(site) = Site::new() else { return };
    let (namespace, pods_in) = (plane.namespace("crawlers").await, plane.namespace("squids").await);
    let client = plane.client().await;
    let kubelet = Kubelet::of(client.clone(), &pods_in);
    let entry = format!("{{name: local, type: kubernetes, namespace: {pods_in}, auth: generated}}");
    fs::write(site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
    let operator = site
        .operator()
        .in_cluster(&plane.kubeconfig())
        .args(&["--proxy-namespace", &namespace, "--list-interval", "1s"])
        .start()
        .await;

    let proxies = Proxies::of(plane, &namespace).await;
    proxies.apply(&managed("px-1").namespace(&namespace)).await;
    let first = proxies.becomes("px-1", "Ready").await.status.unwrap();
    let lease = eventually("it is leased", async || {
        let (code, mut body) = operator.api.try_lease("px-1").await;
        (code == 201).then(|| body["leases"][0].take())
    })
    .await;
    assert!(lease["proxy"]["password"].as_str().is_some_and(|password| !password.is_empty()), "{lease}");
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);

    // A node is drained, or somebody deletes the pod.
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pods_in);
    let made = pods.list(&ListParams::default()).await.unwrap().items.remove(0).metadata.name.unwrap();
    pods.delete(&made, &DeleteParams::default()).await.unwrap();
    let second = eventually("it is Ready at another address", async || {
        let status = proxies.get("px-1").await?.status?;
        (status.phase.as_deref() == Some("Ready") && status.address != first.address).then_some(status)
    })
    .await;
    assert_ne!(first.provider_id, second.provider_id);
    let renew = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
    let (code, gone) = operator.api.call(Method::POST, &renew, Some(&json!({}))).await;
    assert_eq!((code, &gone["endedBy"]), (410, &"proxy_replaced".into()), "{gone}");

    proxies.delete("px-1").await;
    eventually("the object is gone", async || proxies.get("px-1").await.is_none().then_some(())).await;
    let nothing = ListParams::default().labels("crawl.example.com/instance");
    assert!(pods.list(&nothing).await.unwrap().items.is_empty());
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &pods_in).list(&nothing).await.unwrap().items;
    let secrets = Api::<Secret>::namespaced(client, &pods_in).list(&nothing).await.unwrap().items;
    assert!(maps.is_empty() && secrets.is_empty(), "{maps:?}");
    assert_eq!(operator.terminate().await.code, Some(0));
    drop(kubelet);
}
