//! The source and the records of standalone mode: both are ways into the keeper's queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use egress_actors::domain::status::{Status, keep_transitions};
use egress_actors::ports::{FoundHealth, Mandate, ProviderHealth, ProxySource, Records, SourceEvent};
use futures::stream::BoxStream;
use tokio::sync::oneshot;

use super::Shared;
use super::keeper::{Job, Queue, Write, closed};
use super::stream::Subscriber;
use crate::crd::status::written;

/// Where the Proxies come from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) queue: Queue,
    pub(super) shared: Arc<Shared>,
}

impl ProxySource for Source {
    fn events(&self) -> BoxStream<'static, SourceEvent> {
        let consumer = Arc::new(Subscriber::default());
        self.shared.new_consumers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&consumer));
        // If the queue is full the keeper is at work, and looks for new consumers after the job in hand.
        let _ = self.queue.offer(Job::Nudge);
        consumer.stream()
    }
}

/// Writes into the store. The health of providers is not stored: it is found anew at each start.
#[derive(Debug)]
pub(super) struct StoreRecords {
    pub(super) queue: Queue,
    pub(super) health: Mutex<BTreeMap<ProviderName, ProviderHealth>>,
}

impl StoreRecords {
    async fn write(&self, write: Write) -> Result<(), OpError> {
        let (answer, answered) = oneshot::channel();
        self.queue.offer(Job::Write(write, answer))?;
        // The deadline is the caller's. The keeper answers after a commit, and drops the sender if it ends.
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(super) fn health(&self) -> Vec<ProviderHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

#[async_trait]
impl Records for StoreRecords {
    async fn adopt(&self, key: &ProxyKey, uid: &Uid, host: Option<&HostName>, _: &Mandate) -> Result<(), OpError> {
        self.write(Write::Adopt(key.clone(), uid.clone(), host.cloned())).await
    }

    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError> {
        self.write(Write::Release(key.clone(), uid.clone())).await
    }

    async fn write_status(&self, key: &ProxyKey, uid: &Uid, status: &Status, _: &Mandate) -> Result<(), OpError> {
        self.write(Write::Status(key.clone(), uid.clone(), Box::new(written(status)))).await
    }

    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        self.write(Write::Drain(key.clone(), uid.clone(), drain)).await
    }

    async fn write_provider_health(&self, health: &ProviderHealth, _: &Mandate) -> Result<(), OpError> {
        let mut known = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let mut health = health.clone();
        let stored = known.get(&health.entry);
        keep_transitions(&mut health.conditions, |kind| {
            let found = stored?.conditions.iter().find(|condition| condition.kind == kind)?;
            Some((found.truth, found.since))
        });
        known.insert(health.entry.clone(), health);
        Ok(())
    }

    async fn remove_provider_health(&self, entry: &ProviderName, _: &Mandate) -> Result<(), OpError> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).remove(entry);
        Ok(())
    }

    async fn list_provider_healths(&self) -> Result<Vec<FoundHealth>, OpError> {
        let known = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(known.keys().map(|entry| FoundHealth { entry: entry.clone(), is_ours: true }).collect())
    }

    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        let (answer, answered) = oneshot::channel();
        self.queue.offer(Job::Exists(key.clone(), uid.clone(), answer))?;
        answered.await.map_err(|_| closed())
    }
}
