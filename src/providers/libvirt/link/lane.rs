//! One generation of a lane: a libvirt connection over a bridge, the threads that use it, and the clock over them.
//!
//! Calls of libvirt block, so each lane has OS threads of its own, and nothing of this runs on tokio's. A call has a
//! deadline, and a timer of the lane stands over it: whoever asked may be gone by then. When it passes, the answer is
//! `Late`, and the generation is cut: our end of the bridge is shut, every C call on it returns, the threads end. A late
//! call to a pool is left as it is instead ([`super::ledger`]).

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use super::bridge::Bridge;
use super::ffi::Connection;
use super::ledger::Awaited;
use super::rpc::{Libvirt, RpcError, milliseconds};

/// How many calls may wait for a thread of a lane.
const QUEUE: usize = 64;
/// A C call on a socket that we have shut returns within a millisecond; one that does not is given up with its thread.
const RETURNS_WITHIN: Duration = Duration::from_secs(1);

/// Which lane: each has its own libvirt connection, so that what blocks one blocks none of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// Domains and networks.
    Control,
    /// Calls that the guest agent answers.
    Agent,
    /// Short calls to the pool.
    Storage,
    /// Long transfers into the pool, on an SSH connection of their own.
    Bulk,
    /// Looks at the host's health, on an SSH connection of their own.
    Check,
}

impl LaneKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Agent => "agent",
            Self::Storage => "storage",
            Self::Bulk => "bulk",
            Self::Check => "check",
        }
    }

    /// What a call of this lane waits for, if nobody says otherwise.
    pub(super) const fn awaits(self) -> Awaited {
        match self {
            Self::Control | Self::Check => Awaited::Daemon,
            Self::Agent => Awaited::Agent,
            Self::Storage | Self::Bulk => Awaited::Pool,
        }
    }

    /// libvirtd takes five requests at a time from one connection, and hangs it at the fifth (faults 21, (i)).
    const fn threads(self) -> usize {
        match self {
            Self::Control => 3,
            Self::Agent => 2,
            Self::Storage | Self::Bulk | Self::Check => 1,
        }
    }
}

/// Why a call of a lane has no answer of libvirt's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unanswered {
    /// It was begun, and its deadline passed.
    Late,
    /// It was not begun before its deadline.
    NotBegun,
    /// The lane's queue is full.
    Full,
    /// The connection ended under it, or before it.
    Broken(Option<RpcError>),
}

/// What a generation tells its link.
pub(super) trait Overseer: Send + Sync + 'static {
    /// A call is past its deadline. True: the generation is to be cut; false: the call stays where it is.
    /// Said before [`Overseer::back`] of the same call, if that ever comes.
    fn late(&self, lane: &Core, call: u64, rpc: &'static str, awaited: Awaited) -> bool;
    /// A call was given up before its deadline, as its generation was cut: it may go on at the host.
    fn lost(&self, lane: &Core, rpc: &'static str, awaited: Awaited);
    /// A call came back. `broken`: its connection did not hold.
    fn back(&self, lane: &Core, call: u64, broken: bool);
    /// A thread did not come back from a C call though its socket is shut; or came back after all.
    fn thread_abandoned(&self, abandoned: bool);
}

/// True: its connection broke under it.
type Work = Box<dyn FnOnce(&Libvirt<'_>) -> bool + Send>;

struct Job {
    id: u64,
    work: Work,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Queued,
    Begun,
    /// Whoever asked was told so; the C call is still out.
    Late,
    /// Its thread did not come back from a shut socket.
    Abandoned,
}

struct Call {
    rpc: &'static str,
    awaited: Awaited,
    deadline: Instant,
    stage: Stage,
    /// Tells whoever asked that there is no answer. False, and without effect, if there was one.
    refuse: Box<dyn Fn(Unanswered) -> bool + Send>,
}

/// A connection with its threads. They end with it.
pub(super) struct Generation(Arc<Core>);

/// What the threads and the clock have of it.
pub(super) struct Core {
    pub(super) kind: LaneKind,
    pub(super) number: u64,
    provider: String,
    host: String,
    bridge: Bridge,
    jobs: Mutex<Option<SyncSender<Job>>>,
    calls: Mutex<HashMap<u64, Call>>,
    next: AtomicU64,
    changed: Notify,
    ended: AtomicBool,
    overseer: Arc<dyn Overseer>,
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("kind", &self.0.kind).field("number", &self.0.number).finish_non_exhaustive()
    }
}

impl Deref for Generation {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Names of a generation, for logs.
#[derive(Debug, Clone)]
pub(super) struct Whose {
    pub(super) provider: String,
    pub(super) host: String,
}

impl Generation {
    /// Opens libvirt over the bridge, on a thread of its own. `within`: None leaves the open uncut however long it takes.
    pub(super) async fn open(
        kind: LaneKind,
        number: u64,
        whose: Whose,
        bridge: Bridge,
        within: Option<Duration>,
        overseer: Arc<dyn Overseer>,
    ) -> Result<Arc<Self>, Unanswered> {
        let (uri, (done, opened)) = (bridge.uri(), oneshot::channel());
        let (provider, host) = (whose.provider.clone(), whose.host.clone());
        let begun = Instant::now();
        let thread = thread::Builder::new().name(format!("virt-{}-open", kind.as_str())).spawn(move || {
            let opened = Connection::open(&uri).map_err(|error| RpcError::new("virConnectOpen", &error));
            let ms = milliseconds(begun);
            let error = opened.as_ref().err().map(|e| e.message.as_str());
            tracing::debug!(
                rpc = "virConnectOpen",
                provider,
                host,
                lane = kind.as_str(),
                durationMs = ms,
                libvirtError = error,
                "libvirt call"
            );
            // Nobody there any more: the connection closes here, on a thread that may wait.
            let _ = done.send(opened);
        });
        if thread.is_err() {
            return Err(Unanswered::Broken(None));
        }
        // Declared in this order so that, when this future is dropped, the bridge is cut before an answer that nobody took is
        // closed: to close waits for the daemon (fault 18).
        let mut opened = opened;
        let bridge = bridge;
        let answer = match within {
            None => (&mut opened).await,
            Some(limit) => {
                let Ok(answer) = tokio::time::timeout(limit, &mut opened).await else {
                    bridge.cut();
                    if tokio::time::timeout(RETURNS_WITHIN, &mut opened).await.is_err() {
                        overseer.thread_abandoned(true);
                        tokio::spawn(async move {
                            let _ = opened.await;
                            overseer.thread_abandoned(false);
                        });
                    }
                    return Err(Unanswered::Late);
                };
                answer
            }
        };
        let connection = match answer {
            Ok(Ok(connection)) => Arc::new(connection),
            Ok(Err(error)) => return Err(Unanswered::Broken(Some(error))),
            Err(_) => return Err(Unanswered::Broken(None)),
        };
        let (jobs, queue) = sync_channel(QUEUE);
        let core = Arc::new(Core {
            kind,
            number,
            provider: whose.provider,
            host: whose.host,
            bridge,
            jobs: Mutex::new(Some(jobs)),
            calls: Mutex::default(),
            next: AtomicU64::new(1),
            changed: Notify::new(),
            ended: AtomicBool::new(false),
            overseer,
        });
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..kind.threads() {
            let (own, queue, connection) = (core.clone(), queue.clone(), connection.clone());
            let spawned = thread::Builder::new()
                .name(format!("virt-{}-{n}", kind.as_str()))
                .spawn(move || own.serve(&queue, &connection));
            if spawned.is_err() && n == 0 {
                core.end();
                return Err(Unanswered::Broken(None));
            }
        }
        drop(connection);
        tokio::spawn(watch(core.clone()));
        Ok(Arc::new(Self(core)))
    }
}

impl Core {
    /// Has a thread of this lane do the work. The deadline stands whether or not anybody waits for the answer.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        rpc: &'static str,
        awaited: Awaited,
        deadline: Instant,
        work: impl FnOnce(&Libvirt<'_>) -> Result<T, RpcError> + Send + 'static,
    ) -> oneshot::Receiver<Result<Result<T, RpcError>, Unanswered>> {
        let (answer, answered) = oneshot::channel();
        let answer = Arc::new(Mutex::new(Some(answer)));
        let say = move |what| {
            let answer = lock(&answer).take();
            answer.map(|answer| answer.send(what)).is_some()
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let refuse = say.clone();
        let refuse = Box::new(move |why| refuse(Err(why)));
        lock(&self.calls).insert(id, Call { rpc, awaited, deadline, stage: Stage::Queued, refuse });
        let work: Work = Box::new(move |libvirt| match work(libvirt) {
            Err(error) if error.is_broken_connection() => {
                say(Err(Unanswered::Broken(Some(error))));
                true
            }
            result => {
                say(Ok(result));
                false
            }
        });
        let sent = lock(&self.jobs).as_ref().map(|jobs| jobs.try_send(Job { id, work }));
        let refused = match sent {
            Some(Ok(())) => None,
            Some(Err(TrySendError::Full(_))) => Some(Unanswered::Full),
            None | Some(Err(TrySendError::Disconnected(_))) => Some(Unanswered::Broken(None)),
        };
        if let Some(why) = refused {
            let call = lock(&self.calls).remove(&id);
            call.map(|call| (call.refuse)(why));
        }
        self.changed.notify_one();
        answered
    }

    /// What a thread of the lane does.
    fn serve(&self, queue: &Mutex<Receiver<Job>>, connection: &Connection) {
        let libvirt = Libvirt { connection, provider: &self.provider, host: &self.host, lane: self.kind.as_str() };
        loop {
            let job = lock(queue).recv();
            let Ok(Job { id, work }) = job else { return };
            match lock(&self.calls).get_mut(&id) {
                Some(call) => call.stage = Stage::Begun,
                // Its deadline passed while it waited, or the lane ended.
                None => continue,
            }
            // A panic ends this call, whose asker hears that it broke, and not the lane.
            let broken = catch_unwind(AssertUnwindSafe(|| work(&libvirt))).unwrap_or(false);
            let call = lock(&self.calls).remove(&id);
            match call {
                Some(call) if call.stage == Stage::Abandoned => self.overseer.thread_abandoned(false),
                // What waits for a pool still does when its connection goes, as one that was silent for too long (fault 13).
                Some(call) if broken && call.stage == Stage::Begun && call.awaited == Awaited::Pool => {
                    self.overseer.lost(self, call.rpc, call.awaited);
                }
                Some(_) | None => {}
            }
            if broken {
                self.end();
            }
            self.overseer.back(self, id, broken);
        }
    }

    /// Shuts our end of the bridge: every call on it returns, and nothing new is begun.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        lock(&self.jobs).take();
        // A thread begins a call under this lock, and only if it is still there.
        lock(&self.calls).retain(|_, call| {
            let is_queued = call.stage == Stage::Queued;
            if is_queued {
                (call.refuse)(Unanswered::Broken(None));
            }
            !is_queued
        });
        self.bridge.cut();
        self.changed.notify_one();
    }

    /// Ends it, and counts what it was at: that goes on at the host.
    pub(super) fn abandon(&self) {
        for call in lock(&self.calls).values_mut().filter(|call| call.stage == Stage::Begun) {
            call.stage = Stage::Late;
            if (call.refuse)(Unanswered::Broken(None)) {
                self.overseer.lost(self, call.rpc, call.awaited);
            }
        }
        self.end();
    }

    /// Answers for the calls whose time is over.
    fn on_time(&self, now: Instant) {
        let (mut cut, mut stays) = (false, false);
        // Under the lock that a call which comes back takes first: else it could be told as late after it was told as back.
        lock(&self.calls).retain(|id, call| {
            if call.stage >= Stage::Late || now < call.deadline {
                return true;
            }
            if call.stage == Stage::Queued {
                (call.refuse)(Unanswered::NotBegun);
                return false;
            }
            call.stage = Stage::Late;
            if (call.refuse)(Unanswered::Late) {
                let is_cut = self.overseer.late(self, *id, call.rpc, call.awaited);
                (cut, stays) = (cut || is_cut, stays || !is_cut);
            }
            true
        });
        if cut {
            self.abandon();
        } else if stays {
            // Nothing can begin behind it.
            lock(&self.calls).retain(|_, call| {
                let is_queued = call.stage == Stage::Queued;
                if is_queued {
                    (call.refuse)(Unanswered::NotBegun);
                }
                !is_queued
            });
        }
    }

    /// What did not come back from a shut socket is answered for, and counted.
    fn give_up(&self) {
        for call in lock(&self.calls).values_mut() {
            (call.refuse)(Unanswered::Broken(None));
            call.stage = Stage::Abandoned;
            self.overseer.thread_abandoned(true);
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// The clock over the calls of a generation, for as long as it has threads.
async fn watch(core: Arc<Core>) {
    loop {
        let next = lock(&core.calls).values().filter(|c| c.stage < Stage::Late).map(|c| c.deadline).min();
        let changed = core.changed.notified();
        match next {
            _ if core.has_ended() => break,
            None => {
                tokio::select! {
                    () = changed => {}
                    () = core.bridge.ended() => core.end(),
                }
            }
            Some(at) => {
                tokio::select! {
                    () = changed => {}
                    () = core.bridge.ended() => core.end(),
                    () = tokio::time::sleep_until(at.into()) => core.on_time(Instant::now()),
                }
            }
        }
    }
    // Shut: the C calls come back, or are given up with their threads.
    tokio::time::sleep(RETURNS_WITHIN).await;
    core.give_up();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
