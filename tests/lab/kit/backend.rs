//! A [`LibvirtBackend`] on hosts of the lab, without an operator around it: what it answers, and how soon.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use egress_actors::domain::desired::Placement;
use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{Instance, InstanceSpec, InstanceState, Listed, OwnerMark};
use egress_actors::ports::Backend;
use egress_operator::config::providers::{Firmware, LibvirtEntry, LibvirtHost, VmSize};
use egress_operator::providers::libvirt::images::flights::Bounds;
use egress_operator::providers::libvirt::link::material::MaterialFiles;
use egress_operator::providers::libvirt::link::{LaneKind, LinkError};
use egress_operator::providers::libvirt::{LibvirtBackend, Limits, Means, names};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

pub(crate) use super::adapter::parsed;
pub(crate) use super::images::sha256;
use super::{Flavor, Host, Image, Server, adapter, entry, eventually, image};

/// Of a call.
pub(crate) const LIMIT: Duration = Duration::from_millis(1500);
/// A deadline, and what a busy machine adds.
pub(crate) const SOON: Duration = Duration::from_millis(2500);
pub(crate) const AMPLE: Duration = Duration::from_secs(60);

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Limits of calls that are meant to pass them.
pub(crate) fn short() -> Limits {
    let mut limits = Limits { control: LIMIT, storage: LIMIT, agent: LIMIT, check: SOON, ..Limits::default() };
    limits.link.open = LIMIT;
    limits
}

/// Failures of images are forgotten soon.
pub(crate) fn means(runtime: &Runtime) -> Means {
    let handle = runtime.handle().clone();
    let bounds = Bounds { failure_kept: (Duration::from_millis(100), Duration::from_millis(500)), ..Bounds::default() };
    adapter::means_with(handle.clone(), handle, bounds)
}

/// The backend of a host of this entry.
pub(crate) fn opened(
    runtime: &Runtime,
    entry: &LibvirtEntry,
    host: usize,
    means: &Means,
    limits: Limits,
) -> LibvirtBackend {
    let _inside = runtime.enter();
    let material = Arc::new(MaterialFiles::new(entry.ssh.key_file.clone(), entry.ssh.known_hosts_file.clone()));
    LibvirtBackend::new(Arc::new(entry.clone()), &entry.hosts[host], material, means.clone(), limits)
}

/// One with [`short`] limits that makes nothing.
pub(crate) fn backend(runtime: &Runtime, host: &Host) -> LibvirtBackend {
    let entry = parsed(&entry("stalls", Flavor::Kvm, &[host], &[&image("tiny")], "http://127.0.0.1:9"));
    opened(runtime, &entry, 0, &means(runtime), short())
}

pub(crate) fn mark() -> OwnerMark {
    mark_of("p", 1)
}

/// Of a Proxy with this name; another number is another uid.
pub(crate) fn mark_of(name: &str, number: u16) -> OwnerMark {
    OwnerMark {
        operator: OperatorId::parse("lab").unwrap(),
        entry: ProviderName::parse("stalls").unwrap(),
        key: ProxyKey::new("crawl", name).unwrap(),
        uid: Uid::parse(&format!("0b9d8f3a-0000-4000-8000-00000000{number:04x}")).unwrap(),
    }
}

pub(crate) fn timed(runtime: &Runtime, backend: &LibvirtBackend) -> (OpError, Duration) {
    let begun = Instant::now();
    (runtime.block_on(backend.get(&mark())).unwrap_err(), begun.elapsed())
}

/// No instance is there: that it is told as absent is the answer of a host that works.
pub(crate) fn works(runtime: &Runtime, backend: &LibvirtBackend) {
    eventually(AMPLE, "the host answers", || (timed(runtime, backend).0.class == Class::NotFound).then_some(()));
}

pub(crate) fn count(of: &str) -> usize {
    fs::read_dir(of).unwrap().count()
}

pub(crate) fn refresh(runtime: &Runtime, backend: &LibvirtBackend, pool: &str) -> Result<(), LinkError> {
    let pool = pool.to_owned();
    runtime.block_on(backend.link().call(LaneKind::Storage, "virStoragePoolRefresh", LIMIT, move |libvirt| {
        let found = libvirt.rpc("virStoragePoolLookupByName", &pool, |c| c.lookup_storage_pool_by_name(&pool))?;
        libvirt.rpc("virStoragePoolRefresh", &pool, |_| found.refresh(0)).map(drop)
    }))
}

/// An entry for some hosts, a source for its images, and what backends of it are opened with. Guests have a disk without
/// anything on it, of BIOS, and run without ever booting.
pub(crate) struct Bench {
    pub(crate) runtime: Runtime,
    /// Changed before [`Bench::open`].
    pub(crate) entry: LibvirtEntry,
    pub(crate) means: Means,
    pub(crate) files: Server,
    pub(crate) dir: TempDir,
}

impl Bench {
    pub(crate) fn new(hosts: &[&Host]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let blank = boot_sector(dir.path(), "blank.img", &[0xf4, 0xeb, 0xfd], 1 << 20);
        let files = Server::with(&[&blank]);
        let mut entry = parsed(&entry("stalls", Flavor::Kvm, hosts, &[&blank], &files.url()));
        for image in entry.images.values_mut() {
            (image.proxy, image.firmware, image.format) = (true, Firmware::Bios, None);
        }
        entry.sizes = [("small".to_owned(), VmSize { cpus: 1, memory: 64 << 20, disk: 1 << 20 })].into();
        entry.image_idle_timeout = Duration::from_secs(2);
        let runtime = runtime();
        Self { means: means(&runtime), runtime, entry, files, dir }
    }

    pub(crate) fn open(&self) -> LibvirtBackend {
        self.open_with(Limits::default())
    }

    pub(crate) fn open_with(&self, limits: Limits) -> LibvirtBackend {
        opened(&self.runtime, &self.entry, 0, &self.means, limits)
    }

    /// The first host once more, under another name: where it stands among the hosts.
    pub(crate) fn also(&mut self, name: &str) -> usize {
        let again = LibvirtHost { name: HostName::parse(name).unwrap(), ..self.entry.hosts[0].clone() };
        self.entry.hosts.push(again);
        self.entry.hosts.len() - 1
    }

    /// An image of this file beside the blank one, at `/<key>`.
    pub(crate) fn serves(&mut self, image: &Image) {
        let mut source = self.entry.images["blank"].clone();
        source.url = format!("{}/{}", self.files.url(), image.key).parse().unwrap();
        source.sha256 = None;
        self.files.answers(&format!("/{}", image.key), super::Behavior::File(image.path.clone()));
        self.entry.images.insert(image.key.to_owned(), source);
    }

    pub(crate) fn create(&self, backend: &LibvirtBackend, spec: &InstanceSpec) -> Result<Instance, OpError> {
        self.runtime.block_on(backend.create(spec))
    }

    /// Tries as an operator would, for as long as a failure is one that passes.
    pub(crate) fn creates(&self, backend: &LibvirtBackend, spec: &InstanceSpec) -> Instance {
        eventually(AMPLE, &format!("an instance of {}", spec.mark.key), || match self.create(backend, spec) {
            Ok(instance) => Some(instance),
            Err(error) => {
                assert!(error.class != Class::Permanent, "{error:?}");
                println!("not yet: {error}");
                None
            }
        })
    }

    pub(crate) fn get(&self, backend: &LibvirtBackend, mark: &OwnerMark) -> Result<Instance, OpError> {
        self.runtime.block_on(backend.get(mark))
    }

    pub(crate) fn state(&self, backend: &LibvirtBackend, mark: &OwnerMark) -> InstanceState {
        self.get(backend, mark).unwrap().state
    }

    /// As [`Bench::creates`].
    pub(crate) fn deletes(&self, backend: &LibvirtBackend, mark: &OwnerMark) {
        eventually(AMPLE, &format!("{} is gone", mark.key), || match self.delete(backend, mark) {
            Ok(()) => Some(()),
            Err(error) => {
                assert!(error.class != Class::Permanent, "{error:?}");
                println!("not yet: {error}");
                None
            }
        });
    }

    pub(crate) fn delete(&self, backend: &LibvirtBackend, mark: &OwnerMark) -> Result<(), OpError> {
        self.runtime.block_on(backend.delete(mark))
    }

    /// Of this entry.
    pub(crate) fn list(&self, backend: &LibvirtBackend) -> Result<Vec<Listed>, OpError> {
        let (operator, entry) = (mark().operator, self.entry.name.clone());
        self.runtime.block_on(backend.list(&operator, Some(&entry)))
    }

    pub(crate) fn check(&self, backend: &LibvirtBackend) -> Result<(), OpError> {
        self.runtime.block_on(backend.check())
    }
}

/// An instance of an image of the entry (`blank`), the Proxy of which has this name.
pub(crate) fn spec(name: &str, number: u16, image: &str) -> InstanceSpec {
    let placement = Placement { zone: None, image: Some(image.into()), size: Some("small".into()) };
    InstanceSpec { mark: mark_of(name, number), placement, user_data: None, port: 3128, credentials: None }
}

pub(crate) fn domain(mark: &OwnerMark) -> String {
    names::domain_name(mark)
}

/// A raw disk whose first sector is this program, by BIOS.
pub(crate) fn boot_sector(dir: &Path, name: &str, program: &[u8], size: u64) -> Image {
    let path = dir.join(name);
    let mut sector = [0; 512];
    sector[..program.len()].copy_from_slice(program);
    (sector[510], sector[511]) = (0x55, 0xaa);
    let file = fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &sector, 0).unwrap();
    file.set_len(size).unwrap();
    let key = name.split('.').next().unwrap().to_owned().leak();
    Image { key, sha256: sha256(&path), path }
}

/// The files in the pool's folder, past libvirt.
pub(crate) fn volumes(host: &Host) -> Vec<String> {
    files(&host.pool_files)
}

pub(crate) fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().flatten().map(|file| file.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
