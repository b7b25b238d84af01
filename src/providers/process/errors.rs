//! From what the operating system and Squid say to what the caller is to do about it.
//!
//! The one place of this provider that decides a class.

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
