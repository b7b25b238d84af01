//! From what the operating system and Squid say to what the caller is to do about it.
//!
//! The one place of this provider that decides a class. Never lets more than a line of Squid's words through.

use std::io;
use std::path::Path;

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::reason::Reason;

/// A file operation failed. Full and closed disks get better by themselves or by a person; the spec is not at fault.
pub(super) fn file(doing: &str, path: &Path, error: &io::Error) -> OpError {
    let reason = match error.kind() {
        io::ErrorKind::PermissionDenied => Reason::Forbidden,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::StorageFull,
        io::ErrorKind::NotFound => Reason::StorageNotFound,
        _ => Reason::Internal,
    };
    OpError::transient(reason, format!("cannot {doing} `{}`: {error}", path.display()))
}

pub(super) fn proc(doing: &str, error: &procfs::ProcError) -> OpError {
    OpError::transient(Reason::Internal, format!("cannot {doing} in /proc: {error}"))
}

/// What is in our place is not ours.
pub(super) fn conflict(detail: String) -> OpError {
    OpError::permanent(Reason::NameConflict, detail)
}

pub(super) fn binary_missing(binary: &Path, why: &str) -> OpError {
    OpError::permanent(
        Reason::BinaryMissing,
        format!(
            "squid at `{}` {why}: install the package `squid` (Debian, Ubuntu, Fedora), or set `binary` of the entry",
            binary.display()
        ),
    )
}

/// Squid's own words about its end: the last line that tells of one, without the time stamp.
pub(super) fn words_of_squid(log: &str) -> Option<String> {
    /// Longer lines are cut: one sentence fits.
    const LONGEST: usize = 300;
    let telling = ["FATAL", "Bungled", "ERROR", "unrecognized", "error while loading", "not found"];
    let line = telling.iter().find_map(|word| log.lines().rev().find(|line| line.contains(word)))?;
    let said = match line.split_once("| ") {
        Some((stamp, said)) if stamp.starts_with(|c: char| c.is_ascii_digit()) => said,
        _ => line,
    };
    Some(said.trim().chars().filter(|c| !c.is_control()).take(LONGEST).collect())
}

/// A limit of ours passed. A look had no effect; a change may have one.
pub(super) fn late(changes: bool, what: &str) -> OpError {
    let detail = format!("{what} did not end in time: is the disk of the state directory well?");
    OpError::new(class_of(changes), Reason::Timeout, detail)
}

/// A step panicked, or the runtime ends.
pub(super) fn broken_off(changes: bool, what: &str, why: &tokio::task::JoinError) -> OpError {
    OpError::new(class_of(changes), Reason::Internal, format!("{what} broke off: {why}"))
}

fn class_of(changes: bool) -> Class {
    if changes { Class::EffectUnknown } else { Class::Transient }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_line_that_tells_why() {
        let check = |log: &str, words: Option<&str>| assert_eq!(words_of_squid(log).as_deref(), words, "{log}");
        check("", None);
        check("2026/12/02 01:19:07| Finished loading MIME types and icons.\n", None);
        check(
            "2026/12/02 01:19:36| aclParseIpData: unknown netmask\n2026/12/02 01:19:36| FATAL: Bungled b.conf line 22: acl\n\
             2026/12/02 01:19:36| Squid Cache: Terminated abnormally.\nCPU Usage: 0.006\n",
            Some("FATAL: Bungled b.conf line 22: acl"),
        );
        check("FATAL: cannot open\n", Some("FATAL: cannot open"));
        check("2026/12/02 01:19:36| b.conf(22): unrecognized: 'bogus'", Some("b.conf(22): unrecognized: 'bogus'"));
    }

    #[test]
    fn the_words_are_bounded() {
        let words = words_of_squid(&format!("FATAL: {}", "x".repeat(100_000))).expect("a telling line");
        assert_eq!(words.len(), 300);
    }
}
