//! Objects come, change and go at random while the API server is restarted: in the end all agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::ObjectMeta;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};

use egress_operator::crd::proxy::Proxy;
use egress_operator::crd::{API_VERSION, FINALIZER};

use crate::group::{Group, granted};
use crate::kubelet::Kubelet;
use crate::life::Proxies;
use crate::operator::Operator;
use crate::plane::{Options, Plane};
use crate::site::Site;
use crate::squids::OwnSquid;
use crate::{LOOK_EVERY, within};

const NAMES: usize = 1000;

/// One name in so many is a pod of ours; all others are somebody else's proxies.
const A_POD_IN: usize = 5;

/// How long things change. The API server is restarted after a third and after two thirds of it.
const CHURN: Duration = Duration::from_mins(2);

/// So many change objects at once, and so many take leases.
const AT_ONCE: u64 = 4;

/// What is left to be done then waits for a machine that others use too.
const SETTLES_WITHIN: Duration = Duration::from_mins(4);

/// What was done, by what it was.
#[derive(Debug, Default)]
struct Tally(BTreeMap<&'static str, u32>);

impl Tally {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    fn of(&self, what: &str) -> u32 {
        self.0.get(what).copied().unwrap_or(0)
    }

    fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<_> = self.0.iter().map(|(what, count)| format!("{count} {what}")).collect();
        f.write_str(&told.join(", "))
    }
}

/// Everything that changes objects.
struct Churn<'t> {
    proxies: &'t Api<Proxy>,
    squid: u16,
}

impl Churn<'_> {
    /// One random change. It may meet an API server that is away: then it did not happen, or nobody knows.
    async fn change(&self, rng: &mut StdRng, tally: &mut Tally) {
        let at = rng.random_range(0..NAMES);
        let name = format!("px-{at}");
        let flavor = if at % A_POD_IN == 0 {
            json!({"managed": {"provider": "pods"}})
        } else {
            json!({"external": {"url": format!("http://127.0.0.1:{}", self.squid)}})
        };
        let mut wanted = json!({
            "apiVersion": API_VERSION, "kind": "Proxy", "metadata": {"name": name},
            "spec": {
                "attributes": {"n": name}, "maxLeases": rng.random_range(1..5), "healthCheck": {"interval": "30s"}
            }
        });
        wanted["spec"].as_object_mut().unwrap().extend(flavor.as_object().unwrap().clone());
        let done = if rng.random_bool(0.3) {
            let gone = self.proxies.delete(&name, &DeleteParams::default()).await;
            gone.map(|_| "deleted")
        } else {
            let applied = self.proxies.patch(&name, &PatchParams::apply("churn").force(), &Patch::Apply(&wanted)).await;
            applied.map(|proxy| if proxy.metadata.generation == Some(1) { "made" } else { "changed" })
        };
        tally.count(match done {
            Ok(done) => done,
            Err(kube::Error::Api(status)) if status.code == 404 => "deletions of what was not there",
            Err(kube::Error::Api(status)) => panic!("{name}: {status:?}"),
            Err(_) => {
                // The API server is away.
                tokio::time::sleep(LOOK_EVERY).await;
                "lost on the way"
            }
        });
    }
}

/// One crawler's lease of any Proxy: taken, renewed or given back.
async fn lease(operator: &Operator, rng: &mut StdRng, held: &mut Vec<Value>, tally: &mut Tally) {
    let one = rng.random_range(0..100);
    if one < 50 && held.len() < 40 {
        let (status, mut body) =
            operator.api.call(Method::POST, "/v1/leases", Some(&json!({"ttlSeconds": 3600}))).await;
        match status {
            201 => held.push(body["leases"][0].take()),
            // Nothing is free yet, or the operator is suspended.
            409 | 404 | 503 => return tally.count("asked in vain"),
            _ => panic!("{status} {body}"),
        }
        return tally.count("granted");
    }
    let Some(at) = held.len().checked_sub(1).map(|last| rng.random_range(0..=last)) else { return };
    let path = format!("/v1/leases/{}", held[at]["id"].as_str().unwrap());
    let (status, body) = if one < 75 {
        operator.api.call(Method::POST, &format!("{path}/renew"), Some(&json!({"ttlSeconds": 3600}))).await
    } else {
        operator.api.call(Method::DELETE, &path, None).await
    };
    tally.count(match status {
        200 => "renewed",
        204 => "released",
        // Its Proxy has gone before.
        404 | 410 => "ended with their proxies",
        _ => panic!("{status} {body}"),
    });
    if status != 200 {
        held.swap_remove(at);
    }
}

/// What the cluster has: objects by name, with what pods there must be.
async fn objects(proxies: &Proxies) -> BTreeMap<String, Proxy> {
    let all = proxies.all().await;
    all.into_iter().map(|proxy| (proxy.metadata.name.clone().unwrap(), proxy)).collect()
}

/// Actors of this kind.
fn count(node: &Value, kind: &str) -> usize {
    let below: usize = node["children"].as_array().unwrap().iter().map(|child| count(child, kind)).sum();
    below + usize::from(node["kind"] == kind)
}

/// The uids that these objects say they are of.
fn owners(metadata: impl Iterator<Item = ObjectMeta>) -> Vec<String> {
    let mut owners: Vec<_> =
        metadata.map(|found| found.annotations.unwrap()["crawl.example.com/owner-uid"].clone()).collect();
    owners.sort();
    owners
}

/// All that there is, seen from every side.
struct World<'t> {
    group: &'t Group<'t>,
    proxies: &'t Proxies,
    operator: &'t Operator,
    pods: Api<Pod>,
    maps: Api<ConfigMap>,
    held: &'t [Value],
}

impl World<'_> {
    /// What does not agree, if anything.
    async fn disagreement(&self) -> Option<String> {
        let objects = objects(self.proxies).await;
        for (name, proxy) in &objects {
            let (metadata, status) = (&proxy.metadata, proxy.status.as_ref());
            if metadata.deletion_timestamp.is_some() {
                return Some(format!("{name} is still being deleted"));
            }
            // What somebody else runs needs none.
            let ours = proxy.spec.managed.as_ref().map(|_| FINALIZER.to_owned());
            if metadata.finalizers.clone().unwrap_or_default() != Vec::from_iter(ours) {
                return Some(format!("{name} has the finalizers {:?}", metadata.finalizers));
            }
            if status.and_then(|status| status.observed_generation) != metadata.generation {
                return Some(format!("the status of {name} is of another generation"));
            }
            if status.and_then(|status| status.phase.as_deref()) != Some("Ready") {
                return Some(format!("{name} is not ready: {status:?}"));
            }
        }

        // The operator's rows, with their capacity and what is leased of each.
        let listed = self.operator.api.get("/v1/leases").await;
        let leases = listed["leases"].as_array().unwrap();
        let mut leased: BTreeMap<&str, i64> = BTreeMap::new();
        for lease in leases {
            *leased.entry(lease["proxy"]["name"].as_str().unwrap()).or_default() += 1;
        }
        let wanted: BTreeMap<String, (i64, i64)> = objects
            .iter()
            .map(|(name, proxy)| (format!("{}/{name}", self.group.namespace), proxy.spec.max_leases.unwrap_or(1)))
            .map(|(name, max)| (name.clone(), (max, leased.remove(name.as_str()).unwrap_or(0))))
            .collect();
        if !leased.is_empty() {
            return Some(format!("leases of proxies that are gone: {leased:?}"));
        }
        let rows: BTreeMap<String, (i64, i64)> = self
            .operator
            .api
            .proxies()
            .await
            .iter()
            .filter(|row| row["phase"] == "Ready")
            .map(|row| (row["name"].as_str().unwrap().to_owned(), &row["maxLeases"], &row["leases"]))
            .map(|(name, max, leases)| (name, (max.as_i64().unwrap(), leases.as_i64().unwrap())))
            .collect();
        if rows != wanted {
            let other = rows.iter().find(|(name, row)| wanted.get(*name) != Some(row));
            let missing = wanted.keys().find(|name| !rows.contains_key(*name));
            return Some(format!("rows: {other:?} is other, {missing:?} is missing"));
        }

        // Actors: one for each object, and none at work.
        let tree = self.operator.api.admin_json("/admin/actors").await;
        let actors = count(&tree, "proxy");
        if actors != objects.len() {
            return Some(format!("{actors} actors of {} proxies", objects.len()));
        }

        // Instances: a pod and its ConfigMap for each managed Proxy, at the address that its status has.
        let of_ours = ListParams::default().labels("crawl.example.com/instance");
        let managed: BTreeMap<_, _> = objects
            .values()
            .filter(|proxy| proxy.spec.managed.is_some())
            .map(|proxy| (proxy.metadata.uid.clone().unwrap(), proxy.status.as_ref().unwrap().address.clone()))
            .collect();
        let pods = self.pods.list(&of_ours).await.unwrap().items;
        let addresses: BTreeMap<_, _> = pods
            .iter()
            .map(|pod| (pod.metadata.annotations.as_ref().unwrap()["crawl.example.com/owner-uid"].clone(), pod))
            .map(|(owner, pod)| (owner, pod.status.as_ref().and_then(|status| status.pod_ip.clone())))
            .collect();
        if addresses != managed {
            return Some(format!("pods {addresses:?} and managed proxies {managed:?}"));
        }
        let owners_of_pods = owners(pods.into_iter().map(|pod| pod.metadata));
        let owners_of_maps =
            owners(self.maps.list_metadata(&of_ours).await.unwrap().items.into_iter().map(|map| map.metadata));
        if owners_of_pods.len() != managed.len() || owners_of_maps != owners_of_pods {
            return Some(format!("{} pods and {} ConfigMaps", owners_of_pods.len(), owners_of_maps.len()));
        }
        None
    }

    /// Each lease that a crawler has either holds, and the book lists it, or has ended, and it does not.
    async fn leases_agree(&self) -> (usize, usize) {
        let listed = self.operator.api.get("/v1/leases").await;
        let listed: BTreeSet<_> =
            listed["leases"].as_array().unwrap().iter().map(|lease| lease["id"].as_str().unwrap()).collect();
        let mut holds = BTreeSet::new();
        for lease in self.held {
            let id = lease["id"].as_str().unwrap();
            let path = format!("/v1/leases/{id}/renew");
            let (status, body) = self.operator.api.call(Method::POST, &path, Some(&json!({}))).await;
            assert!(matches!(status, 200 | 410), "{status} {body}");
            if status == 200 {
                holds.insert(id);
            }
        }
        assert_eq!(listed, holds, "the book and the crawlers");
        (holds.len(), self.held.len())
    }
}

fn seed() -> u64 {
    let given = std::env::var("EGRESS_TEST_SEED").ok();
    given.map_or_else(rand::random, |seed| seed.parse().expect("EGRESS_TEST_SEED is a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_pods_leases_and_actors_agree_after_two_minutes_of_changes_and_two_restarts_of_the_api_server() {
    let plane = Plane::start(Options::default()).await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(&plane, "churn").await;
    let proxies = Proxies::of(&plane, &group.namespace).await;
    let pods_in = plane.namespace("churn-pods").await;
    let client = plane.client().await;
    let _kubelet = Kubelet::sharing(client.clone(), &pods_in, squid.port);
    let entry = format!("{{name: pods, type: kubernetes, namespace: {pods_in}, auth: none}}");
    fs::write(site.providers_config(), format!("providers: [{entry}]\n")).unwrap();
    let mut operator = group.replica(&site, "op-a").await.start().await;
    let seed = seed();
    eprintln!("churn: EGRESS_TEST_SEED={seed}");

    let begun = Instant::now();
    let is_over = || begun.elapsed() >= CHURN;
    let churn = Churn { proxies: &proxies.0, squid: squid.port };
    let changes = futures::future::join_all((0..AT_ONCE).map(|at| {
        let (churn, mut rng, mut tally) = (&churn, StdRng::seed_from_u64(seed.wrapping_add(at)), Tally::default());
        async move {
            while !is_over() {
                churn.change(&mut rng, &mut tally).await;
            }
            tally
        }
    }));
    let leases = futures::future::join_all((0..AT_ONCE).map(|at| {
        let (operator, mut rng) = (&operator, StdRng::seed_from_u64(seed.wrapping_sub(1 + at)));
        let (mut held, mut tally) = (Vec::new(), Tally::default());
        async move {
            while !is_over() {
                lease(operator, &mut rng, &mut held, &mut tally).await;
                tokio::time::sleep(LOOK_EVERY / 5).await;
            }
            (held, tally)
        }
    }));
    let restarts = async {
        let mut took = Vec::new();
        for part in [CHURN / 3, CHURN * 2 / 3] {
            tokio::time::sleep(part.saturating_sub(begun.elapsed())).await;
            let killed = Instant::now();
            plane.api.kill();
            plane.start_api().await;
            took.push(killed.elapsed());
        }
        took
    };
    let (changes, leases, restarts) = tokio::join!(changes, leases, restarts);
    let quiet = Instant::now();
    let (mut changed, mut leased, mut held) = (Tally::default(), Tally::default(), Vec::new());
    for tally in &changes {
        changed.add(tally);
    }
    for (crawlers, tally) in leases {
        held.extend(crawlers);
        leased.add(&tally);
    }
    eprintln!("churn: {:.0?} of changes among {NAMES} names; objects: {changed}", begun.elapsed());
    eprintln!("churn: leases: {leased}");
    eprintln!("churn: the API server was killed and was back {restarts:.1?} later");
    assert!(!operator.has_ended());

    let (pods, maps) = (Api::namespaced(client.clone(), &pods_in), Api::namespaced(client, &pods_in));
    let world = World { group: &group, proxies: &proxies, operator: &operator, pods, maps, held: &held };
    within(SETTLES_WITHIN, "all sides agree", async || match world.disagreement().await {
        Some(what) => Err(what),
        None => Ok(()),
    })
    .await;
    let (hold, were) = world.leases_agree().await;
    let all = objects(&proxies).await;
    let managed = all.values().filter(|proxy| proxy.spec.managed.is_some()).count();
    eprintln!(
        "churn: {} proxies, {managed} of them pods, and {hold} leases agree {:.1?} after the last change; \
         {} leases ended with their proxies",
        all.len(),
        quiet.elapsed(),
        were - hold,
    );
    // It was what it says: much happened, and not only to somebody else's proxies.
    for (what, least) in [("made", NAMES / 2), ("changed", NAMES / 4), ("deleted", NAMES / 10)] {
        assert!(changed.of(what) as usize >= least, "{changed}");
    }
    assert!(leased.of("granted") > 100 && hold > 0 && managed > NAMES / A_POD_IN / 3, "{leased}");
    let listed = operator.api.get("/v1/leases").await;
    for lease in listed["leases"].as_array().unwrap() {
        operator.api.release(lease).await;
    }
    granted(&operator.api, all.keys().next().unwrap()).await;
}
