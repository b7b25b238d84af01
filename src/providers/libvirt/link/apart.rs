//! A lane with an SSH connection of its own, for one transfer or one check: what it waits for holds up nobody else, and it
//! goes with the value. Made by [`super::Link::apart`].

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lane::Generation;
use super::ledger::{Awaited, Ledger};
use super::rpc::{Libvirt, RpcError};
use super::ssh::SshConnection;
use super::{Inner, LinkError, outcome};

/// A lane over an SSH connection that nobody else uses.
pub struct Apart {
    pub(super) lane: Arc<Generation>,
    pub(super) ssh: SshConnection,
    pub(super) inner: Arc<Inner>,
}

impl fmt::Debug for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apart").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl Apart {
    /// As [`super::Link::call`]; `awaited` is what this call waits for.
    pub async fn call<T: Send + 'static>(
        &self,
        awaited: Awaited,
        rpc: &'static str,
        limit: Duration,
        work: impl FnOnce(&Libvirt<'_>) -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, LinkError> {
        self.inner.admit(awaited)?;
        let result = outcome(rpc, limit, self.lane.submit(rpc, awaited, Instant::now() + limit, work).await);
        // An error may be the source's own (an upload).
        if result.is_ok() && awaited == Awaited::Pool {
            self.inner.ledger(Ledger::pool_answers);
        }
        result
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.lane.abandon();
        self.ssh.abort();
    }
}
