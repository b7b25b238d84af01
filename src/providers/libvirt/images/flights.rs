//! One fetch for each host and image, however many ask.
//!
//! Owns the tasks: they run on a runtime of their own, live until they end, are stopped, or nobody has asked for a
//! while, and are aborted with the [`Flights`]. Callers wait as long as they like; one that stops waiting stops nothing.
//! A failure is kept for a back-off, so that a hundred Proxies do not begin a hundred downloads.
//!
//! Bounded: flights, transfers at once, and one transfer at once for each host (two would share one SSH connection).

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use egress_actors::domain::backoff::Backoff;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, ProviderName};
use egress_actors::domain::reason::Reason;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::info;

use super::progress::{Progress, Reading, fetching};
use super::{Base, Wanted};

/// A base that was just seen is not looked for again for this long: many Proxies are made at once.
const READY_KEPT: Duration = Duration::from_secs(10);
/// A stopped fetch has this long to delete its part.
const STOP_WITHIN: Duration = Duration::from_secs(60);

/// A host of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    pub provider: ProviderName,
    pub host: HostName,
}

/// A host, and the base's stem.
type Key = (Site, String);

/// Bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Transfers at once, over all hosts; each takes about 3 MB.
    pub transfers: usize,
    /// Flights known at once, under way or ended a moment ago.
    pub flights: usize,
    /// A flight that nobody asked for this long is stopped.
    pub forgotten_after: Duration,
    /// The first and the longest time for which a failure is kept.
    pub failure_kept: (Duration, Duration),
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            transfers: 8,
            flights: 512,
            forgotten_after: Duration::from_mins(15),
            failure_kept: (Duration::from_secs(5), Duration::from_mins(5)),
        }
    }
}

/// What is counted.
pub trait Meter: Send + Sync {
    /// So many bytes more were handed to this host's pool.
    fn moved(&self, site: &Site, bytes: u64);
    /// A transfer to this host began (`true`) or ended.
    fn running(&self, site: &Site, begins: bool);
}

/// Counts nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoMeter;

impl Meter for NoMeter {
    fn moved(&self, _: &Site, _: u64) {}
    fn running(&self, _: &Site, _: bool) {}
}

/// What a fetch sees of its flight.
pub struct Cabin {
    pub progress: Arc<Progress>,
    /// `true`: give up and clean up.
    pub stop: watch::Receiver<bool>,
    site: Site,
    meter: Arc<dyn Meter>,
    /// Of the host, then of all.
    places: [Arc<Semaphore>; 2],
}

impl std::fmt::Debug for Cabin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cabin").field("site", &self.site).finish_non_exhaustive()
    }
}

/// The right to transfer, until it is dropped.
pub struct Place {
    site: Site,
    meter: Arc<dyn Meter>,
    _permits: [OwnedSemaphorePermit; 2],
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("site", &self.site).finish_non_exhaustive()
    }
}

impl Cabin {
    /// Waits for the right to transfer. The caller holds the deadline.
    pub async fn place(&self) -> Place {
        let [host, all] = &self.places;
        let host = host.clone().acquire_owned().await.expect("the places are never closed");
        let all = all.clone().acquire_owned().await.expect("the places are never closed");
        self.meter.running(&self.site, true);
        Place { site: self.site.clone(), meter: self.meter.clone(), _permits: [host, all] }
    }

    pub fn moved(&self, bytes: u64) {
        self.meter.moved(&self.site, bytes);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.meter.running(&self.site, false);
    }
}

type Outcome = Result<Base, OpError>;

/// All flights. Dropping it aborts them, which leaves parts behind; [`Flights::stop`] does not.
pub struct Flights {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Handle,
    bounds: Bounds,
    meter: Arc<dyn Meter>,
    all: Arc<Semaphore>,
    board: Mutex<Board>,
}

#[derive(Default)]
struct Board {
    flights: HashMap<Key, Flight>,
    hosts: HashMap<Site, Arc<Semaphore>>,
    turn: u64,
    closed: bool,
}

struct Flight {
    /// Tells it from an earlier or later one of the same key.
    turn: u64,
    wanted: Wanted,
    progress: Arc<Progress>,
    stop: watch::Sender<bool>,
    outcome: watch::Receiver<Option<Outcome>>,
    task: Option<AbortHandle>,
    waiting: usize,
    asked_at: Instant,
    failures: Backoff,
    /// It ended; what came of it counts until then.
    kept_until: Option<Instant>,
}

impl std::fmt::Debug for Flights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flights").field("known", &self.inner.board().flights.len()).finish_non_exhaustive()
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        self.inner.close(true);
    }
}

impl Flights {
    /// The tasks run on `runtime`.
    pub fn new(runtime: Handle, bounds: Bounds, meter: Arc<dyn Meter>) -> Self {
        let all = Arc::new(Semaphore::new(bounds.transfers.max(1)));
        Self { inner: Arc::new(Inner { runtime, bounds, meter, all, board: Mutex::default() }) }
    }

    /// Joins the flight to this base or begins one with `begin`, and waits for its end up to `wait`. After that, a
    /// transient error says how far it is.
    pub async fn base<F, Fut>(&self, site: Site, wanted: Wanted, wait: Duration, begin: F) -> Outcome
    where
        F: FnOnce(Wanted, Cabin) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let mut seat = match self.inner.board_flight((site, wanted.stem.clone()), wanted, begin) {
            Ok(seat) => seat,
            Err(known) => return known,
        };
        match timeout(wait, seat.outcome.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => outcome.clone().expect("it was waited for"),
            Ok(Err(_)) => Err(OpError::transient(Reason::Internal, "the fetch of an image ended without an outcome")),
            Err(_) => Err(seat.progress.not_yet()),
        }
    }

    /// What is under way.
    pub fn readings(&self) -> Vec<(Site, String, Reading)> {
        let board = self.inner.board();
        let under_way = board.flights.iter().filter(|(_, flight)| flight.is_under_way());
        under_way.map(|((site, stem), flight)| (site.clone(), stem.clone(), flight.progress.read())).collect()
    }

    /// Begins nothing more and stops what runs, so that it deletes its parts; aborts what has not ended after `within`.
    pub async fn stop(&self, within: Duration) {
        let ending = self.inner.close(false);
        let all = async {
            for mut outcome in ending {
                // An error is an end as well.
                let _ = outcome.wait_for(Option::is_some).await;
            }
        };
        if timeout(within, all).await.is_err() {
            self.inner.close(true);
        }
    }
}

/// A caller's place at a flight.
struct Seat {
    inner: Arc<Inner>,
    key: Key,
    turn: u64,
    outcome: watch::Receiver<Option<Outcome>>,
    progress: Arc<Progress>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(flight) = self.inner.board().of(&self.key, self.turn) {
            flight.waiting -= 1;
            flight.asked_at = Instant::now();
        }
    }
}

impl Flight {
    fn is_under_way(&self) -> bool {
        // A task that panicked dropped its sender.
        self.kept_until.is_none() && self.outcome.has_changed().is_ok()
    }
}

impl Board {
    fn of(&mut self, key: &Key, turn: u64) -> Option<&mut Flight> {
        self.flights.get_mut(key).filter(|flight| flight.turn == turn)
    }

    /// Forgets what counts no more. Failures keep their count a little longer than their answer.
    fn prune(&mut self, now: Instant, longer: Duration) {
        self.flights.retain(|_, flight| match flight.kept_until {
            Some(until) => now < until + longer,
            None => flight.is_under_way(),
        });
        let Self { flights, hosts, .. } = self;
        hosts.retain(|site, _| flights.keys().any(|(known, _)| known == site));
    }
}

impl Inner {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat in the flight, or what is known without one.
    fn board_flight<F, Fut>(self: &Arc<Self>, key: Key, wanted: Wanted, begin: F) -> Result<Seat, Outcome>
    where
        F: FnOnce(Wanted, Cabin) -> Fut,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let now = Instant::now();
        let (first, longest) = self.bounds.failure_kept;
        let mut board = self.board();
        let mut failures = Backoff::new(first, longest);
        match board.flights.get_mut(&key) {
            Some(flight) if flight.wanted == wanted && flight.is_under_way() => {
                flight.waiting += 1;
                let (turn, outcome, progress) = (flight.turn, flight.outcome.clone(), flight.progress.clone());
                return Ok(Seat { inner: self.clone(), key, turn, outcome, progress });
            }
            Some(flight) if flight.wanted == wanted => {
                let kept = flight.kept_until.filter(|until| now < *until);
                if let Some(outcome) = kept.and_then(|_| flight.outcome.borrow().clone()) {
                    return Err(outcome);
                }
                failures = flight.failures;
            }
            // The entry says something else now: the old transfer ends first.
            Some(flight) if flight.is_under_way() => {
                flight.stop.send_replace(true);
                return Err(Err(fetching(format!("image {}: an older transfer ends first", wanted.called))));
            }
            Some(_) | None => {}
        }
        if board.closed {
            return Err(Err(fetching(format!("image {}: the operator is stopping", wanted.called))));
        }
        board.flights.remove(&key);
        if board.flights.len() >= self.bounds.flights {
            board.prune(now, Duration::ZERO);
        }
        if board.flights.len() >= self.bounds.flights {
            return Err(Err(fetching(format!("image {}: too many other images are on their way", wanted.called))));
        }
        board.prune(now, longest);
        board.turn += 1;
        let turn = board.turn;
        let host = board.hosts.entry(key.0.clone()).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        let progress = Arc::new(Progress::new(&wanted.called));
        let (stop, stopped) = watch::channel(false);
        let (ended, outcome) = watch::channel(None);
        let cabin = Cabin {
            progress: progress.clone(),
            stop: stopped.clone(),
            site: key.0.clone(),
            meter: self.meter.clone(),
            places: [host, self.all.clone()],
        };
        let seat =
            Seat { inner: self.clone(), key: key.clone(), turn, outcome: outcome.clone(), progress: progress.clone() };
        let run = begin(wanted.clone(), cabin);
        let flight = Flight {
            turn,
            wanted,
            progress,
            stop,
            outcome,
            task: None,
            waiting: 1,
            asked_at: now,
            failures,
            kept_until: None,
        };
        board.flights.insert(key.clone(), flight);
        // Weak: the task must not keep alive what aborts it.
        let inner = Arc::downgrade(self);
        let task = self.runtime.spawn(fly(inner, key.clone(), turn, stopped, ended, run)).abort_handle();
        if let Some(flight) = board.of(&key, turn) {
            flight.task = Some(task);
        }
        Ok(seat)
    }

    /// If nobody waits and the last one left long ago, tells the flight to stop; else when to look again.
    fn look_after(&self, key: &Key, turn: u64) -> Instant {
        let mut board = self.board();
        let now = Instant::now();
        let Some(flight) = board.of(key, turn) else { return now + self.bounds.forgotten_after };
        if flight.waiting > 0 {
            return now + self.bounds.forgotten_after;
        }
        let at = flight.asked_at + self.bounds.forgotten_after;
        if at <= now {
            info!(image = flight.wanted.called, host = %key.0.host, "nobody asks for an image any more: its transfer is stopped");
            flight.stop.send_replace(true);
            return now + self.bounds.forgotten_after;
        }
        at
    }

    fn landed(&self, key: &Key, turn: u64, outcome: &Outcome) {
        let mut seed = DefaultHasher::new();
        key.hash(&mut seed);
        let mut board = self.board();
        if let Some(flight) = board.of(key, turn) {
            let kept = match outcome {
                Ok(_) => {
                    flight.failures.reset();
                    READY_KEPT
                }
                Err(_) => flight.failures.next(seed.finish()),
            };
            flight.kept_until = Some(Instant::now() + kept);
        }
    }

    fn close(&self, abort: bool) -> Vec<watch::Receiver<Option<Outcome>>> {
        let mut board = self.board();
        board.closed = true;
        let mut ending = Vec::new();
        for flight in board.flights.values_mut().filter(|flight| flight.is_under_way()) {
            flight.stop.send_replace(true);
            if let Some(task) = flight.task.as_ref().filter(|_| abort) {
                task.abort();
            }
            ending.push(flight.outcome.clone());
        }
        ending
    }
}

/// Returns once the flight is to stop. Whoever could have said so is gone: that is the same.
pub async fn asked_to(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The task of one flight.
async fn fly(
    inner: std::sync::Weak<Inner>,
    key: Key,
    turn: u64,
    mut stopped: watch::Receiver<bool>,
    ended: watch::Sender<Option<Outcome>>,
    run: impl Future<Output = Outcome>,
) {
    tokio::pin!(run);
    let look_after = || inner.upgrade().map(|inner| inner.look_after(&key, turn));
    let outcome = loop {
        let Some(next) = look_after() else { return };
        tokio::select! {
            outcome = &mut run => break outcome,
            () = asked_to(&mut stopped) => {
                let late = || Err(OpError::transient(Reason::Timeout, "a stopped transfer of an image did not end in time"));
                break timeout(STOP_WITHIN, &mut run).await.unwrap_or_else(|_| late());
            }
            () = sleep_until(next) => {}
        }
    };
    if let Some(inner) = inner.upgrade() {
        inner.landed(&key, turn, &outcome);
    }
    ended.send_replace(Some(outcome));
}
