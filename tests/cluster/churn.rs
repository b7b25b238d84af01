//! Objects come, change and go at random while the API server is restarted: in the end all agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use egress_operator::crd::API_VERSION;
use egress_operator::crd::proxy::Proxy;

use crate::eventually;
use crate::group::{Group, granted};
use crate::life::Proxies;
use crate::operator::Operator;
use crate::plane::{Options, Plane};
use crate::site::Site;
use crate::squids::OwnSquid;

const NAMES: usize = 300;

/// How long things change. The API server is restarted after a third and after two thirds of it.
const CHURN: Duration = Duration::from_secs(40);

fn proxy(name: &str, port: u16, max_leases: u32) -> Value {
    json!({
        "apiVersion": API_VERSION, "kind": "Proxy", "metadata": {"name": name},
        "spec": {
            "external": {"url": format!("http://127.0.0.1:{port}")}, "attributes": {"n": name},
            "maxLeases": max_leases, "healthCheck": {"interval": "30s"}
        }
    })
}

/// One random change. It may meet an API server that is away: then it did not happen, or nobody knows.
async fn change(proxies: &Api<Proxy>, port: u16) {
    let name = format!("px-{}", rand::random_range(0..NAMES));
    let wanted = proxy(&name, port, rand::random_range(1..5));
    if rand::random_bool(0.3) {
        let _ = proxies.delete(&name, &DeleteParams::default()).await;
    } else {
        let _ = proxies.patch(&name, &PatchParams::apply("churn").force(), &Patch::Apply(&wanted)).await;
    }
}

/// Actors of this kind.
fn count(node: &Value, kind: &str) -> usize {
    let below: usize = node["children"].as_array().unwrap().iter().map(|child| count(child, kind)).sum();
    below + usize::from(node["kind"] == kind)
}

/// Takes a lease of any Proxy, or gives one back.
async fn lease(operator: &Operator, held: &mut Vec<Value>) {
    if held.len() > 40 || (rand::random_bool(0.3) && !held.is_empty()) {
        let lease: Value = held.swap_remove(rand::random_range(0..held.len()));
        let path = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
        let (status, body) = operator.api.call(reqwest::Method::DELETE, &path, None).await;
        // Its Proxy may have gone before.
        assert!(matches!(status, 204 | 404 | 410), "{status} {body}");
    } else if let (201, mut body) =
        operator.api.call(reqwest::Method::POST, "/v1/leases", Some(&json!({"ttlSeconds": 600}))).await
    {
        held.push(body["leases"][0].take());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_actors_and_leases_agree_after_a_minute_of_changes_and_two_restarts_of_the_api_server() {
    let plane = Plane::start(Options::default()).await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(&plane, "churn").await;
    let proxies = Proxies::of(&plane, &group.namespace).await;
    let operator = group.replica(&site, "op-a").await.start().await;

    let begun = Instant::now();
    let is_over = || begun.elapsed() >= CHURN;
    let (mut changes, mut held) = (0_u32, Vec::new());
    let churn = async {
        while !is_over() {
            let four = || async {
                for _ in 0..4 {
                    change(&proxies.0, squid.port).await;
                }
            };
            tokio::join!(four(), four(), four(), four());
            changes += 16;
        }
    };
    let leases = async {
        eventually("the churn is over", async || {
            lease(&operator, &mut held).await;
            is_over().then_some(())
        })
        .await;
    };
    let restarts = async {
        for part in [CHURN / 3, CHURN * 2 / 3] {
            eventually("it is time", async || (begun.elapsed() >= part).then_some(())).await;
            plane.api.kill();
            plane.start_api().await;
        }
    };
    tokio::join!(churn, leases, restarts);
    eprintln!("{changes} changes in {:.1?}", begun.elapsed());

    // Names with their capacity, as the cluster and as the operator have them.
    let objects = async || -> BTreeMap<String, i64> {
        let listed = proxies.0.list(&ListParams::default()).await.unwrap();
        let row =
            |proxy: Proxy| (format!("{}/{}", group.namespace, proxy.metadata.name.unwrap()), proxy.spec.max_leases);
        listed.items.into_iter().map(row).map(|(name, max)| (name, max.unwrap_or(1))).collect()
    };
    let rows = async || -> BTreeMap<String, i64> {
        let listed = operator.api.get("/v1/proxies").await;
        let rows = listed["proxies"].as_array().unwrap().clone();
        rows.iter()
            .filter(|row| row["phase"] == "Ready")
            .map(|row| (row["name"].as_str().unwrap().to_owned(), row["maxLeases"].as_i64().unwrap()))
            .collect()
    };
    let quiet = Instant::now();
    let wanted = objects().await;
    assert!(wanted.len() > NAMES / 3, "{}", wanted.len());
    eventually("the operator has what the cluster has, all of it ready", async || {
        (rows().await == wanted).then_some(())
    })
    .await;
    eprintln!("{} proxies agree {:.1?} after the last change", wanted.len(), quiet.elapsed());
    assert_eq!(objects().await, wanted);
    let tree = operator.api.admin_json("/admin/actors").await;
    assert_eq!(count(&tree, "proxy"), wanted.len());
    for proxy in proxies.all().await {
        eventually("its status is of its latest generation", async || {
            let now = proxies.get(proxy.metadata.name.as_deref().unwrap()).await.unwrap();
            (now.status?.observed_generation == now.metadata.generation).then_some(())
        })
        .await;
    }
    // Every lease is of a Proxy that is there, and those that are held are known.
    let listed = operator.api.get("/v1/leases").await;
    let listed = listed["leases"].as_array().unwrap();
    let ids: BTreeSet<_> = listed.iter().map(|lease| lease["id"].as_str().unwrap()).collect();
    let mine: BTreeSet<_> = held.iter().map(|lease| lease["id"].as_str().unwrap()).collect();
    assert!(ids.is_subset(&mine), "{ids:?} {mine:?}");
    for lease in listed {
        assert!(wanted.contains_key(lease["proxy"]["name"].as_str().unwrap()), "{lease}");
    }
    eprintln!("{} of {} leases outlived their proxies' changes", ids.len(), mine.len());
    let any = wanted.keys().next().unwrap().rsplit_once('/').unwrap().1;
    for lease in listed {
        operator.api.release(lease).await;
    }
    granted(&operator.api, any).await;
}
