//! Another sshd on a host of the lab, with a port and settings of its own.

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use egress_operator::config::providers::LibvirtEntry;

use super::backend::AMPLE;
use super::{Host, eventually};

/// Ends with the value; sessions that it has go on.
pub(crate) struct Door<'a> {
    host: &'a Host,
    port: u16,
}

impl<'a> Door<'a> {
    /// `settings` are lines of its configuration; what they do not say is as in the host's own.
    pub(crate) fn open(host: &'a Host, port: u16, settings: &str) -> Self {
        let own = fs::read_to_string(host.dir().join("ssh/sshd_config")).unwrap();
        let others =
            own.lines().filter(|line| !["ListenAddress", "PidFile", "AllowUsers"].iter().any(|w| line.starts_with(w)));
        let rest = others.collect::<Vec<_>>().join("\n");
        let text = format!("ListenAddress {}:{port}\nPidFile /run/door-{port}.pid\n{settings}\n{rest}\n", host.address);
        fs::write(host.dir().join(format!("ssh/door-{port}")), text).unwrap();
        let door = Self { host, port };
        let _ = fs::remove_file(door.log_file());
        let log = format!("/var/log/libvirt/door-{port}.log");
        host.inside(&["/usr/sbin/sshd", "-f", &format!("/etc/ssh/door-{port}"), "-E", &log]);
        eventually(AMPLE, "the other sshd listens", || TcpStream::connect((host.address.as_str(), port)).ok());
        door
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// The first host of this entry is dialled here, and known by the keys of these files in `/etc/ssh`.
    pub(crate) fn leads(&self, entry: &mut LibvirtEntry, dir: &Path, keys: &[&str]) {
        let known = dir.join(format!("known_hosts-{}", self.port));
        self.knows(&known, keys);
        entry.ssh.known_hosts_file = known;
        entry.hosts[0].port = self.port;
    }

    /// Writes a `known_hosts`.
    pub(crate) fn knows(&self, file: &Path, keys: &[&str]) {
        let line = |key: &&str| {
            let key = fs::read_to_string(self.host.dir().join(format!("ssh/{key}.pub"))).unwrap();
            let mut words = key.split_whitespace();
            let (kind, key) = (words.next().unwrap(), words.next().unwrap());
            format!("[{}]:{} {kind} {key}\n", self.host.address, self.port)
        };
        let hidden = file.with_extension("new");
        fs::write(&hidden, keys.iter().map(line).collect::<String>()).unwrap();
        fs::rename(hidden, file).unwrap();
    }

    fn log_file(&self) -> std::path::PathBuf {
        self.host.log.join(format!("door-{}.log", self.port))
    }
}

impl Drop for Door<'_> {
    fn drop(&mut self) {
        self.host.tries(&["sh", "-c", &format!("kill $(cat /run/door-{}.pid)", self.port)]);
    }
}
