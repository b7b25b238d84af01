//! The providers config: one entry per backend, read from YAML, unknown fields refused.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use egress_actors::domain::id::ProviderName;
use ipnet::IpNet;

/// An entry of type `process`: Squid children on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEntry {
    pub name: ProviderName,
    pub binary: PathBuf,
    pub listen: IpAddr,
    /// One port per Proxy; taken ones are skipped.
    pub ports: RangeInclusive<u16>,
    pub allow_destinations: Vec<AllowedDestination>,
    pub auth: Auth,
}

/// What a generated Squid may reach although it lies in a refused range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AllowedDestination {
    pub net: IpNet,
    /// Without a port: every port, by GET and by CONNECT.
    pub port: Option<u16>,
}

/// What a generated Squid asks of its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    None,
    /// Each instance gets its own user and password, handed out inside leases only.
    Generated,
}
