//! What happens to Squid pods, and what their Proxies say about it.

use std::time::Instant;

use egress_operator::crd::proxy::Proxy;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams};

use crate::cluster::{Cluster, SQUIDS, phase};
use crate::crawler::{Crawler, fetch};
use crate::processes::Process;
use crate::{eventually, target};

pub(crate) async fn a_killed_squid_is_told_and_ready_again_at_the_same_address(cluster: &Cluster) {
    let pod = cluster.squid("px-1").await.unwrap();
    let before = cluster.ready("px-1").await.status.unwrap();
    let begun = Instant::now();
    Process::of(&pod.uid().unwrap(), "squid").remove(0).kill();
    let mut told = Vec::new();
    eventually("its Squid runs again", async || {
        note(&mut told, &cluster.proxies().get("px-1").await.unwrap());
        let statuses = cluster.squid("px-1").await?.status?.container_statuses?;
        (statuses[0].restart_count > 0 && statuses[0].ready).then_some(())
    })
    .await;
    eventually("it is Ready", async || {
        let proxy = cluster.proxies().get("px-1").await.unwrap();
        note(&mut told, &proxy);
        (phase(&proxy) == "Ready").then_some(())
    })
    .await;
    let after = cluster.ready("px-1").await.status.unwrap();
    assert_eq!((after.address, after.provider_id), (before.address, before.provider_id));
    assert_eq!(cluster.squid("px-1").await.unwrap().uid(), pod.uid());
    let events = cluster.told("crawl", "px-1").await;
    cluster.figure("a killed Squid, until Ready again", &format!("{:.1} s", begun.elapsed().as_secs_f64()));
    cluster.figure("  told as", &format!("{}; last event {:?}", told.join(" -> "), events.last()));
    let crawler = Crawler::of(cluster).await;
    let lease = crawler.lease("px-1").await;
    assert_eq!(fetch(&lease, target::URL).await, Ok(204));
    crawler.release(lease["id"].as_str().unwrap()).await.unwrap();
}

pub(crate) async fn a_squid_pod_that_is_evicted_or_deleted_changes_its_address_and_not_its_proxy(cluster: &Cluster) {
    for evicted in [true, false] {
        let before = cluster.ready("px-1").await;
        let name = cluster.squid("px-1").await.unwrap().name_any();
        let (pods, begun) = (cluster.pods(SQUIDS), Instant::now());
        if evicted {
            pods.evict(&name, &EvictParams::default()).await.unwrap();
        } else {
            pods.delete(&name, &DeleteParams::default()).await.unwrap();
        }
        let mut told = Vec::new();
        let after = eventually("it is Ready at another address", async || {
            let proxy = cluster.proxies().get("px-1").await.unwrap();
            note(&mut told, &proxy);
            let status = proxy.status.as_ref()?;
            (phase(&proxy) == "Ready" && status.address != before.status.as_ref()?.address).then_some(proxy)
        })
        .await;
        assert_eq!(before.uid(), after.uid());
        let how = if evicted { "evicted" } else { "deleted" };
        let took = format!("{:.1} s: {}", begun.elapsed().as_secs_f64(), told.join(" -> "));
        cluster.figure(&format!("a Squid pod that is {how}, until Ready elsewhere"), &took);
    }
}

pub(crate) async fn an_image_that_cannot_be_had_is_told_on_the_proxy(cluster: &Cluster) {
    cluster.apply("px-nowhere", "{image: nowhere}").await;
    let message = reason_becomes(cluster, "px-nowhere", "ImagePullFailed").await;
    assert!(message.contains("localhost/nowhere:e2e"), "{message}");
    gone(cluster, "px-nowhere").await;
}

pub(crate) async fn a_squid_without_enough_memory_is_told_on_the_proxy(cluster: &Cluster) {
    cluster.apply("px-tiny", "{size: tiny}").await;
    let message = reason_becomes(cluster, "px-tiny", "OOMKilled").await;
    assert!(message.contains("limits.memory"), "{message}");
    gone(cluster, "px-tiny").await;
}

/// Waits for the reason of a condition, and gives its message.
async fn reason_becomes(cluster: &Cluster, name: &str, reason: &str) -> String {
    let begun = Instant::now();
    let mut told = Vec::new();
    let message = eventually(&format!("{name} says {reason}"), async || {
        let proxy = cluster.proxies().get(name).await.unwrap();
        note(&mut told, &proxy);
        let conditions = proxy.status?.conditions;
        Some(conditions.into_iter().find(|condition| condition.reason == reason)?.message)
    })
    .await;
    cluster.figure(&format!("{reason}, until told"), &format!("{:.1} s: {message}", begun.elapsed().as_secs_f64()));
    message
}

async fn gone(cluster: &Cluster, name: &str) {
    cluster.proxies().delete(name, &DeleteParams::default()).await.unwrap();
    eventually("the object is gone", async || cluster.proxies().get_opt(name).await.unwrap().is_none().then_some(()))
        .await;
    assert!(cluster.squid(name).await.is_none());
}

/// Remembers each change of what a Proxy says.
fn note(told: &mut Vec<String>, proxy: &Proxy) {
    let ready = proxy.status.iter().flat_map(|status| &status.conditions).find(|condition| condition.type_ == "Ready");
    let said = format!("{} {}", phase(proxy), ready.map_or("", |ready| &ready.reason));
    if told.last() != Some(&said) {
        told.push(said);
    }
}
