//! From what happened on a connection to what the caller is to do about it. The one place of this layer that decides a class.

use std::net::SocketAddr;
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use russh::keys::{HashAlg, PublicKey};
use russh::{AlgorithmKind, ChannelOpenFailure, MethodKind, MethodSet};

use super::super::known_hosts::{HostKeys, Verdict};
use super::super::material::Material;
use super::SshTarget;
use super::session::Cause;

/// Longest part of the host's words that is repeated, in characters.
const WORDS_MAX: usize = 120;

/// Said by an sshd that has enough for now, in place of its banner (OpenSSH's sshd.c; fault 12).
const ENOUGH: [&str; 2] = ["Exceeded MaxStartups", "Not allowed at this time"];

/// Of the host, on one line.
pub(super) fn words(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect()
}

pub(super) fn unreachable(target: &SshTarget, failures: &[(SocketAddr, String)]) -> OpError {
    let told: Vec<_> = failures.iter().map(|(addr, why)| format!("{}: {why}", addr.ip())).collect();
    let why = if told.is_empty() { "it has no address".to_owned() } else { told.join(", ") };
    OpError::transient(Reason::Unreachable, format!("cannot reach {target}: {why}"))
}

pub(super) fn host_key(target: &SshTarget, keys: &HostKeys, shown: &PublicKey, verdict: &Verdict) -> OpError {
    let key = format!("{} {}", shown.algorithm(), shown.fingerprint(HashAlg::Sha256));
    let name = keys.name();
    match verdict {
        Verdict::Revoked { line } => OpError::permanent(
            Reason::HostKeyMismatch,
            format!("{target} shows the key {key}, which line {line} of known_hosts revokes: give the host a new one"),
        ),
        Verdict::Mismatch { line } => OpError::permanent(
            Reason::HostKeyMismatch,
            format!(
                "{target} shows the key {key}, and line {line} of known_hosts has another one: if the host was made anew, \
                 replace the line; if not, somebody is in between"
            ),
        ),
        Verdict::Known | Verdict::Unknown { .. } => {
            let types = keys.types();
            let known = if !types.is_empty() {
                format!("known_hosts has only {} for `{name}`", types.join(", "))
            } else if let Some(problem) = keys.problems().first() {
                format!("known_hosts has nothing of use for `{name}` ({problem})")
            } else if keys.only_without_port() {
                format!("known_hosts has this host without its port; the line must begin with `{name}`")
            } else {
                format!("known_hosts has no line for `{name}`")
            };
            let detail = format!("{target} shows the key {key}, and {known}: if it is the right one, add it");
            OpError::permanent(Reason::HostKeyUnknown, detail)
        }
    }
}

/// Before the login. `first` is what the host said, which may be nothing.
pub(super) fn handshake(target: &SshTarget, error: &russh::Error, first: &[u8]) -> OpError {
    let said = String::from_utf8_lossy(first);
    let speaks = said.lines().any(|line| line.starts_with("SSH-"));
    let failed = |why: &str| OpError::transient(Reason::SSHHandshakeFailed, format!("{target} {why}"));
    if let Some(enough) = ENOUGH.iter().find(|enough| said.contains(*enough)) {
        let detail = format!(
            "{target} takes no more logins for now (`{enough}`): see MaxStartups and PerSourcePenalties of its sshd"
        );
        return OpError::transient(Reason::Unreachable, detail);
    }
    if said.is_empty() {
        let detail = format!(
            "{target} closed the connection before it said anything: too many logins at once (MaxStartups), a ban after failed ones, \
             or a firewall"
        );
        return OpError::transient(Reason::Unreachable, detail);
    }
    if !speaks {
        return failed(&format!(
            "does not speak SSH, it says `{}`: is the port right?",
            words(said.lines().next().unwrap_or_default())
        ));
    }
    match error {
        russh::Error::NoCommonAlgo { kind, theirs, .. } => {
            let kind = match kind {
                AlgorithmKind::Kex => "key exchange",
                AlgorithmKind::Key => "host key",
                AlgorithmKind::Cipher => "cipher",
                AlgorithmKind::Compression => "compression",
                AlgorithmKind::Mac => "MAC",
            };
            failed(&format!("offers no {kind} that is safe enough: {}", words(&theirs.join(","))))
        }
        russh::Error::WrongServerSig => failed("shows a key that it cannot sign with: somebody may be in between"),
        russh::Error::InactivityTimeout => {
            OpError::transient(Reason::Timeout, format!("{target} stopped answering in the key exchange"))
        }
        russh::Error::IO(_) | russh::Error::HUP | russh::Error::Disconnect => OpError::transient(
            Reason::Unreachable,
            format!("{target} broke the connection in the key exchange: {}", broken(error)),
        ),
        other => failed(&format!("does not get through the key exchange: {}", words(&other.to_string()))),
    }
}

pub(super) fn late_handshake(target: &SshTarget, limit: Duration, first: &[u8]) -> OpError {
    let said = if first.is_empty() { "it accepts connections and says nothing" } else { "it stopped in the middle" };
    let detail = format!("no SSH handshake with {target} within {}: {said}", seconds(limit));
    OpError::transient(Reason::Timeout, detail)
}

pub(super) fn late_login(target: &SshTarget, limit: Duration) -> OpError {
    let detail = format!("{target} did not answer the login as `{}` within {}", target.user, seconds(limit));
    OpError::transient(Reason::Timeout, detail)
}

pub(super) fn login_refused(target: &SshTarget, material: &Material, left: Option<(MethodSet, bool)>) -> OpError {
    let (user, key) = (&target.user, material.public());
    let (methods, partial) = left.unwrap_or((MethodSet::empty(), false));
    let names: Vec<&str> = methods.iter().map(<&str>::from).collect();
    let names = words(&names.join(", "));
    let why = if partial {
        format!("takes the key {key} of user `{user}` but wants more ({names}), which is not supported")
    } else if methods.contains(&MethodKind::PublicKey) {
        format!("refuses the key {key} for user `{user}`: add it to authorized_keys of that user, or correct the user")
    } else {
        format!("takes no keys for user `{user}`, only: {names}")
    };
    OpError::permanent(Reason::SSHAuthFailed, format!("{target} {why}"))
}

/// The session ended in the login.
pub(super) fn login_cut(target: &SshTarget, material: &Material, cause: &Cause) -> OpError {
    match cause {
        // With MaxAuthTries of 1 the first refusal is said so.
        Cause::Refused(said) if said.contains("Too many authentication failures") => {
            login_refused(target, material, Some((MethodSet::from([MethodKind::PublicKey].as_slice()), false)))
        }
        _ => lost(target, cause),
    }
}

pub(super) fn lost(target: &SshTarget, cause: &Cause) -> OpError {
    let why = match cause {
        Cause::Refused(said) => format!("the host ended it: {said}"),
        Cause::Broken(why) => why.clone(),
    };
    OpError::transient(Reason::Unreachable, format!("the SSH connection to {target} is gone: {why}"))
}

/// Why a session broke, for people.
pub(super) fn broken(error: &russh::Error) -> String {
    match error {
        russh::Error::KeepaliveTimeout => "the host does not answer keepalives".to_owned(),
        russh::Error::InactivityTimeout => "nothing came, and nothing could be sent".to_owned(),
        russh::Error::HUP | russh::Error::Disconnect => "it was closed".to_owned(),
        russh::Error::IO(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
        russh::Error::IO(error) => error.kind().to_string(),
        other => words(&other.to_string()),
    }
}

pub(super) fn late_socket(target: &SshTarget, path: &str, limit: Duration) -> OpError {
    OpError::transient(Reason::Timeout, format!("{target} did not open {path} within {}", seconds(limit)))
}

/// sshd answers the same for every reason (fault 11), so all are named.
pub(super) fn no_socket(target: &SshTarget, paths: &[&str], why: &ChannelOpenFailure) -> OpError {
    let (user, paths) = (&target.user, paths.join(" or "));
    let causes = match why {
        ChannelOpenFailure::UnknownChannelType => "its SSH server cannot forward unix sockets: use OpenSSH".to_owned(),
        ChannelOpenFailure::ResourceShortage => "its SSH server has no room for more channels".to_owned(),
        _ => format!(
            "libvirt's daemon is not running, its socket is elsewhere, `{user}` may not use it (group libvirt), or sshd forbids it \
             (AllowStreamLocalForwarding, DisableForwarding, `restrict` in authorized_keys)"
        ),
    };
    let detail = format!("user `{user}` cannot open {paths} on {target}: {causes}");
    OpError::transient(Reason::LibvirtSocketUnavailable, detail)
}

fn seconds(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f32())
}
