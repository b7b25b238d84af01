//! Specs and verdicts: read by the tests of `accept`, and played against a real API server by `tests/cluster`, as both
//! must say the same.

use serde_json::{Value, json};

pub(crate) fn managed(extra: Value) -> Value {
    let mut spec = json!({"managed": {"provider": "local"}});
    merge(&mut spec["managed"], extra);
    spec
}

pub(crate) fn external(extra: Value) -> Value {
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

/// Refused, with these words.
pub(crate) fn refused() -> Vec<(Value, &'static str)> {
    let check = |extra: Value| external(json!({ "healthCheck": extra }));
    let url = |text: &str| json!({"external": {"url": text}});
    vec![
        (json!({}), "spec: neither `managed` nor `external` is given: set exactly one of them"),
        (
            json!({"managed": {"provider": "local"}, "external": {"url": "http://a:1"}}),
            "spec: both `managed` and `external` are given: keep exactly one of them",
        ),
        (
            json!({"managed": {"provider": "Local_1"}}),
            "spec.managed.provider: `Local_1` must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`; give the name of an entry of the providers config",
        ),
        (
            json!({"managed": {"provider": "a..b"}}),
            "spec.managed.provider: `a..b` must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`; give the name of an entry of the providers config",
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
        (
            url(&format!("http://{}", "a".repeat(2042))),
            "spec.external.url: `http://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…` given, must be at most 2048 characters",
        ),
        (
            check(json!({"interval": "2562048h"})),
            "spec.healthCheck.interval: `2562048h` given, is not a duration: write it like `30s`, `5m` or `1h30m`",
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
    ]
}

/// An accepted spec, a change of it that is refused, and the words, which [`IMMUTABLE`](super::IMMUTABLE) follows.
pub(crate) fn fixed() -> Vec<(Value, Value, &'static str)> {
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
    [
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
    ]
    .map(|(spec, expected)| (json!({ "managed": full }), spec, expected))
    .into()
}

/// Changes that are accepted.
pub(crate) fn free() -> Vec<(Value, Value)> {
    let new = json!({
        "managed": {"provider": "local", "credentialsSecretRef": {"name": "s"}},
        "maxLeases": 2, "attributes": {"a": "b"}, "paused": true, "recreateAfter": "1m", "healthCheck": {"interval": "5s"}
    });
    vec![
        (json!({"managed": {"provider": "local"}, "maxLeases": 1}), new),
        (external(json!({})), json!({"external": {"url": "https://other:8443"}})),
    ]
}
