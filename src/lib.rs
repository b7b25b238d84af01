//! The world-touching half of the operator: adapters for the ports of `egress-actors`, servers, configuration, wiring.
//!
//! Modules in reading order.

mod causes;

pub mod args;
pub mod config;
pub mod crypto;
pub mod telemetry;

pub mod crd;
pub mod k8s;
pub mod standalone;

pub mod dns;
pub mod echo;
pub mod probe;
pub mod providers;

pub mod server;

pub mod run;
