//! Two replicas: one leads, the other stands by, and takes over however the first one ends.

use std::time::Instant;

use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::eventually;
use crate::group::{Group, ask, granted};
use crate::life::Proxies;
use crate::manifest::external;
use crate::plane::{Audited, Plane};
use crate::site::Site;
use crate::squids::OwnSquid;

#[tokio::test]
async fn a_killed_leader_is_replaced_by_the_standby_which_said_until_then_who_leads() {
    let plane = Plane::shared().await;
    let (Some(one), Some(two), Some(squid)) = (Site::new(), Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(plane, "killed").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let first = group.replica(&one, "op-a").await.start().await;
    proxies.apply(&external("px", squid.port).namespace(&group.namespace)).await;
    proxies.becomes("px", "Ready").await;
    group.only_labelled("op-a").await;

    // Ready, though it gives nothing: a Deployment would never finish its rollout otherwise.
    let second = group.replica(&two, "op-b").await.start().await;
    eventually("the standby knows who leads", async || {
        ask(&two, Method::GET, "/v1/proxies").await.2["leader"].as_str().map(drop)
    })
    .await;
    for (method, path) in [(Method::POST, "/v1/leases"), (Method::GET, "/v1/proxies"), (Method::GET, "/v1/leases")] {
        let (status, retry_after, body) = ask(&two, method, path).await;
        assert_eq!((status, &body["code"]), (503, &"not_ready".into()), "{path}: {body}");
        assert!(retry_after.is_some_and(|secs| (1..=60).contains(&secs)), "{path}: {retry_after:?}");
        assert!(body["leader"].as_str().unwrap().starts_with("op-a_"), "{path}: {body}");
    }
    assert_eq!(second.api.admin("/readyz").await.unwrap().0, 200);
    let (before, _) = granted(&first.api, "px").await;
    assert_eq!(group.labelled().await, ["op-a"]);

    let killed = Instant::now();
    first.kill().await;
    granted(&second.api, "px").await;
    let took = killed.elapsed();
    eprintln!("takeover after SIGKILL: the first lease after {took:.1?}");
    assert!(took.as_secs() < 25, "{took:?}");
    group.only_labelled("op-b").await;
    // Nobody knows of the lease that went with its leader, and nothing is mistaken for it.
    let renew = format!("/v1/leases/{}/renew", before["id"].as_str().unwrap());
    let (status, _, body) = ask(&two, Method::POST, &renew).await;
    assert!(matches!(status, 404 | 410), "{status} {body}");
}

#[tokio::test]
async fn a_leader_that_ends_in_order_is_followed_at_once() {
    let plane = Plane::shared().await;
    let (Some(one), Some(two), Some(squid)) = (Site::new(), Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(plane, "ended").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let first = group.replica(&one, "op-a").await.start().await;
    proxies.apply(&external("px", squid.port).namespace(&group.namespace)).await;
    proxies.becomes("px", "Ready").await;
    let second = group.replica(&two, "op-b").await.start().await;

    let asked = Instant::now();
    let ended = first.terminate().await;
    assert_eq!(ended.code, Some(0));
    eprintln!("the leader ended {:.1?} after SIGTERM", asked.elapsed());
    granted(&second.api, "px").await;
    let took = asked.elapsed();
    eprintln!("takeover after SIGTERM: the first lease after {took:.1?}");
    // The lease of a leader that let go of nothing lasts 15 s.
    assert!(took.as_secs() < 10, "{took:?}");
    group.only_labelled("op-b").await;
}

#[tokio::test]
async fn a_leader_that_was_frozen_past_its_claim_starts_no_write_when_it_wakes() {
    let plane = Plane::shared().await;
    let (Some(one), Some(two), Some(squid)) = (Site::new(), Site::new(), OwnSquid::open()) else { return };
    let group = Group::new(plane, "frozen").await;
    let proxies = Proxies::of(plane, &group.namespace).await;
    let names: Vec<_> = (0..10).map(|i| format!("px-{i}")).collect();
    let first = group.replica(&one, "op-a").await.start().await;
    for name in &names {
        proxies.apply(&external(name, squid.port).namespace(&group.namespace)).await;
    }
    proxies.becomes("px-9", "Ready").await;
    let second = group.replica(&two, "op-b").await.start().await;

    // Each change wants a status: there is always something to be written, also when it wakes.
    let change = async |round: u32| {
        for name in &names {
            let change = Patch::Merge(json!({"spec": {"maxLeases": 1 + round % 5}}));
            proxies.0.patch(name, &PatchParams::default(), &change).await.unwrap();
        }
    };
    for round in 0..3 {
        change(round).await;
    }
    first.signal(Signal::STOP);
    let frozen = Instant::now();
    let mut round = 3;
    eventually("the standby leads", async || {
        change(round).await;
        round += 1;
        (ask(&two, Method::GET, "/v1/proxies").await.0 == 200).then_some(())
    })
    .await;
    eprintln!("takeover after SIGSTOP: {:.1?}", frozen.elapsed());
    granted(&second.api, "px-0").await;
    group.only_labelled("op-b").await;
    change(round).await;

    let woken = Timestamp::now();
    first.signal(Signal::CONT);
    change(round + 1).await;
    eventually("it stands by", async || {
        let (status, _, body) = ask(&one, Method::GET, "/v1/proxies").await;
        (status == 503 && body["leader"].as_str().is_some_and(|leader| leader.starts_with("op-b_"))).then_some(())
    })
    .await;
    // It has had the time for whatever it meant to do: it polls each two seconds.
    let polls = |lines: &[Audited]| lines.iter().filter(|line| line.verb == "get").count();
    eventually("it polls the record as a standby", async || {
        (polls(&group.asked_since("op-a", woken)) >= 4).then_some(())
    })
    .await;
    let written: Vec<_> = group
        .asked_since("op-a", woken)
        .into_iter()
        .filter(Audited::is_write)
        .map(|line| format!("{} {} {}", line.verb, line.object_ref.resource, line.object_ref.name))
        .collect();
    assert_eq!(written, ["patch pods op-a"]);
    assert_eq!(group.labelled().await, ["op-b"]);
    assert_eq!(first.api.admin("/readyz").await.unwrap().0, 200);
    for name in &names {
        eventually("its status is that of the new leader", async || {
            let proxy = proxies.get(name).await.unwrap();
            let status = proxy.status.unwrap();
            (status.observed_generation == proxy.metadata.generation && status.phase.as_deref() == Some("Ready"))
                .then_some(())
        })
        .await;
    }
}
