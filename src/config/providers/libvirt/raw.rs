//! An entry of type `kvm` or `kvm2` as it is written, and the way to what is used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use egress_actors::domain::id::{HostName, ProviderName};
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use url::Url;

use super::values::{LONGEST_SOCKET, address, bytes, digest, http_url, is_libvirt_name, is_socket};
use super::{Firmware, Flavor, ImageFormat, ImageSource, LibvirtEntry, LibvirtHost, Ssh, VirtType, VmSize};
use crate::args::duration;
use crate::config::providers::Entry;
use crate::config::providers::file::Refused;

/// A slow first boot behind a fetched image.
const ADDRESS_TIMEOUT: Duration = Duration::from_mins(10);
const IMAGE_IDLE_TIMEOUT: Duration = Duration::from_mins(1);
const IMAGE_TIMEOUT: Duration = Duration::from_hours(2);
/// No timeout of use is shorter, and zero would end everything.
const SHORTEST: Duration = Duration::from_secs(1);
/// Of a size: less boots nothing, and is most often a number without its unit.
const LEAST_BYTES: u64 = 64 << 20;
const MOST_CPUS: u32 = 256;
/// It travels in every seed, beside user data.
const LONGEST_VENDOR_DATA: usize = 16 * 1024;
/// What cloud-init knows text by (its `type_from_starts_with`, and MIME).
const HEADERS: [&str; 8] = [
    "#cloud-config",
    "#!",
    "#include",
    "#cloud-boothook",
    "#part-handler",
    "## template: jinja",
    "Content-Type:",
    "MIME-Version:",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in crate::config::providers) struct RawLibvirt {
    pub(in crate::config::providers) name: Spanned<String>,
    #[serde(rename = "type")]
    kind: String,
    ssh: RawSsh,
    hosts: Vec<Spanned<RawHost>>,
    virt_type: Option<RawVirtType>,
    #[serde(default)]
    images: BTreeMap<String, Spanned<RawImage>>,
    #[serde(default, rename = "allowImageURLs")]
    allow_image_urls: Vec<Spanned<String>>,
    #[serde(default)]
    sizes: BTreeMap<String, Spanned<RawSize>>,
    install_guest_agent: Option<bool>,
    vendor_data: Option<Spanned<String>>,
    address_timeout: Option<Spanned<String>>,
    image_idle_timeout: Option<Spanned<String>>,
    image_timeout: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawSsh {
    user: Spanned<String>,
    key_file: Spanned<PathBuf>,
    known_hosts_file: Spanned<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHost {
    name: Spanned<String>,
    address: Spanned<String>,
    pool: Option<Spanned<String>>,
    network: Option<Spanned<String>>,
    socket: Option<Spanned<String>>,
    capacity: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawImage {
    url: Spanned<String>,
    sha256: Option<Spanned<String>>,
    format: Option<RawFormat>,
    firmware: Option<RawFirmware>,
    #[serde(default)]
    proxy: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSize {
    cpus: Spanned<u32>,
    memory: Spanned<String>,
    disk: Spanned<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawVirtType {
    Kvm,
    Qemu,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawFormat {
    Qcow2,
    Raw,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawFirmware {
    Uefi,
    Bios,
}

impl RawLibvirt {
    pub(in crate::config::providers) fn check(
        self,
        at: &str,
        warnings: &mut Vec<String>,
    ) -> Result<LibvirtEntry, Refused> {
        let place = self.name.referenced;
        let refuse = |field: &str, why: &str| Refused::new(place, format!("{at}.{field}"), why);
        let name = ProviderName::parse(&self.name.value).map_err(|error| refuse("name", &error.to_string()))?;
        let ssh = self.ssh.check(&format!("{at}.ssh"))?;
        let hosts = hosts(self.hosts, &name, at, warnings)?;
        if hosts.is_empty() {
            return Err(refuse("hosts", "no host; write at least one, like {name: beelink, address: \"10.0.0.5:22\"}"));
        }
        let mut images = BTreeMap::new();
        for (key, image) in self.images {
            let at = format!("{at}.images.{key}");
            key_of(&key, image.referenced, &at)?;
            images.insert(key, image.value.check(&at)?);
        }
        unproven(&name, &images, warnings);
        let allow_image_urls = prefixes(self.allow_image_urls, &name, at, warnings)?;
        if images.is_empty() && allow_image_urls.is_empty() {
            let why = "no image that a machine could be made of; name one in `images`, or where a Proxy's own may come from in `allowImageURLs`";
            return Err(refuse("images", why));
        }
        let mut sizes = BTreeMap::new();
        for (key, size) in self.sizes {
            let at = format!("{at}.sizes.{key}");
            key_of(&key, size.referenced, &at)?;
            sizes.insert(key, size.value.check(&at)?);
        }
        let timeout = |given: Option<Spanned<String>>, field: &str, default: Duration| match given {
            None => Ok(default),
            Some(text) => match duration(&text.value) {
                Ok(time) if time >= SHORTEST => Ok(time),
                Ok(_) => Err(format!("`{}` is too short; write at least 1s", text.value)),
                Err(why) => Err(format!("`{}`: {why}", text.value)),
            }
            .map_err(|why| Refused::new(text.referenced, format!("{at}.{field}"), why)),
        };
        Ok(LibvirtEntry {
            name,
            flavor: if self.kind == Flavor::Kvm.as_str() { Flavor::Kvm } else { Flavor::Kvm2 },
            ssh,
            hosts,
            virt_type: match self.virt_type {
                None | Some(RawVirtType::Kvm) => VirtType::Kvm,
                Some(RawVirtType::Qemu) => VirtType::Qemu,
            },
            images,
            allow_image_urls,
            sizes,
            install_guest_agent: self.install_guest_agent.unwrap_or(true),
            vendor_data: self.vendor_data.map_or(Ok(None), |text| vendor_data(text, &format!("{at}.vendorData")))?,
            address_timeout: timeout(self.address_timeout, "addressTimeout", ADDRESS_TIMEOUT)?,
            image_idle_timeout: timeout(self.image_idle_timeout, "imageIdleTimeout", IMAGE_IDLE_TIMEOUT)?,
            image_timeout: timeout(self.image_timeout, "imageTimeout", IMAGE_TIMEOUT)?,
        })
    }
}

impl RawSsh {
    fn check(self, at: &str) -> Result<Ssh, Refused> {
        let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != ':';
        if self.user.value.is_empty() || self.user.value.len() > 128 || !self.user.value.chars().all(plain) {
            let why = "the name of a user of the hosts is needed, without blanks; write it like operator";
            return Err(Refused::new(self.user.referenced, format!("{at}.user"), why));
        }
        let absolute = |path: Spanned<PathBuf>, field: &str, like: &str| {
            if path.value.is_absolute() {
                return Ok(path.value);
            }
            let why = format!("`{}` is not an absolute path; write it like {like}", path.value.display());
            Err(Refused::new(path.referenced, format!("{at}.{field}"), why))
        };
        Ok(Ssh {
            user: self.user.value,
            key_file: absolute(self.key_file, "keyFile", "/etc/proxy-operator/kvm/id_ed25519")?,
            known_hosts_file: absolute(self.known_hosts_file, "knownHostsFile", "/etc/proxy-operator/kvm/known_hosts")?,
        })
    }
}

impl RawHost {
    fn check(self, at: &str) -> Result<LibvirtHost, Refused> {
        let refused = |place: Location, field: &str, why: String| Refused::new(place, format!("{at}.{field}"), why);
        let name = HostName::parse(&self.name.value)
            .map_err(|error| refused(self.name.referenced, "name", error.to_string()))?;
        let (address, port) = address(&self.address.value).ok_or_else(|| {
            let why = format!(
                "`{}` is not the address of a host; write a name or an IP address, with or without a port: kvm-1.example, 10.0.0.5:22, [fd00::5]:22",
                self.address.value
            );
            refused(self.address.referenced, "address", why)
        })?;
        let object = |given: Option<Spanned<String>>, field: &str| match given {
            None => Ok("default".to_owned()),
            Some(name) if is_libvirt_name(&name.value) => Ok(name.value),
            Some(name) => {
                let why = format!("`{}` is not the name of a {field} of libvirt", name.value);
                Err(refused(name.referenced, field, why))
            }
        };
        let (pool, network) = (object(self.pool, "pool")?, object(self.network, "network")?);
        let socket = match self.socket {
            None => None,
            Some(path) if is_socket(&path.value) => Some(path.value),
            Some(path) => {
                let why = format!(
                    "`{}` is not an absolute path of at most {LONGEST_SOCKET} bytes; write it like /run/libvirt/libvirt-sock",
                    path.value
                );
                return Err(refused(path.referenced, "socket", why));
            }
        };
        Ok(LibvirtHost { name, address, port, pool, network, socket, capacity: self.capacity })
    }
}

impl RawImage {
    fn check(self, at: &str) -> Result<ImageSource, Refused> {
        let url = http_url(&self.url.value)
            .map_err(|why| Refused::new(self.url.referenced, format!("{at}.url"), why.to_owned()))?;
        let sha256 = match self.sha256 {
            None => None,
            Some(text) => Some(digest(&text.value).ok_or_else(|| {
                let why = format!("`{}` is not a SHA-256; write the 64 hex digits that sha256sum prints", text.value);
                Refused::new(text.referenced, format!("{at}.sha256"), why)
            })?),
        };
        Ok(ImageSource {
            url,
            sha256,
            format: self.format.map(|format| match format {
                RawFormat::Qcow2 => ImageFormat::Qcow2,
                RawFormat::Raw => ImageFormat::Raw,
            }),
            firmware: match self.firmware {
                None | Some(RawFirmware::Uefi) => Firmware::Uefi,
                Some(RawFirmware::Bios) => Firmware::Bios,
            },
            proxy: self.proxy,
        })
    }
}

impl RawSize {
    fn check(self, at: &str) -> Result<VmSize, Refused> {
        if !(1..=MOST_CPUS).contains(&self.cpus.value) {
            let why = format!("{} is no number of CPUs; write 1 to {MOST_CPUS}", self.cpus.value);
            return Err(Refused::new(self.cpus.referenced, format!("{at}.cpus"), why));
        }
        let amount = |text: Spanned<String>, field: &str| {
            let why = match bytes(&text.value) {
                Some(bytes) if bytes >= LEAST_BYTES => return Ok(bytes),
                Some(_) => format!("`{}` is less than 64Mi; is the unit missing?", text.value),
                None => {
                    format!("`{}` is not an amount; write it like 512Mi, 1Gi, 10G or a number of bytes", text.value)
                }
            };
            Err(Refused::new(text.referenced, format!("{at}.{field}"), why))
        };
        Ok(VmSize { cpus: self.cpus.value, memory: amount(self.memory, "memory")?, disk: amount(self.disk, "disk")? })
    }
}

fn hosts(
    raw: Vec<Spanned<RawHost>>,
    entry: &ProviderName,
    at: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<LibvirtHost>, Refused> {
    let mut hosts: Vec<LibvirtHost> = Vec::with_capacity(raw.len());
    for (index, host) in raw.into_iter().enumerate() {
        let at = format!("{at}.hosts[{index}]");
        let place = host.value.name.referenced;
        let host = host.value.check(&at)?;
        if hosts.iter().any(|other| other.name == host.name) {
            let why = format!("the name `{}` is taken by another host of this entry; names are unique", host.name);
            return Err(Refused::new(place, format!("{at}.name"), why));
        }
        if let Some(other) = hosts.iter().find(|other| same_pool(other, &host)) {
            warnings.push(format!(
                "provider `{entry}`: hosts `{}` and `{}` are the same pool `{}` of {}; one of them is enough",
                other.name,
                host.name,
                host.pool,
                reached_at(&host)
            ));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

/// Images that could be replaced on the way, or at their source.
fn unproven(entry: &ProviderName, images: &BTreeMap<String, ImageSource>, warnings: &mut Vec<String>) {
    let bare = |plain: bool| {
        let of =
            images.iter().filter(move |(_, image)| image.sha256.is_none() && (image.url.scheme() == "http") == plain);
        of.map(|(key, _)| format!("`{key}`")).collect::<Vec<_>>().join(", ")
    };
    let (http, https) = (bare(true), bare(false));
    if !http.is_empty() {
        warnings.push(format!(
            "provider `{entry}`: images {http} come over http and without sha256: whoever is on the way can replace them"
        ));
    }
    if !https.is_empty() {
        warnings.push(format!(
            "provider `{entry}`: images {https} have no sha256: what their source gives at the first use is what stays"
        ));
    }
}

fn prefixes(
    raw: Vec<Spanned<String>>,
    entry: &ProviderName,
    at: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<Url>, Refused> {
    let mut urls = Vec::with_capacity(raw.len());
    for (index, text) in raw.into_iter().enumerate() {
        let refused = |why: String| Refused::new(text.referenced, format!("{at}.allowImageURLs[{index}]"), why);
        let url = http_url(&text.value).map_err(|why| refused(why.to_owned()))?;
        // As text, as parsing adds the first `/`: without it `https://images.example` would let in `images.example.evil`.
        if !text.value.ends_with('/') || url.query().is_some() {
            let why = format!(
                "`{}` does not end in `/`; write a folder, like https://images.example.com/debian/",
                text.value
            );
            return Err(refused(why));
        }
        if url.scheme() == "http" {
            warnings.push(format!(
                "provider `{entry}`: allowImageURLs {url} is plain http: whoever is on the way can replace what a Proxy asks for"
            ));
        }
        urls.push(url);
    }
    Ok(urls)
}

fn vendor_data(text: Spanned<String>, at: &str) -> Result<Option<String>, Refused> {
    if text.value.is_empty() {
        return Ok(None);
    }
    let why = if text.value.len() > LONGEST_VENDOR_DATA {
        "longer than 16 KiB; put what is long into the image, or behind an #include"
    } else if text.value.contains('\0') || !HEADERS.iter().any(|header| text.value.starts_with(header)) {
        "cloud-init would not know what it is; begin it with `#cloud-config`, `#!` or another header of cloud-init"
    } else {
        return Ok(Some(text.value));
    };
    Err(Refused::new(text.referenced, at, why))
}

fn key_of(key: &str, place: Location, at: &str) -> Result<(), Refused> {
    match HostName::parse(key) {
        Ok(_) => Ok(()),
        Err(error) => Err(Refused::new(place, at, format!("the key `{key}` {}", error.why))),
    }
}

fn same_pool(a: &LibvirtHost, b: &LibvirtHost) -> bool {
    (&a.address, a.port, &a.pool) == (&b.address, b.port, &b.pool)
}

fn reached_at(host: &LibvirtHost) -> String {
    if host.address.contains(':') {
        format!("[{}]:{}", host.address, host.port)
    } else {
        format!("{}:{}", host.address, host.port)
    }
}

/// Base images of one name in one pool that are not made of the same file: which of them is there is a matter of luck.
pub(in crate::config::providers) fn overlaps(entries: &[Entry]) -> Vec<String> {
    let mut found = Vec::new();
    let machines: Vec<&LibvirtEntry> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Libvirt(entry) => Some(&**entry),
            Entry::Process(_) | Entry::Kubernetes(_) => None,
        })
        .collect();
    for (at, b) in machines.iter().enumerate() {
        for a in &machines[..at] {
            let shared = a.hosts.iter().find(|one| b.hosts.iter().any(|other| same_pool(one, other)));
            let Some(host) = shared else { continue };
            for (of_a, image_a) in &a.images {
                for (of_b, image_b) in &b.images {
                    if base(a, of_a) == base(b, of_b) && differ(image_a, image_b) {
                        found.push(format!(
                            "providers `{}` and `{}` keep different images as `base-{}` in the pool `{}` of {}; give one of them another key",
                            a.name,
                            b.name,
                            base(a, of_a),
                            host.pool,
                            reached_at(host)
                        ));
                    }
                }
            }
        }
    }
    found
}

/// What the name of a base image has between `base-` and its format.
fn base(entry: &LibvirtEntry, key: &str) -> String {
    match entry.flavor {
        Flavor::Kvm => key.to_owned(),
        Flavor::Kvm2 => format!("{}-{key}", entry.name),
    }
}

fn differ(a: &ImageSource, b: &ImageSource) -> bool {
    // Of two formats that are both known, each has a file of its own.
    let apart = matches!((a.format, b.format), (Some(a), Some(b)) if a != b);
    !apart && (&a.url, a.sha256) != (&b.url, b.sha256)
}
