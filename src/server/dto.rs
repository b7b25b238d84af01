//! The wire format of the lease API: what clients send, made into domain values, and what they get.
//!
//! The only place of the project that exposes a proxy's credentials, and it does so in answers about single leases.
//! Requests refuse unknown fields: a misspelt one would be a wish that is silently not met.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use egress_actors::board::ProxyView as Row;
use egress_actors::domain::clock::Now;
use egress_actors::domain::desired::Attributes;
use egress_actors::domain::id::ProxyKey;
use egress_actors::domain::lease_book::{Ask, Lease, LeaseState, Outcome, ProxyView, Report, Target};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::error::BadField;
use super::line::RESERVED;

/// How long a lease is for if its client does not say.
const DEFAULT_TTL: Duration = Duration::from_secs(300);

const MAX_SELECTORS: usize = 16;
const MAX_ATTRIBUTES: usize = 32;
const MAX_COUNT: u64 = 100;
const MAX_EXCLUDE: usize = 1000;
const MAX_OWNER: usize = 128;
/// Of a key or a value of an attribute: a Proxy cannot have longer ones.
const MAX_ATTRIBUTE: usize = 63;

/// Times as clients read them: RFC 3339, UTC, milliseconds.
pub(super) fn timestamp(at: SystemTime) -> String {
    let at = jiff::Timestamp::try_from(at).unwrap_or(jiff::Timestamp::MAX);
    format!("{at:.3}")
}

/// Reads a JSON body; the error names the field. No body at all is an empty object.
pub(super) fn read<T: for<'a> Deserialize<'a>>(body: &[u8]) -> Result<T, BadField> {
    let body = if body.is_empty() { b"{}" } else { body };
    // serde would take a list for an object whose fields come in order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(BadField::bare("body", "must be a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let field = match path.trim_end_matches('?').trim_end_matches('.') {
            "" => "body",
            field => field,
        };
        BadField::bare(field, error.into_inner().to_string())
    })?;
    json.end().map_err(|error| BadField::bare("body", error.to_string()))?;
    Ok(read)
}

// --- requests --------------------------------------------------------------------------------------------------------

/// In which form an ask came: its fields have other names in a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    InJson,
    InQuery,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct GrantRequest {
    pub(super) selectors: Vec<BTreeMap<String, String>>,
    pub(super) target: Option<String>,
    pub(super) session: Option<String>,
    pub(super) ttl_seconds: Option<u64>,
    pub(super) count: Option<u64>,
    pub(super) partial: bool,
    pub(super) owner: Option<String>,
    pub(super) exclude: Vec<String>,
}

impl GrantRequest {
    pub(super) fn into_ask(self, asked: Asked, token: Arc<str>, max_ttl: Duration) -> Result<Ask, BadField> {
        if let Some(session) = &self.session {
            return Err(BadField::new("session", session, "but this version has no sessions: leave it out"));
        }
        at_most("selectors", self.selectors.len(), MAX_SELECTORS)?;
        let selectors = self.selectors.iter().enumerate().map(|(at, given)| {
            let field = match asked {
                Asked::InJson => format!("selectors[{at}]"),
                Asked::InQuery => "query".to_owned(),
            };
            selector(&field, given)
        });
        let selectors = selectors.collect::<Result<_, _>>()?;
        let ttl = ttl(if asked == Asked::InJson { "ttlSeconds" } else { "ttl" }, self.ttl_seconds, max_ttl)?;
        let count = self.count.unwrap_or(1);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(BadField::new("count", count, format!("must be 1 to {MAX_COUNT}")));
        }
        at_most("exclude", self.exclude.len(), MAX_EXCLUDE)?;
        let exclude = self.exclude.iter().enumerate().map(|(at, text)| {
            ProxyKey::parse(text).map_err(|invalid| BadField::of_name(format!("exclude[{at}]"), &invalid))
        });
        Ok(Ask {
            selectors,
            target: target(self.target.as_deref())?,
            ttl,
            owner: self.owner.as_deref().map(owner).transpose()?,
            token,
            exclude: exclude.collect::<Result<_, _>>()?,
            count: usize::try_from(count).expect("at most 100"),
            partial: self.partial,
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct RenewRequest {
    ttl_seconds: Option<u64>,
    pub(super) generation: Option<u64>,
}

impl RenewRequest {
    pub(super) fn ttl(&self, max_ttl: Duration) -> Result<Duration, BadField> {
        ttl("ttlSeconds", self.ttl_seconds, max_ttl)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ReportRequest {
    outcome: String,
    target: Option<String>,
    /// For people who read traffic; nothing is decided by it.
    http_status: Option<u64>,
    /// As `httpStatus`.
    #[serde(rename = "latencyMs")]
    _latency_ms: Option<u64>,
    #[serde(default)]
    release: bool,
    generation: Option<u64>,
}

impl ReportRequest {
    pub(super) fn into_report(self) -> Result<Report, BadField> {
        let outcome = Outcome::parse(&self.outcome).ok_or_else(|| {
            let all: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
            BadField::new("outcome", &self.outcome, format!("must be one of {}", all.join(", ")))
        })?;
        if let Some(status) = self.http_status.filter(|status| !(100..=999).contains(status)) {
            return Err(BadField::new("httpStatus", status, "must be 100 to 999"));
        }
        Ok(Report {
            outcome,
            target: target(self.target.as_deref())?,
            release: self.release,
            generation: self.generation,
        })
    }
}

fn at_most(field: &str, given: usize, most: usize) -> Result<(), BadField> {
    if given <= most {
        return Ok(());
    }
    Err(BadField::bare(field, format!("{given} entries given, must be at most {most}")))
}

fn ttl(field: &str, given: Option<u64>, max: Duration) -> Result<Duration, BadField> {
    match given {
        None => Ok(DEFAULT_TTL.min(max)),
        Some(seconds) if (1..=max.as_secs()).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        Some(seconds) => {
            Err(BadField::new(field, seconds, format!("must be 1 to {} seconds (--max-lease-ttl)", max.as_secs())))
        }
    }
}

fn target(given: Option<&str>) -> Result<Option<Target>, BadField> {
    given.map(|text| Target::parse(text).map_err(|invalid| BadField::of_name("target", &invalid))).transpose()
}

pub(super) fn owner(given: &str) -> Result<Arc<str>, BadField> {
    let length = given.chars().count();
    if length == 0 || length > MAX_OWNER || given.chars().any(char::is_control) {
        let why = format!("must be 1 to {MAX_OWNER} printable characters");
        return Err(BadField::new("owner", given, why));
    }
    Ok(given.into())
}

fn as_map<S: serde::Serializer>(attributes: &Attributes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(attributes.iter())
}

fn selector(field: &str, given: &BTreeMap<String, String>) -> Result<Attributes, BadField> {
    at_most(field, given.len(), MAX_ATTRIBUTES)?;
    let mut selector = Attributes::new();
    for (key, value) in given {
        if RESERVED.contains(&key.as_str()) {
            let why = "as a key of a selector, but it is a parameter of the request: no Proxy has such an attribute";
            return Err(BadField::new(field, key, why));
        }
        if !is_attribute_key(key) {
            let why = "as a key of a selector, must be 1 to 63 letters, digits, `-`, `_`, `.` and `/`";
            return Err(BadField::new(field, key, why));
        }
        if value.chars().count() > MAX_ATTRIBUTE || value.chars().any(char::is_control) {
            let why = format!("must be at most {MAX_ATTRIBUTE} printable characters");
            return Err(BadField::new(format!("{field}.{key}"), value, why));
        }
        selector.insert(key.as_str().into(), value.as_str().into());
    }
    Ok(selector)
}

fn is_attribute_key(key: &str) -> bool {
    (1..=MAX_ATTRIBUTE).contains(&key.len())
        && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/'))
}

// --- answers ---------------------------------------------------------------------------------------------------------

/// Whether an answer may show a proxy's credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credentials {
    Shown,
    Hidden,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GrantBody {
    pub(super) leases: Vec<LeaseBody>,
    pub(super) selector_index: usize,
}

#[derive(Serialize)]
pub(super) struct LeaseList {
    pub(super) leases: Vec<LeaseBody>,
}

/// A lease as its holder sees it. Without `Debug`: it may hold a password.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LeaseBody {
    pub(super) id: String,
    generation: u64,
    state: &'static str,
    /// When the Proxy goes, whoever holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_by: Option<String>,
    pub(super) proxy: ProxyPart,
    #[serde(serialize_with = "as_map")]
    attributes: Arc<Attributes>,
    exit_ip: Option<Arc<str>>,
    target: Option<String>,
    owner: Option<Arc<str>>,
    issued_at: String,
    pub(super) expires_at: String,
    renew_after_seconds: u64,
}

#[derive(Serialize)]
pub(super) struct ProxyPart {
    name: String,
    pub(super) url: String,
    scheme: &'static str,
    host: Arc<str>,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    password: Option<String>,
}

impl LeaseBody {
    pub(super) fn new(lease: &Lease, credentials: Credentials, now: Now) -> Self {
        let offer = &lease.proxy;
        let (state, drain_by) = match lease.state {
            LeaseState::Active => ("active", None),
            LeaseState::Draining { by } => ("draining", by.map(|at| timestamp(now.wall_at(at)))),
        };
        let (username, password) = match (&offer.credentials, credentials) {
            (Some(known), Credentials::Shown) => {
                (Some(known.username.to_string()), Some(known.password.expose_secret().to_owned()))
            }
            (Some(_), Credentials::Hidden) | (None, _) => (None, None),
        };
        let endpoint = &offer.endpoint;
        let bare = endpoint.to_string();
        let url = match (&username, &password) {
            (Some(user), Some(password)) => {
                let at = endpoint.scheme.as_str().len() + "://".len();
                format!("{}{}:{}@{}", &bare[..at], userinfo(user), userinfo(password), &bare[at..])
            }
            _ => bare,
        };
        Self {
            id: lease.id.to_string(),
            generation: lease.generation,
            state,
            drain_by,
            proxy: ProxyPart {
                name: offer.key.to_string(),
                url,
                scheme: endpoint.scheme.as_str(),
                host: endpoint.host.clone(),
                port: endpoint.port,
                username,
                password,
            },
            attributes: offer.attributes.clone(),
            exit_ip: offer.exit_ip.clone(),
            target: lease.target.as_ref().map(ToString::to_string),
            owner: lease.owner.clone(),
            issued_at: timestamp(now.wall_at(lease.issued)),
            expires_at: timestamp(now.wall_at(lease.expires)),
            renew_after_seconds: lease.renew_after.as_secs().max(1),
        }
    }
}

/// Percent-encodes all but RFC 3986's unreserved characters, so that the URL also survives a shell.
fn userinfo(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

#[derive(Debug, Serialize)]
pub(super) struct ProxyList {
    pub(super) proxies: Vec<ProxyBody>,
}

/// A Proxy as everybody may see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyBody {
    name: String,
    phase: &'static str,
    reason: Option<&'static str>,
    message: Option<String>,
    provider: Option<String>,
    host: Option<String>,
    endpoint: Option<Arc<str>>,
    #[serde(serialize_with = "as_map")]
    attributes: Arc<Attributes>,
    max_leases: u32,
    leases: usize,
    /// For so many targets it rests; for all others it may be leased.
    cooling_targets: usize,
    /// When the last of them is free again.
    cooldown_until: Option<String>,
    exit_ip: Option<Arc<str>>,
    last_probe: Option<LastProbeBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LastProbeBody {
    at: String,
    ok: bool,
    latency_ms: u64,
    reason: Option<&'static str>,
}

impl ProxyBody {
    /// A row of the board and, if the book knows the same object, what is leased.
    pub(super) fn new(row: &Row, book: Option<&ProxyView>, now: Now) -> Self {
        let book = book.filter(|view| view.uid == row.uid);
        let why = row.why();
        Self {
            name: row.key.to_string(),
            phase: row.status.phase.as_str(),
            reason: why.map(|(reason, _)| reason),
            message: why.map(|(_, message)| message.to_owned()),
            provider: row.provider.as_ref().map(ToString::to_string),
            host: row.host.as_ref().map(ToString::to_string),
            endpoint: row.status.endpoint.clone(),
            attributes: row.attributes.clone(),
            max_leases: row.max_leases,
            leases: book.map_or(0, |view| view.leases),
            cooling_targets: book.map_or(0, |view| view.cooling_targets),
            cooldown_until: book.and_then(|view| view.cooldown_until).map(|at| timestamp(now.wall_at(at))),
            exit_ip: row.exit_ip.clone(),
            last_probe: row.last_probe.as_ref().map(|probe| LastProbeBody {
                at: timestamp(probe.at),
                ok: probe.ok,
                latency_ms: u64::try_from(probe.latency.as_millis()).unwrap_or(u64::MAX),
                reason: probe.reason.map(egress_actors::domain::reason::Reason::as_str),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_with_milliseconds() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_796_083_200_123_999);
        assert_eq!(timestamp(at), "2026-12-01T00:00:00.123Z");
    }

    #[test]
    fn a_password_cannot_change_what_a_url_means() {
        assert_eq!(userinfo("a-Z_0.9~"), "a-Z_0.9~");
        assert_eq!(userinfo("p@ss:w/rd%41?#ü"), "p%40ss%3Aw%2Frd%2541%3F%23%C3%BC");
        let url = url::Url::parse(&format!("http://u:{}@10.0.0.9:3128", userinfo("p@ss/"))).unwrap();
        assert_eq!((url.host_str(), url.port(), url.password()), (Some("10.0.0.9"), Some(3128), Some("p%40ss%2F")));
    }
}
