//! Standalone mode: the same ports without a cluster. Manifests in a directory, an embedded store in another.
//!
//! ```text
//!            watching thread            keeper thread
//!   DIR --> manifests (documents) --> fleet <--> store (state dir)
//!                    a look a second    |  ^
//!                         ProxySource <-'  '-- Records        Secrets <- secrets   EventSink <- events
//! ```
//! In reading order: `documents` (text to objects, with `wording` for what is wrong), `manifests` (files), `view` (one
//! look), `fleet` (the life of an object; pure), `store` (disk), `keeper` (the thread that joins them), `stream`, and
//! the ports `records`, `secrets`, `events`. Nothing here knows about actors, providers or HTTP.
//!
//! DIR may hang (a dead network mount): then only the watching thread hangs, and [`Standalone::look_age`] tells.

mod documents;
mod events;
mod fleet;
mod keeper;
mod manifests;
mod records;
mod secrets;
mod store;
mod stream;
mod view;
mod wording;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use egress_actors::domain::id::OperatorId;
use egress_actors::ports::{Event, EventSink, ProviderHealth, ProxySource, Records, Secrets};
use tokio::sync::watch;
use tracing::error;

use self::events::Events;
use self::fleet::Fleet;
use self::keeper::{Job, Keeper, Queue};
use self::manifests::{Reader, Unreadable};
use self::records::{Source, StoreRecords};
use self::secrets::{ManifestSecrets, Shelf};
use self::store::{Identity, Store};
use self::stream::Subscriber;
use self::view::View;

/// How DIR is watched.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Time between two looks.
    pub look_every: Duration,
    /// A manifest that is gone for this long, in two looks, counts as removed.
    pub removal_after: Duration,
    /// `--allow-mass-removal`: more than half of the fleet may go at once.
    pub allow_mass_removal: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { look_every: Duration::from_secs(1), removal_after: Duration::from_secs(2), allow_mass_removal: false }
    }
}

/// Why standalone mode cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StandaloneError {
    #[error("state directory `{}` cannot be used: {source}; check --state-dir", dir.display())]
    StateDir { dir: PathBuf, source: io::Error },
    #[error(
        "state directory `{}` is in use by another operator{}: stop that one, or give this one its own --state-dir",
        dir.display(),
        if holder.is_empty() { String::new() } else { format!(" (process {holder})") }
    )]
    InUse { dir: PathBuf, holder: String },
    #[error("store `{}` cannot be opened: {source}; check --state-dir", file.display())]
    Store { file: PathBuf, source: io::Error },
    #[error(
        "store `{}` cannot be read: {detail}; restore it from a backup, or move it away to start anew (the instances \
         made so far are then unknown to the new store: delete those by hand)",
        file.display()
    )]
    Corrupt { file: PathBuf, detail: String },
    #[error(
        "store `{}` has format {found}, and this operator reads format 1; start the version that wrote it, or move the \
         store away",
        file.display()
    )]
    Format { file: PathBuf, found: String },
    #[error("cannot start the thread `{name}`: {source}")]
    Thread { name: &'static str, source: io::Error },
}

/// Something wrong in the manifests, for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file's name in DIR, or DIR itself.
    pub file: String,
    /// 0 is the whole file.
    pub line: u64,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{} line {line}: {}", self.file, self.message),
        }
    }
}

/// What the threads and the ports share. None of its locks is held while anything waits.
#[derive(Debug, Default)]
struct Shared {
    problems: Mutex<BTreeSet<Problem>>,
    held_back: AtomicUsize,
    looked_at: Mutex<Option<Instant>>,
    /// The latest look that the keeper has not taken yet: looks that it cannot keep up with do not pile up.
    look: Mutex<Option<Result<View, Unreadable>>>,
    new_consumers: Mutex<Vec<Arc<Subscriber>>>,
}

/// Standalone mode, running. Dropping it ends its threads soon; [`Standalone::close`] waits for that.
#[derive(Debug)]
pub struct Standalone {
    source: Arc<Source>,
    records: Arc<StoreRecords>,
    secrets: Arc<ManifestSecrets>,
    events: Arc<Events>,
    identity: Identity,
    shared: Arc<Shared>,
    opened_at: Instant,
    queue: Queue,
    /// Wakes the watching thread; dropping it ends that thread.
    look: SyncSender<()>,
    ended: watch::Receiver<bool>,
}

impl Standalone {
    /// Opens the store under `state_dir` and begins to watch `dir`. Reads the store before it returns, and so belongs
    /// to the start of the process. A `dir` that cannot be read is no error here: what is stored goes on.
    pub fn open(dir: &Path, state_dir: &Path, options: Options) -> Result<Self, StandaloneError> {
        let (store, identity, rows) = Store::open(state_dir)?;
        let (queue, jobs) = Queue::new();
        let shared = Arc::new(Shared::default());
        let secrets = secrets::Shared::default();
        let keeper = Keeper {
            fleet: Fleet::new(rows, options.removal_after, options.allow_mass_removal),
            shelf: Shelf::new(secrets.clone(), options.removal_after),
            store,
            shared: Arc::clone(&shared),
            jobs,
            directory: dir.display().to_string(),
            served: Vec::new(),
            looked: false,
            settled: None,
            unreadable: None,
            relist: false,
            failing: false,
        };
        let (end, ended) = watch::channel(false);
        spawn("standalone-keeper", move || {
            if catch_unwind(AssertUnwindSafe(|| keeper.run())).is_err() {
                error!(
                    "the keeper of standalone mode crashed: no change is seen or stored any more, restart the operator"
                );
            }
            // The store and its lock are dropped by now.
            end.send_replace(true);
        })?;
        let (look, looks) = sync_channel(1);
        let (mut reader, watched, seen) = (Reader::new(dir), queue.clone(), Arc::clone(&shared));
        spawn("standalone-watch", move || {
            watch_directory(|| reader.look(), &seen, &watched, &looks, options.look_every);
        })?;
        Ok(Self {
            source: Arc::new(Source { queue: queue.clone(), shared: Arc::clone(&shared) }),
            records: Arc::new(StoreRecords { queue: queue.clone(), health: Mutex::default() }),
            secrets: Arc::new(ManifestSecrets(secrets)),
            events: Arc::new(Events::default()),
            identity,
            shared,
            opened_at: Instant::now(),
            queue,
            look,
            ended,
        })
    }

    pub fn source(&self) -> Arc<dyn ProxySource> {
        Arc::clone(&self.source) as _
    }

    pub fn records(&self) -> Arc<dyn Records> {
        Arc::clone(&self.records) as _
    }

    pub fn secrets(&self) -> Arc<dyn Secrets> {
        Arc::clone(&self.secrets) as _
    }

    pub fn event_sink(&self) -> Arc<dyn EventSink> {
        Arc::clone(&self.events) as _
    }

    /// Made once for this state directory.
    pub fn operator_id(&self) -> &OperatorId {
        &self.identity.operator
    }

    /// How often an operator was started on this state directory, this time included.
    pub fn starts(&self) -> u32 {
        self.identity.starts
    }

    /// Deletes every Proxy, as if all manifests were gone for good, and looks at DIR no more: for an end that leaves
    /// nothing behind. The manifests are made anew at the next start.
    pub fn delete_all(&self) {
        if !self.queue.push(Job::Leave) {
            tracing::error!("the keeper of standalone mode has ended: nothing is deleted");
        }
    }

    /// What is wrong in the manifests just now, by file and line.
    pub fn problems(&self) -> Vec<Problem> {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// How many removals are held back because too many manifests are gone at once.
    pub fn held_back(&self) -> usize {
        self.shared.held_back.load(Ordering::Relaxed)
    }

    /// How long ago the last look ended, whatever it found; before the first one, how long ago this was opened.
    pub fn look_age(&self) -> Duration {
        let at = *self.shared.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.unwrap_or(self.opened_at).elapsed()
    }

    /// Asks for a look now instead of at its time.
    pub fn look_now(&self) {
        // If one is asked for already, that one will do.
        let _ = self.look.try_send(());
    }

    /// The latest events, oldest first.
    pub fn recent_events(&self) -> Vec<(SystemTime, Event)> {
        self.events.recent()
    }

    /// The health of the provider entries as written last.
    pub fn provider_health(&self) -> Vec<ProviderHealth> {
        self.records.health()
    }

    /// Whether the keeper works: if not, nothing is stored any more.
    pub fn is_kept(&self) -> bool {
        !*self.ended.borrow()
    }

    /// Waits for the end of the keeper. If nobody asked for that, the process has to end.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut ended = self.ended.clone();
        async move {
            // The other side is dropped after it was set.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// Ends the threads, and gives the lock on the state directory free. False if that took longer than `within`.
    pub async fn close(self, within: Duration) -> bool {
        let mut ended = self.ended.clone();
        drop(self);
        tokio::time::timeout(within, ended.wait_for(|ended| *ended)).await.is_ok_and(|ended| ended.is_ok())
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        // If the queue is full, the keeper still ends when the last sender is gone.
        let _ = self.queue.offer(Job::Stop);
    }
}

fn spawn(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), StandaloneError> {
    match thread::Builder::new().name(name.to_owned()).spawn(work) {
        Ok(_) => Ok(()),
        Err(source) => Err(StandaloneError::Thread { name, source }),
    }
}

/// A look that crashed will often crash again; all the same it may have been one bad moment.
const LOOK_AGAIN_WITHIN: Duration = Duration::from_mins(1);

/// Looks until nobody wants to know any more. A look that crashes is one that could not read: nothing is known to be gone,
/// it is told, and looked again, later and later.
fn watch_directory(
    mut look: impl FnMut() -> Result<View, Unreadable>,
    shared: &Shared,
    queue: &Queue,
    wake: &Receiver<()>,
    every: Duration,
) {
    let mut crashes = 0;
    loop {
        // A reader keeps what it knew until a look has ended.
        let look = catch_unwind(AssertUnwindSafe(&mut look));
        crashes = if look.is_ok() { 0 } else { crashes + 1 };
        let pause = every.saturating_mul(1 << crashes.min(16)).min(LOOK_AGAIN_WITHIN.max(every));
        let look = look.unwrap_or_else(|_| {
            error!(
                again_in_ms = pause.as_millis(),
                "the look at the manifests crashed: no change is seen until one ends well"
            );
            Err(Unreadable {
                message: "the look at the manifests crashed: what is known goes on; see the log".to_owned(),
            })
        });
        let before = shared.look.lock().unwrap_or_else(PoisonError::into_inner).replace(look);
        if before.is_none() && !queue.push(Job::Look) {
            return;
        }
        if wake.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
