//! The single values of such an entry: what a text means, or that it means nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

use url::Url;

const SSH_PORT: u16 = 22;
/// A path of a Unix socket has room for 108 bytes, the end among them.
pub(super) const LONGEST_SOCKET: usize = 107;

/// An http or https URL without a user, and without a fragment, which nobody sends. The text may hold a password, so no
/// error quotes it.
pub(super) fn http_url(text: &str) -> Result<Url, &'static str> {
    const FORM: &str = "not an http or https URL; write it like https://images.example.com/debian-13.qcow2";
    let mut url = Url::parse(text).map_err(|_| FORM)?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return Err(FORM);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "a user or password in a URL would be shown; images are fetched without, so put it where none is needed",
        );
    }
    url.set_fragment(None);
    Ok(url)
}

pub(super) fn digest(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, at) in digest.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

/// `host`, `host:port`, `v4:port`, `v6`, `[v6]`, `[v6]:port`; the address without brackets, a name in lower case.
pub(super) fn address(text: &str) -> Option<(String, u16)> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Some((text.to_owned(), SSH_PORT));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, behind) = rest.split_once(']')?;
        let inside = inside.parse::<Ipv6Addr>().ok()?;
        let port = if behind.is_empty() { SSH_PORT } else { port(behind.strip_prefix(':')?)? };
        return Some((inside.to_string(), port));
    }
    let (host, port) = match text.split_once(':') {
        Some((host, digits)) => (host, port(digits)?),
        None => (text, SSH_PORT),
    };
    let numbers = !host.is_empty() && host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let good = if numbers { host.parse::<Ipv4Addr>().is_ok() } else { is_host(host) };
    good.then(|| (host.to_ascii_lowercase(), port))
}

fn port(digits: &str) -> Option<u16> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|port| plain && *port > 0)
}

fn is_host(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let label =
        |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(plain) && !label.starts_with('-');
    text.len() <= 253 && text.split('.').all(label)
}

/// libvirt takes nearly all; a `/` it refuses, and what cannot be seen is nobody's wish.
pub(super) fn is_libvirt_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 128 && text.trim() == text && !text.chars().any(|c| c == '/' || c.is_control())
}

pub(super) fn is_socket(text: &str) -> bool {
    text.starts_with('/') && text.len() <= LONGEST_SOCKET && !text.chars().any(char::is_control)
}

/// A number of bytes, with or without a unit of Kubernetes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit: u64 = match &text[digits..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}
