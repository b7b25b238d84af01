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
mod deploy;
mod gate;
mod group;
mod kills;
