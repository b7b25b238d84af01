//! The providers config as YAML: the shape of the file, and the way from it to entries.
//!
//! Two looks at one text: the first takes only `name` and `type` of each entry, so that an entry of a type that this
//! version does not have is told as such and not by its first unknown field; the second reads each entry by its type.
//! (Serde's own tagged enums lose the line numbers.)

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use egress_actors::domain::id::ProviderName;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::{Location, MessageFormatter, Spanned};

use super::kubernetes::RawKubernetes;
use super::libvirt::{self, RawLibvirt};
use super::{AllowedDestination, Auth, Entry, Loaded, ProcessEntry};

/// Types that other versions of the operator have.
const KNOWN_TYPES: &[&str] = &["gcp", "proxmox"];
/// Ports that Linux hands out to outgoing connections by default (`ip_local_port_range`).
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// What is wrong and where; the caller adds the file's name.
pub(super) struct Refused {
    pub(super) line: u64,
    pub(super) column: u64,
    pub(super) at: String,
    pub(super) why: String,
}

impl Refused {
    pub(super) fn new(place: Location, at: impl Into<String>, why: impl Into<String>) -> Self {
        Self { line: place.line().max(1), column: place.column().max(1), at: at.into(), why: why.into() }
    }
}

pub(super) fn parse(text: &str) -> Result<Loaded, Refused> {
    let kinds = kinds(text)?;
    let raw: Raw = read(text, RawSeed(&kinds))?;

    let mut warnings = Vec::new();
    let mut entries = Vec::with_capacity(raw.0.len());
    let mut lines: HashMap<ProviderName, u64> = HashMap::new();
    for (index, entry) in raw.0.into_iter().enumerate() {
        let place = entry.place();
        let entry = entry.check(&format!("providers[{index}]"), &mut warnings)?;
        if let Some(line) = lines.insert(entry.name().clone(), place.line()) {
            let why = format!("the name `{}` is taken by the entry in line {line}; names are unique", entry.name());
            return Err(Refused::new(place, format!("providers[{index}].name"), why));
        }
        entries.push(entry);
    }
    warnings.extend(overlaps(&entries));
    warnings.extend(libvirt::overlaps(&entries));
    Ok(Loaded { entries, warnings })
}

/// The type of each entry, all of which this version has.
fn kinds(text: &str) -> Result<Vec<Kind>, Refused> {
    #[derive(Deserialize)]
    struct Heads {
        #[serde(default)]
        providers: Option<Vec<Head>>,
    }
    #[derive(Deserialize)]
    struct Head {
        #[serde(default, rename = "type")]
        kind: Option<Spanned<String>>,
    }

    let heads: Spanned<Heads> = read(text, std::marker::PhantomData)?;
    let Some(providers) = heads.value.providers else {
        let why = "no `providers`; write `providers:` and a list of entries below it (`providers: []` for none)";
        return Err(Refused::new(heads.referenced, "providers", why));
    };
    let kind = |(index, head): (usize, Head)| {
        let at = format!("providers[{index}].type");
        let Some(word) = head.kind else { return Ok(Kind::Missing) };
        match word.value.as_str() {
            "process" => Ok(Kind::Process),
            "kubernetes" => Ok(Kind::Kubernetes),
            "kvm" | "kvm2" => Ok(Kind::Libvirt),
            known if KNOWN_TYPES.contains(&known) => Err(Refused::new(
                word.referenced,
                at,
                format!(
                    "type `{known}` is not available in this version; this version has `process`, `kubernetes`, `kvm` and `kvm2`"
                ),
            )),
            unknown => Err(Refused::new(
                word.referenced,
                at,
                format!(
                    "unknown type `{unknown}`; the types are process, kubernetes, kvm and kvm2 (known, but not in this version: {})",
                    KNOWN_TYPES.join(", ")
                ),
            )),
        }
    };
    providers.into_iter().enumerate().map(kind).collect()
}

/// Reads the text with `seed`; an error of the YAML or of serde gets its place and path.
fn read<'de, S>(text: &'de str, seed: S) -> Result<S::Value, Refused>
where
    S: DeserializeSeed<'de>,
{
    let mut path = None;
    let result = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        let mut track = serde_path_to_error::Track::new();
        let value = seed.deserialize(serde_path_to_error::Deserializer::new(deserializer, &mut track));
        if value.is_err() {
            path = Some(track.path().to_string());
        }
        value
    });
    result.map_err(|error| {
        let place = error.location().unwrap_or(Location::UNKNOWN);
        Refused::new(place, path.as_deref().map_or_else(|| "yaml".to_owned(), plain_path), words(&error))
    })
}

/// `value.providers[0].value.ports.value` as the reader of the file knows it: `Spanned` adds the steps named `value`.
fn plain_path(path: &str) -> String {
    let steps: Vec<_> = path.split('.').filter(|step| !matches!(*step, "" | "?" | "value")).collect();
    if steps.is_empty() { "yaml".to_owned() } else { steps.join(".") }
}

/// The error's own words, without its place (we print that) and the drawing of the source.
fn words(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    if let serde_saphyr::Error::Unexpected { expected, .. } = error {
        match *expected {
            "sequence start" => return "expected a list (`[..]`, or lines that start with `- `)".to_owned(),
            "mapping start" => return "expected fields (`name: value`)".to_owned(),
            "string scalar" => return "expected a single value, not a list and not fields".to_owned(),
            _ => {}
        }
    }
    serde_saphyr::UserMessageFormatter.format_message(error).replace('\n', " ")
}

#[derive(Clone, Copy)]
enum Kind {
    Process,
    Kubernetes,
    Libvirt,
    /// The second look tells that `type` is missing, beside other missing fields.
    Missing,
}

struct Raw(Vec<RawEntry>);

enum RawEntry {
    Process(Box<Spanned<RawProcess>>),
    Kubernetes(Box<Spanned<RawKubernetes>>),
    Libvirt(Box<Spanned<RawLibvirt>>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawProcess {
    name: Spanned<String>,
    #[serde(rename = "type")]
    _kind: String,
    binary: Option<Spanned<PathBuf>>,
    listen: Option<Spanned<String>>,
    ports: Spanned<String>,
    #[serde(default)]
    allow_destinations: Vec<Spanned<String>>,
    auth: Option<Spanned<String>>,
}

impl RawEntry {
    fn place(&self) -> Location {
        match self {
            Self::Process(raw) => raw.value.name.referenced,
            Self::Kubernetes(raw) => raw.value.name.referenced,
            Self::Libvirt(raw) => raw.value.name.referenced,
        }
    }

    fn check(self, at: &str, warnings: &mut Vec<String>) -> Result<Entry, Refused> {
        match self {
            Self::Process(raw) => raw.value.check(at, warnings).map(Entry::Process),
            Self::Kubernetes(raw) => raw.value.check(at, warnings).map(|entry| Entry::Kubernetes(Box::new(entry))),
            Self::Libvirt(raw) => raw.value.check(at, warnings).map(|entry| Entry::Libvirt(Box::new(entry))),
        }
    }
}

impl RawProcess {
    fn check(self, at: &str, warnings: &mut Vec<String>) -> Result<ProcessEntry, Refused> {
        let refuse = |place: Location, field: &str, why: String| Refused::new(place, format!("{at}.{field}"), why);

        let name =
            ProviderName::parse(&self.name.value).map_err(|e| refuse(self.name.referenced, "name", e.to_string()))?;
        let binary = match self.binary {
            None => PathBuf::from("/usr/sbin/squid"),
            Some(path) if path.value.is_absolute() => path.value,
            Some(path) => {
                let why = format!("`{}` is not an absolute path; write it like /usr/sbin/squid", path.value.display());
                return Err(refuse(path.referenced, "binary", why));
            }
        };
        let listen = match self.listen {
            None => IpAddr::from([127, 0, 0, 1]),
            Some(text) => parse_listen(&text.value).map_err(|why| refuse(text.referenced, "listen", why))?,
        };
        let ports = parse_ports(&self.ports.value).map_err(|why| refuse(self.ports.referenced, "ports", why))?;
        let auth = auth(self.auth, at)?;
        let allow_destinations =
            destinations(self.allow_destinations, at, &name, "private networks and this machine", warnings)?;

        if ports.start() <= EPHEMERAL.end() && ports.end() >= EPHEMERAL.start() {
            warnings.push(format!(
                "provider `{name}`: ports {}-{} lie in the range for outgoing connections ({}-{}), which may take them; choose ports below {}",
                ports.start(), ports.end(), EPHEMERAL.start(), EPHEMERAL.end(), EPHEMERAL.start()
            ));
        }
        if auth == Auth::None && !listen.is_loopback() {
            warnings.push(format!(
                "provider `{name}`: with auth none on {listen} whoever reaches that address can use its proxies, leased or not"
            ));
        }
        Ok(ProcessEntry { name, binary, listen, ports, allow_destinations, auth })
    }
}

/// What a generated Squid asks of its clients; by default a user and password of its own.
pub(super) fn auth(given: Option<Spanned<String>>, at: &str) -> Result<Auth, Refused> {
    let Some(word) = given else { return Ok(Auth::Generated) };
    match word.value.as_str() {
        "none" => Ok(Auth::None),
        "generated" => Ok(Auth::Generated),
        other => {
            let why = format!("`{other}` is neither `none` nor `generated`");
            Err(Refused::new(word.referenced, format!("{at}.auth"), why))
        }
    }
}

/// `near` is what an open door would lead to.
pub(super) fn destinations(
    given: Vec<Spanned<String>>,
    at: &str,
    name: &ProviderName,
    near: &str,
    warnings: &mut Vec<String>,
) -> Result<Vec<AllowedDestination>, Refused> {
    let mut allowed: Vec<AllowedDestination> = Vec::with_capacity(given.len());
    for (index, text) in given.into_iter().enumerate() {
        let destination: AllowedDestination = text
            .value
            .parse()
            .map_err(|why: String| Refused::new(text.referenced, format!("{at}.allowDestinations[{index}]"), why))?;
        if destination.net.prefix_len() == 0 {
            warnings.push(format!("provider `{name}`: allowDestinations {destination} lets every client into {near}"));
        }
        if !allowed.contains(&destination) {
            allowed.push(destination);
        }
    }
    Ok(allowed)
}

/// Clients get this address in their leases, so it must be one.
fn parse_listen(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Err(_) => Err(format!("`{text}` is not an IP address; write it like 127.0.0.1")),
        Ok(ip) if ip.is_unspecified() || ip.is_multicast() => {
            Err(format!("`{text}` is no address that a client could connect to; write one of this machine"))
        }
        Ok(ip) => Ok(ip),
    }
}

fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    const FORM: &str = "write a range like 31280-31379, or one port";
    let port = |part: &str| {
        let part = part.trim();
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if digits { part.parse::<u16>().ok() } else { None }
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (Some(first), Some(last)) = (port(first), port(last)) else {
        return Err(format!("`{text}` is not a range of ports up to 65535; {FORM}"));
    };
    if first > last {
        return Err(format!("`{text}` ends before it starts; write {last}-{first}"));
    }
    if first < 1024 {
        return Err(format!("`{text}` has ports below 1024, which only root may use; choose higher ones"));
    }
    Ok(first..=last)
}

/// Entries that compete for ports work, each skipping what is taken, but have fewer than they seem to.
fn overlaps(entries: &[Entry]) -> Vec<String> {
    let mut found = Vec::new();
    let ports: Vec<_> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Process(entry) => Some(entry),
            Entry::Kubernetes(_) | Entry::Libvirt(_) => None,
        })
        .collect();
    for (at, b) in ports.iter().enumerate() {
        for a in &ports[..at] {
            if a.listen == b.listen && a.ports.start() <= b.ports.end() && b.ports.start() <= a.ports.end() {
                found.push(format!(
                    "providers `{}` and `{}` share ports on {}; give each a range of its own",
                    a.name, b.name, a.listen
                ));
            }
        }
    }
    found
}

/// Reads the file knowing the type of each entry, so that each is read straight into its own struct.
struct RawSeed<'a>(&'a [Kind]);

impl<'de> DeserializeSeed<'de> for RawSeed<'_> {
    type Value = Raw;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_struct("ProvidersConfig", &["providers"], self)
    }
}

impl<'de> Visitor<'de> for RawSeed<'_> {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a providers config")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != "providers" {
                return Err(de::Error::unknown_field(&key, &["providers"]));
            }
            raw = Some(map.next_value_seed(EntriesSeed(self.0))?);
        }
        raw.ok_or_else(|| de::Error::missing_field("providers"))
    }
}

struct EntriesSeed<'a>(&'a [Kind]);

impl<'de> DeserializeSeed<'de> for EntriesSeed<'_> {
    type Value = Raw;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for EntriesSeed<'_> {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::with_capacity(self.0.len());
        for kind in self.0 {
            let entry = match kind {
                Kind::Process | Kind::Missing => seq.next_element()?.map(RawEntry::Process),
                Kind::Kubernetes => seq.next_element()?.map(RawEntry::Kubernetes),
                Kind::Libvirt => seq.next_element()?.map(RawEntry::Libvirt),
            };
            entries.extend(entry);
        }
        // The first look has counted them; this only finds the end of the list.
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Raw(entries))
    }
}
