//! The providers config: one entry per backend, read from YAML, unknown fields refused.
//!
//! [`load`] reads a file, [`parse`] a text; both are all or nothing, and an error names file, line, column and path. What
//! an entry names on the machine (a binary, a key, a host) is not looked at: that is the verdict of the entry's check.

use std::fmt;
use std::io::Read;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use egress_actors::domain::id::ProviderName;
use ipnet::IpNet;
use sha2::{Digest, Sha256};

mod destination;
mod file;
mod kubernetes;
mod libvirt;

pub use self::kubernetes::{Effect, KubernetesEntry, Operator, PodSize, PullPolicy, Resources, Toleration};
pub use self::libvirt::{Firmware, Flavor, ImageFormat, ImageSource, LibvirtEntry, LibvirtHost, Ssh, VirtType, VmSize};

/// More than any config of sense; a file that never ends must not fill the memory.
const LARGEST_FILE: u64 = 1024 * 1024;

/// One entry, by its `type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Process(ProcessEntry),
    Kubernetes(Box<KubernetesEntry>),
    /// Of type `kvm` or `kvm2`, by its flavor.
    Libvirt(Box<LibvirtEntry>),
}

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

/// A whole file, valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// In the order of the file; names are unique.
    pub entries: Vec<Entry>,
    /// Allowed, and still worth telling.
    pub warnings: Vec<String>,
}

/// Why a file is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProvidersError {
    #[error("providers config {}: {why}", path.display())]
    Unreadable { path: PathBuf, why: String },
    #[error("providers config {}:{line}:{column}: {at}: {why}", path.display())]
    Invalid { path: PathBuf, line: u64, column: u64, at: Arc<str>, why: String },
}

impl Entry {
    pub fn name(&self) -> &ProviderName {
        match self {
            Self::Process(entry) => &entry.name,
            Self::Kubernetes(entry) => &entry.name,
            Self::Libvirt(entry) => &entry.name,
        }
    }

    /// The word in `type`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Process(_) => "process",
            Self::Kubernetes(_) => "kubernetes",
            Self::Libvirt(entry) => entry.flavor.as_str(),
        }
    }

    /// Changes when the entry's meaning does: not with comments, the order of fields, of destinations or of URLs.
    pub fn revision(&self) -> u64 {
        let in_order = |destinations: &mut Vec<AllowedDestination>| {
            destinations.sort_unstable_by_key(|d| (d.net, d.port));
            destinations.dedup();
        };
        let mut normal = self.clone();
        match &mut normal {
            Self::Process(entry) => in_order(&mut entry.allow_destinations),
            Self::Kubernetes(entry) => in_order(&mut entry.allow_destinations),
            Self::Libvirt(entry) => {
                entry.allow_image_urls.sort_unstable();
                entry.allow_image_urls.dedup();
            }
        }
        // An entry holds file names, never the secrets in them, so its `Debug` is its whole content.
        let digest = Sha256::digest(format!("{normal:?}"));
        digest.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
    }
}

/// Reads and checks the file at `path`.
pub fn load(path: &Path) -> Result<Loaded, ProvidersError> {
    parse(path, &read(path)?)
}

const HOW_TO_BEGIN: &str = "correct --providers-config, or make the file: `providers: []` will do where all Proxies are external, \
                            and config/samples has examples of entries";

/// The bytes of the file, with a bound.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, ProvidersError> {
    let unreadable = |why: String| ProvidersError::Unreadable { path: path.to_owned(), why };
    let cannot = |error: std::io::Error| unreadable(format!("cannot be read ({error})"));
    let file = std::fs::File::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => unreadable(format!("cannot be read ({error}); {HOW_TO_BEGIN}")),
        _ => cannot(error),
    })?;
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(unreadable("is larger than 1 MiB".to_owned()));
    }
    Ok(bytes)
}

/// Checks the content of a file; `path` is for the errors.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Loaded, ProvidersError> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(ProvidersError::Unreadable { path: path.to_owned(), why: "is not UTF-8 text".to_owned() });
    };
    file::parse(text).map_err(|file::Refused { line, column, at, why }| ProvidersError::Invalid {
        path: path.to_owned(),
        line,
        column,
        at: at.into(),
        why,
    })
}

impl fmt::Display for AllowedDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single = self.net.prefix_len() == self.net.max_prefix_len();
        match (self.net, single, self.port) {
            (net, true, None) => write!(f, "{}", net.addr()),
            (net, false, None) => write!(f, "{net}"),
            (IpNet::V4(net), true, Some(port)) => write!(f, "{}:{port}", net.addr()),
            (IpNet::V4(net), false, Some(port)) => write!(f, "{net}:{port}"),
            (IpNet::V6(net), true, Some(port)) => write!(f, "[{}]:{port}", net.addr()),
            (IpNet::V6(net), false, Some(port)) => write!(f, "[{net}]:{port}"),
        }
    }
}

#[cfg(test)]
mod tests;
