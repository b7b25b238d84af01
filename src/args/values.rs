//! The single values of the command line: each says what is wrong with it in words that fit behind the flag's name.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use egress_actors::domain::id::{InvalidName, OperatorId, ProxyKey};
use secrecy::{ExposeSecret, SecretString};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Longer than any sense, and short enough that adding it to an instant cannot overflow.
const LONGEST: Duration = Duration::from_hours(366 * 24);

/// Reads `15s`, `10m`, `1h30m`, `500ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| "not a duration; write it like 15s, 10m, 1h30m or 500ms".to_owned())?;
    let parsed = Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())?;
    if parsed > LONGEST { Err("longer than a year".to_owned()) } else { Ok(parsed) }
}

pub(super) fn operator_id(text: &str) -> Result<OperatorId, InvalidName> {
    OperatorId::parse(text)
}

pub(super) fn namespace(text: &str) -> Result<String, String> {
    match ProxyKey::new(text, "any") {
        Ok(_) => Ok(text.to_owned()),
        Err(refused) => Err(refused.why.to_owned()),
    }
}

/// Where to listen: `:PORT`, `ADDRESS:PORT`, `[ADDRESS]:PORT` or `localhost:PORT`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ListenAddr(SocketAddr);

impl ListenAddr {
    /// The address as asked for; `:PORT` is every IPv4 address.
    pub const fn wished(self) -> SocketAddr {
        self.0
    }

    /// The same port on loopback only, and whether that is less than what was asked for.
    pub fn on_loopback(self) -> (SocketAddr, bool) {
        match self.0.ip() {
            ip if ip.is_loopback() => (self.0, false),
            IpAddr::V6(ip) if !ip.is_unspecified() => {
                (SocketAddr::new(Ipv6Addr::LOCALHOST.into(), self.0.port()), true)
            }
            _ => (SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.0.port()), true),
        }
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write it as :PORT, ADDRESS:PORT or [IPV6]:PORT";
        if let Ok(whole) = text.parse::<SocketAddr>() {
            return Ok(Self(whole));
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(format!("no port; {FORM}"));
        };
        // u16::from_str takes a leading `+`, which nobody means.
        let port = if port.bytes().all(|b| b.is_ascii_digit()) { port.parse::<u16>().ok() } else { None };
        let port = port.ok_or_else(|| format!("the port is not a number from 0 to 65535; {FORM}"))?;
        let host = match host {
            "" => Ipv4Addr::UNSPECIFIED,
            "localhost" => Ipv4Addr::LOCALHOST,
            _ => return Err(format!("`{host}` is not an IP address (names are not looked up); {FORM}")),
        };
        Ok(Self(SocketAddr::new(host.into(), port)))
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A URL that nobody has looked at yet: it may hold a password, so it neither shows in `Debug` nor in clap's errors.
#[derive(Clone, PartialEq, Eq)]
pub struct UncheckedUrl(pub(crate) String);

impl From<String> for UncheckedUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for UncheckedUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UncheckedUrl(..)")
    }
}

/// Where leases are written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseJournal {
    /// In memory only.
    None,
    File(PathBuf),
}

impl From<OsString> for LeaseJournal {
    fn from(text: OsString) -> Self {
        if text == "none" { Self::None } else { Self::File(text.into()) }
    }
}

/// The crates whose lines are the operator's log. A target names what begins with it.
const OURS: [&str; 2] = ["egress_operator", "egress_actors"];

/// That this part of a filter says something about our own lines: a level for all targets, or a target of ours. One
/// with a span (`[..]`) does so only inside of it.
fn shows_us(part: &str) -> bool {
    let target = part.split_once('=').map_or(part, |(target, _)| target);
    LevelFilter::from_str(part).is_ok()
        || OURS.iter().any(|ours| ours.starts_with(target) || target.strip_prefix(ours).is_some_and(is_module))
}

fn is_module(rest: &str) -> bool {
    rest.starts_with("::") && !rest.contains('[')
}

/// A filter of log lines that is known to parse, and that does not silence the operator by leaving it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// That of `--log-level`.
impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "write error, warn, info, debug, trace or off, or a filter such as info,egress_operator=debug";
        let text = text.trim();
        if text.is_empty() {
            return Err(format!("empty; {FORM}"));
        }
        // EnvFilter reads a lone unknown word as a target and then shows everything of it and nothing else, so that
        // `--log-level verbose` would be silence.
        let bare_word = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric());
        if let Some(word) = text.split(',').map(str::trim).find(|p| bare_word(p) && LevelFilter::from_str(p).is_err()) {
            return Err(format!("`{word}` is not a level; {FORM}"));
        }
        if EnvFilter::builder().parse(text).is_err() {
            return Err(format!("not a filter; {FORM}"));
        }
        if !text.split(',').map(str::trim).any(shows_us) {
            return Err(format!(
                "nothing of this operator would be logged: begin with a level, as in info,{text}, or name {} or {}",
                OURS[0], OURS[1]
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The bearer tokens, from the environment only.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// `DISCOVERY_TOKEN`, for the lease API.
    pub discovery: Option<SecretString>,
    /// `ADMIN_TOKEN`, for `/admin`.
    pub admin: Option<SecretString>,
}

impl Tokens {
    /// Reads this process's environment.
    pub fn from_env() -> Result<Self, BadToken> {
        Self::read(|name| std::env::var_os(name))
    }

    /// Reads the tokens through `lookup`. A variable that is set and unusable is an error: taken for "no token" it would
    /// open what somebody meant to close.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, BadToken> {
        let token = |variable: &'static str| match lookup(variable) {
            None => Ok(None),
            Some(value) => {
                let value = value.into_string().map_err(|_| BadToken { variable, why: "is not UTF-8" })?;
                checked_token(variable, value.into()).map(Some)
            }
        };
        Ok(Self { discovery: token("DISCOVERY_TOKEN")?, admin: token("ADMIN_TOKEN")? })
    }
}

fn checked_token(variable: &'static str, token: SecretString) -> Result<SecretString, BadToken> {
    let text = token.expose_secret();
    if text.is_empty() {
        Err(BadToken { variable, why: "is empty" })
    } else if !text.bytes().all(|b| b.is_ascii_graphic()) {
        // An HTTP header could not carry it, so that no client would ever get in.
        Err(BadToken {
            variable,
            why: "holds white space or characters that are not plain ASCII (a newline at its end?)",
        })
    } else {
        Ok(token)
    }
}

/// A token that nobody could use. The text never holds the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {why}; set it to a token of visible ASCII characters, or unset it")]
pub struct BadToken {
    pub variable: &'static str,
    pub why: &'static str,
}
