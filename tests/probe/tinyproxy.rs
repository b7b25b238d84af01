//! A second implementation, so that the prober does not learn Squid by heart.

use egress_actors::domain::health::Blame::Proxy as OfProxy;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Prober;

use super::child::Proxy;
use super::peer::Act::Hear;
use super::peer::{Peer, say};
use super::*;

#[tokio::test]
async fn tinyproxy_is_probed_with_and_without_credentials() {
    let target = Peer::start(vec![Hear, say("HTTP/1.1 204 OK\r\nX-Egress-Address: 192.0.2.9\r\n\r\n")]).await;
    let dead = dead_port();
    let started = Proxy::start("tinyproxy", |dir, port| {
        let file = dir.join("proxy.conf");
        let configuration = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 20\nLogLevel Error\nLogFile \"{}\"\n\
             BasicAuth crawler s3cret\nConnectPort {}\nConnectPort {dead}\n",
            dir.join("tiny.log").display(),
            target.port
        );
        (vec!["-d".to_owned(), "-c".to_owned(), file.display().to_string()], configuration)
    });
    let Some(tinyproxy) = started else { return };
    let prober = prober();
    let url = |port| format!("http://127.0.0.1:{port}/");
    let with =
        |port| Probe { credentials: Some(credentials("crawler", "s3cret")), ..probe(tinyproxy.port, &url(port)) };

    assert_well("the right credentials", &prober.probe(&with(target.port)).await, Some("192.0.2.9"));
    let outcome = prober.probe(&probe(tinyproxy.port, &url(target.port))).await;
    assert_fault("no credentials", &outcome, OfProxy, Reason::ProxyAuthRequired, "none are named");
    let outcome = prober.probe(&with(1)).await;
    assert_fault("a port that is not allowed", &outcome, OfProxy, Reason::ProxyDenied, "`403 ");
    // It says 500 for a target that refuses, and nothing tells it from trouble of its own.
    let outcome = prober.probe(&with(dead)).await;
    assert_fault("a target that refuses", &outcome, OfProxy, Reason::ProxyError, "`500 ");
}
