//! Addresses that an egress proxy must not reach, and an image must not come from.

use std::net::Ipv4Addr;

/// IPv4 that is not the public internet. Metadata services live in link-local (169.254.169.254), in the carrier range
/// (100.100.100.200) and in 192.0.0.0/24 (192.0.0.192).
pub(super) const NOT_PUBLIC_V4: [(Ipv4Addr, u8); 11] = [
    (Ipv4Addr::UNSPECIFIED, 8), // "this host": Linux connects 0.0.0.0 to loopback
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15), // benchmarking, and the fake answers of some resolvers
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4), // reserved, and broadcast
];
