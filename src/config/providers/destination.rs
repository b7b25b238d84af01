//! One `allowDestinations` item: an address or CIDR, optionally with a port.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::AllowedDestination;

const FORM: &str =
    "write an address or CIDR, with or without a port: 127.0.0.1, 127.0.0.1:8092, 10.1.0.0/16, fd00::/8, [::1]:80";

impl FromStr for AllowedDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (net, port) = split_port(text).ok_or_else(|| format!("`{text}` is not a destination; {FORM}"))?;
        let net =
            parse_net(net).ok_or_else(|| format!("`{text}` is not a destination (names are not looked up); {FORM}"))?;
        let port = match port {
            None => None,
            Some(digits) => match digits.parse::<u16>() {
                // The parser takes a leading `+`, which nobody means.
                Ok(port @ 1..) if !digits.starts_with('+') => Some(port),
                _ => return Err(format!("`{text}` has no port from 1 to 65535 behind its last `:`")),
            },
        };
        if net.addr() != net.network() {
            return Err(format!("`{text}` has bits set behind its prefix; write {}", net.trunc()));
        }
        if let IpAddr::V6(ip) = net.addr()
            && let Some(v4) = ip.to_ipv4_mapped()
        {
            return Err(format!("`{text}` is an IPv4 address in IPv6 clothes; write {v4}"));
        }
        Ok(Self { net, port })
    }
}

/// The network and the port, both as texts. IPv6 needs brackets for a port, but not behind a prefix length.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']')?;
        return match behind {
            "" => Some((inside, None)),
            _ => Some((inside, Some(behind.strip_prefix(':')?))),
        };
    }
    if let Some(slash) = text.find('/') {
        return Some(match text[slash..].find(':') {
            Some(colon) => (&text[..slash + colon], Some(&text[slash + colon + 1..])),
            None => (text, None),
        });
    }
    match text.split_once(':') {
        Some((net, port)) if !port.contains(':') => Some((net, Some(port))),
        _ => Some((text, None)),
    }
}

fn parse_net(text: &str) -> Option<IpNet> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(address.into()),
        Err(_) => text.parse().ok(),
    }
}
