//! What runs: the one place that reads `/proc`, sends signals and buries children.
//!
//! Never trusts a number that it has not just verified.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::reason::Reason;
use procfs::ProcError;
use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::directory::{CONF, RECORD};
use super::steps::lock;
use super::{Site, errors};

/// One process for its whole life: pids come again, a pid with its start time does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Child {
    pub(super) pid: i32,
    /// Ticks since boot, field 22 of `/proc/<pid>/stat`.
    pub(super) started: u64,
}

/// Pids that this process has started and not yet buried. Of the whole process, as children outlive the backend that
/// started them: an entry is opened anew when its configuration changes.
static CHILDREN: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Starts a child and remembers it until it is buried.
pub(super) fn start(spawn: impl FnOnce() -> Result<u32, OpError>) -> Result<Option<Child>, OpError> {
    let mut children = lock(&CHILDREN);
    let pid = i32::try_from(spawn()?).expect("a pid fits an i32");
    children.push(pid);
    Ok(look_at(pid))
}

/// Buries the children that have ended, so that none stays as a zombie.
fn bury() {
    lock(&CHILDREN).retain(|&pid| {
        // Only numbers of our own unburied children are in the list, so none of them can have come again.
        let pid = Pid::from_raw(pid);
        pid.is_some_and(|pid| matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None) | Err(Errno::INTR)))
    });
}

/// All processes that run on a configuration of this entry, by uid.
pub(super) fn all(site: &Site) -> Result<HashMap<Uid, Vec<Child>>, OpError> {
    let mut found: HashMap<Uid, Vec<(Child, i32)>> = HashMap::new();
    for process in procfs::process::all_processes().map_err(|e| errors::proc("list the processes", &e))? {
        // One that ended while we looked, or that is hidden from us, is not ours.
        let Ok(process) = process else { continue };
        if let (Some((uid, child)), Ok(stat)) = (uid_of(site, &process), process.stat()) {
            found.entry(uid).or_default().push((child, stat.ppid));
        }
    }
    // After the look: what it took for ended is then buried, too.
    bury();
    Ok(found.into_iter().map(|(uid, family)| (uid, without_forks(&family))).collect())
}

/// Squid starts its helpers by a fork, which has Squid's arguments until it becomes the helper.
fn without_forks(family: &[(Child, i32)]) -> Vec<Child> {
    let is_fork = |parent: i32| family.iter().any(|(other, _)| other.pid == parent);
    family.iter().filter(|(_, parent)| !is_fork(*parent)).map(|(child, _)| *child).collect()
}

/// The processes that run on this uid's configuration: one, if all is well. One that is just ending counts, although it
/// has no arguments any more: it may still hold its port.
pub(super) fn of(site: &Site, uid: &Uid) -> Result<Vec<Child>, OpError> {
    let recorded = record(site, uid);
    let mut children = all(site)?.remove(uid).unwrap_or_default();
    // Asked after the look: one that gives its arguments up in between would be seen by neither, and one that gets new ones (a
    // script that becomes Squid has none for a moment) by the second question only.
    let is_left = |child: &Child| is_ending(*child) || is_ours(site, uid, *child);
    children.extend(recorded.filter(|child| !children.contains(child) && is_left(child)));
    Ok(children)
}

/// The same for a look that needs to know of one only: the recorded one, if it is still there.
pub(super) fn one_of(site: &Site, uid: &Uid) -> Result<Option<Child>, OpError> {
    match record(site, uid) {
        Some(child) if is_ours(site, uid, child) => Ok(Some(child)),
        _ => Ok(of(site, uid)?.first().copied()),
    }
}

fn record(site: &Site, uid: &Uid) -> Option<Child> {
    let bytes = std::fs::read(site.folder(uid).join(RECORD)).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// What Squid calls itself (`-n`), and with it the shared memory that every Squid makes, whether it needs it or not. By
/// default all Squids of a machine have one name for it, so that one of another user's, the system's own for example,
/// keeps ours from starting, and two that start at once can trip over each other. At most 32 letters and digits.
pub(super) fn service_name(uid: &Uid) -> String {
    let digest = Sha256::digest(uid.as_str());
    digest[..15].iter().fold("eg".to_owned(), |name, byte| name + &format!("{byte:02x}"))
}

/// Squid's arguments as we give them, whatever the binary is called.
fn uid_of(site: &Site, process: &Process) -> Option<(Uid, Child)> {
    let arguments = process.cmdline().ok()?;
    let [.., not_a_daemon, name, service, file, conf] = arguments.as_slice() else { return None };
    if not_a_daemon != "-N" || name != "-n" || file != "-f" {
        return None;
    }
    let conf = Path::new(conf);
    let folder = conf.parent().filter(|_| conf.file_name().is_some_and(|name| name == CONF))?;
    let uid = folder.file_name()?.to_str().and_then(|name| Uid::parse(name).ok())?;
    // Field by field, as a path can be written in more than one way and ours is written in one.
    if conf.as_os_str() != site.conf(&uid).as_os_str() || *service != service_name(&uid) {
        return None;
    }
    Some((uid, child_of(process)?))
}

/// The process, unless it has ended. A zombie has; a stopped one has not.
fn child_of(process: &Process) -> Option<Child> {
    let stat = process.stat().ok()?;
    let ended = matches!(stat.state, 'Z' | 'X' | 'x');
    (!ended).then_some(Child { pid: stat.pid, started: stat.starttime })
}

/// The process with this number as it is now. `None` if it has ended.
pub(super) fn look_at(pid: i32) -> Option<Child> {
    Process::new(pid).ok().as_ref().and_then(child_of)
}

/// Has this very process not ended yet?
pub(super) fn is_there(child: Child) -> bool {
    let there = look_at(child.pid) == Some(child);
    bury();
    there
}

fn is_ours(site: &Site, uid: &Uid, child: Child) -> bool {
    let found = Process::new(child.pid).ok().and_then(|process| uid_of(site, &process));
    found.is_some_and(|(of, now)| of == *uid && now == child)
}

/// The very process of the record, after it gave up its memory and before it is a zombie.
fn is_ending(child: Child) -> bool {
    let arguments = Process::new(child.pid).and_then(|process| process.cmdline());
    arguments.is_ok_and(|arguments| arguments.is_empty()) && look_at(child.pid) == Some(child)
}

/// Signals this very process. One that has ended is none to signal.
pub(super) fn signal(site: &Site, uid: &Uid, child: Child, signal: Signal) -> Result<(), OpError> {
    let Some(pid) = Pid::from_raw(child.pid) else { return Ok(()) };
    let sent = match pidfd_open(pid, PidfdFlags::empty()) {
        // From here on the descriptor stands for one process; it is ours, or it is somebody else's.
        Ok(process) if is_ours(site, uid, child) => pidfd_send_signal(process, signal),
        // Some sandboxes have no pidfds.
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) if is_ours(site, uid, child) => kill_process(pid, signal),
        _ => return Ok(()),
    };
    match sent {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => {
            let detail = format!("cannot end squid, process {}: {error}; was it started by another user?", child.pid);
            Err(OpError::transient(Reason::Forbidden, detail))
        }
    }
}

/// All addresses of this machine that somebody listens on, with the inode of the socket.
pub(super) struct Listeners(HashSet<(SocketAddr, u64)>);

impl Listeners {
    pub(super) fn now() -> Result<Self, OpError> {
        let v4 = procfs::net::tcp().map_err(|e| errors::proc("list the sockets", &e))?;
        let v6 = match procfs::net::tcp6() {
            Ok(v6) => v6,
            Err(ProcError::NotFound(_)) => Vec::new(),
            Err(error) => return Err(errors::proc("list the sockets", &error)),
        };
        let listening = v4.into_iter().chain(v6).filter(|socket| socket.state == TcpState::Listen);
        Ok(Self(listening.map(|socket| (canonical(socket.local_address), socket.inode)).collect()))
    }

    pub(super) fn include(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(listens, _)| *listens == canonical(address))
    }

    /// That it is this process that listens there. Where its descriptors are closed to us, that somebody does.
    pub(super) fn are_of(&self, child: Child, address: SocketAddr) -> bool {
        let Ok(descriptors) = Process::new(child.pid).and_then(|process| process.fd()) else {
            return self.include(address);
        };
        let sockets = descriptors.filter_map(Result::ok).filter_map(|descriptor| match descriptor.target {
            FDTarget::Socket(inode) => Some(inode),
            _ => None,
        });
        sockets.into_iter().any(|inode| self.0.contains(&(canonical(address), inode)))
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_that_is_not_yet_a_helper_is_no_second_squid() {
        let child = |pid| Child { pid, started: 1 };
        assert_eq!(without_forks(&[(child(10), 1), (child(11), 10)]), [child(10)]);
        assert_eq!(without_forks(&[(child(11), 10), (child(10), 1)]), [child(10)]);
        assert_eq!(without_forks(&[(child(10), 1), (child(11), 1)]), [child(10), child(11)]);
    }
}
