//! Whose fault it is when a look fails, why, and in which words.
//!
//! Pure. Status and errors before the tunnel is open are the proxy's (unless its answer tells of the target), those
//! after it are the target's (unless an interceptor shows). Trouble of our own machine (no descriptors, no ports) is
//! blamed on the target: it hits the whole fleet alike, and only target faults freeze when they do.
//!
//! What peers say is quoted in printable ASCII, bounded, and without the proxy's credentials.

use std::fmt::Write;
use std::io;

use egress_actors::domain::health::{Blame, Probe, ProbeFault};
use egress_actors::domain::reason::Reason;
use rustix::io::Errno;
use secrecy::ExposeSecret;

use super::Route;
use super::head::{Head, HeadError, LIMIT, is_closed};
use super::request::{authority, basic};
use crate::dns::DnsError;

#[cfg(test)]
mod tests;

/// Most characters of one quotation.
const QUOTED: usize = 120;

/// Names in `X-Squid-Error` of a 5xx that say: I tried, and the target did not work.
const TELLS_OF_TARGET: [&str; 8] = [
    "ERR_CONNECT_FAIL",
    "ERR_DNS_FAIL",
    "ERR_CANNOT_FORWARD",
    "ERR_READ_TIMEOUT",
    "ERR_READ_ERROR",
    "ERR_WRITE_ERROR",
    "ERR_ZERO_SIZE_OBJECT",
    "ERR_SECURE_CONNECT_FAIL",
];

/// Where a look is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Resolve,
    Dial,
    ProxyTls,
    /// CONNECT is sent, its answer is awaited.
    Connect,
    TargetTls,
    /// The request is sent, its answer is awaited.
    Answer,
}

/// Judges one look.
#[derive(Clone, Copy)]
pub(super) struct Verdict<'a> {
    pub(super) probe: &'a Probe,
    pub(super) route: Route,
}

impl Verdict<'_> {
    /// The deadline came in this phase.
    pub(super) fn overdue(self, phase: Phase) -> ProbeFault {
        let within = self.probe.timeout;
        let peer = self.peer();
        match (phase, self.route) {
            (Phase::Resolve, Route::Tunnel) => {
                proxy(Reason::ProxyNameNotResolved, format!("no address for {peer} within {within:?}"))
            }
            (Phase::Resolve, Route::Direct) => {
                target(Reason::TargetUnreachable, format!("no address for {peer} within {within:?}"))
            }
            (Phase::Dial, Route::Tunnel) => {
                proxy(Reason::ProxyTimeout, format!("no connection to {peer} within {within:?}"))
            }
            (Phase::Dial, Route::Direct) => {
                target(Reason::TargetTimeout, format!("no connection to {peer} within {within:?}"))
            }
            (Phase::ProxyTls, _) => {
                proxy(Reason::ProxyTimeout, format!("TLS with {peer} was not established within {within:?}"))
            }
            (Phase::Connect, _) => {
                let target = self.target();
                proxy(Reason::ProxyTimeout, format!("{peer} did not answer CONNECT {target} within {within:?}"))
            }
            (Phase::TargetTls, _) => {
                let name = self.target();
                target(Reason::TargetTimeout, format!("TLS with {name} was not established within {within:?}"))
            }
            (Phase::Answer, _) => {
                target(Reason::TargetTimeout, format!("{} did not answer the request within {within:?}", self.target()))
            }
        }
    }

    pub(super) fn not_resolved(self, error: &DnsError) -> ProbeFault {
        match self.route {
            Route::Tunnel => proxy(Reason::ProxyNameNotResolved, error.to_string()),
            Route::Direct => target(Reason::TargetUnreachable, error.to_string()),
        }
    }

    pub(super) fn not_dialled(self, error: &io::Error) -> ProbeFault {
        let peer = self.peer();
        if is_our_own(error) {
            let detail = format!("{peer} was not dialled, this machine is short of something: {error}");
            return target(Reason::Internal, detail);
        }
        let (reason, detail) = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                (Reason::ProxyConnectionRefused, format!("connection to {peer} refused: nothing listens there"))
            }
            io::ErrorKind::TimedOut => (Reason::ProxyTimeout, format!("no connection to {peer}: {error}")),
            _ if is_closed(error) => (Reason::ProxyClosed, format!("{peer} closed the connection at once: {error}")),
            _ => (Reason::ProxyUnreachable, format!("{peer} cannot be reached: {error}")),
        };
        match self.route {
            Route::Tunnel => proxy(reason, detail),
            Route::Direct => target(
                match reason {
                    Reason::ProxyTimeout => Reason::TargetTimeout,
                    Reason::ProxyClosed => Reason::TargetClosed,
                    _ => Reason::TargetUnreachable,
                },
                detail,
            ),
        }
    }

    /// No certificate can be for this name.
    pub(super) fn no_server_name(self, phase: Phase) -> ProbeFault {
        if phase == Phase::ProxyTls {
            return proxy(Reason::ProxyTLSFailed, format!("the host of {} is no name for TLS", self.peer()));
        }
        target(Reason::TargetTLSFailed, format!("the host of {} is no name for TLS", self.target()))
    }

    /// The connection broke, or TLS on it did.
    pub(super) fn lost(self, phase: Phase, error: &io::Error) -> ProbeFault {
        let of_proxy = matches!(phase, Phase::ProxyTls | Phase::Connect);
        let peer = if of_proxy { self.peer() } else { self.target() };
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            let detail = format!("TLS with {peer} failed: {}{}", self.quoted(tls.to_string().as_bytes()), hint(tls));
            return if of_proxy {
                proxy(Reason::ProxyTLSFailed, detail)
            } else {
                target(Reason::TargetTLSFailed, detail)
            };
        }
        if is_our_own(error) {
            return target(Reason::Internal, format!("the probe of {peer} broke on this machine: {error}"));
        }
        let detail = format!("{peer} closed the connection {}: {error}", moment(phase));
        if of_proxy { proxy(Reason::ProxyClosed, detail) } else { target(Reason::TargetClosed, detail) }
    }

    /// No answer that can be read.
    pub(super) fn no_head(self, phase: Phase, error: &HeadError) -> ProbeFault {
        let of_proxy = phase == Phase::Connect;
        let peer = if of_proxy { self.peer() } else { self.target() };
        let (of_theirs, of_targets, detail) = match error {
            HeadError::Io(error) => return self.lost(phase, error),
            HeadError::Closed(came) => (
                Reason::ProxyClosed,
                Reason::TargetClosed,
                format!("{peer} closed the connection {} after {came} bytes", moment(phase)),
            ),
            HeadError::TooLong => (
                Reason::ProxyGarbage,
                Reason::TargetStatus,
                format!("the head of the answer of {peer} is over {LIMIT} bytes or 100 fields"),
            ),
            HeadError::Garbage(came) => (
                Reason::ProxyGarbage,
                Reason::TargetStatus,
                // A TLS record: handshake or alert.
                if matches!(came[..], [0x15 | 0x16, 3, ..]) {
                    format!("{peer} answers in TLS: its scheme is https")
                } else {
                    format!("the answer of {peer} is not HTTP: `{}`", self.quoted(came))
                },
            ),
        };
        if of_proxy { proxy(of_theirs, detail) } else { target(of_targets, detail) }
    }

    /// The answer to CONNECT is not a success.
    pub(super) fn refused(self, head: Head, buffer: &[u8]) -> ProbeFault {
        let squid = head.field(buffer, "x-squid-error").map(|said| self.quoted(said));
        let line = self.quoted(head.status_line(buffer));
        let mut detail = format!("CONNECT {} was answered `{line}`", self.target());
        if let Some(squid) = &squid {
            let _ = write!(detail, ", X-Squid-Error `{squid}`");
        }
        let told = squid.as_deref().and_then(|said| said.split(' ').next());
        match (head.status, told) {
            (403, _) => proxy(Reason::ProxyDenied, detail),
            (407, _) => {
                detail.push_str(if self.probe.credentials.is_some() {
                    ": it does not take the credentials"
                } else {
                    ": it wants credentials and none are named"
                });
                proxy(Reason::ProxyAuthRequired, detail)
            }
            (300..400 | 511, _) => {
                if let Some(to) = head.field(buffer, "location") {
                    let _ = write!(detail, ", Location `{}`", self.quoted(to));
                }
                proxy(Reason::ProxyIntercepts, detail)
            }
            (500..600, Some(name)) if TELLS_OF_TARGET.contains(&name) => target(Reason::TargetUnreachable, detail),
            (502 | 504, None) => target(Reason::TargetUnreachable, detail),
            _ => proxy(Reason::ProxyError, detail),
        }
    }

    /// The answer to the request has a status that was not expected.
    pub(super) fn unexpected(self, head: Head, buffer: &[u8]) -> ProbeFault {
        let line = self.quoted(head.status_line(buffer));
        let expected: Vec<String> = self.probe.expect_status.iter().map(u16::to_string).collect();
        let expected = expected.join(" or ");
        let mut detail = format!("{} answered `{line}`, expected {expected}", self.target());
        if let Some(to) = head.field(buffer, "location") {
            let _ = write!(detail, ", Location `{}`", self.quoted(to));
        }
        // Behind TLS that verified, the target itself speaks. Without, a portal answers in its name.
        let redirect = matches!(head.status, 300..400 | 511);
        if redirect && self.route == Route::Tunnel && self.probe.target.scheme() == "http" {
            return proxy(Reason::ProxyIntercepts, detail);
        }
        target(Reason::TargetStatus, detail)
    }

    /// Whom we dial.
    fn peer(self) -> String {
        match self.route {
            Route::Tunnel => format!("proxy {}", self.probe.endpoint),
            Route::Direct => self.target(),
        }
    }

    fn target(self) -> String {
        authority(&self.probe.target).map_or_else(String::new, |(host, port)| format!("{host}:{port}"))
    }

    /// Foreign words, safe to show. The credentials go first: a cut might leave a part of them.
    fn quoted(self, said: &[u8]) -> String {
        let mut said: String =
            String::from_utf8_lossy(said).chars().map(|c| if c.is_ascii_graphic() { c } else { ' ' }).collect();
        if let Some(credentials) = &self.probe.credentials {
            for secret in [&*basic(credentials), credentials.password.expose_secret()] {
                if !secret.is_empty() {
                    said = said.replace(secret, "[redacted]");
                }
            }
        }
        let said = said.trim();
        said.char_indices().nth(QUOTED).map_or_else(|| said.to_owned(), |(end, _)| format!("{}...", &said[..end]))
    }
}

/// The target's URL names no host; what accepts targets should have refused it.
pub(super) fn no_target() -> ProbeFault {
    target(Reason::ConfigInvalid, "the probe target names no host and port: use an http or https URL".to_owned())
}

fn proxy(reason: Reason, detail: String) -> ProbeFault {
    ProbeFault { blame: Blame::Proxy, reason, detail }
}

fn target(reason: Reason, detail: String) -> ProbeFault {
    ProbeFault { blame: Blame::Target, reason, detail }
}

fn moment(phase: Phase) -> &'static str {
    match phase {
        Phase::Resolve | Phase::Dial => "at once",
        Phase::ProxyTls | Phase::TargetTls => "in the TLS handshake",
        Phase::Connect => "without an answer to CONNECT",
        Phase::Answer => "without an answer to the request",
    }
}

/// What a person should think of first.
fn hint(error: &rustls::Error) -> &'static str {
    use rustls::{CertificateError, Error};
    match error {
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer
            | CertificateError::NotValidForName
            | CertificateError::NotValidForNameContext { .. },
        ) => " (somebody in between shows a certificate of its own, or the certificate is private)",
        Error::InvalidMessage(_) => " (the peer does not speak TLS there)",
        _ => "",
    }
}

/// Trouble of this machine, which says nothing of the peer.
fn is_our_own(error: &io::Error) -> bool {
    const OURS: [Errno; 7] =
        [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL, Errno::PERM, Errno::ACCESS];
    Errno::from_io_error(error).is_some_and(|errno| OURS.contains(&errno))
}
