//! The providers config, edited while the operator runs.

use std::fs;

use reqwest::Method;

use super::api::fetch;
use super::eventually;
use super::manifest::managed;
use super::site::Site;

#[tokio::test]
async fn an_entry_that_is_added_makes_the_proxies_ready_that_waited_for_it() {
    let Some(site) = Site::new() else { return };
    site.apply("waits.yaml", &managed("waits").flavor("managed: {provider: later}").yaml());
    let operator = site.operator().start().await;
    let api = &operator.api;
    let row = eventually("it says what it waits for", async || {
        api.proxy("waits").await.filter(|row| row["reason"] == "ProviderNotConfigured")
    })
    .await;
    assert!(row["message"].as_str().unwrap().contains("later"), "{row}");
    fs::write(site.providers_config(), site.entry("later", "")).unwrap();
    api.becomes("waits", "Ready").await;
    let providers = api.admin_json("/admin/providers").await;
    let names: Vec<_> = providers["providers"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["later"]);
    assert_eq!(site.squids().len(), 1);
}

#[tokio::test]
async fn a_bad_providers_config_is_refused_and_told_and_the_one_before_stays_in_use() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let failed = "egress_config_reload_failed";
    assert_eq!(api.metric(failed).await, Some(0.0));
    let good = fs::read_to_string(site.providers_config()).unwrap();

    fs::write(site.providers_config(), site.entry("local", "colour: blue,")).unwrap();
    let (status, answer) = api.admin_as(Method::POST, "/admin/reload", "").await.unwrap();
    assert!(status >= 400, "{status} {answer}");
    for word in ["providers.yaml:2:", "colour"] {
        assert!(answer.contains(word), "`{word}` is not in {answer}");
    }
    assert_eq!(api.metric(failed).await, Some(1.0));
    let line = api.check("providers-config").await;
    assert!(line.starts_with("[!]") && line.contains("colour"), "{line}");
    assert_eq!(api.admin("/readyz").await.unwrap().0, 200, "the old one works");
    site.apply_each(["b"], managed);
    api.all_ready(2).await;

    fs::write(site.providers_config(), good).unwrap();
    let (status, answer) = api.admin_as(Method::POST, "/admin/reload", "").await.unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(api.metric(failed).await, Some(0.0));
    assert!(api.check("providers-config").await.starts_with("[+]"));
}

#[tokio::test]
async fn an_entry_that_is_removed_is_told_on_its_proxies_which_serve_on() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let good = fs::read_to_string(site.providers_config()).unwrap();
    fs::write(site.providers_config(), site.entry("another", "")).unwrap();
    let row = eventually("it is told", async || {
        let told =
            |row: &serde_json::Value| row["message"].as_str().is_some_and(|text| text.contains("`local` is not"));
        api.proxy("a").await.filter(told)
    })
    .await;
    assert_eq!((&row["phase"], &row["reason"]), (&"Ready".into(), &"Healthy".into()), "{row}");
    let lease = api.lease("a").await;
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
    eventually("in the log, too", async || {
        let about = operator.log.about("event", "a");
        let warned = about.into_iter().find(|entry| entry["event"] == "ProviderNotConfigured")?;
        (warned["level"] == "warn").then_some(())
    })
    .await;
    fs::write(site.providers_config(), good).unwrap();
    eventually("it is well again", async || (api.proxy("a").await?["message"] == "serving").then_some(())).await;
}

#[tokio::test]
async fn narrowed_destinations_that_a_running_squid_still_reaches_are_told_on_its_proxy_until_it_is_made_anew() {
    let Some(site) = Site::new() else { return };
    let entry = |allowed: &str| site.entry("local", &format!("allowDestinations: [{allowed}],"));
    fs::write(site.providers_config(), entry("127.0.0.1, 10.9.8.0/24")).unwrap();
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&["--list-interval", "1s"]).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    fs::write(site.providers_config(), entry("127.0.0.1")).unwrap();
    let row = eventually("it is told", async || {
        let told = |row: &serde_json::Value| {
            row["message"].as_str().is_some_and(|text| text.contains("still reaches 10.9.8.0/24"))
        };
        api.proxy("a").await.filter(told)
    })
    .await;
    assert_eq!((&row["phase"], &row["reason"]), (&"Ready".into(), &"Healthy".into()), "{row}");
    eventually("in the log, too", async || {
        let about = operator.log.about("event", "a");
        let warned = about.into_iter().find(|entry| entry["event"] == "InstanceOutdated")?;
        (warned["level"] == "warn").then_some(())
    })
    .await;
    let before = site.squid_of("a").unwrap();
    site.apply("a.yaml", &managed("a").annotation("recreate", "1").yaml());
    eventually("it is as its entry says", async || {
        let well = api.proxy("a").await?["message"] == "serving";
        (well && site.squids().iter().all(|squid| *squid != before)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_being_asked_the_operator_finds_a_bad_providers_config_by_itself() {
    let Some(site) = Site::new() else { return };
    let operator = site.operator().start().await;
    fs::remove_file(site.providers_config()).unwrap();
    eventually("the missing file is told", async || {
        (operator.api.metric("egress_config_reload_failed").await == Some(1.0)).then_some(())
    })
    .await;
    assert!(operator.api.check("providers-config").await.starts_with("[!]"));
}

#[tokio::test]
async fn a_missing_squid_fails_its_proxies_with_the_package_to_install_and_nothing_else() {
    let Some(site) = Site::new() else { return };
    fs::write(site.providers_config(), site.entry("local", "binary: /nonexistent/squid,")).unwrap();
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&["--provider-check-interval", "1s"]).start().await;
    let api = &operator.api;
    let row = api.becomes("a", "Failed").await;
    let message = row["message"].as_str().unwrap();
    assert_eq!(row["reason"], "BinaryMissing", "{row}");
    assert!(message.contains("/nonexistent/squid") && message.contains("package `squid`"), "{row}");
    eventually("the provider's health says the same", async || {
        let providers = api.admin_json("/admin/providers").await;
        let entry = &providers["providers"][0];
        let same = entry["reason"] == "BinaryMissing" && entry["message"].as_str()?.contains("package `squid`");
        (same && entry["ready"] == false).then_some(())
    })
    .await;
    let up = "proxy_operator_provider_target_up{provider=\"local\",target=\"local\"}";
    assert_eq!(api.metric(up).await, Some(0.0));
    assert_eq!(api.admin("/readyz").await.unwrap().0, 200);
    let (status, answer) = api.try_lease("a").await;
    assert_eq!((status, &answer["code"]), (409, &"none_available".into()), "{answer}");

    // Once it is there, nobody has to be told.
    fs::write(site.providers_config(), site.entry("local", "")).unwrap();
    api.all_ready(1).await;
}
