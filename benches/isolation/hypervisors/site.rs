//! Ten hosts: two that are real, seven scripted daemons behind the sshd of a host of the lab each, and one behind an sshd
//! on the loopback. One of the seven goes bad.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use egress_actors::domain::id::{HostName, OperatorId, ProviderName, Uid};
use egress_actors::domain::instance::OwnerMark;
use egress_actors::ports::{HostEntry, ProviderEntry};
use egress_actors::testkit::world::{Store, key};
use egress_operator::config::providers::{Firmware, ImageFormat, VirtType};
use egress_operator::providers::libvirt::link::{LaneKind, Limits as LinkLimits};
use egress_operator::providers::libvirt::metadata::Mark;
use egress_operator::providers::libvirt::xml::{self, DomainSpec};
use egress_operator::providers::libvirt::{self, LibvirtBackend, Limits, Means, names};
use tokio::runtime::{Builder, Handle, Runtime};

use self::leases::Leases;
use crate::kit::adapter::{Login, entry, means};
use crate::kit::server::Behavior;
use crate::kit::{About, Daemon, Host, Keys, Lab, Mood, Place, Relay, Server, Sshd, backends, images};
use crate::measure::Trouble;

#[path = "../../../tests/lab/conforms/leases.rs"]
#[allow(clippy::unwrap_used, reason = "test code")]
mod leases;

/// Hosts of the lab: real ones, then the bad one, then scripted ones.
const REAL: usize = 2;
const BAD: usize = REAL;
const LAB: usize = 9;

/// A socket beside libvirtd's own, as it is called on the host.
const SOCKET: &str = "/run/libvirt/scripted-sock";

/// The last of the four in the addresses on the first scripted host, past those that leases give.
const FIRST_NUMBER: u8 = 240;

/// Of the image that is under way while packets are dropped: its size, and how fast it comes.
const BIG: u64 = 64 << 20;
const RATE: u64 = 4 << 20;

/// Of a Proxy of the testkit.
pub(super) fn mark(name: &str) -> Result<OwnerMark, Trouble> {
    Ok(OwnerMark {
        operator: OperatorId::parse("test")?,
        entry: ProviderName::parse("hv")?,
        key: key(name),
        uid: Uid::parse(&format!("uid-{name}"))?,
    })
}

/// How a host goes bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Daemon,
    Sshd,
    Packets,
    Tcp,
    Agent,
    Pool,
}

impl Way {
    pub(super) const ALL: [Self; 6] = [Self::Daemon, Self::Sshd, Self::Packets, Self::Tcp, Self::Agent, Self::Pool];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Daemon => "libvirtd",
            Self::Sshd => "sshd",
            Self::Packets => "packets",
            Self::Tcp => "tcp",
            Self::Agent => "agent",
            Self::Pool => "pool",
        }
    }

    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Daemon => "libvirtd stopped",
            Self::Sshd => "sshd stopped",
            Self::Packets => "packets dropped in an upload",
            Self::Tcp => "TCP taken in and silent",
            Self::Agent => "agents never answer",
            Self::Pool => "pool on frozen storage",
        }
    }

    /// A call that it hangs, and the lane on which that is.
    pub(super) const fn lane(self) -> LaneKind {
        match self {
            Self::Agent => LaneKind::Agent,
            Self::Pool => LaneKind::Storage,
            Self::Daemon | Self::Sshd | Self::Packets | Self::Tcp => LaneKind::Control,
        }
    }
}

/// All that stays over the rounds.
pub(super) struct Site {
    bad: Daemon,
    good: Vec<Daemon>,
    near: (Daemon, Sshd, Keys),
    relay: Relay,
    files: Server,
    known_hosts: PathBuf,
    bulk: Option<Runtime>,
    /// The objects: each round's operator finds those of the one before.
    pub(super) store: Arc<Store>,
    _leases: Vec<Leases>,
    _dir: tempfile::TempDir,
    /// Last: the daemons' sockets go with it.
    lab: Lab,
}

/// The adapters of one round.
pub(super) struct Adapters {
    pub(super) entries: Vec<ProviderEntry>,
    pub(super) bad: LibvirtBackend,
    pub(super) first_good: LibvirtBackend,
    means: Means,
}

impl Adapters {
    pub(super) async fn stop(&self) {
        self.means.images.stop(Duration::from_secs(2)).await;
    }
}

pub(super) fn limits() -> Limits {
    let two = Duration::from_secs(2);
    let mut link = LinkLimits { channel: two, open: two, ..LinkLimits::default() };
    link.ssh.dial = Duration::from_secs(3);
    Limits {
        link,
        control: two,
        destroy: Duration::from_secs(4),
        start: Duration::from_secs(10),
        agent: two,
        list: Duration::from_secs(4),
        storage: two,
        check: Duration::from_secs(4),
        image_wait: Duration::from_secs(4),
    }
}

impl Site {
    /// `None` where there can be no lab; why was told.
    pub(super) fn up() -> Result<Option<Self>, Trouble> {
        let Some(lab) = Lab::own(LAB) else { return Ok(None) };
        let dir = tempfile::tempdir()?;
        let beside = |host: &Host| host.local_socket.with_file_name("scripted-sock");
        let mut daemons = (BAD..LAB).zip(FIRST_NUMBER..).map(|(n, number)| Daemon::start(&beside(lab.host(n)), number));
        let bad = daemons.next().ok_or("no host")?;
        let good: Vec<_> = daemons.collect();
        let keys = Keys::make();
        let (sshd, socket) = (Sshd::start(&keys), dir.path().join("sock"));
        let last = FIRST_NUMBER + u8::try_from(LAB - BAD)?;
        let near = (Daemon::start(&socket, last), sshd, keys);
        let host = lab.host(BAD);
        let relay = Relay::to(SocketAddr::new(host.address.parse()?, host.port));
        let lines = fs::read_to_string(&host.known_hosts)?;
        let its = lines.lines().filter_map(|line| line.strip_prefix(&host.address));
        let relayed: String = its.map(|key| format!("[127.0.0.1]:{}{key}\n", relay.port)).collect();
        let known_hosts = dir.path().join("known_hosts");
        fs::write(&known_hosts, lines.clone() + &relayed)?;

        let blank = images::blank(dir.path());
        let big = dir.path().join("big.raw");
        let mut head = vec![0; 512];
        head[510..].copy_from_slice(&[0x55, 0xaa]);
        fs::write(&big, head)?;
        fs::File::options().write(true).open(&big)?.set_len(BIG)?;
        let files = Server::with(&[&blank]);
        files.answers("/big.raw", Behavior::Slow(big, RATE));
        let leases = (0..REAL).map(|n| Leases::of(lab.dir(), lab.host(n))).collect();
        let bulk = Some(Builder::new_multi_thread().worker_threads(1).thread_name("bulk").enable_all().build()?);
        Ok(Some(Self {
            lab,
            bad,
            good,
            near,
            relay,
            files,
            known_hosts,
            bulk,
            store: Arc::default(),
            _leases: leases,
            _dir: dir,
        }))
    }

    /// Names of the real hosts.
    pub(super) fn real(&self) -> Vec<String> {
        (0..REAL).map(|n| self.lab.host(n).name.to_lowercase()).collect()
    }

    pub(super) fn bad_name(&self) -> String {
        self.lab.host(BAD).name.to_lowercase()
    }

    /// Provider and host of the scripted ones that are well.
    pub(super) fn good(&self) -> Vec<(&'static str, String)> {
        let there = (BAD + 1..LAB).map(|n| ("hv", self.lab.host(n).name.to_lowercase()));
        there.chain([("near", "near".to_owned())]).collect()
    }

    /// With what the addresses on the scripted hosts that are well end.
    pub(super) fn good_ends() -> Vec<String> {
        (1..=LAB - BAD).map(|n| format!(".{}", usize::from(FIRST_NUMBER) + n)).collect()
    }

    pub(super) fn bad_end() -> String {
        format!(".{FIRST_NUMBER}")
    }

    pub(super) fn bad_daemon(&self) -> &Daemon {
        &self.bad
    }

    pub(super) fn first_good_daemon(&self) -> &Daemon {
        &self.good[0]
    }

    /// The machines of these Proxies run on the bad host, as if they had been made long ago.
    pub(super) fn plant(&self, names: impl Iterator<Item = String>) -> Result<(), Trouble> {
        let there: HashSet<_> = self.bad.domains().into_iter().map(|(name, _)| name).collect();
        for name in names {
            let owner = mark(&name)?;
            let name = names::domain_name(&owner);
            if there.contains(&name) {
                continue;
            }
            let mac = names::mac(&owner, "planted");
            let mark = Mark {
                owner,
                incarnation: "planted".to_owned(),
                created_at: SystemTime::now(),
                port: 3128,
                host: HostName::parse(&self.bad_name())?,
                pool: "default".to_owned(),
            };
            let path = |file: &str| format!("/var/lib/libvirt/images/{file}");
            let (disk, seed) = (names::overlay(&name), names::seed(&name));
            let domain = xml::domain(&DomainSpec {
                name: &name,
                uuid: uuid::Uuid::new_v4(),
                mark: &mark,
                virt_type: VirtType::Qemu,
                firmware: Firmware::Bios,
                cpus: 1,
                memory_bytes: 64 << 20,
                disk_path: &path(&disk),
                seed_path: &path(&seed),
                network: "default",
                mac,
            })?;
            let disk = xml::overlay_volume(&disk, 64 << 20, &path("base-blank.qcow2"), ImageFormat::Qcow2)?;
            self.bad.plant(&domain, &[&disk, &xml::volume(&seed, ImageFormat::Raw, 64 << 10, 0)?]);
        }
        Ok(())
    }

    /// Only what is there all the time is left on the scripted hosts.
    pub(super) fn clear(&self) {
        let is_kept = |name: &str| {
            name.starts_with("px-crawl-resident-")
                || name.starts_with("px-crawl-stuck-")
                || name.starts_with("base-blank")
        };
        for daemon in self.good.iter().chain([&self.bad, &self.near.0]) {
            daemon.keep(is_kept);
        }
    }

    /// Hosts are opened anew, as by an operator that starts. The bad one is reached through the relay if TCP is to fall
    /// silent.
    pub(super) fn adapters(&self, way: Option<Way>) -> Result<Adapters, Trouble> {
        let bulk = self.bulk.as_ref().ok_or("it is over")?.handle().clone();
        let means = means(Handle::current(), bulk);
        let url = self.files.url();
        let (blank, big) = (format!("{url}/blank.qcow2"), format!("{url}/big.raw"));
        let images = [("blank", blank.as_str()), ("big", big.as_str())];
        let place = |n: usize| match (n, way) {
            (BAD, Some(Way::Tcp)) => {
                Place { socket: SOCKET.to_owned(), ..Place::near(&self.bad_name(), self.relay.port, "".as_ref()) }
            }
            (0..REAL, _) => Place::of(self.lab.host(n)),
            _ => Place { socket: SOCKET.to_owned(), ..Place::of(self.lab.host(n)) },
        };
        let places: Vec<_> = (0..LAB).map(place).collect();
        let login = Login { known_hosts: self.known_hosts.clone(), ..Login::of(self.lab.host(0)) };
        let (daemon, sshd, keys) = &self.near;
        let (user, key_file) = (keys.user.clone(), keys.key_file.clone());
        let own = Login { user, key_file, known_hosts: keys.known_at(&[sshd.port]) };
        let own_place = Place::near("near", sshd.port, &daemon.socket);
        let mut opened = Vec::new();
        let mut entries = Vec::new();
        for entry in [entry("hv", &login, &places, &images), entry("near", &own, &[own_place], &images)] {
            let backends = backends(&entry, &means, &limits());
            let hosts = entry.hosts.iter().zip(&backends).map(|(host, backend)| HostEntry {
                name: host.name.clone(),
                ids: LibvirtBackend::ids(&entry, host).into(),
                capacity: None,
                slots: libvirt::SLOTS,
                backend: Arc::new(backend.clone()),
            });
            entries.push(ProviderEntry {
                name: entry.name.clone(),
                kind: entry.flavor.as_str(),
                revision: 1,
                backend: format!("libvirt/{}", entry.name).into(),
                hosts: hosts.collect(),
                settle: Duration::from_secs(1),
                address_timeout: Duration::from_secs(60),
                may_generate_credentials: false,
            });
            opened.extend(backends);
        }
        let first_good = opened.swap_remove(BAD + 1);
        let bad = opened.swap_remove(BAD);
        Ok(Adapters { entries, bad, first_good, means })
    }

    /// It goes bad. In a good round a script runs in its place that changes nothing, as scripts take time of the cores.
    pub(super) fn break_it(&self, way: Option<Way>) {
        let host = self.lab.host(BAD);
        let verb = match way {
            Some(Way::Sshd) => "stop-sshd",
            Some(Way::Packets) => "drop",
            _ => "undrop",
        };
        match way {
            Some(Way::Daemon) => self.bad.set(About::All, Mood::Silent),
            Some(Way::Tcp) => self.relay.set_silent(true),
            Some(Way::Agent) => self.bad.set(About::Agent, Mood::Silent),
            Some(Way::Pool) => self.bad.set(About::Pool, Mood::Silent),
            Some(Way::Sshd | Way::Packets) | None => {}
        }
        host.breaks(verb, &[]);
    }

    pub(super) fn heal(&self) {
        let host = self.lab.host(BAD);
        self.bad.heal();
        self.relay.set_silent(false);
        host.breaks("cont-sshd", &[]);
        host.breaks("undrop", &[]);
        // Those of which the other end went behind dropped packets would stay for hours.
        host.breaks("kill-sessions", &[]);
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(bulk) = self.bulk.take() {
            bulk.shutdown_background();
        }
    }
}
