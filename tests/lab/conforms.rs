//! The conformance suite against [`LibvirtBackend`] on a host of the lab. Its guests have an empty disk, and run without
//! ever booting; [`leases`] gives them their addresses.

use std::fs;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use self::leases::Leases;
use crate::kit::adapter::{means, parsed};
pub(crate) use crate::kit::images::blank;
use crate::kit::{Flavor, Host, Lab, Server, entry};
use async_trait::async_trait;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::OwnerMark;
use egress_actors::ports::Backend;
use egress_actors::testkit::conformance::{self, Breakage, ConformanceRig};
use egress_operator::config::providers::{Firmware, LibvirtEntry, VmSize};
use egress_operator::providers::libvirt::link::material::MaterialFiles;
use egress_operator::providers::libvirt::metadata::NAMESPACE;
use egress_operator::providers::libvirt::{LibvirtBackend, Limits, Means, names};

mod leases;

/// What a hand put in the place of an instance.
const BY_HAND: &str = "made by hand";

struct Rig {
    host: &'static Host,
    entry: LibvirtEntry,
    means: Means,
    backend: LibvirtBackend,
    /// The owner mark that was put aside, with its domain.
    kept: Mutex<Option<(String, String)>>,
    _leases: Leases,
    _files: Server,
    _dir: tempfile::TempDir,
    _alone: Alone,
}

/// Holds the lab for a test that moves between threads, as a lock itself cannot.
struct Alone {
    over: Option<Sender<()>>,
    holds: Option<JoinHandle<()>>,
}

impl Alone {
    fn on(lab: &'static Lab) -> Self {
        let ((said, hear), (over, wait)) = (channel(), channel::<()>());
        let holds = std::thread::spawn(move || {
            let _alone = lab.alone();
            said.send(()).unwrap();
            // Until the other end is dropped.
            let _ = wait.recv();
        });
        hear.recv().expect("the lab is whole");
        Self { over: Some(over), holds: Some(holds) }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(holds) = self.holds.take() {
            let _ = holds.join();
        }
    }
}

fn rig(flavor: Flavor) -> Option<Rig> {
    let lab = Lab::up(1)?;
    let alone = Alone::on(lab);
    let host = lab.host(0);
    let dir = tempfile::tempdir().unwrap();
    let blank = blank(dir.path());
    let files = Server::with(&[&blank]);
    let mut entry = parsed(&entry("conforms", flavor, &[host], &[&blank], &files.url()));
    for image in entry.images.values_mut() {
        (image.proxy, image.firmware) = (true, Firmware::Bios);
    }
    for size in entry.sizes.values_mut() {
        *size = VmSize { cpus: 1, memory: 64 << 20, disk: 1 << 20 };
    }
    let runtime = tokio::runtime::Handle::current();
    let means = means(runtime.clone(), runtime);
    let backend = opened(&entry, &means);
    let leases = Leases::of(lab.dir(), host);
    Some(Rig {
        host,
        entry,
        means,
        backend,
        kept: Mutex::default(),
        _leases: leases,
        _files: files,
        _dir: dir,
        _alone: alone,
    })
}

fn opened(entry: &LibvirtEntry, means: &Means) -> LibvirtBackend {
    let material = MaterialFiles::new(entry.ssh.key_file.clone(), entry.ssh.known_hosts_file.clone());
    // Claims wait for what a frozen daemon does not answer.
    let limits = Limits { control: Duration::from_secs(4), list: Duration::from_secs(4), ..Limits::default() };
    LibvirtBackend::new(Arc::new(entry.clone()), &entry.hosts[0], Arc::new(material), means.clone(), limits)
}

impl Rig {
    fn domain(mark: &OwnerMark) -> String {
        names::domain_name(mark)
    }

    fn metadata(&self, domain: &str) -> String {
        self.host.virsh(&["metadata", domain, "--uri", NAMESPACE]).trim().to_owned()
    }

    /// In the definition, and in what runs.
    fn set_metadata(&self, domain: &str, element: &str) {
        let place = ["metadata", domain, "--uri", NAMESPACE, "--key", "egress", "--live", "--config", "--set", element];
        self.host.virsh(&place);
    }

    fn freeze(&self) {
        self.host.breaks("stop-libvirtd", &[]);
    }

    fn thaw(&self) {
        self.host.breaks("cont-libvirtd", &[]);
    }
}

#[async_trait]
impl ConformanceRig for Rig {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.backend.clone())
    }

    fn mark(&self) -> OwnerMark {
        let uid = uuid::Uuid::new_v4().to_string();
        OwnerMark {
            operator: OperatorId::parse("test-operator").unwrap(),
            entry: self.entry.name.clone(),
            key: ProxyKey::new("crawl", &format!("px-{}", &uid[..8])).unwrap(),
            uid: Uid::parse(&uid).unwrap(),
        }
    }

    /// Domains that name the uid; where there is none, whatever has such a domain's name in the pool's folder.
    async fn count(&self, mark: &OwnerMark) -> usize {
        let domains = self.host.virsh(&["list", "--all", "--uuid"]);
        let of_uid = |domain: &&str| self.host.virsh(&["dumpxml", domain]).contains(mark.uid.as_str());
        let domains = domains.split_whitespace().filter(of_uid).count();
        let files = fs::read_dir(&self.host.pool_files).unwrap().flatten();
        let name = Self::domain(mark);
        let volumes = files.filter(|file| file.file_name().to_string_lossy().starts_with(&name)).count();
        if domains == 0 { volumes } else { domains }
    }

    async fn make_foreign(&self, mark: &OwnerMark) -> bool {
        let file = tempfile::NamedTempFile::new().unwrap();
        let name = Self::domain(mark);
        let text = format!(
            "<domain type='qemu'><name>{name}</name><description>{BY_HAND}</description><memory unit='MiB'>64</memory>\
             <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
        );
        fs::write(file.path(), text).unwrap();
        self.host.virsh(&["define", file.path().to_str().unwrap()]);
        true
    }

    async fn foreign_is_untouched(&self, mark: &OwnerMark) -> bool {
        let name = Self::domain(mark);
        let text = self.host.virsh(&["dumpxml", &name]);
        text.contains(BY_HAND)
            && !text.contains(NAMESPACE)
            && self.host.virsh(&["domstate", &name]).trim() == "shut off"
    }

    async fn stop(&self, mark: &OwnerMark) -> bool {
        self.host.virsh(&["destroy", &Self::domain(mark)]);
        true
    }

    async fn pause(&self, mark: &OwnerMark) -> bool {
        self.host.virsh(&["suspend", &Self::domain(mark)]);
        true
    }

    async fn resume(&self, mark: &OwnerMark) {
        self.host.virsh(&["resume", &Self::domain(mark)]);
    }

    /// libvirtd is frozen.
    async fn make_unreadable(&self, _: &OwnerMark) -> bool {
        self.freeze();
        true
    }

    async fn make_readable(&self, _: &OwnerMark) {
        self.thaw();
    }

    async fn break_list(&self, marks: &[OwnerMark], breakage: Breakage) -> bool {
        match breakage {
            Breakage::OnePart => {
                let domain = Self::domain(&marks[1]);
                let mark = self.metadata(&domain);
                *self.kept.lock().unwrap() = Some((domain.clone(), mark));
                self.set_metadata(&domain, "<proxy operator='test-operator'/>");
            }
            Breakage::Everything => self.freeze(),
        }
        true
    }

    async fn mend_list(&self, _: &[OwnerMark]) {
        match self.kept.lock().unwrap().take() {
            Some((domain, mark)) => self.set_metadata(&domain, &mark),
            None => self.thaw(),
        }
    }

    async fn mark_of_another_entry(&self) -> Option<(Arc<dyn Backend>, OwnerMark)> {
        let entry = LibvirtEntry { name: ProviderName::parse("another").unwrap(), ..self.entry.clone() };
        let mark = OwnerMark { entry: entry.name.clone(), ..self.mark() };
        Some((Arc::new(opened(&entry, &self.means)), mark))
    }

    async fn change_mark(&self, mark: &OwnerMark) -> Option<OwnerMark> {
        let other = OwnerMark { operator: OperatorId::parse("another-operator").unwrap(), ..mark.clone() };
        let domain = Self::domain(mark);
        let text = self.metadata(&domain);
        self.set_metadata(&domain, &text.replace(mark.operator.as_str(), other.operator.as_str()));
        Some(other)
    }

    /// A call that was cut takes as long as a call does: only the start of a domain takes so long, and a delete waits
    /// for that one.
    fn settle(&self) -> Duration {
        Duration::from_secs(1)
    }
}

mod kvm {
    use super::{Flavor, rig};

    egress_actors::conformance_tests!(match rig(Flavor::Kvm) {
        Some(rig) => rig,
        None => return,
    });
}

/// What its bases have a part in.
mod kvm2 {
    use super::{Flavor, conformance, rig};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_created_instance_is_got_and_listed() {
        let Some(rig) = rig(Flavor::Kvm2) else { return };
        conformance::a_created_instance_is_got_and_listed(&rig).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn creates_and_deletes_side_by_side_do_not_mix() {
        let Some(rig) = rig(Flavor::Kvm2) else { return };
        conformance::creates_and_deletes_side_by_side_do_not_mix(&rig).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_create_past_its_deadline_still_converges() {
        let Some(rig) = rig(Flavor::Kvm2) else { return };
        conformance::a_create_past_its_deadline_still_converges(&rig).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted() {
        let Some(rig) = rig(Flavor::Kvm2) else { return };
        let claim = conformance::a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted;
        claim(&rig).await;
    }
}
