//! How generations reach their link, and how a wedged host is found to answer again.

use std::sync::Weak;
use std::time::{Duration, Instant};

use egress_actors::names;
use metrics::gauge;

use super::lane::{Core, LaneKind, Overseer};
use super::ledger::Awaited;
use super::ssh::SshConnection;
use super::{Inner, LISTS, Ledger, LinkError, gone, outcome};

/// Between two tries of an uncut open, when the first was ended by its SSH connection.
const CANARY_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// In effect: never.
const UNCUT: Duration = Duration::from_hours(24 * 365);

/// While the host is wedged: one list of its domains, on a connection of its own, that is left uncut however long it takes.
/// As soon as it is answered, or the connection refused, the host answers. An open alone shows nothing: libvirtd goes on
/// taking in connections while whoever touches a domain waits for the one that is held. Ends with the link.
pub(super) async fn until_it_answers(link: Weak<Inner>) {
    let mut pause = CANARY_AGAIN.0;
    loop {
        let Some(inner) = link.upgrade().filter(|inner| !inner.has_ended()) else { return };
        let listed = match inner.ssh().await {
            Ok(ssh) => tokio::select! {
                listed = list(&inner, &ssh) => listed,
                () = ssh.closed() => Err(gone()),
            },
            Err(error) => Err(error),
        };
        if matches!(listed, Ok(()) | Err(LinkError::Rpc(_))) {
            inner.ledger(Ledger::unwedge);
            tracing::info!(provider = inner.to.provider, host = inner.to.host, "the host answers again");
            return;
        }
        drop(inner);
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.75..1.25))).await;
        pause = (pause * 2).min(CANARY_AGAIN.1);
    }
}

async fn list(inner: &Inner, ssh: &SshConnection) -> Result<(), LinkError> {
    let lane = inner.open(LaneKind::Control, ssh, None).await?;
    let listed = lane.submit(LISTS, Awaited::Daemon, Instant::now() + UNCUT, |libvirt| {
        libvirt.rpc(LISTS, "", |c| c.list_all_domains(0)).map(drop)
    });
    let listed = outcome(LISTS, UNCUT, listed.await);
    // It has shown what it was for; the next call opens what it needs.
    lane.end();
    listed
}

/// How a generation reaches its link, if there still is one.
pub(super) struct Seen {
    pub(super) inner: Weak<Inner>,
    pub(super) provider: String,
    pub(super) host: String,
}

impl Overseer for Seen {
    fn late(&self, lane: &Core, call: u64, rpc: &'static str, awaited: Awaited) -> bool {
        let Some(inner) = self.inner.upgrade() else { return true };
        if lane.kind != LaneKind::Storage {
            inner.lost(awaited, lane.kind, rpc);
            return true;
        }
        inner.ledger(|ledger| ledger.leave_as_canary(lane.number << 20 | call));
        let (provider, host) = (&self.provider, &self.host);
        tracing::warn!(provider, host, rpc, "the pool does not answer: nothing more goes to it until it does");
        false
    }

    fn lost(&self, lane: &Core, rpc: &'static str, awaited: Awaited) {
        if let Some(inner) = self.inner.upgrade() {
            inner.lost(awaited, lane.kind, rpc);
        }
    }

    fn back(&self, lane: &Core, call: u64, broken: bool) {
        let Some(inner) = self.inner.upgrade() else { return };
        if lane.kind != LaneKind::Storage {
            return;
        }
        if inner.ledger(|ledger| ledger.came_back(lane.number << 20 | call, !broken, Instant::now())) {
            tracing::info!(provider = self.provider, host = self.host, "the pool answers again");
        } else if !broken {
            inner.ledger(Ledger::pool_answers);
        }
    }

    fn thread_abandoned(&self, abandoned: bool) {
        let gauge = gauge!(names::HOST_THREADS_ABANDONED);
        if abandoned {
            gauge.increment(1.0);
        } else {
            gauge.decrement(1.0);
        }
    }
}

/// An open that may be left: late, or because nobody waits for it any more. It goes on at the host then.
pub(super) struct Opening<'a> {
    pub(super) inner: &'a Inner,
    pub(super) kind: LaneKind,
    pub(super) counts: bool,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if self.counts {
            self.inner.lost(Awaited::Daemon, self.kind, "virConnectOpen");
        }
    }
}
