//! Which URL may be fetched, and which addresses its host may have. Pure.
//!
//! A Proxy may name a URL only under `allowImageURLs`, as whoever makes Proxies could otherwise have the operator read
//! services inside the network, or a cloud's metadata. A URL of `images` was written by whoever runs the operator: it may
//! be anywhere itself, also on a private mirror, but what it redirects to is in the hands of the other side.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use url::{Host, Url};

use super::marker::origin;
use crate::providers::nets::NOT_PUBLIC_V4;

/// Where the URL comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// From `images`. The URL itself is trusted; redirects lead to its own host or to public addresses.
    Configured,
    /// From `placement.image`: it and every redirect must be under one of these, at a public address, or at the address
    /// that such a prefix names literally.
    Placement(Vec<Url>),
}

/// Which addresses a host may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Anywhere,
    Public,
}

impl Reach {
    pub fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Public => is_public(address),
        }
    }
}

impl Policy {
    /// Whether a request may begin here. Permanent `Forbidden` if not.
    pub fn first(&self, url: &Url) -> Result<Reach, OpError> {
        self.web(url)?;
        match self {
            Self::Configured => Ok(Reach::Anywhere),
            Self::Placement(allowed) => under(url, allowed),
        }
    }

    /// Whether `from`, reached from `first`, may send us to `to`. `verified`: a digest is known, so that nobody on the
    /// way can put another image in its place.
    pub fn redirect(&self, first: &Url, from: &Url, to: &Url, verified: bool) -> Result<Reach, OpError> {
        self.web(to)?;
        if from.scheme() == "https" && to.scheme() != "https" && !verified {
            return Err(forbidden(format!(
                "{} redirects to {} without TLS: give the image's sha256 or another URL",
                origin(from),
                origin(to)
            )));
        }
        match self {
            Self::Configured if same_host(first, to) => Ok(Reach::Anywhere),
            Self::Configured => Ok(Reach::Public),
            Self::Placement(allowed) => under(to, allowed),
        }
    }

    /// Any policy: HTTP only, and nothing in it that other people must not see.
    fn web(&self, url: &Url) -> Result<(), OpError> {
        if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
            return Err(forbidden(format!("{} is not an http or https URL with a host", origin(url))));
        }
        if *self != Self::Configured && (!url.username().is_empty() || url.password().is_some()) {
            return Err(forbidden(format!("the URL of image {} has a user or password in it", origin(url))));
        }
        Ok(())
    }
}

fn under(url: &Url, allowed: &[Url]) -> Result<Reach, OpError> {
    let lower = url.path().to_ascii_lowercase();
    // Servers that decode them see other directories than we do.
    if lower.contains("%2f") || lower.contains("%5c") {
        return Err(forbidden(format!("{} has an encoded slash in its path", origin(url))));
    }
    let Some(prefix) = allowed.iter().find(|prefix| same_host(prefix, url) && is_below(prefix.path(), url.path()))
    else {
        return Err(forbidden(format!("{} is not under any prefix of allowImageURLs", origin(url))));
    };
    // The prefix names this very address: that is the administrator's word for it.
    let literal = matches!(prefix.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)));
    Ok(if literal { Reach::Anywhere } else { Reach::Public })
}

fn same_host(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host() == other.host()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// By whole segments: `/debian` is not a prefix of `/debian-evil/x`.
fn is_below(prefix: &str, path: &str) -> bool {
    match path.strip_prefix(prefix) {
        Some(rest) => prefix.ends_with('/') || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

fn forbidden(detail: String) -> OpError {
    OpError::permanent(Reason::Forbidden, detail)
}

/// The host has no address that may be asked.
pub fn not_public(url: &Url, address: IpAddr) -> OpError {
    forbidden(format!(
        "{} is at {address}, which is private, link-local or otherwise not of the public internet; an allowImageURLs \
         prefix with that address as its host would allow it",
        origin(url)
    ))
}

/// Of the public internet. IPv6 that hides an IPv4 address is judged by that.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !NOT_PUBLIC_V4.iter().any(|&(net, bits)| (v4.to_bits() ^ net.to_bits()) >> (32 - u32::from(bits)) == 0)
        }
        IpAddr::V6(v6) => v6_is_public(v6),
    }
}

fn v6_is_public(v6: Ipv6Addr) -> bool {
    if let Some(v4) = v6.to_ipv4_mapped() {
        return is_public(v4.into());
    }
    let s = v6.segments();
    if s[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        // The last 32 bits.
        return is_public(Ipv4Addr::from_bits((u32::from(s[6]) << 16) | u32::from(s[7])).into());
    }
    let teredo = s[0] == 0x2001 && s[1] == 0;
    let six_to_four = s[0] == 0x2002;
    // Global unicast is 2000::/3; everything else is local, multicast, translated or not given out.
    s[0] & 0xe000 == 0x2000 && !teredo && !six_to_four
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn a_url_of_a_proxy_must_be_under_a_prefix() {
        let policy = Policy::Placement(vec![
            url("https://images.example.com/debian"),
            url("http://10.0.0.5:8000/"),
            url("https://[fd00::1]/x/"),
        ]);
        let check = |text: &str, want: Option<Reach>| assert_eq!(policy.first(&url(text)).ok(), want, "{text}");
        check("https://images.example.com/debian", Some(Reach::Public));
        check("https://images.example.com/debian/13.qcow2?x=1", Some(Reach::Public));
        check("https://IMAGES.example.com:443/debian/13.qcow2", Some(Reach::Public));
        check("http://10.0.0.5:8000/any", Some(Reach::Anywhere));
        check("https://[fd00::1]/x/y", Some(Reach::Anywhere));
        check("https://images.example.com/debian-evil/13.qcow2", None);
        check("https://images.example.com/debian/../x", None);
        check("https://images.example.com/debian/%2e%2e/x", None);
        check("https://images.example.com/debian/..%2fx", None);
        check("https://images.example.com:8443/debian/x", None);
        check("http://images.example.com/debian/x", None);
        check("https://images.example.com@evil.example/debian/x", None);
        check("https://u:p@images.example.com/debian/x", None);
        check("https://images.example.com.evil.example/debian/x", None);
        check("http://10.0.0.5/any", None);
        check("http://10.0.0.6:8000/any", None);
        check("file:///etc/passwd", None);
        assert_eq!(
            Policy::Placement(Vec::new()).first(&url("https://a.example/")).unwrap_err().reason,
            Reason::Forbidden
        );
    }

    #[test]
    fn redirects_are_checked_again() {
        let allowed = Policy::Placement(vec![url("https://a.example/"), url("https://cdn.example/img/")]);
        let first = url("https://a.example/x");
        let to = |policy: &Policy, text: &str, verified| policy.redirect(&first, &first, &url(text), verified).ok();
        assert_eq!(to(&allowed, "https://cdn.example/img/x", false), Some(Reach::Public));
        assert_eq!(to(&allowed, "https://cdn.example/other/x", false), None);
        assert_eq!(to(&allowed, "http://169.254.169.254/latest", true), None);
        assert_eq!(to(&Policy::Configured, "https://mirror.example/x", false), Some(Reach::Public));
        assert_eq!(to(&Policy::Configured, "https://a.example/y", false), Some(Reach::Anywhere));
        assert_eq!(to(&Policy::Configured, "http://mirror.example/x", false), None);
        assert_eq!(to(&Policy::Configured, "http://mirror.example/x", true), Some(Reach::Public));
        assert_eq!(to(&Policy::Configured, "ftp://mirror.example/x", true), None);
    }

    #[test]
    fn what_is_not_of_the_public_internet_is_known_in_every_clothing() {
        for inside in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "169.254.169.254",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "::ffff:127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::10.0.0.1",
            "2001::1",
            "2002:a00:1::1",
            "::ffff:0:127.0.0.1",
            "100::1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
        for outside in
            ["1.1.1.1", "100.128.0.0", "172.32.0.0", "192.0.1.0", "2606:4700::1111", "64:ff9b::1.1.1.1", "2003::1"]
        {
            assert!(is_public(outside.parse().unwrap()), "{outside}");
        }
    }
}
