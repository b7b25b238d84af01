//! Squids as the machine's process table has them, and one that the test itself runs.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{AMPLE, LOOK_EVERY, ports, program};

/// Processes whose command line has a path under `folder`, but for the operators themselves. Those that have ended
/// and wait to be collected have no command line.
pub(crate) fn under(folder: &Path) -> BTreeSet<i32> {
    let folder = format!("{}/", folder.display());
    let of = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let arguments: Vec<_> = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
        let squid = arguments[0].contains("squid");
        (squid && arguments.iter().any(|argument| argument.starts_with(&folder))).then_some(pid)
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(of).collect()
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// For `-n`, out of the folder that is this Squid's alone: its shared memory is named by it, and two that come up or end at
/// once under one name take it from each other.
pub(crate) fn service_name(conf: &Path) -> String {
    let folder = conf.parent().unwrap().file_name().unwrap().to_string_lossy();
    folder.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// A Squid of the test's own, for Proxies that somebody else runs.
pub(crate) struct OwnSquid {
    pub(crate) port: u16,
    child: Child,
    dir: TempDir,
}

impl Drop for OwnSquid {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl OwnSquid {
    /// One that lets everybody on this machine go everywhere on it.
    pub(crate) fn open() -> Option<Self> {
        Self::start("")
    }

    /// One that asks for this user and password.
    pub(crate) fn with_password(username: &str, password: &str) -> Option<Self> {
        Self::start(&format!("{username} {password}"))
    }

    fn start(known: &str) -> Option<Self> {
        let binary = program("squid")?;
        let dir = tempfile::tempdir().unwrap();
        // Squid gives up root: its directory must be open to the user that it becomes.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let auth = match known {
            "" => String::new(),
            known => format!(
                "auth_param basic program {}\nauth_param basic children 1 startup=1 idle=1\n\
                 auth_param basic credentialsttl 1 second\nacl known proxy_auth REQUIRED\nhttp_access deny !known\n",
                helper(dir.path(), known).display()
            ),
        };
        let port = ports::one();
        let file = dir.path().join("squid.conf");
        let configuration = format!(
            "http_port 127.0.0.1:{port}\npid_filename none\naccess_log none\ncache_log /dev/null\n\
             coredump_dir none\ncache deny all\ncache_mem 8 MB\nmax_filedescriptors 1024\n\
             shutdown_lifetime 1 seconds\n{auth}http_access allow all\n"
        );
        fs::write(&file, configuration).unwrap();
        let log = fs::File::create(dir.path().join("out.log")).unwrap();
        let child = Command::new(binary)
            .args(["-N", "-n", &service_name(&file), "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut squid = Self { port, child, dir };
        squid.wait();
        Some(squid)
    }

    fn wait(&mut self) {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            let ended = self.child.try_wait().unwrap().is_some();
            let said = || fs::read_to_string(self.dir.path().join("out.log")).unwrap_or_default();
            assert!(!ended && began.elapsed() < AMPLE, "squid does not come up: {}", said());
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A helper that knows one user.
fn helper(dir: &Path, known: &str) -> PathBuf {
    let path = dir.join("auth");
    let script =
        format!("#!/bin/sh\nwhile read -r line; do [ \"$line\" = \"{known}\" ] && echo OK || echo ERR; done\n");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}
