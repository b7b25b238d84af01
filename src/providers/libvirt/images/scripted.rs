//! A pool and a source in memory, with the faults of real ones. Time is tokio's: use a paused clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::mpsc;
use tokio::time::sleep;
use url::Url;

use super::marker::Marked;
use super::policy::Policy;
use super::source::{Body, Deadlines, Open, PIECE};
use super::store::{Created, ImageStore, VolumeFacts};
use crate::config::providers::ImageFormat;

/// What the pool does wrong, once each, at the next call that it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The upload fails once so many bytes came.
    FailAt(u64),
    /// The upload takes nothing more once so many bytes came.
    StallAt(u64),
    /// The pool is full once so many bytes came.
    FullAt(u64),
    /// The volume is made and the answer lost.
    CreateLost,
    /// The marker is made without its bytes.
    MarkerBroken,
    /// The marker is written and the answer lost.
    MarkerLost,
    DeleteFails,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Volume {
    pub format: Option<ImageFormat>,
    pub capacity: u64,
    pub bytes: Vec<u8>,
    /// Counted although `bytes` are not kept.
    pub written: u64,
    pub busy: bool,
}

#[derive(Default)]
pub(crate) struct Pool {
    pub volumes: BTreeMap<String, Volume>,
    pub overlays: Vec<String>,
    pub faults: VecDeque<Fault>,
    pub creates: u32,
    pub uploads: u32,
    pub lists: u32,
    /// Names of whole bases that were deleted.
    pub whole_deleted: Vec<String>,
    pub keep_bytes: bool,
    pub taken: u64,
    /// How long the pool takes for a piece.
    pub piece_takes: Duration,
    /// What the source gave out; and the most of it that was on its way.
    pub given: Arc<Mutex<u64>>,
    pub most_outstanding: u64,
}

pub(crate) struct ScriptedStore {
    pool: Mutex<Pool>,
    /// Shortest and longest time of a call.
    latency: (Duration, Duration),
    lots: Mutex<SmallRng>,
}

fn trouble(what: &str) -> OpError {
    OpError::transient(Reason::APIError, format!("scripted: {what}"))
}

impl ScriptedStore {
    pub(crate) fn new() -> Arc<Self> {
        Self::slow(0, (Duration::ZERO, Duration::ZERO))
    }

    pub(crate) fn slow(seed: u64, latency: (Duration, Duration)) -> Arc<Self> {
        let pool = Mutex::new(Pool { keep_bytes: true, ..Pool::default() });
        Arc::new(Self { pool, latency, lots: Mutex::new(SmallRng::seed_from_u64(seed)) })
    }

    pub(crate) fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap()
    }

    pub(crate) fn path(name: &str) -> String {
        format!("/pool/{name}")
    }

    /// Bytes of a base with a good marker.
    pub(crate) fn whole(&self, name: &str) -> Option<Vec<u8>> {
        let pool = self.pool();
        let base = pool.volumes.get(name)?;
        let marker = pool.volumes.get(&format!("{name}.ok"))?;
        matches!(Marked::read(Some(&marker.bytes)), Marked::Good(_)).then(|| base.bytes.clone())
    }

    async fn call(&self) {
        let (least, most) = self.latency;
        if most > Duration::ZERO {
            let lot = self.lots.lock().unwrap().random_range(0.0..=1.0);
            sleep(least + (most - least).mul_f64(lot)).await;
        }
    }

    fn fault(&self, fits: impl Fn(Fault) -> bool) -> Option<Fault> {
        let mut pool = self.pool();
        let at = pool.faults.iter().position(|fault| fits(*fault))?;
        pool.faults.remove(at)
    }
}

/// Ends the upload of a volume, also if its future is dropped.
struct Busy<'a>(&'a ScriptedStore, String);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(volume) = self.0.pool().volumes.get_mut(&self.1) {
            volume.busy = false;
        }
    }
}

#[async_trait]
impl ImageStore for ScriptedStore {
    async fn volumes(&self) -> Result<Vec<VolumeFacts>, OpError> {
        self.call().await;
        let mut pool = self.pool();
        pool.lists += 1;
        let facts = pool.volumes.iter().map(|(name, volume)| VolumeFacts {
            name: name.clone(),
            path: Self::path(name),
            format: volume.format,
            capacity: volume.capacity,
            allocation: volume.written,
            physical: volume.written,
        });
        Ok(facts.collect())
    }

    async fn create(&self, name: &str, format: ImageFormat, capacity: u64) -> Result<Created, OpError> {
        self.call().await;
        if self.pool().volumes.contains_key(name) {
            return Ok(Created::Exists);
        }
        let lost = self.fault(|fault| fault == Fault::CreateLost).is_some();
        let mut pool = self.pool();
        pool.creates += 1;
        pool.volumes.insert(name.to_owned(), Volume { format: Some(format), capacity, ..Volume::default() });
        if lost { Err(trouble("the answer was lost")) } else { Ok(Created::New) }
    }

    async fn upload(&self, name: &str, size: u64, mut pieces: mpsc::Receiver<Vec<u8>>) -> Result<(), OpError> {
        self.call().await;
        {
            let mut pool = self.pool();
            pool.uploads += 1;
            let volume = pool.volumes.get_mut(name).ok_or_else(|| trouble("no such volume"))?;
            volume.busy = true;
        }
        let _busy = Busy(self, name.to_owned());
        let fault = self.fault(|fault| matches!(fault, Fault::FailAt(_) | Fault::StallAt(_) | Fault::FullAt(_)));
        let mut came = 0;
        while came < size {
            let Some(piece) = pieces.recv().await else { return Err(trouble("the writer gave up")) };
            came += piece.len() as u64;
            match fault {
                Some(Fault::FailAt(at)) if came >= at => return Err(trouble("the upload failed")),
                Some(Fault::FullAt(at)) if came >= at => {
                    return Err(OpError::transient(Reason::StorageFull, "scripted: no space left"));
                }
                Some(Fault::StallAt(at)) if came >= at => {
                    // As a link does: nothing is taken, and it ends once the writer goes.
                    while !pieces.is_closed() || !pieces.is_empty() {
                        if pieces.sender_strong_count() == 0 {
                            break;
                        }
                        sleep(Duration::from_millis(100)).await;
                    }
                    return Err(trouble("the writer gave up"));
                }
                _ => {}
            }
            let takes = self.pool().piece_takes;
            if takes > Duration::ZERO {
                sleep(takes).await;
            }
            let mut pool = self.pool();
            let outstanding = pool.given.lock().unwrap().saturating_sub(pool.taken);
            pool.most_outstanding = pool.most_outstanding.max(outstanding);
            pool.taken += piece.len() as u64;
            let keep = pool.keep_bytes;
            let volume = pool.volumes.get_mut(name).ok_or_else(|| trouble("no such volume"))?;
            volume.written += piece.len() as u64;
            if keep {
                volume.bytes.extend_from_slice(&piece);
            }
        }
        self.call().await;
        Ok(())
    }

    async fn read_small(&self, name: &str) -> Result<Option<Vec<u8>>, OpError> {
        self.call().await;
        Ok(self.pool().volumes.get(name).map(|volume| volume.bytes.clone()))
    }

    async fn write_small(&self, name: &str, bytes: &[u8]) -> Result<Created, OpError> {
        self.call().await;
        if self.pool().volumes.contains_key(name) {
            return Ok(Created::Exists);
        }
        let fault = self.fault(|fault| matches!(fault, Fault::MarkerBroken | Fault::MarkerLost));
        let bytes = if fault == Some(Fault::MarkerBroken) { &[] } else { bytes };
        let written = bytes.len() as u64;
        let volume = Volume { capacity: written, bytes: bytes.to_vec(), written, ..Volume::default() };
        self.pool().volumes.insert(name.to_owned(), volume);
        if fault.is_some() { Err(trouble("the answer was lost")) } else { Ok(Created::New) }
    }

    async fn delete(&self, name: &str) -> Result<(), OpError> {
        self.call().await;
        if self.fault(|fault| fault == Fault::DeleteFails).is_some() {
            return Err(trouble("the delete failed"));
        }
        let whole = self.whole(name).is_some();
        let mut pool = self.pool();
        if pool.volumes.get(name).is_some_and(|volume| volume.busy) {
            return Err(trouble("the volume is still in use"));
        }
        if whole {
            pool.whole_deleted.push(name.to_owned());
        }
        pool.volumes.remove(name);
        Ok(())
    }

    async fn has_overlays(&self, path: &str) -> Result<bool, OpError> {
        self.call().await;
        Ok(self.pool().overlays.iter().any(|backing| backing == path))
    }
}

/// What a source does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The connection ends after so many bytes.
    EndsAt(u64),
    /// Silent after so many bytes.
    SilentAt(u64),
}

/// Gives one content, each time with the next of the faults.
#[derive(Default)]
pub(crate) struct ScriptedSource {
    pub head: Vec<u8>,
    pub size: u64,
    pub wrongs: Mutex<VecDeque<Option<Wrong>>>,
    pub opened: Mutex<u32>,
    /// Bytes given out by all bodies.
    pub given: Arc<Mutex<u64>>,
}

impl ScriptedSource {
    /// A raw disk.
    pub(crate) fn disk(size: u64) -> Arc<Self> {
        let mut head = vec![0; 1024];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        Arc::new(Self { head, size, ..Self::default() })
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        let mut all = self.head.clone();
        all.resize(usize::try_from(self.size).unwrap(), 7);
        all
    }
}

struct ScriptedBody {
    head: Vec<u8>,
    size: u64,
    at: u64,
    wrong: Option<Wrong>,
    idle: Duration,
    given: Arc<Mutex<u64>>,
}

#[async_trait]
impl Open for ScriptedSource {
    async fn open(&self, _: &Url, _: &Policy, _: bool, limits: Deadlines) -> Result<Box<dyn Body>, OpError> {
        *self.opened.lock().unwrap() += 1;
        let wrong = self.wrongs.lock().unwrap().pop_front().flatten();
        let (head, size, given) = (self.head.clone(), self.size, self.given.clone());
        Ok(Box::new(ScriptedBody { head, size, at: 0, wrong, idle: limits.idle, given }))
    }
}

#[async_trait]
impl Body for ScriptedBody {
    fn size(&self) -> u64 {
        self.size
    }

    fn head(&self) -> &[u8] {
        &self.head
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, OpError> {
        match self.wrong {
            Some(Wrong::EndsAt(at)) if self.at >= at => {
                return Err(OpError::transient(Reason::Unreachable, "scripted: it ended"));
            }
            Some(Wrong::SilentAt(at)) if self.at >= at => {
                sleep(self.idle).await;
                return Err(OpError::transient(Reason::Timeout, "scripted: it is silent"));
            }
            _ => {}
        }
        let length = usize::try_from((self.size - self.at).min(PIECE as u64)).unwrap();
        if length == 0 {
            return Ok(None);
        }
        let mut piece = vec![7; length];
        if self.at == 0 {
            piece[..self.head.len()].copy_from_slice(&self.head);
        }
        self.at += length as u64;
        *self.given.lock().unwrap() += length as u64;
        Ok(Some(piece))
    }
}
