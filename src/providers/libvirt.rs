//! Providers `kvm` and `kvm2`: a virtual machine per Proxy on libvirt hosts that are reached over SSH.
//!
//! Owns, per instance, a domain, its disk (an overlay over a base image) and its `NoCloud` seed. All three have names that
//! follow from the operator and the Proxy's uid ([`names`]); the owner mark is in the domain's metadata. Spoken to by the
//! host actor through [`Backend`]. Never keeps an instance in memory (but the last address that a guest told), and never
//! touches a domain without our mark on it, read at that time.
//!
//! # Order
//! ```text
//! create   base image in the pool -> domain defined, with the mark -> seed -> disk -> domain started
//! delete   domain destroyed -> disk, seed deleted -> domain undefined
//! ```
//! The domain is so the first trace of an instance and the last: a half instance is a domain that is shut off, and a later
//! create or delete of the same mark goes on from there. libvirt takes one domain of a name, so there are never two.
//!
//! # Waiting
//! Everything that waits for the host goes through its [`Link`], each call with a limit of its own. Two values of this type
//! share nothing but the images that are fetched and the resolver.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName};
use egress_actors::domain::instance::{Instance, InstanceSpec, Listed, OwnerMark};
use egress_actors::ports::Backend;
use tokio::runtime::Handle;
use uuid::Uuid;

use self::errors::About;
use self::images::Images;
use self::link::material::MaterialFiles;
use self::link::ssh::SshTarget;
use self::link::{Destination, Link};
use self::metadata::Mark;
use self::pool::Pool;
use crate::config::providers::{LibvirtEntry, LibvirtHost};
use crate::dns::Dns;

pub mod addresses;
mod check;
mod create;
mod delete;
mod errors;
pub mod images;
pub mod link;
mod look;
pub mod metadata;
pub mod names;
mod pool;
pub mod seed;
pub mod xml;

/// Operations at once: a host has three threads for domains and one for its pool.
pub const SLOTS: usize = 4;

/// After a call that was given up, the longest that libvirtd may still be at it and succeed: it waits 30 s for a busy
/// domain, and then begins what was asked.
pub const SETTLE: Duration = Duration::from_secs(60);

/// Time limits of the calls to one host.
#[derive(Debug, Clone)]
pub struct Limits {
    pub link: link::Limits,
    /// A look or a change of a domain or network.
    pub control: Duration,
    /// The end of a domain: QEMU is asked for 15 s.
    pub destroy: Duration,
    pub start: Duration,
    pub agent: Duration,
    pub list: Duration,
    pub storage: Duration,
    pub check: Duration,
    /// How long a create waits for an image before it says how far that is.
    pub image_wait: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            link: link::Limits::default(),
            control: Duration::from_secs(8),
            destroy: Duration::from_secs(25),
            start: Duration::from_secs(45),
            agent: Duration::from_secs(6),
            list: Duration::from_secs(20),
            storage: Duration::from_secs(15),
            check: Duration::from_secs(10),
            image_wait: Duration::from_secs(20),
        }
    }
}

/// What the hosts of all entries are opened with.
#[derive(Clone)]
pub struct Means {
    pub dns: Dns,
    pub images: Arc<Images>,
    pub main: Handle,
    /// For transfers into pools.
    pub bulk: Handle,
}

impl fmt::Debug for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Means").field("images", &self.images).finish_non_exhaustive()
    }
}

/// The backend of one host of an entry.
#[derive(Debug, Clone)]
pub struct LibvirtBackend {
    site: Arc<Site>,
}

/// What all calls of one host look at.
#[derive(Debug)]
struct Site {
    entry: Arc<LibvirtEntry>,
    host: LibvirtHost,
    link: Arc<Link>,
    pool: Pool,
    limits: Limits,
    means: Means,
    /// The address that a guest told last, by its domain: a list cannot ask every guest.
    addresses: Mutex<HashMap<Uuid, IpAddr>>,
}

impl LibvirtBackend {
    /// Touches nothing. `material` is shared by the hosts of an entry.
    pub fn new(
        entry: Arc<LibvirtEntry>,
        host: &LibvirtHost,
        material: Arc<MaterialFiles>,
        means: Means,
        limits: Limits,
    ) -> Self {
        let to = Destination {
            provider: entry.name.to_string(),
            host: host.name.to_string(),
            target: SshTarget { user: entry.ssh.user.clone(), address: host.address.clone(), port: host.port },
            socket: host.socket.clone(),
        };
        let (main, bulk) = (means.main.clone(), means.bulk.clone());
        let link = Arc::new(Link::new(to, material, means.dns.clone(), limits.link.clone(), main, bulk));
        let pool = Pool {
            link: link.clone(),
            name: host.pool.clone(),
            host: host.name.to_string(),
            network: host.network.clone(),
            user: entry.ssh.user.clone(),
            limit: limits.storage,
            upload: entry.image_timeout,
            idle: entry.image_idle_timeout,
        };
        let addresses = Mutex::default();
        Self { site: Arc::new(Site { entry, host: host.clone(), link, pool, limits, means, addresses }) }
    }

    /// What the provider ids on this host begin with.
    pub fn ids(entry: &LibvirtEntry, host: &LibvirtHost) -> String {
        format!("{}://{}/{}/", entry.flavor.as_str(), entry.name, host.name)
    }

    pub fn link(&self) -> &Link {
        &self.site.link
    }
}

impl Site {
    fn about(&self) -> About<'_> {
        self.pool.about()
    }

    /// A row of another entry names that entry and its host, as it was made under it.
    fn provider_id(&self, mark: &Mark, domain: Uuid) -> String {
        format!("{}://{}/{}/{domain}", self.entry.flavor.as_str(), mark.owner.entry, mark.host)
    }

    fn remember(&self, domain: Uuid, address: IpAddr) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(domain, address);
    }

    fn remembered(&self, domain: Uuid) -> Option<IpAddr> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(&domain).copied()
    }

    fn forget_all_but(&self, living: &HashSet<Uuid>) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).retain(|domain, _| living.contains(domain));
    }
}

#[async_trait]
impl Backend for LibvirtBackend {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        // Boxed, as the state of a create holds the seed.
        Box::pin(create::create(&self.site, spec)).await
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        look::get(&self.site, mark).await
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        delete::delete(&self.site, mark).await
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        look::list(&self.site, operator, entry).await
    }

    async fn check(&self) -> Result<(), OpError> {
        check::check(&self.site).await
    }
}

#[cfg(test)]
mod tests;
