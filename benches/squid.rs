//! A real Squid for benchmarks, ended with its owner.

#![allow(dead_code, reason = "each benchmark uses the part that it needs")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::measure::Trouble;

/// What a real Squid takes to come up on a busy machine.
const UP_WITHIN: Duration = Duration::from_secs(30);

/// A Squid that lets us to the targets only, on loopback.
pub struct Squid {
    pub port: u16,
    child: Child,
    _dir: TempDir,
}

impl Drop for Squid {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Squid {
    pub fn start(targets: &[u16]) -> Result<Self, Trouble> {
        let binary = find("squid").ok_or("squid is missing: apt-get install squid")?;
        let dir = tempfile::tempdir()?;
        // Squid gives up root: its directory must be open to the user that it becomes.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let port = free_port();
        let targets: Vec<_> = targets.iter().map(u16::to_string).collect();
        let configuration = format!(
            "http_port 127.0.0.1:{port}\npid_filename none\naccess_log none\ncache_log /dev/null\ncoredump_dir none\n\
             cache deny all\ncache_mem 8 MB\nmax_filedescriptors 4096\nshutdown_lifetime 1 seconds\n\
             acl targets port {}\nhttp_access allow CONNECT targets\nhttp_access deny all\n",
            targets.join(" ")
        );
        let file = dir.path().join("squid.conf");
        std::fs::write(&file, configuration)?;
        let child = Command::new(binary)
            .args(["-N", "-n", &format!("bench{port}"), "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut squid = Self { port, child, _dir: dir };
        let began = Instant::now();
        while TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_err() {
            if let Some(status) = squid.child.try_wait()? {
                return Err(format!("squid ended at once ({status})").into());
            }
            if began.elapsed() > UP_WITHIN {
                return Err("squid does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(squid)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// Below the ports that the kernel hands out.
fn free_port() -> u16 {
    loop {
        let port = rand::random_range(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn find(program: &str) -> Option<PathBuf> {
    // The system's directory is not on the path of everybody.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([Path::new("/usr/sbin").to_owned()]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
