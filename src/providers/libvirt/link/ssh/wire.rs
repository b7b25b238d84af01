//! The TCP socket below a session: how it is opened, what it said first, and how it is closed from outside.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::SshLimits;

/// How much of the first answer is kept, in bytes.
const FIRST_MAX: usize = 256;

/// Closes a socket that belongs to another task. Dropping russh's handle does not (faults.md part 2 (i)). Holds the socket open
/// until [`Cutter::release`].
#[derive(Debug)]
pub(super) struct Cutter(Mutex<Option<OwnedFd>>);

impl Cutter {
    /// What is to be sent still is, within the TCP user timeout.
    pub(super) fn close(&self) {
        self.cut(false);
    }

    /// What is to be sent is thrown away, and the peer is told by a reset.
    pub(super) fn abort(&self) {
        self.cut(true);
    }

    /// Lets go of the socket. By whoever has just dropped the stream itself.
    pub(super) fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn cut(&self, throw_away: bool) {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = &*socket else { return };
        if throw_away {
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
        // Not connected any more: what was wanted.
        let _ = shutdown(socket, Shutdown::Both);
    }
}

/// Closes the socket unless it is handed on. For a dial that fails, is late or is dropped.
#[derive(Debug)]
pub(super) struct CutOnDrop {
    cutter: Arc<Cutter>,
    handed_on: bool,
}

impl CutOnDrop {
    pub(super) fn cutter(&self) -> Arc<Cutter> {
        Arc::clone(&self.cutter)
    }

    pub(super) fn hand_on(mut self) -> Arc<Cutter> {
        self.handed_on = true;
        self.cutter()
    }
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        if !self.handed_on {
            self.cutter.abort();
        }
    }
}

/// The first bytes that the peer sent.
#[derive(Debug, Clone, Default)]
pub(super) struct First(Arc<Mutex<Vec<u8>>>);

impl First {
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A TCP stream that remembers what came first.
#[derive(Debug)]
pub(super) struct Wire {
    tcp: TcpStream,
    first: First,
    full: bool,
}

impl Wire {
    /// No delays, and an end to what is not acknowledged. The duplicate of the socket outlives the task that will own this.
    pub(super) fn new(tcp: TcpStream, limits: &SshLimits) -> io::Result<(Self, CutOnDrop, First)> {
        tcp.set_nodelay(true)?;
        let user_timeout = u32::try_from(limits.tcp_user_timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&tcp, user_timeout)?;
        let socket = Mutex::new(Some(rustix::io::fcntl_dupfd_cloexec(&tcp, 3)?));
        let cutter = CutOnDrop { cutter: Arc::new(Cutter(socket)), handed_on: false };
        let first = First::default();
        Ok((Self { tcp, first: first.clone(), full: false }, cutter, first))
    }

    fn remember(&mut self, bytes: &[u8]) {
        let mut first = self.first.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = FIRST_MAX - first.len();
        first.extend(bytes.iter().take(room));
        self.full = first.len() == FIRST_MAX;
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.tcp).poll_read(cx, buf);
        if !self.full {
            self.remember(&buf.filled()[before..]);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
