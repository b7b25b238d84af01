//! An sshd of the test's own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use egress_actors::domain::error::OpError;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::super::super::material::{Material, MaterialFiles};
use super::super::{SshConnection, SshLimits, SshTarget};

const PROGRAM: &str = "/usr/sbin/sshd";

pub(super) const KINDS: [&str; 3] = ["ed25519", "ecdsa", "rsa"];

/// Keys of hosts and users, made once: `ed25519`, `ecdsa`, `rsa`, and `other` that nobody knows.
static KEYS: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        make_key(&dir.path().join(kind), kind);
    }
    make_key(&dir.path().join("other"), "ed25519");
    dir
});

pub(super) fn make_key(path: &Path, kind: &str) {
    let made = Command::new("ssh-keygen").args(["-q", "-N", "", "-t", kind, "-f"]).arg(path).status();
    assert!(made.expect("install openssh-client for ssh-keygen").success());
}

pub(super) fn key(kind: &str) -> PathBuf {
    KEYS.path().join(kind)
}

/// Type and key, as in `known_hosts`.
pub(super) fn public(kind: &str) -> String {
    fs::read_to_string(key(kind).with_extension("pub")).unwrap()
}

pub(super) struct Sshd {
    pub(super) port: u16,
    pub(super) dir: TempDir,
    child: Child,
    log: Arc<Mutex<String>>,
}

impl Sshd {
    /// All three host keys; the user's key is `ed25519`.
    pub(super) fn start(settings: &str) -> Self {
        let default = if settings.contains("HostKey") { String::new() } else { host_keys(&KINDS) };
        let config = format!("{default}{settings}");
        assert!(Path::new(PROGRAM).exists(), "install openssh-server for {PROGRAM}");
        if rustix::process::getuid().is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        for _ in 0..10 {
            if let Some(sshd) = Self::attempt(&config) {
                return sshd;
            }
        }
        panic!("sshd found no free port");
    }

    fn attempt(settings: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let authorized = dir.path().join("authorized_keys");
        let keys: String = ["ed25519", "rsa"].map(public).concat();
        fs::write(&authorized, keys).unwrap();
        let config = dir.path().join("sshd_config");
        let text = format!(
            "{settings}\nPort {port}\nListenAddress 127.0.0.1\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nAuthorizedKeysFile {}\nLogLevel VERBOSE\n",
            authorized.display()
        );
        fs::write(&config, text).unwrap();
        let mut child = Command::new(PROGRAM)
            .args(["-D", "-e", "-f"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let (tell, hear) = mpsc::channel();
        let copy = Arc::clone(&log);
        // Ends when sshd and its sessions have.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = copy.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
                if line.starts_with("Server listening") {
                    let _ = tell.send(());
                }
            }
        });
        let listening = hear.recv_timeout(Duration::from_secs(10));
        let sshd = Self { port, dir, child, log };
        if listening.is_ok() {
            return Some(sshd);
        }
        let log = sshd.log();
        assert!(log.contains("Address already in use"), "sshd does not start: {log}");
        None
    }

    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The line of `known_hosts` for this sshd with one of its keys.
    pub(super) fn known(&self, kind: &str) -> String {
        format!("[127.0.0.1]:{} {}", self.port, public(kind))
    }

    pub(super) fn target(&self) -> SshTarget {
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
        SshTarget { user, address: "127.0.0.1".to_owned(), port: self.port }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(super) async fn material(&self, known: &str, user_key: &str) -> Arc<Material> {
        let path = self.dir.path().join("known_hosts");
        fs::write(&path, known).unwrap();
        MaterialFiles::new(key(user_key), path).read().await.unwrap()
    }

    pub(super) async fn dial_with(
        &self,
        known: &str,
        user_key: &str,
        limits: &SshLimits,
    ) -> Result<SshConnection, OpError> {
        let material = self.material(known, user_key).await;
        SshConnection::dial(&self.target(), &[self.addr()], &material, limits).await
    }

    pub(super) async fn dial(&self, limits: &SshLimits) -> SshConnection {
        self.dial_with(&self.known("ed25519"), "ed25519", limits).await.unwrap_or_else(|error| {
            panic!("{error}: {}", self.log());
        })
    }

    /// The processes of its sessions, children of children too.
    pub(super) fn sessions(&self) -> Vec<u32> {
        let mut found = children(self.child.id());
        let mut at = 0;
        while at < found.len() {
            let more = children(found[at]);
            found.extend(more);
            at += 1;
        }
        found
    }

    pub(super) fn signal_sessions(&self, signal: Signal) {
        for pid in self.sessions() {
            send(pid, signal);
        }
    }

    /// Connections of ours to it that the kernel still has, each with the bytes that it has not got rid of.
    pub(super) fn our_sockets(&self) -> Vec<u64> {
        sockets_to(self.port)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.signal_sessions(Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn host_keys(kinds: &[&str]) -> String {
    kinds.iter().map(|kind| format!("HostKey {}\n", key(kind).display())).collect()
}

/// Bytes in the send queue of each socket with this remote port on the loopback, those that only wait for late packets left out.
pub(super) fn sockets_to(port: u16) -> Vec<u64> {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!("0100007F:{port:04X}");
    let rows = table.lines().map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
    let ours = rows.filter(|row| row.get(2) == Some(&remote.as_str()) && row.get(3) != Some(&"06"));
    ours.map(|row| u64::from_str_radix(row[4].split(':').next().unwrap(), 16).unwrap()).collect()
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    let _ = kill_process(pid, signal);
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists.collect::<String>().split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
