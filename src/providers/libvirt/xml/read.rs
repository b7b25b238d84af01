//! What we need of what libvirt says of its pools, volumes and domains.

use uuid::Uuid;

use super::XmlError;
use super::tree::Element;
use crate::providers::libvirt::addresses::Mac;
use crate::providers::libvirt::metadata::{self, Mark};

/// A volume as its pool tells it. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    pub name: String,
    /// On the host.
    pub path: String,
    /// libvirt's word: `qcow2`, `raw`, `iso`; pools that are no directories may say none.
    pub format: Option<String>,
    pub capacity: u64,
    pub allocation: u64,
    /// The length of the file, where it is told.
    pub physical: Option<u64>,
    pub backing: Option<Backing>,
}

/// What a volume lies over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backing {
    pub path: String,
    pub format: Option<String>,
}

/// What is to be known of a domain, ours or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainFacts {
    pub name: String,
    pub uuid: Uuid,
    pub interfaces: Vec<Interface>,
    /// Files and devices on the host, in order, the seed among them. A disk by pool and volume has no path here.
    pub disks: Vec<String>,
    pub nvram: Option<String>,
    /// `Ok(None)` is a foreign domain. An error is one that may be ours: leave it alone (fault 47).
    pub mark: Result<Option<Mark>, XmlError>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub mac: Mac,
    /// Of libvirt; `None` for other kinds.
    pub network: Option<String>,
}

/// Where a pool's volumes lie on the host.
///
/// # Errors
/// [`XmlError`] that names what is missing.
pub fn pool_target_path(xml: &str) -> Result<String, XmlError> {
    const POOL: &str = "pool";
    let root = root(POOL, xml)?;
    text(POOL, &root, &["target", "path"], "target/path").map(str::to_owned)
}

/// # Errors
/// [`XmlError`] that names what is missing or no size.
pub fn volume_info(xml: &str) -> Result<VolumeInfo, XmlError> {
    const VOLUME: &str = "volume";
    let root = root(VOLUME, xml)?;
    let format =
        |element: &Element| element.child("format").and_then(|format| format.attribute("type")).map(str::to_owned);
    let backing = root.child("backingStore").and_then(|store| {
        let path = store.child("path").map(|path| path.text.clone()).filter(|path| !path.is_empty())?;
        Some(Backing { path, format: format(store) })
    });
    Ok(VolumeInfo {
        name: text(VOLUME, &root, &["name"], "name")?.to_owned(),
        path: text(VOLUME, &root, &["target", "path"], "target/path")?.to_owned(),
        format: root.child("target").and_then(format),
        capacity: required(VOLUME, size(VOLUME, &root, "capacity")?, "capacity")?,
        allocation: required(VOLUME, size(VOLUME, &root, "allocation")?, "allocation")?,
        physical: size(VOLUME, &root, "physical")?,
        backing,
    })
}

/// # Errors
/// [`XmlError`] that names what is missing or invalid. An owner mark that cannot be read is an error of its own, within
/// the facts.
pub fn domain_facts(xml: &str) -> Result<DomainFacts, XmlError> {
    const DOMAIN: &str = "domain";
    let root = root(DOMAIN, xml)?;
    let invalid =
        |what, given: &str| XmlError::Invalid { document: DOMAIN, what, given: given.chars().take(60).collect() };
    let uuid = text(DOMAIN, &root, &["uuid"], "uuid")?;
    let mut interfaces = Vec::new();
    let mut disks = Vec::new();
    for device in root.all("devices").flat_map(|devices| &devices.children) {
        match device.name.as_str() {
            "interface" => {
                let Some(mac) = device.child("mac").and_then(|mac| mac.attribute("address")) else { continue };
                let mac = mac.parse().map_err(|_| invalid("interface/mac", mac))?;
                let network = device.child("source").and_then(|source| source.attribute("network")).map(str::to_owned);
                interfaces.push(Interface { mac, network });
            }
            "disk" => {
                let source = device.child("source");
                let path = source.and_then(|source| source.attribute("file").or_else(|| source.attribute("dev")));
                disks.extend(path.map(str::to_owned));
            }
            _ => {}
        }
    }
    Ok(DomainFacts {
        name: text(DOMAIN, &root, &["name"], "name")?.to_owned(),
        uuid: uuid.parse().map_err(|_| invalid("uuid", uuid))?,
        interfaces,
        disks,
        nvram: root.at(&["os", "nvram"]).map(|nvram| nvram.text.clone()).filter(|path| !path.is_empty()),
        mark: metadata::in_domain(&root),
    })
}

fn root(document: &'static str, xml: &str) -> Result<Element, XmlError> {
    let root = Element::parse(document, xml)?;
    if root.name == document {
        return Ok(root);
    }
    Err(XmlError::Invalid { document, what: "root element", given: root.name.chars().take(60).collect() })
}

fn text<'a>(document: &'static str, root: &'a Element, path: &[&str], what: &'static str) -> Result<&'a str, XmlError> {
    required(document, root.at(path).map(|element| element.text.as_str()).filter(|text| !text.is_empty()), what)
}

fn required<T>(document: &'static str, found: Option<T>, what: &'static str) -> Result<T, XmlError> {
    found.ok_or(XmlError::Missing { document, what })
}

/// A size in bytes, by libvirt's units; it always answers in bytes, but takes others.
fn size(document: &'static str, root: &Element, what: &'static str) -> Result<Option<u64>, XmlError> {
    let Some(element) = root.child(what) else { return Ok(None) };
    let unit = element.attribute("unit").unwrap_or("bytes");
    let factor: Option<u64> = match unit.to_ascii_lowercase().as_str() {
        "b" | "byte" | "bytes" => Some(1),
        "kb" => Some(1000),
        "k" | "kib" => Some(1 << 10),
        "mb" => Some(1000_u64.pow(2)),
        "m" | "mib" => Some(1 << 20),
        "gb" => Some(1000_u64.pow(3)),
        "g" | "gib" => Some(1 << 30),
        "tb" => Some(1000_u64.pow(4)),
        "t" | "tib" => Some(1 << 40),
        _ => None,
    };
    let bytes = element.text.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    let Some(bytes) = bytes else {
        let given = [element.text.as_str(), " ", unit].concat().chars().take(60).collect();
        return Err(XmlError::Invalid { document, what, given });
    };
    Ok(Some(bytes))
}
