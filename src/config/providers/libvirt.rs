//! An entry of type `kvm` or `kvm2`: its fields as they are written, and as they are used.
//!
//! What a host, a pool or an image really is, is not looked at here: that is the verdict of the host's check.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use egress_actors::domain::id::{HostName, ProviderName};
use url::Url;

mod raw;
mod values;

pub(super) use self::raw::{RawLibvirt, overlaps};

/// Virtual machines on libvirt hosts that are reached over SSH.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibvirtEntry {
    pub name: ProviderName,
    pub flavor: Flavor,
    pub ssh: Ssh,
    /// At least one.
    pub hosts: Vec<LibvirtHost>,
    pub virt_type: VirtType,
    /// What `placement.image` may name.
    pub images: BTreeMap<String, ImageSource>,
    /// `placement.image` may be a URL that begins with one of these.
    pub allow_image_urls: Vec<Url>,
    /// What `placement.size` may name.
    pub sizes: BTreeMap<String, VmSize>,
    /// A vendor-data script installs and starts the guest agent.
    pub install_guest_agent: bool,
    /// Further vendor-data, beside the script.
    pub vendor_data: Option<String>,
    /// An instance without an address for this long is told.
    pub address_timeout: Duration,
    /// A source of an image that sends nothing for this long is given up.
    pub image_idle_timeout: Duration,
    /// The whole of one image, from the source into the pool.
    pub image_timeout: Duration,
}

/// How base images are kept in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// Shared by all entries of a pool: `base-<key>.<format>`.
    Kvm,
    /// One for each entry: `base-<entry>-<key>.<format>`.
    Kvm2,
}

impl Flavor {
    /// As in `type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Kvm2 => "kvm2",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ssh {
    pub user: String,
    pub key_file: PathBuf,
    pub known_hosts_file: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibvirtHost {
    pub name: HostName,
    /// A host name or an IP address (without brackets).
    pub address: String,
    pub port: u16,
    pub pool: String,
    pub network: String,
    /// libvirt's socket on the host; without one the usual paths are tried in turn.
    pub socket: Option<String>,
    /// Most instances; `None` is without limit.
    pub capacity: Option<u32>,
}

/// What a domain's `type` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VirtType {
    Kvm,
    /// Emulation, where the host has no KVM.
    Qemu,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSource {
    pub url: Url,
    /// Of the file that the URL gives.
    pub sha256: Option<[u8; 32]>,
    /// What it must be; without one it is what its first bytes say.
    pub format: Option<ImageFormat>,
    pub firmware: Firmware,
    /// The image runs a proxy by itself: a Proxy of it needs no `cloudInit`.
    pub proxy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    Qcow2,
    Raw,
}

impl ImageFormat {
    /// As in libvirt's XML, and as the ending of a volume's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Firmware {
    /// UEFI without secure boot.
    #[default]
    Uefi,
    Bios,
}

/// What one size is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmSize {
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub disk: u64,
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
