//! What a scripted daemon has: domains and volumes, in memory. They run nothing and hold next to nothing.

use std::collections::BTreeMap;

use egress_operator::providers::libvirt::xml::{self, Element};

/// A volume that is not longer keeps its bytes; of a longer one only their number is known.
const KEPT: usize = 64 * 1024;

/// Its one pool is this folder, which nobody has.
const POOL: &str = "/var/lib/libvirt/images";

#[derive(Debug, Clone)]
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) uuid: [u8; 16],
    pub(super) xml: String,
    pub(super) mac: String,
    /// While it runs.
    pub(super) id: Option<u32>,
    pub(super) address: String,
}

#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) name: String,
    capacity: u64,
    format: String,
    backing: Option<(String, String)>,
    pub(super) written: u64,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) domains: BTreeMap<String, Domain>,
    pub(super) volumes: BTreeMap<String, Volume>,
    made: u32,
    started: u32,
}

impl Contents {
    /// `number`: of the host; the last of the four in the addresses of its instances. `None`: one of that name is another.
    pub(super) fn define(&mut self, number: u8, text: &str) -> Result<Option<Domain>, String> {
        let facts = xml::domain_facts(text).map_err(|why| why.to_string())?;
        let uuid = facts.uuid.into_bytes();
        let known = self.domains.get(&facts.name);
        if known.is_some_and(|known| known.uuid != uuid) {
            return Ok(None);
        }
        self.made += 1;
        let id = known.and_then(|known| known.id);
        let domain = Domain {
            name: facts.name,
            uuid,
            xml: text.to_owned(),
            mac: facts.interfaces.first().map(|nic| nic.mac.to_string()).unwrap_or_default(),
            id,
            address: format!("100.{}.{}.{number}", 64 + self.made / 256 % 64, self.made % 256),
        };
        self.domains.insert(domain.name.clone(), domain.clone());
        Ok(Some(domain))
    }

    /// False: it runs already.
    pub(super) fn start(&mut self, name: &str) -> bool {
        self.started += 1;
        let id = self.started;
        self.domains.get_mut(name).is_some_and(|domain| domain.id.is_none() && domain.id.replace(id).is_none())
    }

    /// `None`: there is one of that name.
    pub(super) fn make_volume(&mut self, text: &str) -> Result<Option<Volume>, String> {
        let root = Element::parse("volume", text).map_err(|why| why.to_string())?;
        let words = |path: &[&str]| root.at(path).map(|element| element.text.clone());
        let format = |path: &[&str]| root.at(path).and_then(|format| format.attribute("type")).map(str::to_owned);
        let backing = words(&["backingStore", "path"]).zip(format(&["backingStore", "format"]));
        let volume = Volume {
            name: words(&["name"]).ok_or("no name")?,
            capacity: words(&["capacity"]).and_then(|number| number.parse().ok()).ok_or("no capacity")?,
            format: format(&["target", "format"]).ok_or("no format")?,
            backing,
            written: 0,
            bytes: Vec::new(),
        };
        if self.volumes.contains_key(&volume.name) {
            return Ok(None);
        }
        self.volumes.insert(volume.name.clone(), volume.clone());
        Ok(Some(volume))
    }
}

impl Volume {
    pub(super) fn key(name: &str) -> String {
        format!("{POOL}/{name}")
    }

    pub(super) fn takes(&mut self, piece: &[u8]) {
        self.written += piece.len() as u64;
        if self.bytes.len() + piece.len() <= KEPT {
            self.bytes.extend_from_slice(piece);
        }
    }

    pub(super) fn xml(&self) -> String {
        let Self { name, capacity, format, written, .. } = self;
        let key = Self::key(name);
        let backing = self
            .backing
            .as_ref()
            .map(|(path, format)| format!("<backingStore><path>{path}</path><format type='{format}'/></backingStore>"));
        format!(
            "<volume type='file'><name>{name}</name><key>{key}</key><capacity unit='bytes'>{capacity}</capacity>\
             <allocation unit='bytes'>{written}</allocation><physical unit='bytes'>{written}</physical>\
             <target><path>{key}</path><format type='{format}'/></target>{}</volume>",
            backing.unwrap_or_default()
        )
    }
}

pub(super) fn pool_xml(name: &str) -> String {
    format!("<pool type='dir'><name>{name}</name><target><path>{POOL}</path></target></pool>")
}
