//! Against a real Kubernetes: etcd, kube-apiserver and, where asked for, kube-controller-manager, as processes on loopback.
//!
//! [`plane`] starts, breaks and ends them; everything else here is tests. All tests share one plane
//! ([`plane::Plane::shared`]) and take a namespace of their own in it; a test that breaks the plane starts its own.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this is test code, also outside test functions")]

use std::time::{Duration, Instant};

mod plane;
#[path = "../e2e/ports.rs"]
mod ports;

mod crd;
mod kit;
mod pods;

/// Looks until it is so; fails the test after a minute.
async fn eventually(what: &str, look: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !look().await {
        assert!(begun.elapsed() < Duration::from_mins(1), "{what}: not within a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
