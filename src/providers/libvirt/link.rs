//! The links to one host: SSH connections, the lanes over them, and what is still running there.
//!
//! ```text
//!            SSH connection 1                      SSH connection 2, 3: on demand, one transfer or one check each
//!  control   libvirt connection, 3 threads         bulk    libvirt connection, 1 thread
//!  agent     libvirt connection, 2 threads         check   libvirt connection, 1 thread
//!  storage   libvirt connection, 1 thread
//! ```
//! Every call has a deadline. A call that was dropped before it goes on, and its answer with it; one that passes it cuts
//! its lane, and no other ([`lane`]). The exception is a late call to the pool: it stays, as the sign by which we see when
//! the pool is back, and until then nothing more goes to that pool. What was cut still runs on the host, so it is counted,
//! and at [`ledger::MOST`] of it the host is `Wedged`: its domains are listed once then, uncut, and nothing else is begun until
//! that is answered. (faults.md (i); ADR 15)
//!
//! Connections are made on first use, once for all who want them, and again when they are gone. Nothing here looks at
//! libvirt's keep-alive or its event loop: who is silent is found by SSH and by the deadlines.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use egress_actors::names;
use futures::future::BoxFuture;
use metrics::{counter, gauge};
use tokio::runtime::Handle;

pub use self::apart::Apart;
use self::bridge::{Bridge, SocketDir};
pub use self::error::LinkError;
use self::error::{gone, outcome};
use self::lane::{Generation, Whose};
pub use self::lane::{LaneKind, Unanswered};
pub use self::ledger::Awaited;
use self::ledger::Ledger;
use self::material::MaterialFiles;
use self::rpc::{Libvirt, RpcError};
use self::slot::{Kept, Slot, once};
use self::ssh::{SshConnection, SshLimits, SshTarget};
use self::wedge::{Opening, Seen, until_it_answers};
use crate::dns::Dns;

mod apart;
mod bridge;
mod error;
mod ffi;
pub mod known_hosts;
mod lane;
mod ledger;
pub mod material;
pub mod rpc;
mod slot;
pub mod ssh;
mod wedge;

pub use self::ffi::{AgentInterface, DhcpLease, agent_interfaces, dhcp_leases, domain_state, set_agent_timeout};

/// Where libvirt listens: the monolithic daemon, then the modular one.
const SOCKETS: [&str; 2] = ["/run/libvirt/libvirt-sock", "/run/libvirt/virtqemud-sock"];
/// The call that shows whether a daemon can get at each of its domains.
const LISTS: &str = "virConnectListAllDomains";

/// Time limits of a link.
#[derive(Debug, Clone)]
pub struct Limits {
    pub ssh: SshLimits,
    /// For the name of the host.
    pub dns: Duration,
    /// For the channel to libvirt's socket.
    pub channel: Duration,
    /// For `virConnectOpen`.
    pub open: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ssh: SshLimits::default(),
            dns: Duration::from_secs(5),
            channel: Duration::from_secs(5),
            open: Duration::from_secs(5),
        }
    }
}

/// Which host, and how.
#[derive(Debug, Clone)]
pub struct Destination {
    pub provider: String,
    pub host: String,
    pub target: SshTarget,
    /// Else the usual paths are tried in turn.
    pub socket: Option<String>,
}

/// The links to one host.
pub struct Link {
    inner: Arc<Inner>,
}

struct Inner {
    to: Destination,
    limits: Limits,
    material: Arc<MaterialFiles>,
    dns: Dns,
    /// What the SSH connections and the timers of ordinary lanes run on, and those of transfers.
    main: Handle,
    bulk: Handle,
    sockets: Mutex<Option<Arc<SocketDir>>>,
    ssh: Mutex<Slot<SshConnection>>,
    lanes: [Mutex<Slot<Arc<Generation>>>; 3],
    ledger: Mutex<Ledger>,
    next: AtomicU64,
    /// The link is gone: nothing new is kept.
    ended: AtomicBool,
    own: Weak<Inner>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("to", &self.inner.to).finish_non_exhaustive()
    }
}

/// What the host is known to be doing without us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub is_up: bool,
    /// Calls that were given up and may still run there.
    pub outstanding: usize,
    pub is_wedged: bool,
    pub is_pool_stuck: bool,
}

impl Link {
    /// Touches nothing yet. Must be made inside a runtime, or be given one.
    pub fn new(
        to: Destination,
        material: Arc<MaterialFiles>,
        dns: Dns,
        limits: Limits,
        main: Handle,
        bulk: Handle,
    ) -> Self {
        let inner = Arc::new_cyclic(|own| Inner {
            to,
            limits,
            material,
            dns,
            main,
            bulk,
            sockets: Mutex::new(None),
            ssh: Mutex::new(Slot::Empty),
            lanes: std::array::from_fn(|_| Mutex::new(Slot::Empty)),
            ledger: Mutex::default(),
            next: AtomicU64::new(1),
            ended: AtomicBool::new(false),
            own: own.clone(),
        });
        Self { inner }
    }

    /// Has a lane do some work of one or a few RPCs within `limit`, connections included. `rpc` names it in errors.
    ///
    /// A connection that turns out to have ended before the work was begun is made anew, once (fault 13).
    pub fn call<T: Send + 'static>(
        &self,
        kind: LaneKind,
        rpc: &'static str,
        limit: Duration,
        work: impl FnOnce(&Libvirt<'_>) -> Result<T, RpcError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, LinkError>> {
        // Boxed: what is made of it is kept in many a state.
        Box::pin(async move {
            let inner = &self.inner;
            let (deadline, awaited) = (Instant::now() + limit, kind.awaits());
            let (mut work, mut may_again) = (work, true);
            loop {
                inner.would_admit(awaited)?;
                let was_up = self.is_up();
                let lane = match tokio::time::timeout_at(deadline.into(), inner.generation(kind)).await {
                    Ok(Ok(lane)) => lane,
                    Ok(Err(error)) if may_again && was_up && error.is_lost_link() => {
                        may_again = false;
                        continue;
                    }
                    Ok(Err(error)) => return Err(error),
                    Err(_) => return Err(LinkError::Unanswered(rpc, limit, Unanswered::NotBegun)),
                };
                // Others may have been cut while we waited for the connection.
                inner.admit(awaited)?;
                // Whoever takes it out has it: a thread, or we again.
                let place = Arc::new(Mutex::new(Some(work)));
                let own = place.clone();
                let answered = lane.submit(rpc, awaited, deadline, move |libvirt: &Libvirt<'_>| {
                    let work = lock(&own).take();
                    work.map_or_else(|| Err(RpcError::unreadable(rpc, "it was taken back")), |work| work(libvirt))
                });
                let result = outcome(rpc, limit, answered.await);
                match &result {
                    Ok(_) if rpc == LISTS => inner.ledger(|ledger| ledger.daemon_answers(Instant::now())),
                    // What it waits behind may be the pool.
                    Err(LinkError::Unanswered(.., Unanswered::NotBegun)) => inner.would_admit(awaited)?,
                    Err(LinkError::Unanswered(.., Unanswered::Broken(_))) => {
                        if let Some(back) = lock(&place).take() {
                            if !may_again {
                                return Err(gone());
                            }
                            (work, may_again) = (back, false);
                            continue;
                        }
                    }
                    Ok(_) | Err(_) => {}
                }
                return result;
            }
        })
    }

    /// A lane of its own over an SSH connection of its own, for one transfer or one check. It goes with the value.
    pub fn apart(&self, kind: LaneKind, limit: Duration) -> BoxFuture<'_, Result<Apart, LinkError>> {
        Box::pin(async move {
            let inner = &self.inner;
            inner.would_admit(kind.awaits())?;
            let runtime = if kind == LaneKind::Bulk { &inner.bulk } else { &inner.main };
            let own = inner.clone();
            let task = runtime.spawn(async move {
                let ssh = own.dial().await?;
                let lane = own.open(kind, &ssh, Some(own.limits.open)).await?;
                Ok(Apart { lane, ssh, inner: own })
            });
            let abort = AbortOnDrop(task.abort_handle());
            let result = match tokio::time::timeout(limit, task).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(LinkError::NoLink(OpError::transient(Reason::Internal, "the dialling task ended"))),
                Err(_) => Err(LinkError::Unanswered("virConnectOpen", limit, Unanswered::NotBegun)),
            };
            drop(abort);
            result
        })
    }

    /// Whether a call may begin that touches the pool without being one to it: libvirtd starts and ends a domain with its
    /// lock held, and whoever lists domains waits behind one whose disk hangs.
    pub fn would_reach_the_pool(&self) -> Result<(), LinkError> {
        self.inner.would_admit(Awaited::Pool)
    }

    pub fn standing(&self) -> Standing {
        let is_up = self.is_up();
        let ledger = lock(&self.inner.ledger);
        Standing {
            is_up,
            outstanding: ledger.outstanding(),
            is_wedged: ledger.is_wedged(),
            is_pool_stuck: ledger.is_pool_stuck(),
        }
    }

    fn is_up(&self) -> bool {
        matches!(&*lock(&self.inner.ssh), Slot::Up(ssh) if ssh.is_well())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.inner.end();
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Inner {
    /// The one way to the ledger that changes it: the gauge follows.
    fn ledger<R>(&self, change: impl FnOnce(&mut Ledger) -> R) -> R {
        let mut ledger = lock(&self.ledger);
        let before = ledger.outstanding();
        let result = change(&mut ledger);
        let outstanding = ledger.outstanding();
        // Under the lock: of two changes the later one is shown.
        if outstanding != before && !self.has_ended() {
            self.show(outstanding);
        }
        result
    }

    fn show(&self, outstanding: usize) {
        let labels = [("provider", self.to.provider.clone()), ("host", self.to.host.clone())];
        gauge!(names::HOST_CALLS_OUTSTANDING, &labels).set(f64::from(u32::try_from(outstanding).unwrap_or(u32::MAX)));
    }

    fn would_admit(&self, awaited: Awaited) -> Result<(), LinkError> {
        Ok(lock(&self.ledger).would_admit(awaited, Instant::now())?)
    }

    fn admit(&self, awaited: Awaited) -> Result<(), LinkError> {
        Ok(self.ledger(|ledger| ledger.admit(awaited, Instant::now()))?)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The lane's generation: the one that is up, or the one that is being opened, or a new one.
    async fn generation(&self, kind: LaneKind) -> Result<Arc<Generation>, LinkError> {
        let at = match kind {
            LaneKind::Control => 0,
            LaneKind::Agent => 1,
            LaneKind::Storage => 2,
            LaneKind::Bulk | LaneKind::Check => unreachable!("these are opened by `apart`"),
        };
        let own = self.own.upgrade().ok_or_else(gone)?;
        let making = own.clone();
        let make = Box::pin(async move {
            let ssh = making.ssh().await?;
            making.open(kind, &ssh, Some(making.limits.open)).await
        });
        once(&own, move |inner| &inner.lanes[at], make).await
    }

    /// The SSH connection of control, agent and storage.
    async fn ssh(&self) -> Result<SshConnection, LinkError> {
        let own = self.own.upgrade().ok_or_else(gone)?;
        let labels = [("provider", self.to.provider.clone()), ("host", self.to.host.clone())];
        let making = own.clone();
        let make = Box::pin(async move {
            let dialled = making.dial().await;
            gauge!(names::HOST_LINK_UP, &labels).set(if dialled.is_ok() { 1.0 } else { 0.0 });
            let ssh = dialled?;
            let (closed, weak) = (ssh.clone(), making.own.clone());
            // Its lanes end by themselves, as their bridges do.
            tokio::spawn(async move {
                closed.closed().await;
                if let Some(inner) = weak.upgrade() {
                    tracing::info!(provider = inner.to.provider, host = inner.to.host, "the SSH connection has ended");
                    // Unless there is another one already.
                    if matches!(&*lock(&inner.ssh), Slot::Up(ssh) if ssh.is_well()) {
                        return;
                    }
                }
                gauge!(names::HOST_LINK_UP, &labels).set(0.0);
            });
            Ok(ssh)
        });
        once(&own, |inner| &inner.ssh, make).await
    }

    async fn dial(&self) -> Result<SshConnection, LinkError> {
        let target = &self.to.target;
        let material = self.material.read().await.map_err(LinkError::NoLink)?;
        let addresses = self.dns.look_up(&target.address, self.limits.dns).await.map_err(|error| {
            LinkError::NoLink(OpError::transient(
                Reason::Unreachable,
                format!("cannot find host `{}`: {error}", self.to.host),
            ))
        })?;
        let addresses: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, target.port)).collect();
        SshConnection::dial(target, &addresses, &material, &self.limits.ssh).await.map_err(LinkError::NoLink)
    }

    async fn open(
        &self,
        kind: LaneKind,
        ssh: &SshConnection,
        within: Option<Duration>,
    ) -> Result<Arc<Generation>, LinkError> {
        let paths: Vec<&str> = self.to.socket.as_deref().map_or_else(|| SOCKETS.to_vec(), |path| vec![path]);
        let channel = ssh.open_socket(&paths, self.limits.channel).await.map_err(LinkError::NoLink)?;
        let internal = |error: std::io::Error| {
            LinkError::NoLink(OpError::transient(
                Reason::Internal,
                format!("cannot make a socket for libvirt: {error}"),
            ))
        };
        let dir = self.socket_dir().map_err(internal)?;
        let bridge = Bridge::start(&dir, channel).map_err(internal)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let whose = Whose { provider: self.to.provider.clone(), host: self.to.host.clone() };
        let overseer =
            Arc::new(Seen { inner: self.own.clone(), provider: self.to.provider.clone(), host: self.to.host.clone() });
        let mut opening = Opening { inner: self, kind, counts: within.is_some() };
        let opened = Generation::open(kind, number, whose, bridge, within, overseer).await;
        opening.counts = matches!(opened, Err(Unanswered::Late));
        drop(opening);
        match opened {
            Ok(generation) => Ok(generation),
            Err(Unanswered::Broken(Some(error))) if !error.is_broken_connection() => Err(LinkError::Rpc(error)),
            Err(unanswered) => Err(LinkError::Unanswered("virConnectOpen", within.unwrap_or_default(), unanswered)),
        }
    }

    fn socket_dir(&self) -> std::io::Result<Arc<SocketDir>> {
        let mut kept = lock(&self.sockets);
        if let Some(dir) = &*kept {
            return Ok(dir.clone());
        }
        let dir = Arc::new(SocketDir::new()?);
        *kept = Some(dir.clone());
        Ok(dir)
    }

    /// A call was cut and may go on without us.
    fn lost(&self, awaited: Awaited, kind: LaneKind, rpc: &'static str) {
        let (wedges, outstanding) = self.ledger(|ledger| (ledger.lose(awaited, Instant::now()), ledger.outstanding()));
        counter!(names::HOST_LINK_TEARDOWNS_TOTAL).increment(1);
        let (provider, host) = (&self.to.provider, &self.to.host);
        tracing::warn!(
            provider,
            host,
            lane = kind.as_str(),
            rpc,
            outstanding,
            "a call did not come back: its lane is cut"
        );
        if wedges && let Some(own) = self.own.upgrade() {
            tracing::error!(
                provider,
                host,
                outstanding,
                "too many calls that were cut may still run on this host: nothing is begun there until it answers"
            );
            self.main.spawn(until_it_answers(Arc::downgrade(&own)));
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        for lane in &self.lanes {
            let kept = std::mem::replace(&mut *lock(lane), Slot::Empty);
            if let Slot::Up(lane) = kept {
                lane.end();
            }
        }
        let kept = std::mem::replace(&mut *lock(&self.ssh), Slot::Empty);
        if let Slot::Up(ssh) = kept {
            ssh.abort();
        }
        // Of a host that is no longer configured nobody shows anything more.
        self.show(0);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
