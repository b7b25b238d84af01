//! What a probe says, in HTTP/1.1.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use egress_actors::domain::instance::Credentials;
use secrecy::ExposeSecret;
use url::{Position, Url};

/// Host (an IPv6 address in brackets) and port of a target.
pub(super) fn authority(target: &Url) -> Option<(&str, u16)> {
    Some((target.host_str()?, target.port_or_known_default()?))
}

/// Asks a proxy for a tunnel.
pub(super) fn connect(host: &str, port: u16, credentials: Option<&Credentials>) -> String {
    let (name, token, end) = match credentials {
        Some(credentials) => ("Proxy-Authorization: Basic ", basic(credentials), "\r\n"),
        None => ("", String::new(), ""),
    };
    format!(
        "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: egress-probe\r\n{name}{token}{end}\r\n"
    )
}

/// Asks the target. A parsed URL holds no control character, so none of its parts can end a line.
pub(super) fn get(target: &Url) -> String {
    let path = &target[Position::BeforePath..Position::AfterQuery];
    let host = &target[Position::BeforeHost..Position::AfterPort];
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: egress-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
}

/// The token of `Basic` (RFC 7617).
pub(super) fn basic(credentials: &Credentials) -> String {
    STANDARD.encode(format!("{}:{}", credentials.username, credentials.password.expose_secret()))
}
