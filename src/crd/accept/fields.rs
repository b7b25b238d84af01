//! Single fields: numbers in a range, durations, URLs, names, attributes. Each knows its limits and its way out.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::desired::{Attributes, Endpoint, Scheme};
use egress_actors::domain::id::ProxyKey;
use egress_actors::domain::words;
use url::{Host, Url};

use super::{Rejection, duration};

/// Longest part of a given value that a message repeats.
const SHOWN_MAX: usize = 64;

/// The query keys of the lease API that are not attributes (contract.md 5).
const RESERVED: [&str; 7] = ["target", "ttl", "session", "count", "partial", "owner", "exclude"];

const ATTRIBUTES_MAX: usize = 32;
const ATTRIBUTE_VALUE_MAX: usize = 63;
/// An image may be a URL.
const PLACEMENT_MAX: usize = 2048;
const URL_MAX: usize = 2048;

/// What was given, in backticks: one line, short, without control characters.
pub fn shown(text: &str) -> String {
    let mut out = String::from("`");
    for (i, c) in text.chars().enumerate() {
        if i == SHOWN_MAX {
            out.push('…');
            break;
        }
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out.push('`');
    out
}

/// A URL with everything between the scheme and its last `@` replaced: passwords may hold any character.
pub fn without_userinfo(text: &str) -> String {
    let Some(at) = text.rfind('@') else { return text.to_owned() };
    let start = text.find("://").map_or(0, |i| i + 3).min(at);
    format!("{}***{}", &text[..start], &text[at..])
}

pub(super) fn number<T>(field: &str, given: Option<i64>, default: T, range: RangeInclusive<T>) -> Result<T, Rejection>
where
    T: TryFrom<i64> + PartialOrd + Display + Copy,
{
    let Some(given) = given else { return Ok(default) };
    T::try_from(given).ok().filter(|value| range.contains(value)).ok_or_else(|| {
        let message = format!("{given} given, must be {} to {} (default {default})", range.start(), range.end());
        Rejection::new(field, message)
    })
}

pub(super) fn duration_at_least(
    field: &str,
    text: &str,
    least: Duration,
    least_text: &str,
) -> Result<Duration, Rejection> {
    match duration::parse(text) {
        None => Err(Rejection::new(field, format!("{} given, is not a duration: {}", shown(text), duration::SHAPE))),
        Some(value) if value < least => {
            Err(Rejection::new(field, format!("{} given, must be at least {least_text}", shown(text))))
        }
        Some(value) => Ok(value),
    }
}

/// `http` or `https`, and nothing that would be a secret in the open.
fn web_url(field: &str, text: &str, credentials_go: &str) -> Result<Url, Rejection> {
    let refused = |why: &str| Rejection::new(field, format!("{} given, {why}", shown(&without_userinfo(text))));
    // The parser drops tabs and line breaks silently: what was written is not what would be used.
    if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(refused("has spaces or control characters: remove them"));
    }
    if text.chars().count() > URL_MAX {
        return Err(refused(&format!("must be at most {URL_MAX} characters")));
    }
    let url = Url::parse(text)
        .map_err(|e| refused(&format!("is not a URL ({e}): write it like `http://203.0.113.7:3128`")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() || text.contains('@') {
        return Err(refused(credentials_go));
    }
    Ok(url)
}

/// Where a bought proxy listens.
pub(super) fn endpoint(field: &str, text: &str) -> Result<Endpoint, Rejection> {
    let url = web_url(
        field,
        text,
        "must not hold user and password: put them into a Secret and name it in credentialsSecretRef",
    )?;
    let refused = |why: &str| Rejection::new(field, format!("{} given, {why}", shown(text)));
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(refused("must end after the port: a proxy has no path, query or fragment"));
    }
    let host: Arc<str> = match url.host() {
        Some(Host::Domain(name)) => words::shared(name),
        Some(Host::Ipv4(address)) => words::shared(&address.to_string()),
        Some(Host::Ipv6(address)) => words::shared(&address.to_string()),
        None => return Err(refused("has no host: write it like `http://203.0.113.7:3128`")),
    };
    let port = url.port_or_known_default().filter(|&port| port != 0);
    let port = port.ok_or_else(|| refused("has port 0: give the port where the proxy listens, 1 to 65535"))?;
    let scheme = if url.scheme() == "https" { Scheme::Https } else { Scheme::Http };
    Ok(Endpoint { scheme, host, port })
}

/// What is fetched through the proxy.
pub(super) fn target(field: &str, text: &str) -> Result<Arc<Url>, Rejection> {
    let url = web_url(field, text, "must not hold user and password: a probe target has to answer without them")?;
    if url.port() == Some(0) {
        return Err(Rejection::new(field, format!("{} given, has port 0: give one of 1 to 65535", shown(text))));
    }
    Ok(Arc::new(url))
}

pub(super) fn object_name(field: &str, text: &str) -> Result<Arc<str>, Rejection> {
    // A Secret's name follows the same rules as a Proxy's.
    match ProxyKey::new("default", text) {
        Ok(_) => Ok(text.into()),
        Err(e) => Err(Rejection::new(field, format!("{} {}", shown(text), e.why))),
    }
}

pub(super) fn secret_key(field: &str, text: &str) -> Result<Arc<str>, Rejection> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if text.is_empty() || text.len() > 253 || !text.bytes().all(allowed) {
        let message = format!("{} given, must be 1 to 253 letters, digits, `-`, `_` and `.`", shown(text));
        return Err(Rejection::new(field, message));
    }
    Ok(text.into())
}

pub(super) fn placement_part(field: &str, given: Option<&str>) -> Result<Option<Arc<str>>, Rejection> {
    let Some(text) = given else { return Ok(None) };
    let bad =
        text.is_empty() || text.chars().count() > PLACEMENT_MAX || text.chars().any(|c| c.is_control() || c == ' ');
    if bad {
        let message = format!(
            "{} given, must be 1 to {PLACEMENT_MAX} characters without spaces: name one of the provider's, or leave it out",
            shown(text)
        );
        return Err(Rejection::new(field, message));
    }
    Ok(Some(text.into()))
}

pub(super) fn attributes(field: &str, given: &BTreeMap<String, String>) -> Result<Attributes, Rejection> {
    if given.len() > ATTRIBUTES_MAX {
        let message = format!("{} entries given, must be at most {ATTRIBUTES_MAX}", given.len());
        return Err(Rejection::new(field, message));
    }
    let mut accepted = Attributes::new();
    for (key, value) in given {
        let at = format!("{field}[{}]", shown(key).trim_matches('`'));
        if RESERVED.contains(&key.as_str()) {
            return Err(Rejection::new(at, "this key is a parameter of the lease API: name the attribute otherwise"));
        }
        if !is_label_like(key) {
            return Err(Rejection::new(
                at,
                "a key must be 1 to 63 letters, digits, `-`, `_`, `.` and `/`, and start and end with a letter or digit",
            ));
        }
        if value.chars().count() > ATTRIBUTE_VALUE_MAX || value.chars().any(char::is_control) {
            let message = format!(
                "{} given, must be at most {ATTRIBUTE_VALUE_MAX} characters and none of them a control character",
                shown(value)
            );
            return Err(Rejection::new(at, message));
        }
        accepted.insert(words::shared(key), words::shared(value));
    }
    Ok(accepted)
}

/// `^[a-z0-9A-Z]([-a-z0-9A-Z_./]{0,61}[a-z0-9A-Z])?$`
fn is_label_like(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.len() <= 63
        && bytes.iter().all(|&b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/'))
}
