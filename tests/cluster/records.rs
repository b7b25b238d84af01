//! What is written onto objects, in-process against the real API server: a write names the version it is written over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use egress_actors::domain::error::Class;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::status::{Phase, Status};
use egress_actors::ports::{Mandate, ProviderHealth, Records, SourceEvent};
use egress_operator::k8s::{Cluster, Identity};
use futures::StreamExt as _;
use kube::api::{Api, Patch, PatchParams};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::eventually;
use crate::life::Proxies;
use crate::manifest::external;
use crate::plane::Plane;

/// One operator's way to the cluster, and one object.
struct Rig {
    plane: &'static Plane,
    cluster: Cluster,
    records: Arc<dyn Records>,
    proxies: Proxies,
    key: ProxyKey,
    uid: Uid,
}

async fn connect(plane: &Plane, namespace: &str) -> Cluster {
    connect_as(plane, namespace, "test/records").await
}

/// The way to the cluster of the operator with this id.
pub(crate) async fn connect_as(plane: &Plane, namespace: &str, operator: &str) -> Cluster {
    let text = std::fs::read_to_string(plane.kubeconfig()).unwrap();
    let read = Kubeconfig::from_yaml(&text).unwrap();
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.unwrap();
    let operator = OperatorId::parse(operator).unwrap();
    Cluster::of(config, Some(namespace.into()), Some(operator), Identity::from_env()).await.unwrap()
}

impl Rig {
    async fn new(prefix: &str) -> Self {
        let plane = Plane::shared().await;
        let namespace = plane.namespace(prefix).await;
        let proxies = Proxies::of(plane, &namespace).await;
        proxies.apply(&external("px", 3128).namespace(&namespace)).await;
        let uid = proxies.get("px").await.unwrap().metadata.uid.unwrap();
        let cluster = connect(plane, &namespace).await;
        let (key, uid) = (ProxyKey::new(&namespace, "px").unwrap(), Uid::parse(&uid).unwrap());
        Self { plane, records: cluster.records(), cluster, proxies, key, uid }
    }

    async fn write(&self, generation: i64, mandate: &Mandate) -> Result<(), egress_actors::domain::error::OpError> {
        let status = Status::blank(Phase::Ready, generation);
        self.records.write_status(&self.key, &self.uid, &status, mandate).await
    }

    /// The generation that the status says it is of: here just a mark of who wrote it.
    async fn written(&self) -> Option<i64> {
        self.proxies.get("px").await.unwrap().status.and_then(|status| status.observed_generation)
    }

    /// What another replica, that leads now, has to say.
    async fn another_writes(&self, generation: i64) {
        let theirs = connect(self.plane, self.key.namespace()).await.records();
        let status = Status::blank(Phase::Ready, generation);
        theirs.write_status(&self.key, &self.uid, &status, &Mandate::always()).await.unwrap();
    }

    /// Writes of the status of our object so far, and how each ended.
    fn statuses(&self) -> Vec<u16> {
        let lines = self.plane.audited();
        let mine = lines.iter().filter(|line| line.is_complete() && line.is_write());
        mine.filter(|line| line.object_ref.namespace == self.key.namespace() && line.object_ref.resource == "proxies")
            .filter(|line| line.object_ref.subresource == "status")
            .map(|line| line.response_status.as_ref().unwrap().code)
            .collect()
    }
}

/// Stands when it is asked first, and never again: a process that was stopped in between.
fn stands_once() -> Mandate {
    let asked = AtomicBool::new(false);
    Mandate::new(move || !asked.swap(true, Ordering::Relaxed))
}

#[tokio::test]
async fn a_status_that_was_held_up_on_its_way_undoes_nothing_of_the_new_leader() {
    let rig = Rig::new("stale").await;
    let mut events = rig.cluster.source().events();
    tokio::time::timeout(crate::AMPLE, async {
        while !matches!(events.next().await, Some(SourceEvent::Synced { .. })) {}
    })
    .await
    .expect("the watch knows the object, and hears no more of it");
    rig.write(1, &Mandate::always()).await.unwrap();
    rig.another_writes(2).await;
    // The claim was good when it was tested, and the write left later.
    let refused = rig.write(3, &stands_once()).await.unwrap_err();
    assert_eq!(refused.class, Class::Cancelled, "{refused}");
    assert_eq!(rig.written().await, Some(2));
    assert_eq!(rig.statuses(), [200, 200, 409]);
    // Whoever still leads reads again, and writes.
    rig.another_writes(4).await;
    rig.write(5, &Mandate::always()).await.unwrap();
    assert_eq!(rig.written().await, Some(5));
    assert_eq!(rig.statuses(), [200, 200, 409, 200, 409, 200]);
    // What was written is known from the answer.
    rig.write(6, &Mandate::always()).await.unwrap();
    assert_eq!(rig.statuses().len(), 7);
    assert_eq!(rig.written().await, Some(6));
}

#[tokio::test]
async fn a_change_by_somebody_else_costs_no_write_once_the_watch_has_shown_it() {
    let rig = Rig::new("shown").await;
    let mut events = rig.cluster.source().events();
    rig.write(1, &Mandate::always()).await.unwrap();
    let change = Patch::Merge(json!({"spec": {"maxLeases": 3}}));
    rig.proxies.0.patch("px", &PatchParams::default(), &change).await.unwrap();
    tokio::time::timeout(crate::AMPLE, async {
        while let Some(event) = events.next().await {
            if matches!(&event, SourceEvent::Applied(applied) if applied.desired.max_leases == 3) {
                return;
            }
        }
    })
    .await
    .expect("the watch shows it");
    rig.write(2, &Mandate::always()).await.unwrap();
    assert_eq!(rig.statuses(), [200, 200]);
    // One that was made anew under the name is not written to, and the writer hears that its object is gone.
    rig.proxies.delete("px").await;
    rig.proxies.apply(&external("px", 3128).namespace(rig.key.namespace())).await;
    assert_eq!(rig.write(3, &Mandate::always()).await.unwrap_err().class, Class::NotFound);
    assert_eq!(rig.written().await, None);
}

#[tokio::test]
async fn a_host_that_was_chosen_by_a_leader_of_before_is_not_written_over_that_of_the_new_one() {
    let rig = Rig::new("host").await;
    let host = |name: &str| egress_actors::domain::id::HostName::parse(name).unwrap();
    let (theirs, gone) = (host("theirs"), Mandate::new(|| false));
    rig.records.adopt(&rig.key, &rig.uid, Some(&theirs), &Mandate::always()).await.unwrap();
    let refused = rig.records.adopt(&rig.key, &rig.uid, Some(&host("ours")), &gone).await.unwrap_err();
    assert_eq!(refused.class, Class::Cancelled);
    let annotations = rig.proxies.get("px").await.unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations[egress_operator::crd::HOST], "theirs");
}

#[tokio::test]
async fn the_health_of_a_provider_that_was_held_up_on_its_way_undoes_nothing_of_the_new_leader() {
    let rig = Rig::new("health").await;
    let entry = ProviderName::parse(&format!("entry-{}", rig.key.namespace())).unwrap();
    let health = |kind| ProviderHealth { entry: entry.clone(), kind, conditions: Vec::new(), targets: Vec::new() };
    let always = Mandate::always();
    rig.records.write_provider_health(&health("process"), &always).await.unwrap();
    rig.records.write_provider_health(&health("process"), &always).await.unwrap();
    let all = Api::<egress_operator::crd::provider_health::ProviderHealth>::all(rig.plane.client().await);
    let touched = Patch::Merge(json!({"metadata": {"annotations": {"a.example.com/b": "c"}}}));
    all.patch(entry.as_str(), &PatchParams::default(), &touched).await.unwrap();
    let overtaken = rig.records.write_provider_health(&health("process"), &always).await.unwrap_err();
    assert_eq!(overtaken.class, Class::Transient, "{overtaken}");
    // The caller comes again, and asks first.
    rig.records.write_provider_health(&health("process"), &always).await.unwrap();
    rig.records.remove_provider_health(&entry, &Mandate::always()).await.unwrap();
    eventually("it is gone", async || all.get_opt(entry.as_str()).await.unwrap().is_none().then_some(())).await;
    rig.records.write_provider_health(&health("process"), &always).await.unwrap();
}
