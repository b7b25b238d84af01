//! Against a real Kubernetes: etcd, kube-apiserver and, where asked for, kube-controller-manager, as processes on loopback.
//!
//! [`plane`] starts, breaks and ends them; everything else here is tests. All tests share one plane
//! ([`plane::Plane::shared`]) and take a namespace of their own in it; a test that breaks the plane starts its own.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this is test code, also outside test functions")]

mod plane;
#[path = "../e2e/ports.rs"]
mod ports;

mod kit;
