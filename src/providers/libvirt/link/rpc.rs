//! One call of libvirt: what it is called in the log, and what is wrong when it fails.

use std::fmt::{self, Display};
use std::time::Instant;

use virt::connect::Connect;
use virt::error::Error;

use super::ffi::Connection;

/// The longest text of libvirt's that we pass on: its beginning and its end, as QEMU's cause is the last of a long command.
const LONGEST: usize = 600;

/// No part of libvirt's (`VIR_FROM_NONE`): what we say ourselves.
const OURS: u32 = 0;

/// An error that libvirt answered with, made fit for one line of a status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// As in the C library: `virDomainDefineXML`.
    pub rpc: &'static str,
    /// `virErrorNumber`.
    pub code: u32,
    /// `virErrorDomain`: which part of libvirt says so.
    pub domain: u32,
    /// One line, bounded, without control characters (fault 46).
    pub message: String,
}

impl RpcError {
    pub fn new(rpc: &'static str, error: &Error) -> Self {
        Self { rpc, code: error.code().to_raw(), domain: error.domain().to_raw(), message: one_line(error.message()) }
    }

    /// libvirt's answer cannot be used.
    pub fn unreadable(rpc: &'static str, why: &str) -> Self {
        Self { rpc, code: 1, domain: OURS, message: one_line(why) }
    }

    /// It is ours, about an answer that cannot be used.
    pub fn is_unreadable(&self) -> bool {
        self.domain == OURS
    }

    /// As libvirt itself says it of a call that needs the pool.
    pub fn inactive_pool(pool: &str) -> Self {
        let message = one_line(&format!("storage pool '{pool}' is not active"));
        Self { rpc: "virStoragePoolIsActive", code: 55, domain: 18, message }
    }

    /// The connection broke, or was cut: it says nothing about the host's objects. Code 38 or 1 of the RPC layer (7), or of
    /// the remote driver (13) (faults 15, 23).
    pub fn is_broken_connection(&self) -> bool {
        const INTERNAL_ERROR: u32 = 1;
        const INVALID_CONN: u32 = 6;
        const SYSTEM_ERROR: u32 = 38;
        const RPC_ERROR: u32 = 39;
        match self.domain {
            7 | 13 => matches!(self.code, INTERNAL_ERROR | INVALID_CONN | SYSTEM_ERROR | RPC_ERROR),
            _ => self.code == INVALID_CONN,
        }
    }
}

impl Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (libvirt code {})", self.rpc, self.message, self.code)
    }
}

/// Since then, in milliseconds with their thousandths.
pub(super) fn milliseconds(begun: Instant) -> f64 {
    (begun.elapsed().as_secs_f64() * 1e6).round() / 1000.0
}

/// Its middle is left out past a bound, and there are blanks for whatever would break a line.
pub fn one_line(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() || c == char::REPLACEMENT_CHARACTER { ' ' } else { c });
    let words: String = plain.collect();
    let mut line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > LONGEST {
        let head = (0..=LONGEST / 2).rev().find(|at| line.is_char_boundary(*at)).unwrap_or(0);
        let tail = (line.len() - LONGEST / 2..line.len()).find(|at| line.is_char_boundary(*at)).unwrap_or(line.len());
        line = [&line[..head], &line[tail..]].join(" .. ");
    }
    line
}

/// A libvirt connection as the work of a lane sees it.
#[derive(Debug)]
pub struct Libvirt<'a> {
    pub(super) connection: &'a Connection,
    pub(super) provider: &'a str,
    pub(super) host: &'a str,
    pub(super) lane: &'static str,
}

impl Libvirt<'_> {
    /// One RPC, with its line in the log. `about` is what it is about: a domain, a volume, a pool.
    pub fn rpc<T>(
        &self,
        rpc: &'static str,
        about: &str,
        call: impl FnOnce(&Connect) -> Result<T, Error>,
    ) -> Result<T, RpcError> {
        let begun = Instant::now();
        let result = call(self.connection).map_err(|error| RpcError::new(rpc, &error));
        self.log(rpc, about, begun, result.as_ref().err());
        result
    }

    /// Of a call that is made of parts.
    pub fn log(&self, rpc: &'static str, about: &str, begun: Instant, error: Option<&RpcError>) {
        let (provider, host, lane) = (self.provider, self.host, self.lane);
        let ms = milliseconds(begun);
        match error {
            None => tracing::debug!(rpc, provider, host, lane, about, durationMs = ms, "libvirt call"),
            Some(error) => tracing::debug!(
                rpc,
                provider,
                host,
                lane,
                about,
                durationMs = ms,
                libvirtError = error.message,
                libvirtCode = error.code,
                "libvirt call"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_libvirt_is_one_line_of_bounded_length() {
        assert_eq!(one_line("cannot start\n\tbridge\u{0} \u{fffd}x  "), "cannot start bridge x");
        let long = one_line(&["begin", &"ä".repeat(1000), "end"].concat());
        assert!(long.len() <= LONGEST + 4 && long.starts_with("begin") && long.ends_with("end"), "{long}");
        let fits = "x".repeat(LONGEST);
        assert_eq!(one_line(&fits), fits);
    }
}
