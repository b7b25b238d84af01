//! The deciding half of the operator.

pub mod domain;
pub mod ports;

pub mod kit;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
