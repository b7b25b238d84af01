//! From an address to a connection that is logged in.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use russh::client::{AuthResult, Config, Handle, connect_stream};
use russh::keys::{Algorithm, HashAlg, PrivateKeyWithHashAlg};
use russh::{ChannelMsg, Preferred};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::known_hosts::HostKeys;
use super::super::material::Material;
use super::session::{Cause, Ending, Session};
use super::wire::Wire;
use super::{Inner, SshConnection, SshLimits, SshTarget, errors};

/// For the command after the login. It is of use only, so a host that forbids or delays it is no worse a host.
const WARM_UP: Duration = Duration::from_secs(1);

/// Messages of the host that a stream may lag behind before it holds up the others (fault 2). Of 32 KiB at most, so 16 MiB; russh
/// gives the window back as they arrive, so its size is no limit here.
const LAG_MAX: usize = 512;

pub(super) async fn dial(
    target: &SshTarget,
    addrs: &[SocketAddr],
    material: &Material,
    limits: &SshLimits,
) -> Result<SshConnection, OpError> {
    let deadline = Instant::now() + limits.dial;
    let tcp = connect(target, addrs, deadline).await?;
    let (wire, cut, first) = Wire::new(tcp, limits).map_err(|error| {
        OpError::transient(Reason::Internal, format!("cannot set up a socket to {target}: {error}"))
    })?;

    let keys = material.known().lookup(&target.address, target.port);
    let config = Arc::new(config(&keys, limits));
    let (session, refusal, ending) = Session::new(target.clone(), keys, cut.cutter());
    let mut handle = match timeout_at(deadline, connect_stream(config, wire, session)).await {
        Ok(Ok(handle)) => handle,
        Ok(Err(error)) => {
            return Err(refusal.take().unwrap_or_else(|| errors::handshake(target, &error, &first.bytes())));
        }
        Err(_) => return Err(errors::late_handshake(target, limits.dial, &first.bytes())),
    };
    let logged_in = timeout_at(deadline, log_in(&mut handle, target, material, &ending));
    logged_in.await.map_err(|_| errors::late_login(target, limits.dial))??;

    let left = deadline.saturating_duration_since(Instant::now());
    let _ = timeout(left.min(WARM_UP), warm_up(&handle)).await;
    if handle.is_closed() {
        let cause = timeout_at(deadline, ending.ended()).await.unwrap_or(Cause::Broken("it was closed".to_owned()));
        return Err(errors::lost(target, &cause));
    }
    Ok(SshConnection(Arc::new(Inner {
        target: target.clone(),
        handle: Arc::new(handle),
        cutter: cut.hand_on(),
        ending,
        aborted: AtomicBool::new(false),
        streams: Mutex::default(),
    })))
}

/// Each address gets an equal share of what is left.
async fn connect(target: &SshTarget, addrs: &[SocketAddr], deadline: Instant) -> Result<TcpStream, OpError> {
    let mut failures = Vec::new();
    for (addr, more) in addrs.iter().zip((1..=u32::try_from(addrs.len()).unwrap_or(u32::MAX)).rev()) {
        let share = deadline.saturating_duration_since(Instant::now()) / more;
        match timeout(share, TcpStream::connect(addr)).await {
            Ok(Ok(tcp)) => return Ok(tcp),
            Ok(Err(error)) => failures.push((*addr, error.kind().to_string())),
            Err(_) => failures.push((*addr, "no answer".to_owned())),
        }
    }
    Err(errors::unreachable(target, &failures))
}

fn config(keys: &HostKeys, limits: &SshLimits) -> Config {
    Config {
        preferred: Preferred { key: Cow::Owned(keys.algorithms()), ..Preferred::DEFAULT },
        keepalive_interval: Some(limits.keepalive_interval),
        keepalive_max: limits.keepalive_max,
        // From the first byte on: without it a host that falls silent after its banner leaks a task and a socket.
        inactivity_timeout: Some(limits.inactivity),
        channel_buffer_size: LAG_MAX,
        nodelay: true,
        ..Config::default()
    }
}

/// RSA only with SHA-2, by what the host says that it takes (fault 9).
async fn log_in(
    handle: &mut Handle<Session>,
    target: &SshTarget,
    material: &Material,
    ending: &Ending,
) -> Result<(), OpError> {
    let hashes = if matches!(material.key().algorithm(), Algorithm::Rsa { .. }) {
        match handle.best_supported_rsa_hash().await {
            Ok(Some(Some(HashAlg::Sha256))) => vec![Some(HashAlg::Sha256)],
            // OpenSSH names all that it knows, whatever PubkeyAcceptedAlgorithms says, and others name nothing.
            Ok(_) => vec![Some(HashAlg::Sha512), Some(HashAlg::Sha256)],
            Err(_) => return Err(errors::login_cut(target, material, &ending.ended().await)),
        }
    } else {
        vec![None]
    };
    let mut left = None;
    for hash in hashes {
        let key = PrivateKeyWithHashAlg::new(Arc::clone(material.key()), hash);
        match handle.authenticate_publickey(target.user.as_str(), key).await {
            Ok(AuthResult::Success) => return Ok(()),
            // So russh tells the end of the session too.
            Ok(AuthResult::Failure { remaining_methods, partial_success }) if !handle.is_closed() => {
                left = Some((remaining_methods, partial_success));
            }
            Ok(AuthResult::Failure { .. }) | Err(_) => {
                return Err(errors::login_cut(target, material, &ending.ended().await));
            }
        }
    }
    Err(errors::login_refused(target, material, left))
}

/// Runs `true`: sshd turns Nagle's delays off once a session has run, which saves 40 ms with each call (faults.md part 2 (i)).
async fn warm_up(handle: &Handle<Session>) {
    let Ok(mut channel) = handle.channel_open_session().await else { return };
    let run = async {
        channel.exec(true, "true").await.ok()?;
        while !matches!(channel.wait().await?, ChannelMsg::Close) {}
        Some(())
    };
    // The caller's limit is the same: close before it.
    if timeout(WARM_UP * 4 / 5, run).await.is_err() {
        let _ = channel.close().await;
    }
}
