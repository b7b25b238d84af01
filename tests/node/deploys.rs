//! Into the cluster and out of it, by `make deploy` and `make undeploy`.

use std::collections::BTreeSet;
use std::time::Instant;

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::Api;

use crate::cluster::{CRAWL, Cluster, NAME, SYSTEM};

pub(crate) async fn comes_up(cluster: &Cluster) {
    let begun = Instant::now();
    make(cluster, &["deploy"]).await;
    cluster.figure("make deploy, until a replica leads", &format!("{:.1} s", begun.elapsed().as_secs_f64()));

    let leader = cluster.settled().await;
    let lease = Api::<Lease>::namespaced(cluster.client.clone(), SYSTEM).get(NAME).await.unwrap();
    let holder = lease.spec.unwrap().holder_identity.unwrap();
    assert_eq!(holder, format!("{}_{}", leader.name_any(), leader.uid().unwrap()));
    assert_eq!(cluster.token().await.len(), 64);
    cluster.kubectl(&["create", "namespace", CRAWL]).await;
}

pub(crate) async fn undeploy_leaves_nothing(cluster: &Cluster, before: BTreeSet<String>) {
    let begun = Instant::now();
    make(cluster, &["undeploy", "PROXIES=delete"]).await;
    cluster.figure("make undeploy, with its Proxies", &format!("{:.1} s", begun.elapsed().as_secs_f64()));
    cluster.kubectl(&["delete", "namespace", CRAWL, "--timeout=60s"]).await;
    let after = everything(cluster).await;
    // The kubelet's own, if it came late.
    let left: Vec<_> = after.difference(&before).filter(|name| *name != "lease.coordination.k8s.io/node-1").collect();
    assert!(left.is_empty(), "{left:#?}");
    for program in ["egress-proxies-operator", "squid"] {
        let running = crate::processes::Process::of("", program);
        assert!(running.is_empty(), "{program}: {running:?}");
    }
}

/// The names of all objects of all kinds, but of those that say what happened.
pub(crate) async fn everything(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).await;
    let kinds: Vec<_> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let list = cluster.kubectl(&["get", &kinds.join(","), "-A", "-o", "name", "--ignore-not-found"]).await;
    list.lines().map(str::to_owned).collect()
}

async fn make(cluster: &Cluster, arguments: &[&str]) {
    let environment = [
        ("CONFIG", "tests/node/deploy"),
        ("IMG", "localhost/operator:e2e"),
        ("KUBECTL", "kubectl"),
        ("DEPLOY_TIMEOUT", "90"),
    ];
    let output = cluster.run("make", arguments, &environment).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "make {arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
}
