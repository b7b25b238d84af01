//! Names to addresses, asynchronously: never `getaddrinfo`, which sits on a thread of tokio's blocking pool until it
//! feels like answering.
//!
//! Owns the resolver, the look-ups under way and what it has learned about names. Spoken to by everything that dials a
//! name. Never blocks a thread, never outlasts the caller's limit, and never lets names that do not answer take the
//! place of names that do:
//!
//! - one look-up a name: later callers join the one under way;
//! - all look-ups together are bounded, and so are the sockets that they hold;
//! - of that bound, names that have not answered yet may take half, names that were silent last time an eighth. A name
//!   that has answered before therefore always finds room.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, Shared, WeakShared, select};
use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::warn;

#[cfg(test)]
mod tests;

/// Once one family has answered with addresses, the other gets this much longer (RFC 8305, "Resolution Delay").
const OTHER_FAMILY_WITHIN: Duration = Duration::from_millis(50);
/// A proxy that moved is found again within this time, whatever TTL its record has.
const ANSWERS_KEPT_FOR: Duration = Duration::from_mins(1);
/// A name that was just added to its zone should not stay unknown for the SOA's hour.
const REFUSALS_KEPT_FOR: Duration = Duration::from_secs(5);
/// Names whose standing is remembered. Over it all are forgotten: they are newcomers again, which costs little.
const NAMES_REMEMBERED: usize = 16_384;

/// Why a name gave no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    #[error("`{0}` is not a host name")]
    NotAName(Arc<str>),
    #[error("name `{0}` does not exist or has no address")]
    NoAddress(Arc<str>),
    #[error("no answer about name `{0}` within {1:?}")]
    Silent(Arc<str>, Duration),
    /// Too many look-ups of its kind are under way.
    #[error("look-up of `{0}` found no free place within {1:?}: too many names do not answer")]
    Busy(Arc<str>, Duration),
    #[error("look-up of name `{0}` failed: {1}")]
    Failed(Arc<str>, Arc<str>),
}

/// Bounds of a resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For one look-up, and for the wait for a place before it.
    pub look_up: Duration,
    /// Look-ups under way; each holds up to two sockets for each of two name servers.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { look_up: Duration::from_secs(5), at_once: 256 }
    }
}

/// A resolver; clones share it.
#[derive(Clone)]
pub struct Dns {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Dns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dns").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Dns {
    /// The resolver of this machine: `/etc/resolv.conf` and `/etc/hosts`, read once. Without a usable `resolv.conf` a
    /// name server on this machine is asked, as the C library does.
    pub fn system() -> Self {
        let (config, options) = configuration(hickory_resolver::system_conf::read_system_conf());
        let hosts = Hosts::from_system().unwrap_or_else(|error| {
            warn!(%error, "/etc/hosts cannot be read: names in it are unknown");
            Hosts::default()
        });
        Self::with(config, options, hosts, Limits::default())
    }

    /// A resolver of its own configuration.
    pub fn with(config: ResolverConfig, mut options: ResolverOpts, hosts: Hosts, limits: Limits) -> Self {
        options.positive_max_ttl = Some(ANSWERS_KEPT_FOR);
        options.negative_max_ttl = Some(REFUSALS_KEPT_FOR);
        options.timeout = options.timeout.min(limits.look_up);
        // Over TCP the silent names of one connection must not crowd out the others.
        options.max_active_requests = limits.at_once.saturating_mul(2);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().expect("building fails only on TLS and trust anchors, and we use neither");
        let at_once = limits.at_once.max(1);
        Self {
            inner: Arc::new(Inner {
                resolver,
                hosts,
                limits,
                all: Semaphore::new(at_once),
                newcomers: Semaphore::new((at_once / 2).max(1)),
                silent: Semaphore::new((at_once / 8).max(1)),
                names: Mutex::default(),
            }),
        }
    }

    /// The addresses of a host, IPv4 first; never empty. Ends within `limit`.
    pub async fn look_up(&self, host: &str, limit: Duration) -> Result<Arc<[IpAddr]>, DnsError> {
        if let Some(known) = self.inner.without_asking(host) {
            return Ok(known);
        }
        let name: Arc<str> = host.to_ascii_lowercase().into();
        match timeout(limit, self.inner.clone().flight(&name)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(DnsError::Silent(name, limit)),
        }
    }

    /// Look-ups under way.
    pub fn in_flight(&self) -> usize {
        self.inner.names().flights.len()
    }
}

type Outcome = Result<Arc<[IpAddr]>, DnsError>;
type Flight = BoxFuture<'static, Outcome>;

struct Inner {
    resolver: TokioResolver,
    /// Asked before the resolver: one that knows only the IPv4 address of a name would be asked for the other.
    hosts: Hosts,
    limits: Limits,
    all: Semaphore,
    newcomers: Semaphore,
    silent: Semaphore,
    names: Mutex<Names>,
}

/// What a name did last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Answered,
    Silent,
}

#[derive(Default)]
struct Names {
    /// Weak: a look-up that nobody waits for any more ends.
    flights: HashMap<Arc<str>, (u64, WeakShared<Flight>)>,
    standing: HashMap<Arc<str>, Standing>,
    turn: u64,
}

impl Inner {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Literals, `localhost` (RFC 6761) and the hosts file.
    fn without_asking(&self, host: &str) -> Option<Arc<[IpAddr]>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Some([ip].into());
        }
        let bare = host.strip_suffix('.').unwrap_or(host);
        if bare.eq_ignore_ascii_case("localhost") {
            return Some([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].into());
        }
        let name = Name::from_utf8(host).ok()?;
        let found: Vec<IpAddr> = [RecordType::A, RecordType::AAAA]
            .into_iter()
            .filter_map(|family| self.hosts.lookup_static_host(&Query::query(name.clone(), family)))
            .flat_map(|lookup| addresses(&lookup).collect::<Vec<_>>())
            .collect();
        (!found.is_empty()).then(|| found.into())
    }

    /// Joins the look-up of this name that is under way, or begins one.
    fn flight(self: Arc<Self>, name: &Arc<str>) -> Shared<Flight> {
        let inner = self.clone();
        let mut names = self.names();
        if let Some(running) = names.flights.get(name).and_then(|(_, flight)| flight.upgrade()) {
            return running;
        }
        names.turn += 1;
        let turn = names.turn;
        let seat = Seat { inner, name: name.clone(), turn, asked: false };
        let flight = seat.fly().boxed().shared();
        let weak = flight.downgrade().expect("a shared future that was never polled is not finished");
        names.flights.insert(name.clone(), (turn, weak));
        flight
    }
}

/// One look-up; its drop takes it off the list, also when all its callers have gone.
struct Seat {
    inner: Arc<Inner>,
    name: Arc<str>,
    /// Tells this look-up from a later one of the same name.
    turn: u64,
    /// The name servers were asked and have not answered.
    asked: bool,
}

impl Seat {
    async fn fly(mut self) -> Outcome {
        let inner = self.inner.clone();
        let limit = inner.limits.look_up;
        let standing = inner.names().standing.get(&self.name).copied();
        let places = async {
            let lane = match standing {
                Some(Standing::Answered) => None,
                None => Some(inner.newcomers.acquire().await),
                Some(Standing::Silent) => Some(inner.silent.acquire().await),
            };
            (lane, inner.all.acquire().await)
        };
        // The permits are held to the end of this function; the semaphores are never closed.
        let Ok(_places) = timeout(limit, places).await else {
            return Err(DnsError::Busy(self.name.clone(), limit));
        };
        self.asked = true;
        let outcome = timeout(limit, ask(&inner.resolver, &self.name)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(DnsError::Silent(self.name.clone(), limit)));
        self.asked = matches!(outcome, Err(DnsError::Silent(..)));
        if !self.asked {
            self.remember(Standing::Answered);
        }
        outcome
    }

    fn remember(&self, standing: Standing) {
        let mut names = self.inner.names();
        if names.standing.len() >= NAMES_REMEMBERED && !names.standing.contains_key(&self.name) {
            names.standing.clear();
        }
        names.standing.insert(self.name.clone(), standing);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Callers whose limit is shorter than ours leave before the look-up ends: silence all the same.
        if self.asked {
            self.remember(Standing::Silent);
        }
        let mut names = self.inner.names();
        if names.flights.get(&self.name).is_some_and(|(turn, _)| *turn == self.turn) {
            names.flights.remove(&self.name);
        }
    }
}

/// Both families at once. The caller holds the deadline.
async fn ask(resolver: &TokioResolver, name: &Arc<str>) -> Outcome {
    if Name::from_utf8(&**name).is_err() || name.is_empty() {
        return Err(DnsError::NotAName(name.clone()));
    }
    let v4 = Box::pin(resolver.lookup(&**name, RecordType::A));
    let v6 = Box::pin(resolver.lookup(&**name, RecordType::AAAA));
    let (first, rest) = match select(v4, v6).await {
        Either::Left((answer, rest)) | Either::Right((answer, rest)) => (answer, rest),
    };
    let answered = first.as_ref().is_ok_and(|lookup| addresses(lookup).next().is_some());
    let second = if answered { timeout(OTHER_FAMILY_WITHIN, rest).await.ok() } else { Some(rest.await) };

    let mut found: Vec<IpAddr> = Vec::new();
    let mut failure = None;
    for answer in std::iter::once(first).chain(second) {
        match answer {
            Ok(lookup) => found.extend(addresses(&lookup)),
            Err(error) if error.is_no_records_found() => {}
            Err(error) => failure = Some(error),
        }
    }
    found.sort_by_key(IpAddr::is_ipv6);
    match failure {
        _ if !found.is_empty() => Ok(found.into()),
        None => Err(DnsError::NoAddress(name.clone())),
        Some(NetError::Timeout) => Err(DnsError::Silent(name.clone(), resolver.options().timeout)),
        Some(error) => Err(DnsError::Failed(name.clone(), error.to_string().into())),
    }
}

fn addresses(lookup: &Lookup) -> impl Iterator<Item = IpAddr> {
    lookup.answers().iter().filter_map(|record| record.data.ip_addr())
}

/// The system's configuration, or what the C library does without one.
fn configuration(read: Result<(ResolverConfig, ResolverOpts), NetError>) -> (ResolverConfig, ResolverOpts) {
    read.unwrap_or_else(|error| {
        warn!(%error, "/etc/resolv.conf names no name server: asking one on 127.0.0.1");
        let local = NameServerConfig::udp_and_tcp(IpAddr::V4(Ipv4Addr::LOCALHOST));
        (ResolverConfig::from_parts(None, Vec::new(), vec![local]), ResolverOpts::default())
    })
}
