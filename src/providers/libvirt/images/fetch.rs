//! One fetch: does what [`decision`] says, until the base is there or cannot be had.
//!
//! Runs inside a flight. Says who cleans up: whatever fails after the create, this file deletes the part; what is cut
//! instead (the process dies, a flight is aborted) stays, and is stale for whoever looks next (fault 31).
//!
//! Others may use the same pool, also from another process. What keeps us apart:
//!
//! - making the volume is the lock, and libvirt refuses to delete one that is being uploaded to;
//! - a part is taken for dead only after the idle deadline and a quarter, and up to another quarter by lot, so that two
//!   do not take it at once;
//! - a writer that made no progress for the idle deadline and an eighth touches neither base nor marker any more: both
//!   may be somebody else's by now.

use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

use super::decision::{self, Seen, Step, Watch};
use super::flights::{Cabin, asked_to};
use super::format::{self, Recognised};
use super::marker::{Marked, Marker, hex, origin};
use super::progress::{Phase, size};
use super::source::{Body, Deadlines, Open};
use super::store::{Created, ImageStore, VolumeFacts};
use super::{Base, Wanted};

/// Pieces between source and pool: one megabyte, whatever the image's size (fault 124).
pub(super) const PIECES: usize = 4;
/// The store has limits of its own; this one is for a store that forgets them. A list of a large pool is the slowest.
const CALL_WITHIN: Duration = Duration::from_mins(1);
/// After the sender went away, an upload has this long to be aborted.
const ABORT_WITHIN: Duration = Duration::from_secs(15);
/// Before the next look, where a look did not show what a call has told.
const PAUSE: Duration = Duration::from_secs(1);
/// A progress line in the log at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);
const MARKER_TRIES: u32 = 2;

/// Deadlines of one image (`image_idle_timeout`, `image_timeout` of the entry).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub idle: Duration,
    pub total: Duration,
}

/// What a fetch works with.
pub struct Fetch {
    pub store: Arc<dyn ImageStore>,
    pub source: Arc<dyn Open>,
    pub wanted: Wanted,
    pub limits: Limits,
    pub cabin: Cabin,
}

impl std::fmt::Debug for Fetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fetch").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// What is known of a volume that this fetch made.
struct Own {
    name: String,
    recognised: Recognised,
    /// When the pool last took a piece.
    moved: Instant,
}

impl Fetch {
    /// To the end. Never ready without a marker that was read.
    pub async fn run(mut self) -> Result<Base, OpError> {
        let until = Instant::now() + self.limits.total;
        let mut watch = Watch::default();
        let quarter = self.limits.idle / 4;
        let stale_after = self.limits.idle + quarter + quarter.mul_f64(rand::rng().random_range(0.0..=1.0));
        loop {
            self.cabin.progress.enter(Phase::Looking);
            let seen = self.look().await?;
            match decision::next(&seen, &self.wanted, &mut watch, stale_after, Instant::now()) {
                Step::Ready(base) => return Ok(base),
                Step::Refuse(error) => return Err(error),
                Step::Wait(pause) => {
                    self.cabin.progress.enter(Phase::WaitingForWriter);
                    self.pause(pause, until).await?;
                }
                Step::Remove { marker, base } => {
                    self.remove(&seen, marker, base).await?;
                    self.pause(Duration::ZERO, until).await?;
                }
                Step::Fetch => {
                    if self.fetch(until).await? == Created::Exists {
                        self.pause(PAUSE, until).await?;
                    }
                }
            }
        }
    }

    async fn look(&self) -> Result<Vec<Seen>, OpError> {
        let volumes = self.call("list", self.store.volumes()).await?;
        let find = |name: &str| volumes.iter().find(|volume| volume.name == name);
        let mut seen = Vec::new();
        for (format, name) in decision::names(&self.wanted) {
            let marker = decision::marker_name(&name);
            let marked = match find(&marker) {
                None => Marked::No,
                Some(_) => Marked::read(self.call("read", self.store.read_small(&marker)).await?.as_deref()),
            };
            seen.push(Seen { format, base: find(&name).cloned(), marked });
        }
        Ok(seen)
    }

    /// Deletes what nobody goes on with, unless that changed or overlays stand on it.
    async fn remove(&self, seen: &[Seen], marker: Option<String>, base: Option<VolumeFacts>) -> Result<(), OpError> {
        if let Some(base) = &base
            && self.call("list", self.store.has_overlays(&base.path)).await?
        {
            return Err(OpError::transient(
                Reason::NameConflict,
                format!(
                    "volume `{}` is not known to be whole and disks of instances stand on it: it is neither used \
                     nor deleted; give image `{}` another key",
                    base.name, self.wanted.called
                ),
            ));
        }
        // Somebody else may have been faster; nothing but a list is between this look and the delete.
        if self.look().await? != seen {
            return Ok(());
        }
        if let Some(marker) = marker {
            self.call("delete", self.store.delete(&marker)).await?;
        }
        if let Some(base) = base {
            self.call("delete", self.store.delete(&base.name)).await?;
            warn!(
                volume = base.name,
                bytes = base.allocation,
                "a part of an image that nobody went on with was deleted"
            );
        }
        Ok(())
    }

    /// Makes the volume, fills it and marks it. [`Created::Exists`]: another writer was faster.
    async fn fetch(&mut self, until: Instant) -> Result<Created, OpError> {
        self.cabin.progress.enter(Phase::WaitingForPlace);
        let mut stop = self.cabin.stop.clone();
        let place = tokio::select! {
            place = timeout_at(until, self.cabin.place()) => place.map_err(|_| self.too_long())?,
            () = asked_to(&mut stop) => return Err(self.stopped()),
        };
        let limits = Deadlines { idle: self.limits.idle, until };
        let wanted = &self.wanted;
        let verified = wanted.sha256.is_some();
        let stream = tokio::select! {
            stream = self.source.open(&wanted.url, &wanted.policy, verified, limits) => stream?,
            () = asked_to(&mut stop) => return Err(self.stopped()),
        };
        let recognised = format::recognise(stream.head(), stream.size(), wanted.format, &wanted.called)?;
        let name = decision::name(wanted, recognised.format);
        // A lost answer leaves a volume that is nobody's: stale after the idle deadline.
        let made = self.store.create(&name, recognised.format, recognised.virtual_size);
        if self.call("create", made).await? == Created::Exists {
            return Ok(Created::Exists);
        }
        let mut own = Own { name, recognised, moved: Instant::now() };
        let total = stream.size();
        info!(volume = own.name, from = origin(&wanted.url), size = size(total), "the transfer of an image begins");
        let began = Instant::now();
        let outcome = match self.transfer(stream, &mut own, limits).await {
            Ok(sha256) => self.mark(&own, sha256, total).await,
            Err(error) => Err(error),
        };
        drop(place);
        match outcome {
            Ok(()) => info!(volume = own.name, elapsed = ?began.elapsed(), "an image is in the pool"),
            Err(error) => {
                warn!(volume = own.name, %error, "the transfer of an image failed");
                self.clean_up(&own).await;
                return Err(error);
            }
        }
        Ok(Created::New)
    }

    /// From the source into the volume; the digest of what was sent.
    async fn transfer(&self, stream: Box<dyn Body>, own: &mut Own, limits: Deadlines) -> Result<[u8; 32], OpError> {
        self.cabin.progress.begin(stream.size());
        let (sender, pieces) = mpsc::channel(PIECES);
        let name = own.name.clone();
        let mut upload = self.store.upload(&name, stream.size(), pieces);
        let mut fed = None;
        let ended = {
            let feed = self.feed(stream, sender, own, limits);
            tokio::pin!(feed);
            tokio::select! {
                biased;
                result = &mut feed => { fed = Some(result); None }
                result = &mut upload => Some(result),
            }
        };
        match (ended, fed) {
            // The pool gave up, or said that it is done before everything was sent.
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(())), _) | (None, None) => Err(Self::cut_short(&name)),
            (None, Some(Ok(Some(digest)))) => {
                timeout_at(limits.until, timeout(limits.idle, upload))
                    .await
                    .map_err(|_| self.too_long())?
                    .map_err(|_| self.stuck("did not end the upload", limits.idle))??;
                own.moved = Instant::now();
                Ok(digest)
            }
            // The pool let go of the pieces: it says why.
            (None, Some(Ok(None))) => match timeout(ABORT_WITHIN, upload).await {
                Ok(Err(error)) => Err(error),
                Ok(Ok(())) | Err(_) => Err(Self::cut_short(&name)),
            },
            // The sender is gone: the store aborts its stream.
            (None, Some(Err(error))) => {
                if timeout(ABORT_WITHIN, upload).await.is_err() {
                    warn!(volume = name, "an upload was not aborted in time and is left to itself");
                }
                Err(error)
            }
        }
    }

    /// Hashes and sends every piece. `None`: nobody takes them any more. The last one is sent only if the digest is the
    /// wanted one, so that a volume with other bytes never comes to its end.
    async fn feed(
        &self,
        mut stream: Box<dyn Body>,
        sender: mpsc::Sender<Vec<u8>>,
        own: &mut Own,
        limits: Deadlines,
    ) -> Result<Option<[u8; 32]>, OpError> {
        let mut stop = self.cabin.stop.clone();
        let mut hasher = Sha256::new();
        let mut left = stream.size();
        let mut logged = Instant::now();
        loop {
            let piece = tokio::select! {
                piece = stream.next() => piece?,
                () = asked_to(&mut stop) => return Err(self.stopped()),
            };
            // Never before the last piece; a source that says so is as bad as one that ends early.
            let Some(piece) = piece else { return Err(Self::short(&self.wanted.url)) };
            hasher.update(&piece);
            left = left.saturating_sub(piece.len() as u64);
            if left == 0 {
                self.verify(hasher.clone().finalize().into())?;
            }
            let room = tokio::select! {
                room = timeout_at(limits.until.min(Instant::now() + limits.idle), sender.reserve()) => room,
                () = asked_to(&mut stop) => return Err(self.stopped()),
            };
            let Ok(room) = room else { return Err(self.stuck("took nothing", limits.idle)) };
            let Ok(room) = room else { return Ok(None) };
            let bytes = piece.len() as u64;
            room.send(piece);
            own.moved = Instant::now();
            self.cabin.moved(bytes);
            if let Some(percent) = self.cabin.progress.add(bytes)
                && logged.elapsed() >= LOG_EVERY
            {
                logged = Instant::now();
                let rate = size(self.cabin.progress.read().rate);
                info!(volume = own.name, percent, rate_per_second = rate, "the transfer of an image goes on");
            }
            // Without an await since the send: the pool cannot be done before we are.
            if left == 0 {
                return Ok(Some(hasher.finalize().into()));
            }
        }
    }

    fn verify(&self, digest: [u8; 32]) -> Result<(), OpError> {
        match self.wanted.sha256 {
            Some(wanted) if wanted != digest => Err(OpError::permanent(
                Reason::ImageDigestMismatch,
                format!(
                    "{} gives a file with sha256 {}, and image `{}` is to have {}",
                    origin(&self.wanted.url),
                    hex(digest),
                    self.wanted.called,
                    hex(wanted)
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Writes the marker beside a base that is whole and still ours.
    async fn mark(&self, own: &Own, sha256: [u8; 32], total: u64) -> Result<(), OpError> {
        let name = decision::marker_name(&own.name);
        let marker = Marker::of(&self.wanted, sha256, total, own.recognised.format, own.recognised.virtual_size);
        let mut failure = None;
        for _ in 0..MARKER_TRIES {
            let seen = self.look().await?;
            let ours = seen.iter().find(|seen| seen.format == own.recognised.format);
            match ours.and_then(|seen| seen.base.as_ref().map(|_| &seen.marked)) {
                None => return Err(Self::taken(&own.name)),
                // A try whose answer was lost.
                Some(Marked::Good(there)) if there.says_the_same(&marker) => return Ok(()),
                Some(Marked::Good(_) | Marked::Broken) => self.call("delete", self.store.delete(&name)).await?,
                Some(Marked::No) => {}
            }
            if !self.is_ours(own) {
                return Err(Self::taken(&own.name));
            }
            match self.call("mark", self.store.write_small(&name, &marker.write())).await {
                Ok(Created::New) => return Ok(()),
                Ok(Created::Exists) => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| Self::taken(&own.name)))
    }

    /// Deletes what this fetch made. What cannot be deleted is stale for the next.
    async fn clean_up(&self, own: &Own) {
        let cleaned = async {
            let seen = self.look().await?;
            let Some(Seen { base: Some(base), marked, .. }) =
                seen.into_iter().find(|seen| seen.format == own.recognised.format)
            else {
                return Ok(());
            };
            // With a marker that others may have read, overlays may stand on it already.
            if marked != Marked::No {
                if self.call("list", self.store.has_overlays(&base.path)).await? {
                    return Ok(());
                }
                self.call("delete", self.store.delete(&decision::marker_name(&own.name))).await?;
            }
            if !self.is_ours(own) {
                return Err(Self::taken(&own.name));
            }
            self.call("delete", self.store.delete(&own.name)).await
        };
        if let Err(error) = cleaned.await {
            warn!(volume = own.name, %error, "the part of an image could not be deleted; it will be taken for stale");
        }
    }

    /// Nobody can take our part for dead yet.
    fn is_ours(&self, own: &Own) -> bool {
        own.moved.elapsed() < self.limits.idle + self.limits.idle / 8
    }

    async fn pause(&self, pause: Duration, until: Instant) -> Result<(), OpError> {
        if Instant::now() >= until {
            return Err(self.too_long());
        }
        let mut stop = self.cabin.stop.clone();
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = asked_to(&mut stop) => Err(self.stopped()),
        }
    }

    async fn call<T>(&self, what: &str, call: impl Future<Output = Result<T, OpError>>) -> Result<T, OpError> {
        timeout(CALL_WITHIN, call).await.unwrap_or_else(|_| {
            let detail =
                format!("the pool did not answer a {what} for image `{}` within {CALL_WITHIN:?}", self.wanted.called);
            Err(OpError::transient(Reason::Timeout, detail))
        })
    }

    fn too_long(&self) -> OpError {
        let Self { wanted, limits, .. } = self;
        OpError::transient(
            Reason::Timeout,
            format!("image `{}` was not in the pool after {:?}, the limit of the entry", wanted.called, limits.total),
        )
    }

    fn stuck(&self, what: &str, idle: Duration) -> OpError {
        OpError::transient(Reason::Timeout, format!("the pool {what} of image `{}` for {idle:?}", self.wanted.called))
    }

    fn cut_short(name: &str) -> OpError {
        OpError::transient(Reason::APIError, format!("the pool ended the upload to volume `{name}` without a reason"))
    }

    fn short(url: &url::Url) -> OpError {
        OpError::transient(Reason::Unreachable, format!("no image from {}: it ended before its end", origin(url)))
    }

    fn taken(name: &str) -> OpError {
        OpError::transient(Reason::NameConflict, format!("volume `{name}` was taken over by another writer"))
    }

    fn stopped(&self) -> OpError {
        super::progress::fetching(format!("image {}: the transfer was stopped", self.wanted.called))
    }
}
