//! What happens to single Squids, and what their neighbours see of it.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::api::{connect, fetch};
use super::manifest::managed;
use super::site::Site;
use super::{eventually, squids};

/// For the machine: a probe, a look at the process, and whatever else runs beside it.
const SLACK: Duration = Duration::from_secs(10);

fn time(entry: &Value) -> jiff::Timestamp {
    entry["ts"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_killed_squid_leaves_the_pool_within_a_probe_interval_and_comes_back_as_a_new_child() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b", "c"], |name| {
        managed(name).max_leases(2).check("interval: 5s, timeout: 1s, failureThreshold: 3")
    });
    // No list tells in time that the Squid has ended: the probe has to find out.
    let operator = site.operator().args(&["--log-level", "debug", "--list-interval", "10m"]).start().await;
    let api = &operator.api;
    api.all_ready(3).await;
    let (mut leases, mut pids) = (Vec::new(), Vec::new());
    for name in ["b", "c"] {
        leases.push(api.lease(name).await);
        pids.push(site.squid_of(name).unwrap());
    }
    let held = [api.lease("a").await, api.lease("a").await];
    let old = site.squid_of("a").unwrap();
    let not_on_offer = operator.log.about("not on offer", "a").len();
    let phases = |name| operator.log.about("phase changed", name).len();
    let before = (phases("b"), phases("c"));

    let killed = jiff::Timestamp::now();
    squids::signal(old, Signal::KILL);
    let withdrawn =
        eventually("a leaves the pool", async || operator.log.about("not on offer", "a").into_iter().nth(not_on_offer))
            .await;
    let took = Duration::try_from(time(&withdrawn).duration_since(killed)).unwrap();
    assert!(took <= Duration::from_secs(5) + SLACK, "on offer for {took:?} after its end");

    let new = eventually("a new child", async || site.squid_of("a").filter(|&pid| pid != old)).await;
    api.all_ready(3).await;
    assert_eq!(site.squid_of("a"), Some(new), "made anew more than once");
    for lease in &held {
        let path = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
        let (status, gone) = api.call(reqwest::Method::POST, &path, Some(&serde_json::json!({}))).await;
        assert_eq!((status, &gone["endedBy"]), (410, &"proxy_replaced".into()), "what is gone is not held: {gone}");
    }
    let lease = api.lease("a").await;
    api.lease("a").await;
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204, "through the new child");

    for (name, pid) in ["b", "c"].into_iter().zip(pids) {
        assert_eq!(site.squid_of(name), Some(pid), "{name} has another squid");
    }
    assert_eq!((phases("b"), phases("c")), before, "the neighbours noticed");
    for lease in leases {
        let path = format!("/v1/leases/{}/renew", lease["id"].as_str().unwrap());
        let body = serde_json::json!({"ttlSeconds": 600, "generation": lease["generation"]});
        let (status, renewed) = api.call(reqwest::Method::POST, &path, Some(&body)).await;
        assert_eq!((status, &renewed["state"]), (200, &"active".into()), "{renewed}");
        let to = format!("127.0.0.1:{}", site.target.port);
        assert_eq!(connect(&lease, &to).await.0, 200, "through a neighbour, with its old lease");
    }
}

#[tokio::test]
async fn the_list_notices_a_killed_squid_without_waiting_for_a_probe() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], |name| managed(name).check("interval: 10m, timeout: 1s"));
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    operator.api.all_ready(1).await;
    let old = site.squid_of("a").unwrap();
    squids::signal(old, Signal::KILL);
    eventually("a new child", async || site.squid_of("a").filter(|&pid| pid != old)).await;
    operator.api.all_ready(1).await;
    let warned = operator.log.about("event", "a").into_iter().find(|entry| entry["event"] == "InstanceStopped");
    assert_eq!(warned.expect("a Warning tells about it")["level"], "warn");
}

#[tokio::test]
async fn a_stopped_squid_is_unhealthy_after_the_threshold_and_back_after_the_other_one() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], |name| {
        managed(name).check("interval: 1s, timeout: 1s, failureThreshold: 3, successThreshold: 2")
    });
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let pid = site.squid_of("a").unwrap();

    squids::signal(pid, Signal::STOP);
    let row = api.becomes("a", "Unhealthy").await;
    let failures = api.probes("ProxyTimeout").await;
    assert!(failures >= 3.0, "Unhealthy after {failures} failures");
    assert_eq!((&row["lastProbe"]["ok"], &row["lastProbe"]["reason"]), (&false.into(), &"ProxyTimeout".into()));
    let (status, answer) = api.try_lease("a").await;
    assert_eq!((status, &answer["code"], &answer["unhealthy"]), (409, &"none_available".into(), &1.into()), "{answer}");

    let well = api.probes("ok").await;
    squids::signal(pid, Signal::CONT);
    api.becomes("a", "Ready").await;
    let successes = api.probes("ok").await - well;
    assert!(successes >= 2.0, "Ready after {successes} successes");
    assert_eq!(site.squid_of("a"), Some(pid), "it was made anew");
    let lease = eventually("on offer again", async || {
        let (status, mut body) = api.try_lease("a").await;
        (status == 201).then(|| body["leases"][0].take())
    })
    .await;
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
}
