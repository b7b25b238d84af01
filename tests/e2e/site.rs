//! What one test has for itself: directories, ports, a probe target. Operators come and go on it.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;

use super::manifest::Manifest;
use super::operator::Launch;
use super::target::Target;
use super::{ports, program, squids};

/// So many managed Proxies a site can have.
const SQUIDS: u16 = 8;

pub(crate) struct Site {
    dir: TempDir,
    pub(crate) discovery: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) echo: SocketAddr,
    pub(crate) squid_ports: RangeInclusive<u16>,
    pub(crate) target: Target,
}

impl Drop for Site {
    /// The operators have ended (they are newer than their site): nobody starts more.
    fn drop(&mut self) {
        for pid in self.squids() {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

impl Site {
    /// `None` if Squid is missing and may be.
    pub(crate) fn new() -> Option<Self> {
        program("squid")?;
        let dir = tempfile::tempdir().unwrap();
        // The Squids give up root: they must get through to their files.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let own = ports::free(3);
        let address = |n| SocketAddr::from(([127, 0, 0, 1], own.start() + n));
        let site = Self {
            dir,
            discovery: address(0),
            admin: address(1),
            echo: address(2),
            squid_ports: ports::free(SQUIDS),
            target: Target::start(),
        };
        fs::create_dir(site.manifests()).unwrap();
        fs::write(site.providers_config(), site.entry("local", "")).unwrap();
        Some(site)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.path("manifests")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    pub(crate) fn providers_config(&self) -> PathBuf {
        self.path("providers.yaml")
    }

    /// A providers config with one entry; `more` are further fields, each with a comma behind it.
    pub(crate) fn entry(&self, name: &str, more: &str) -> String {
        let (first, last) = (self.squid_ports.start(), self.squid_ports.end());
        format!("providers:\n  - {{name: {name}, type: process, listen: 127.0.0.1, {more} ports: {first}-{last}}}\n")
    }

    /// Writes a file of manifests; it appears whole.
    pub(crate) fn apply(&self, file: &str, text: &str) {
        let hidden = self.path(file);
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, self.manifests().join(file)).unwrap();
    }

    /// A file for each of these Proxies.
    pub(crate) fn apply_each<'a>(&self, names: impl IntoIterator<Item = &'a str>, make: impl Fn(&str) -> Manifest) {
        for name in names {
            self.apply(&format!("{name}.yaml"), &make(name).yaml());
        }
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.manifests().join(file)).unwrap();
    }

    /// An operator on this site, not started yet.
    pub(crate) fn operator(&self) -> Launch<'_> {
        Launch::new(self)
    }

    /// The Squids that run from our state directory, whoever started them.
    pub(crate) fn squids(&self) -> BTreeSet<i32> {
        // The operator uses the path without links.
        squids::under(&self.state().canonicalize().unwrap_or_else(|_| self.state()))
    }

    /// Those on the configuration in one folder of entry `local`.
    #[allow(dead_code, reason = "not used by all who share this file")]
    pub(crate) fn squids_in(&self, folder: &str) -> Vec<i32> {
        let Ok(state) = self.state().canonicalize() else { return Vec::new() };
        squids::under(&state.join("process/local").join(folder)).into_iter().collect()
    }

    /// The folders of instances of entry `local`, half-made and half-removed ones too.
    pub(crate) fn folders(&self) -> BTreeSet<String> {
        let Ok(entries) = fs::read_dir(self.state().join("process/local")) else { return BTreeSet::new() };
        let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name != ".entry").collect()
    }

    /// The pid of the Squid of a managed Proxy, by the folder that has its name in the owner mark.
    pub(crate) fn squid_of(&self, proxy: &str) -> Option<i32> {
        let base = self.state().canonicalize().ok()?.join("process/local");
        let folder = self.folders().into_iter().map(|folder| base.join(folder)).find(|folder| {
            let mark = fs::read(folder.join("owner.json")).unwrap_or_default();
            let mark: serde_json::Value = serde_json::from_slice(&mark).unwrap_or_default();
            mark["name"] == proxy
        })?;
        squids::under(&folder).into_iter().next()
    }
}
