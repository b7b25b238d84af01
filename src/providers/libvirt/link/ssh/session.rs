//! What russh asks and tells while it serves a connection: is this the host's key, and why did it end.

use std::sync::{Arc, Mutex, PoisonError};

use egress_actors::domain::error::OpError;
use russh::client::{DisconnectReason, Handler};
use russh::keys::PublicKeyOrCertificate;
use tokio::sync::watch;

use super::super::known_hosts::{HostKeys, Verdict};
use super::wire::Cutter;
use super::{SshTarget, errors};

/// Why a session ended. `Refused`: by a message of the host, with its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    Refused(String),
    Broken(String),
}

/// Belongs to the session's task and is dropped with it, after the stream.
pub(super) struct Session {
    target: SshTarget,
    keys: HostKeys,
    refusal: Refusal,
    cutter: Arc<Cutter>,
    /// The host answers no more: what is still to be sent would keep the socket for as long as the kernel tries.
    is_dead: bool,
    ended: watch::Sender<Option<Cause>>,
}

/// Why the host's key was not taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusal(Arc<Mutex<Option<OpError>>>);

impl Refusal {
    pub(super) fn take(&self) -> Option<OpError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The end of a session, for those outside.
#[derive(Debug, Clone)]
pub(super) struct Ending(watch::Receiver<Option<Cause>>);

impl Ending {
    /// Resolves when the session's task is gone.
    pub(super) async fn ended(&self) -> Cause {
        let mut ended = self.0.clone();
        // The sender is dropped with the task; until then each change is one to look at.
        while ended.changed().await.is_ok() {}
        let cause = ended.borrow().clone();
        cause.unwrap_or_else(|| Cause::Broken("it was closed".to_owned()))
    }
}

impl Session {
    pub(super) fn new(target: SshTarget, keys: HostKeys, cutter: Arc<Cutter>) -> (Self, Refusal, Ending) {
        let (ended, ending) = watch::channel(None);
        let refusal = Refusal::default();
        let session = Self { target, keys, refusal: refusal.clone(), cutter, is_dead: true, ended };
        (session, refusal, Ending(ending))
    }
}

impl Drop for Session {
    /// Before the end is told: whoever hears of it finds no socket.
    fn drop(&mut self) {
        if self.is_dead {
            self.cutter.abort();
        }
        self.cutter.release();
    }
}

impl Handler for Session {
    type Error = russh::Error;

    /// Strict: what `known_hosts` does not have is refused (faults 5 to 7). No certificates are asked for, so none comes.
    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let key = shown.public_key();
        let verdict = self.keys.verdict(&key);
        if verdict == Verdict::Known && shown.certificate().is_none() {
            return Ok(true);
        }
        let error = errors::host_key(&self.target, &self.keys, &key, &verdict);
        *self.refusal.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Ok(false)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Self::Error>) -> Result<(), Self::Error> {
        self.is_dead =
            matches!(reason, DisconnectReason::Error(russh::Error::KeepaliveTimeout | russh::Error::InactivityTimeout));
        let cause = match reason {
            DisconnectReason::ReceivedDisconnect(info) => Cause::Refused(errors::words(&info.message)),
            DisconnectReason::Error(error) => Cause::Broken(errors::broken(&error)),
        };
        self.ended.send_replace(Some(cause));
        Ok(())
    }
}
