//! A real proxy program as a child of a test, ended with it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::AMPLE;

pub(crate) struct Proxy {
    pub(crate) port: u16,
    child: Child,
    _dir: TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    /// Starts `program` with the arguments and the configuration that `plan` gives for its directory and port, and
    /// waits until it listens. `None` if it is missing and may be.
    pub(crate) fn start(program: &str, plan: impl Fn(&Path, u16) -> (Vec<String>, String)) -> Option<Self> {
        let binary = find(program)?;
        // Squid gives up root: its directory must be open to the user that it becomes.
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        // Between finding a free port and listening on it somebody else may take it.
        for _ in 0..5 {
            let port = free_port();
            let (arguments, configuration) = plan(dir.path(), port);
            std::fs::write(dir.path().join("proxy.conf"), configuration).unwrap();
            let log = std::fs::File::create(dir.path().join("out.log")).unwrap();
            let mut child = Command::new(&binary)
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            if listens(&mut child, port) {
                return Some(Self { port, child, _dir: dir });
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        let log = std::fs::read_to_string(dir.path().join("out.log")).unwrap_or_default();
        panic!("{program} does not come up: {log}");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }
}

/// Below the ports that the kernel hands out, so that no other test gets it in the meantime.
fn free_port() -> u16 {
    loop {
        let port = rand::random_range(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn listens(child: &mut Child, port: u16) -> bool {
    let began = Instant::now();
    while began.elapsed() < AMPLE {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        if TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn find(program: &str) -> Option<PathBuf> {
    // The system's directory is not on the path of everybody.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    if found.is_none() {
        assert!(
            std::env::var("EGRESS_TESTS_ALLOW_MISSING").is_ok_and(|allowed| allowed == "1"),
            "{program} is missing: install it (apt-get install {program}), or set EGRESS_TESTS_ALLOW_MISSING=1"
        );
        eprintln!("skipped: {program} is missing and EGRESS_TESTS_ALLOW_MISSING=1");
    }
    found
}
