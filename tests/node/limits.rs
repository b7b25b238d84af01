//! What the operator may do on its node, and what it takes.

use kube::ResourceExt as _;

use crate::cluster::{Cluster, NAME};
use crate::processes::Process;

pub(crate) async fn the_operator_runs_restricted_and_within_its_memory(cluster: &Cluster) {
    for pod in cluster.replicas().await {
        let operator = Process::of(&pod.uid().unwrap(), NAME).remove(0);
        let root = operator.mounted("/").unwrap();
        assert!(root.split(',').any(|option| option == "ro"), "{root}");
        assert!(operator.status("Uid").starts_with("65532"));
        assert_eq!(operator.status("CapEff"), "0000000000000000");
        assert_eq!(operator.status("NoNewPrivs"), "1");
        assert_eq!(operator.status("Seccomp"), "2", "a filter");
        let [limit, now, most] = operator.memory();
        assert!((limit - 128.0).abs() < 0.1, "{limit}");
        assert!(most < 64.0, "{most} MiB for one Proxy");
        let role = if pod.labels().contains_key("crawl.example.com/role") { "leader" } else { "standby" };
        let resident = operator.status("VmRSS");
        let told = format!("{now:.0} MiB, at most {most:.0}, of {limit:.0}; resident {resident}");
        cluster.figure(&format!("the {role}'s memory, by its cgroup"), &told);
        let restarts: i32 = pod.status.unwrap().container_statuses.unwrap().iter().map(|c| c.restart_count).sum();
        assert_eq!(restarts, 0, "its probes hold");
    }
}
