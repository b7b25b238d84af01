//! Our adapter on hosts of any kind: of the lab, or scripted daemons behind an sshd.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_operator::config::providers::{self, Entry, LibvirtEntry};
use egress_operator::dns::Dns;
use egress_operator::providers::libvirt::images::Images;
use egress_operator::providers::libvirt::images::flights::{Bounds, Flights, NoMeter};
use egress_operator::providers::libvirt::images::source::{Resolve, Source};
use egress_operator::providers::libvirt::link::material::MaterialFiles;
use egress_operator::providers::libvirt::{LibvirtBackend, Limits, Means};
use tokio::runtime::Handle;

use super::Host;

/// Where a host is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) socket: String,
}

impl Place {
    pub(crate) fn near(name: &str, port: u16, socket: &Path) -> Self {
        let socket = socket.to_str().unwrap().to_owned();
        Self { name: name.to_owned(), address: "127.0.0.1".to_owned(), port, socket }
    }

    pub(crate) fn of(host: &Host) -> Self {
        let Host { name, address, port, socket, .. } = host;
        Self { name: name.to_lowercase(), address: address.clone(), port: *port, socket: socket.clone() }
    }
}

/// With whom and what all hosts of an entry are reached.
#[derive(Debug, Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) key_file: PathBuf,
    pub(crate) known_hosts: PathBuf,
}

impl Login {
    pub(crate) fn of(host: &Host) -> Self {
        Self { user: host.user.clone(), key_file: host.key_file.clone(), known_hosts: host.known_hosts.clone() }
    }
}

/// An entry of these hosts, with these images by their keys and URLs, all of which have their proxy.
pub(crate) fn entry(name: &str, login: &Login, places: &[Place], images: &[(&str, &str)]) -> LibvirtEntry {
    let hosts = places.iter().map(|Place { name, address, port, socket }| {
        format!("      - {{name: {name}, address: \"{address}:{port}\", pool: default, network: default, socket: {socket}}}\n")
    });
    let images =
        images.iter().map(|(key, url)| format!("      {key}: {{url: \"{url}\", proxy: true, firmware: bios}}\n"));
    let text = format!(
        "  - name: {name}\n    type: kvm\n    ssh: {{user: {}, keyFile: {}, knownHostsFile: {}}}\n    \
         hosts:\n{}    virtType: qemu\n    images:\n{}    \
         sizes: {{small: {{cpus: 1, memory: 64Mi, disk: 64Mi}}}}\n",
        login.user,
        login.key_file.display(),
        login.known_hosts.display(),
        hosts.collect::<String>(),
        images.collect::<String>(),
    );
    parsed(&text)
}

/// The one item of `providers` that this is, in YAML.
pub(crate) fn parsed(item: &str) -> LibvirtEntry {
    let loaded = providers::parse(Path::new("providers.yaml"), format!("providers:\n{item}").as_bytes()).unwrap();
    match loaded.entries.into_iter().next() {
        Some(Entry::Libvirt(entry)) => *entry,
        other => panic!("no entry of libvirt: {other:?}"),
    }
}

/// Image sources have addresses here.
struct NoNames;

#[async_trait]
impl Resolve for NoNames {
    async fn look_up(&self, host: &str, _: Duration) -> Result<Vec<std::net::IpAddr>, String> {
        Err(format!("{host} is a name"))
    }
}

/// What the adapters of one operator share. To be called inside `main`'s runtime.
pub(crate) fn means(main: Handle, bulk: Handle) -> Means {
    means_with(main, bulk, Bounds::default())
}

pub(crate) fn means_with(main: Handle, bulk: Handle, bounds: Bounds) -> Means {
    let flights = Flights::new(bulk.clone(), bounds, Arc::new(NoMeter));
    let images = Arc::new(Images::new(Source::new(Arc::new(NoNames), &[]), flights));
    Means { dns: Dns::system(), images, main, bulk }
}

/// One for each host of the entry.
pub(crate) fn backends(entry: &LibvirtEntry, means: &Means, limits: &Limits) -> Vec<LibvirtBackend> {
    let material = Arc::new(MaterialFiles::new(entry.ssh.key_file.clone(), entry.ssh.known_hosts_file.clone()));
    let shared = Arc::new(entry.clone());
    let one = |host| LibvirtBackend::new(shared.clone(), host, material.clone(), means.clone(), limits.clone());
    entry.hosts.iter().map(one).collect()
}
