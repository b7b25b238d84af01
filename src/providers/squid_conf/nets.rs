//! Which addresses an egress proxy must not reach, as CIDR sets, and the arithmetic on such sets.
//!
//! Pure. Never resolves a name: Squid does that, once, and then asks these sets about every address of the answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::providers::nets::NOT_PUBLIC_V4;

/// IPv6 that is not the public internet, or that hides an IPv4 address from the rules above.
///
/// `::ffff:0:0/96` must *not* be here: Squid keeps every IPv4 address in that form, so it would refuse all of IPv4.
/// An IPv4-mapped literal is that IPv4 address to Squid, and is judged as such.
const REFUSED_V6: [(Ipv6Addr, u8); 10] = [
    (Ipv6Addr::UNSPECIFIED, 96), // unspecified, loopback, and IPv4-compatible
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96), // IPv4-translated (SIIT, RFC 2765): not the mapped form
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48), // NAT64 of local use
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64), // discard
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32), // Teredo
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7), // unique-local; metadata at fd00:ec2::254
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10), // site-local, of old
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// NAT64's well-known prefix. It stays open, as behind DNS64 every name lies in it; its private parts do not.
const NAT64: u128 = 0x0064_ff9b_u128 << 96;

/// What is refused unless a destination is allowed by name of its address.
pub(super) fn refused() -> Vec<IpNet> {
    let v4 = NOT_PUBLIC_V4.iter().map(|&(address, prefix)| net(address.into(), prefix));
    let behind_nat64 = NOT_PUBLIC_V4
        .iter()
        .map(|&(address, prefix)| net(Ipv6Addr::from(NAT64 | u128::from(address.to_bits())).into(), prefix + 96));
    let v6 = REFUSED_V6.iter().map(|&(address, prefix)| net(address.into(), prefix));
    v4.chain(v6).chain(behind_nat64).collect()
}

/// Every address that can be routed to: IPv4, global IPv6, and what NAT64 reaches.
pub(super) fn everywhere() -> Vec<IpNet> {
    let global = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0);
    vec![net(Ipv4Addr::UNSPECIFIED.into(), 0), net(global.into(), 3), net(Ipv6Addr::from(NAT64).into(), 96)]
}

/// `from` without `what`, in as few networks as that takes.
pub(super) fn subtract(from: &[IpNet], what: &[IpNet]) -> Vec<IpNet> {
    let mut left = Vec::new();
    let mut todo: Vec<IpNet> = from.iter().rev().copied().collect();
    while let Some(candidate) = todo.pop() {
        if what.iter().any(|w| w.contains(&candidate)) {
            continue;
        }
        if what.iter().any(|w| candidate.contains(w)) {
            // A network that contains a smaller one is not a single address, so it has two halves.
            let mut halves: Vec<IpNet> = halves(candidate);
            halves.reverse();
            todo.append(&mut halves);
        } else {
            left.push(candidate);
        }
    }
    left
}

/// As Squid sees it: without host bits, and an IPv4-mapped network as the IPv4 one that it is.
pub(super) fn canonical(given: IpNet) -> IpNet {
    let IpNet::V6(v6) = given.trunc() else { return given.trunc() };
    match (v6.addr().to_ipv4_mapped(), v6.prefix_len()) {
        (Some(v4), prefix @ 96..) => net(v4.into(), prefix - 96),
        _ => IpNet::V6(v6),
    }
}

fn halves(of: IpNet) -> Vec<IpNet> {
    match of {
        IpNet::V4(v4) => v4.subnets(v4.prefix_len() + 1).map(|s| s.map(IpNet::V4).collect()),
        IpNet::V6(v6) => v6.subnets(v6.prefix_len() + 1).map(|s| s.map(IpNet::V6).collect()),
    }
    .expect("the prefix grows by one and the network has more than one address")
}

fn net(address: IpAddr, prefix: u8) -> IpNet {
    match address {
        IpAddr::V4(v4) => Ipv4Net::new(v4, prefix).map(IpNet::V4),
        IpAddr::V6(v6) => Ipv6Net::new(v6, prefix).map(IpNet::V6),
    }
    .expect("the prefixes in this file are right for their families")
    .trunc()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|t| t.parse().expect("a network")).collect()
    }

    fn has(set: &[IpNet], address: &str) -> bool {
        let address: IpAddr = address.parse().expect("an address");
        set.iter().any(|n| n.contains(&address))
    }

    #[test]
    fn what_must_not_be_a_door_is_refused_and_the_internet_is_not() {
        let refused = refused();
        for inside in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "255.255.255.255",
            "224.0.0.1",
            "::",
            "::1",
            "::127.0.0.1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::10.0.0.1",
            "64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
            "::ffff:0:10.0.0.1",
            "::ffff:0:127.0.0.1",
            "::ffff:0:8.8.8.8",
            "2001::1",
            "2001:0:ffff:ffff:ffff:ffff:ffff:ffff",
            "2002:a00:1::1",
            "2002:7f00:1::1",
        ] {
            assert!(has(&refused, inside), "{inside} is not refused");
        }
        for outside in [
            "1.1.1.1",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "203.0.113.9",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "2003::1",
            "64:ff9b::1.1.1.1",
        ] {
            assert!(!has(&refused, outside), "{outside} is refused");
            assert!(has(&everywhere(), outside), "{outside} is nowhere");
        }
    }

    #[test]
    fn no_refused_network_covers_the_form_in_which_squid_keeps_ipv4() {
        let mapped: IpNet = "::ffff:8.8.8.8/128".parse().expect("a network");
        assert!(!refused().iter().any(|n| n.contains(&mapped)));
        assert!(!everywhere().iter().any(|n| n.contains(&mapped)));
    }

    #[test]
    fn a_subtraction_takes_away_exactly_what_it_names() {
        let check = |from: &[&str], what: &[&str], left: &[&str]| {
            assert_eq!(subtract(&nets(from), &nets(what)), nets(left), "{from:?} - {what:?}");
        };
        check(&["10.0.0.0/8"], &[], &["10.0.0.0/8"]);
        check(&["10.0.0.0/8"], &["10.0.0.0/8"], &[]);
        check(&["10.0.0.0/8"], &["0.0.0.0/0"], &[]);
        check(&["10.0.0.0/8"], &["192.168.0.0/16", "::/0"], &["10.0.0.0/8"]);
        check(&["10.0.0.0/30"], &["10.0.0.1/32"], &["10.0.0.0/32", "10.0.0.2/31"]);
        check(&["10.0.0.1/32", "fc00::/126"], &["fc00::/127"], &["10.0.0.1/32", "fc00::2/127"]);
    }

    #[test]
    fn mapped_networks_are_the_ipv4_networks_that_they_name() {
        let check =
            |given: &str, want: &str| assert_eq!(canonical(nets(&[given])[0]), nets(&[want])[0], "{given} -> {want}");
        check("10.0.0.7/8", "10.0.0.0/8");
        check("::ffff:10.0.0.7/104", "10.0.0.0/8");
        check("::ffff:10.0.0.7/128", "10.0.0.7/32");
        check("fd00::7/64", "fd00::/64");
    }
}
