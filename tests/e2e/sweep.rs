//! The sweep for instances without a Proxy, and the checks of many providers, with real Squids.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;

use serde_json::Value;

use super::api::Api;
use super::manifest::{Manifest, managed};
use super::operator::Operator;
use super::site::Site;
use super::{eventually, ports, stays};

/// Fast enough to watch.
const SWEEPS: [&str; 6] = ["--gc-interval", "1s", "--gc-min-age", "3s", "--provider-check-interval", "2s"];

async fn deleted(api: &Api, entry: &str) -> f64 {
    api.count(&format!("egress_gc_deleted_total{{provider=\"{entry}\"}}")).await
}

async fn provider(api: &Api, name: &str) -> Value {
    let all = api.admin_json("/admin/providers").await;
    let found = all["providers"].as_array().unwrap().iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {all}")).clone()
}

/// Lets a Proxy go and leaves its Squid behind.
async fn give_up(site: &Site, operator: &Operator, name: &str, proxy: Manifest) {
    let given_up = proxy.annotation("skip-cleanup", "true").attribute("given", "up");
    site.apply(&format!("{name}.yaml"), &given_up.yaml());
    eventually("the annotation is seen", async || {
        operator.api.proxy(name).await.filter(|row| row["attributes"]["given"] == "up")
    })
    .await;
    site.remove(&format!("{name}.yaml"));
    eventually("the object is gone", async || operator.api.proxy(name).await.is_none().then_some(())).await;
}

#[tokio::test]
async fn a_squid_whose_proxy_was_given_up_is_swept_and_named_and_the_others_stay() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b"], managed);
    let operator = site.operator().args(&SWEEPS).start().await;
    let api = &operator.api;
    api.all_ready(2).await;
    let kept = site.squid_of("b").unwrap();
    let uid = site.folders().into_iter().find(|uid| site.squids_in(uid) == [site.squid_of("a").unwrap()]).unwrap();
    give_up(&site, &operator, "a", managed("a")).await;
    eventually("its squid is ended", async || (site.squids().len() == 1).then_some(())).await;
    eventually("its folder is gone", async || (!site.folders().contains(&uid)).then_some(())).await;
    eventually("it is counted", async || (deleted(api, "local").await >= 1.0).then_some(())).await;
    let told = operator.log.entries().into_iter().find(|entry| entry["event"] == "OrphanDeleted").unwrap();
    assert!(
        told["note"].as_str().unwrap().contains("crawl/a") && told["note"].as_str().unwrap().contains(&uid),
        "{told}"
    );
    let sweep = provider(api, "local").await["sweep"].take();
    assert_eq!((&sweep["orphans"], &sweep["deleted"]), (&0.into(), &1.into()), "{sweep}");
    assert_eq!(site.squid_of("b"), Some(kept), "the one that has a Proxy is the very same");
}

#[tokio::test]
async fn a_dry_run_shows_the_orphan_and_leaves_it() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&SWEEPS).arg("--gc-dry-run").start().await;
    operator.api.all_ready(1).await;
    give_up(&site, &operator, "a", managed("a")).await;
    let shown = eventually("it is shown as ripe", async || {
        let row = provider(&operator.api, "local").await.pointer("/sweep/hosts/0/oldest/0").cloned();
        row.filter(|row| row["verdict"] == "Ripe")
    })
    .await;
    assert_eq!(shown["proxy"], "crawl/a", "{shown}");
    let orphans = "egress_gc_orphans{provider=\"local\"}";
    assert_eq!(operator.api.metric(orphans).await, Some(1.0));
    stays(std::time::Duration::from_secs(3), "it runs", async || site.squids().len() == 1).await;
}

#[tokio::test]
async fn what_was_made_under_an_entry_that_has_another_name_now_lives_with_its_proxy_and_is_swept_without_it() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&SWEEPS).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let squid = site.squids();
    fs::write(site.providers_config(), site.entry("renamed", "")).unwrap();
    eventually("the new entry is in use", async || {
        let all = api.admin_json("/admin/providers").await;
        (all["providers"][0]["name"] == "renamed").then_some(())
    })
    .await;
    let ended = async || provider(api, "renamed").await.pointer("/sweep/hosts/0/endedAt").cloned();
    for _ in 0..4 {
        let before = ended().await;
        eventually("one more sweep", async || (ended().await != before).then_some(())).await;
    }
    assert_eq!(site.squids(), squid, "its Proxy lives");
    site.remove("a.yaml");
    eventually("nothing runs any more", async || site.squids().is_empty().then_some(())).await;
    eventually("it is counted", async || (deleted(api, "renamed").await >= 1.0).then_some(())).await;
    eventually("no folder is left", async || site.folders().is_empty().then_some(())).await;
}

/// Nine entries of one Squid each; `more` are further lines of the config.
fn nine(site: &Site, more: &str) {
    let mut text = "providers:\n".to_owned();
    for n in 0..9 {
        let port = ports::one();
        writeln!(text, "  - {{name: e{n}, type: process, listen: 127.0.0.1, ports: {port}-{port}}}").unwrap();
    }
    fs::write(site.providers_config(), text + more).unwrap();
}

/// Checks and lists that the nine have had in all.
async fn calls(api: &Api, call: &str) -> f64 {
    let mut all = 0.0;
    for n in 0..9 {
        let series =
            format!("egress_host_call_seconds_count{{provider=\"e{n}\",host=\"e{n}\",call=\"{call}\",outcome=\"ok\"}}");
        all += api.count(&series).await;
    }
    all
}

/// The same nine entries twice, side by side: alone, and with a tenth whose server takes connections and says nothing.
#[tokio::test]
async fn a_provider_that_never_answers_is_told_as_timeout_and_the_other_nine_are_checked_and_swept_on_time() {
    let (Some(alone), Some(beside)) = (Site::new(), Site::new()) else { return };
    // Nobody ever accepts: the kernel does, and that is all.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = beside.path("kubeconfig");
    let server = format!("http://{}", silent.local_addr().unwrap());
    fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        ),
    )
    .unwrap();
    nine(&alone, "");
    nine(&beside, "  - {name: dead, type: kubernetes, namespace: pods}\n");
    let orphaned = |name: &str| managed(name).flavor(&format!("managed: {{provider: {name}}}"));
    for site in [&alone, &beside] {
        site.apply_each(["e0", "e5"], orphaned);
    }
    let flags = [&SWEEPS[..], &["--list-interval", "1s"]].concat();
    let alone_operator = alone.operator().args(&flags).start().await;
    let operator = beside.operator().args(&flags).env("KUBECONFIG", &kubeconfig).start().await;
    for (operator, site) in [(&alone_operator, &alone), (&operator, &beside)] {
        operator.api.all_ready(2).await;
        for name in ["e0", "e5"] {
            give_up(site, operator, name, orphaned(name)).await;
        }
    }
    let apis = [&alone_operator.api, &operator.api];
    for (api, site) in apis.into_iter().zip([&alone, &beside]) {
        eventually("both orphans are swept", async || site.squids().is_empty().then_some(())).await;
        eventually("both are counted", async || {
            (deleted(api, "e0").await + deleted(api, "e5").await >= 2.0).then_some(())
        })
        .await;
    }
    // From here on both are watched for the same time.
    let mut before = [[0.0; 2]; 2];
    for (n, api) in apis.into_iter().enumerate() {
        before[n] = [calls(api, "check").await, calls(api, "list").await];
    }
    eventually("the nine beside the silent one are checked ten times each", async || {
        (calls(apis[1], "check").await - before[1][0] >= 90.0).then_some(())
    })
    .await;
    let mut had = [[0.0; 2]; 2];
    for (n, api) in apis.into_iter().enumerate() {
        had[n] = [calls(api, "check").await - before[n][0], calls(api, "list").await - before[n][1]];
    }
    let [checks, lists] = [had[1][0] / had[0][0], had[1][1] / had[0][1]];
    println!("nine entries beside a silent tenth, over nine alone: checks {checks:.2}, lists and sweeps {lists:.2}");
    assert!((0.8..1.25).contains(&checks) && (0.8..1.25).contains(&lists), "{had:?}");

    let all = operator.api.admin_json("/admin/providers").await;
    for entry in all["providers"].as_array().unwrap() {
        let target = &entry["targets"][0];
        if entry["name"] == "dead" {
            assert_eq!((&target["ready"], &target["reason"]), (&false.into(), &"Timeout".into()), "{entry}");
            assert_eq!(entry["sweep"]["deleted"], 0, "{entry}");
            assert_eq!(entry["sweep"]["hosts"][0]["error"]["reason"], "Timeout", "{entry}");
        } else {
            assert_eq!((&target["ready"], &target["reason"]), (&true.into(), &"Healthy".into()), "{entry}");
            assert!(entry["sweep"]["hosts"][0]["error"].is_null(), "{entry}");
        }
    }
    assert!(operator.api.count("egress_gc_sweep_errors_total{provider=\"dead\"}").await >= 1.0);
}
