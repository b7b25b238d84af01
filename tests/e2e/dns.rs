//! Names that never answer, beside names that do.
//!
//! The operator runs in a mount namespace of its own with another `/etc/resolv.conf`, which names a server of the test.

use std::net::UdpSocket;

use super::manifest::{external, managed};
use super::site::Site;
use super::squids::OwnSquid;
use super::{eventually, may_unshare};

/// `live.test` as labels, with the root behind it.
const LIVE: &[u8] = b"\x04live\x04test\x00";

/// Answers with 127.0.0.1 for names under `live.test`, and never for others.
fn name_server() -> Option<String> {
    // resolv.conf has no ports, so each server needs an address of its own, at the port that only root may take.
    let host = (1..250).find_map(|n| UdpSocket::bind((format!("127.53.{}.{n}", rand::random::<u8>()), 53)).ok());
    let Some(socket) = host else {
        eprintln!("skipped: port 53 cannot be listened on (not root?)");
        return None;
    };
    let address = socket.local_addr().unwrap().ip().to_string();
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            if let Some(answer) = answer(&bytes[..length]) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Some(address)
}

/// RFC 1035: the query's own question, and for A one record that points back to its name.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let name_ends = 12 + query.get(12..)?.iter().position(|&byte| byte == 0)? + 1;
    let question = query.get(12..name_ends + 4)?;
    if !question.windows(LIVE.len()).any(|part| part.eq_ignore_ascii_case(LIVE)) {
        return None;
    }
    let is_a = query.get(name_ends..name_ends + 2)? == [0, 1];
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
    answer.extend(question);
    if is_a {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}

#[tokio::test]
async fn names_that_never_answer_hold_up_only_the_proxies_that_have_them() {
    let Some(site) = Site::new() else { return };
    if !may_unshare() {
        return;
    }
    let Some(server) = name_server() else { return };
    let Some(squid) = OwnSquid::open() else { return };
    std::fs::write(site.path("resolv.conf"), format!("nameserver {server}\noptions timeout:2 attempts:2\n")).unwrap();
    let at = |name: &str, host: &str| {
        external(name, 1).flavor(&format!("external: {{url: \"http://{host}:{}\"}}", squid.port))
    };
    let silent: Vec<_> = (0..60).map(|n| format!("silent-{n}")).collect();
    site.apply_each(silent.iter().map(String::as_str), |name| at(name, &format!("{name}.example")));
    let live: Vec<_> = (0..10).map(|n| format!("live-{n}")).collect();
    site.apply_each(live.iter().map(String::as_str), |name| at(name, &format!("{name}.live.test")));
    site.apply_each(["own"], managed);

    let resolv = site.path("resolv.conf");
    let script = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", resolv.display());
    let operator = site.operator().inside(&["unshare", "-m", "sh", "-c", &script, "sh"]).start().await;
    let api = &operator.api;
    let others_ready = async || {
        let proxies = api.proxies().await;
        let others: Vec<_> = proxies.iter().filter(|row| !row["name"].as_str().unwrap().contains("silent")).collect();
        others.len() == 11 && others.iter().all(|row| row["phase"] == "Ready")
    };
    eventually("the others are Ready", async || others_ready().await.then_some(())).await;
    let probes = async || (api.probes("ProxyNameNotResolved").await, api.probes("ok").await);
    let before = probes().await;
    eventually("all go on being probed", async || {
        assert!(others_ready().await, "the others did not stay Ready");
        let now = probes().await;
        (now.0 >= before.0 + 120.0 && now.1 >= before.1 + 44.0).then_some(())
    })
    .await;
    let row = api.proxy("silent-0").await.unwrap();
    assert_eq!(row["lastProbe"]["reason"], "ProxyNameNotResolved", "{row}");
    assert_eq!(operator.terminate().await.code, Some(0));
}
