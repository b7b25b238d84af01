//! A log that nobody reads.

use std::fs;
use std::time::{Duration, Instant};

use reqwest::Method;

use super::api::Api;
use super::eventually;
use super::manifest::managed;
use super::site::Site;

const DROPPED: &str = "egress_log_lines_dropped_total";

/// Makes lines until there is no room for more: 64 KiB in the pipe, and twice 2 MiB before it. Our own log is too quiet
/// for that, so a providers config is refused again and again, for a word that fills a line.
async fn fill_up(site: &Site, api: &Api) {
    let good = fs::read_to_string(site.providers_config()).unwrap();
    fs::write(site.providers_config(), site.entry("local", &format!("{}: 1,", "x".repeat(7000)))).unwrap();
    // A busy machine needs a while for so many lines.
    super::within(Duration::from_secs(120), "lines are dropped", async || {
        for _ in 0..50 {
            let (status, _) = api.admin_as(Method::POST, "/admin/reload", "").await.unwrap();
            assert!(status >= 400, "{status}");
        }
        (api.count(DROPPED).await > 0.0).then_some(())
    })
    .await;
    fs::write(site.providers_config(), good).unwrap();
}

#[tokio::test]
async fn an_unread_stdout_stalls_neither_grants_nor_probes_nor_repairs_and_what_is_lost_is_counted() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b"], |name| managed(name).max_leases(100));
    let mut operator =
        site.operator().args(&["--log-level", "debug", "--list-interval", "1s"]).with_stalled_log().start().await;
    let api = operator.api.clone();
    api.all_ready(2).await;
    fill_up(&site, &api).await;

    // From here on nothing can be written any more, and everything goes on.
    let probes = api.probes("ok").await;
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let began = Instant::now();
        let lease = api.lease("b").await;
        slowest = slowest.max(began.elapsed());
        api.release(&lease).await;
    }
    assert!(slowest < Duration::from_secs(5), "a grant took {slowest:?}");
    eventually("probes go on", async || (api.probes("ok").await >= probes + 4.0).then_some(())).await;
    let old = site.squid_of("a").unwrap();
    super::squids::signal(old, rustix::process::Signal::KILL);
    eventually("repairs go on", async || site.squid_of("a").filter(|&pid| pid != old)).await;
    api.becomes("a", "Ready").await;
    site.apply_each(["late"], managed);
    api.becomes("late", "Ready").await;
    assert_eq!(api.admin_as(Method::PUT, "/admin/log-level", "info").await.unwrap().0, 204);

    operator.read_log();
    let told = eventually("the log goes on, and tells what it lacks", async || {
        let lines = operator.log.lines();
        lines.into_iter().find(|line| line.contains("dropped") && line.contains("\"level\":\"warn\""))
    })
    .await;
    assert!(serde_json::from_str::<serde_json::Value>(&told).is_ok(), "{told}");
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    // No line is cut in two by what came between.
    assert!(!ended.log.entries().is_empty());
}

#[tokio::test]
async fn an_operator_whose_log_nobody_reads_still_ends() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&["--log-level", "debug"]).with_stalled_log().start().await;
    operator.api.all_ready(1).await;
    fill_up(&site, &operator.api).await;
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    assert!(ended.took < Duration::from_secs(10), "took {:?}", ended.took);
}
