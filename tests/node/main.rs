//! The deployed product on a real node: kubelet, containerd, runc, kube-proxy. `make e2e` brings the node up and runs this
//! in its namespaces; anywhere else it is ignored.
//!
//! One test, as there is one node: it deploys what is shipped, goes through the list of [`CLAIMS`] and takes it away again.
//! A claim that does not hold does not stop the others. Figures are printed at the end.
//!
//! Not there: a cluster DNS, a network plugin that enforces policies, a second node, a way out to the internet.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code, also outside test functions")]

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

mod cluster;
mod crawler;
mod deploys;
mod faults;
mod handover;
mod leasing;
mod limits;
mod processes;
mod target;

use cluster::Cluster;

/// Long enough that only a defect reaches it.
const AMPLE: Duration = Duration::from_mins(1);

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks until there is something to see, and fails with `claim` if that takes longer than [`AMPLE`].
async fn eventually<T>(claim: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < AMPLE, "{claim}: not within {AMPLE:?}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

type Step = for<'a> fn(&'a Cluster) -> LocalBoxFuture<'a, ()>;

macro_rules! claims {
    ($($module:ident::$claim:ident),* $(,)?) => {
        &[$((concat!(stringify!($module), "::", stringify!($claim)), |cluster| Box::pin($module::$claim(cluster)))),*]
    };
}

/// In this order: each finds what those before it have left.
const CLAIMS: &[(&str, Step)] = claims![
    leasing::a_proxy_becomes_a_squid_pod_and_is_ready_by_a_real_connect,
    leasing::it_is_leased_through_the_service_used_and_released,
    leasing::a_crawler_in_a_pod_leases_as_the_readme_says,
    leasing::a_squid_pod_is_no_door_into_the_cluster,
    limits::the_operator_runs_restricted_and_within_its_memory,
    leasing::port_forwards_work_as_the_readme_says,
    faults::a_killed_squid_is_told_and_ready_again_at_the_same_address,
    faults::a_squid_pod_that_is_evicted_or_deleted_changes_its_address_and_not_its_proxy,
    faults::an_image_that_cannot_be_had_is_told_on_the_proxy,
    faults::a_squid_without_enough_memory_is_told_on_the_proxy,
    handover::a_rollout_restart_refuses_no_connection,
    handover::an_eviction_of_the_leader_refuses_no_connection,
    handover::a_killed_leader_is_replaced_in_seconds,
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make e2e"]
async fn the_deployed_product_on_a_real_node() {
    let cluster = Cluster::connect().await;
    let mut failed = Vec::new();
    let before = deploys::everything(&cluster).await;
    let up = run("deploys::what_is_shipped_comes_up_and_one_leads", |c| Box::pin(deploys::comes_up(c)), &cluster).await;
    if up {
        for (claim, step) in CLAIMS {
            if !run(claim, *step, &cluster).await {
                failed.push(*claim);
                cluster.tell_state().await;
            }
        }
        let claim = "deploys::undeploy_leaves_nothing";
        match AssertUnwindSafe(deploys::undeploy_leaves_nothing(&cluster, before)).catch_unwind().await {
            Ok(()) => println!("ok      {claim}"),
            Err(_) => failed.push(claim),
        }
    } else {
        cluster.tell_state().await;
        failed.push("nothing comes up");
    }
    println!("\n{}", cluster.figures());
    assert!(failed.is_empty(), "{} of {} do not hold: {failed:#?}", failed.len(), CLAIMS.len() + 2);
}

async fn run(claim: &str, step: Step, cluster: &Cluster) -> bool {
    let only = std::env::var("E2E_ONLY").unwrap_or_default();
    if !claim.contains(&only) && !claim.starts_with("deploys") {
        return true;
    }
    let begun = Instant::now();
    let held = AssertUnwindSafe(step(cluster)).catch_unwind().await.is_ok();
    println!("{} {:5.1} s  {claim}", if held { "ok    " } else { "FAILED" }, begun.elapsed().as_secs_f64());
    held
}
