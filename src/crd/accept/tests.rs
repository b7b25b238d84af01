//! The tables: what is refused with which words, and what comes out of what is accepted.

use std::time::Duration;

use egress_actors::domain::desired::{CloudInit, Flavor, Scheme};
use proptest::prelude::*;
use serde_json::{Value, json};

use self::table::{external, fixed, free, refused};
use super::*;

mod table;

/// A valid object whose spec is replaced.
fn proxy(spec: Value) -> Proxy {
    let mut proxy = Proxy::new("px-1", serde_json::from_value(spec).expect("the spec has the right shape"));
    proxy.metadata.namespace = Some("crawl".into());
    proxy.metadata.uid = Some("0000-1".into());
    proxy.metadata.generation = Some(4);
    proxy
}

#[test]
fn every_bad_spec_is_refused_with_its_field_and_a_way_out() {
    for (spec, expected) in refused() {
        let rejection = accept(&proxy(spec.clone()), None).expect_err(&format!("{spec} was accepted"));
        assert_eq!(rejection.to_string(), expected, "for {spec}");
    }
}

#[test]
fn immutable_fields_are_refused_against_the_last_accepted_spec() {
    for (old, spec, expected) in fixed() {
        let old: ProxySpec = serde_json::from_value(old).unwrap();
        let rejection = accept(&proxy(spec.clone()), Some(&old)).expect_err(&format!("{spec} was accepted"));
        assert_eq!(
            rejection.to_string(),
            format!(
                "{expected}; immutable: delete and recreate, or annotate crawl.example.com/recreate for a fresh instance of the old spec"
            ),
        );
        // The other way round it is the same field.
        let back = accept(&Proxy { spec: old, ..proxy(external(json!({}))) }, Some(&proxy(spec).spec));
        assert_eq!(back.unwrap_err().field, rejection.field);
    }
}

#[test]
fn everything_else_may_change() {
    for (old, new) in free() {
        accept(&proxy(new), Some(&proxy(old).spec)).unwrap();
    }
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
