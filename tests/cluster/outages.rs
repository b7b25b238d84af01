//! The API server or etcd goes away and comes back: what runs goes on, and nothing is forgotten.
//!
//! Each test breaks a plane of its own. An outage lasts longer than the claim (10 s) and the lease (15 s).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::api::{DeleteParams, Patch, PatchParams};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::fetch;
use crate::eventually;
use crate::group::{Group, ask, granted};
use crate::life::Proxies;
use crate::manifest::{external, managed};
use crate::operator::Operator;
use crate::plane::{Options, Part, Plane};
use crate::site::Site;
use crate::squids::OwnSquid;

/// Proxies of somebody else's Squid and of our own ones, all Ready; leases of one of each that are out for the test,
/// and of one that is given back in the outage.
struct Fleet {
    namespace: String,
    site: Site,
    squid: OwnSquid,
    proxies: Proxies,
    operator: Operator,
    kept: Vec<Value>,
    given_back: Value,
    squids: BTreeSet<i32>,
    uids: BTreeSet<String>,
}

impl Fleet {
    async fn new(plane: &Plane) -> Option<Self> {
        let (site, squid) = (Site::new()?, OwnSquid::open()?);
        let group = Group::new(plane, "outage").await;
        let proxies = Proxies::of(plane, &group.namespace).await;
        let operator = group.replica(&site, "op-a").await.start().await;
        for name in ["ext-kept", "ext-back", "ext-free"] {
            proxies.apply(&external(name, squid.port).namespace(&group.namespace)).await;
        }
        for name in ["own-kept", "own-free"] {
            proxies.apply(&managed(name).namespace(&group.namespace)).await;
        }
        for name in ["ext-kept", "ext-back", "ext-free", "own-kept", "own-free"] {
            proxies.becomes(name, "Ready").await;
        }
        let mut kept = Vec::new();
        for name in ["ext-kept", "own-kept"] {
            kept.push(granted(&operator.api, name).await.0);
        }
        let given_back = granted(&operator.api, "ext-back").await.0;
        let squids = site.squids();
        assert_eq!(squids.len(), 2);
        let uids = uids(&proxies).await;
        Some(Self {
            namespace: group.namespace.clone(),
            site,
            squid,
            proxies,
            operator,
            kept,
            given_back,
            squids,
            uids,
        })
    }

    /// What works without a cluster, once: renewing, using, and nothing of ours is harmed.
    async fn goes_on(&self) {
        for lease in &self.kept {
            let path = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
            let (status, body) = self.operator.api.call(Method::POST, &path, Some(&json!({"ttlSeconds": 600}))).await;
            assert_eq!(status, 200, "{body}");
            assert_eq!(fetch(lease, &self.site.target.url()).await.status(), 204);
        }
        assert_eq!(self.site.squids(), self.squids, "the same Squids run");
    }

    /// An outage that goes on for this long.
    async fn lives_through(&mut self, outage: Duration) {
        let begun = Instant::now();
        let limit = begun + outage;
        let refused = eventually("new leases are refused", async || {
            self.goes_on().await;
            let (status, retry_after, body) = ask(&self.site, Method::POST, "/v1/leases").await;
            if status == 201 {
                // The claim is still good.
                let path = format!("/v1/leases/{}", body["leases"][0]["id"].as_str().unwrap());
                assert_eq!(self.operator.api.call(Method::DELETE, &path, None).await.0, 204);
            }
            (status == 503).then_some((retry_after, body))
        })
        .await;
        eprintln!("suspended {:.1?} after the outage began", begun.elapsed());
        assert_eq!((&refused.1["code"], refused.0.is_some()), (&"not_ready".into(), true), "{refused:?}");
        self.operator.api.release(&self.given_back).await;
        eventually("the outage has lasted", async || {
            self.goes_on().await;
            let (status, body) = self.operator.api.try_lease("ext-back").await;
            assert_eq!(status, 503, "{body}");
            assert_eq!(self.operator.api.admin("/livez").await.unwrap().0, 200);
            (Instant::now() >= limit).then_some(())
        })
        .await;
        assert!(!self.operator.has_ended());
    }

    /// Everything as before, by itself.
    async fn is_back(&mut self) {
        let (again, took) = granted(&self.operator.api, "ext-back").await;
        eprintln!("new leases again {took:.1?} after the outage");
        self.goes_on().await;
        let listed = self.operator.api.get("/v1/leases").await;
        let ids: BTreeSet<_> = listed["leases"].as_array().unwrap().iter().map(|lease| lease["id"].as_str()).collect();
        let wanted: BTreeSet<_> = self.kept.iter().chain([&again]).map(|lease| lease["id"].as_str()).collect();
        assert_eq!(ids, wanted);
        assert_eq!(uids(&self.proxies).await, self.uids);
        assert!(!self.operator.has_ended());
        // What is asked for now is done.
        self.proxies.apply(&external("new", self.squid.port).namespace(&self.namespace)).await;
        self.proxies.becomes("new", "Ready").await;
        self.proxies.delete("own-free").await;
        eventually("the object is gone", async || self.proxies.get("own-free").await.is_none().then_some(())).await;
        assert_eq!(self.site.squids().len(), 1);
        self.proxies.becomes("own-kept", "Ready").await;
        for lease in self.kept.iter().chain([&again]) {
            self.operator.api.release(lease).await;
        }
    }
}

async fn uids(proxies: &Proxies) -> BTreeSet<String> {
    proxies.all().await.into_iter().map(|proxy| proxy.metadata.uid.unwrap()).collect()
}

/// On several threads: a plane's verbs block theirs, and HTTP connections must not stand still meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_down_and_comes_back_costs_no_lease_and_no_instance() {
    let plane = Plane::start(Options::default()).await;
    let Some(mut fleet) = Fleet::new(&plane).await else { return };
    plane.api.kill();
    fleet.lives_through(Duration::from_secs(20)).await;
    plane.start_api().await;
    fleet.is_back().await;
    // A rollout of the API server is over before the claim is.
    plane.api.stop();
    plane.start_api().await;
    granted(&fleet.operator.api, "ext-back").await;
    assert_eq!(fleet.site.squids().len(), 1);
    fleet.proxies.apply(&external("last", fleet.squid.port).namespace(&fleet.namespace)).await;
    fleet.proxies.becomes("last", "Ready").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_is_frozen_for_a_minute_costs_no_lease_and_no_instance() {
    let plane = Plane::start(Options::default()).await;
    let Some(mut fleet) = Fleet::new(&plane).await else { return };
    plane.api.freeze();
    lives_through_and_thaws(&mut fleet, &plane.api, Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_etcd_costs_no_lease_and_no_instance() {
    let plane = Plane::start(Options::default()).await;
    let Some(mut fleet) = Fleet::new(&plane).await else { return };
    plane.etcd.freeze();
    lives_through_and_thaws(&mut fleet, &plane.etcd, Duration::from_secs(25)).await;
}

async fn lives_through_and_thaws(fleet: &mut Fleet, part: &Part, outage: Duration) {
    fleet.lives_through(outage).await;
    part.thaw();
    fleet.is_back().await;
}

/// The operator alone is cut off: the others change the fleet meanwhile.
#[tokio::test]
async fn what_was_made_deleted_and_made_anew_while_the_watch_was_away_is_seen_when_it_is_back() {
    let plane = Plane::shared().await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(plane, "away").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let (launch, relay) = group.cuttable(&site, "op-a").await;
    let operator = launch.start().await;
    let make = |name: &str| external(name, squid.port).namespace(&group.namespace);
    for name in ["stays", "goes", "anew"] {
        proxies.apply(&make(name)).await;
        proxies.becomes(name, "Ready").await;
    }
    let (stays, _) = granted(&operator.api, "stays").await;
    let (anew, _) = granted(&operator.api, "anew").await;
    let before = proxies.get("anew").await.unwrap().metadata.uid;

    relay.cut();
    eventually("the operator sees that it is cut off", async || {
        operator.api.check("source-readable").await.starts_with("[!]").then_some(())
    })
    .await;
    for name in ["goes", "anew"] {
        // Somebody takes the finalizer away by hand, and so the watch will never hear of the deletion.
        let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        proxies.0.delete(name, &DeleteParams::default()).await.unwrap();
        let _ = proxies.0.patch(name, &PatchParams::default(), &none).await;
        eventually("it is deleted", async || proxies.get(name).await.is_none().then_some(())).await;
    }
    for name in ["anew", "new"] {
        proxies.apply(&make(name)).await;
    }
    relay.mend();

    let named = async || -> BTreeSet<String> {
        let rows = operator.api.get("/v1/proxies").await;
        rows["proxies"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    let wanted: BTreeSet<String> =
        ["stays", "anew", "new"].iter().map(|name| format!("{}/{name}", group.namespace)).collect();
    eventually("its fleet is that of the cluster", async || (named().await == wanted).then_some(())).await;
    proxies.becomes("new", "Ready").await;
    assert_ne!(proxies.becomes("anew", "Ready").await.metadata.uid, before);
    let renew = |lease: &Value| format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
    assert_eq!(ask(&site, Method::POST, &renew(&stays)).await.0, 200);
    assert_eq!(ask(&site, Method::POST, &renew(&anew)).await.0, 410, "the new one of that name inherits nothing");
    granted(&operator.api, "new").await;
}

/// Its network swallows everything; the standby takes over, and it steps down when it is back.
#[tokio::test]
async fn a_leader_whose_network_swallows_everything_is_replaced_and_steps_down() {
    let plane = Plane::shared().await;
    let (Some(one), Some(two), Some(squid)) = (Site::new(), Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(plane, "cut").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let (launch, relay) = group.cuttable(&one, "op-a").await;
    let first = launch.start().await;
    proxies.apply(&external("px", squid.port).namespace(&group.namespace).max_leases(2)).await;
    proxies.becomes("px", "Ready").await;
    let second = group.replica(&two, "op-b").await.start().await;
    let (lease, _) = granted(&first.api, "px").await;

    let cut = Instant::now();
    relay.silence();
    granted(&second.api, "px").await;
    eprintln!("takeover after the leader's network was silenced: {:.1?}", cut.elapsed());
    // Two of them never grant together.
    let (status, _, body) = ask(&one, Method::POST, "/v1/leases").await;
    assert_eq!((status, &body["code"]), (503, &"not_ready".into()), "{body}");
    let renew = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
    assert_eq!(ask(&one, Method::POST, &renew).await.0, 200, "its crawlers go on");
    group.only_labelled("op-b").await;

    relay.mend();
    eventually("it stands by", async || {
        ask(&one, Method::POST, "/v1/leases").await.2["leader"].as_str()?.starts_with("op-b_").then_some(())
    })
    .await;
    eprintln!("it stands by {:.1?} after the cut", cut.elapsed());
    assert_eq!(group.labelled().await, ["op-b"]);
    eventually("it is ready to lead again", async || {
        let (status, body) = first.api.admin("/readyz?verbose").await.unwrap();
        assert!(status == 200 || body.contains("[-]source-synced"), "{body}");
        (status == 200).then_some(())
    })
    .await;
    eprintln!("it is ready to lead {:.1?} after the cut", cut.elapsed());
}

/// Who the operator is can only be asked there: it waits, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_that_starts_while_the_api_server_is_away_says_so_and_begins_when_it_is_back() {
    let plane = Plane::start(Options::default()).await;
    let (Some(site), Some(squid)) = (Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(&plane, "early").await;
    let proxies = Proxies::of(&plane, &group.namespace).await;
    proxies.apply(&external("px", squid.port).namespace(&group.namespace)).await;
    let launch = group.replica(&site, "op-a").await;
    plane.api.kill();
    let mut operator = launch.spawn();
    let told = eventually("it is alive, and says what it waits for", async || {
        let live = operator.api.admin("/livez").await.ok()?;
        let (status, body) = operator.api.admin("/readyz").await.ok()?;
        assert_eq!((live.0, status), (200, 503), "{body}");
        Some(body)
    })
    .await;
    assert!(told.starts_with("[-]cluster: waiting for the API server: "), "{told}");
    assert!(!operator.has_ended());
    plane.start_api().await;
    eventually("it is ready", async || (operator.api.admin("/readyz").await.ok()?.0 == 200).then_some(())).await;
    proxies.becomes("px", "Ready").await;
    granted(&operator.api, "px").await;
    assert_eq!(operator.terminate().await.code, Some(0));
}
