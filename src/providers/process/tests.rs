//! On real Squid: the conformance suite, and the claims that only this provider makes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicU16, Ordering};

use egress_actors::domain::desired::Endpoint;
use egress_actors::domain::id::{ProviderName, ProxyKey};
use egress_actors::domain::instance::{Credentials, InstanceState};
use egress_actors::testkit::conformance::{Breakage, ConformanceRig};
use egress_actors::testkit::eventually;
use rustix::process::Signal;
use tempfile::TempDir;

use super::*;
use crate::config::providers::{AllowedDestination, Auth};

mod damage;
mod life;
mod reach;
mod trouble;
mod world;

const SQUID: &str = "/usr/sbin/squid";

/// Tests run side by side, and so do test runs: each rig has a range to itself, below the ephemeral ports.
const PORTS_EACH: u16 = 12;
static RIGS: AtomicU16 = AtomicU16::new(0);

/// A state directory of its own, and the backends on it. All of its Squids end with it.
struct Rig {
    dir: TempDir,
    entry: ProcessEntry,
    targets: Vec<Opening>,
}

/// `None` only where Squid is not installed and whoever runs the tests said that this is all right.
fn rig() -> Option<Rig> {
    if !Path::new(SQUID).is_file() {
        assert!(
            std::env::var_os("EGRESS_TESTS_ALLOW_MISSING").is_some_and(|v| v == "1"),
            "`{SQUID}` is missing: install the package `squid`, or skip these tests with EGRESS_TESTS_ALLOW_MISSING=1"
        );
        println!("skipped: `{SQUID}` is not installed");
        return None;
    }
    let place = std::process::id() % 12 * 75 + u32::from(RIGS.fetch_add(1, Ordering::Relaxed)) % 75;
    let first = 20_000 + u16::try_from(place).expect("below 900") * PORTS_EACH;
    let dir = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().expect("a directory");
    let entry = ProcessEntry {
        name: ProviderName::parse("local").expect("valid"),
        binary: SQUID.into(),
        listen: "127.0.0.1".parse().expect("an address"),
        ports: first..=first + PORTS_EACH - 1,
        allow_destinations: Vec::new(),
        auth: Auth::None,
    };
    Some(Rig { dir, entry, targets: Vec::new() })
}

impl Rig {
    /// Another value each time, as after a restart. It kills soon: most tests do not care how a Squid ends.
    fn process(&self) -> ProcessBackend {
        self.with_long_grace().with_grace(Duration::from_millis(50))
    }

    fn with_long_grace(&self) -> ProcessBackend {
        ProcessBackend::new(self.entry.clone(), self.dir.path(), self.targets.clone())
    }

    /// Where instances of the mark's entry are.
    fn site(&self, mark: &OwnerMark) -> Arc<Site> {
        self.process().site.of(&mark.entry)
    }

    fn folder(&self, mark: &OwnerMark) -> PathBuf {
        self.site(mark).folder(&mark.uid)
    }

    fn children(&self, mark: &OwnerMark) -> Vec<evidence::Child> {
        evidence::of(&self.site(mark), &mark.uid).expect("/proc can be read")
    }

    fn pid(&self, mark: &OwnerMark) -> i32 {
        match self.children(mark).as_slice() {
            [one] => one.pid,
            other => panic!("one squid was expected: {other:?}"),
        }
    }

    /// Creates an instance and waits until it runs.
    async fn made(&self) -> (OwnerMark, Instance) {
        let mark = self.mark();
        let instance = self.process().create(&self.spec(&mark)).await.expect("a create");
        assert_eq!(instance.state, InstanceState::Running, "{instance:?}");
        (mark, instance)
    }

    async fn state(&self, mark: &OwnerMark) -> InstanceState {
        self.process().get(mark).await.expect("an instance").state
    }

    /// A script in Squid's place, with `$CONF` as the path of the configuration.
    fn script(&mut self, text: &str) {
        let path = self.dir.path().join("squid.sh");
        // Written by another process: a descriptor of ours that a parallel fork inherits would make it "text busy".
        let written = std::process::Command::new("sh")
            .args(["-c", r#"printf '%s' "$1" > "$2" && chmod 755 "$2""#, "sh"])
            .arg(format!("#!/bin/sh\nfor CONF; do :; done\n{text}\n"))
            .arg(&path)
            .status();
        assert!(written.expect("a shell").success());
        self.entry.binary = path;
    }
}

/// Files that the Squid of this mark has, or left, among the shared memory.
fn shared_memory(mark: &OwnerMark) -> usize {
    let prefix = evidence::service_name(&mark.uid);
    let Ok(entries) = fs::read_dir(directory::SHARED_MEMORY) else { return 0 };
    entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

impl Drop for Rig {
    fn drop(&mut self) {
        let own = self.process().site;
        for entry in directory::entries(&own).unwrap_or_default() {
            let site = own.of(&entry);
            for (uid, children) in evidence::all(&site).unwrap_or_default() {
                for child in children {
                    let _ = evidence::signal(&site, &uid, child, Signal::KILL);
                    // So that the directory can go, and no zombie stays.
                    while evidence::is_there(child) {
                        std::thread::yield_now();
                    }
                }
                let _ = directory::retire(&site, &uid);
            }
        }
    }
}

mod conforms {
    use super::rig;

    egress_actors::conformance_tests!(match rig() {
        Some(rig) => rig,
        None => return,
    });
}

mod conforms_with_auth {
    use super::{Auth, rig};

    egress_actors::conformance_tests!(match rig() {
        Some(mut rig) => {
            rig.entry.auth = Auth::Generated;
            rig
        }
        None => return,
    });
}
