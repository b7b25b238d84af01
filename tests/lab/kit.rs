//! The lab for tests: [`Lab`] and its [`Host`]s, what breaks them, an HTTP server for images, and the entry of a providers
//! config that names them.
//!
//! `scripts/lab/up.sh --hold` keeps the hosts for as long as we hold its stdin: they end with this process, however that
//! ends. Nothing is taken over from an earlier run: folder and networks are new each time.

#![allow(dead_code, unused_imports, reason = "made for the tests to come")]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub(crate) mod adapter;
pub(crate) mod backend;
pub(crate) mod config;
pub(crate) mod door;
pub(crate) mod host;
pub(crate) mod images;
pub(crate) mod libvirtd;
pub(crate) mod operator;
pub(crate) mod server;
pub(crate) mod sshd;

pub(crate) use adapter::{Place, backends};
pub(crate) use config::{Flavor, entry};
pub(crate) use host::{Forward, Host};
pub(crate) use images::{Image, image};
pub(crate) use libvirtd::{About, Daemon, Mood};
pub(crate) use server::{Behavior, Server};
pub(crate) use sshd::{Keys, Relay, Sshd};

/// Hosts of the lab that the tests of one process share.
pub(crate) const SHARED: usize = 2;

/// Two hosts take 4 s; a busy machine takes longer, and packages may have to be installed.
const UP_WITHIN: Duration = Duration::from_mins(5);

/// It takes under a second.
const DOWN_WITHIN: Duration = Duration::from_mins(1);

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Looks until there is something to see, and fails with `what` if that takes longer than `limit`.
pub(crate) fn eventually<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A program of `scripts/lab`, with nothing of the caller's settings for the lab.
pub(crate) fn script(name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("scripts/lab").join(name));
    command.current_dir(root).env_remove("LAB_DIR").env_remove("LAB_NET").stdin(Stdio::null());
    command
}

/// Some hosts, up.
pub(crate) struct Lab {
    hosts: Vec<Host>,
    dir: PathBuf,
    /// The hosts go when its stdin is closed.
    keeper: Option<Child>,
    alone: Mutex<()>,
}

impl Lab {
    /// The lab of this process, with [`SHARED`] hosts: up with the first call, gone with the process. `None`, with the
    /// reason printed, where there can be none. Tests of it begin with [`Lab::alone`].
    pub(crate) fn up(hosts: usize) -> Option<&'static Self> {
        static LAB: OnceLock<Option<Lab>> = OnceLock::new();
        assert!(hosts <= SHARED, "the shared lab has {SHARED} hosts");
        LAB.get_or_init(|| Self::own(SHARED)).as_ref()
    }

    /// A lab of this test alone, gone with the value.
    pub(crate) fn own(hosts: usize) -> Option<Self> {
        if let Err(why) = possible() {
            assert!(std::env::var("LAB_MUST_RUN").is_err(), "LAB_MUST_RUN is set. {why}");
            println!("skipped: {why}");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("egress-lab-").tempdir().unwrap().keep();
        let log = dir.join("keeper.log");
        let mut keeper = script("up.sh")
            .args(["--hold", &hosts.to_string()])
            .env("LAB_DIR", &dir)
            .env("LAB_NET", "free")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            // Ctrl-C is for us; it hears of our end.
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(keeper.stdout.take().unwrap());
        let hosts = within(UP_WITHIN, "the lab comes up", {
            let dir = dir.clone();
            move || {
                let mut lines = lines.lines().map_while(Result::ok);
                let hosts: Vec<_> = lines.by_ref().take_while(|line| line != "ready").collect();
                hosts.iter().map(|line| Host::parse(line, &dir)).collect::<Vec<_>>()
            }
        });
        let lab = Self { hosts, dir, keeper: Some(keeper), alone: Mutex::default() };
        let words = || fs::read_to_string(&log).unwrap_or_default();
        assert!(lab.dir.join("hosts").exists() && !lab.hosts.is_empty(), "the lab does not come up: {}", words());
        Some(lab)
    }

    /// Keeps the other tests of this process off the hosts, which are whole and empty now. What this test breaks or
    /// leaves is repaired and removed before the next one.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        let alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        for host in &self.hosts {
            host.renew();
        }
        alone
    }

    pub(crate) fn host(&self, i: usize) -> &Host {
        &self.hosts[i]
    }

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Its state: there as long as it is up.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let Some(mut keeper) = self.keeper.take() else { return };
        drop(keeper.stdin.take());
        let begun = Instant::now();
        while begun.elapsed() < DOWN_WITHIN {
            if !matches!(keeper.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        // The kernel ends the hosts with it; files may stay.
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
}

/// Keeps the other tests of this process still, for one that needs no host of the lab but counts threads or makes many.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static WITHOUT: Mutex<()> = Mutex::new(());
    match Lab::up(1) {
        Some(lab) => lab.alone(),
        None => WITHOUT.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

/// Whether there can be a lab here; else why not.
fn possible() -> Result<(), String> {
    static POSSIBLE: OnceLock<Result<(), String>> = OnceLock::new();
    let ask = || {
        let output = script("up.sh").arg("--can").output().map_err(|e| e.to_string())?;
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(words)
    };
    POSSIBLE.get_or_init(ask).clone()
}

/// Runs what may block for ever, and fails with `what` when it does.
pub(crate) fn within<T: Send + 'static>(limit: Duration, what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (said, hear) = std::sync::mpsc::channel();
    std::thread::spawn(move || said.send(run()));
    hear.recv_timeout(limit).unwrap_or_else(|e| panic!("{what}: not within {limit:?} ({e})"))
}
