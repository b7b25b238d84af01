//! The keeper: one OS thread that owns the fleet and the store, and a queue to it.
//!
//! ```text
//! watching thread --- Look --------.
//! Records --- Write, Exists -------+--> [queue] --> keeper: change in memory -> commit -> tell consumers -> answer
//! ProxySource --- Nudge -----------'
//! ```
//! A thread of its own and not `spawn_blocking`: every commit is an fsync, and tokio's blocking pool is shared with work
//! that must not wait for our disk. Writes that are waiting are committed together, so a thousand adoptions cost a few
//! fsyncs. Nothing is told to anybody before it is stored. The queue is bounded: over its bound a write is `Busy`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, ProxyKey, Uid};
use egress_actors::domain::reason::Reason;
use egress_actors::names;
use egress_actors::ports::SourceEvent;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::fleet::{Fleet, HeldBack};
use super::manifests::Unreadable;
use super::secrets::Shelf;
use super::store::Store;
use super::stream::Subscriber;
use super::view::View;
use super::{Problem, Shared};
use crate::crd::proxy::ProxyStatus;

/// Jobs that may wait. The writers above are bounded far below that.
const QUEUE: usize = 4096;

/// Writes in one commit: enough to spare fsyncs, few enough that the first of them does not wait long.
const BATCH: usize = 512;

/// Consumers that came before the first look wait for it this long, and then get what is stored: a directory that hangs
/// must not keep stored proxies from being served.
const FIRST_LOOK_WITHIN: Duration = Duration::from_secs(5);

pub(super) enum Job {
    /// The watching thread has looked; what it saw is in `Shared::look`.
    Look,
    Write(Write, oneshot::Sender<Result<(), OpError>>),
    Exists(ProxyKey, Uid, oneshot::Sender<bool>),
    /// Every object is to go, and DIR says nothing any more.
    Leave,
    /// A consumer has come.
    Nudge,
    Stop,
    /// What a defect would do.
    #[cfg(test)]
    Crash,
}

/// A write of the operator's own.
pub(super) enum Write {
    Adopt(ProxyKey, Uid, Option<HostName>),
    Release(ProxyKey, Uid),
    Status(ProxyKey, Uid, Box<ProxyStatus>),
    Drain(ProxyKey, Uid, bool),
}

/// The way to the keeper.
#[derive(Debug, Clone)]
pub(super) struct Queue(SyncSender<Job>);

impl Queue {
    pub(super) fn new() -> (Self, Receiver<Job>) {
        let (sender, receiver) = sync_channel(QUEUE);
        (Self(sender), receiver)
    }

    /// Never waits.
    pub(super) fn offer(&self, job: Job) -> Result<(), OpError> {
        self.0.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => OpError::transient(Reason::Busy, "the store of standalone mode is behind"),
            TrySendError::Disconnected(_) => closed(),
        })
    }

    /// Waits for a place: for the watching thread, and for the end. False if the keeper has ended.
    pub(super) fn push(&self, job: Job) -> bool {
        self.0.send(job).is_ok()
    }
}

pub(super) fn closed() -> OpError {
    OpError::transient(Reason::Internal, "the store of standalone mode is closed")
}

pub(super) struct Keeper {
    pub(super) fleet: Fleet,
    pub(super) shelf: Shelf,
    pub(super) store: Store,
    pub(super) shared: Arc<Shared>,
    pub(super) jobs: Receiver<Job>,
    pub(super) directory: String,
    /// Consumers that have got their first list.
    pub(super) served: Vec<Arc<Subscriber>>,
    pub(super) looked: bool,
    /// The latest look, if all that follows from it is done and stored.
    pub(super) settled: Option<View>,
    pub(super) unreadable: Option<String>,
    /// Everybody gets a new list after the next commit.
    pub(super) relist: bool,
    /// Whether the last commit failed: said once, not with every look.
    pub(super) failing: bool,
}

impl Keeper {
    /// Works until it is told to stop, or nobody can send any more.
    pub(super) fn run(mut self) {
        let started = Instant::now();
        let mut next = None;
        loop {
            self.serve_new(started.elapsed() >= FIRST_LOOK_WITHIN);
            let job = match next.take() {
                Some(job) => job,
                None => match self.jobs.recv_timeout(Duration::from_secs(1)) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            };
            match job {
                Job::Write(..) | Job::Look | Job::Leave => next = self.batch(job),
                Job::Exists(key, uid, answer) => drop(answer.send(self.fleet.exists(&key, &uid))),
                Job::Nudge => {}
                Job::Stop => return,
                #[cfg(test)]
                Job::Crash => panic!("the keeper was asked to crash"),
            }
        }
    }

    /// Changes of this job and of those that wait behind it, in one commit; returned is the first that is no change.
    fn batch(&mut self, first: Job) -> Option<Job> {
        let mut answers = Vec::new();
        let mut next = Some(first);
        let mut secrets = Vec::new();
        for _ in 0..BATCH {
            match next.take() {
                Some(Job::Write(write, answer)) => answers.push((self.write(write), answer)),
                Some(Job::Look) => {
                    let look = self.shared.look.lock().unwrap_or_else(PoisonError::into_inner).take();
                    if let Some(look) = look {
                        secrets.extend(self.look(look));
                    }
                }
                Some(Job::Leave) => {
                    self.settled = None;
                    self.fleet.leave(&Time(Timestamp::now()));
                }
                other => {
                    next = other;
                    break;
                }
            }
            next = self.jobs.try_recv().ok();
        }
        let stored = self.commit();
        // Secrets first: who hears of a Proxy may ask for its credentials at once.
        self.tell(secrets);
        if stored.is_ok() {
            let events = self.fleet.written();
            let relist = std::mem::take(&mut self.relist);
            self.tell(if relist { self.fleet.list() } else { events });
        } else {
            self.fleet.undo();
            self.settled = None;
        }
        for (result, answer) in answers {
            // A caller that is gone has passed its deadline: the write stands all the same.
            let _ = answer.send(result.and_then(|()| stored.clone()));
        }
        next
    }

    fn write(&mut self, write: Write) -> Result<(), OpError> {
        self.settled = None;
        match write {
            Write::Adopt(key, uid, host) => self.fleet.adopt(&key, &uid, host.as_ref()),
            Write::Release(key, uid) => {
                self.fleet.release(&key, &uid);
                Ok(())
            }
            Write::Status(key, uid, status) => self.fleet.write_status(&key, &uid, *status),
            Write::Drain(key, uid, drain) => self.fleet.annotate_drain(&key, &uid, drain),
        }
    }

    fn commit(&mut self) -> Result<(), OpError> {
        let dirty = self.fleet.dirty();
        if dirty.is_empty() {
            return Ok(());
        }
        let result = self.store.commit(dirty.iter().map(|key| self.fleet.row(key)));
        let was_failing = std::mem::replace(&mut self.failing, result.is_err());
        result.map_err(|detail| {
            if !was_failing {
                error!(error = detail, "cannot write the store of standalone mode: nothing changes until it can be");
            }
            OpError::transient(Reason::Internal, detail)
        })
    }

    fn look(&mut self, look: Result<View, Unreadable>) -> Vec<SourceEvent> {
        self.looked = true;
        let (mut problems, mut events) = (Vec::new(), Vec::new());
        match look {
            // The usual case, and all that an idle fleet costs.
            Ok(view) if self.settled.as_ref().is_some_and(|settled| settled.is_same_as(&view)) => {
                self.looked_now();
                return events;
            }
            Ok(view) => {
                let now = Instant::now();
                problems.extend(view.problems());
                events = self.shelf.look(&view, now, &mut problems);
                problems.extend(self.fleet.look(&view, now, &Time(Timestamp::now())));
                if self.unreadable.take().is_some() {
                    info!(dir = self.directory, "the manifests directory can be read again");
                    // What was missed meanwhile does not matter: everybody gets a new list.
                    self.relist = true;
                }
                problems.extend(self.held_back());
                let done = self.fleet.dirty().is_empty() && !self.fleet.is_waiting() && !self.shelf.is_waiting();
                self.settled = done.then_some(view);
            }
            Err(Unreadable { message }) => {
                self.settled = None;
                self.fleet.unreadable();
                self.shelf.unreadable();
                problems.push(Problem { file: self.directory.clone(), line: 0, message: message.clone() });
                if self.unreadable.as_ref() != Some(&message) {
                    events.push(SourceEvent::Unreadable(unreadable(&message)));
                    self.unreadable = Some(message);
                }
            }
        }
        self.report(problems);
        self.looked_now();
        events
    }

    fn looked_now(&self) {
        *self.shared.looked_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn held_back(&self) -> Option<Problem> {
        let held = self.fleet.held_back();
        let count = held.as_ref().map_or(0, |held| held.proxies.len());
        let before = self.shared.held_back.swap(count, Ordering::Relaxed);
        let proxies = held.as_ref().map_or_else(String::new, HeldBack::names);
        if before == 0 && count > 0 {
            tracing::error!(
                dir = self.directory,
                held_back = count,
                proxies,
                "most of the fleet is gone from the manifests at once: nothing is removed until a person decides"
            );
        } else if count > before {
            warn!(
                dir = self.directory,
                held_back = count,
                proxies,
                "more manifests are gone while most of the fleet is: held back with the others, as it may be the same \
                 accident"
            );
        }
        #[allow(clippy::cast_precision_loss, reason = "nobody has 2^52 proxies")]
        metrics::gauge!(names::STANDALONE_REMOVALS_HELD_BACK).set(count as f64);
        held.map(|held| Problem { file: self.directory.clone(), line: 0, message: held.to_string() })
    }

    /// Keeps the problems for who asks, and logs what is new once.
    fn report(&self, problems: Vec<Problem>) {
        let new: BTreeSet<_> = problems.into_iter().collect();
        let mut known = self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in new.difference(&known) {
            warn!(file = problem.file, line = problem.line, error = problem.message, "a manifest is not right");
        }
        for problem in known.difference(&new) {
            info!(file = problem.file, line = problem.line, error = problem.message, "no longer a problem");
        }
        #[allow(clippy::cast_precision_loss, reason = "nobody has 2^52 manifests")]
        metrics::gauge!(names::STANDALONE_MANIFEST_PROBLEMS).set(new.len() as f64);
        *known = new;
    }

    fn tell(&mut self, events: Vec<SourceEvent>) {
        self.served.retain(|consumer| !consumer.is_closed());
        for event in events {
            for consumer in &self.served {
                consumer.push(event.clone());
            }
        }
    }

    /// Gives new consumers their first list, once there was a look or it takes too long.
    fn serve_new(&mut self, late: bool) {
        if !self.looked && !late {
            return;
        }
        let new = std::mem::take(&mut *self.shared.new_consumers.lock().unwrap_or_else(PoisonError::into_inner));
        for consumer in new {
            for event in self.fleet.list() {
                consumer.push(event);
            }
            if let Some(message) = &self.unreadable {
                consumer.push(SourceEvent::Unreadable(unreadable(message)));
            }
            self.served.push(consumer);
        }
    }
}

fn unreadable(message: &str) -> OpError {
    OpError::transient(Reason::ConfigInvalid, message)
}
