use std::slice;

use super::*;

fn allowed(text: &str, port: Option<u16>) -> Opening {
    Opening::destination(AllowedDestination { net: text.parse().expect("a network"), port })
}

fn conf(openings: &[Opening], auth: bool) -> String {
    let auth = auth.then_some(BasicAuth {
        helper: Path::new("/usr/lib/squid/basic_ncsa_auth"),
        passwords: Path::new("/var/lib/egress/process/local/uid-1/passwords"),
    });
    SquidConf {
        about: "crawl/px-1",
        listen: "127.0.0.1:31280".parse().expect("an address"),
        openings,
        auth,
        cache_log: Path::new("/var/lib/egress/process/local/uid-1/cache.log"),
        user: Some("proxy"),
    }
    .render()
}

#[test]
fn the_whole_text_is_as_reviewed() {
    let openings = [
        allowed("10.1.0.0/16", None),
        allowed("127.0.0.1/32", Some(8092)),
        Opening::probe_target(&"https://www.gstatic.com/generate_204".parse().expect("a URL")).expect("a target"),
    ];
    let text = conf(&openings, true);
    // To review a change: EGRESS_TESTS_REWRITE=1, then read the diff.
    if std::env::var_os("EGRESS_TESTS_REWRITE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/providers/squid_conf/golden.conf");
        std::fs::write(path, &text).expect("the source tree can be written");
        return;
    }
    assert_eq!(text, include_str!("golden.conf"));
}

#[test]
fn how_a_configuration_in_use_differs_is_told_by_what_it_means() {
    let (net, port) = (allowed("10.1.0.0/16", None), allowed("127.0.0.1/32", Some(8092)));
    let many: Vec<Opening> = (1..=6).map(|n| allowed(&format!("10.0.0.{n}/32"), None)).collect();
    let both = || conf(&[net.clone(), port.clone()], true);
    let unnamed = conf(slice::from_ref(&net), true).replace("# open to", "#");
    let rows: [(&str, String, String, &[&str]); 8] = [
        ("the same", both(), both(), &[]),
        ("another order", both(), conf(&[port.clone(), net.clone()], true), &[]),
        (
            "narrowed",
            both(),
            conf(slice::from_ref(&port), true),
            &["still reaches 10.1.0.0/16, which is not allowed any more"],
        ),
        (
            "exchanged",
            conf(slice::from_ref(&net), true),
            conf(slice::from_ref(&port), true),
            &["still reaches 10.1.0.0/16,", "does not reach 127.0.0.1:8092, which is allowed now"],
        ),
        ("many", conf(&many, true), conf(&[], true), &["10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 2 more"]),
        ("of a version that named nothing", unnamed, conf(&[], true), &["rules of what it may reach"]),
        ("auth", conf(&[], false), conf(&[], true), &["another way than `auth` says"]),
        ("a setting", both().replace("16 MB", "8 MB"), both(), &["other settings"]),
    ];
    for (name, in_use, wanted, words) in rows {
        let found = differences(&in_use, &wanted);
        assert_eq!(found.len(), words.len(), "{name}: {found:?}");
        assert!(found.iter().zip(words).all(|(way, words)| way.contains(words)), "{name}: {found:?}");
    }
}

#[test]
fn nothing_is_allowed_beyond_the_last_rule() {
    for text in [conf(&[], false), conf(&[], true), conf(&[allowed("0.0.0.0/0", None)], false)] {
        assert!(text.trim_end().ends_with("\nhttp_access deny all"), "{text}");
    }
}

#[test]
fn lines_stay_below_what_squid_reads() {
    let many: Vec<Opening> = (0..200).map(|n| allowed(&format!("10.0.{n}.7/32"), Some(80 + n % 3))).collect();
    assert!(conf(&many, true).lines().all(|line| line.len() < 1024));
}

#[test]
fn a_target_that_squid_could_misread_is_none() {
    let of = |url: &str| Opening::probe_target(&url.parse().expect("a URL"));
    assert_eq!(of("http://Probe.Example./x"), Some(Opening(Way::Name { host: "probe.example".into(), port: 80 })));
    assert_eq!(of("https://127.0.0.1:8443/"), Some(allowed("127.0.0.1/32", Some(8443))));
    assert_eq!(of("http://[::1]:8092/"), Some(allowed("::1/128", Some(8092))));
    assert_eq!(of("mailto:a@b"), None);
    assert_eq!(of("http://a\"b.example/"), None);
}

#[test]
fn an_echo_that_listens_everywhere_is_reached_by_loopback() {
    let of = |address: &str| Opening::echo(address.parse().expect("an address"));
    assert_eq!(of("0.0.0.0:8092"), allowed("127.0.0.1/32", Some(8092)));
    assert_eq!(of("[::]:8092"), allowed("::1/128", Some(8092)));
    assert_eq!(of("127.0.0.1:8092"), allowed("127.0.0.1/32", Some(8092)));
}
