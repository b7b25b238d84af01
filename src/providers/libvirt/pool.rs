//! The storage pool of a host: short calls on the storage lane, transfers on a lane of their own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use tokio::sync::mpsc;
use virt::storage_pool::StoragePool;
use virt::storage_vol::StorageVol;
use virt::stream::Stream;

use super::errors::{self, About, Effect, code};
use super::images::store::{Created, ImageStore, VolumeFacts};
use super::link::rpc::{Libvirt, RpcError};
use super::link::{Awaited, LaneKind, Link, LinkError};
use super::xml::{self, VolumeInfo};
use crate::config::providers::ImageFormat;

/// The largest volume that is read whole.
const SMALL: u64 = 64 * 1024;
/// One piece of a stream's data; libvirt cuts larger ones up.
const PIECE: usize = 256 * 1024;
/// Pieces between the source and the lane's thread.
const PIECES: usize = 2;
/// An upload whose sender is gone is aborted within this, or cut.
const ABORT_WITHIN: Duration = Duration::from_secs(5);

/// One pool of one host.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) link: Arc<Link>,
    pub(super) name: String,
    pub(super) host: String,
    pub(super) network: String,
    pub(super) user: String,
    /// For a call of few RPCs.
    pub(super) limit: Duration,
    /// For one whole upload, and for one piece of it.
    pub(super) upload: Duration,
    pub(super) idle: Duration,
}

impl Pool {
    pub(super) fn about(&self) -> About<'_> {
        About { host: &self.host, pool: &self.name, network: &self.network, user: &self.user }
    }

    async fn short<T: Send + 'static>(
        &self,
        doing: &str,
        effect: Effect,
        rpc: &'static str,
        work: impl FnOnce(&Libvirt<'_>, &StoragePool) -> Result<T, RpcError> + Send + 'static,
    ) -> Result<T, OpError> {
        let pool = self.name.clone();
        let done = self.link.call(LaneKind::Storage, rpc, self.limit, move |libvirt| {
            let pool = libvirt.rpc("virStoragePoolLookupByName", &pool, |c| c.lookup_storage_pool_by_name(&pool))?;
            work(libvirt, &pool)
        });
        done.await.map_err(|error| errors::of(self.about(), doing, effect, error))
    }

    /// The directory on the host in which volumes are. An error if the pool is not active.
    pub(super) async fn target_path(&self) -> Result<String, OpError> {
        let name = self.name.clone();
        let text = self
            .short("look at the pool", Effect::None, "virStoragePoolGetXMLDesc", move |libvirt, pool| {
                if !libvirt.rpc("virStoragePoolIsActive", &name, |_| pool.is_active())? {
                    return Err(RpcError::inactive_pool(&name));
                }
                libvirt.rpc("virStoragePoolGetXMLDesc", &name, |_| pool.xml_desc(0))
            })
            .await?;
        xml::pool_target_path(&text).map_err(|why| unreadable(&self.name, &why.to_string()))
    }

    /// One volume. `None` only after the pool was read anew (fault 33).
    pub(super) async fn volume(&self, name: &str) -> Result<Option<VolumeInfo>, OpError> {
        let own = name.to_owned();
        let text = self
            .short("look at a volume", Effect::None, "virStorageVolGetXMLDesc", move |libvirt, pool| {
                for _ in 0..2 {
                    let Some(volume) = find(libvirt, pool, &own)? else { return Ok(None) };
                    match libvirt.rpc("virStorageVolGetXMLDesc", &own, |_| volume.xml_desc(0)) {
                        Err(error) if is_gone(&error) => refresh(libvirt, pool)?,
                        text => return text.map(Some),
                    }
                }
                Ok(None)
            })
            .await?;
        text.map(|text| xml::volume_info(&text).map_err(|why| unreadable(name, &why.to_string()))).transpose()
    }

    /// Opens a volume's file, if it is there: shows whether the pool answers.
    pub(super) async fn reads(&self, name: &str) -> Result<(), LinkError> {
        let (own, pool) = (name.to_owned(), self.name.clone());
        let read = self.link.call(LaneKind::Storage, "virStorageVolGetXMLDesc", self.limit, move |libvirt| {
            let pool = libvirt.rpc("virStoragePoolLookupByName", &pool, |c| c.lookup_storage_pool_by_name(&pool))?;
            let volume = libvirt.rpc("virStorageVolLookupByName", &own, |_| pool.lookup_storage_vol_by_name(&own))?;
            libvirt.rpc("virStorageVolGetXMLDesc", &own, |_| volume.xml_desc(0)).map(drop)
        });
        read.await
    }

    /// Makes a volume out of its XML.
    pub(super) async fn make(&self, name: &str, text: String) -> Result<Created, OpError> {
        let own = name.to_owned();
        self.short("make a volume", Effect::Possible, "virStorageVolCreateXML", move |libvirt, pool| {
            create(libvirt, pool, &own, &text)
        })
        .await
    }

    /// Makes a raw volume that holds these bytes; one that is there already is left as it is.
    pub(super) async fn write(&self, name: &str, bytes: Arc<[u8]>) -> Result<Created, OpError> {
        let size = bytes.len() as u64;
        let text = xml::volume(name, ImageFormat::Raw, size, 0).map_err(|why| unreadable(name, &why.to_string()))?;
        let own = name.to_owned();
        self.short("write a volume", Effect::Possible, "virStorageVolUpload", move |libvirt, pool| {
            if create(libvirt, pool, &own, &text)? == Created::Exists {
                return Ok(Created::Exists);
            }
            let volume = libvirt.rpc("virStorageVolLookupByName", &own, |_| pool.lookup_storage_vol_by_name(&own))?;
            let begun = Instant::now();
            let sent = send(libvirt, &volume, size, &own, &mut bytes.chunks(PIECE).map(Into::into));
            libvirt.log("virStorageVolUpload", &own, begun, sent.as_ref().err());
            sent.map(|()| Created::New)
        })
        .await
    }

    pub(super) async fn remove(&self, name: &str) -> Result<(), OpError> {
        let own = name.to_owned();
        self.short("delete a volume", Effect::Possible, "virStorageVolDelete", move |libvirt, pool| {
            let Some(volume) = find(libvirt, pool, &own)? else { return Ok(()) };
            match libvirt.rpc("virStorageVolDelete", &own, |_| volume.delete(0)) {
                Err(error) if is_gone(&error) => refresh(libvirt, pool),
                result => result,
            }
        })
        .await
    }
}

fn unreadable(what: &str, why: &str) -> OpError {
    OpError::transient(Reason::APIError, format!("what libvirt says of `{what}` cannot be read: {why}"))
}

/// By its name; if the pool does not know it, once more after a refresh. A refresh that fails is an error, as then nothing
/// is known.
fn find(libvirt: &Libvirt<'_>, pool: &StoragePool, name: &str) -> Result<Option<StorageVol>, RpcError> {
    let lookup = || libvirt.rpc("virStorageVolLookupByName", name, |_| pool.lookup_storage_vol_by_name(name));
    match lookup() {
        Ok(volume) => return Ok(Some(volume)),
        Err(error) if error.code == code::NO_STORAGE_VOL => {}
        Err(error) => return Err(error),
    }
    refresh(libvirt, pool)?;
    match lookup() {
        Ok(volume) => Ok(Some(volume)),
        Err(error) if error.code == code::NO_STORAGE_VOL => Ok(None),
        Err(error) => Err(error),
    }
}

/// The volume is not there, or a hand removed its file: for as long as the pool knows that one, it lets nobody make it anew.
fn is_gone(error: &RpcError) -> bool {
    error.code == code::NO_STORAGE_VOL || error.message.contains("No such file or directory")
}

/// libvirt refuses it while something is written to the pool through it: then what it knows is as new as can be.
fn refresh(libvirt: &Libvirt<'_>, pool: &StoragePool) -> Result<(), RpcError> {
    match libvirt.rpc("virStoragePoolRefresh", "", |_| pool.refresh(0)) {
        Err(error) if error.message.contains("asynchronous jobs running") => Ok(()),
        result => result,
    }
}

fn create(libvirt: &Libvirt<'_>, pool: &StoragePool, name: &str, text: &str) -> Result<Created, RpcError> {
    match libvirt.rpc("virStorageVolCreateXML", name, |_| StorageVol::create_xml(pool, text, 0)) {
        Ok(_) => Ok(Created::New),
        Err(error) if error.code == code::STORAGE_VOL_EXIST => Ok(Created::Exists),
        // A file that the pool did not know of.
        Err(error) if error.message.contains("File exists") => Ok(Created::Exists),
        Err(error) => Err(error),
    }
}

/// Exactly `size` bytes into a volume. Fewer: the stream is aborted, never finished.
fn send(
    libvirt: &Libvirt<'_>,
    volume: &StorageVol,
    size: u64,
    name: &str,
    pieces: &mut dyn Iterator<Item = Vec<u8>>,
) -> Result<(), RpcError> {
    let failed = |error: virt::error::Error| RpcError::new("virStreamSend", &error);
    let stream = libvirt.rpc("virStreamNew", name, |c| Stream::new(c, 0))?;
    volume.upload(&stream, 0, size, 0).map_err(|error| RpcError::new("virStorageVolUpload", &error))?;
    let mut left = size;
    for piece in pieces {
        let mut rest = piece.as_slice();
        while !rest.is_empty() {
            let sent = stream.send(rest).map_err(failed)?;
            rest = &rest[usize::try_from(sent).unwrap_or(0).min(rest.len())..];
        }
        left = left.saturating_sub(piece.len() as u64);
    }
    if left > 0 {
        let _ = stream.abort();
        return Err(RpcError::unreadable("virStreamAbort", "the source gave up"));
    }
    stream.finish().map_err(|error| RpcError::new("virStreamFinish", &error))
}

#[async_trait]
impl ImageStore for Pool {
    async fn volumes(&self) -> Result<Vec<VolumeFacts>, OpError> {
        let texts = self
            .short("list the volumes", Effect::None, "virStoragePoolListAllVolumes", move |libvirt, pool| {
                refresh(libvirt, pool)?;
                let volumes = libvirt.rpc("virStoragePoolListAllVolumes", "", |_| pool.list_all_volumes(0))?;
                // Only what is about images: the disks of hundreds of instances are not read one by one.
                let mut texts = Vec::new();
                for volume in &volumes {
                    let name = volume.name().map_err(|error| RpcError::new("virStorageVolGetName", &error))?;
                    if !name.starts_with("base-") {
                        continue;
                    }
                    match libvirt.rpc("virStorageVolGetXMLDesc", &name, |_| volume.xml_desc(0)) {
                        Err(error) if is_gone(&error) => {}
                        text => texts.push(text?),
                    }
                }
                Ok(texts)
            })
            .await?;
        let facts = |text: String| {
            let info = xml::volume_info(&text).map_err(|why| unreadable("a volume", &why.to_string()))?;
            let format = match info.format.as_deref() {
                Some("qcow2") => Some(ImageFormat::Qcow2),
                Some("raw") => Some(ImageFormat::Raw),
                _ => None,
            };
            let physical = info.physical.unwrap_or(0);
            Ok(VolumeFacts {
                name: info.name,
                path: info.path,
                format,
                capacity: info.capacity,
                allocation: info.allocation,
                physical,
            })
        };
        texts.into_iter().map(facts).collect()
    }

    async fn create(&self, name: &str, format: ImageFormat, capacity: u64) -> Result<Created, OpError> {
        let text = xml::volume(name, format, capacity, 0).map_err(|why| unreadable(name, &why.to_string()))?;
        self.make(name, text).await
    }

    async fn upload(&self, name: &str, size: u64, mut pieces: mpsc::Receiver<Vec<u8>>) -> Result<(), OpError> {
        let doing = format!("upload image `{name}`");
        let told = |error: LinkError| errors::of(self.about(), &doing, Effect::Possible, error);
        let bulk = self.link.apart(LaneKind::Bulk, self.limit).await.map_err(told)?;
        let (sender, mut inner) = mpsc::channel::<Vec<u8>>(PIECES);
        let (own, pool) = (name.to_owned(), self.name.clone());
        let sending = bulk.call(Awaited::Pool, "virStorageVolUpload", self.upload, move |libvirt| {
            let pool = libvirt.rpc("virStoragePoolLookupByName", &pool, |c| c.lookup_storage_pool_by_name(&pool))?;
            let volume = libvirt.rpc("virStorageVolLookupByName", &own, |_| pool.lookup_storage_vol_by_name(&own))?;
            let begun = Instant::now();
            let sent = send(libvirt, &volume, size, &own, &mut std::iter::from_fn(|| inner.blocking_recv()));
            libvirt.log("virStorageVolUpload", &own, begun, sent.as_ref().err());
            sent
        });
        tokio::pin!(sending);
        let feeding = async {
            let mut left = size;
            while let Some(piece) = pieces.recv().await {
                left = left.saturating_sub(piece.len() as u64);
                // The lane's thread takes nothing any more: it has ended, or the daemon stalls.
                match tokio::time::timeout(self.idle, sender.send(piece)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => break,
                    Err(_) => return Err(self.idle),
                }
            }
            drop(sender);
            Ok(left)
        };
        tokio::select! {
            result = &mut sending => result.map_err(told),
            fed = feeding => match fed {
                // The end of the stream is written out by the host.
                Ok(left) => {
                    let within = if left == 0 { self.idle } else { ABORT_WITHIN };
                    match tokio::time::timeout(within, &mut sending).await {
                        Ok(result) => result.map_err(told),
                        // Dropping the lane cuts it.
                        Err(_) => Err(self.stalled(name, within)),
                    }
                }
                Err(idle) => Err(self.stalled(name, idle)),
            },
        }
    }

    async fn read_small(&self, name: &str) -> Result<Option<Vec<u8>>, OpError> {
        let own = name.to_owned();
        self.short("read a volume", Effect::None, "virStorageVolDownload", move |libvirt, pool| {
            let Some(volume) = find(libvirt, pool, &own)? else { return Ok(None) };
            let stream = libvirt.rpc("virStreamNew", &own, |c| Stream::new(c, 0))?;
            libvirt.rpc("virStorageVolDownload", &own, |_| volume.download(&stream, 0, SMALL + 1, 0))?;
            let (mut bytes, mut piece) = (Vec::new(), vec![0; 16 * 1024]);
            loop {
                let got = stream.recv(&mut piece).map_err(|error| RpcError::new("virStreamRecv", &error))?;
                let Ok(got @ 1..) = usize::try_from(got) else { break };
                bytes.extend_from_slice(&piece[..got]);
                if bytes.len() as u64 > SMALL {
                    let _ = stream.abort();
                    return Err(RpcError::unreadable("virStorageVolDownload", "it is longer than a marker can be"));
                }
            }
            stream.finish().map_err(|error| RpcError::new("virStreamFinish", &error))?;
            Ok(Some(bytes))
        })
        .await
    }

    async fn write_small(&self, name: &str, bytes: &[u8]) -> Result<Created, OpError> {
        self.write(name, bytes.into()).await
    }

    async fn delete(&self, name: &str) -> Result<(), OpError> {
        self.remove(name).await
    }

    async fn has_overlays(&self, path: &str) -> Result<bool, OpError> {
        let texts = self
            .short("look for overlays", Effect::None, "virStoragePoolListAllVolumes", move |libvirt, pool| {
                refresh(libvirt, pool)?;
                let volumes = libvirt.rpc("virStoragePoolListAllVolumes", "", |_| pool.list_all_volumes(0))?;
                let text =
                    |volume: &StorageVol| match libvirt.rpc("virStorageVolGetXMLDesc", "", |_| volume.xml_desc(0)) {
                        Err(error) if is_gone(&error) => Ok(None),
                        text => text.map(Some),
                    };
                volumes.iter().filter_map(|volume| text(volume).transpose()).collect::<Result<Vec<_>, _>>()
            })
            .await?;
        for text in texts {
            let info = xml::volume_info(&text).map_err(|why| unreadable("a volume", &why.to_string()))?;
            if info.backing.is_some_and(|backing| backing.path == path) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Pool {
    fn stalled(&self, name: &str, idle: Duration) -> OpError {
        let (pool, host) = (&self.name, &self.host);
        let detail = format!("pool `{pool}` on host `{host}` took nothing of image `{name}` for {} s", idle.as_secs());
        OpError::transient(Reason::Timeout, detail)
    }
}
