//! One host: how it is reached, asked past sshd, broken and repaired.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{eventually, script};

/// Of a call that is meant to succeed.
const AMPLE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Host {
    /// `hvA`, `hvB` ...
    pub(crate) name: String,
    pub(crate) address: String,
    /// sshd's.
    pub(crate) port: u16,
    pub(crate) user: String,
    /// The same for all hosts of a lab.
    pub(crate) key_file: PathBuf,
    /// The keys of all hosts of a lab.
    pub(crate) known_hosts: PathBuf,
    /// libvirtd's, as it is called on the host.
    pub(crate) socket: String,
    /// The same one, from here, past sshd.
    pub(crate) local_socket: PathBuf,
    pub(crate) pool: String,
    pub(crate) network: String,
    /// This machine, as the host and its guests see it.
    pub(crate) outside: String,
    /// The guests' network, in CIDR.
    pub(crate) guests: String,
    /// What is in the pool, past libvirt and past the FUSE mount that can be frozen.
    pub(crate) pool_files: PathBuf,
    /// libvirtd's log, sshd's, and those of the guests in `qemu/`.
    pub(crate) log: PathBuf,
    lab: PathBuf,
    used: AtomicBool,
}

impl Host {
    /// From a line of `up.sh`.
    pub(super) fn parse(line: &str, lab: &Path) -> Self {
        let (name, rest) = line.split_once(' ').unwrap_or_else(|| panic!("no host in `{line}`"));
        let words: HashMap<_, _> = rest.split(' ').filter_map(|word| word.split_once('=')).collect();
        let word = |key: &str| (*words.get(key).unwrap_or_else(|| panic!("no {key} in `{line}`"))).to_owned();
        Self {
            name: name.to_owned(),
            address: word("address"),
            port: word("port").parse().unwrap(),
            user: word("user"),
            key_file: word("key").into(),
            known_hosts: word("known_hosts").into(),
            socket: word("socket"),
            local_socket: word("local_socket").into(),
            pool: word("pool"),
            network: word("network"),
            outside: word("outside"),
            guests: word("guests"),
            pool_files: word("pool_files").into(),
            log: word("log").into(),
            lab: lab.to_owned(),
            used: AtomicBool::new(false),
        }
    }

    /// A verb of `scripts/lab/break.sh`; `breaks("kill-guest", &["a"])`.
    pub(crate) fn breaks(&self, verb: &str, arguments: &[&str]) {
        let output = self.script(verb, arguments);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {verb} {arguments:?}: {words}", self.name);
    }

    /// Runs a command inside the host, as root: what it printed. Fails with what it said.
    pub(crate) fn inside(&self, command: &[&str]) -> String {
        let output = self.script("exec", command);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {command:?}: {words}", self.name);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `virsh` past sshd: what it printed. Fails with what it said, or after [`AMPLE`].
    pub(crate) fn virsh(&self, arguments: &[&str]) -> String {
        let answer = virsh(&self.local_socket, arguments, AMPLE);
        answer.unwrap_or_else(|e| panic!("{} virsh {arguments:?}: {e}", self.name))
    }

    /// ssh as an operator would call it, without the caller's own configuration, agent or known hosts.
    pub(crate) fn ssh(&self, options: &[&str], command: &[&str]) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=5"])
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", self.known_hosts.display()))
            .arg("-i")
            .arg(&self.key_file)
            .args(["-p", &self.port.to_string()])
            .args(options)
            .arg(format!("{}@{}", self.user, self.address))
            .args(command)
            .stdin(Stdio::null());
        ssh
    }

    /// libvirtd's socket, forwarded by ssh to a socket of our own.
    pub(crate) fn forward(&self) -> Forward {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("libvirt");
        let forwarding = format!("{}:{}", socket.display(), self.socket);
        let options = ["-nNT", "-o", "ExitOnForwardFailure=yes", "-L", &forwarding];
        let child = self.ssh(&options, &[]).stderr(Stdio::null()).spawn().unwrap();
        let forward = Forward { socket, child, _dir: dir };
        eventually(AMPLE, "ssh forwards the socket", || forward.socket.exists().then_some(()));
        forward
    }

    /// Its state: what is bound to `/etc/ssh`, `/var/lib/libvirt` and the like, and `files/passwd`.
    pub(crate) fn dir(&self) -> PathBuf {
        self.lab.join(&self.name)
    }

    /// Runs a command inside the host, whatever comes of it.
    pub(crate) fn tries(&self, command: &[&str]) {
        let _ = self.script("exec", command);
    }

    /// Whole and empty, if something was done to it since.
    pub(super) fn renew(&self) {
        if self.used.swap(true, Ordering::Relaxed) {
            self.breaks("heal", &[]);
            self.breaks("wipe", &[]);
        }
    }

    fn script(&self, verb: &str, arguments: &[&str]) -> Output {
        script("break.sh").args([&self.name, verb]).args(arguments).env("LAB_DIR", &self.lab).output().unwrap()
    }
}

/// An ssh connection with libvirtd's socket in it.
pub(crate) struct Forward {
    pub(crate) socket: PathBuf,
    child: Child,
    _dir: tempfile::TempDir,
}

impl Forward {
    /// `virsh` through it: what it printed, or what went wrong, which is also no answer within `limit`.
    pub(crate) fn virsh(&self, arguments: &[&str], limit: Duration) -> Result<String, String> {
        virsh(&self.socket, arguments, limit)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn virsh(socket: &Path, arguments: &[&str], limit: Duration) -> Result<String, String> {
    let output = Command::new("timeout")
        .args(["--kill-after=1", &limit.as_secs_f64().to_string(), "virsh", "-q", "-c"])
        .arg(format!("qemu:///system?socket={}", socket.display()))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| e.to_string())?;
    match output.status.code() {
        Some(0) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        Some(124 | 137) => Err(format!("no answer within {limit:?}")),
        _ => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
