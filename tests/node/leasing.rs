//! From an object to a request through its pod, and who may ask.

use std::process::Stdio;
use std::time::Instant;

use kube::ResourceExt as _;
use tokio::process::{Child, Command};

use crate::cluster::{CRAWL, Cluster, SYSTEM, phase};
use crate::crawler::{Crawler, fetch};
use crate::processes::Process;
use crate::{eventually, target};

pub(crate) async fn a_proxy_becomes_a_squid_pod_and_is_ready_by_a_real_connect(cluster: &Cluster) {
    let begun = Instant::now();
    cluster.apply("px-1", "").await;
    let proxy = cluster.ready("px-1").await;
    cluster.figure("a Proxy of a pod, from apply to Ready", &format!("{:.1} s", begun.elapsed().as_secs_f64()));

    let status = proxy.status.unwrap();
    let pod = cluster.squid("px-1").await.unwrap();
    let address = status.address.unwrap();
    assert_eq!(pod.status.as_ref().unwrap().pod_ip.as_deref(), Some(&*address));
    assert!(cluster.target.asked_by(&address) > 0, "the probe has come through the pod");
    let squid = Process::of(&pod.uid().unwrap(), "squid").remove(0);
    let root = squid.mounted("/").unwrap();
    assert!(root.split(',').any(|option| option == "ro"), "{root}");
    assert!(squid.status("Uid").starts_with("65532"), "{}", squid.status("Uid"));
    let [limit, _, most] = squid.memory();
    cluster.figure("a Squid's memory, of its limit", &format!("{most:.0} of {limit:.0} MiB"));
}

pub(crate) async fn it_is_leased_through_the_service_used_and_released(cluster: &Cluster) {
    let crawler = Crawler::of(cluster).await;
    let stranger = Crawler::at(&cluster.discovery().await, "guessed", 0);
    assert_eq!(stranger.ask("px-1").await.unwrap().status(), 401);

    let lease = crawler.lease("px-1").await;
    let address = lease["proxy"]["host"].as_str().unwrap();
    let before = cluster.target.asked_by(address);
    assert_eq!(fetch(&lease, target::URL).await, Ok(204));
    assert!(cluster.target.asked_by(address) > before);
    let id = lease["id"].as_str().unwrap();
    assert_eq!(crawler.renew(id).await.unwrap().status(), 200);
    assert_eq!(crawler.release(id).await.unwrap().status(), 204);
    assert_eq!(crawler.renew(id).await.unwrap().status(), 410);
}

pub(crate) async fn a_crawler_in_a_pod_leases_as_the_readme_says(cluster: &Cluster) {
    // Without a cluster DNS by the Service's address, and to a target that is there.
    let (discovery, token) = (cluster.discovery().await, cluster.token().await);
    let script = format!(
        "url=$(curl -sS -X POST '{discovery}/v1/leases?tier=dc&ttl=60' -H \"Authorization: Bearer $TOKEN\" -H 'Accept: \
         text/plain'); curl -sS -o /dev/null -w '%{{http_code}}' -x \"$url\" {}",
        target::URL
    );
    let token = format!("--env=TOKEN={token}");
    let run = ["-n", CRAWL, "run", "crawler", "--rm", "-i", "--restart=Never", "--image=localhost/crawler:e2e", &token];
    let mut said = String::new();
    for _ in 0..3 {
        said = cluster.kubectl(&[&run[..], &["--", "sh", "-c", &script]].concat()).await;
        // A pod that has ended before kubectl is attached to it is not heard.
        if !said.starts_with("pod \"crawler\" deleted") {
            break;
        }
    }
    assert!(said.starts_with("204"), "{said}");
}

pub(crate) async fn a_squid_pod_is_no_door_into_the_cluster(cluster: &Cluster) {
    let crawler = Crawler::of(cluster).await;
    let lease = crawler.lease("px-1").await;
    for inside in ["http://10.96.0.1/", "http://10.244.0.1:10250/", "http://169.254.169.254/", "http://127.0.0.1/"] {
        assert_eq!(fetch(&lease, inside).await, Ok(403), "{inside}");
    }
    let by = lease["proxy"]["url"].as_str().unwrap();
    let tunnel = ["-s", "-o", "/dev/null", "-w", "%{http_connect}", "-m", "5", "-p", "-x", by, "https://10.96.0.1/"];
    let refused = cluster.run("curl", &tunnel, &[]).await;
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "403", "a tunnel to the API server");
    crawler.release(lease["id"].as_str().unwrap()).await.unwrap();
}

/// A `kubectl port-forward`, ended with its owner.
struct Forward(Child);

impl Forward {
    fn to(service: &str, ports: &str) -> Self {
        let mut command = Command::new("kubectl");
        command.args(["-n", SYSTEM, "port-forward", service, ports]).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.kill_on_drop(true).spawn().unwrap())
    }
}

pub(crate) async fn port_forwards_work_as_the_readme_says(cluster: &Cluster) {
    let mut discovery = Forward::to("service/egress-discovery", "8090");
    let mut admin = Forward::to("service/egress-admin", "8080");
    let crawler = Crawler::at("http://127.0.0.1:8090", &cluster.token().await, 0);
    let lease = crawler.lease("px-1").await;
    assert_eq!(crawler.release(lease["id"].as_str().unwrap()).await.unwrap().status(), 204);

    // There is no ADMIN_TOKEN: what comes from loopback is let in, as this does, and nobody else.
    let tree = eventually("the tree is drawn", async || {
        egress_operator::crypto::install();
        let answer = reqwest::Client::new().get("http://127.0.0.1:8080/admin/actors").header("Accept", "text/plain");
        answer.send().await.ok().filter(|answer| answer.status() == 200)?.text().await.ok()
    })
    .await;
    assert!(tree.contains("election") && tree.contains("fleet"), "{tree}");
    let leader = cluster.leader().await.status.unwrap().pod_ip.unwrap();
    egress_operator::crypto::install();
    let answer = |path: &str| reqwest::get(format!("http://{leader}:8080{path}"));
    assert_eq!(answer("/readyz").await.unwrap().status(), 200);
    assert_ne!(answer("/admin/actors").await.unwrap().status(), 200);
    assert_eq!(phase(&cluster.ready("px-1").await), "Ready");
    for forward in [&mut discovery, &mut admin] {
        forward.0.kill().await.unwrap();
    }
}
