//! The shipped samples on a real distribution: their cloud-init makes a Squid in a Debian of which only the lab's part is ours.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{domains, volumes};
use crate::kit::operator::{Site, through_as};
use crate::kit::{Flavor, Image, Lab, Server, entry, eventually, image};

/// A guest takes a minute on an idle machine of two cores, and several on one that builds.
const AMPLE: Duration = Duration::from_mins(10);

/// How one sample becomes what the lab can run.
struct Sample {
    file: &'static str,
    flavor: Flavor,
    /// The entry that it names.
    provider: &'static str,
    /// Who may use its Squid.
    user: Option<&'static str>,
}

#[test]
#[ignore = "a minute or more; run by `make lab-long`"]
fn the_sample_of_kvm_becomes_a_debian_with_a_squid_that_asks_for_its_password() {
    lives(&Sample {
        file: "proxy-kvm.yaml",
        flavor: Flavor::Kvm,
        provider: "kvm-shared",
        user: Some("crawler:change-me"),
    });
}

#[test]
#[ignore = "a minute or more; run by `make lab-long`"]
fn the_sample_of_kvm2_becomes_a_debian_with_a_squid_for_its_networks() {
    lives(&Sample { file: "proxy-kvm2.yaml", flavor: Flavor::Kvm2, provider: "kvm2-home", user: None });
}

fn lives(sample: &Sample) {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    // Its key in the samples.
    let debian = Image { key: "debian-13", ..image("debian") };
    let files = Server::with(&[&debian]);
    let config = entry(sample.provider, sample.flavor, &[host], &[&debian], &files.url());
    let site = Site::new(&config.replace("memory: 256Mi, disk: 2Gi", "memory: 1Gi, disk: 4Gi"));
    let operator = site.start(host);
    let begun = Instant::now();
    site.place("sample", &opened(sample.file, &host.outside));
    let proxies = || operator.get("/v1/proxies").and_then(|body| Some(body["proxies"].as_array()?.clone()));
    let ready = eventually(AMPLE, "the sample's Proxy is Ready", || {
        proxies()?.into_iter().find(|proxy| proxy["phase"] == "Ready")
    });
    println!("{} is Ready after {:?}: {ready}", sample.file, begun.elapsed());

    let (address, port) = operator.lease_of(&json!({}));
    let asked = |user, to: &str| through_as((&address, port), user, &format!("{to}:{}", site.echo), "/echo");
    let (status, answer) = asked(sample.user, &host.outside).expect("an answer through the leased machine");
    assert_eq!(status, 200, "{answer}");
    assert!(answer.contains(&format!("x-egress-address: {address}")), "it left from another address: {answer}");
    let refused = asked(sample.user, "127.0.0.1").map(|(status, _)| status);
    assert_eq!(refused, Some(403), "the guest's own loopback");
    if sample.user.is_some() {
        assert_eq!(asked(None, &host.outside).map(|(status, _)| status), Some(407), "without a password");
    }

    site.remove("sample");
    eventually(AMPLE, "the Proxy goes", || operator.is_empty().then_some(()));
    println!("gone after {:?}", begun.elapsed());
    assert_eq!(domains(host), [""; 0]);
    let left = volumes(host);
    assert!(left.len() == 2 && left.iter().all(|file| file.starts_with("base-")), "{left:?}");
}

/// The sample, but that its Squid may reach the operator's echo: it lies in a private network, as all of the lab does.
fn opened(file: &str, target: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let line =
        text.lines().find(|line| line.trim() == "http_access deny refused").expect("where private ones are refused");
    let indent = &line[..line.len() - line.trim_start().len()];
    let opening = format!("{indent}acl echo dst {target}\n{indent}http_access allow echo\n{line}\n");
    text.replace(&format!("{line}\n"), &opening)
}
