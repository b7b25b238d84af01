//! What is there: a domain found by our mark, read whole.

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use egress_actors::domain::desired::{Endpoint, Scheme};
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName};
use egress_actors::domain::instance::{Complaint, Instance, InstanceState, Listed, OwnerMark};
use egress_actors::domain::reason::Reason;
use virt::domain::Domain;

use super::addresses::{self, Lease, Nic, SourceError};
use super::errors::{self, Effect, code};
use super::link::rpc::{Libvirt, RpcError};
use super::link::{
    AgentInterface, DhcpLease, LaneKind, LinkError, agent_interfaces, dhcp_leases, domain_state, set_agent_timeout,
};
use super::metadata::Mark;
use super::xml::{self, DomainFacts};
use super::{Site, names};

/// How long libvirtd waits for a guest's agent, in seconds: without it a worker there is held for ever (fault 22).
const AGENT_TIMEOUT: i32 = 2;

/// A domain as it was read.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) facts: DomainFacts,
    pub(super) state: State,
}

/// `virDomainState` with what its reason adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Running,
    StartingUp,
    Paused,
    /// By the hypervisor, as a disk failed: mostly as the pool is full (fault 29).
    PausedByIoError,
    ShuttingDown,
    ShutOff,
    Crashed,
    Suspended,
    Unknown,
}

impl State {
    /// Numbers of `virDomainState` and `virDomainPausedReason`.
    fn of((state, reason): (u32, i32)) -> Self {
        match (state, reason) {
            (1 | 2, _) => Self::Running,
            (3, 5) => Self::PausedByIoError,
            (3, 11) => Self::StartingUp,
            (3, _) => Self::Paused,
            (4, _) => Self::ShuttingDown,
            (5, _) => Self::ShutOff,
            (6, _) => Self::Crashed,
            (7, _) => Self::Suspended,
            _ => Self::Unknown,
        }
    }

    /// QEMU is there, or may be.
    pub(super) fn is_active(self) -> bool {
        !matches!(self, Self::ShutOff | Self::Crashed)
    }
}

/// What stands where the instance of a mark would be.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    Ours(Box<(Mark, Seen)>),
    /// Its name, and why it is not ours.
    Foreign(String),
}

/// `None`: it went while it was read.
fn read(libvirt: &Libvirt<'_>, domain: &Domain, name: &str) -> Result<Option<Seen>, RpcError> {
    let gone = |error: RpcError| if error.code == code::NO_DOMAIN { Ok(None) } else { Err(error) };
    let text = match libvirt.rpc("virDomainGetXMLDesc", name, |_| domain.xml_desc(0)) {
        Ok(text) => text,
        Err(error) => return gone(error),
    };
    tracing::trace!(domain = name, xml = text, "domain read");
    let state = match libvirt.rpc("virDomainGetState", name, |_| domain_state(domain)) {
        Ok(state) => State::of(state),
        Err(error) => return gone(error),
    };
    let facts =
        xml::domain_facts(&text).map_err(|why| RpcError::unreadable("virDomainGetXMLDesc", &why.to_string()))?;
    Ok(Some(Seen { facts, state }))
}

/// A mark that cannot be read is neither ours nor absent.
fn mark_of(seen: &Seen) -> Result<Option<Mark>, RpcError> {
    let name = &seen.facts.name;
    seen.facts.mark.clone().map_err(|why| {
        RpcError::unreadable("virDomainGetXMLDesc", &format!("the owner mark of domain `{name}`: {why}"))
    })
}

/// By its name; and where nothing has that name, among all domains, as somebody may have renamed it (fault 53).
pub(super) fn find(libvirt: &Libvirt<'_>, mark: &OwnerMark) -> Result<Found, RpcError> {
    let name = names::domain_name(mark);
    match libvirt.rpc("virDomainLookupByName", &name, |c| c.lookup_domain_by_name(&name)) {
        Ok(domain) => {
            if let Some(seen) = read(libvirt, &domain, &name)? {
                return Ok(match mark_of(&seen)? {
                    Some(found) if found.owner == *mark => Found::Ours(Box::new((found, seen))),
                    Some(found) => Found::Foreign(format!("domain `{name}` of Proxy {}", found.owner.key)),
                    None => Found::Foreign(format!("domain `{name}` without our mark")),
                });
            }
        }
        Err(error) if error.code == code::NO_DOMAIN => {}
        Err(error) => return Err(error),
    }
    // A name that we gave to another Proxy is that one's: to read those too would make a look as long as the host is full.
    let stem = names::stem(&name);
    let found = marked(libvirt, |other| names::stem(other).is_none_or(|other| Some(other) == stem))?.found;
    let renamed = found.into_iter().find(|(found, _)| found.owner == *mark);
    Ok(renamed.map_or(Found::Nothing, |found| Found::Ours(Box::new(found))))
}

/// What a host's domains say of themselves.
#[derive(Debug, Default)]
struct Marked {
    found: Vec<(Mark, Seen)>,
    /// Of the first domain whose mark, or whose whole description, cannot be read. It may be anybody's: a list of all is
    /// not whole then, and a look for one of another name does not mind.
    unreadable: Option<RpcError>,
}

/// Every domain of such a name that has a mark, active ones that are no longer defined as well (fault 42). One that goes
/// meanwhile is left out.
fn marked(libvirt: &Libvirt<'_>, wanted: impl Fn(&str) -> bool) -> Result<Marked, RpcError> {
    let domains = libvirt.rpc("virConnectListAllDomains", "", |c| c.list_all_domains(0))?;
    let mut marked = Marked::default();
    for domain in &domains {
        // It is in the answer to the list: nothing is sent for it.
        let name = domain.name().map_err(|error| RpcError::new("virDomainGetName", &error))?;
        if !wanted(&name) {
            continue;
        }
        let seen = match read(libvirt, domain, &name) {
            Ok(Some(seen)) => seen,
            Ok(None) => continue,
            Err(error) if error.is_unreadable() => {
                marked.unreadable.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        match mark_of(&seen) {
            Ok(Some(mark)) => marked.found.push((mark, seen)),
            Ok(None) => {}
            Err(error) => {
                marked.unreadable.get_or_insert(error);
            }
        }
    }
    Ok(marked)
}

/// The domain of this mark, and nothing else of it.
pub(super) async fn domain_of(site: &Site, mark: &OwnerMark) -> Result<Found, OpError> {
    let own = mark.clone();
    let found = site
        .link
        .call(LaneKind::Control, "virDomainLookupByName", site.limits.control, move |libvirt| find(libvirt, &own));
    found.await.map_err(|error| errors::of(site.about(), "look for the domain", Effect::None, error))
}

pub(super) async fn get(site: &Site, mark: &OwnerMark) -> Result<Instance, OpError> {
    match domain_of(site, mark).await? {
        Found::Nothing => {
            Err(OpError::not_found(format!("no domain of Proxy {} on host `{}`", mark.key, site.host.name)))
        }
        Found::Foreign(what) => Err(errors::conflict(&what)),
        Found::Ours(ours) => {
            let (mark, seen) = *ours;
            let address = if seen.state == State::Running { address(site, &seen).await? } else { None };
            if let Some(address) = address {
                site.remember(seen.facts.uuid, address);
            }
            Ok(instance(site, &mark, &seen, address))
        }
    }
}

/// Both sources at once, each with its limit; what they say together is decided in [`addresses`].
async fn address(site: &Site, seen: &Seen) -> Result<Option<IpAddr>, OpError> {
    let Some(nic) = seen.facts.interfaces.first() else { return Ok(None) };
    let (name, network) = (seen.facts.name.clone(), nic.network.clone().unwrap_or_else(|| site.host.network.clone()));
    let agent = site.link.call(LaneKind::Agent, "virDomainInterfaceAddresses", site.limits.agent, move |libvirt| {
        let domain = libvirt.rpc("virDomainLookupByName", &name, |c| c.lookup_domain_by_name(&name))?;
        // Without it the question would hold a worker there for as long as the agent is silent.
        libvirt.rpc("virDomainAgentSetResponseTimeout", &name, |_| set_agent_timeout(&domain, AGENT_TIMEOUT))?;
        libvirt.rpc("virDomainInterfaceAddresses", &name, |_| agent_interfaces(&domain))
    });
    let leases = site.link.call(LaneKind::Control, "virNetworkGetDHCPLeases", site.limits.control, move |libvirt| {
        let network_of = libvirt.rpc("virNetworkLookupByName", &network, |c| c.lookup_network_by_name(&network))?;
        libvirt.rpc("virNetworkGetDHCPLeases", &network, |_| dhcp_leases(&network_of, None))
    });
    let (agent, leases) = tokio::join!(agent, leases);
    tracing::trace!(domain = seen.facts.name, ?agent, ?leases, "addresses");
    let failed = |doing: &'static str| {
        move |error: LinkError| SourceError {
            code: if let LinkError::Rpc(rpc) = &error { i32::try_from(rpc.code).ok() } else { None },
            detail: errors::of(site.about(), doing, Effect::None, error).detail,
        }
    };
    let agent = agent.map(|rows| rows.into_iter().map(nic_of).collect()).map_err(failed("ask the guest agent"));
    let leases = leases.map(|rows| rows.into_iter().filter_map(lease).collect()).map_err(failed("read the leases"));
    addresses::choose(nic.mac, agent, leases, UNIX_EPOCH).map_err(|why| {
        let detail = format!("cannot read the address of domain `{}`: {why}", seen.facts.name);
        OpError::transient(Reason::Unreachable, detail)
    })
}

fn nic_of(row: AgentInterface) -> Nic {
    let addresses = row.addresses.iter().filter_map(|text| text.parse().ok()).collect();
    Nic { mac: row.mac.and_then(|mac| mac.parse().ok()), name: row.name, addresses }
}

/// libvirt leaves out those that are over, by the host's clock; ours has no say in that.
fn lease(row: DhcpLease) -> Option<Lease> {
    let expires_at = match u64::try_from(row.expires_at) {
        Ok(0) | Err(_) => u64::from(u32::MAX),
        Ok(seconds) => seconds.min(u64::from(u32::MAX)),
    };
    Some(Lease {
        mac: row.mac.parse().ok()?,
        address: row.address.parse().ok()?,
        expires_at: UNIX_EPOCH + Duration::from_secs(expires_at),
    })
}

/// What an instance says of itself, and nothing that changes while it does not.
pub(super) fn instance(site: &Site, mark: &Mark, seen: &Seen, address: Option<IpAddr>) -> Instance {
    let complain = |reason, detail: &str| Some(Complaint { reason, detail: detail.into() });
    let (state, complaint) = match seen.state {
        State::Running => (InstanceState::Running, None),
        State::StartingUp => (InstanceState::Starting, None),
        State::Paused | State::Suspended => (InstanceState::Paused, None),
        State::PausedByIoError => (
            InstanceState::Paused,
            complain(Reason::StorageFull, "the hypervisor paused it as its disk failed: is the pool full?"),
        ),
        State::ShuttingDown | State::Unknown => (InstanceState::Unknown, None),
        State::ShutOff => (InstanceState::Stopped, complain(Reason::InstanceStopped, "its domain is shut off")),
        State::Crashed => (InstanceState::Stopped, complain(Reason::InstanceStopped, "its domain has crashed")),
    };
    Instance {
        provider_id: site.provider_id(mark, seen.facts.uuid).into(),
        state,
        endpoint: address.map(|address| Endpoint {
            scheme: Scheme::Http,
            host: address.to_string().into(),
            port: mark.port,
        }),
        generated: None,
        outdated: None,
        created_at: Some(mark.created_at),
        complaint,
    }
}

pub(super) async fn list(
    site: &Site,
    operator: &OperatorId,
    entry: Option<&ProviderName>,
) -> Result<Vec<Listed>, OpError> {
    let network = site.host.network.clone();
    let read = site.link.call(LaneKind::Control, "virConnectListAllDomains", site.limits.list, move |libvirt| {
        let Marked { found, unreadable } = marked(libvirt, |_| true)?;
        if let Some(error) = unreadable {
            return Err(error);
        }
        // Leases are an extra here: without the network the domains are still told.
        let leases = libvirt
            .rpc("virNetworkLookupByName", &network, |c| c.lookup_network_by_name(&network))
            .and_then(|of| libvirt.rpc("virNetworkGetDHCPLeases", &network, |_| dhcp_leases(&of, None)));
        match leases {
            Err(error) if error.is_broken_connection() => Err(error),
            leases => Ok((found, leases.unwrap_or_default())),
        }
    });
    let (found, leases) =
        read.await.map_err(|error| errors::of(site.about(), "list the domains", Effect::None, error))?;
    let leases: Vec<_> = leases.into_iter().filter_map(lease).collect();
    site.forget_all_but(&found.iter().map(|(_, seen)| seen.facts.uuid).collect());
    // Another host of this entry may be the same libvirtd: each tells its own.
    let is_ours = |mark: &Mark| mark.owner.entry != site.entry.name || mark.host == site.host.name;
    let ours = found.into_iter().filter(|(mark, _)| {
        mark.owner.operator == *operator && is_ours(mark) && entry.is_none_or(|entry| mark.owner.entry == *entry)
    });
    let rows = ours.map(|(mark, seen)| {
        let address = (seen.state == State::Running).then(|| site.remembered(seen.facts.uuid)).flatten();
        let by_lease = || {
            let nic = seen.facts.interfaces.first()?;
            addresses::choose(nic.mac, Ok(Vec::new()), Ok(leases.clone()), UNIX_EPOCH).ok()?
        };
        let address = address.or_else(|| if seen.state == State::Running { by_lease() } else { None });
        Listed { instance: instance(site, &mark, &seen, address), mark: mark.owner }
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests;
