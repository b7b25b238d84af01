//! The backends, one folder each. Each implements `egress_actors::ports::Backend` for one host.

pub mod process;
pub mod squid_conf;
