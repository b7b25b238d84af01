//! The deciding half of the operator.

pub mod domain;
pub mod names;
pub mod ports;

pub mod kit;

pub mod board;
pub mod election;
pub mod events;
pub mod fleet;
pub mod host;
pub mod leases;
pub mod operator;
pub mod probes;
pub mod provider;
pub mod providers;
pub mod proxies;
pub mod proxy;
pub mod records;
pub mod standing;
pub mod sweep;
pub mod watch;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
