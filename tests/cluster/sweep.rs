//! The sweep for instances without a Proxy on the real API server: what it deletes, and what is not its own.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use egress_actors::domain::desired::Placement;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{InstanceSpec, OwnerMark};
use egress_actors::ports::Backend as _;
use egress_operator::config::providers::{Entry, parse};
use egress_operator::providers::kubernetes::{Cluster, KubernetesBackend};
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api;
use crate::kubelet::{Kubelet, UNSCHEDULED};
use crate::life::Proxies;
use crate::manifest::managed;
use crate::operator::{Launch, Operator};
use crate::plane::Plane;
use crate::site::Site;
use crate::{eventually, within};

/// A namespace of Proxies and one of pods, and what somebody looks at from outside.
struct Field {
    plane: &'static Plane,
    crawlers: String,
    pods_in: String,
    pods: Api<Pod>,
    maps: Api<ConfigMap>,
}

impl Field {
    async fn new() -> Self {
        let plane = Plane::shared().await;
        let (crawlers, pods_in) = (plane.namespace("crawlers").await, plane.namespace("squids").await);
        let client = plane.client().await;
        let (pods, maps) = (Api::namespaced(client.clone(), &pods_in), Api::namespaced(client, &pods_in));
        Self { plane, crawlers, pods_in, pods, maps }
    }

    /// Its only entry is called like the namespace of the pods: a health belongs to the whole cluster.
    fn launch<'s>(&self, site: &'s Site, operator: &str, namespace: &str, more: &[&str]) -> Launch<'s> {
        let entry = format!("{{name: {0}, type: kubernetes, namespace: {0}, auth: generated}}", self.pods_in);
        fs::write(site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
        site.operator()
            .in_cluster(&self.plane.kubeconfig())
            .args(&["--proxy-namespace", namespace, "--operator-id", operator, "--list-interval", "1s"])
            .args(&["--gc-allow-namespaced", "--gc-interval", "1s", "--gc-min-age", "1s"])
            .args(more)
    }

    async fn backend(&self) -> KubernetesBackend {
        let text = format!("providers: [{{name: {0}, type: kubernetes, namespace: {0}}}]", self.pods_in);
        let Entry::Kubernetes(entry) = parse(Path::new("p.yaml"), text.as_bytes()).unwrap().entries.remove(0) else {
            panic!("an entry of another type")
        };
        KubernetesBackend::new(*entry, Cluster::of(self.plane.client().await, None), Vec::new())
    }

    /// An instance whose Proxy never was: as an operator leaves it that is killed and loses its cluster.
    fn orphan(&self, operator: &str, name: &str) -> InstanceSpec {
        let mark = OwnerMark {
            operator: OperatorId::parse(operator).unwrap(),
            entry: ProviderName::parse(&self.pods_in).unwrap(),
            key: ProxyKey::new(&self.crawlers, name).unwrap(),
            uid: Uid::parse(&Uuid::new_v4().to_string()).unwrap(),
        };
        InstanceSpec { mark, placement: Placement::default(), user_data: None, port: 3128, credentials: None }
    }

    async fn maps(&self) -> Vec<ConfigMap> {
        self.maps.list(&ListParams::default().labels("crawl.example.com/instance")).await.unwrap().items
    }

    /// Notes of the events about the entry's ProviderHealth.
    async fn notes(&self, reason: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.plane.client().await, "default");
        let of = ListParams::default().fields(&format!("reason={reason}"));
        let about = |event: &Event| event.regarding.as_ref().and_then(|object| object.name.clone());
        let all = events.list(&of).await.unwrap().items.into_iter();
        all.filter(|event| about(event).as_ref() == Some(&self.pods_in)).filter_map(|event| event.note).collect()
    }
}

async fn sweeps(operator: &Operator, entry: &str) -> f64 {
    operator.api.count(&format!("egress_gc_sweep_seconds_count{{provider=\"{entry}\"}}")).await
}

/// So many more sweeps have ended.
async fn swept(operator: &Operator, entry: &str, more: f64) {
    let before = sweeps(operator, entry).await;
    eventually("some more sweeps", async || (sweeps(operator, entry).await >= before + more).then_some(())).await;
}

#[tokio::test]
async fn a_thousand_orphans_go_under_the_cap_with_progress_and_a_proxy_is_made_meanwhile_as_fast_as_ever() {
    const ORPHANS: usize = 1000;
    const CAP: usize = 100;
    let field = Field::new().await;
    let Some(site) = Site::new() else { return };
    let kubelet = Kubelet::of(field.plane.client().await, &field.pods_in);
    let proxies = Proxies::of(field.plane, &field.crawlers).await;
    let cap = CAP.to_string();
    let launch =
        || field.launch(&site, "thousand", &field.crawlers, &["--gc-interval", "4s", "--gc-max-deletes", &cap]);

    // How fast a Proxy is made when there is nothing to sweep.
    let operator = launch().start().await;
    let made = async |name: &str| {
        let begun = Instant::now();
        proxies
            .apply(
                &managed(name).flavor(&format!("managed: {{provider: {}}}", field.pods_in)).namespace(&field.crawlers),
            )
            .await;
        proxies.becomes(name, "Ready").await;
        begun.elapsed()
    };
    made("warm-up").await;
    let quiet = made("quiet").await;
    operator.terminate().await;

    // Most are half: the kubelet of this test would be slow with a thousand pods.
    for (some, whole) in [(0..ORPHANS - 20, false), (ORPHANS - 20..ORPHANS, true)] {
        let backend = field.backend().await;
        stream::iter(some)
            .for_each_concurrent(16, async |n| {
                backend.create(&field.orphan("thousand", &format!("{UNSCHEDULED}{n}"))).await.unwrap();
            })
            .await;
        if !whole {
            let (params, of) = (DeleteParams::default(), ListParams::default().fields("spec.nodeName="));
            field.pods.delete_collection(&params, &of).await.unwrap();
        }
    }
    let operator = launch().start().await;
    let (left, deleted) = (
        format!("egress_gc_orphans{{provider=\"{}\"}}", field.pods_in),
        format!("egress_gc_deleted_total{{provider=\"{}\"}}", field.pods_in),
    );
    eventually("it has begun", async || (operator.api.count(&deleted).await > 0.0).then_some(())).await;
    let busy = made("busy").await;
    println!("a Proxy is Ready in {quiet:?} when nothing is swept, and in {busy:?} beside {ORPHANS} orphans");
    assert!(busy < quiet * 3 + Duration::from_secs(2), "{busy:?} against {quiet:?}");

    let begun = Instant::now();
    let mut seen: Vec<(Instant, f64)> = Vec::new();
    within(Duration::from_mins(3), "all orphans are gone", async || {
        seen.push((Instant::now(), operator.api.count(&deleted).await));
        let told = operator.api.metric(&left).await.unwrap_or(f64::NAN);
        if seen.last().unwrap().1 >= 1000.0 && told == 0.0 { Ok(()) } else { Err(format!("{told} are left")) }
    })
    .await;
    println!("the last ones went {:?} after that", begun.elapsed());
    // In no time of one interval more than the cap; a look is late by at most a sweep's own length.
    for (at, count) in &seen {
        let later = seen.iter().take_while(|(then, _)| *then < *at + Duration::from_secs(3)).last().unwrap();
        assert!(later.1 - count <= 2.0 * 100.0, "{} in 3 s", later.1 - count);
    }
    assert!(seen.windows(2).filter(|pair| pair[1].1 > pair[0].1).count() > 20, "progress is seen on its way");
    assert_eq!(field.maps().await.len(), 3, "those of the Proxies");
    let notes = field.notes("OrphanDeleted").await;
    assert_eq!(notes.len(), ORPHANS, "an event each");
    assert!(notes.iter().any(|note| note.contains(&format!("{}/{UNSCHEDULED}17 ", field.crawlers))), "{}", notes[0]);
    operator.terminate().await;
    drop(kubelet);
}

#[tokio::test]
async fn of_two_operators_in_one_namespace_neither_touches_what_is_the_others_or_was_marked_by_hand() {
    let field = Field::new().await;
    let (Some(one), Some(two)) = (Site::new(), Site::new()) else { return };
    let kubelet = Kubelet::of(field.plane.client().await, &field.pods_in);
    let other = field.plane.namespace("crawlers").await;
    let operators = [
        field.launch(&one, "one", &field.crawlers, &[]).start().await,
        field.launch(&two, "two", &other, &[]).start().await,
    ];
    let provider = format!("managed: {{provider: {}}}", field.pods_in);
    for namespace in [&field.crawlers, &other] {
        let proxies = Proxies::of(field.plane, namespace).await;
        proxies.apply(&managed("px-1").flavor(&provider).namespace(namespace)).await;
        proxies.becomes("px-1", "Ready").await;
    }
    let uids = async || {
        let mut all: Vec<_> = field.pods.list(&ListParams::default()).await.unwrap().items;
        all.sort_by_key(|pod| pod.metadata.creation_timestamp.clone().map(|time| time.0));
        all.into_iter().map(|pod| pod.metadata.uid.unwrap()).collect::<Vec<_>>()
    };
    let living = uids().await;
    assert_eq!(living.len(), 2);

    // One of each operator's, one of a third's, and one whose mark somebody has changed.
    let backend = field.backend().await;
    for (operator, name) in [("one", "lost-one"), ("two", "lost-two"), ("three", "lost-three"), ("one", "by-hand")] {
        backend.create(&field.orphan(operator, name)).await.unwrap();
    }
    let changed = json!({"metadata": {"annotations": {"crawl.example.com/owner-operator": "somebody"}}});
    for map in field.maps().await.iter().filter(|map| map.name_any().starts_with("by-hand")) {
        let name = map.name_any();
        field.maps.patch(&name, &PatchParams::default(), &Patch::Merge(&changed)).await.unwrap();
        field.pods.patch(&name, &PatchParams::default(), &Patch::Merge(&changed)).await.unwrap();
    }
    let left = async || {
        let names = field.maps().await.into_iter().map(|map| map.name_any());
        let mut names: Vec<_> = names
            .filter(|name| !name.starts_with("px-1"))
            .map(|name| name[..name.rfind('-').unwrap()].to_owned())
            .collect();
        names.sort();
        names
    };
    // Operator two does not watch the namespace of the Proxy that its orphan names: it says nothing about it.
    eventually("what is one's own is swept", async || {
        (left().await == ["by-hand", "lost-three", "lost-two"]).then_some(())
    })
    .await;
    for operator in &operators {
        swept(operator, &field.pods_in, 5.0).await;
    }
    assert_eq!(left().await, ["by-hand", "lost-three", "lost-two"]);
    let pods = uids().await;
    assert!(living.iter().all(|uid| pods.contains(uid)), "the very same pods serve on");
    for operator in operators {
        assert_eq!(operator.terminate().await.code, Some(0));
    }
    drop(kubelet);
}

#[tokio::test]
async fn without_the_word_for_it_an_operator_of_one_namespace_sweeps_nothing() {
    let field = Field::new().await;
    let Some(site) = Site::new() else { return };
    let backend = field.backend().await;
    backend.create(&field.orphan("narrow", "lost")).await.unwrap();
    let entry = format!("{{name: {0}, type: kubernetes, namespace: {0}}}", field.pods_in);
    fs::write(site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
    let operator = site
        .operator()
        .in_cluster(&field.plane.kubeconfig())
        .args(&["--proxy-namespace", &field.crawlers, "--operator-id", "narrow", "--gc-interval", "1s"])
        .args(&["--gc-min-age", "1s", "--list-interval", "1s"])
        .start()
        .await;
    assert!(operator.log.entries().iter().any(|line| line["msg"].as_str().unwrap().contains("--gc-allow-namespaced")));
    let lists = async |api: &api::Api| {
        let of = format!("provider=\"{0}\",host=\"{0}\",call=\"list\",outcome=\"ok\"", field.pods_in);
        api.count(&format!("egress_host_call_seconds_count{{{of}}}")).await
    };
    eventually("it has listed four times", async || (lists(&operator.api).await >= 4.0).then_some(())).await;
    assert_eq!(field.maps().await.len(), 1);
    let sweep: Value = operator.api.admin_json("/admin/providers").await["providers"][0]["sweep"].take();
    assert_eq!(sweep["hosts"], json!([]));
}
