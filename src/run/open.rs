//! Opens the configured entries: each becomes hosts with adapters.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::id::HostName;
use egress_actors::names;
use egress_actors::ports::{HostEntry, ProviderEntry};
use tokio::runtime::Handle;

use crate::config::providers::{Auth, Entry, LibvirtEntry};
use crate::dns::Dns;
use crate::providers::kubernetes::{self, Cluster, KubernetesBackend};
use crate::providers::libvirt::images::Images;
use crate::providers::libvirt::images::flights::{Bounds, Flights, Meter, Site};
use crate::providers::libvirt::images::source::{Resolve, Source};
use crate::providers::libvirt::link::material::MaterialFiles;
use crate::providers::libvirt::{self, LibvirtBackend, Means};
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
    /// What virtual machines are made with.
    pub(super) machines: Means,
}

/// The fetching of images, for all hosts of all entries.
pub(super) fn images(dns: &Dns, bulk: &Handle) -> Images {
    let flights = Flights::new(bulk.clone(), Bounds::default(), Arc::new(Counted));
    Images::new(Source::new(Arc::new(Resolver(dns.clone())), &[]), flights)
}

/// What is transferred, as metrics.
struct Counted;

impl Meter for Counted {
    fn moved(&self, site: &Site, bytes: u64) {
        let labels = [("provider", site.provider.to_string()), ("host", site.host.to_string())];
        metrics::counter!(names::IMAGE_TRANSFER_BYTES_TOTAL, &labels).increment(bytes);
    }

    fn running(&self, site: &Site, begins: bool) {
        let labels = [("provider", site.provider.to_string()), ("host", site.host.to_string())];
        metrics::gauge!(names::IMAGE_TRANSFERS, &labels).increment(if begins { 1.0 } else { -1.0 });
    }
}

struct Resolver(Dns);

#[async_trait]
impl Resolve for Resolver {
    async fn look_up(&self, host: &str, limit: Duration) -> Result<Vec<IpAddr>, String> {
        self.0.look_up(host, limit).await.map(|addresses| addresses.to_vec()).map_err(|error| error.to_string())
    }
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
            Entry::Libvirt(machines) => self.open_libvirt(entry.revision(), machines),
        }
    }

    fn open_libvirt(&self, revision: u64, entry: &LibvirtEntry) -> ProviderEntry {
        let material = Arc::new(MaterialFiles::new(entry.ssh.key_file.clone(), entry.ssh.known_hosts_file.clone()));
        let shared = Arc::new(entry.clone());
        let hosts = entry.hosts.iter().map(|host| {
            let (machines, limits) = (self.machines.clone(), libvirt::Limits::default());
            HostEntry {
                name: host.name.clone(),
                ids: LibvirtBackend::ids(entry, host).into(),
                capacity: host.capacity,
                slots: libvirt::SLOTS,
                backend: Arc::new(LibvirtBackend::new(shared.clone(), host, material.clone(), machines, limits)),
            }
        });
        ProviderEntry {
            name: entry.name.clone(),
            kind: entry.flavor.as_str(),
            revision,
            backend: libvirts(entry).into(),
            hosts: hosts.collect(),
            settle: libvirt::SETTLE,
            address_timeout: entry.address_timeout,
            may_generate_credentials: false,
        }
    }
}

/// Its hosts together, as one backend (P4): whoever names the same ones shares it, in whatever order, pool or network.
fn libvirts(entry: &LibvirtEntry) -> String {
    let mut places: Vec<_> = entry.hosts.iter().map(|host| format!("{}:{}", host.address, host.port)).collect();
    places.sort_unstable();
    places.dedup();
    format!("libvirt/{}", places.join(","))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::providers;

    #[test]
    fn entries_with_the_same_hosts_share_a_backend_in_whatever_order_pool_or_flavor() {
        let backend = |kind: &str, hosts: &str| {
            let text = format!(
                "providers: [{{name: home, type: {kind}, ssh: {{user: u, keyFile: /k, knownHostsFile: /h}}, \
                 hosts: [{hosts}], images: {{a: {{url: \"http://x/a\"}}}}}}]"
            );
            match &providers::parse(Path::new("providers.yaml"), text.as_bytes()).expect("read").entries[0] {
                Entry::Libvirt(entry) => libvirts(entry),
                other => panic!("{other:?}"),
            }
        };
        let both = "{name: a, address: KVM-1.example}, {name: b, address: \"10.0.0.5:2222\"}";
        let shared = "libvirt/10.0.0.5:2222,kvm-1.example:22";
        assert_eq!(backend("kvm", both), shared);
        for hosts in [
            "{name: x, address: \"10.0.0.5:2222\", pool: fast}, {name: y, address: \"kvm-1.example:22\", network: n}",
            "{name: a, address: kvm-1.example}, {name: b, address: \"10.0.0.5:2222\"}, {name: c, address: kvm-1.example, pool: p}",
        ] {
            assert_eq!(backend("kvm2", hosts), shared, "{hosts}");
        }
        for hosts in
            ["{name: a, address: kvm-1.example}", "{name: a, address: kvm-1.example}, {name: b, address: 10.0.0.5}"]
        {
            assert_ne!(backend("kvm", hosts), shared, "{hosts}");
        }
    }
}
