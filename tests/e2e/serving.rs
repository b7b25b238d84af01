//! The main job: from manifests to a request that leaves through a leased proxy.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::TcpListener;
use std::time::Duration;

use reqwest::Method;

use super::api::{connect, fetch, say, status_of};
use super::manifest::{external, managed, secret};
use super::operator::TOKEN;
use super::site::Site;
use super::squids::OwnSquid;

#[tokio::test]
async fn manifests_become_leased_proxies_that_reach_the_target_and_nothing_private() {
    let Some(site) = Site::new() else { return };
    let Some(bought) = OwnSquid::open() else { return };
    site.apply_each(["a", "b", "c"], |name| managed(name).attribute("tier", "dc"));
    site.apply("bought.yaml", &external("bought", bought.port).attribute("tier", "bought").yaml());
    // The operator's own target, as in a first look without a network.
    let echo = format!("http://{}/echo", site.echo);
    let launch = site.operator().probe_target(echo.clone()).args(&["--echo-addr", &site.echo.to_string()]);
    let operator = launch.start().await;
    let api = &operator.api;
    api.all_ready(4).await;
    assert_eq!(api.proxy("a").await.unwrap()["exitIp"], "127.0.0.1");

    let mut used = BTreeSet::new();
    for name in ["a", "b", "c", "bought"] {
        let lease = api.lease(name).await;
        assert!(used.insert(lease["proxy"]["port"].as_u64().unwrap()), "two proxies at one address: {lease}");
        let answer = fetch(&lease, &echo).await;
        assert_eq!(answer.status(), 204, "GET through {name}");
        assert_eq!(answer.headers()["x-egress-address"], "127.0.0.1");
        let (status, mut tunnel) = connect(&lease, &site.echo.to_string()).await;
        assert_eq!(status, 200, "CONNECT through {name}");
        let answer = say(&mut tunnel, "GET /echo HTTP/1.1\r\nHost: echo\r\n\r\n").await;
        assert_eq!(status_of(&answer), 204, "{answer}");
    }

    // Somewhere else on this machine, and in private networks.
    let secret_service = TcpListener::bind("127.0.0.1:0").unwrap();
    secret_service.set_nonblocking(true).unwrap();
    let hidden = secret_service.local_addr().unwrap().to_string();
    api.call(Method::POST, "/v1/leases", None).await;
    let leases = api.get("/v1/leases").await;
    assert_eq!(leases["leases"].as_array().unwrap().len(), 4);
    let (status, answer) = api.try_lease("a").await;
    assert_eq!((status, &answer["leasedOut"]), (409, &1.into()), "{answer}");
    for lease in leases["leases"].as_array().unwrap() {
        api.release(lease).await;
    }
    let lease = api.lease("a").await;
    let public_port = format!("127.0.0.1:{}", 443);
    for to in [&hidden, &public_port, "10.0.0.1:443", "169.254.169.254:443", "[::1]:443", "[::ffff:10.0.0.1]:443"] {
        assert_eq!(connect(&lease, to).await.0, 403, "CONNECT to {to}");
    }
    for url in [format!("http://{hidden}/"), "http://10.0.0.1/".into(), "http://169.254.169.254/latest".into()] {
        assert_eq!(fetch(&lease, &url).await.status(), 403, "GET {url}");
    }
    assert!(secret_service.accept().is_err(), "the squid has connected to what it must refuse");

    // Whoever has no lease has no way through either.
    let mut stranger = lease.clone();
    stranger["proxy"]["password"] = "guessed".into();
    assert_eq!(connect(&stranger, &site.echo.to_string()).await.0, 407);
}

#[tokio::test]
async fn no_credentials_show_anywhere_but_in_a_lease() {
    let Some(site) = Site::new() else { return };
    let Some(bought) = OwnSquid::with_password("crawler", "bought-password") else { return };
    site.apply_each(["a", "b"], managed);
    let flavor =
        format!("external: {{url: \"http://127.0.0.1:{}\", credentialsSecretRef: {{name: bought}}}}", bought.port);
    let text = external("bought", bought.port).flavor(&flavor).yaml() + &secret("bought", "crawler", "bought-password");
    site.apply("bought.yaml", &text);
    let operator = site.operator().args(&["--log-level", "trace"]).start().await;
    let api = &operator.api;
    api.all_ready(3).await;

    let mut secrets = vec![TOKEN.to_owned(), "bought-password".to_owned()];
    for name in ["a", "b", "bought"] {
        let lease = api.lease(name).await;
        let password = lease["proxy"]["password"].as_str().unwrap().to_owned();
        assert!(password.len() >= 8, "{password}");
        assert!(lease["proxy"]["url"].as_str().unwrap().contains(&password));
        secrets.push(password);
    }
    let report = serde_json::json!({"outcome": "proxy_error"});
    let lease = api.get("/v1/leases").await["leases"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(api.call(Method::POST, &format!("/v1/leases/{lease}/report"), Some(&report)).await.0, 204);

    let mut shown = Vec::new();
    for path in ["/v1/proxies", "/v1/leases", "/v1/explain?n=a"] {
        shown.push((path, api.get(path).await.to_string()));
    }
    for path in ["/admin/actors", "/admin/providers", "/admin/problems", "/metrics", "/readyz?verbose"] {
        shown.push((path, api.admin(path).await.unwrap().1));
    }
    let ended = operator.terminate().await;
    assert_eq!(ended.code, Some(0));
    let log = ended.log.lines().join("\n");
    assert!(log.contains("\"level\":\"debug\""), "the log is not as talkative as asked for");
    shown.push(("the log", log));
    // The command lines and environments of the Squids are open to others on the machine.
    for pid in site.squids() {
        let mut text = String::new();
        for file in ["cmdline", "environ"] {
            std::fs::File::open(format!("/proc/{pid}/{file}")).unwrap().read_to_string(&mut text).unwrap();
        }
        shown.push(("a squid's process", text));
    }
    assert!(shown.iter().all(|(place, text)| !text.is_empty() || *place == "/admin/problems"));
    for secret in &secrets {
        for (place, text) in &shown {
            assert!(!text.contains(secret.as_str()), "{place} shows {secret}");
        }
    }
}

#[tokio::test]
async fn every_line_on_stdout_and_stderr_is_one_json_object() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    site.apply("bad.yaml", "kind: [\n");
    let operator = site.operator().start().await;
    operator.api.all_ready(1).await;
    let ended = operator.terminate().await;
    let entries = ended.log.entries();
    assert!(entries.len() > 5);
    for entry in entries {
        for key in ["ts", "level", "msg"] {
            assert!(entry[key].is_string(), "no {key} in {entry}");
        }
    }
    assert!(ended.took < Duration::from_secs(10), "took {:?}", ended.took);
}
