//! A directory that is emptied or goes away by accident, and one that is emptied on purpose.

use std::fs;
use std::time::Duration;

use super::manifest::managed;
use super::operator::Operator;
use super::site::Site;
use super::{eventually, stays};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Two looks, two seconds apart, and some more: time enough to do harm.
const TIME_FOR_HARM: Duration = Duration::from_secs(5);

async fn four_ready(site: &Site) -> Operator {
    site.apply_each(NAMES, managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(4).await;
    operator
}

fn remove_all(site: &Site) {
    for name in NAMES {
        site.remove(&format!("{name}.yaml"));
    }
}

async fn all_held_back(operator: &Operator) {
    eventually("the removal is held back and told", async || {
        let line = operator.api.check("mass-removal").await;
        (line.starts_with("[!]") && line.contains("4 manifests") && line.contains("--allow-mass-removal")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_emptied_directory_deletes_nothing_running_or_not_until_it_is_allowed() {
    let Some(site) = Site::new() else { return };
    let operator = four_ready(&site).await;
    let pids = site.squids();

    remove_all(&site);
    all_held_back(&operator).await;
    stays(TIME_FOR_HARM, "the squids run on", async || site.squids() == pids).await;
    operator.api.all_ready(4).await;
    assert_eq!(operator.api.metric("egress_standalone_removals_held_back").await, Some(4.0));
    assert_eq!(operator.terminate().await.code, Some(0));

    // Empty at the start.
    let operator = site.operator().start().await;
    all_held_back(&operator).await;
    operator.api.all_ready(4).await;
    stays(TIME_FOR_HARM, "the squids run on after a restart", async || site.squids() == pids).await;
    operator.kill().await;

    let operator = site.operator().args(&["--allow-mass-removal"]).start().await;
    eventually("everything goes, as it is allowed", async || {
        (site.squids().is_empty() && site.folders().is_empty()).then_some(())
    })
    .await;
    eventually("and is forgotten", async || operator.api.proxies().await.is_empty().then_some(())).await;
}

#[tokio::test]
async fn manifests_that_come_back_after_an_accident_go_on_as_if_nothing_was() {
    let Some(site) = Site::new() else { return };
    let operator = four_ready(&site).await;
    let pids = site.squids();
    remove_all(&site);
    all_held_back(&operator).await;
    site.apply_each(NAMES, managed);
    eventually("nothing is held back any more", async || {
        operator.api.check("mass-removal").await.starts_with("[+]").then_some(())
    })
    .await;
    operator.api.all_ready(4).await;
    // One by one they may go.
    site.remove("a.yaml");
    eventually("a goes", async || operator.api.proxy("a").await.is_none().then_some(())).await;
    eventually("with its squid", async || (site.squids().len() == 3).then_some(())).await;
    assert!(site.squids().is_subset(&pids));
}

#[tokio::test]
async fn a_directory_that_went_away_deletes_nothing_running_or_not() {
    let Some(site) = Site::new() else { return };
    site.apply_each(NAMES, managed);
    // Also where everything may be removed: what cannot be read is not empty.
    let allowed = || site.operator().args(&["--allow-mass-removal"]);
    let operator = allowed().start().await;
    operator.api.all_ready(4).await;
    let pids = site.squids();

    fs::rename(site.manifests(), site.path("elsewhere")).unwrap();
    eventually("it is told that DIR cannot be read", async || {
        operator.api.check("source-readable").await.starts_with("[!]").then_some(())
    })
    .await;
    stays(TIME_FOR_HARM, "the squids run on", async || site.squids() == pids).await;
    operator.api.all_ready(4).await;
    operator.kill().await;

    // Gone at the start: no operator, and nothing happens.
    let ended = allowed().spawn().ended().await;
    assert_eq!(ended.code, Some(2));
    let said = ended.log.entries().pop().unwrap();
    assert!(said["error"].as_str().unwrap().contains(&site.manifests().display().to_string()), "{said}");
    assert_eq!(site.squids(), pids);

    fs::rename(site.path("elsewhere"), site.manifests()).unwrap();
    let operator = allowed().start().await;
    operator.api.all_ready(4).await;
    assert_eq!(site.squids(), pids);
}
