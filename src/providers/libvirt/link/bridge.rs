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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

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
        let task = tokio::spawn(async move {
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
            let _ = tokio::io::copy_bidirectional_with_sizes(&mut local, &mut remote, 64 * 1024, 64 * 1024).await;
            if let slot @ Ours::Open(_) = &mut *shared.lock().unwrap_or_else(PoisonError::into_inner) {
                *slot = Ours::Cut;
            }
        });
        Ok(Self { path, task, ours, _dir: dir.clone() })
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
