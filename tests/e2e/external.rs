//! Proxies that somebody else runs.

use super::api::{authorization, fetch, say, status_of};
use super::eventually;
use super::manifest::{external, secret};
use super::site::Site;
use super::squids::OwnSquid;
use super::tls_front::TlsFront;

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

    site.apply("secret.yaml", &secret("bought", "crawler", "right-password"));
    let row = api.becomes("px", "Ready").await;
    assert_eq!((&row["provider"], &row["lastProbe"]["ok"]), (&serde_json::Value::Null, &true.into()), "{row}");
    let lease = eventually("on offer", async || {
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
async fn a_secret_that_is_removed_is_told_on_its_proxy_which_serves_on() {
    let Some(site) = Site::new() else { return };
    let Some(squid) = OwnSquid::with_password("crawler", "right-password") else { return };
    let flavor =
        format!("external: {{url: \"http://127.0.0.1:{}\", credentialsSecretRef: {{name: bought}}}}", squid.port);
    site.apply("px.yaml", &external("px", squid.port).flavor(&flavor).yaml());
    site.apply("secret.yaml", &secret("bought", "crawler", "right-password"));
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    site.remove("secret.yaml");
    let row = eventually("it is told", async || {
        api.proxy("px").await.filter(|row| row["message"].as_str().is_some_and(|text| text.contains("crawl/bought")))
    })
    .await;
    assert_eq!((&row["phase"], &row["reason"]), (&"Ready".into(), &"Healthy".into()), "{row}");
    let lease = api.lease("px").await;
    assert_eq!(fetch(&lease, &site.target.url()).await.status(), 204);
    eventually("in the log, too", async || {
        let warned = operator.log.about("event", "px").into_iter().find(|entry| entry["event"] == "SecretNotFound")?;
        (warned["level"] == "warn").then_some(())
    })
    .await;
    site.apply("secret.yaml", &secret("bought", "crawler", "right-password"));
    eventually("it is well again", async || (api.proxy("px").await?["message"] == "serving").then_some(())).await;
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

#[tokio::test]
async fn an_https_proxy_is_probed_leased_and_used_over_tls_and_a_stranger_is_told_and_not_leased() {
    let Some(site) = Site::new() else { return };
    let Some(squid) = OwnSquid::with_password("crawler", "right-password") else { return };
    let (bought, stranger) = (TlsFront::before(squid.port), TlsFront::before(squid.port));
    for (name, port) in [("bought", bought.port), ("stranger", stranger.port)] {
        let flavor = format!("external: {{url: \"https://127.0.0.1:{port}\", credentialsSecretRef: {{name: bought}}}}");
        site.apply(&format!("{name}.yaml"), &external(name, port).flavor(&flavor).yaml());
    }
    site.apply("secret.yaml", &secret("bought", "crawler", "right-password"));
    // The system's roots are what this variable says: OpenSSL's own.
    let roots = site.path("roots.pem");
    std::fs::write(&roots, &bought.root).unwrap();
    let operator = site.operator().env("SSL_CERT_FILE", roots).start().await;
    let api = &operator.api;
    let row = api.becomes("bought", "Ready").await;
    assert_eq!(row["endpoint"], format!("https://127.0.0.1:{}", bought.port), "{row}");

    let lease = api.lease("bought").await;
    assert_eq!(lease["proxy"]["scheme"], "https", "{lease}");
    let url = format!("https://crawler:right-password@127.0.0.1:{}", bought.port);
    assert_eq!(lease["proxy"]["url"].as_str().unwrap().trim_end_matches('/'), url);
    let mut tunnel = bought.connect().await;
    let to = format!("127.0.0.1:{}", site.target.port);
    let auth = authorization(&lease);
    let answer = say(&mut tunnel, &format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{auth}\r\n")).await;
    assert_eq!(status_of(&answer), 200, "{answer}");
    let answer = say(&mut tunnel, &format!("GET /ok HTTP/1.1\r\nHost: {to}\r\n\r\n")).await;
    assert_eq!(status_of(&answer), 204, "{answer}");

    eventually("nobody vouches for the other one, and that is told", async || {
        (api.proxy("stranger").await?["lastProbe"]["reason"] == "ProxyTLSFailed").then_some(())
    })
    .await;
    assert_eq!(api.try_lease("stranger").await.0, 409);
}
