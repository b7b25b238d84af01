//! What everybody may know of each Proxy, live: written by its own actor, read by the HTTP edge without asking anybody.

use std::sync::Arc;

use dashmap::DashMap;

use crate::domain::desired::{Attributes, Desired, Flavor};
use crate::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use crate::domain::status::{ConditionType, LastProbe, Status};

/// One Proxy as the outside sees it. Never holds credentials.
#[derive(Debug, Clone)]
pub struct ProxyView {
    pub key: ProxyKey,
    pub uid: Uid,
    pub provider: Option<ProviderName>,
    pub host: Option<HostName>,
    pub attributes: Arc<Attributes>,
    pub max_leases: u32,
    /// As it is, or is about to be, written on the object.
    pub status: Arc<Status>,
    /// The latest, though it is not written on the object.
    pub last_probe: Option<LastProbe>,
    pub exit_ip: Option<Arc<str>>,
}

impl ProxyView {
    pub fn new(desired: &Desired, status: Arc<Status>) -> Self {
        let managed = matches!(desired.flavor, Flavor::Managed(_));
        Self {
            key: desired.key.clone(),
            uid: desired.uid.clone(),
            provider: desired.provider().cloned(),
            host: if managed { desired.host.clone() } else { None },
            attributes: desired.attributes.clone(),
            max_leases: desired.max_leases,
            last_probe: status.last_probe.clone(),
            exit_ip: status.exit_ip.clone(),
            status,
        }
    }

    /// Why it is as it is, for a person: the reason and message of Ready.
    pub fn why(&self) -> Option<(&'static str, &str)> {
        self.status.condition(ConditionType::Ready).map(|ready| (ready.reason.as_str(), &*ready.message))
    }
}

/// All Proxies. `dashmap` is the index; a row is replaced as a whole.
#[derive(Debug, Clone, Default)]
pub struct Board(Arc<DashMap<ProxyKey, Arc<ProxyView>>>);

impl Board {
    pub fn put(&self, view: ProxyView) {
        self.0.insert(view.key.clone(), Arc::new(view));
    }

    /// Removes the row if it is still that of this uid: a recreated name has its own.
    pub fn remove(&self, key: &ProxyKey, uid: &Uid) {
        self.0.remove_if(key, |_, view| view.uid == *uid);
    }

    /// Another replica leads, and knows better.
    pub fn clear(&self) {
        self.0.clear();
    }

    pub fn get(&self, key: &ProxyKey) -> Option<Arc<ProxyView>> {
        self.0.get(key).map(|view| view.clone())
    }

    /// The row of this very object, not that of one which had its name before.
    pub fn get_of(&self, key: &ProxyKey, uid: &Uid) -> Option<Arc<ProxyView>> {
        self.get(key).filter(|view| view.uid == *uid)
    }

    /// All rows, in order of key.
    pub fn all(&self) -> Vec<Arc<ProxyView>> {
        let mut all: Vec<_> = self.0.iter().map(|view| view.clone()).collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
