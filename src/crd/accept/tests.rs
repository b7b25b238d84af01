//! The tables: what is refused with which words, and what comes out of what is accepted.

use std::time::Duration;

use egress_actors::domain::desired::{CloudInit, Flavor, Scheme};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A valid object whose spec is replaced.
fn proxy(spec: Value) -> Proxy {
    let mut proxy = Proxy::new("px-1", serde_json::from_value(spec).expect("the spec has the right shape"));
    proxy.metadata.namespace = Some("crawl".into());
    proxy.metadata.uid = Some("0000-1".into());
    proxy.metadata.generation = Some(4);
    proxy
}

fn managed(extra: Value) -> Value {
    let mut spec = json!({"managed": {"provider": "local"}});
    merge(&mut spec["managed"], extra);
    spec
}

fn external(extra: Value) -> Value {
    let mut spec = json!({"external": {"url": "http://203.0.113.7:3128"}});
    merge(&mut spec, extra);
    spec
}

fn merge(into: &mut Value, extra: Value) {
    for (key, value) in extra.as_object().expect("a map") {
        into[key] = value.clone();
    }
}

fn many(n: usize) -> Value {
    (0..n).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn every_bad_spec_is_refused_with_its_field_and_a_way_out() {
    let check = |extra: Value| external(json!({ "healthCheck": extra }));
    let url = |text: &str| json!({"external": {"url": text}});
    let cases: Vec<(Value, &str)> = vec![
        (json!({}), "spec: neither `managed` nor `external` is given: set exactly one of them"),
        (
            json!({"managed": {"provider": "local"}, "external": {"url": "http://a:1"}}),
            "spec: both `managed` and `external` are given: keep exactly one of them",
        ),
        (
            json!({"managed": {"provider": "Local_1"}}),
            "spec.managed.provider: `Local_1` must match ^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$; give the name of an entry of the providers config",
        ),
        (managed(json!({"port": 0})), "spec.managed.port: 0 given, must be 1 to 65535 (default 3128)"),
        (managed(json!({"port": 65536})), "spec.managed.port: 65536 given, must be 1 to 65535 (default 3128)"),
        (managed(json!({"port": -1})), "spec.managed.port: -1 given, must be 1 to 65535 (default 3128)"),
        (
            managed(json!({"placement": {"zone": ""}})),
            "spec.managed.placement.zone: `` given, must be 1 to 2048 characters without spaces: name one of the provider's, or leave it out",
        ),
        (
            managed(json!({"placement": {"size": "very small"}})),
            "spec.managed.placement.size: `very small` given, must be 1 to 2048 characters without spaces: name one of the provider's, or leave it out",
        ),
        (
            managed(json!({"cloudInit": {}})),
            "spec.managed.cloudInit: neither `inline` nor `secretRef` is given: set one, or leave `cloudInit` out",
        ),
        (
            managed(json!({"cloudInit": {"inline": "a", "secretRef": {"name": "a", "key": "b"}}})),
            "spec.managed.cloudInit: both `inline` and `secretRef` are given: keep exactly one of them",
        ),
        (
            managed(json!({"cloudInit": {"inline": ""}})),
            "spec.managed.cloudInit.inline: empty: give the user data, or leave `cloudInit` out",
        ),
        (
            managed(json!({"cloudInit": {"inline": "x".repeat(65_537)}})),
            "spec.managed.cloudInit.inline: 65537 bytes given, at most 65536 are taken: let the instance fetch the rest",
        ),
        (
            managed(json!({"cloudInit": {"secretRef": {"name": "Squid", "key": "k"}}})),
            "spec.managed.cloudInit.secretRef.name: `Squid` must be lower-case letters, digits, `-` and `.`, start and end with a letter or digit, at most 253 bytes",
        ),
        (
            managed(json!({"cloudInit": {"secretRef": {"name": "squid", "key": "a/b"}}})),
            "spec.managed.cloudInit.secretRef.key: `a/b` given, must be 1 to 253 letters, digits, `-`, `_` and `.`",
        ),
        (
            managed(json!({"credentialsSecretRef": {"name": ""}})),
            "spec.managed.credentialsSecretRef.name: `` must be lower-case letters, digits, `-` and `.`, start and end with a letter or digit, at most 253 bytes",
        ),
        (
            url("socks5://203.0.113.7:1080"),
            "spec.external.url: `socks5://203.0.113.7:1080` given, must begin with http:// or https://",
        ),
        (
            url("203.0.113.7:3128"),
            "spec.external.url: `203.0.113.7:3128` given, is not a URL (relative URL without a base): write it like `http://203.0.113.7:3128`",
        ),
        (
            url("http://user:hunter2@203.0.113.7:3128"),
            "spec.external.url: `http://***@203.0.113.7:3128` given, must not hold user and password: put them into a Secret and name it in credentialsSecretRef",
        ),
        (
            url("http://user:hun/ter2@203.0.113.7:3128"),
            "spec.external.url: `http://***@203.0.113.7:3128` given, is not a URL (invalid port number): write it like `http://203.0.113.7:3128`",
        ),
        (
            url("http://@203.0.113.7:3128"),
            "spec.external.url: `http://***@203.0.113.7:3128` given, must not hold user and password: put them into a Secret and name it in credentialsSecretRef",
        ),
        (
            url("http://203.0.113.7:3128/path"),
            "spec.external.url: `http://203.0.113.7:3128/path` given, must end after the port: a proxy has no path, query or fragment",
        ),
        (
            url("http://203.0.113.7:3128?a=b"),
            "spec.external.url: `http://203.0.113.7:3128?a=b` given, must end after the port: a proxy has no path, query or fragment",
        ),
        (
            url("http://203.0.113.7:0"),
            "spec.external.url: `http://203.0.113.7:0` given, has port 0: give the port where the proxy listens, 1 to 65535",
        ),
        (
            url("http://203.0.113.7:3128\n"),
            "spec.external.url: `http://203.0.113.7:3128\\n` given, has spaces or control characters: remove them",
        ),
        (
            url("http://a\0b:3128"),
            "spec.external.url: `http://a\\u{0}b:3128` given, has spaces or control characters: remove them",
        ),
        (external(json!({"attributes": many(33)})), "spec.attributes: 33 entries given, must be at most 32"),
        (
            external(json!({"attributes": {"ttl": "5"}})),
            "spec.attributes[ttl]: this key is a parameter of the lease API: name the attribute otherwise",
        ),
        (
            external(json!({"attributes": {"-tier": "dc"}})),
            "spec.attributes[-tier]: a key must be 1 to 63 letters, digits, `-`, `_`, `.` and `/`, and start and end with a letter or digit",
        ),
        (
            external(json!({"attributes": {"tier": "x".repeat(64)}})),
            "spec.attributes[tier]: `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx` given, must be at most 63 characters and none of them a control character",
        ),
        (external(json!({"maxLeases": 0})), "spec.maxLeases: 0 given, must be 1 to 10000 (default 1)"),
        (external(json!({"maxLeases": 10001})), "spec.maxLeases: 10001 given, must be 1 to 10000 (default 1)"),
        (
            external(json!({"maxLeases": i64::MAX})),
            "spec.maxLeases: 9223372036854775807 given, must be 1 to 10000 (default 1)",
        ),
        (
            check(json!({"interval": "30"})),
            "spec.healthCheck.interval: `30` given, is not a duration: write it like `30s`, `5m` or `1h30m`",
        ),
        (check(json!({"interval": "999ms"})), "spec.healthCheck.interval: `999ms` given, must be at least 1s"),
        (check(json!({"timeout": "0s"})), "spec.healthCheck.timeout: `0s` given, must be at least 1s"),
        (
            check(json!({"interval": "10s", "timeout": "11s"})),
            "spec.healthCheck.timeout: `11s` given, must be at most `interval` (10s): shorten it, or probe less often",
        ),
        (
            check(json!({"timeout": "31s"})),
            "spec.healthCheck.timeout: `31s` given, must be at most `interval` (30s, its default): shorten it, or probe less often",
        ),
        (
            check(json!({"expectStatus": []})),
            "spec.healthCheck.expectStatus: 0 entries given, must be 1 to 16: list the statuses that count as success",
        ),
        (
            check(json!({"expectStatus": vec![200; 17]})),
            "spec.healthCheck.expectStatus: 17 entries given, must be 1 to 16: list the statuses that count as success",
        ),
        (
            check(json!({"expectStatus": [200, 99]})),
            "spec.healthCheck.expectStatus[1]: 99 given, must be 100 to 599 (default 204)",
        ),
        (
            check(json!({"failureThreshold": 0})),
            "spec.healthCheck.failureThreshold: 0 given, must be 1 to 100 (default 3)",
        ),
        (
            check(json!({"successThreshold": 101})),
            "spec.healthCheck.successThreshold: 101 given, must be 1 to 100 (default 1)",
        ),
        (
            check(json!({"target": "ftp://a/"})),
            "spec.healthCheck.target: `ftp://a/` given, must begin with http:// or https://",
        ),
        (
            check(json!({"target": "https://u:hunter2@a/"})),
            "spec.healthCheck.target: `https://***@a/` given, must not hold user and password: a probe target has to answer without them",
        ),
        (
            check(json!({"target": "https://a:0/"})),
            "spec.healthCheck.target: `https://a:0/` given, has port 0: give one of 1 to 65535",
        ),
        (external(json!({"recreateAfter": "59s"})), "spec.recreateAfter: `59s` given, must be at least 1m"),
        (
            external(json!({"recreateAfter": "soon"})),
            "spec.recreateAfter: `soon` given, is not a duration: write it like `30s`, `5m` or `1h30m`",
        ),
    ];
    for (spec, expected) in cases {
        let rejection = accept(&proxy(spec.clone()), None).expect_err(&format!("{spec} was accepted"));
        assert_eq!(rejection.to_string(), expected, "for {spec}");
    }
}

#[test]
fn immutable_fields_are_refused_against_the_last_accepted_spec() {
    let full = json!({"provider": "local", "placement": {"zone": "a"}, "cloudInit": {"inline": "x"}, "port": 3128});
    let with = |path: &str, value: Value| {
        let mut spec = json!({ "managed": full });
        match value {
            Value::Null => drop(spec["managed"].as_object_mut().unwrap().remove(path)),
            value => spec["managed"][path] = value,
        }
        spec
    };
    let secret_ref = json!({"secretRef": {"name": "s", "key": "k"}});
    for (spec, expected) in [
        (with("provider", json!("other")), "spec.managed.provider: was `local`, now is `other`"),
        (
            with("placement", json!({"zone": "b", "size": "small"})),
            "spec.managed.placement: was zone=`a` image=- size=-, now is zone=`b` image=- size=`small`",
        ),
        (with("placement", Value::Null), "spec.managed.placement: was zone=`a` image=- size=-, now is not set"),
        (with("cloudInit", json!({"inline": "y"})), "spec.managed.cloudInit: is another `inline` text"),
        (with("cloudInit", secret_ref), "spec.managed.cloudInit: was an `inline` text, now is a `secretRef`"),
        (with("cloudInit", Value::Null), "spec.managed.cloudInit: was an `inline` text, now is not set"),
        (with("port", json!(3129)), "spec.managed.port: was 3128, now is 3129"),
        // The rules of the CRD can only compare what is written.
        (with("port", Value::Null), "spec.managed.port: was 3128, now is not set"),
        (external(json!({})), "spec: was `managed`, now is `external`"),
    ] {
        let old: ProxySpec = serde_json::from_value(json!({ "managed": full })).unwrap();
        let rejection = accept(&proxy(spec.clone()), Some(&old)).expect_err(&format!("{spec} was accepted"));
        assert_eq!(
            rejection.to_string(),
            format!("{expected}; immutable: delete and recreate, or annotate crawl.example.com/recreate"),
        );
        // The other way round it is the same field.
        let new = serde_json::from_value(json!({ "managed": full })).unwrap();
        let back = accept(&Proxy { spec: new, ..proxy(external(json!({}))) }, Some(&proxy(spec).spec));
        assert_eq!(back.unwrap_err().field, rejection.field);
    }
}

#[test]
fn everything_else_may_change() {
    let old = proxy(json!({"managed": {"provider": "local"}, "maxLeases": 1})).spec;
    let new = json!({
        "managed": {"provider": "local", "credentialsSecretRef": {"name": "s"}},
        "maxLeases": 2, "attributes": {"a": "b"}, "paused": true, "recreateAfter": "1m", "healthCheck": {"interval": "5s"}
    });
    accept(&proxy(new), Some(&old)).unwrap();
    let old = proxy(external(json!({}))).spec;
    accept(&proxy(json!({"external": {"url": "https://other:8443"}})), Some(&old)).unwrap();
}

#[test]
fn bad_metadata_is_refused() {
    let annotated = |name: &str, value: &str| {
        let mut proxy = proxy(external(json!({})));
        proxy.metadata.annotations = Some(BTreeMap::from([(name.to_owned(), value.to_owned())]));
        proxy
    };
    let mut nameless = proxy(external(json!({})));
    nameless.metadata.name = Some("Px_1".into());
    let mut homeless = proxy(external(json!({})));
    homeless.metadata.namespace = Some("a.b/c".into());
    let mut without_uid = proxy(external(json!({})));
    without_uid.metadata.uid = None;
    for (proxy, expected) in [
        (
            nameless,
            "metadata.name: `Px_1` must be lower-case letters, digits, `-` and `.`, start and end with a letter or digit, at most 253 bytes",
        ),
        (
            homeless,
            "metadata.namespace: `a.b/c` must be lower-case letters, digits and `-`, start and end with a letter or digit, at most 63 bytes",
        ),
        (without_uid, "metadata.uid: `` must be 1 to 64 letters, digits and `-`"),
        (
            annotated(SKIP_CLEANUP, "yes"),
            "metadata.annotations[crawl.example.com/skip-cleanup]: `yes` given, must be \"true\" or \"false\": correct it, or remove the annotation",
        ),
        (
            annotated(DRAIN, ""),
            "metadata.annotations[crawl.example.com/drain]: `` given, must be \"true\" or \"false\": correct it, or remove the annotation",
        ),
        (
            annotated(RECREATE, &"x".repeat(254)),
            "metadata.annotations[crawl.example.com/recreate]: 254 bytes given, must be at most 253: a date will do",
        ),
        (
            annotated(HOST, "../etc"),
            "metadata.annotations[crawl.example.com/host]: `../etc` must match ^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$; the operator writes this annotation: remove it",
        ),
    ] {
        assert_eq!(accept(&proxy, None).expect_err("bad metadata").to_string(), expected);
    }
}

#[test]
fn an_accepted_object_carries_everything() {
    let mut object = proxy(json!({
        "managed": {"provider": "kvm2-home", "placement": {"zone": "beelink"}, "port": 8080,
                    "cloudInit": {"secretRef": {"name": "init", "key": "user-data"}}, "credentialsSecretRef": {"name": "auth"}},
        "attributes": {"tier": "dc"}, "maxLeases": 4, "recreateAfter": "30m", "paused": true,
        "healthCheck": {"target": "https://a/b?c", "expectStatus": [200, 204], "interval": "1m30s", "timeout": "5s",
                        "failureThreshold": 2, "successThreshold": 7}
    }));
    object.metadata.finalizers = Some(vec!["else.example.com/x".into(), FINALIZER.into()]);
    object.metadata.annotations = Some(
        [(SKIP_CLEANUP, "true"), (DRAIN, "true"), (RECREATE, "2026-12-01"), (HOST, "beelink"), ("other", "x")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    );
    let desired = accept(&object, None).unwrap();
    assert_eq!((desired.key.as_str(), desired.uid.as_str(), desired.generation), ("crawl/px-1", "0000-1", 4));
    let Flavor::Managed(managed) = &desired.flavor else { panic!("managed") };
    assert_eq!((managed.provider.as_str(), managed.port), ("kvm2-home", 8080));
    assert_eq!(managed.placement.zone.as_deref(), Some("beelink"));
    assert_eq!(managed.cloud_init, Some(CloudInit::Secret { name: "init".into(), key: "user-data".into() }));
    assert_eq!(&*desired.credentials().unwrap().name, "auth");
    assert_eq!(desired.max_leases, 4);
    assert_eq!(desired.recreate_after, Some(Duration::from_mins(30)));
    assert_eq!((desired.check.interval, desired.check.timeout), (Duration::from_secs(90), Duration::from_secs(5)));
    assert_eq!((desired.check.failure_threshold, desired.check.success_threshold), (2, 7));
    assert_eq!(&*desired.check.expect_status, [200, 204]);
    assert!(desired.paused && desired.finalizer && !desired.deleting);
    assert_eq!(desired.host.as_ref().map(HostName::as_str), Some("beelink"));
    assert!(desired.annotations.skip_cleanup && desired.annotations.drain);
    assert_eq!(desired.annotations.recreate.as_deref(), Some("2026-12-01"));
}

#[test]
fn what_is_left_out_gets_its_default() {
    let desired = accept(&proxy(json!({"managed": {"provider": "p"}})), None).unwrap();
    let Flavor::Managed(managed) = &desired.flavor else { panic!("managed") };
    assert_eq!((managed.port, desired.max_leases), (3128, 1));
    assert_eq!(desired.check, HealthCheck::default());
    // A short interval brings its timeout along.
    let desired = accept(&proxy(external(json!({"healthCheck": {"interval": "3s"}}))), None).unwrap();
    assert_eq!(desired.check.timeout, Duration::from_secs(3));
}

#[test]
fn endpoints_are_read_with_their_default_ports() {
    for (text, scheme, host, port) in [
        ("http://203.0.113.7:3128", Scheme::Http, "203.0.113.7", 3128),
        ("http://proxy.example", Scheme::Http, "proxy.example", 80),
        ("https://Proxy.Example/", Scheme::Https, "proxy.example", 443),
        ("http://[2001:db8::1]:8080", Scheme::Http, "2001:db8::1", 8080),
    ] {
        let desired = accept(&proxy(json!({"external": {"url": text}})), None).unwrap();
        let Flavor::External(external) = desired.flavor else { panic!("external") };
        assert_eq!(
            (external.endpoint.scheme, &*external.endpoint.host, external.endpoint.port),
            (scheme, host, port),
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn no_url_or_text_panics_and_no_password_is_shown(text in "\\PC{0,40}", url in "https?://[ -~]{0,30}") {
        for url in [url.clone(), text.clone(), format!("http://hunter2{text}@a:1")] {
            if let Err(rejection) = accept(&proxy(json!({"external": {"url": url}})), None) {
                prop_assert!(!rejection.message.contains("hunter2"), "{}", rejection);
            }
        }
        let _ = accept(&proxy(external(json!({"attributes": {text: url}}))), None);
    }
}
