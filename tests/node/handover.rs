//! From one leader to the next, with crawlers that never stop asking through the Service.
//!
//! What a crawler sees in a hand-over that is planned: `503 not_ready` with `Retry-After` from the old leader, which
//! listens until the next one has taken its place; then grants. Leases are in the leader's memory: a renewal at the new one
//! is told `404 no_such_lease`, and the crawler asks again. A refused connection, a silence or another answer is a defect.

use std::time::{Duration, Instant};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use kube::api::{Api, EvictParams};

use crate::cluster::{Cluster, NAME, SYSTEM, is_ready};
use crate::crawler::{Crawlers, Tally};
use crate::eventually;
use crate::processes::Process;

/// Two retries of the election and what a node needs to tell its proxies of it.
const PLANNED_WITHIN: Duration = Duration::from_secs(10);

pub(crate) async fn a_rollout_restart_refuses_no_connection(cluster: &Cluster) {
    let before = cluster.settled().await.uid();
    let crawlers = Crawlers::start(cluster, "px-1").await;
    going(&crawlers).await;
    cluster.kubectl(&["-n", SYSTEM, "rollout", "restart", &format!("deployment/{NAME}")]).await;
    cluster.kubectl(&["-n", SYSTEM, "rollout", "status", &format!("deployment/{NAME}"), "--timeout=120s"]).await;
    only_two(cluster).await;
    assert_ne!(cluster.settled().await.uid(), before);
    going(&crawlers).await;
    planned(cluster, "rollout restart", &crawlers.stop().await);
}

pub(crate) async fn an_eviction_of_the_leader_refuses_no_connection(cluster: &Cluster) {
    let leader = cluster.settled().await;
    let crawlers = Crawlers::start(cluster, "px-1").await;
    going(&crawlers).await;
    // While a rollout has one more than wanted, two may go.
    let budgets = Api::<PodDisruptionBudget>::namespaced(cluster.client.clone(), SYSTEM);
    eventually("the budget has counted two", async || {
        let status = budgets.get(NAME).await.unwrap().status?;
        (status.disruptions_allowed == Some(1) && status.current_healthy == Some(2)).then_some(())
    })
    .await;
    let (pods, evict) = (cluster.pods(SYSTEM), EvictParams::default());
    let other = cluster.replicas().await.into_iter().find(|pod| pod.uid() != leader.uid() && is_ready(pod)).unwrap();
    pods.evict(&leader.name_any(), &evict).await.unwrap();
    // The budget lets one go at a time: a drain waits for the next one to be ready.
    let refused = pods.evict(&other.name_any(), &evict).await;
    assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("disruption budget")), "{refused:?}");
    only_two(cluster).await;
    assert_ne!(cluster.settled().await.uid(), leader.uid());
    going(&crawlers).await;
    planned(cluster, "eviction of the leader", &crawlers.stop().await);
}

pub(crate) async fn a_killed_leader_is_replaced_in_seconds(cluster: &Cluster) {
    let leader = cluster.settled().await;
    let crawlers = Crawlers::start(cluster, "px-1").await;
    going(&crawlers).await;
    let begun = Instant::now();
    Process::of(&leader.uid().unwrap(), NAME).remove(0).kill();
    eventually("it is missed", async || crawlers.is_missed().then_some(())).await;
    going(&crawlers).await;
    let took = begun.elapsed();
    cluster.figure("killed leader, until the Service grants again", &format!("{:.1} s", took.as_secs_f64()));
    cluster.settled().await;
    going(&crawlers).await;
    let tally = crawlers.stop().await;
    cluster.figure("  what crawlers saw", &tally.line());
    assert!(tally.longest_gap < Duration::from_secs(20), "{:?}", tally.longest_gap);
}

fn planned(cluster: &Cluster, what: &str, tally: &Tally) {
    cluster.figure(&format!("{what}: what crawlers saw"), &tally.line());
    assert!(tally.unexpected().is_empty(), "{:#?}", tally.unexpected());
    assert!(tally.longest_gap < PLANNED_WITHIN, "{:?}", tally.longest_gap);
}

/// Some more answers than before are good ones.
async fn going(crawlers: &Crawlers) {
    let before = crawlers.good();
    eventually("crawlers get what they ask for", async || (crawlers.good() > before + 20).then_some(())).await;
}

/// Those that end have ended.
async fn only_two(cluster: &Cluster) {
    eventually("two replicas are left", async || {
        let all = cluster.pods(SYSTEM).list_metadata(&kube::api::ListParams::default()).await.unwrap().items;
        (all.len() == 2).then_some(())
    })
    .await;
}
