//! Processes of pods, as the node's root sees them.

use std::fs;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};

/// A process in a pod: found by the pod's uid in its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// Of its memory controller.
    pub(crate) cgroup: PathBuf,
}

impl Process {
    /// The processes of a pod that run this program, the first one first.
    pub(crate) fn of(pod_uid: &str, program: &str) -> Vec<Self> {
        let mut found: Vec<_> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter_map(|pid: i32| {
                let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
                let line = cgroups.lines().find(|line| line.contains(&format!("pod{pod_uid}")))?;
                let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
                (exe.file_name()?.to_str()? == program).then_some(())?;
                let of_memory = cgroups.lines().find(|line| line.contains(":memory:")).unwrap_or(line);
                let path = of_memory.rsplit(':').next()?.trim_start_matches('/');
                let v1 = PathBuf::from("/sys/fs/cgroup/memory");
                let root = if v1.is_dir() { v1 } else { "/sys/fs/cgroup".into() };
                Some(Self { pid, cgroup: root.join(path) })
            })
            .collect();
        found.sort_by_key(|process| process.pid);
        found
    }

    pub(crate) fn kill(&self) {
        kill_process(Pid::from_raw(self.pid).unwrap(), Signal::KILL).unwrap();
    }

    /// A line of `/proc/<pid>/status`.
    pub(crate) fn status(&self, key: &str) -> String {
        let text = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {key} in {text}")).trim().to_owned()
    }

    /// The options of what is mounted there, in its own view.
    pub(crate) fn mounted(&self, at: &str) -> Option<String> {
        let text = fs::read_to_string(format!("/proc/{}/mounts", self.pid)).unwrap();
        text.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|f| f[1] == at).map(|f| f[3].to_owned())
    }

    /// Limit, use now, and most used, of its cgroup, in MiB.
    pub(crate) fn memory(&self) -> [f64; 3] {
        let read = |names: [&str; 2]| {
            let text =
                names.iter().find_map(|name| fs::read_to_string(self.cgroup.join(name)).ok()).unwrap_or_default();
            text.trim().parse().map_or(f64::NAN, |bytes: f64| bytes / f64::from(1 << 20))
        };
        [
            read(["memory.limit_in_bytes", "memory.max"]),
            read(["memory.usage_in_bytes", "memory.current"]),
            read(["memory.max_usage_in_bytes", "memory.peak"]),
        ]
    }
}
