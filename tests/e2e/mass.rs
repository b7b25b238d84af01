//! A thousand Proxies come and go.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::manifest::external;
use super::operator::Operator;
use super::site::Site;
use super::squids::OwnSquid;
use super::{AMPLE, LOOK_EVERY, eventually, within};

const MANY: usize = 1000;

/// For all of them to be read, probed and offered, or to be gone, in a build that is not optimized.
const MINUTES: Duration = Duration::from_mins(2);

/// What an operator uses.
#[derive(Debug)]
struct Usage {
    actors: usize,
    threads: usize,
    files: usize,
    resident_mib: usize,
}

impl Usage {
    /// What a pool or an allocator keeps is allowed, the price of a thousand Proxies (some 7 MiB) is not.
    fn is_about(&self, before: &Self) -> bool {
        self.actors == before.actors
            && self.threads <= before.threads + 2
            && self.files <= before.files + 4
            && self.resident_mib <= before.resident_mib + 4
    }
}

async fn usage(operator: &Operator) -> Usage {
    let proc = format!("/proc/{}", operator.pid());
    let status = fs::read_to_string(format!("{proc}/status")).unwrap();
    let number = |name: &str| -> usize {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    Usage {
        actors: nodes(&operator.api.admin_json("/admin/actors").await),
        threads: number("Threads:"),
        files: fs::read_dir(format!("{proc}/fd")).unwrap().count(),
        resident_mib: number("VmRSS:") / 1024,
    }
}

fn nodes(node: &Value) -> usize {
    1 + node["children"].as_array().unwrap().iter().map(nodes).sum::<usize>()
}

fn apply_all(site: &Site, port: u16) {
    for n in 0..MANY {
        // Probed once, as far as this test is concerned.
        let manifest = external(&format!("px-{n}"), port).check("interval: 1h, timeout: 30s");
        site.apply(&format!("px-{n}.yaml"), &manifest.yaml());
    }
}

fn remove_all(site: &Site) {
    for n in 0..MANY {
        site.remove(&format!("px-{n}.yaml"));
    }
}

async fn all_ready(operator: &Operator) {
    let ready = "egress_proxies{phase=\"Ready\",provider=\"external\"}";
    let is_all = async || {
        let answer = operator.api.get("/v1/explain").await;
        (answer["healthy"] == MANY).then_some(())
    };
    within(MINUTES, "all are Ready", is_all).await;
    let counted = async || (operator.api.metric(ready).await == Some(1000.0)).then_some(());
    eventually("the gauge knows them all", counted).await;
}

async fn all_gone(operator: &Operator) {
    within(MINUTES, "all are gone", async || {
        (operator.api.get("/v1/explain").await["matching"] == 0 && operator.api.proxies().await.is_empty())
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_thousand_proxies_come_and_go_and_leave_nothing_behind() {
    let Some(site) = Site::new() else { return };
    // All of them are at this one: a real Squid.
    let Some(squid) = OwnSquid::open() else { return };
    let flags = ["--health-workers", "256", "--log-level", "warn"];

    let operator = site.operator().args(&flags).start().await;
    apply_all(&site, squid.port);
    all_ready(&operator).await;
    assert!(usage(&operator).await.actors > MANY);
    remove_all(&site);
    eventually("the removal is held back", async || {
        let line = operator.api.check("mass-removal").await;
        (line.starts_with("[!]") && line.contains("1000 manifests")).then_some(())
    })
    .await;
    all_ready(&operator).await;
    assert_eq!(operator.terminate().await.code, Some(0));

    // Also the warm-up for what is measured: after it pools, caches and tables have the size that they keep.
    let operator = site.operator().args(&flags).args(&["--allow-mass-removal"]).start().await;
    all_gone(&operator).await;
    apply_all(&site, squid.port);
    all_ready(&operator).await;
    remove_all(&site);
    all_gone(&operator).await;
    let before = usage(&operator).await;

    apply_all(&site, squid.port);
    all_ready(&operator).await;
    let full = usage(&operator).await;
    remove_all(&site);
    all_gone(&operator).await;
    let began = Instant::now();
    let mut after = usage(&operator).await;
    while !after.is_about(&before) && began.elapsed() < AMPLE {
        tokio::time::sleep(LOOK_EVERY).await;
        after = usage(&operator).await;
    }
    assert!(after.is_about(&before), "before {before:?}, with a thousand {full:?}, after {after:?}");
}
