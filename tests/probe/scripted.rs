//! Peers that misbehave, each in one way.

use std::time::Instant;

use egress_actors::domain::health::Blame::{self, Proxy, Target};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Prober;
use futures::future::join_all;

use super::peer::Act::{Drip, Hear, Hold, Say};
use super::peer::{Act, Peer, open, say};
use super::*;

const HTTP: &str = "http://target.invalid:8081/health?full=1";
const HTTPS: &str = "https://target.invalid/";

struct Row {
    claim: &'static str,
    script: Vec<Act>,
    target: &'static str,
    timeout: Duration,
    expected: Option<(Blame, Reason, &'static str)>,
}

fn row(
    claim: &'static str,
    script: Vec<Act>,
    target: &'static str,
    timeout: Duration,
    expected: (Blame, Reason, &'static str),
) -> Row {
    Row { claim, script, target, timeout, expected: Some(expected) }
}

fn well(claim: &'static str, script: Vec<Act>) -> Row {
    Row { claim, script, target: HTTP, timeout: AMPLE, expected: None }
}

/// A head that never ends.
fn endless() -> Act {
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    for n in 0..40 {
        head.extend(format!("X-Filler-{n}: {}\r\n", "a".repeat(1000)).bytes());
    }
    Say(head)
}

/// As Squid denies: keep-alive, a body of 3 kB, and the connection stays open (fault 130).
fn denied() -> Act {
    let head = "HTTP/1.1 403 Forbidden\r\nServer: squid/5.7\r\nContent-Length: 3054\r\n\
                X-Squid-Error: ERR_ACCESS_DENIED 0\r\nConnection: keep-alive\r\n\r\n";
    Say([head.as_bytes(), &[b'x'; 3054]].concat())
}

#[tokio::test]
async fn each_misbehaving_peer_gets_its_verdict_in_time() {
    let ok = say("HTTP/1.1 204 No Content\r\n\r\n");
    let rows = vec![
        // The proxy.
        row("a peer that closes at once", vec![], HTTP, AMPLE, (Proxy, Reason::ProxyClosed, "after 0 bytes")),
        row("a proxy that closes on CONNECT", vec![Hear], HTTP, AMPLE, (Proxy, Reason::ProxyClosed, "CONNECT")),
        row(
            "a proxy that closes within its answer",
            vec![Hear, say("HTTP/1.1 200 OK\r\nA: b\r\n")],
            HTTP,
            AMPLE,
            (Proxy, Reason::ProxyClosed, "after 23 bytes"),
        ),
        row("a proxy that never answers", vec![Hold], HTTP, SHORT, (Proxy, Reason::ProxyTimeout, "within 300ms")),
        row(
            "a proxy that drips a header for ever",
            vec![Hear, say("HTTP/1.1 200 OK\r\nX: "), Drip(b"y")],
            HTTP,
            SHORT,
            (Proxy, Reason::ProxyTimeout, "within 300ms"),
        ),
        row(
            "a proxy that drips header lines for ever",
            vec![Hear, say("HTTP/1.1 200 OK\r\n"), Drip(b"a:\r\n")],
            HTTP,
            SHORT,
            (Proxy, Reason::ProxyTimeout, "within 300ms"),
        ),
        row("a head over 16 KiB", vec![Hear, endless(), Hold], HTTP, AMPLE, (Proxy, Reason::ProxyGarbage, "16384")),
        row(
            "a peer that is no proxy and waits",
            vec![say("SSH-2.0-OpenSSH_9.2\r\n"), Hold],
            HTTP,
            AMPLE,
            (Proxy, Reason::ProxyGarbage, "`SSH-2.0-OpenSSH_9.2`"),
        ),
        row(
            "a proxy that speaks TLS",
            vec![Hear, Say(vec![0x15, 3, 1, 0, 2, 2, 22]), Hold],
            HTTP,
            AMPLE,
            (Proxy, Reason::ProxyGarbage, "its scheme is https"),
        ),
        row(
            "a denial that keeps the connection open",
            vec![Hear, denied(), Hold],
            HTTP,
            AMPLE,
            (Proxy, Reason::ProxyDenied, "X-Squid-Error `ERR_ACCESS_DENIED 0`"),
        ),
        row(
            "a denial whose body never comes",
            vec![Hear, say("HTTP/1.1 407 No\r\nContent-Length: 9000\r\n\r\n"), Hold],
            HTTP,
            AMPLE,
            (Proxy, Reason::ProxyAuthRequired, "none are named"),
        ),
        row(
            "a portal that answers CONNECT",
            vec![Hear, say("HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n"), Hold],
            HTTPS,
            AMPLE,
            (Proxy, Reason::ProxyIntercepts, "`http://login.example/`"),
        ),
        // The target, through an open tunnel.
        row(
            "a tunnel that is silent",
            vec![Hear, open(), Hold],
            HTTP,
            SHORT,
            (Target, Reason::TargetTimeout, "request"),
        ),
        row("TLS that is silent", vec![Hear, open(), Hold], HTTPS, SHORT, (Target, Reason::TargetTimeout, "TLS")),
        row("a tunnel that closes", vec![Hear, open()], HTTP, AMPLE, (Target, Reason::TargetClosed, "request")),
        row("a tunnel that closes on TLS", vec![Hear, open()], HTTPS, AMPLE, (Target, Reason::TargetClosed, "TLS")),
        row(
            "a target that does not speak TLS",
            vec![Hear, open(), say("HTTP/1.1 400 Bad Request\r\n\r\n"), Hold],
            HTTPS,
            AMPLE,
            (Target, Reason::TargetTLSFailed, "does not speak TLS"),
        ),
        row(
            "a TLS alert in one piece with the proxy's answer",
            vec![Hear, Say(b"HTTP/1.1 200 OK\r\n\r\n\x15\x03\x03\x00\x02\x02\x28".to_vec()), Hold],
            HTTPS,
            AMPLE,
            (Target, Reason::TargetTLSFailed, "HandshakeFailure"),
        ),
        row(
            "a target that drips for ever",
            vec![Hear, open(), Hear, say("HTTP/1.1 204 OK\r\n"), Drip(b"a:\r\n")],
            HTTP,
            SHORT,
            (Target, Reason::TargetTimeout, "within 300ms"),
        ),
        row(
            "a redirect inside the tunnel",
            vec![Hear, open(), Hear, say("HTTP/1.1 302 Found\r\nLocation: http://login.example/\r\n\r\n"), Hold],
            HTTP,
            AMPLE,
            (Proxy, Reason::ProxyIntercepts, "`http://login.example/`"),
        ),
        row(
            "another status inside the tunnel",
            vec![Hear, open(), Hear, say("HTTP/1.1 403 Forbidden\r\n\r\n"), Hold],
            HTTP,
            AMPLE,
            (Target, Reason::TargetStatus, "answered `403 Forbidden`, expected 204"),
        ),
        row(
            "a target that is no web server",
            vec![Hear, open(), say("220 mail ESMTP\r\n"), Hold],
            HTTP,
            AMPLE,
            (Target, Reason::TargetStatus, "`220 mail ESMTP`"),
        ),
        row(
            "a target's endless head",
            vec![Hear, open(), Hear, endless(), Hold],
            HTTP,
            AMPLE,
            (Target, Reason::TargetStatus, "16384"),
        ),
        // What is unusual and well.
        well("an answer and a connection that stays open", vec![Hear, open(), Hear, ok.clone(), Hold]),
        well(
            "interim answers first",
            vec![
                Hear,
                say("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n"),
                Hear,
                ok.clone(),
            ],
        ),
        well(
            "the target's answer in one piece with the proxy's",
            vec![Hear, say("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"), Hold],
        ),
        well(
            "the head's last bytes in one piece with the tunnel's first",
            vec![Hear, say("HTTP/1.1 200 OK\r\n\r\nHTTP/1."), Hear, say("1 204 No Content\r\n\r\n"), Hold],
        ),
    ];
    let prober = prober();
    join_all(rows.into_iter().map(|row| judge(&prober, row))).await;
}

async fn judge(prober: &TunnelProber, row: Row) {
    let peer = Peer::start(row.script).await;
    let probe = Probe { timeout: row.timeout, ..probe(peer.port, row.target) };
    let began = Instant::now();
    let outcome = prober.probe(&probe).await;
    let took = began.elapsed();
    let claim = row.claim;
    match row.expected {
        Some((blame, reason, words)) => assert_fault(claim, &outcome, blame, reason, words),
        None => assert_well(claim, &outcome, None),
    }
    assert!(took < SOON, "{claim}: took {took:?}");
    assert!(outcome.latency <= took, "{claim}: tells {:?} of {took:?}", outcome.latency);
    if row.timeout == SHORT {
        assert!(outcome.latency >= SHORT, "{claim}: ended before its deadline, after {:?}", outcome.latency);
    }
}

#[tokio::test]
async fn the_target_gets_its_request_and_never_the_proxys_credentials() {
    let script = vec![Hear, open(), Hear, say("HTTP/1.1 204 OK\r\nX-Egress-Address: 2001:DB8::1\r\n\r\n")];
    let peer = Peer::start(script).await;
    let probe = Probe { credentials: Some(credentials("user", "pass:word")), ..probe(peer.port, HTTP) };
    assert_well("a whole look", &prober().probe(&probe).await, Some("2001:db8::1"));
    assert_eq!(
        peer.heard(),
        [
            "CONNECT target.invalid:8081 HTTP/1.1\r\nHost: target.invalid:8081\r\nUser-Agent: egress-probe\r\n\
             Proxy-Authorization: Basic dXNlcjpwYXNzOndvcmQ=\r\n\r\n",
            "GET /health?full=1 HTTP/1.1\r\nHost: target.invalid:8081\r\nUser-Agent: egress-probe\r\nAccept: */*\r\n\
             Connection: close\r\n\r\n",
        ]
    );
}

#[tokio::test]
async fn ports_hosts_and_odd_urls_are_written_as_http_wants_them() {
    let rows = [
        ("http://target.invalid", "CONNECT target.invalid:80 ", "GET / ", "Host: target.invalid\r\n"),
        ("http://[2001:db8::1]/a", "CONNECT [2001:db8::1]:80 ", "GET /a ", "Host: [2001:db8::1]\r\n"),
        ("http://[::1]:81/", "CONNECT [::1]:81 ", "GET / ", "Host: [::1]:81\r\n"),
        (
            "http://u:secret@192.0.2.1/a b?c=d e#f",
            "CONNECT 192.0.2.1:80 ",
            "GET /a%20b?c=d%20e ",
            "Host: 192.0.2.1\r\n",
        ),
        ("http://t.invalid/\r\nX: y", "CONNECT t.invalid:80 ", "GET /X:%20y ", "Host: t.invalid\r\n"),
    ];
    for (target, connect, get, host) in rows {
        let peer = Peer::start(vec![Hear, open(), Hear, say("HTTP/1.1 204 OK\r\n\r\n")]).await;
        assert_well(target, &prober().probe(&probe(peer.port, target)).await, None);
        let heard = peer.heard();
        assert!(heard[0].starts_with(connect), "{target}: {}", heard[0]);
        assert!(heard[1].starts_with(get) && heard[1].contains(host), "{target}: {}", heard[1]);
        assert!(!heard.concat().contains("secret"), "{target}: {heard:?}");
    }
}

#[tokio::test]
async fn an_exit_address_that_is_no_address_is_not_taken_over() {
    for told in ["", "unknown", "192.0.2.1, 192.0.2.2", "<script>", "192.0.2.300"] {
        let answer = format!("HTTP/1.1 204 OK\r\nX-Egress-Address: {told}\r\n\r\n");
        let peer = Peer::start(vec![Hear, open(), Hear, say(&answer)]).await;
        assert_well(told, &prober().probe(&probe(peer.port, HTTP)).await, None);
    }
}

#[tokio::test]
async fn a_proxy_that_echoes_the_credentials_does_not_get_them_into_the_detail() {
    let answer = "HTTP/1.1 503 s3cret dTpzM2NyZXQ=\r\nX-Squid-Error: s3cret\r\n\r\n";
    let peer = Peer::start(vec![Hear, say(answer)]).await;
    let probe = Probe { credentials: Some(credentials("u", "s3cret")), ..probe(peer.port, HTTP) };
    let outcome = prober().probe(&probe).await;
    assert_fault("an echo", &outcome, Proxy, Reason::ProxyError, "[redacted]");
    assert!(!format!("{outcome:?}").contains("s3cret"), "{outcome:?}");
    assert!(!format!("{outcome:?}").contains("dTpzM2NyZXQ"), "{outcome:?}");
}

#[tokio::test]
async fn a_proxy_that_cannot_be_reached_is_told_by_how() {
    let mut refused = probe(dead_port(), HTTP);
    assert_fault("a dead port", &prober().probe(&refused).await, Proxy, Reason::ProxyConnectionRefused, "refused");
    // Linux opens no TCP connection to a group, whatever the network does.
    refused.endpoint.host = "224.0.0.1".into();
    let outcome = prober().probe(&refused).await;
    let reason = outcome.fault.as_ref().unwrap().reason;
    assert!(matches!(reason, Reason::ProxyUnreachable | Reason::ProxyTimeout), "{outcome:?}");
    for name in ["no such name", ""] {
        refused.endpoint.host = name.into();
        let outcome = prober().probe(&refused).await;
        assert_fault("no name", &outcome, Proxy, Reason::ProxyNameNotResolved, "is not a host name");
    }
    let peer = Peer::start(vec![Hear, open(), Hear, say("HTTP/1.1 204 OK\r\n\r\n")]).await;
    let mut by_name = probe(peer.port, HTTP);
    by_name.endpoint.host = "localhost".into();
    assert_well("a proxy by name", &prober().probe(&by_name).await, None);
}

#[tokio::test]
async fn the_direct_look_blames_the_target_alone() {
    let peer = Peer::start(vec![Hear, say("HTTP/1.1 204 OK\r\nX-Egress-Address: 192.0.2.5\r\n\r\n")]).await;
    let url = format!("http://localhost:{}/p", peer.port);
    // The proxy of the probe is dead; the direct look does not care.
    let direct = probe(dead_port(), &url);
    assert_well("a target that is well", &prober().direct(&direct).await, Some("192.0.2.5"));
    assert!(peer.heard()[0].starts_with("GET /p HTTP/1.1\r\n"), "{:?}", peer.heard());

    let redirect = say("HTTP/1.1 302 Found\r\n\r\n");
    let rows: Vec<(_, Vec<Act>, _, _)> = vec![
        ("a redirect", vec![Hear, redirect], AMPLE, Reason::TargetStatus),
        ("silence", vec![Hold], SHORT, Reason::TargetTimeout),
        ("an end", vec![Hear], AMPLE, Reason::TargetClosed),
    ];
    for (claim, script, timeout, reason) in rows {
        let peer = Peer::start(script).await;
        let probe = Probe { timeout, ..probe(dead_port(), &format!("http://127.0.0.1:{}/", peer.port)) };
        assert_fault(claim, &prober().direct(&probe).await, Target, reason, "127.0.0.1");
    }
    let nobody = probe(1, &format!("http://[::1]:{}/", dead_port()));
    let outcome = prober().direct(&nobody).await;
    assert_fault("nobody there", &outcome, Target, Reason::TargetUnreachable, "[::1]");
}

/// Fault 131. The variables are set for a child that runs this test again, as a process must not change its own.
#[tokio::test]
async fn the_environments_proxies_change_nothing() {
    const MARK: &str = "EGRESS_TEST_WITH_PROXIES_IN_THE_ENVIRONMENT";
    if std::env::var_os(MARK).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "scripted::the_environments_proxies_change_nothing"]).env(MARK, "1");
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            child.env(name, format!("http://127.0.0.1:{}", dead_port()));
        }
        child.env("NO_PROXY", "*").env("no_proxy", "*");
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let peer = Peer::start(vec![Hear, open(), Hear, say("HTTP/1.1 204 OK\r\n\r\n")]).await;
    assert_well("a probe", &prober().probe(&probe(peer.port, HTTP)).await, None);
    let peer = Peer::start(vec![Hear, say("HTTP/1.1 204 OK\r\n\r\n")]).await;
    let direct = probe(dead_port(), &format!("http://127.0.0.1:{}/", peer.port));
    assert_well("a direct look", &prober().direct(&direct).await, None);
}

#[tokio::test]
async fn proxies_that_swallow_probes_hold_up_no_other_probe() {
    let swallows = Peer::start(vec![Hold]).await;
    let works = Peer::start(vec![Hear, open(), Hear, say("HTTP/1.1 204 OK\r\n\r\n")]).await;
    let prober = prober();
    let stuck = Probe { timeout: Duration::from_secs(3), ..probe(swallows.port, HTTP) };
    let stuck: Vec<_> = (0..300)
        .map(|_| {
            let (prober, stuck) = (prober.clone(), stuck.clone());
            tokio::spawn(async move { prober.probe(&stuck).await })
        })
        .collect();
    for _ in 0..50 {
        let outcome = prober.probe(&probe(works.port, HTTP)).await;
        assert_well("a good proxy", &outcome, None);
        assert!(outcome.latency < Duration::from_secs(2), "held up for {:?}", outcome.latency);
    }
    for probe in stuck {
        assert_fault("swallowed", &probe.await.unwrap(), Proxy, Reason::ProxyTimeout, "did not answer CONNECT");
    }
}
