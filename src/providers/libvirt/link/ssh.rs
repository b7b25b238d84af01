//! One SSH connection to a host, and the sockets that are opened through it.
//!
//! Owns a TCP socket and the task of russh that serves it. Spoken to by the lanes of a host. Never resolves names, never dials twice,
//! never backs off: the caller does.
//!
//! ```text
//! dial: TCP -> banner, key exchange -> host key -> login -> `true` once -> open -> ended
//! ```
//!
//! What a caller must do: *always* read what comes in on a stream. One that is not read holds up all streams of its
//! connection, keepalives included (fault 2); only [`SshConnection::abort`] helps then. And keep a clone of the connection as long as
//! its streams: with the last clone they end.

mod dial;
mod errors;
mod session;
mod stream;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use egress_actors::domain::error::OpError;
use russh::client::{Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::material::Material;
use session::{Ending, Session};
use stream::{SshStream, Tap};
use wire::Cutter;

/// Where to, and as whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SshTarget {
    pub user: String,
    /// As configured: a name or an IP. It is what `known_hosts` is asked for.
    pub address: String,
    pub port: u16,
}

impl fmt::Display for SshTarget {
    /// `kvm-1:22`, `[fe80::1]:22`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address.trim_start_matches('[').trim_end_matches(']');
        if address.contains(':') {
            write!(f, "[{address}]:{}", self.port)
        } else {
            write!(f, "{address}:{}", self.port)
        }
    }
}

/// How long things may take. `inactivity` must be longer than `keepalive_interval`: on a quiet connection the answers to
/// keepalives are all that comes.
#[derive(Debug, Clone)]
pub struct SshLimits {
    /// For the whole dial, login included.
    pub dial: Duration,
    pub keepalive_interval: Duration,
    /// The connection ends when this many keepalives are unanswered and the next is due.
    pub keepalive_max: usize,
    /// Ends a connection on which nothing came and nothing could be sent; counts from the dial on. It alone works
    /// while russh sits in a TCP write (fault 1).
    pub inactivity: Duration,
    /// For data that the host's kernel does not acknowledge.
    pub tcp_user_timeout: Duration,
}

impl Default for SshLimits {
    /// A host that is gone is noticed after 8 s (measured, faults.md part 2 (i)).
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(2),
            keepalive_max: 3,
            inactivity: Duration::from_secs(8),
            tcp_user_timeout: Duration::from_secs(5),
        }
    }
}

/// A connection that is logged in. Cheap to clone; the drop of the last clone ends it.
#[derive(Clone)]
pub struct SshConnection(Arc<Inner>);

struct Inner {
    target: SshTarget,
    handle: Arc<Handle<Session>>,
    cutter: Arc<Cutter>,
    ending: Ending,
    aborted: AtomicBool,
    streams: Mutex<Vec<Weak<Tap>>>,
}

impl fmt::Debug for SshConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshConnection").field("target", &self.0.target).field("closed", &self.is_closed()).finish()
    }
}

impl SshConnection {
    /// Connects and logs in, within `limits.dial`. `addrs` are the resolved addresses of the target, tried in turn with an equal share
    /// of the time each.
    ///
    /// Dropped: the socket is closed at once.
    ///
    /// # Errors
    /// Transient: `Unreachable` (no address, refused, no answer to TCP, closed before it said anything or while it refuses more
    /// connections, broken in the middle: fault 12), `Timeout` (accepts and is silent: fault 14),
    /// `SSHHandshakeFailed` (does not speak SSH, or nothing in common).
    /// Permanent until the Secret or the host changes: `HostKeyUnknown` (with type and fingerprint seen: fault 5), `HostKeyMismatch`
    /// (revoked keys too: faults 6 and 7), `SSHAuthFailed`.
    pub async fn dial(
        target: &SshTarget,
        addrs: &[SocketAddr],
        material: &Material,
        limits: &SshLimits,
    ) -> Result<Self, OpError> {
        dial::dial(target, addrs, material, limits).await
    }

    /// Opens a unix socket on the host: the first of `paths` that can be opened. `limit` is for all of them.
    ///
    /// Dropped, or late: an answer that comes after that is closed again.
    ///
    /// # Errors
    /// All transient. `LibvirtSocketUnavailable` if the host refuses each path (sshd gives no reasons: fault 11), `Timeout`, and
    /// `Unreachable` if the connection has ended.
    pub async fn open_socket(
        &self,
        paths: &[&str],
        limit: Duration,
    ) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + fmt::Debug + 'static, OpError> {
        let deadline = Instant::now() + limit;
        let mut refusal = None;
        for path in paths {
            let opened = timeout_at(deadline, self.open_channel(path)).await;
            match opened.map_err(|_| errors::late_socket(&self.0.target, path, limit))? {
                Ok(channel) => return Ok(self.tapped(channel)),
                Err(russh::Error::ChannelOpenFailure(why)) => refusal = Some(why),
                Err(_) => return Err(self.why_closed().await),
            }
        }
        let why = refusal.unwrap_or(ChannelOpenFailure::ConnectFailed);
        Err(errors::no_socket(&self.0.target, paths, &why))
    }

    /// The session has ended, or is about to.
    pub fn is_closed(&self) -> bool {
        self.0.aborted.load(Ordering::Acquire) || self.0.handle.is_closed()
    }

    /// Resolves when the session's task has ended.
    pub async fn closed(&self) {
        self.0.ending.ended().await;
    }

    /// Resolves when the session has ended, with the cause: transient, `Unreachable`.
    pub async fn why_closed(&self) -> OpError {
        errors::lost(&self.0.target, &self.0.ending.ended().await)
    }

    /// Ends the session at once, whatever it is doing: its task, the TCP socket and its streams. What was not sent yet is lost.
    /// Readers and writers of the streams get `ConnectionAborted`.
    pub fn abort(&self) {
        self.0.end(Cutter::abort);
    }

    /// In a task of its own, which ends at the latest with the session: a channel that is confirmed after the caller left would stay
    /// open, and hold one of libvirtd's clients.
    async fn open_channel(&self, path: &str) -> Result<Channel<Msg>, russh::Error> {
        let (tell, hear) = oneshot::channel();
        let (handle, path) = (Arc::clone(&self.0.handle), path.to_owned());
        tokio::spawn(async move {
            let result = handle.channel_open_direct_streamlocal(path).await;
            if let Err(Ok(unwanted)) = tell.send(result) {
                let _ = unwanted.close().await;
            }
        });
        hear.await.unwrap_or(Err(russh::Error::Disconnect))
    }

    fn tapped(&self, channel: Channel<Msg>) -> SshStream {
        let (stream, tap) = SshStream::new(channel.into_stream());
        let mut streams = self.0.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|tap| tap.strong_count() > 0);
        streams.push(tap);
        drop(streams);
        // Aborted between the confirmation and here.
        if self.0.aborted.load(Ordering::Acquire) {
            self.abort();
        }
        stream
    }
}

impl Inner {
    /// The streams too: the session's task may be waiting for one of them to be read (fault 2).
    fn end(&self, cut: fn(&Cutter)) {
        self.aborted.store(true, Ordering::Release);
        cut(&self.cutter);
        let streams = std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for tap in streams.iter().filter_map(Weak::upgrade) {
            tap.close();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end(Cutter::close);
    }
}
