//! The prober from outside: real Squid and tinyproxy, TLS on either leg, and scripted peers that misbehave.
//!
//! Everything is on loopback. Where a program is missing the test fails, unless `EGRESS_TESTS_ALLOW_MISSING=1`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this is test code, also outside test functions")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::desired::{Endpoint, Scheme};
use egress_actors::domain::health::{Blame, Probe, ProbeOutcome};
use egress_actors::domain::instance::Credentials;
use egress_actors::domain::reason::Reason;
use egress_operator::dns::Dns;
use egress_operator::probe::TunnelProber;
use secrecy::SecretString;

mod child;
mod peer;
mod scripted;
mod squid;
mod tinyproxy;
mod tls;

/// Long enough that only a defect reaches it.
const AMPLE: Duration = Duration::from_mins(1);
/// For probes that shall end at their deadline.
const SHORT: Duration = Duration::from_millis(300);
/// No probe of these tests takes longer than this beyond what it waits for.
const SOON: Duration = Duration::from_secs(5);

fn prober() -> TunnelProber {
    TunnelProber::new(Dns::system(), &[]).unwrap()
}

/// A probe through an http proxy on this port of loopback.
fn probe(proxy: u16, target: &str) -> Probe {
    Probe {
        endpoint: Endpoint { scheme: Scheme::Http, host: "127.0.0.1".into(), port: proxy },
        credentials: None,
        target: Arc::new(target.parse().unwrap()),
        expect_status: [204].into(),
        timeout: AMPLE,
    }
}

fn credentials(username: &str, password: &str) -> Credentials {
    let password = Arc::new(SecretString::from(password));
    Credentials { username: username.into(), password }
}

/// A port on which nobody listens, and nobody will: a socket is bound to it to the end of the process.
fn dead_port() -> u16 {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let bound = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    std::mem::forget(socket);
    bound.port()
}

#[track_caller]
fn assert_fault(claim: &str, outcome: &ProbeOutcome, blame: Blame, reason: Reason, words: &str) {
    let fault = outcome.fault.as_ref().unwrap_or_else(|| panic!("{claim}: went well"));
    assert_eq!((fault.blame, fault.reason), (blame, reason), "{claim}: {}", fault.detail);
    assert!(fault.detail.contains(words), "{claim}: `{}` does not say `{words}`", fault.detail);
    assert_eq!(outcome.exit_ip, None, "{claim}");
}

#[track_caller]
fn assert_well(claim: &str, outcome: &ProbeOutcome, exit_ip: Option<&str>) {
    assert_eq!(outcome.fault, None, "{claim}");
    assert_eq!(outcome.exit_ip.as_deref(), exit_ip, "{claim}");
}
