//! What one actor is doing, as its own atomics: written by the actor, read by anybody without asking it.
//!
//! A [`Stat`] belongs to one incarnation; its successor at the same place takes over the totals. So an incarnation that
//! was left behind in a handler, and a sender that was just about to queue a message for a dead one, spoil nothing.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use ractor::ActorCell;
use tokio::time::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Running,
    Stopping,
    /// Died and waits for its turn to start.
    Restarting,
    /// Died too often; somebody must wake it.
    Parked,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Restarting => "restarting",
            Self::Parked => "parked",
        }
    }

    fn from_u8(value: u8) -> Self {
        match value {
            0 => Self::Running,
            1 => Self::Stopping,
            2 => Self::Restarting,
            _ => Self::Parked,
        }
    }
}

/// No message is being handled.
const IDLE: u8 = u8::MAX;

#[derive(Debug)]
pub struct Stat {
    path: Arc<str>,
    parent: Option<Arc<str>>,
    /// Numbers this incarnation, and the one of its parent that started it, within one tree.
    number: u64,
    parent_number: u64,
    kind: &'static str,
    names: &'static [&'static str],
    born: Instant,
    /// Messages sent and not yet taken up.
    depth: AtomicI64,
    /// Places of the bounded entry; 0 where there is none.
    capacity: AtomicUsize,
    handled: AtomicU64,
    restarts: AtomicU32,
    current: AtomicU8,
    /// Milliseconds after `born`.
    since: AtomicU64,
    progress: AtomicU64,
    status: AtomicU8,
    /// Whoever runs here, once it was started.
    cell: OnceLock<ActorCell>,
    has_children: AtomicBool,
    /// Its place was given up or taken by a successor: whoever still runs here may start nothing more.
    retired: AtomicBool,
}

impl Stat {
    fn new(path: Arc<str>, parent: Option<&Self>, kind: &'static str, names: &'static [&'static str]) -> Self {
        Self {
            path,
            parent: parent.map(|parent| parent.path.clone()),
            number: 0,
            parent_number: parent.map_or(0, |parent| parent.number),
            kind,
            names,
            born: Instant::now(),
            depth: AtomicI64::new(0),
            capacity: AtomicUsize::new(0),
            handled: AtomicU64::new(0),
            restarts: AtomicU32::new(0),
            current: AtomicU8::new(IDLE),
            since: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            status: AtomicU8::new(Status::Running as u8),
            cell: OnceLock::new(),
            has_children: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        }
    }

    /// The statistics of the next incarnation at this place.
    fn successor(&self) -> Self {
        Self {
            capacity: AtomicUsize::new(self.capacity.load(Relaxed)),
            handled: AtomicU64::new(self.handled.load(Relaxed)),
            restarts: AtomicU32::new(self.restarts.load(Relaxed).saturating_add(1)),
            parent: self.parent.clone(),
            parent_number: self.parent_number,
            ..Self::new(self.path.clone(), None, self.kind, self.names)
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    pub fn parent(&self) -> Option<&Arc<str>> {
        self.parent.as_ref()
    }

    pub fn kind(&self) -> &'static str {
        self.kind
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn queued(&self) {
        self.depth.fetch_add(1, Relaxed);
    }

    pub(super) fn unqueued(&self) {
        self.depth.fetch_sub(1, Relaxed);
    }

    /// The incarnation is gone: what it had queued died with it.
    pub(super) fn fell(&self, status: Status) {
        self.depth.store(0, Relaxed);
        self.current.store(IDLE, Relaxed);
        self.set_status(status);
    }

    /// The actor of this incarnation was started.
    pub(super) fn live(&self, cell: ActorCell) {
        drop(self.cell.set(cell));
    }

    pub(super) fn cell(&self) -> Option<&ActorCell> {
        self.cell.get()
    }

    pub(super) fn set_has_children(&self, any: bool) {
        self.has_children.store(any, Relaxed);
    }

    /// True after its end if it ended without stopping the children that it had.
    pub(super) fn has_children(&self) -> bool {
        self.has_children.load(Relaxed)
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    pub(super) fn begin(&self, message: u8) {
        self.depth.fetch_sub(1, Relaxed);
        self.since.store(self.millis(), Relaxed);
        self.current.store(message, Relaxed);
    }

    pub(super) fn end(&self) {
        self.current.store(IDLE, Relaxed);
        self.handled.fetch_add(1, Relaxed);
        // The start of the message that just ended is near enough, and saves a second reading of the clock.
        self.progress.store(self.since.load(Relaxed), Relaxed);
    }

    pub(super) fn set_capacity(&self, places: usize) {
        self.capacity.store(places, Relaxed);
    }

    pub(super) fn set_status(&self, status: Status) {
        self.status.store(status as u8, Relaxed);
    }

    pub fn status(&self) -> Status {
        Status::from_u8(self.status.load(Relaxed))
    }

    pub fn depth(&self) -> usize {
        usize::try_from(self.depth.load(Relaxed)).unwrap_or(0)
    }

    pub fn capacity(&self) -> Option<usize> {
        Some(self.capacity.load(Relaxed)).filter(|&c| c > 0)
    }

    pub fn handled(&self) -> u64 {
        self.handled.load(Relaxed)
    }

    pub fn restarts(&self) -> u32 {
        self.restarts.load(Relaxed)
    }

    /// The message being handled and for how long.
    pub fn current(&self) -> Option<(&'static str, Duration)> {
        let name = self.names.get(usize::from(self.current.load(Relaxed)))?;
        Some((name, Duration::from_millis(self.millis().saturating_sub(self.since.load(Relaxed)))))
    }

    /// Time since it last finished a message, if it has something to do; zero while it is idle.
    pub fn stalled_for(&self) -> Duration {
        if self.depth() == 0 && self.current.load(Relaxed) == IDLE { Duration::ZERO } else { self.last_progress() }
    }

    /// Time since it last finished a message, or was born.
    pub fn last_progress(&self) -> Duration {
        Duration::from_millis(self.millis().saturating_sub(self.progress.load(Relaxed)))
    }
}

/// The index of a running tree. `dashmap` serves look-ups only; the counting is in the actors' own atomics.
#[derive(Debug, Default)]
pub struct Registry {
    stats: DashMap<Arc<str>, Arc<Stat>>,
    totals: DashMap<&'static str, Arc<Counters>>,
    numbers: AtomicU64,
    /// Places whose actor panics at its next so many messages: for tests of what then happens.
    #[cfg(any(test, feature = "testkit"))]
    cursed: DashMap<Arc<str>, u32>,
}

/// What outlives the actors it was counted on, of one kind.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) restarts: AtomicU64,
    pub(super) abandoned: AtomicU64,
    pub(super) rejected: AtomicU64,
}

/// A reading of what outlives the actors it was counted on, of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub restarts: u64,
    /// Children that ignored their kill and were left behind.
    pub abandoned: u64,
    /// Messages refused by a full bounded entry.
    pub rejected: u64,
}

impl Registry {
    /// Makes the actor at `path`, in whatever incarnation, panic at its next `times` messages.
    #[cfg(any(test, feature = "testkit"))]
    pub fn curse(&self, path: &str, times: u32) {
        self.cursed.insert(path.into(), times);
    }

    #[cfg(any(test, feature = "testkit"))]
    pub(super) fn strike(&self, stat: &Stat) {
        let struck = self.cursed.get_mut(&stat.path).is_some_and(|mut times| {
            let strikes = *times > 0;
            *times = times.saturating_sub(1);
            strikes
        });
        assert!(!struck, "cursed by a test");
    }

    /// The root of a tree: it is not listed itself.
    pub(super) fn anchor(&self, kind: &'static str, names: &'static [&'static str]) -> Arc<Stat> {
        Arc::new(self.numbered(Stat::new("".into(), None, kind, names)))
    }

    /// Lists a new place below `parent`.
    pub(super) fn place(
        &self,
        path: Arc<str>,
        parent: &Stat,
        kind: &'static str,
        names: &'static [&'static str],
    ) -> Arc<Stat> {
        self.list(Stat::new(path, Some(parent), kind, names))
    }

    fn numbered(&self, stat: Stat) -> Stat {
        Stat { number: self.numbers.fetch_add(1, Relaxed) + 1, ..stat }
    }

    fn list(&self, stat: Stat) -> Arc<Stat> {
        let stat = Arc::new(self.numbered(stat));
        if let Some(before) = self.stats.insert(stat.path.clone(), stat.clone()) {
            before.retired.store(true, Relaxed);
        }
        stat
    }

    /// Lists an actor at a place where one was parked.
    pub(super) fn wake(&self, parked: &Stat, kind: &'static str, names: &'static [&'static str]) -> Arc<Stat> {
        self.list(Stat { kind, names, ..parked.successor() })
    }

    /// Lists the next incarnation at the same place.
    pub(super) fn succeed(&self, before: &Stat) -> Arc<Stat> {
        before.retired.store(true, Relaxed);
        self.list(before.successor())
    }

    /// Removes a place, if it was not taken by another incarnation meanwhile.
    pub(super) fn remove(&self, stat: &Arc<Stat>) {
        stat.retired.store(true, Relaxed);
        self.stats.remove_if(stat.path(), |_, listed| Arc::ptr_eq(listed, stat));
    }

    /// What is listed below this incarnation. Looks at every place: it is for the rare end of an actor that left children
    /// behind.
    pub(super) fn below(&self, stat: &Stat) -> Vec<Arc<Stat>> {
        let (mut rest, mut found) = (self.all(), Vec::new());
        let mut family = HashSet::from([stat.number]);
        loop {
            let (below, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|s| family.contains(&s.parent_number));
            if below.is_empty() {
                return found;
            }
            family.extend(below.iter().map(|stat| stat.number));
            found.extend(below);
            rest = others;
        }
    }

    pub(super) fn counters(&self, kind: &'static str) -> Arc<Counters> {
        if let Some(counters) = self.totals.get(kind) {
            return counters.clone();
        }
        self.totals.entry(kind).or_default().clone()
    }

    /// All places, in no order.
    pub fn all(&self) -> Vec<Arc<Stat>> {
        self.stats.iter().map(|entry| entry.value().clone()).collect()
    }

    pub fn get(&self, path: &str) -> Option<Arc<Stat>> {
        self.stats.get(path).map(|entry| entry.value().clone())
    }

    pub fn len(&self) -> usize {
        self.stats.len()
    }

    pub fn is_empty(&self) -> bool {
        self.stats.is_empty()
    }

    pub fn totals(&self) -> Vec<(&'static str, Totals)> {
        self.totals
            .iter()
            .map(|entry| {
                let counters = entry.value();
                let totals = Totals {
                    restarts: counters.restarts.load(Relaxed),
                    abandoned: counters.abandoned.load(Relaxed),
                    rejected: counters.rejected.load(Relaxed),
                };
                (*entry.key(), totals)
            })
            .collect()
    }
}
