//! The calls that our code makes, with the numbers and arguments of `remote_protocol.x`, and what is answered to them.

use super::contents::{Contents, Domain, Volume, pool_xml};
use super::wire::{Reader, Writer};

pub(crate) const OPEN: u32 = 1;
pub(crate) const CLOSE: u32 = 2;
pub(crate) const DOMAIN_DEFINE: u32 = 11;
pub(crate) const DOMAIN_DESTROY: u32 = 12;
pub(crate) const DOMAIN_XML: u32 = 14;
pub(crate) const DOMAIN_BY_NAME: u32 = 23;
pub(crate) const DOMAIN_BY_UUID: u32 = 24;
pub(crate) const NETWORK_BY_NAME: u32 = 46;
pub(crate) const HOSTNAME: u32 = 59;
pub(crate) const SUPPORTS_FEATURE: u32 = 60;
pub(crate) const AUTH_LIST: u32 = 66;
pub(crate) const POOL_REFRESH: u32 = 83;
pub(crate) const POOL_BY_NAME: u32 = 84;
pub(crate) const POOL_XML: u32 = 88;
pub(crate) const VOLUME_CREATE: u32 = 93;
pub(crate) const VOLUME_DELETE: u32 = 94;
pub(crate) const VOLUME_BY_NAME: u32 = 95;
pub(crate) const VOLUME_INFO: u32 = 98;
pub(crate) const VOLUME_XML: u32 = 99;
pub(crate) const URI: u32 = 110;
pub(crate) const NETWORK_IS_ACTIVE: u32 = 152;
pub(crate) const POOL_IS_ACTIVE: u32 = 154;
pub(crate) const LIB_VERSION: u32 = 157;
pub(crate) const DOMAIN_CREATE: u32 = 196;
pub(crate) const VOLUME_UPLOAD: u32 = 208;
pub(crate) const VOLUME_DOWNLOAD: u32 = 209;
pub(crate) const DOMAIN_STATE: u32 = 212;
pub(crate) const DOMAIN_UNDEFINE_FLAGS: u32 = 231;
pub(crate) const LIST_DOMAINS: u32 = 273;
pub(crate) const LIST_VOLUMES: u32 = 282;
pub(crate) const DHCP_LEASES: u32 = 341;
pub(crate) const INTERFACE_ADDRESSES: u32 = 353;
pub(crate) const AGENT_TIMEOUT: u32 = 420;

/// Its only pool and its only network.
const DEFAULT: &str = "default";

/// An error as libvirt tells it: `virErrorNumber`, `virErrorDomain`, words.
#[derive(Debug)]
pub(super) struct Refusal(u32, u32, String);

impl Refusal {
    pub(super) fn body(&self) -> Vec<u8> {
        let Self(code, domain, words) = self;
        let mut out = Writer::default();
        out.int(*code).int(*domain).option(Some(words)).int(2);
        // No domain, no texts, two numbers, no network.
        for _ in 0..4 {
            out.int(0);
        }
        out.int(0).int(0).int(0).done()
    }
}

fn refused<T>(code: u32, domain: u32, words: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(code, domain, words.into()))
}

const QEMU: u32 = 10;
const NETWORK: u32 = 19;
const STORAGE: u32 = 18;

/// What a call changes and says. Transfers are the connection's: here it is only looked whether there is such a volume.
pub(super) fn answer(
    contents: &mut Contents,
    number: u8,
    procedure: u32,
    arguments: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let (mut given, mut out) = (Reader(arguments), Writer::default());
    match procedure {
        OPEN | CLOSE => Ok(Vec::new()),
        AUTH_LIST => Ok(out.int(1).int(0).done()),
        SUPPORTS_FEATURE => Ok(out.int(0).done()),
        URI => Ok(out.text("qemu:///system").done()),
        HOSTNAME => Ok(out.text(&format!("scripted-{number}")).done()),
        LIB_VERSION => Ok(out.hyper(9_000_000).done()),
        LIST_DOMAINS => {
            let count = u32::try_from(contents.domains.len()).unwrap_or(u32::MAX);
            out.int(count);
            contents.domains.values().for_each(|domain| write_domain(&mut out, domain));
            Ok(out.int(count).done())
        }
        DOMAIN_BY_NAME => {
            let name = given.text();
            match contents.domains.get(&name) {
                Some(domain) => write_domain(&mut out, domain),
                None => return no_domain(&name),
            }
            Ok(out.done())
        }
        DOMAIN_BY_UUID => {
            let uuid = given.uuid();
            match contents.domains.values().find(|domain| domain.uuid == uuid) {
                Some(domain) => write_domain(&mut out, domain),
                None => return no_domain("of that uuid"),
            }
            Ok(out.done())
        }
        DOMAIN_DEFINE => match contents.define(number, &given.text()) {
            Ok(Some(domain)) => {
                write_domain(&mut out, &domain);
                Ok(out.done())
            }
            Ok(None) => refused(9, QEMU, "domain is already defined with another uuid"),
            Err(why) => refused(27, QEMU, why),
        },
        DOMAIN_CREATE => {
            let name = domain(contents, &mut given)?.name.clone();
            if contents.start(&name) {
                write_domain(&mut out, &contents.domains[&name]);
                return Ok(out.done());
            }
            refused(55, QEMU, "Requested operation is not valid: domain is already running")
        }
        DOMAIN_DESTROY => match domain(contents, &mut given)?.id.take() {
            Some(_) => Ok(Vec::new()),
            None => refused(55, QEMU, "Requested operation is not valid: domain is not running"),
        },
        DOMAIN_UNDEFINE_FLAGS => {
            let name = domain(contents, &mut given)?.name.clone();
            contents.domains.remove(&name);
            Ok(Vec::new())
        }
        DOMAIN_XML => Ok(out.text(&domain(contents, &mut given)?.xml).done()),
        DOMAIN_STATE => {
            let runs = domain(contents, &mut given)?.id.is_some();
            Ok(out.int(if runs { 1 } else { 5 }).int(1).done())
        }
        AGENT_TIMEOUT => domain(contents, &mut given).map(|_| out.int(0).done()),
        INTERFACE_ADDRESSES => {
            let domain = domain(contents, &mut given)?;
            if domain.id.is_none() {
                return refused(55, QEMU, "Requested operation is not valid: domain is not running");
            }
            out.int(1).text("eth0").option(Some(&domain.mac));
            Ok(out.int(1).int(0).text(&domain.address).int(16).done())
        }
        NETWORK_BY_NAME => match given.text() {
            name if name == DEFAULT => Ok(out.text(DEFAULT).uuid([1; 16]).done()),
            name => refused(43, NETWORK, format!("Network not found: no network with matching name '{name}'")),
        },
        NETWORK_IS_ACTIVE => Ok(out.int(1).done()),
        DHCP_LEASES => {
            let running: Vec<_> = contents.domains.values().filter(|domain| domain.id.is_some()).collect();
            let count = u32::try_from(running.len()).unwrap_or(u32::MAX);
            out.int(count);
            for domain in running {
                out.text("virbr0").hyper(u64::from(u32::MAX)).int(0).option(Some(&domain.mac)).option(None);
                out.text(&domain.address).int(16).option(None).option(None);
            }
            Ok(out.int(count).done())
        }
        _ => storage(contents, procedure, given, out),
    }
}

fn storage(
    contents: &mut Contents,
    procedure: u32,
    mut given: Reader<'_>,
    mut out: Writer,
) -> Result<Vec<u8>, Refusal> {
    match procedure {
        POOL_BY_NAME => match given.text() {
            name if name == DEFAULT => Ok(out.text(DEFAULT).uuid([2; 16]).done()),
            name => {
                refused(49, STORAGE, format!("Storage pool not found: no storage pool with matching name '{name}'"))
            }
        },
        POOL_IS_ACTIVE => Ok(out.int(1).done()),
        POOL_REFRESH => Ok(Vec::new()),
        POOL_XML => Ok(out.text(&pool_xml(DEFAULT)).done()),
        LIST_VOLUMES => {
            let count = u32::try_from(contents.volumes.len()).unwrap_or(u32::MAX);
            out.int(count);
            contents.volumes.keys().for_each(|name| write_volume(&mut out, name));
            Ok(out.int(count).done())
        }
        VOLUME_BY_NAME => {
            pool(&mut given);
            let name = given.text();
            if !contents.volumes.contains_key(&name) {
                return no_volume(&name);
            }
            write_volume(&mut out, &name);
            Ok(out.done())
        }
        VOLUME_CREATE => {
            pool(&mut given);
            match contents.make_volume(&given.text()) {
                Ok(Some(volume)) => {
                    write_volume(&mut out, &volume.name);
                    Ok(out.done())
                }
                Ok(None) => refused(90, STORAGE, "storage volume exists already"),
                Err(why) => refused(27, STORAGE, why),
            }
        }
        VOLUME_DELETE => {
            let name = volume(contents, &mut given)?.name.clone();
            contents.volumes.remove(&name);
            Ok(Vec::new())
        }
        VOLUME_XML => Ok(out.text(&volume(contents, &mut given)?.xml()).done()),
        VOLUME_INFO => {
            let written = volume(contents, &mut given)?.written;
            Ok(out.int(0).hyper(written).hyper(written).done())
        }
        VOLUME_UPLOAD | VOLUME_DOWNLOAD => volume(contents, &mut given).map(|_| Vec::new()),
        other => refused(3, QEMU, format!("this function is not supported: {other}")),
    }
}

/// The volume that a transfer is about.
pub(super) fn volume_of(arguments: &[u8]) -> String {
    let mut given = Reader(arguments);
    let _pool = given.text();
    given.text()
}

/// Whether the guest's agent is asked.
pub(super) fn asks_agent(procedure: u32, arguments: &[u8]) -> bool {
    let mut given = Reader(arguments);
    procedure == INTERFACE_ADDRESSES && {
        let (_name, _uuid, _id) = (given.text(), given.uuid(), given.int());
        given.int() == 1
    }
}

/// Whether the pool's storage is asked.
pub(super) fn asks_pool(procedure: u32) -> bool {
    matches!(
        procedure,
        POOL_REFRESH
            | POOL_BY_NAME
            | POOL_XML
            | VOLUME_CREATE
            | VOLUME_DELETE
            | VOLUME_BY_NAME
            | VOLUME_INFO
            | VOLUME_XML
            | POOL_IS_ACTIVE
            | VOLUME_UPLOAD
            | VOLUME_DOWNLOAD
            | LIST_VOLUMES
    )
}

fn no_domain<T>(name: &str) -> Result<T, Refusal> {
    refused(42, QEMU, format!("Domain not found: no domain with matching name '{name}'"))
}

fn no_volume<T>(name: &str) -> Result<T, Refusal> {
    refused(50, STORAGE, format!("Storage volume not found: no storage vol with matching name '{name}'"))
}

fn domain<'a>(contents: &'a mut Contents, given: &mut Reader<'_>) -> Result<&'a mut Domain, Refusal> {
    let (name, uuid, _id) = (given.text(), given.uuid(), given.int());
    match contents.domains.get_mut(&name).filter(|domain| domain.uuid == uuid) {
        Some(domain) => Ok(domain),
        None => no_domain(&name),
    }
}

fn volume<'a>(contents: &'a mut Contents, given: &mut Reader<'_>) -> Result<&'a mut Volume, Refusal> {
    let (_pool, name, _key) = (given.text(), given.text(), given.text());
    match contents.volumes.get_mut(&name) {
        Some(volume) => Ok(volume),
        None => no_volume(&name),
    }
}

fn pool(given: &mut Reader<'_>) {
    let _name_and_uuid = (given.text(), given.uuid());
}

fn write_domain(out: &mut Writer, domain: &Domain) {
    let id = domain.id.unwrap_or(u32::MAX);
    out.text(&domain.name).uuid(domain.uuid).int(id);
}

fn write_volume(out: &mut Writer, name: &str) {
    out.text(DEFAULT).text(name).text(&Volume::key(name));
}
