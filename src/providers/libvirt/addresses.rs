//! Which address is the instance's: the choice alone, out of what the sources said (faults 49 to 51).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use std::time::SystemTime;

/// The hardware address of a network card.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// Not six pairs of hex digits with colons between them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address")]
pub struct NotAMac(pub String);

impl FromStr for Mac {
    type Err = NotAMac;

    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let refused = || NotAMac(text.chars().take(40).collect());
        let mut bytes = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut bytes {
            let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = u8::from_str_radix(pair.ok_or_else(refused)?, 16).map_err(|_| refused())?;
        }
        if pairs.next().is_some() { Err(refused()) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let colon = if at == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One interface as the guest's agent tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    /// `lo` may have none.
    pub mac: Option<Mac>,
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// One lease as the network's DHCP server tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub mac: Mac,
    pub address: IpAddr,
    /// By the host's clock.
    pub expires_at: SystemTime,
}

/// Why a source of addresses gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct SourceError {
    /// libvirt's; `None` if the call ended without one (a deadline, a cut lane).
    pub code: Option<i32>,
    /// For people: lower case, no full stop.
    pub detail: String,
}

/// libvirt's codes for: the domain does not run, it has no channel for an agent, its agent does not answer.
const NOT_YET: [i32; 3] = [55, 74, 86];

impl SourceError {
    /// It may come by itself: the agent does not answer yet, or there is none (fault 51).
    pub fn is_not_yet(&self) -> bool {
        self.code.is_some_and(|code| NOT_YET.contains(&code))
    }
}

/// No source could be read: that is not the same as "no address" (contract I2).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no source of the address can be read: leases: {lease}; guest agent: {agent}")]
pub struct NoSource {
    pub agent: SourceError,
    pub lease: SourceError,
}

/// The address of the card with our MAC. `Ok(None)` means: not yet.
///
/// The agent is believed before the leases, IPv4 is taken before IPv6, and of several leases the one that lasts longest.
/// One source that was read is enough for `Ok`. If the leases cannot be read, an agent that is only not there yet does not
/// make it "not yet": the guest may have an address that nobody can tell.
///
/// # Errors
/// [`NoSource`], unless both sources say "not yet".
pub fn choose(
    ours: Mac,
    agent: Result<Vec<Nic>, SourceError>,
    leases: Result<Vec<Lease>, SourceError>,
    now: SystemTime,
) -> Result<Option<IpAddr>, NoSource> {
    let told = agent.as_deref().ok().and_then(|nics| from_agent(ours, nics));
    let leased = leases.as_deref().ok().and_then(|leases| from_leases(ours, leases, now));
    match (told.or(leased), agent, leases) {
        (None, Err(agent), Err(lease)) if !(agent.is_not_yet() && lease.is_not_yet()) => Err(NoSource { agent, lease }),
        (found, _, _) => Ok(found),
    }
}

fn from_agent(ours: Mac, nics: &[Nic]) -> Option<IpAddr> {
    nics.iter()
        .filter(|nic| nic.mac == Some(ours) && !is_internal(&nic.name))
        .flat_map(|nic| &nic.addresses)
        .filter_map(|address| Some((rank(*address)?, address.to_canonical())))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, address)| address)
}

fn from_leases(ours: Mac, leases: &[Lease], now: SystemTime) -> Option<IpAddr> {
    leases
        .iter()
        .filter(|lease| lease.mac == ours && lease.expires_at > now)
        .filter_map(|lease| Some((rank(lease.address)?, lease)))
        // The address itself decides between equals, so that two looks say the same (contract I7).
        .min_by_key(|(rank, lease)| (*rank, std::cmp::Reverse(lease.expires_at), lease.address))
        .map(|(_, lease)| lease.address.to_canonical())
}

/// Bridges and pairs that a guest makes for its own containers and machines; a bridge may have our card's MAC.
fn is_internal(name: &str) -> bool {
    name == "lo" || ["docker", "virbr", "cni", "veth", "br-"].iter().any(|prefix| name.starts_with(prefix))
}

/// Lower is better; `None` is never an endpoint.
fn rank(address: IpAddr) -> Option<u8> {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            // 0.0.0.0/8 is "this network", 240.0.0.0/4 is reserved and holds the broadcast address.
            let never = first == 0 || first >= 240 || v4.is_loopback() || v4.is_link_local() || v4.is_multicast();
            (!never).then_some(0)
        }
        IpAddr::V6(v6) if is_global(v6) => Some(1),
        IpAddr::V6(v6) if v6.is_unique_local() => Some(2),
        IpAddr::V6(_) => None,
    }
}

/// `2000::/3`, which is all that is given out.
fn is_global(v6: Ipv6Addr) -> bool {
    v6.segments()[0] & 0xe000 == 0x2000
}

#[cfg(test)]
mod tests;
