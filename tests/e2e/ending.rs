//! How an operator ends when it is asked to.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::eventually;
use super::manifest::managed;
use super::site::Site;

#[tokio::test]
async fn sigterm_leaves_the_squids_to_the_next_operator_and_exits_0() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b"], managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(2).await;
    let pids = site.squids();
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    assert!(ended.took < Duration::from_secs(10), "took {:?}", ended.took);
    assert_eq!(site.squids(), pids);
    let said: Vec<_> = ended.log.entries().into_iter().map(|entry| entry["msg"].as_str().unwrap().to_owned()).collect();
    assert!(said.iter().any(|msg| msg.starts_with("ending")) && said.iter().any(|msg| msg == "ended in order"));

    let operator = site.operator().start().await;
    operator.api.all_ready(2).await;
    assert_eq!(site.squids(), pids);
    operator.signal(Signal::INT);
    assert_eq!(operator.ended().await.code, Some(0), "Ctrl-C");
    assert_eq!(site.squids(), pids, "a Ctrl-C is for the operator only");
}

#[tokio::test]
async fn with_on_exit_delete_the_squids_are_gone_before_the_operator_is_and_come_back_with_the_next() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b", "c"], managed);
    let operator = site.operator().args(&["--on-exit", "delete"]).start().await;
    operator.api.all_ready(3).await;
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    assert!(site.squids().is_empty() && site.folders().is_empty(), "{:?} {:?}", site.squids(), site.folders());
    let last = ended.log.entries().into_iter().find(|entry| entry["msg"] == "ended in order").unwrap();
    assert_eq!(last["instances"], "deleted", "{last}");

    let operator = site.operator().start().await;
    operator.api.all_ready(3).await;
}

#[tokio::test]
async fn an_end_that_takes_its_time_says_what_it_waits_for() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a", "b"], managed);
    let operator = site.operator().args(&["--on-exit", "delete"]).start().await;
    operator.api.all_ready(2).await;
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    let told = ended
        .log
        .entries()
        .into_iter()
        .find(|entry| entry["msg"] == "waiting for deletions")
        .unwrap_or_else(|| panic!("{}", ended.log.tail()));
    assert!(told["waiting_for"].to_string().contains("crawl/a"), "{told}");
    assert!(site.squids().is_empty() && site.folders().is_empty());
}

#[tokio::test]
async fn a_second_signal_ends_at_once_with_130() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&["--on-exit", "delete"]).start().await;
    operator.api.all_ready(1).await;
    // A Squid takes some seconds to end.
    operator.signal(Signal::TERM);
    eventually("it has heard the first", async || {
        operator.log.entries().into_iter().find(|entry| entry["msg"].as_str().unwrap().starts_with("ending"))
    })
    .await;
    let again = Instant::now();
    operator.signal(Signal::TERM);
    let ended = operator.ended().await;
    assert_eq!(ended.code, Some(130));
    assert!(again.elapsed() < Duration::from_secs(3), "took {:?}", again.elapsed());
}
