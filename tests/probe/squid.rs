//! Real Squid, with a configuration of the test's own.

use egress_actors::domain::health::Blame::{Proxy as OfProxy, Target};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Prober;
use egress_operator::echo;
use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::child::Proxy;
use super::*;

/// A Squid that allows what `rules` say.
pub(crate) fn squid(rules: &str) -> Option<Proxy> {
    Proxy::start("squid", |dir, port| {
        let file = dir.join("proxy.conf");
        // Its shared memory is named by `-n`.
        let arguments =
            ["-N", "-n", &format!("probe{port}"), "-f", &file.display().to_string()].map(str::to_owned).to_vec();
        let configuration = format!(
            "http_port 127.0.0.1:{port}\n\
             pid_filename none\naccess_log none\ncache_log /dev/null\ncoredump_dir none\n\
             cache deny all\ncache_mem 8 MB\nmax_filedescriptors 1024\nshutdown_lifetime 1 seconds\n\
             {rules}\nhttp_access deny all\n"
        );
        (arguments, configuration)
    })
}

/// CONNECT to these ports.
pub(crate) fn allow(ports: &[u16]) -> String {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    format!("acl wanted port {}\nhttp_access allow wanted", ports.join(" "))
}

struct Echo {
    port: u16,
    task: JoinHandle<()>,
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { port, task: tokio::spawn(echo::serve(listener, std::future::pending())) }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/echo", self.port)
    }
}

#[tokio::test]
async fn squid_tunnels_to_the_echo_target_which_tells_the_exit_address() {
    let echo = Echo::start().await;
    let dead = dead_port();
    let Some(squid) = squid(&allow(&[echo.port, dead])) else { return };
    let prober = prober();

    let outcome = prober.probe(&probe(squid.port, &echo.url())).await;
    assert_well("through squid", &outcome, Some("127.0.0.1"));
    assert!(outcome.latency < SOON);
    assert_well("directly", &prober.direct(&probe(dead, &echo.url())).await, Some("127.0.0.1"));

    let other = probe(squid.port, &format!("http://127.0.0.1:{}/other", echo.port));
    let outcome = prober.probe(&other).await;
    assert_fault("another page", &outcome, Target, Reason::TargetStatus, "answered `404 Not Found`, expected 204");

    let outcome = prober.probe(&probe(squid.port, &format!("http://127.0.0.1:{dead}/"))).await;
    assert_fault("a target that refuses", &outcome, Target, Reason::TargetUnreachable, "`ERR_CONNECT_FAIL 111`");

    let outcome = prober.probe(&probe(squid.port, "http://127.0.0.1:1/")).await;
    assert_fault("a port that is not allowed", &outcome, OfProxy, Reason::ProxyDenied, "`ERR_ACCESS_DENIED 0`");
    assert!(outcome.latency < SOON, "the denial kept the probe for {:?}", outcome.latency);

    let outcome = prober.probe(&Probe { timeout: AMPLE, ..probe(dead, &echo.url()) }).await;
    assert_fault("no squid", &outcome, OfProxy, Reason::ProxyConnectionRefused, "refused");
}

#[tokio::test]
async fn squid_asks_for_credentials_and_takes_the_right_ones() {
    let echo = Echo::start().await;
    let helper = "#!/bin/sh\nwhile read -r line; do [ \"$line\" = \"crawler s3cret\" ] && echo OK || echo ERR; done\n";
    let dir = tempfile::tempdir().unwrap();
    for (path, mode) in [(dir.path().to_owned(), 0o755), (dir.path().join("auth"), 0o755)] {
        if path != dir.path() {
            std::fs::write(&path, helper).unwrap();
        }
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    let rules = format!(
        "auth_param basic program {}/auth\nauth_param basic children 1 startup=1 idle=1\n\
         acl known proxy_auth REQUIRED\nhttp_access allow known",
        dir.path().display()
    );
    let Some(squid) = squid(&rules) else { return };
    let prober = prober();
    let plain = probe(squid.port, &echo.url());
    let rows = [
        ("none", None, "none are named"),
        ("wrong ones", Some(credentials("crawler", "wrong-one")), "does not take the credentials"),
    ];
    for (claim, credentials, words) in rows {
        let outcome = prober.probe(&Probe { credentials, ..plain.clone() }).await;
        assert_fault(claim, &outcome, OfProxy, Reason::ProxyAuthRequired, words);
        assert!(outcome.fault.unwrap().detail.contains("ERR_CACHE_ACCESS_DENIED"));
        assert!(outcome.latency < SOON, "{claim}: took {:?}", outcome.latency);
    }
    let right = Probe { credentials: Some(credentials("crawler", "s3cret")), ..plain };
    assert_well("the right ones", &prober.probe(&right).await, Some("127.0.0.1"));
}

#[tokio::test]
async fn a_squid_that_is_stopped_times_out_and_is_well_again_when_it_goes_on() {
    let echo = Echo::start().await;
    let Some(squid) = squid(&allow(&[echo.port])) else { return };
    let prober = prober();
    let looks = probe(squid.port, &echo.url());
    assert_well("before", &prober.probe(&looks).await, Some("127.0.0.1"));
    squid.signal(Signal::STOP);
    let outcome = prober.probe(&Probe { timeout: SHORT, ..looks.clone() }).await;
    assert_fault("while stopped", &outcome, OfProxy, Reason::ProxyTimeout, "did not answer CONNECT");
    assert!(outcome.latency >= SHORT && outcome.latency < SOON, "took {:?}", outcome.latency);
    squid.signal(Signal::CONT);
    assert_well("after", &prober.probe(&looks).await, Some("127.0.0.1"));
}

#[tokio::test]
async fn a_squid_that_is_killed_refuses() {
    let echo = Echo::start().await;
    let Some(squid) = squid(&allow(&[echo.port])) else { return };
    let looks = probe(squid.port, &echo.url());
    assert_well("before", &prober().probe(&looks).await, Some("127.0.0.1"));
    drop(squid);
    assert_fault("after", &prober().probe(&looks).await, OfProxy, Reason::ProxyConnectionRefused, "refused");
}
