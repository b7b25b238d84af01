//! Against a real Kubernetes: etcd, kube-apiserver and, where asked for, kube-controller-manager, as processes on loopback.
//!
//! [`plane`] starts, breaks and ends them; everything else here is tests. All tests share one plane
//! ([`plane::Plane::shared`]) and take a namespace of their own in it; a test that breaks the plane starts its own.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this is test code, also outside test functions")]
#![allow(dead_code, reason = "what is shared with the tests of the real binary is not all used here")]

use std::time::{Duration, Instant};

mod plane;

// One operator as a process, its HTTP, its Squids: as in the tests of the real binary.
#[path = "../e2e/api.rs"]
mod api;
#[path = "../e2e/lanes.rs"]
mod lanes;
#[path = "../e2e/log.rs"]
mod log;
#[path = "../e2e/manifest.rs"]
mod manifest;
#[path = "../e2e/operator.rs"]
mod operator;
#[path = "../e2e/ports.rs"]
mod ports;
#[path = "../e2e/site.rs"]
mod site;
#[path = "../e2e/squids.rs"]
mod squids;
#[path = "../e2e/target.rs"]
mod target;

mod churn;
mod crd;
mod deletions;
mod deploy;
mod gate;
mod group;
mod healths;
mod kills;
mod kit;
mod kubelet;
mod life;
mod objects;
mod outages;
mod pod_proxies;
mod pods;
mod records;
mod relay;
mod remains;
mod replicas;
mod sweep;

/// Long enough that only a defect reaches it, also where many tests share two processors.
const AMPLE: Duration = Duration::from_mins(2);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks until there is something to see, and fails with `claim` if that takes longer than [`AMPLE`].
async fn eventually<T>(claim: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    within(AMPLE, claim, async || look().await.ok_or("nothing was seen")).await
}

/// The same with a limit of one's own; what a look misses is told at the end.
async fn within<T, E: std::fmt::Display>(
    limit: Duration,
    claim: &str,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let begun = Instant::now();
    loop {
        match look().await {
            Ok(seen) => return seen,
            Err(missing) => assert!(begun.elapsed() < limit, "{claim}: not within {limit:?}: {missing}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Where Squid is. These tests run where the real parts are: a missing one is a failure.
fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    assert!(found.is_some(), "{name} is missing: install it (apt-get install {name})");
    found
}
