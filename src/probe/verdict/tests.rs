use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::desired::{Endpoint, Scheme};
use egress_actors::domain::instance::Credentials;
use rustix::io::Errno;

use super::*;

fn probe(target: &str) -> Probe {
    Probe {
        endpoint: Endpoint { scheme: Scheme::Http, host: "192.0.2.1".into(), port: 3128 },
        credentials: None,
        target: Arc::new(target.parse().unwrap()),
        expect_status: [204, 200].into(),
        timeout: Duration::from_secs(10),
    }
}

fn with_password(password: &str) -> Probe {
    let password = Arc::new(secrecy::SecretString::from(password));
    Probe { credentials: Some(Credentials { username: "u".into(), password }), ..probe("https://t.example/") }
}

/// A head with this status and these fields.
fn answer(status: &str, fields: &str) -> (Head, Vec<u8>) {
    let buffer = format!("HTTP/1.1 {status}\r\n{fields}\r\n").into_bytes();
    (Head { status: status[..3].parse().unwrap(), length: buffer.len() }, buffer)
}

fn told(fault: &ProbeFault) -> (Blame, Reason) {
    (fault.blame, fault.reason)
}

#[test]
fn each_answer_to_connect_has_its_verdict() {
    use Blame::{Proxy, Target};
    let rows = [
        ("403 Forbidden", "X-Squid-Error: ERR_ACCESS_DENIED 0\r\n", Proxy, Reason::ProxyDenied),
        ("407 Proxy Authentication Required", "", Proxy, Reason::ProxyAuthRequired),
        ("302 Found", "Location: http://portal.example/\r\n", Proxy, Reason::ProxyIntercepts),
        ("511 Network Authentication Required", "", Proxy, Reason::ProxyIntercepts),
        ("400 Bad Request", "X-Squid-Error: ERR_INVALID_URL 0\r\n", Proxy, Reason::ProxyError),
        ("429 Too Many Requests", "", Proxy, Reason::ProxyError),
        ("101 Switching Protocols", "", Proxy, Reason::ProxyError),
        ("500 Unable to connect", "", Proxy, Reason::ProxyError),
        ("502 Bad Gateway", "", Target, Reason::TargetUnreachable),
        ("503 Service Unavailable", "", Proxy, Reason::ProxyError),
        ("504 Gateway Timeout", "", Target, Reason::TargetUnreachable),
        ("503 Service Unavailable", "X-Squid-Error: ERR_CONNECT_FAIL 111\r\n", Target, Reason::TargetUnreachable),
        ("503 Service Unavailable", "x-squid-error: ERR_DNS_FAIL 0\r\n", Target, Reason::TargetUnreachable),
        ("500 Internal Server Error", "X-Squid-Error: ERR_CANNOT_FORWARD 0\r\n", Target, Reason::TargetUnreachable),
        ("504 Gateway Timeout", "X-Squid-Error: ERR_READ_TIMEOUT 110\r\n", Target, Reason::TargetUnreachable),
        ("500 Internal Server Error", "X-Squid-Error: ERR_SOCKET_FAILURE 24\r\n", Proxy, Reason::ProxyError),
        ("502 Bad Gateway", "X-Squid-Error: ERR_SHUTTING_DOWN 0\r\n", Proxy, Reason::ProxyError),
        ("403 Forbidden", "X-Squid-Error: ERR_CONNECT_FAIL 111\r\n", Proxy, Reason::ProxyDenied),
    ];
    let probe = probe("https://t.example/");
    for (status, fields, blame, reason) in rows {
        let (head, buffer) = answer(status, fields);
        let fault = Verdict { probe: &probe, route: Route::Tunnel }.refused(head, &buffer);
        assert_eq!(told(&fault), (blame, reason), "{status} {fields}");
        assert!(fault.detail.contains(&format!("`{status}`")), "{}", fault.detail);
        assert!(fault.detail.contains("t.example:443"), "{}", fault.detail);
        if let Some((_, value)) = fields.trim().split_once(": ") {
            assert!(fault.detail.contains(&format!("`{value}`")), "{}", fault.detail);
        }
    }
}

#[test]
fn a_status_inside_the_tunnel_is_the_targets_unless_a_portal_redirects_plain_http() {
    use Blame::{Proxy, Target};
    let rows = [
        ("http://t.example/", Route::Tunnel, "302 Found", Proxy, Reason::ProxyIntercepts),
        ("http://t.example/", Route::Tunnel, "511 Login", Proxy, Reason::ProxyIntercepts),
        ("http://t.example/", Route::Tunnel, "403 Forbidden", Target, Reason::TargetStatus),
        ("http://t.example/", Route::Tunnel, "500 Oops", Target, Reason::TargetStatus),
        ("http://t.example/", Route::Direct, "302 Found", Target, Reason::TargetStatus),
        ("https://t.example/", Route::Tunnel, "302 Found", Target, Reason::TargetStatus),
        ("https://t.example/", Route::Tunnel, "407 Odd", Target, Reason::TargetStatus),
    ];
    for (url, route, status, blame, reason) in rows {
        let probe = probe(url);
        let (head, buffer) = answer(status, "");
        let fault = Verdict { probe: &probe, route }.unexpected(head, &buffer);
        assert_eq!(told(&fault), (blame, reason), "{url} {route:?} {status}");
        assert!(fault.detail.contains("expected 204 or 200"), "{}", fault.detail);
    }
}

#[test]
fn each_failure_to_dial_has_its_verdict() {
    use Blame::{Proxy, Target};
    let rows = [
        (Errno::CONNREFUSED, (Proxy, Reason::ProxyConnectionRefused), (Target, Reason::TargetUnreachable)),
        (Errno::HOSTUNREACH, (Proxy, Reason::ProxyUnreachable), (Target, Reason::TargetUnreachable)),
        (Errno::NETUNREACH, (Proxy, Reason::ProxyUnreachable), (Target, Reason::TargetUnreachable)),
        (Errno::TIMEDOUT, (Proxy, Reason::ProxyTimeout), (Target, Reason::TargetTimeout)),
        (Errno::CONNRESET, (Proxy, Reason::ProxyClosed), (Target, Reason::TargetClosed)),
        (Errno::MFILE, (Target, Reason::Internal), (Target, Reason::Internal)),
        (Errno::ADDRNOTAVAIL, (Target, Reason::Internal), (Target, Reason::Internal)),
    ];
    let probe = probe("http://t.example/");
    for (errno, tunnel, direct) in rows {
        let error = io::Error::from(errno);
        assert_eq!(told(&Verdict { probe: &probe, route: Route::Tunnel }.not_dialled(&error)), tunnel, "{errno}");
        assert_eq!(told(&Verdict { probe: &probe, route: Route::Direct }.not_dialled(&error)), direct, "{errno}");
    }
}

#[test]
fn the_deadline_is_the_proxys_until_the_tunnel_is_open() {
    use Blame::{Proxy, Target};
    let rows = [
        (Phase::Resolve, Proxy, Reason::ProxyNameNotResolved),
        (Phase::Dial, Proxy, Reason::ProxyTimeout),
        (Phase::ProxyTls, Proxy, Reason::ProxyTimeout),
        (Phase::Connect, Proxy, Reason::ProxyTimeout),
        (Phase::TargetTls, Target, Reason::TargetTimeout),
        (Phase::Answer, Target, Reason::TargetTimeout),
    ];
    let probe = probe("https://t.example/");
    for (phase, blame, reason) in rows {
        let fault = Verdict { probe: &probe, route: Route::Tunnel }.overdue(phase);
        assert_eq!(told(&fault), (blame, reason), "{phase:?}");
        assert!(fault.detail.ends_with("within 10s"), "{}", fault.detail);
    }
    for phase in [Phase::Resolve, Phase::Dial, Phase::TargetTls, Phase::Answer] {
        assert_eq!(Verdict { probe: &probe, route: Route::Direct }.overdue(phase).blame, Target, "{phase:?}");
    }
}

#[test]
fn quotations_are_bounded_printable_and_without_credentials() {
    let probe = with_password("hunter22");
    let verdict = Verdict { probe: &probe, route: Route::Tunnel };
    // `dTpodW50ZXIyMg==` is `u:hunter22`.
    let said = b"you sent hunter22, Basic dTpodW50ZXIyMg==\x1b[31m\x00\xff\xe2\x80\xae end";
    let quoted = verdict.quoted(said);
    assert!(!quoted.contains("hunter22") && !quoted.contains("dTpodW50ZXIyMg"), "{quoted}");
    assert!(quoted.starts_with("you sent [redacted], Basic [redacted] [31m") && quoted.ends_with("end"), "{quoted}");
    assert!(quoted.chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{quoted:?}");

    // The cut comes after the credentials are gone, so that no part of them is left at its edge.
    let long = [&[b'x'; QUOTED - 4][..], b"hunter22 and on and on"].concat();
    assert_eq!(verdict.quoted(&long), format!("{}[red...", "x".repeat(QUOTED - 4)));
    let (head, buffer) = answer(&format!("503 {}", "y".repeat(8000)), "X-Squid-Error: hunter22\r\n");
    let detail = verdict.refused(head, &buffer).detail;
    assert!(detail.len() < 400 && !detail.contains("hunter22"), "{detail}");
}
