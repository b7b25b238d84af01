//! The backends, one folder each. Each implements `egress_actors::ports::Backend` for one host.

pub mod kubernetes;
pub mod libvirt;
pub mod process;

mod nets;
pub mod passwords;
pub mod squid_conf;
pub mod squid_words;
