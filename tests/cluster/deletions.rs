//! A deletion always finishes: whatever stands in its way, the object goes, and either nothing of its instance is left or
//! an event on the object says what may be left and where. The provider is `kubernetes`, and the listing of its
//! namespace has everything, whosever it is.

use std::fs;

use egress_operator::crd::proxy::Proxy;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::fetch;
use crate::gate::Gate;
use crate::kubelet::Kubelet;
use crate::life::Proxies;
use crate::manifest::managed;
use crate::operator::{Launch, Operator};
use crate::plane::Plane;
use crate::remains::Remains;
use crate::site::Site;
use crate::squids::OwnSquid;
use crate::{eventually, within};

mod rights;

/// An operation of unknown effect needs two clean looks, 40 s apart.
const LIMIT: std::time::Duration = std::time::Duration::from_mins(3);

const SKIP: &str = "crawl.example.com/skip-cleanup";

/// One Proxy, `px`, of a namespace of its own, and a namespace for its pod.
struct Case {
    plane: &'static Plane,
    client: Client,
    site: Site,
    squid: OwnSquid,
    namespace: String,
    pods_in: String,
    proxies: Proxies,
    remains: Remains,
}

impl Case {
    async fn new() -> Option<Self> {
        let plane = Plane::shared().await;
        let (site, squid) = (Site::new()?, OwnSquid::open()?);
        let (namespace, pods_in) = (plane.namespace("gone").await, plane.namespace("gone-pods").await);
        let client = plane.client().await;
        let case = Self {
            plane,
            proxies: Proxies::of(plane, &namespace).await,
            remains: Remains::new(client.clone(), &pods_in),
            client,
            site,
            squid,
            namespace,
            pods_in,
        };
        case.configure("local");
        Some(case)
    }

    /// One entry of this name.
    fn configure(&self, name: &str) {
        let (pods_in, namespace) = (&self.pods_in, &self.namespace);
        let entry = format!(
            "{{name: {name}, type: kubernetes, namespace: {pods_in}, auth: generated, allowedNamespaces: [{namespace}]}}"
        );
        fs::write(self.site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
    }

    fn kubelet(&self) -> Kubelet {
        Kubelet::sharing(self.client.clone(), &self.pods_in, self.squid.port)
    }

    fn launch(&self, kubeconfig: &std::path::Path) -> Launch<'_> {
        let id = format!("test/{}", self.namespace);
        let named = ["--proxy-namespace", &self.namespace, "--operator-id", &id, "--list-interval", "1s"];
        self.site.operator().in_cluster(kubeconfig).args(&named)
    }

    async fn operator(&self) -> Operator {
        self.launch(&self.plane.kubeconfig()).start().await
    }

    async fn apply(&self) {
        self.proxies.apply(&managed("px").namespace(&self.namespace)).await;
    }

    /// Ready, with a pod and all that belongs to it.
    async fn ready(&self) -> (Operator, Kubelet) {
        let (kubelet, operator) = (self.kubelet(), self.operator().await);
        self.apply().await;
        self.proxies.becomes("px", "Ready").await;
        assert_eq!(self.remains.all().await.len(), 4);
        (operator, kubelet)
    }

    async fn patch(&self, patch: Value) {
        self.proxies.0.patch("px", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn annotate(&self, key: &str, value: &str) {
        self.patch(json!({"metadata": {"annotations": {key: value}}})).await;
    }

    async fn goes(&self) {
        within(LIMIT, "the object goes", async || match self.proxies.get("px").await {
            None => Ok(()),
            Some(px) => Err(format!("{:?}, left {:?}", px.status, self.remains.all().await)),
        })
        .await;
    }

    /// The object goes, and nothing is left.
    async fn goes_without_a_trace(&self) {
        self.goes().await;
        assert_eq!(self.remains.all().await, [] as [String; 0]);
        assert_eq!(self.told("may be left").await, [] as [(String, String); 0]);
    }

    /// The object goes, its instance stays, and a Warning says which, where, and why.
    async fn goes_and_tells(&self, reason: &str, words: &[&str]) {
        let proxy = self.proxies.get("px").await;
        let uid = proxy.and_then(|px| px.uid());
        self.goes().await;
        assert_eq!(self.remains.all().await.len(), 4, "what was given up is left alone");
        // Acknowledged before the finalizer went: it is there now.
        let told = self.told("may be left").await;
        let [(why, note)] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(why, reason, "{note}");
        let pod = &self.remains.all().await[0];
        let instance = pod.strip_prefix("Pod ").unwrap();
        let always = [instance, &format!("{}/px", self.namespace), "of provider `local`"];
        for word in always.iter().chain(words).copied().chain(uid.as_deref()) {
            assert!(note.contains(word), "`{word}` is not in: {note}");
        }
    }

    /// Reason and note of each Warning about the Proxy with these words in it.
    async fn told(&self, words: &str) -> Vec<(String, String)> {
        let events = Api::<Event>::namespaced(self.client.clone(), &self.namespace);
        let mut all = events.list(&ListParams::default()).await.unwrap().items;
        all.retain(|event| event.type_.as_deref() == Some("Warning"));
        all.retain(|event| event.regarding.as_ref().is_some_and(|about| about.name.as_deref() == Some("px")));
        let told = all.into_iter().map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()));
        told.filter(|(_, note)| note.contains(words)).collect()
    }

    async fn pod(&self) -> Pod {
        let pods = Api::<Pod>::namespaced(self.client.clone(), &self.pods_in);
        eventually("there is a pod", async || pods.list(&ListParams::default()).await.unwrap().items.pop()).await
    }
}

async fn ends(operator: Operator) {
    assert_eq!(operator.terminate().await.code, Some(0));
}

#[tokio::test]
async fn where_its_entry_was_removed_at_run_time_the_event_says_what_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    case.configure("another");
    assert_eq!(operator.api.admin_as(Method::POST, "/admin/reload", "").await.unwrap().0, 200);
    case.proxies.delete("px").await;
    case.goes_and_tells("ProviderNotConfigured", &["on host `local`", "not configured any more"]).await;
    ends(operator).await;
}

#[tokio::test]
async fn where_its_entry_was_removed_before_a_restart_the_event_says_what_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    ends(operator).await;
    case.configure("another");
    case.proxies.delete("px").await;
    let operator = case.operator().await;
    case.goes_and_tells("ProviderNotConfigured", &["on host `local`", "not configured any more"]).await;
    ends(operator).await;
}

#[tokio::test]
async fn where_its_host_is_not_of_its_entry_any_more_the_event_says_what_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    ends(operator).await;
    // An entry of this type has one host, so what is recorded is made to be of another one.
    case.annotate("crawl.example.com/host", "elsewhere").await;
    let id = case.proxies.get("px").await.unwrap().status.unwrap().provider_id.unwrap();
    let status = json!({"status": {"providerID": id.replace("local/local", "local/elsewhere")}});
    case.proxies.0.patch_status("px", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    case.proxies.delete("px").await;
    let operator = case.operator().await;
    case.goes_and_tells("HostNotConfigured", &["on host `elsewhere`"]).await;
    ends(operator).await;
}

#[tokio::test]
async fn where_its_entry_moved_to_another_namespace_nothing_is_made_anew_and_the_event_says_what_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    let (namespace, other) = (&case.namespace, case.plane.namespace("gone-elsewhere").await);
    let elsewhere = Remains::new(case.client.clone(), &other);
    let entry = format!(
        "{{name: local, type: kubernetes, namespace: {other}, auth: generated, allowedNamespaces: [{namespace}]}}"
    );
    fs::write(case.site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
    assert_eq!(operator.api.admin_as(Method::POST, "/admin/reload", "").await.unwrap().0, 200);
    let is_told = async || match case.proxies.get("px").await.and_then(|px| px.status) {
        Some(status) if status.conditions.iter().any(|c| c.reason == "HostNotConfigured") => Ok(status.phase),
        status => Err(format!("{status:?}")),
    };
    let phase = within(LIMIT, "it is told", is_told).await;
    assert_eq!(phase.as_deref(), Some("Ready"), "the pod serves on");
    // A restart knows it from what is recorded.
    ends(operator).await;
    let operator = case.operator().await;
    case.proxies.delete("px").await;
    case.goes_and_tells("HostNotConfigured", &["on host `local`", "another backend"]).await;
    assert_eq!(elsewhere.all().await, [] as [String; 0]);
    ends(operator).await;
}

#[tokio::test]
async fn a_host_annotation_that_was_changed_by_hand_misleads_no_deletion() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    ends(operator).await;
    case.annotate("crawl.example.com/host", "elsewhere").await;
    let operator = case.operator().await;
    case.proxies.delete("px").await;
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn a_missing_secret_holds_up_no_deletion() {
    let Some(case) = Case::new().await else { return };
    let secrets = Api::<Secret>::namespaced(case.client.clone(), &case.namespace);
    let secret = json!({
        "metadata": {"name": "auth", "labels": {"crawl.example.com/proxy-secret": "true"}},
        "stringData": {"username": "u", "password": "p"},
    });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let (_kubelet, operator) = (case.kubelet(), case.operator().await);
    let flavor = "managed: {provider: local, credentialsSecretRef: {name: auth}}";
    case.proxies.apply(&managed("px").flavor(flavor).namespace(&case.namespace)).await;
    case.proxies.becomes("px", "Ready").await;
    ends(operator).await;
    secrets.delete("auth", &DeleteParams::default()).await.unwrap();
    let operator = case.operator().await;
    eventually("that is told", async || {
        let status = case.proxies.get("px").await?.status?;
        serde_json::to_string(&status).unwrap().contains("Secret").then_some(())
    })
    .await;
    case.proxies.delete("px").await;
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn a_foreign_pod_in_its_place_holds_up_no_deletion_and_stays() {
    let Some(case) = Case::new().await else { return };
    let (operator, kubelet) = case.ready().await;
    operator.kill().await;
    let pods = Api::<Pod>::namespaced(case.client.clone(), &case.pods_in);
    let name = case.pod().await.name_any();
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the pod is gone", async || pods.get_opt(&name).await.unwrap().is_none().then_some(())).await;
    drop(kubelet);
    let theirs = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "a.invalid"}]}});
    pods.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();

    let operator = case.operator().await;
    case.proxies.delete("px").await;
    case.goes().await;
    assert_eq!(case.remains.all().await, [format!("Pod {name}")], "theirs alone");
    let told = case.told("as what is there is not its own").await;
    let [(reason, note)] = told.as_slice() else { panic!("{told:?}") };
    assert!(reason == "NameConflict" && note.contains("no owner mark") && note.contains(&name), "{reason} {note}");
    ends(operator).await;
}

/// Cancelled by the deletion, and done by the API server much later, when a first look has found nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_done_after_it_was_cancelled_is_found_and_removed() {
    let Some(case) = Case::new().await else { return };
    let (gate, _kubelet) = (Gate::before(case.plane).await, case.kubelet());
    gate.hold("POST pods");
    let operator = case.launch(&gate.kubeconfig).start().await;
    case.apply().await;
    eventually("the create is in flight", async || (gate.waiting() > 0).then_some(())).await;
    case.proxies.delete("px").await;
    // The ConfigMap is removed last of all that is there.
    eventually("the instance is taken for gone", async || case.remains.all().await.is_empty().then_some(())).await;
    assert!(case.proxies.get("px").await.is_some(), "one look is not enough");
    gate.open();
    let late = eventually("the API server has answered", async || gate.late().pop()).await;
    assert!(late.contains("201"), "{late}");
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn a_pod_that_no_kubelet_has_started_yet_goes_with_its_proxy() {
    let Some(case) = Case::new().await else { return };
    let operator = case.operator().await;
    case.apply().await;
    case.pod().await;
    case.proxies.delete("px").await;
    case.goes_without_a_trace().await;
    ends(operator).await;
}

/// Its kubelet is away, so the pod does not end; and neither does the deletion, over a restart.
#[tokio::test]
async fn a_deletion_goes_on_after_a_restart_and_ends_when_the_pod_does() {
    let Some(case) = Case::new().await else { return };
    let (operator, kubelet) = case.ready().await;
    drop(kubelet);
    case.proxies.delete("px").await;
    eventually("the pod is ending", async || case.pod().await.metadata.deletion_timestamp.map(drop)).await;
    ends(operator).await;
    let operator = case.operator().await;
    eventually("the next one is at it", async || {
        let status = case.proxies.get("px").await?.status?;
        (status.phase.as_deref() == Some("Deleting")).then_some(())
    })
    .await;
    assert_eq!(case.remains.all().await.len(), 4, "the policy stays until the pod is gone");
    let _kubelet = case.kubelet();
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn a_paused_proxy_is_deleted() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    case.patch(json!({"spec": {"paused": true}})).await;
    case.proxies.delete("px").await;
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn skip_cleanup_that_was_set_before_lets_the_object_go_at_once_and_says_what_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    let lease = eventually("it is leased", async || {
        let (code, mut body) = operator.api.try_lease("px").await;
        (code == 201).then(|| body["leases"][0].take())
    })
    .await;
    case.annotate(SKIP, "true").await;
    case.proxies.delete("px").await;
    case.goes_and_tells("CleanupSkipped", &["on host `local`", "skip-cleanup"]).await;
    assert_eq!(fetch(&lease, &case.site.target.url()).await.status(), 204, "the pod is left as it is");
    ends(operator).await;
}

#[tokio::test]
async fn skip_cleanup_that_is_set_while_the_pod_does_not_end_lets_the_object_go_and_says_what_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, kubelet) = case.ready().await;
    drop(kubelet);
    case.proxies.delete("px").await;
    eventually("the pod is ending", async || case.pod().await.metadata.deletion_timestamp.map(drop)).await;
    case.annotate(SKIP, "true").await;
    case.goes_and_tells("CleanupSkipped", &["on host `local`", "skip-cleanup"]).await;
    ends(operator).await;
}

#[tokio::test]
async fn a_pod_that_does_not_end_is_told_after_a_while_with_what_holds_it() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    let pods = Api::<Pod>::namespaced(case.client.clone(), &case.pods_in);
    let name = case.pod().await.name_any();
    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    pods.patch(&name, &PatchParams::default(), &hold(json!(["example.com/audit"]))).await.unwrap();
    case.proxies.delete("px").await;
    within(LIMIT, "it is told", async || {
        let status = case.proxies.get("px").await.and_then(|px| px.status);
        let ready = status.and_then(|status| status.conditions.into_iter().find(|c| c.type_ == "Ready"));
        match ready {
            Some(c) if c.reason == "DeletionBlocked" && c.message.contains("example.com/audit") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    eventually("and warned of", async || case.told("example.com/audit").await.pop()).await;
    pods.patch(&name, &PatchParams::default(), &hold(json!(null))).await.unwrap();
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn two_deletions_over_a_restart_are_one() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    case.proxies.delete("px").await;
    operator.kill().await;
    let _again = case.proxies.0.delete("px", &DeleteParams::default()).await;
    let operator = case.operator().await;
    let _and_again = case.proxies.0.delete("px", &DeleteParams::default()).await;
    case.goes_without_a_trace().await;
    ends(operator).await;
}

#[tokio::test]
async fn one_that_is_made_again_under_its_name_at_once_has_a_pod_of_its_own_and_nothing_of_the_first_is_left() {
    let Some(case) = Case::new().await else { return };
    let (operator, _kubelet) = case.ready().await;
    let (uid, before) = (case.proxies.get("px").await.unwrap().uid(), case.remains.all().await);
    case.proxies.delete("px").await;
    let again: Proxy = serde_saphyr::from_str(&managed("px").namespace(&case.namespace).yaml()).unwrap();
    within(LIMIT, "its name is free", async || case.proxies.0.create(&PostParams::default(), &again).await.map(drop))
        .await;
    let ready = case.proxies.becomes("px", "Ready").await;
    assert_ne!(ready.uid(), uid);
    let after = case.remains.all().await;
    assert_eq!(after.len(), 4, "{after:?}");
    assert!(after.iter().all(|object| !before.contains(object)), "{after:?}");
    case.proxies.delete("px").await;
    case.goes_without_a_trace().await;
    ends(operator).await;
}
