//! One replica's own ways to the world that it shares with others: counted, and cut at will.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::time::Instant;

use super::backend::ScriptedHost;
use super::store::Store;
use super::world::lock;
use crate::domain::claim::{ClaimRecord, ClaimSettings, ClaimWrite, Stored};
use crate::domain::error::OpError;
use crate::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use crate::domain::instance::{Instance, InstanceSpec, Listed, OwnerMark};
use crate::domain::reason::Reason;
use crate::domain::status::Status;
use crate::ports::{Backend, Candidacy, ClaimStore, Claimed, FoundHealth, Mandate, ProviderHealth, Records};

/// How an API server is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    Refuses,
    Hangs,
}

/// What a replica's calls go through.
#[derive(Debug, Default)]
pub struct Line {
    objects: Mutex<Option<Outage>>,
    claims: Mutex<Option<Outage>>,
    writes: Mutex<Vec<(&'static str, Instant)>>,
    backend: Mutex<Vec<(&'static str, Instant)>>,
}

impl Line {
    /// The whole API server is away, or back.
    pub fn cut(&self, outage: Option<Outage>) {
        *lock(&self.objects) = outage;
        self.cut_claims(outage);
    }

    /// Only the shared record cannot be reached.
    pub fn cut_claims(&self, outage: Option<Outage>) {
        *lock(&self.claims) = outage;
    }

    /// Writes of objects that were started, also in vain: `finalizer`, `status`, `release`, `annotation`, `health`.
    pub fn writes(&self) -> Vec<(&'static str, Instant)> {
        lock(&self.writes).clone()
    }

    /// Calls to hosts.
    pub fn calls(&self) -> Vec<(&'static str, Instant)> {
        lock(&self.backend).clone()
    }

    pub fn calls_of(&self, kind: &str) -> usize {
        lock(&self.backend).iter().filter(|(of, _)| *of == kind).count()
    }

    async fn write(&self, kind: &'static str) -> Result<(), OpError> {
        lock(&self.writes).push((kind, Instant::now()));
        let outage = *lock(&self.objects);
        pass(outage).await
    }

    fn call(&self, kind: &'static str) {
        lock(&self.backend).push((kind, Instant::now()));
    }
}

async fn pass(outage: Option<Outage>) -> Result<(), OpError> {
    match outage {
        None => Ok(()),
        Some(Outage::Refuses) => Err(OpError::transient(Reason::Unreachable, "the API server is away")),
        Some(Outage::Hangs) => std::future::pending().await,
    }
}

/// The shared record, and who is marked as the leader.
#[derive(Debug, Default)]
pub struct Claims {
    stored: Mutex<Option<Stored>>,
    versions: Mutex<u64>,
    marked: Mutex<BTreeSet<String>>,
    writes: Mutex<Vec<(String, Instant)>>,
}

impl Claims {
    pub fn record(&self) -> Option<ClaimRecord> {
        lock(&self.stored).as_ref().map(|stored| stored.record.clone())
    }

    pub fn marked(&self) -> Vec<String> {
        lock(&self.marked).iter().cloned().collect()
    }

    /// Writes of the record that this replica sent, those overtaken too.
    pub fn writes_of(&self, identity: &str) -> Vec<Instant> {
        lock(&self.writes).iter().filter(|(of, _)| of == identity).map(|(_, at)| *at).collect()
    }

    /// Somebody removes the record.
    pub fn remove(&self) {
        *lock(&self.stored) = None;
    }

    /// Another replica takes it, as if it had been allowed to.
    pub fn usurp(&self, holder: &str) {
        let mut record = self.record().expect("there is a record");
        record.transitions += u32::from(*record.holder != *holder);
        record.holder = holder.into();
        record.lease = ClaimSettings::default().lease;
        record.renewed_at += std::time::Duration::from_secs(1);
        self.put(&mut lock(&self.stored), record);
        *lock(&self.marked) = [holder.to_owned()].into();
    }

    /// Its holder lets go.
    pub fn let_go(&self) {
        let mut record = self.record().expect("there is a record");
        record.lease = crate::domain::claim::LET_GO;
        self.put(&mut lock(&self.stored), record);
    }

    fn put(&self, stored: &mut Option<Stored>, record: ClaimRecord) -> Stored {
        let mut versions = lock(&self.versions);
        *versions += 1;
        stored.insert(Stored { record, version: versions.to_string().into() }).clone()
    }
}

/// One replica's way to the record.
#[derive(Debug, Clone)]
pub struct Seat {
    pub claims: Arc<Claims>,
    pub line: Arc<Line>,
    pub identity: Arc<str>,
}

impl Seat {
    pub(super) fn candidacy(&self) -> Candidacy {
        Candidacy { store: Arc::new(self.clone()), identity: self.identity.clone(), settings: ClaimSettings::default() }
    }

    async fn pass(&self) -> Result<(), OpError> {
        let outage = *lock(&self.line.claims);
        pass(outage).await?;
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        Ok(())
    }
}

#[async_trait]
impl ClaimStore for Seat {
    async fn read(&self) -> Result<Option<Stored>, OpError> {
        self.pass().await?;
        Ok(lock(&self.claims.stored).clone())
    }

    async fn write(&self, write: &ClaimWrite) -> Result<Claimed, OpError> {
        lock(&self.claims.writes).push((self.identity.to_string(), Instant::now()));
        self.pass().await?;
        let mut stored = lock(&self.claims.stored);
        let record = match (write, &*stored) {
            (ClaimWrite::Create(record), None) => record,
            (ClaimWrite::Replace(record, version), Some(found)) if found.version == *version => record,
            (ClaimWrite::Create(_) | ClaimWrite::Replace(..), _) => return Ok(Claimed::Overtaken),
        };
        Ok(Claimed::Stored(self.claims.put(&mut stored, record.clone())))
    }

    async fn mark_leader(&self, leads: bool) -> Result<(), OpError> {
        self.pass().await?;
        let mut marked = lock(&self.claims.marked);
        if leads {
            *marked = [self.identity.to_string()].into();
        } else {
            marked.remove(&*self.identity);
        }
        Ok(())
    }
}

/// The store, as one replica reaches it.
#[derive(Debug)]
pub(super) struct LinedStore(pub(super) Arc<Store>, pub(super) Arc<Line>);

#[async_trait]
impl Records for LinedStore {
    async fn adopt(
        &self,
        key: &ProxyKey,
        uid: &Uid,
        host: Option<&HostName>,
        mandate: &Mandate,
    ) -> Result<(), OpError> {
        self.1.write("finalizer").await?;
        self.0.adopt(key, uid, host, mandate).await
    }

    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError> {
        self.1.write("release").await?;
        self.0.release(key, uid).await
    }

    async fn write_status(&self, key: &ProxyKey, uid: &Uid, status: &Status, mandate: &Mandate) -> Result<(), OpError> {
        self.1.write("status").await?;
        self.0.write_status(key, uid, status, mandate).await
    }

    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        self.1.write("annotation").await?;
        self.0.annotate_drain(key, uid, drain).await
    }

    async fn write_provider_health(&self, health: &ProviderHealth, mandate: &Mandate) -> Result<(), OpError> {
        self.1.write("health").await?;
        self.0.write_provider_health(health, mandate).await
    }

    async fn remove_provider_health(&self, entry: &ProviderName, mandate: &Mandate) -> Result<(), OpError> {
        self.1.write("health").await?;
        self.0.remove_provider_health(entry, mandate).await
    }

    async fn list_provider_healths(&self) -> Result<Vec<FoundHealth>, OpError> {
        let outage = *lock(&self.1.objects);
        pass(outage).await?;
        self.0.list_provider_healths().await
    }

    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        self.0.owner_exists(key, uid).await
    }
}

/// A host, as one replica reaches it.
#[derive(Debug)]
pub(super) struct LinedHost(pub(super) Arc<ScriptedHost>, pub(super) Arc<Line>);

#[async_trait]
impl Backend for LinedHost {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        self.1.call("create");
        self.0.create(spec).await
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        self.1.call("get");
        self.0.get(mark).await
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        self.1.call("delete");
        self.0.delete(mark).await
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        self.1.call("list");
        self.0.list(operator, entry).await
    }

    async fn check(&self) -> Result<(), OpError> {
        self.1.call("check");
        self.0.check().await
    }
}
