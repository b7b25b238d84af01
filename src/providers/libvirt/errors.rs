//! From what a host says, or does not say, to what the caller is to do about it.
//!
//! The one place of this provider that decides a class.

use std::time::Duration;

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::reason::Reason;

use super::link::rpc::RpcError;
use super::link::{LinkError, Unanswered};

/// libvirt's error numbers (`virErrorNumber`) that mean something to us.
pub(super) mod code {
    pub const CONFIG_UNSUPPORTED: u32 = 67;
    pub const INVALID_ARG: u32 = 8;
    pub const OPERATION_FAILED: u32 = 9;
    pub const NO_DOMAIN: u32 = 42;
    pub const NO_NETWORK: u32 = 43;
    pub const AUTH_FAILED: u32 = 45;
    pub const NO_STORAGE_POOL: u32 = 49;
    pub const NO_STORAGE_VOL: u32 = 50;
    pub const OPERATION_INVALID: u32 = 55;
    pub const AUTH_CANCELLED: u32 = 79;
    pub const STORAGE_VOL_EXIST: u32 = 90;
    pub const ACCESS_DENIED: u32 = 88;
    pub const AUTH_UNAVAILABLE: u32 = 94;
}

/// Whether a call that was sent may have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Possible,
}

/// What a call was about, for the texts.
#[derive(Debug, Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) host: &'a str,
    pub(super) pool: &'a str,
    pub(super) network: &'a str,
    pub(super) user: &'a str,
}

pub(super) fn conflict(what: &str) -> OpError {
    let detail = format!("{what} is there and is not ours: it is not touched; rename or remove it on the host");
    OpError::permanent(Reason::NameConflict, detail)
}

/// `doing`: what was tried, after "cannot".
pub(super) fn of(about: About<'_>, doing: &str, effect: Effect, error: LinkError) -> OpError {
    let host = about.host;
    match error {
        LinkError::NoLink(error) => error,
        LinkError::Wedged => OpError::transient(
            Reason::Wedged,
            format!(
                "host `{host}` is left alone: calls that did not come back may still run in its libvirtd; restart libvirtd there if it stays so"
            ),
        ),
        LinkError::PoolStuck => OpError::transient(
            Reason::Timeout,
            format!("pool `{}` on host `{host}` does not answer; look at its storage", about.pool),
        ),
        LinkError::AgentsStuck => {
            OpError::transient(Reason::Timeout, format!("guest agents on host `{host}` did not answer a moment ago"))
        }
        LinkError::Unanswered(rpc, limit, why) => unanswered(host, doing, effect, rpc, limit, why),
        LinkError::Rpc(error) => answered(about, doing, &error),
    }
}

fn unanswered(host: &str, doing: &str, effect: Effect, rpc: &str, limit: Duration, why: Unanswered) -> OpError {
    let unseen = match effect {
        // An open changes nothing.
        Effect::Possible if rpc != "virConnectOpen" => Class::EffectUnknown,
        Effect::None | Effect::Possible => Class::Transient,
    };
    let told =
        |class, reason, what: &str| OpError::new(class, reason, format!("cannot {doing} on host `{host}`: {what}"));
    match why {
        Unanswered::Late => {
            told(unseen, Reason::Timeout, &format!("{rpc} did not come back within {} s", limit.as_secs_f32().ceil()))
        }
        Unanswered::NotBegun => told(Class::Transient, Reason::Timeout, "its calls before this one took too long"),
        Unanswered::Full => told(Class::Transient, Reason::Busy, "too many calls wait for it"),
        Unanswered::Broken(None) => told(unseen, Reason::Unreachable, "the connection to libvirt broke"),
        Unanswered::Broken(Some(error)) => {
            told(unseen, Reason::Unreachable, &format!("the connection to libvirt broke ({})", error.message))
        }
    }
}

/// libvirt answered: whatever it was, it is over, and its answer says what came of it.
fn answered(about: About<'_>, doing: &str, error: &RpcError) -> OpError {
    let host = about.host;
    let told = |class, reason, way_out: &str| {
        let sep = if way_out.is_empty() { "" } else { "; " };
        OpError::new(class, reason, format!("cannot {doing} on host `{host}`: {}{sep}{way_out}", error.message))
    };
    let transient = |reason, way_out: &str| told(Class::Transient, reason, way_out);
    let says = |words: &str| error.message.contains(words);
    match error.code {
        code::AUTH_FAILED | code::AUTH_CANCELLED | code::AUTH_UNAVAILABLE | code::ACCESS_DENIED => auth(about, error),
        // Debian 12 without D-Bus or polkitd (fault 11).
        1 if says("Unable to get system bus connection") || says("polkit") => auth(about, error),
        code::NO_NETWORK => transient(
            Reason::NetworkNotFound,
            &format!("define and start network `{}` there (virsh net-start, net-autostart)", about.network),
        ),
        code::OPERATION_INVALID if says("network") && says("is not active") => transient(
            Reason::NetworkNotFound,
            &format!("start network `{}` there (virsh net-start, net-autostart)", about.network),
        ),
        code::NO_STORAGE_POOL => transient(
            Reason::PoolNotFound,
            &format!("define and start pool `{}` there (virsh pool-start, pool-autostart)", about.pool),
        ),
        code::OPERATION_INVALID if says("storage pool") && says("is not active") => transient(
            Reason::PoolInactive,
            &format!("start pool `{}` there (virsh pool-start, pool-autostart)", about.pool),
        ),
        _ if says("No space left on device") => {
            transient(Reason::StorageFull, &format!("free some room in pool `{}`", about.pool))
        }
        code::CONFIG_UNSUPPORTED if says("does not support virt type 'kvm'") => transient(
            Reason::KVMUnavailable,
            "enable virtualization on the host and install its KVM, or set virtType: qemu in the entry",
        ),
        _ if says("Could not access KVM kernel module") || says("failed to initialize kvm") => transient(
            Reason::KVMUnavailable,
            "enable virtualization on the host and install its KVM, or set virtType: qemu in the entry",
        ),
        _ if says("Unable to find") && says("firmware") => transient(
            Reason::FirmwareMissing,
            "install the UEFI firmware there (package ovmf or edk2-ovmf), or set firmware: bios for the image",
        ),
        _ if says("Permission denied") => transient(
            Reason::DiskPermissionDenied,
            &format!(
                "QEMU's user must be able to read pool `{}`: look at owners, modes and AppArmor there",
                about.pool
            ),
        ),
        38 if says("Cannot access storage file") => {
            transient(Reason::StorageNotFound, "a file of the instance is gone from the pool")
        }
        _ if says("Network not found") || (says("bridge") && says("failed")) || says("Cannot get interface MTU") => {
            transient(Reason::NetworkNotFound, &format!("start network `{}` there", about.network))
        }
        _ if says("Too many active clients") => transient(Reason::Unreachable, "raise max_clients in libvirtd.conf"),
        _ => transient(Reason::APIError, &format!("libvirt code {}", error.code)),
    }
}

fn auth(about: About<'_>, error: &RpcError) -> OpError {
    let (user, host) = (about.user, about.host);
    OpError::transient(
        Reason::LibvirtAuthFailed,
        format!(
            "libvirt on host `{host}` does not let user `{user}` in: {}; put that user into group libvirt there",
            error.message
        ),
    )
}

pub(super) fn is(error: &LinkError, code: u32) -> bool {
    matches!(error, LinkError::Rpc(rpc) if rpc.code == code)
}

#[cfg(test)]
mod tests;
