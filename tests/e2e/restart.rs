//! An operator that dies, and the next one on its state directory.

use std::time::Duration;

use super::manifest::managed;
use super::site::Site;
use super::{eventually, stays};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[tokio::test]
async fn a_killed_operators_squids_are_adopted_and_offered_before_their_first_probe() {
    let Some(site) = Site::new() else { return };
    // The first probe that fails withdraws: it shall take long enough to look around before it.
    site.apply_each(NAMES, |name| managed(name).check("interval: 8s, timeout: 8s, failureThreshold: 2"));
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    operator.api.all_ready(4).await;
    for name in ["a", "b"] {
        operator.api.lease(name).await;
    }
    let (pids, folders) = (site.squids(), site.folders());
    assert_eq!((pids.len(), folders.len()), (4, 4));
    // The statuses are stored in the background, at once or not at all: one more round of probes is ample.
    eventually("all is written", async || (operator.api.probes("ok").await >= 8.0).then_some(())).await;
    operator.kill().await;
    assert_eq!(site.squids(), pids, "they end with their operator");

    // From here on no probe can succeed: what is granted is granted on what was recorded.
    site.target.is_silent(true);
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    let api = &operator.api;
    eventually("all four are offered", async || {
        let (_, answer) = api.call(reqwest::Method::GET, "/v1/explain", None).await;
        (answer["healthy"] == 4).then_some(())
    })
    .await;
    eventually("the log says how many it has adopted", async || {
        let told = operator.log.entries().into_iter().find(|entry| entry["msg"] == "instances found")?;
        assert_eq!(
            (&told["level"], &told["provider"], &told["instances"]),
            (&"info".into(), &"local".into(), &4.into())
        );
        Some(())
    })
    .await;
    let lease = api.lease("a").await;
    assert!(api.probes("ok").await < 1.0);
    // The password is the one that this Squid was started with.
    let (status, _) = super::api::connect(&lease, &format!("127.0.0.1:{}", site.target.port)).await;
    assert_eq!(status, 200);
    // A recorded Ready is worth one failure, not a threshold of them.
    eventually("the first failures withdraw them", async || {
        let (_, answer) = api.call(reqwest::Method::GET, "/v1/explain", None).await;
        (answer["healthy"] == 0).then_some(())
    })
    .await;
    site.target.is_silent(false);
    api.all_ready(4).await;
    stays(Duration::from_secs(1), "the same squids, no more and no less", async || {
        site.squids() == pids && site.folders() == folders
    })
    .await;
    let never = ["creating the instance", "deleting the instance"];
    for name in NAMES {
        assert!(never.iter().all(|message| operator.log.about(message, name).is_empty()), "{name} was made anew");
        let first = &operator.log.about("phase changed", name)[0];
        // Not even for a moment it is something else than what was recorded.
        assert_eq!(first["phase"], "Unhealthy", "{first}");
    }
}

#[tokio::test]
async fn a_manifest_that_went_while_the_operator_was_down_takes_its_squid_along_at_the_next_start() {
    let Some(site) = Site::new() else { return };
    site.apply_each(NAMES, managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(4).await;
    operator.kill().await;
    let gone = site.squid_of("d").unwrap();
    let mut others = site.squids();
    others.remove(&gone);

    site.remove("d.yaml");
    let operator = site.operator().start().await;
    eventually("d's squid and folder are gone", async || {
        (site.squids() == others && site.folders().len() == 3).then_some(())
    })
    .await;
    eventually("d is gone", async || operator.api.proxy("d").await.is_none().then_some(())).await;
    operator.api.all_ready(3).await;
    assert_eq!(site.squids(), others);
}

#[tokio::test]
async fn a_deletion_that_was_cut_short_by_a_kill_is_finished_at_the_next_start() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b"], managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(2).await;
    // A Squid that does not hear its end: the grace is time enough to kill the operator in.
    let (deaf, kept) = (site.squid_of("b").unwrap(), site.squid_of("a"));
    super::squids::signal(deaf, rustix::process::Signal::STOP);
    site.remove("b.yaml");
    eventually("b is being deleted", async || operator.api.is("b", "Deleting").await.then_some(())).await;
    operator.kill().await;
    assert_eq!(site.squids().len(), 2);

    let operator = site.operator().start().await;
    eventually("b's squid and folder are gone", async || {
        (site.squid_of("b").is_none() && site.squids().len() == 1 && site.folders().len() == 1).then_some(())
    })
    .await;
    eventually("b is gone", async || operator.api.proxy("b").await.is_none().then_some(())).await;
    operator.api.all_ready(1).await;
    assert_eq!(site.squid_of("a"), kept);
}

#[tokio::test]
async fn a_squid_that_died_while_the_operator_was_down_is_made_anew_at_the_next_start() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b"], managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(2).await;
    let (dead, kept) = (site.squid_of("a").unwrap(), site.squid_of("b"));
    operator.kill().await;
    super::squids::signal(dead, rustix::process::Signal::KILL);
    let operator = site.operator().start().await;
    eventually("a new child", async || site.squid_of("a").filter(|&pid| pid != dead)).await;
    operator.api.all_ready(2).await;
    assert_eq!(site.squid_of("b"), kept);
    assert_eq!(site.squids().len(), 2);
}
