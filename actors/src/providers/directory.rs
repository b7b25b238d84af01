//! Which entries and hosts there are, as a cell that everybody reads.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::domain::id::{HostName, ProviderName};
use crate::domain::target::TargetHealth;
use crate::host::HostHandle;
use crate::kit::Env;
use crate::ports::{HostEntry, ProviderEntry};
use crate::provider::ProviderHandle;
use crate::sweep::Swept;

/// One entry as everybody sees it.
#[derive(Debug)]
pub struct EntryCard {
    pub entry: ProviderEntry,
    pub provider: ProviderHandle,
    pub hosts: HashMap<HostName, HostHandle>,
    /// The latest verdict on each host; empty before the first check.
    pub verdicts: Arc<ArcSwap<Vec<TargetHealth>>>,
    /// Why its ProviderHealth is not written, if it is not: one of that name is somebody else's.
    pub untold: Arc<ArcSwapOption<String>>,
    /// What its sweep for orphans found.
    pub swept: Arc<ArcSwap<Swept>>,
}

impl EntryCard {
    /// Hosts that stay keep their handles, and with them their followers. One that is in another backend than before does
    /// not: what was asked of the old one must not be answered by the new one.
    pub(super) fn new(entry: &ProviderEntry, before: Option<&Self>, env: &Arc<Env>) -> Self {
        let host = |host: &HostEntry| {
            let stays = |card: &&Self| card.entry.hosts.iter().any(|old| old.name == host.name && old.ids == host.ids);
            let kept = before.filter(stays).and_then(|card| card.hosts.get(&host.name)).cloned();
            (host.name.clone(), kept.unwrap_or_else(|| HostHandle::new(env, &entry.name, &host.name)))
        };
        Self {
            entry: entry.clone(),
            provider: before.map_or_else(|| ProviderHandle::new(&entry.name), |card| card.provider.clone()),
            hosts: entry.hosts.iter().map(host).collect(),
            verdicts: Arc::default(),
            untold: before.map(|card| card.untold.clone()).unwrap_or_default(),
            swept: Arc::default(),
        }
    }
}

/// Which entries there are. Read without waiting; written by `providers` only.
#[derive(Debug, Clone, Default)]
pub struct Directory(Arc<ArcSwapOption<Cards>>);

pub(super) type Cards = HashMap<ProviderName, Arc<EntryCard>>;

impl Directory {
    pub fn entry(&self, name: &ProviderName) -> Option<Arc<EntryCard>> {
        self.0.load().as_ref().and_then(|cards| cards.get(name).cloned())
    }

    pub(super) fn cards(&self) -> Option<Arc<Cards>> {
        self.0.load_full()
    }

    pub(super) fn publish(&self, cards: Cards) {
        self.0.store(Some(Arc::new(cards)));
    }

    /// False until the configuration has been opened for the first time: what is missing before says nothing.
    pub fn is_known(&self) -> bool {
        self.0.load().is_some()
    }

    /// Whether `sweeper` looks after the instances of `entry`: its own, and those of an entry that nobody who sees the
    /// same backend is called any more; the first in order of name does that for all who see it.
    pub fn is_swept_by(&self, entry: &ProviderName, sweeper: &ProviderName) -> bool {
        if entry == sweeper {
            return true;
        }
        let entries = self.entries();
        let Some(backend) = entries.iter().find(|card| card.entry.name == *sweeper).map(|card| &card.entry.backend)
        else {
            return false;
        };
        let mut sharing = entries.iter().map(|card| &card.entry).filter(|entry| entry.backend == *backend);
        sharing.clone().all(|other| other.name != *entry) && sharing.next().is_some_and(|first| first.name == *sweeper)
    }

    /// All entries in order of name.
    pub fn entries(&self) -> Vec<Arc<EntryCard>> {
        let mut all: Vec<_> = self.0.load().iter().flat_map(|cards| cards.values().cloned()).collect();
        all.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        all
    }
}
