//! Opens the configured entries: each becomes hosts with adapters.

use std::path::PathBuf;
use std::sync::Arc;

use egress_actors::domain::id::HostName;
use egress_actors::ports::{HostEntry, ProviderEntry};

use crate::config::providers::{Auth, Entry};
use crate::providers::kubernetes::{self, Cluster, KubernetesBackend};
use crate::providers::process::{ADDRESS_TIMEOUT, ProcessBackend, SETTLE, SLOTS};
use crate::providers::squid_conf::Opening;

/// What every entry is opened with.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    pub(super) state_dir: PathBuf,
    /// Destinations that our own Squids may reach without an entry's word: the operator's probe targets.
    pub(super) openings: Vec<Opening>,
    /// Where pods are made.
    pub(super) cluster: Cluster,
}

impl Opener {
    pub(super) fn open(&self, entries: &[Entry]) -> Vec<ProviderEntry> {
        entries.iter().map(|entry| self.open_one(entry)).collect()
    }

    fn open_one(&self, entry: &Entry) -> ProviderEntry {
        match entry {
            Entry::Process(process) => {
                let backend = ProcessBackend::new(process.clone(), &self.state_dir, self.openings.iter().cloned());
                let capacity = backend.capacity();
                ProviderEntry {
                    name: process.name.clone(),
                    kind: "process",
                    revision: entry.revision(),
                    backend: format!("process/{}", self.state_dir.display()).into(),
                    hosts: vec![HostEntry {
                        // An entry without hosts has one, named like itself.
                        name: HostName::parse(process.name.as_str())
                            .expect("what an entry may be called a host may be called"),
                        ids: format!("process://{0}/{0}/", process.name).into(),
                        capacity: Some(capacity),
                        slots: SLOTS,
                        backend: Arc::new(backend),
                    }],
                    settle: SETTLE,
                    address_timeout: ADDRESS_TIMEOUT,
                    may_generate_credentials: process.auth == Auth::Generated,
                }
            }
            Entry::Kubernetes(pods) => {
                let targets = self.openings.iter().cloned();
                let backend = KubernetesBackend::new((**pods).clone(), self.cluster.clone(), targets);
                ProviderEntry {
                    name: pods.name.clone(),
                    kind: "kubernetes",
                    revision: entry.revision(),
                    backend: format!("kubernetes/{}", pods.namespace).into(),
                    hosts: vec![HostEntry {
                        name: HostName::parse(pods.name.as_str())
                            .expect("what an entry may be called a host may be called"),
                        ids: format!("kubernetes://{0}/{0}/{1}/", pods.name, pods.namespace).into(),
                        capacity: None,
                        slots: kubernetes::SLOTS,
                        backend: Arc::new(backend),
                    }],
                    settle: kubernetes::SETTLE,
                    address_timeout: kubernetes::ADDRESS_TIMEOUT,
                    may_generate_credentials: pods.auth == Auth::Generated,
                }
            }
            // Replaced with the provider itself.
            Entry::Libvirt(_) => unreachable!("opened by the libvirt provider"),
        }
    }
}
