//! What is put to the book: offers of Proxies, asks for leases, reports.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use url::Host;

use crate::domain::desired::{Attributes, Endpoint};
use crate::domain::id::{InvalidName, ProxyKey, Uid};
use crate::domain::instance::Credentials;

/// The rules of the house.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The transition count of the claim: the upper half of every generation.
    pub epoch: u32,
    /// The lower half of every generation is above this: the highest that an earlier book of the same epoch has given.
    pub counted: u64,
    pub max_ttl: Duration,
    /// The first cooldown of a (proxy, target) pair; each repeat doubles it. Zero turns cooldowns off.
    pub cooldown: Duration,
    pub cooldown_cap: Duration,
    /// How long after its end a lease is remembered: for reports that come late, and to say how it ended.
    pub remember: Duration,
    /// Over it the oldest ended leases are forgotten early.
    pub max_remembered: usize,
    /// Cooled (proxy, target) pairs; over it those that end first are dropped. Targets are words of the crawlers.
    pub max_cooldowns: usize,
    /// The same for one Proxy, so that one crawler cannot push out the bans of all others.
    pub max_cooldowns_per_proxy: usize,
}

impl Terms {
    /// The usual rules around what flags and the claim say.
    pub fn new(epoch: u32, max_ttl: Duration, cooldown: Duration) -> Self {
        Self {
            epoch,
            counted: 0,
            max_ttl,
            cooldown,
            cooldown_cap: cooldown.saturating_mul(16),
            remember: Duration::from_mins(10),
            max_remembered: 100_000,
            max_cooldowns: 100_000,
            max_cooldowns_per_proxy: 256,
        }
    }
}

/// A Proxy that may be leased: healthy, with an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    pub key: ProxyKey,
    pub uid: Uid,
    pub endpoint: Endpoint,
    pub credentials: Option<Credentials>,
    pub attributes: Arc<Attributes>,
    /// Holders at a time; at least 1.
    pub capacity: u32,
    /// What fails together: entry and host of a managed Proxy, the URL's host of an external one.
    pub domain: Arc<str>,
    pub exit_ip: Option<Arc<str>>,
}

impl Offer {
    /// True if who was given the one can go on with the other: same address, same credentials.
    pub(super) fn is_same_way_in(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint && self.credentials == other.credentials
    }

    /// True if a target that saw the one would take the other for the same: same address, or the same known exit.
    pub(super) fn is_same_exit(&self, other: &Self) -> bool {
        self.uid == other.uid
            && (self.endpoint == other.endpoint || (self.exit_ip.is_some() && self.exit_ip == other.exit_ip))
    }
}

/// A Proxy that exists and is not on offer. It makes the difference between "wait" and "no such thing".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    pub key: ProxyKey,
    pub uid: Uid,
    pub attributes: Arc<Attributes>,
    pub capacity: u32,
    pub absence: Absence,
}

/// Why a known Proxy is not on offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Absence {
    /// On its way to its first healthy verdict.
    Provisioning,
    /// It was healthy, or should be: unhealthy, failed, deleting.
    Unhealthy,
}

/// A Proxy that is never granted again while this stands; its holders are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cordon {
    /// When the Proxy goes, whoever holds it.
    pub drain_by: Option<Instant>,
}

/// Whom a proxy is used against: a host name or address, written in one way only.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target(Arc<str>);

impl Target {
    /// Reads a host name or an address: lower case, IDNA, no trailing dot, so that a ban has one name.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let why = "must be a host name or an address, without scheme, port and path";
        let refuse = || InvalidName { what: "target", given: text.chars().take(64).collect(), why };
        let bare = text.strip_suffix('.').unwrap_or(text);
        let host = match bare.parse() {
            Ok(std::net::IpAddr::V6(address)) => Host::Ipv6(address),
            Ok(std::net::IpAddr::V4(address)) => Host::Ipv4(address),
            Err(_) if bare.len() > 253 => return Err(refuse()),
            Err(_) => Host::parse(bare).map_err(|_| refuse())?,
        };
        // Without brackets: this is a name of a host, not a part of a URL.
        match host {
            Host::Domain(name) if name.is_empty() => Err(refuse()),
            Host::Domain(name) => Ok(Self(name.into())),
            Host::Ipv4(address) => Ok(Self(address.to_string().into())),
            Host::Ipv6(address) => Ok(Self(address.to_string().into())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Somebody asks for leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// In order of preference: the first that can be met wins. All attributes of one must match exactly, an empty one
    /// matches every Proxy, and an empty list is one empty selector.
    pub selectors: Vec<Attributes>,
    /// What the lease is for: who is cooled for it is not granted.
    pub target: Option<Target>,
    /// The edge refuses what is out of range; the book clamps.
    pub ttl: Duration,
    pub owner: Option<Arc<str>>,
    /// The name of the token that asks, never its value.
    pub token: Arc<str>,
    pub exclude: Vec<ProxyKey>,
    /// On different Proxies as far as there are enough. All or nothing, unless `partial`.
    pub count: usize,
    /// A selector is met as soon as it yields one lease.
    pub partial: bool,
}

/// What a crawler tells of the use of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub outcome: Outcome,
    /// The lease's own target if none is given.
    pub target: Option<Target>,
    /// Release the lease as well.
    pub release: bool,
    /// Refused if it is given and not the holder's.
    pub generation: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    Ok,
    Banned,
    Captcha,
    RateLimited,
    ProxyError,
    Timeout,
    TargetError,
}

impl Outcome {
    pub const ALL: [Self; 7] =
        [Self::Ok, Self::Banned, Self::Captcha, Self::RateLimited, Self::ProxyError, Self::Timeout, Self::TargetError];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Banned => "banned",
            Self::Captcha => "captcha",
            Self::RateLimited => "rate_limited",
            Self::ProxyError => "proxy_error",
            Self::Timeout => "timeout",
            Self::TargetError => "target_error",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_target_has_one_name() {
        for (text, name) in [
            ("shop.example", "shop.example"),
            ("Shop.Example.", "shop.example"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("192.0.2.7", "192.0.2.7"),
            ("2001:DB8::0:1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
        ] {
            assert_eq!(Target::parse(text).unwrap().as_str(), name, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_host_is_no_target() {
        for bad in ["", ".", "http://shop.example", "shop.example:443", "a/b", "a b", "a\0b", &"a".repeat(300)] {
            assert!(Target::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn every_outcome_reads_back() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::parse(outcome.as_str()), Some(outcome));
        }
    }
}
