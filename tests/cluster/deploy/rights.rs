//! The real binary with the token of its own ServiceAccount, under the RBAC that is shipped: whatever it does in a whole
//! life it may do, and what it may do and never does is known.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, PostParams};
use kube::core::DynamicObject;
use rustix::process::Signal;
use serde_json::{Value, json};

use egress_operator::crd::ROLE_LABEL;
use egress_operator::crd::provider_health::ProviderHealth;

use super::{NAME, NAMESPACE, apply, checkout, documents, of_kind, pod_of, rendered};
use crate::api::fetch;
use crate::kubelet::Kubelet;
use crate::life::Proxies;
use crate::manifest::managed;
use crate::plane::{Audited, Options, Plane};
use crate::site::Site;
use crate::{eventually, squids};

/// Granted and not used in a life in which little goes wrong, and why it is granted all the same.
const UNUSED: [&str; 4] = [
    // An object of an operator of before, without the mark of its owner, is marked: `healths::one_of_an_operator_of_before_..`.
    "patch crawl.example.com/providerhealths",
    // What is not as it should be is put right before a pod starts: `pods::a_configuration_of_before_is_put_right_..`.
    "update configmaps in crawl-proxies",
    "update networking.k8s.io/networkpolicies in crawl-proxies",
    "update secrets in crawl-proxies",
];

/// A right, as `verb group/resource in namespace`.
fn right(verb: &str, group: &str, resource: &str, namespace: &str) -> String {
    let slash = if group.is_empty() { "" } else { "/" };
    let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
    format!("{verb} {group}{slash}{resource}{place}")
}

/// What the shipped roles grant.
fn granted(documents: &[Value]) -> BTreeSet<String> {
    let mut rights = BTreeSet::new();
    for role in of_kind(documents, "Role").chain(of_kind(documents, "ClusterRole")) {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        for rule in role["rules"].as_array().unwrap() {
            let list = |field: &str| -> Vec<String> { serde_json::from_value(rule[field].clone()).unwrap() };
            for verb in list("verbs") {
                assert_ne!(verb, "*", "{rule}");
                for (group, resource) in
                    list("apiGroups").iter().flat_map(|g| list("resources").into_iter().map(move |r| (g, r)))
                {
                    rights.insert(right(&verb, group, &resource, namespace));
                }
            }
        }
    }
    rights
}

/// The rights that a request may have gone by: in its namespace, or everywhere.
fn used(line: &Audited) -> [String; 2] {
    let object = &line.object_ref;
    let resource = match object.subresource.as_str() {
        "" => object.resource.clone(),
        sub => format!("{}/{sub}", object.resource),
    };
    let of = |namespace: &str| right(&line.verb, &object.api_group, &resource, namespace);
    [of(&object.namespace), of("")]
}

async fn lives_on(variant: &str, arguments: &[&str], more_unused: &[&str]) {
    let plane = Plane::start(Options { audit: true, controllers: false }).await;
    let Some(site) = Site::new() else { return };
    let client = plane.client().await;
    let shipped = documents(&rendered(&checkout(variant)));
    let said = plane.kubectl(&["create", "namespace", "crawl"]);
    assert!(said.ok, "{said:?}");
    let said = apply(&plane, &rendered(&checkout(variant)));
    assert!(said.ok, "{said:?}");

    // What a controller would put there.
    plane.service_account("crawl-proxies", "default").await;

    // The pod that the operator takes itself for.
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let us = pods.create(&PostParams::default(), &pod_of(&shipped, "operator-1")).await.unwrap();
    let role = async || pods.get("operator-1").await.unwrap().metadata.labels.unwrap().get(ROLE_LABEL).cloned();
    let local = site.entry("local", "");
    let pods_and_broken = "  - {name: pods, type: kubernetes, namespace: crawl-proxies, allowedNamespaces: [crawl]}\n  \
                           - {name: broken, type: process, binary: /none, listen: 127.0.0.1, ports: 31998-31999}\n";
    std::fs::write(site.providers_config(), format!("{local}{pods_and_broken}")).unwrap();
    let token = plane.token(NAMESPACE, NAME).await;
    let operator = site
        .operator()
        .in_cluster(&plane.kubeconfig_for(&token))
        .args(&["--list-interval", "1s"])
        .args(arguments)
        .env("EGRESS_OPERATOR_NAME", NAME)
        .env("POD_NAMESPACE", NAMESPACE)
        .env("POD_NAME", "operator-1")
        .env("POD_UID", us.metadata.uid.unwrap())
        .start()
        .await;
    eventually("it leads, and its pod says so", async || role().await.filter(|role| role == "leader")).await;

    // One of its own Squids, with a Secret.
    let secrets = Api::<Secret>::namespaced(client.clone(), "crawl");
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "px-auth", "labels": {egress_operator::crd::SECRET_LABEL: "true"}},
        "stringData": {"username": "ann", "password": "open sesame"},
    }))
    .unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let proxies = Proxies::of(&plane, "crawl").await;
    let flavor = "managed: {provider: local, credentialsSecretRef: {name: px-auth}}";
    proxies.apply(&managed("px-1").flavor(flavor)).await;
    proxies.becomes("px-1", "Ready").await;
    let lease = eventually("it is leased", async || {
        let (code, mut body) = operator.api.try_lease("px-1").await;
        (code == 201).then(|| body["leases"][0].take())
    })
    .await;
    assert_eq!(lease["proxy"]["password"], "open sesame");
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
    // The same words about it again are counted on their event.
    let events = Api::<Event>::namespaced(client.clone(), "crawl");
    eventually("its stops are one event", async || {
        let phase = proxies.get("px-1").await.unwrap().status.unwrap().phase;
        if let Some(squid) = site.squid_of("px-1").filter(|_| phase.as_deref() == Some("Ready")) {
            squids::signal(squid, Signal::KILL);
        }
        let told = events.list(&ListParams::default()).await.unwrap().items;
        let stopped = told.iter().find(|event| event.reason.as_deref() == Some("InstanceStopped"))?;
        assert_eq!(stopped.regarding.as_ref().unwrap().name.as_deref(), Some("px-1"));
        stopped.series.as_ref().map(drop)
    })
    .await;

    // One in a pod.
    let _kubelet = Kubelet::of(client.clone(), "crawl-proxies");
    proxies.apply(&managed("px-2").flavor("managed: {provider: pods}")).await;
    proxies.becomes("px-2", "Ready").await;
    for name in ["px-2", "px-1"] {
        proxies.delete(name).await;
        eventually("the object is gone", async || proxies.get(name).await.is_none().then_some(())).await;
    }
    let squids = Api::<Pod>::namespaced(client.clone(), "crawl-proxies");
    assert_eq!(squids.list_metadata(&ListParams::default()).await.unwrap().items.len(), 0);

    // A host that fails is an event; an entry that goes takes its ProviderHealth along.
    let healths = Api::<ProviderHealth>::all(client.clone());
    eventually("all entries are told", async || {
        (healths.list_metadata(&ListParams::default()).await.unwrap().items.len() == 3).then_some(())
    })
    .await;
    let of_hosts = Api::<Event>::namespaced(client.clone(), "default");
    eventually("what is wrong with a host is told", async || {
        let told = of_hosts.list(&ListParams::default()).await.unwrap().items;
        told.iter().any(|event| event.regarding.as_ref().unwrap().name.as_deref() == Some("broken")).then_some(())
    })
    .await;
    std::fs::write(site.providers_config(), &local).unwrap();
    eventually("their health is gone", async || {
        (healths.list_metadata(&ListParams::default()).await.unwrap().items.len() == 1).then_some(())
    })
    .await;
    assert_eq!(operator.terminate().await.code, Some(0));
    assert_eq!(role().await, None, "the label goes with the claim");

    let us = format!("system:serviceaccount:{NAMESPACE}:{NAME}");
    let ours: Vec<_> = plane.audited().into_iter().filter(|line| line.user.username == us).collect();
    assert!(ours.len() > 50, "{}", ours.len());
    let refused: Vec<_> = ours
        .iter()
        .filter(|line| line.response_status.as_ref().is_some_and(|status| matches!(status.code, 401 | 403)))
        .map(|line| format!("{} {}", line.verb, line.uri))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");

    let used: BTreeSet<String> = ours.iter().flat_map(used).collect();
    let unused: BTreeSet<_> = granted(&shipped).into_iter().filter(|right| !used.contains(right)).collect();
    let known: BTreeSet<_> = UNUSED.iter().chain(more_unused).map(|right| (*right).to_owned()).collect();
    assert_eq!(unused, known, "granted and never used");
}

#[tokio::test]
async fn a_whole_life_under_the_shipped_rights_is_never_refused_and_uses_all_of_them() {
    lives_on("config/default", &[], &[]).await;
}

#[tokio::test]
async fn with_rights_in_one_namespace_only_it_lives_the_same_life() {
    // It would count the same words about a host within some minutes.
    let unused = ["patch events.k8s.io/events in default"];
    lives_on("config/namespaced", &["--proxy-namespace", "crawl"], &unused).await;
}

#[tokio::test]
async fn the_shipped_rights_reach_no_secret_that_is_not_needed() {
    // Of the variant for one namespace: nothing of any other.
    let plane = Plane::start(Options::default()).await;
    let said = plane.kubectl(&["create", "namespace", "crawl"]);
    assert!(said.ok, "{said:?}");
    let said = apply(&plane, &rendered(&checkout("config/namespaced")));
    assert!(said.ok, "{said:?}");
    let client = plane.client_for(&plane.token(NAMESPACE, NAME).await).await;
    let secrets = |namespace: &str| Api::<Secret>::namespaced(client.clone(), namespace);
    secrets("crawl").list(&ListParams::default()).await.unwrap();
    for namespace in [NAMESPACE, "default", "kube-system"] {
        let refused = secrets(namespace).list(&ListParams::default()).await.unwrap_err();
        assert!(refused.to_string().contains("forbidden"), "{namespace}: {refused}");
    }
    let proxies = kube::core::ApiResource::erase::<egress_operator::crd::proxy::Proxy>(&());
    let everywhere = Api::<DynamicObject>::all_with(client.clone(), &proxies);
    assert!(everywhere.list(&ListParams::default()).await.is_err());
}
