//! That the scripted daemon is a libvirtd to our adapter: the double is held to what the real one is held to.

use std::path::Path;
use std::time::{Duration, Instant};

use egress_actors::domain::desired::Placement;
use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{InstanceSpec, InstanceState, OwnerMark};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::config::providers::LibvirtEntry;
use egress_operator::providers::libvirt::{LibvirtBackend, Limits};
use tokio::runtime::{Builder, Runtime};

use crate::conforms::blank;
use crate::kit::adapter::{Login, entry, means};
use crate::kit::libvirtd::calls;
use crate::kit::{About, Daemon, Keys, Mood, Place, Server, Sshd, alone, backends, eventually};

const SOON: Duration = Duration::from_secs(10);

/// A daemon behind an sshd, and our adapter before it.
pub(crate) struct Rig {
    pub(crate) backend: LibvirtBackend,
    pub(crate) daemon: Daemon,
    pub(crate) runtime: Runtime,
    entry: LibvirtEntry,
    _sshd: Sshd,
    _keys: Keys,
    _files: Server,
    _dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn start(limits: &Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (keys, socket) = (Keys::make(), dir.path().join("libvirt-sock"));
        let (sshd, daemon) = (Sshd::start(&keys), Daemon::start(&socket, 7));
        let image = blank(dir.path());
        let files = Server::with(&[&image]);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let known_hosts = keys.known_at(&[sshd.port]);
        let login = Login { user: keys.user.clone(), key_file: keys.key_file.clone(), known_hosts };
        let place = Place::near("one", sshd.port, &socket);
        let entry = entry("scripted", &login, &[place], &[("blank", &format!("{}/blank.qcow2", files.url()))]);
        let backend = opened(&runtime, &entry, limits);
        Self { backend, daemon, runtime, entry, _sshd: sshd, _keys: keys, _files: files, _dir: dir }
    }

    /// The same with other limits.
    pub(crate) fn reopened(self, limits: &Limits) -> Self {
        Self { backend: opened(&self.runtime, &self.entry, limits), ..self }
    }

    pub(crate) fn create(&self, name: &str) -> Result<(), OpError> {
        self.runtime.block_on(self.backend.create(&spec(name))).map(drop)
    }
}

fn opened(runtime: &Runtime, entry: &LibvirtEntry, limits: &Limits) -> LibvirtBackend {
    let _inside = runtime.enter();
    backends(entry, &means(runtime.handle().clone(), runtime.handle().clone()), limits).remove(0)
}

pub(crate) fn mark(name: &str) -> OwnerMark {
    OwnerMark {
        operator: OperatorId::parse("lab").unwrap(),
        entry: ProviderName::parse("scripted").unwrap(),
        key: ProxyKey::new("crawl", name).unwrap(),
        uid: Uid::parse(&format!("uid-{name}")).unwrap(),
    }
}

pub(crate) fn spec(name: &str) -> InstanceSpec {
    let placement = Placement { image: Some("blank".into()), ..Placement::default() };
    InstanceSpec { mark: mark(name), placement, user_data: None, port: 3128, credentials: None }
}

#[test]
fn our_adapter_makes_lists_and_removes_instances_on_a_scripted_daemon_as_on_a_real_one() {
    let _alone = alone();
    let rig = Rig::start(&Limits::default());
    let begun = Instant::now();
    for name in ["a", "b", "c"] {
        rig.create(name).unwrap();
    }
    println!("three are made after {:?}", begun.elapsed());
    let (backend, run) = (&rig.backend, &rig.runtime);
    let got = run.block_on(backend.get(&mark("a"))).unwrap();
    assert_eq!(got.state, InstanceState::Running);
    assert!(got.endpoint.unwrap().host.ends_with(".7"));
    let listed = run.block_on(backend.list(&mark("a").operator, None)).unwrap();
    assert_eq!(listed.len(), 3);
    run.block_on(backend.check()).unwrap();
    let base: Vec<_> = rig.daemon.volumes().into_iter().filter(|(name, _)| name.starts_with("base-")).collect();
    assert!(
        matches!(&base[..], [(image, 1..), (mark, 1..)] if image == "base-blank.qcow2" && mark == "base-blank.qcow2.ok"),
        "{base:?}"
    );
    for name in ["a", "b", "c"] {
        run.block_on(backend.delete(&mark(name))).unwrap();
    }
    assert_eq!(run.block_on(backend.get(&mark("a"))).unwrap_err().class, Class::NotFound);
    assert_eq!((rig.daemon.domains().len(), rig.daemon.volumes().len()), (0, 2));
}

#[test]
fn a_scripted_daemon_is_silent_about_what_it_is_told_to_and_goes_on_with_it_afterwards() {
    let limits = Limits { agent: Duration::from_millis(300), storage: Duration::from_secs(2), ..Limits::default() };
    let _alone = alone();
    let rig = Rig::start(&limits);
    rig.create("a").unwrap();
    let get = || rig.runtime.block_on(rig.backend.get(&mark("a")));

    rig.daemon.set(About::Agent, Mood::Silent);
    assert!(get().unwrap().endpoint.is_some(), "there are the leases");
    // It is counted when its lane has ended, a moment after its caller was told.
    let counted = || (rig.daemon.held(), rig.backend.link().standing().outstanding) == (1, 1);
    eventually(SOON, "it is held, and counted", || counted().then_some(()));
    rig.daemon.heal();
    eventually(SOON, "it goes on", || (rig.daemon.held() == 0).then_some(()));

    rig.daemon.set(About::Pool, Mood::Silent);
    assert_eq!(rig.create("b").unwrap_err().reason, Reason::Timeout);
    assert!(rig.backend.link().standing().is_pool_stuck && get().is_ok());
    rig.daemon.heal();
    eventually(SOON, "b is made", || rig.create("b").is_ok().then_some(()));

    rig.daemon.set(About::Call(calls::DOMAIN_CREATE), Mood::Closes);
    assert_eq!(rig.create("c").unwrap_err().class, Class::EffectUnknown);
    rig.daemon.heal();
    rig.create("c").unwrap();
    assert_eq!(rig.daemon.domains().iter().filter(|(_, runs)| *runs).count(), 3);
}

/// Or a test that fails leaves nothing to see.
#[test]
fn a_scripted_daemon_leaves_no_socket_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = &dir.path().join("sock");
    drop(Daemon::start(path, 1));
    assert!(!path.exists());
}
