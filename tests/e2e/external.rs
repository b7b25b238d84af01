//! Proxies that somebody else runs.

use std::time::{Duration, Instant};

use super::api::fetch;
use super::manifest::{external, secret};
use super::site::Site;
use super::squids::OwnSquid;
use super::{eventually, within};

#[tokio::test]
async fn an_external_proxy_uses_its_secret_and_a_changed_secret_is_tried_at_once() {
    let Some(site) = Site::new() else { return };
    let Some(squid) = OwnSquid::with_password("crawler", "right-password") else { return };
    let flavor =
        format!("external: {{url: \"http://127.0.0.1:{}\", credentialsSecretRef: {{name: bought}}}}", squid.port);
    // So rarely probed that only news can be the reason.
    let check = "interval: 10m, timeout: 5s, failureThreshold: 1";
    site.apply("px.yaml", &external("px", squid.port).flavor(&flavor).check(check).yaml());
    let operator = site.operator().start().await;
    let api = &operator.api;
    eventually("it says that its Secret is missing", async || {
        let row = api.proxy("px").await?;
        (row["reason"] == "SecretNotFound" && row["message"].as_str()?.contains("bought")).then_some(())
    })
    .await;

    let unlabelled = secret("bought", "crawler", "right-password").replace("crawl.example.com/proxy-secret", "other");
    site.apply("secret.yaml", &unlabelled);
    eventually("it says that its Secret has no label", async || {
        (api.proxy("px").await?["reason"] == "SecretNotLabelled").then_some(())
    })
    .await;

    site.apply("secret.yaml", &secret("bought", "crawler", "wrong-password"));
    eventually("the proxy refuses the wrong password", async || {
        (api.proxy("px").await?["lastProbe"]["reason"] == "ProxyAuthRequired").then_some(())
    })
    .await;
    assert_eq!(api.try_lease("px").await.0, 409);

    let changed = Instant::now();
    site.apply("secret.yaml", &secret("bought", "crawler", "right-password"));
    let row = api.becomes("px", "Ready").await;
    assert!(changed.elapsed() < Duration::from_secs(20), "took {:?}", changed.elapsed());
    assert_eq!((&row["provider"], &row["lastProbe"]["ok"]), (&serde_json::Value::Null, &true.into()), "{row}");
    let lease = within(Duration::from_secs(5), "on offer", async || {
        let (status, mut body) = api.try_lease("px").await;
        (status == 201).then(|| body["leases"][0].take())
    })
    .await;
    assert_eq!(lease["proxy"]["password"], "right-password");
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
    api.release(&lease).await;

    // A password that became wrong is found out by the same way.
    site.apply("secret.yaml", &secret("bought", "crawler", "expired-password"));
    api.becomes("px", "Unhealthy").await;
}

#[tokio::test]
async fn removing_an_external_proxy_leaves_the_proxy_itself_alone() {
    let Some(site) = Site::new() else { return };
    let Some(squid) = OwnSquid::open() else { return };
    site.apply("px.yaml", &external("px", squid.port).yaml());
    let operator = site.operator().start().await;
    operator.api.all_ready(1).await;
    let lease = operator.api.lease("px").await;
    site.remove("px.yaml");
    eventually("it is gone", async || operator.api.proxies().await.is_empty().then_some(())).await;
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204, "the proxy itself goes on");
}
