//! An sshd of the test's own on the loopback, for whoever runs the test, and a relay before it that can fall silent.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const PROGRAM: &str = "/usr/sbin/sshd";

/// On a busy machine.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);

/// One key of hosts and one of a user, for some of them.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) user: String,
    pub(crate) key_file: PathBuf,
    /// `ssh-ed25519 AAAA..`
    host_key: String,
    dir: TempDir,
}

impl Keys {
    pub(crate) fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (host, user) = (dir.path().join("host"), dir.path().join("user"));
        for key in [&host, &user] {
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-N", "", "-t", "ed25519", "-C", "test", "-f"]).arg(key);
            assert!(make.status().expect("install openssh-client for ssh-keygen").success());
        }
        let public = fs::read_to_string(host.with_extension("pub")).unwrap();
        let host_key = public.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let name = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
        Self { user: name, key_file: user, host_key, dir }
    }

    /// A file of `known_hosts` with this one host key at these ports of the loopback.
    pub(crate) fn known_at(&self, ports: &[u16]) -> PathBuf {
        let path = self.dir.path().join("known_hosts");
        let lines = ports.iter().map(|port| format!("[127.0.0.1]:{port} {}\n", self.host_key));
        fs::write(&path, lines.collect::<String>()).unwrap();
        path
    }
}

/// Gone with the value, its sessions too.
#[derive(Debug)]
pub(crate) struct Sshd {
    pub(crate) port: u16,
    child: Child,
    _dir: TempDir,
}

impl Sshd {
    pub(crate) fn start(keys: &Keys) -> Self {
        assert!(Path::new(PROGRAM).exists(), "install openssh-server for {PROGRAM}");
        if rustix::process::getuid().is_root() {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let dir = tempfile::tempdir().unwrap();
        for _ in 0..10 {
            if let Some((port, child)) = attempt(dir.path(), keys) {
                return Self { port, child, _dir: dir };
            }
        }
        panic!("sshd found no free port");
    }

    /// The listener and all its sessions stand still, until [`Sshd::goes_on`].
    pub(crate) fn stops(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn goes_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        for pid in family(self.child.id()) {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
        }
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

fn attempt(dir: &Path, keys: &Keys) -> Option<(u16, Child)> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let (config, host, user) =
        (dir.join("sshd_config"), keys.dir.path().join("host"), keys.dir.path().join("user.pub"));
    let text = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\n\
         StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         MaxStartups 100\nLogLevel INFO\n",
        host.display(),
        user.display()
    );
    fs::write(&config, text).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["-D", "-e", "-f"]).arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (tell, hear) = mpsc::channel();
    // It reads on until sshd and its sessions have ended, or they would wait for it.
    std::thread::spawn(move || {
        let mut said = String::new();
        for line in lines.map_while(Result::ok) {
            let listens = line.starts_with("Server listening");
            if said.len() < 4000 {
                said += &line;
            }
            if listens || line.contains("Address already in use") {
                let _ = tell.send(Ok(listens));
            }
        }
        let _ = tell.send(Err(said));
    });
    match hear.recv_timeout(LISTENS_WITHIN) {
        Ok(Ok(true)) => return Some((port, child)),
        Ok(Ok(false)) => {}
        Ok(Err(said)) => panic!("sshd does not start: {said}"),
        Err(why) => panic!("sshd does not start: {why}"),
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// A process, its children, theirs ...
fn family(pid: u32) -> Vec<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
        let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let lists: String = lists.collect();
        lists.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    };
    let (mut found, mut at) = (vec![pid], 0);
    while at < found.len() {
        let more = children(found[at]);
        found.extend(more);
        at += 1;
    }
    found
}

/// TCP to somebody else. Silent, it takes connections and carries nothing, in either direction.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    silent: bool,
    over: bool,
    open: HashMap<u64, [TcpStream; 2]>,
    next: u64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False: it is over.
    fn may_speak(&self) -> bool {
        let silent = |state: &mut State| state.silent && !state.over;
        !self.changed.wait_while(self.state(), silent).unwrap_or_else(PoisonError::into_inner).over
    }
}

impl Relay {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        let accepts = std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if own.state().over {
                    return;
                }
                let own = own.clone();
                std::thread::spawn(move || {
                    // Who was taken in while it was silent is carried once it is not.
                    let _ = own.may_speak().then(|| carry(&near, target, &own));
                });
            }
        });
        Self { port, shared, accepts: Some(accepts) }
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.shared.state().silent = silent;
        self.shared.changed.notify_all();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.over = true;
        for stream in state.open.values().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
    }
}

fn carry(near: &TcpStream, target: SocketAddr, shared: &Arc<Shared>) -> io::Result<()> {
    let far = TcpStream::connect(target)?;
    for stream in [near, &far] {
        stream.set_nodelay(true)?;
    }
    let ends = [near.try_clone()?, far.try_clone()?];
    let mut state = shared.state();
    state.next += 1;
    let id = state.next;
    state.open.insert(id, ends);
    drop(state);
    let back = {
        let (near, far, shared) = (near.try_clone()?, far.try_clone()?, shared.clone());
        std::thread::spawn(move || pump(&far, &near, &shared))
    };
    pump(near, &far, shared);
    let _ = back.join();
    shared.state().open.remove(&id);
    Ok(())
}

/// Both ways end when one does.
fn pump(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut piece) {
        if !shared.may_speak() || to.write_all(&piece[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
