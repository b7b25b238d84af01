//! A private unix socket on our side, bridged to libvirt's socket on the host.
//!
//! libvirt's client library can only dial. So each libvirt connection has a socket of its own in a directory that nobody
//! else may enter; the first one that dials it is bridged, and the socket's name goes. What is shut here makes every C call
//! on it return, whatever the host does: that is how a lane is cut.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::Shutdown;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, copy_buf, split};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What is read at once.
const PIECE: usize = 64 * 1024;

/// A directory for the sockets of one host; it goes with its last user.
#[derive(Debug)]
pub struct SocketDir {
    dir: TempDir,
    next: AtomicU64,
}

impl SocketDir {
    pub fn new() -> io::Result<Self> {
        // Only its owner may enter it, from the moment that it is there.
        let dir = tempfile::Builder::new().prefix("egress-link-").tempdir()?;
        Ok(Self { dir, next: AtomicU64::new(0) })
    }

    fn next(&self) -> PathBuf {
        self.dir.path().join(format!("{}.sock", self.next.fetch_add(1, Ordering::Relaxed)))
    }
}

/// One bridge. Dropping it cuts it.
#[derive(Debug)]
pub struct Bridge {
    path: PathBuf,
    task: JoinHandle<()>,
    /// Our own handle of the accepted socket.
    ours: Arc<Mutex<Ours>>,
    /// Its sender goes with the task.
    ended: watch::Receiver<()>,
    /// Keeps the directory.
    _dir: Arc<SocketDir>,
}

#[derive(Debug)]
enum Ours {
    Waiting,
    Open(OwnedFd),
    Cut,
}

impl Bridge {
    /// Waits for one dialler, and carries bytes between it and `remote` until one of them ends.
    pub fn start<R>(dir: &Arc<SocketDir>, mut remote: R) -> io::Result<Self>
    where
        R: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let path = dir.next();
        let listener = UnixListener::bind(&path)?;
        let ours = Arc::new(Mutex::new(Ours::Waiting));
        let (shared, own) = (ours.clone(), path.clone());
        let (running, ended) = watch::channel(());
        let task = tokio::spawn(async move {
            let _running = running;
            let accepted = listener.accept().await;
            drop(listener);
            let _ = std::fs::remove_file(&own);
            let Ok((mut local, _)) = accepted else { return };
            let Ok(handle) = rustix::io::fcntl_dupfd_cloexec(&local, 0) else { return };
            match &mut *shared.lock().unwrap_or_else(PoisonError::into_inner) {
                Ours::Cut => return,
                slot => *slot = Ours::Open(handle),
            }
            // Both ends go when either does: half a connection is of no use to libvirt.
            let (from_local, mut to_local) = local.split();
            let (from_remote, mut to_remote) = split(&mut remote);
            let (mut out, mut back) =
                (BufReader::with_capacity(PIECE, from_local), BufReader::with_capacity(PIECE, from_remote));
            tokio::select! {
                _ = copy_buf(&mut out, &mut to_remote) => {}
                _ = copy_buf(&mut back, &mut to_local) => {}
            }
            if let slot @ Ours::Open(_) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner) {
                *slot = Ours::Cut;
            }
        });
        Ok(Self { path, task, ours, ended, _dir: dir.clone() })
    }

    /// Resolves when it carries nothing any more: an end has gone, or it was cut.
    pub async fn ended(&self) {
        let _ = self.ended.clone().changed().await;
    }

    /// What libvirt opens.
    pub fn uri(&self) -> String {
        format!("qemu+unix:///system?socket={}", self.path.display())
    }

    /// Shuts our end at once, from any thread: the C calls on it return, and the far end hears of it as far as it can.
    pub fn cut(&self) {
        let was = std::mem::replace(&mut *self.ours.lock().unwrap_or_else(PoisonError::into_inner), Ours::Cut);
        if let Ours::Open(handle) = was {
            let _ = rustix::net::shutdown(&handle, Shutdown::Both);
        }
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.cut();
    }
}
