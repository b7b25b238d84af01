//! The deciding half of the operator.

pub mod domain;
pub mod names;
pub mod ports;

pub mod kit;
