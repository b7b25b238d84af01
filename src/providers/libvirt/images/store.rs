//! What a pool can do for images, as a trait: the link implements it over libvirt, the tests have one in memory.
//!
//! Implementations set the class and reason of their errors, and put a limit on each call. Everything may be dropped at
//! any await.

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use tokio::sync::mpsc;

use crate::config::providers::ImageFormat;

/// One volume, as the pool shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeFacts {
    pub name: String,
    /// On the host.
    pub path: String,
    /// What libvirt takes it for; `None` if neither of ours.
    pub format: Option<ImageFormat>,
    /// Bytes that a guest would see.
    pub capacity: u64,
    /// Bytes that it takes in the pool.
    pub allocation: u64,
    /// Bytes of the file; 0 if the pool does not say.
    pub physical: u64,
}

/// What became of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It is ours: nobody else was told the same.
    New,
    /// There already (libvirt's code 90): somebody else's, in whatever state.
    Exists,
}

/// A pool of one host.
#[async_trait]
pub trait ImageStore: Send + Sync {
    /// Every volume, in one answer, fresh: what was written, made or deleted before the call is seen (fault 33: refresh
    /// the pool; an upload under way may make libvirt refuse that, and then the list without it serves).
    async fn volumes(&self) -> Result<Vec<VolumeFacts>, OpError>;

    /// Makes an empty volume, with nothing preallocated. `capacity` in bytes: for qcow2 that of the disk, for raw that
    /// of the file. Must be atomic among all who use the pool: it is the lock.
    async fn create(&self, name: &str, format: ImageFormat, capacity: u64) -> Result<Created, OpError>;

    /// Writes exactly `size` bytes from the volume's start. Pieces are at most [`super::source::PIECE`] long.
    ///
    /// The sender goes away before `size` bytes came: the writer gave up. Abort the stream (never finish it) and return
    /// any error. Must return soon after the sender went away, also if the daemon does not answer. May return early with
    /// an error: the pieces left are then dropped. The volume stays, whatever happens; the caller deletes it.
    async fn upload(&self, name: &str, size: u64, pieces: mpsc::Receiver<Vec<u8>>) -> Result<(), OpError>;

    /// The whole of a small volume; one longer than 64 KiB is an error. `None` if it is not there.
    async fn read_small(&self, name: &str) -> Result<Option<Vec<u8>>, OpError>;

    /// Makes a raw volume with these bytes. If it fails, a part of it may stay. [`Created::Exists`] if there is one of
    /// that name: it is left as it is.
    async fn write_small(&self, name: &str, bytes: &[u8]) -> Result<Created, OpError>;

    /// Deletes a volume. One that is not there is deleted (fault 33). Must fail on one that is being uploaded to, as
    /// libvirt does, and work on a full pool (fault 29).
    async fn delete(&self, name: &str) -> Result<(), OpError>;

    /// Whether any volume of the pool has this path as its backing file. An error if that cannot be told.
    async fn has_overlays(&self, path: &str) -> Result<bool, OpError>;
}
