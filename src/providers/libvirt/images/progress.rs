//! How far a transfer is: counted by the fetch, read by who waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use tokio::time::Instant;

/// A percentage is told in steps of this size, so that a message changes seldom.
const STEP: u64 = 10;
const MIB: u64 = 1 << 20;

/// What a flight is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Looks into the pool.
    Looking,
    /// Another writer is at it.
    WaitingForWriter,
    /// Other transfers come first.
    WaitingForPlace,
    /// From the source into the pool.
    Transfer,
}

/// One reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    pub phase: Phase,
    /// Handed to the pool.
    pub bytes: u64,
    pub total: u64,
    /// Bytes a second since the transfer began.
    pub rate: u64,
}

/// Shared between a flight and those who wait for it.
#[derive(Debug)]
pub struct Progress {
    called: String,
    bytes: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    total: u64,
    began: Instant,
    /// The step that was told last, and its words: between steps nothing changes.
    told: Option<(u64, String)>,
}

impl Progress {
    pub fn new(called: &str) -> Self {
        let inner = Inner { phase: Phase::Looking, total: 0, began: Instant::now(), told: None };
        Self { called: called.to_owned(), bytes: AtomicU64::new(0), inner: Mutex::new(inner) }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, phase: Phase) {
        self.inner().phase = phase;
    }

    /// A transfer of `total` bytes begins.
    pub fn begin(&self, total: u64) {
        self.bytes.store(0, Ordering::Relaxed);
        *self.inner() = Inner { phase: Phase::Transfer, total, began: Instant::now(), told: None };
    }

    /// So many bytes more are in the pool. Says the percentage if that is a new step.
    pub fn add(&self, bytes: u64) -> Option<u64> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let total = self.inner().total;
        let (old, new) = (step(before, total), step(before + bytes, total));
        (old != new).then_some(new)
    }

    pub fn read(&self) -> Reading {
        let inner = self.inner();
        let bytes = self.bytes.load(Ordering::Relaxed);
        Reading { phase: inner.phase, bytes, total: inner.total, rate: rate(bytes, inner.began.elapsed()) }
    }

    /// For people: the same words until the next step.
    pub fn words(&self) -> String {
        let reading = self.read();
        let called = &self.called;
        match reading.phase {
            Phase::Looking => format!("image {called}: looking into the pool"),
            Phase::WaitingForWriter => format!("image {called}: waiting for another writer of the same volume"),
            Phase::WaitingForPlace => format!("image {called}: waiting for other transfers"),
            Phase::Transfer => {
                let now = step(reading.bytes, reading.total);
                let mut inner = self.inner();
                match &inner.told {
                    Some((told, words)) if *told == now => words.clone(),
                    _ => {
                        let words = format!(
                            "image {called}: {now} % of {}, {}",
                            size(reading.total),
                            if reading.bytes == 0 { "begun".to_owned() } else { format!("{}/s", round(reading.rate)) }
                        );
                        inner.told = Some((now, words.clone()));
                        words
                    }
                }
            }
        }
    }

    /// What a create says that cannot go on yet.
    pub fn not_yet(&self) -> OpError {
        fetching(self.words())
    }
}

/// The one place that says which reason this is.
pub fn fetching(words: String) -> OpError {
    OpError::transient(Reason::ImageFetching, words)
}

fn step(bytes: u64, total: u64) -> u64 {
    let percent = u128::from(bytes) * 100 / u128::from(total.max(1));
    u64::try_from(percent).unwrap_or(100).min(100) / STEP * STEP
}

fn rate(bytes: u64, elapsed: Duration) -> u64 {
    let millis = elapsed.as_millis().max(1);
    u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX)
}

/// `2.0 GiB`, `700 MiB`, `12 KiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..MIB => format!("{} KiB", bytes / 1024),
        MIB..0x4000_0000 => format!("{} MiB", bytes / MIB),
        _ => format!("{}.{} GiB", bytes >> 30, ((bytes & 0x3fff_ffff) * 10) >> 30),
    }
}

/// Whole MiB below ten and tens of them above: an exact rate is never the same twice.
fn round(rate: u64) -> String {
    match rate {
        0..MIB => "less than 1 MiB".to_owned(),
        _ if rate < 10 * MIB => format!("{} MiB", rate / MIB),
        _ => format!("{} MiB", rate / MIB / 10 * 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_words_change_with_each_tenth_only() {
        let progress = Progress::new("debian-13");
        assert_eq!(progress.words(), "image debian-13: looking into the pool");
        progress.begin(2 << 30);
        assert_eq!(progress.words(), "image debian-13: 0 % of 2.0 GiB, begun");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(progress.add(700 << 20), Some(30));
        let words = progress.words();
        assert_eq!(words, "image debian-13: 30 % of 2.0 GiB, 10 MiB/s");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(progress.add(50 << 20), None);
        assert_eq!(progress.words(), words);
    }

    #[test]
    fn sizes_read_well() {
        let said = [5, 12 << 10, 700 << 20, 2_800_000_000].map(size);
        assert_eq!(said, ["5 B", "12 KiB", "700 MiB", "2.6 GiB"]);
    }
}
