//! The CRDs as the API server sees them: what it takes, what it refuses and with which words, what kubectl shows.
//!
//! The table of `crd::accept` is played here too: server and operator must come to the same verdict.

use egress_operator::crd::accept::{IMMUTABLE, accept};
use egress_operator::crd::proxy::Proxy;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use self::table::{external, fixed, free, managed, refused};
use crate::eventually;
use crate::plane::Plane;

#[path = "../../src/crd/accept/tests/table.rs"]
mod table;

/// Proxies of one namespace, as plain JSON: what the types cannot say must be sent too.
struct Proxies {
    api: Api<DynamicObject>,
}

impl Proxies {
    async fn of(plane: &Plane) -> (Self, String) {
        let namespace = plane.namespace("crd").await;
        let resource = ApiResource::erase::<Proxy>(&());
        (Self { api: Api::namespaced_with(plane.client().await, &namespace, &resource) }, namespace)
    }

    /// What is stored, or the words of the refusal. A name is taken as given.
    async fn create(&self, name: &str, spec: &Value) -> Result<DynamicObject, String> {
        let object = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": name}, "spec": spec
        });
        let object = serde_json::from_value(object).unwrap();
        told(self.api.create(&PostParams::default(), &object).await)
    }

    async fn update(&self, mut stored: DynamicObject, spec: &Value) -> Result<DynamicObject, String> {
        stored.data["spec"] = spec.clone();
        let name = stored.metadata.name.clone().unwrap();
        told(self.api.replace(&name, &PostParams::default(), &stored).await)
    }
}

/// A refusal is a 422; anything else is a broken test.
fn told(answer: kube::Result<DynamicObject>) -> Result<DynamicObject, String> {
    match answer {
        Ok(stored) => Ok(stored),
        Err(kube::Error::Api(status)) if status.code == 422 => Err(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

/// The verdict of the operator on what the server stored.
fn parsed(stored: &DynamicObject) -> Result<(), String> {
    let proxy: Proxy = serde_json::from_value(serde_json::to_value(stored).unwrap()).map_err(|e| e.to_string())?;
    accept(&proxy, None).map(drop).map_err(|e| e.to_string())
}

/// What the server says about a field that is not right: one of these.
fn words(field: &str) -> &'static [&'static str] {
    match field {
        "spec" => &["exactly one of managed and external must be set"],
        "spec.managed.provider" => &["provider must be the name of an entry of the providers config"],
        "spec.managed.port" => &["less than or equal to 65535", "greater than or equal to 1"],
        "spec.managed.placement.zone" => &["at least 1 chars long"],
        "spec.managed.placement.size" => &["size must be 1 to 2048 characters without spaces"],
        "spec.managed.cloudInit" => &["exactly one of inline and secretRef must be set"],
        "spec.managed.cloudInit.inline" => {
            &["at least 1 chars long", "may not be more than 65536", "inline must be at most 65536 bytes"]
        }
        "spec.managed.cloudInit.secretRef.name" | "spec.managed.credentialsSecretRef.name" => {
            &["name must be the name of a Secret", "at least 1 chars long"]
        }
        "spec.managed.cloudInit.secretRef.key" => &["key must be 1 to 253 letters"],
        "spec.external.url" => &[
            "url must be like http://203.0.113.7:3128",
            "url must not hold user and password",
            "may not be more than 2048",
        ],
        "spec.attributes" => &[
            "must have at most 32 items",
            "attributes must not have the keys target, ttl",
            "a key of attributes must be 1 to 63 letters",
            "may not be more than 63",
        ],
        "spec.maxLeases" => &["greater than or equal to 1", "less than or equal to 10000"],
        "spec.healthCheck.interval" => &["interval must be a duration of at least 1s", "duration"],
        "spec.healthCheck.timeout" => {
            &["timeout must be a duration of at least 1s", "timeout must be at most interval"]
        }
        "spec.healthCheck.expectStatus" => &["at least 1 items", "at most 16 items", "greater than or equal to 100"],
        "spec.healthCheck.failureThreshold" => &["greater than or equal to 1"],
        "spec.healthCheck.successThreshold" => &["less than or equal to 100"],
        "spec.healthCheck.target" => &["target must be an http or https URL", "target must not hold user and password"],
        "spec.recreateAfter" => &["recreateAfter must be a duration of at least 1m"],
        other => panic!("no words for {other}"),
    }
}

#[tokio::test]
async fn what_the_operator_refuses_the_server_refuses_with_words() {
    let (proxies, _) = Proxies::of(Plane::shared().await).await;
    let cases = refused();
    assert!(cases.len() >= 40, "{}", cases.len());
    let mut wrong = Vec::new();
    for (i, (spec, ours)) in cases.into_iter().enumerate() {
        let field = ours.split([':', '[']).next().unwrap();
        match proxies.create(&format!("bad-{i}"), &spec).await {
            Ok(_) => wrong.push(format!("accepted: {ours}")),
            Err(said) if said.contains("hunter2") => wrong.push(format!("shows a password: {said}")),
            Err(said) if !said.contains(field) || !words(field).iter().any(|words| said.contains(words)) => {
                wrong.push(format!("{ours}\n      but the server: {said}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn more_that_the_server_refuses() {
    let (proxies, _) = Proxies::of(Plane::shared().await).await;
    let check = |extra: Value| external(json!({ "healthCheck": extra }));
    let url = |url: &str| json!({"external": {"url": url}});
    let mut wrong = Vec::new();
    for (i, (spec, words)) in [
        (managed(json!({"port": "3128"})), "must be of type integer"),
        (managed(json!({"port": 3128.5})), "must be of type integer"),
        (json!({"managed": {}}), "spec.managed.provider: Required value"),
        (json!({"managed": {"provider": "p".repeat(64)}}), "may not be more than 63"),
        (managed(json!({"placement": {"image": "a\tb"}})), "image must be 1 to 2048 characters without spaces"),
        (managed(json!({"placement": {"image": "x".repeat(2049)}})), "may not be more than 2048"),
        // Fewer characters than allowed, but more bytes.
        (managed(json!({"cloudInit": {"inline": "é".repeat(40_000)}})), "inline must be at most 65536 bytes"),
        (managed(json!({"credentialsSecretRef": {"name": "a..b"}})), "name must be the name of a Secret"),
        (managed(json!({"credentialsSecretRef": {}})), "credentialsSecretRef.name: Required value"),
        (url("http://203.0.113.7:65536"), "url must be like"),
        (url("http://:3128"), "url must be like"),
        (url("http://203.0.113.7:3128#x"), "url must be like"),
        (url(&format!("http://{}", "a".repeat(2048))), "may not be more than 2048"),
        (external(json!({"attributes": {"a b": "c"}})), "a key of attributes must be"),
        (external(json!({"attributes": {"": "c"}})), "a key of attributes must be"),
        (external(json!({"attributes": {"a".repeat(64): "c"}})), "a key of attributes must be"),
        (external(json!({"attributes": {"a": "b\nc"}})), "a value of attributes must have no control characters"),
        (external(json!({"attributes": {"a": 1}})), "must be of type string"),
        (external(json!({"maxLeases": 1.5})), "must be of type integer"),
        (external(json!({"paused": "yes"})), "must be of type boolean"),
        (check(json!({"interval": "1d"})), "interval must be a duration"),
        (check(json!({"interval": "-5s"})), "interval must be a duration"),
        (check(json!({"interval": "9999999h"})), "spec.healthCheck.interval"),
        (check(json!({"interval": ""})), "interval must be a duration"),
        (check(json!({"interval": "1m", "timeout": "61s"})), "timeout must be at most interval"),
        (check(json!({"target": "https://a/ b"})), "target must be an http or https URL"),
        (check(json!({"target": "https://a/\u{a0}"})), "target must be an http or https URL"),
        (check(json!({"failureThreshold": 101})), "less than or equal to 100"),
        (check(json!({"expectStatus": [600]})), "less than or equal to 599"),
        (external(json!({"recreateAfter": "59999ms"})), "recreateAfter must be a duration of at least 1m"),
    ]
    .into_iter()
    .enumerate()
    {
        match proxies.create(&format!("bad-{i}"), &spec).await {
            Ok(stored) => wrong.push(format!("accepted: {words}, by the operator: {:?}", parsed(&stored))),
            Err(said) if !said.contains(words) => wrong.push(format!("{words}\n      but the server: {said}")),
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn what_the_server_takes_the_operator_takes() {
    let (proxies, _) = Proxies::of(Plane::shared().await).await;
    let check = |extra: Value| external(json!({ "healthCheck": extra }));
    let url = |url: &str| json!({"external": {"url": url}});
    let many = |n: usize| (0..n).map(|i| (format!("k{i}"), json!("v"))).collect::<serde_json::Map<_, _>>();
    let mut wrong = Vec::new();
    for (i, spec) in [
        managed(json!({})),
        managed(json!({
            "placement": {"zone": "beelink", "image": "https://images.example.com/a.qcow2", "size": "small"}, "port": 65535,
            "cloudInit": {"secretRef": {"name": "init", "key": "user-data"}}, "credentialsSecretRef": {"name": "a.b-c"}
        })),
        managed(json!({"placement": {}, "port": 1, "cloudInit": {"inline": "x".repeat(65_536)}})),
        // What is `null` is not there.
        json!({"managed": {"provider": "local", "placement": null, "port": null}, "external": null, "healthCheck": null}),
        json!({"managed": {"provider": "p".repeat(63)}}),
        url("http://203.0.113.7"),
        url("https://proxy.example:8443/"),
        url("https://Proxy-1.Example"),
        url("http://[2001:db8::1]:8080"),
        url("http://203.0.113.7:65535"),
        external(json!({"attributes": many(32)})),
        external(json!({"attributes": {"tier": "dc", "a/b_c.d-e": "", "x": "é".repeat(63), "Region": "Zürich 1"}})),
        external(json!({"maxLeases": 10_000, "paused": true, "recreateAfter": "1m"})),
        external(json!({"recreateAfter": "720h"})),
        check(json!({})),
        check(json!({"interval": "1s"})),
        check(json!({"interval": "1s", "timeout": "1000ms"})),
        check(json!({"interval": "1h30m", "timeout": "1h29m59s999ms"})),
        check(json!({"timeout": "30s"})),
        check(json!({"target": "https://www.gstatic.com/generate_204", "expectStatus": [200, 204, 301]})),
        check(json!({"target": "http://[::1]:8092/echo?a=b#c", "failureThreshold": 100, "successThreshold": 1})),
    ]
    .into_iter()
    .enumerate()
    {
        match proxies.create(&format!("good-{i}"), &spec).await {
            Ok(stored) => {
                if let Err(said) = parsed(&stored) {
                    wrong.push(format!("accepted by the server only: {said}"));
                }
            }
            Err(said) => wrong.push(format!("refused: {said}")),
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn immutable_fields_neither_change_nor_come_nor_go() {
    let (proxies, _) = Proxies::of(Plane::shared().await).await;
    let mut wrong = Vec::new();
    for (i, (old, new, ours)) in fixed().into_iter().enumerate() {
        let field = ours.split(':').next().unwrap();
        for (way, from, to) in [("there", &old, &new), ("back", &new, &old)] {
            let stored = proxies.create(&format!("fixed-{i}-{way}"), from).await.unwrap();
            match proxies.update(stored, to).await {
                Ok(_) => wrong.push(format!("accepted {way}: {ours}")),
                Err(said) if !said.contains(field) || !said.contains(IMMUTABLE) => {
                    wrong.push(format!("{way}: {ours}\n      but the server: {said}"));
                }
                Err(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    for (i, (old, new)) in free().into_iter().enumerate() {
        let stored = proxies.create(&format!("free-{i}"), &old).await.unwrap();
        proxies.update(stored, &new).await.unwrap();
    }
}

#[tokio::test]
async fn the_status_is_a_subresource_with_columns() {
    let plane = Plane::shared().await;
    let (proxies, namespace) = Proxies::of(plane).await;
    let spec = json!({"managed": {"provider": "kvm2-home"}, "attributes": {"tier": "dc"}, "maxLeases": 4});
    proxies.create("px-1", &spec).await.unwrap();
    proxies.create("px-2", &external(json!({}))).await.unwrap();
    let status = json!({"status": {
        "phase": "Unhealthy", "address": "10.0.0.9", "providerID": "kvm2://kvm2-home/beelink/1",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ProxyTimeout", "message": "3 probes failed",
                        "lastTransitionTime": "2026-12-01T00:00:00Z"}]
    }});
    proxies.api.patch_status("px-1", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    // On the object itself it is not looked at.
    let other = json!({"status": {"phase": "Ready"}});
    proxies.api.patch("px-1", &PatchParams::default(), &Patch::Merge(&other)).await.unwrap();

    let rows = |more: &[&str]| {
        let said = plane.kubectl(&[&["get", "px", "-n", &namespace], more].concat());
        assert!(said.ok, "{said:?}");
        said.out.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let narrow = rows(&[]);
    assert_eq!(narrow[0], ["NAME", "PHASE", "PROVIDER", "ADDRESS", "TIER", "LEASES", "AGE"]);
    assert_eq!(narrow[1][..6], ["px-1", "Unhealthy", "kvm2-home", "10.0.0.9", "dc", "4"]);
    // The default is shown, too.
    assert_eq!(narrow[2][0..2], ["px-2", "1"]);
    let wide = rows(&["-o", "wide"]);
    assert_eq!(wide[0][7..], ["REASON", "PROVIDERID"]);
    assert_eq!(wide[1][7..], ["ProxyTimeout", "kvm2://kvm2-home/beelink/1"]);
    for selector in ["spec.managed.provider=kvm2-home", "status.phase=Unhealthy"] {
        let selected = rows(&["--field-selector", selector]);
        assert_eq!((selected.len(), selected[1][0].as_str()), (2, "px-1"), "{selector}");
    }
}

#[tokio::test]
async fn kubectl_refuses_a_mistyped_field() {
    let plane = Plane::shared().await;
    let namespace = plane.namespace("crd").await;
    let file = plane.directory().join("mistyped.json");
    let object = json!({
        "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy", "metadata": {"name": "px"},
        "spec": {"external": {"url": "http://203.0.113.7:3128"}, "maxLease": 4}
    });
    std::fs::write(&file, object.to_string()).unwrap();
    let said = plane.kubectl(&["apply", "-n", &namespace, "-f", &file.display().to_string()]);
    assert!(!said.ok && said.err.contains("unknown field \"spec.maxLease\""), "{said:?}");
}

#[tokio::test]
async fn kubectl_explains_units_and_defaults() {
    let plane = Plane::shared().await;
    for (path, words) in [
        ("px.spec.managed", ["Default: 3128", "1 to 65535", "Immutable", "providers config"]),
        ("px.spec.healthCheck", ["Default: 30s", "at most `interval`", "Default: 204", "--probe-target"]),
        ("px.spec", ["Default: 1.", "At most 32", "at least `1m`", "Exactly one of"]),
        ("px.status", ["Pending, Provisioning, Ready", "type://entry/host/id", "closed list", "generation"]),
        ("ph.status.targets", ["in milliseconds", "every 5 minutes", "name of the host", "latest check succeeded"]),
    ] {
        // The server publishes the descriptions of a new kind a moment after the kind.
        eventually("it is explained", async || (plane.kubectl(&["explain", path]).ok).then_some(())).await;
        let said = plane.kubectl(&["explain", path]);
        // kubectl breaks lines where it likes.
        let text = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in words {
            assert!(text.contains(words), "{path} does not say {words:?}: {}", said.out);
        }
    }
}

#[tokio::test]
async fn the_definitions_are_established_without_a_complaint() {
    let plane = Plane::shared().await;
    let said = plane.kubectl(&["get", "crd", "-o", "json"]);
    let list: Value = serde_json::from_str(&said.out).unwrap();
    let crds = list["items"].as_array().unwrap();
    assert_eq!(crds.len(), 2);
    for crd in crds {
        let conditions = crd["status"]["conditions"].as_array().unwrap();
        let of = |kind: &str| conditions.iter().find(|c| c["type"] == kind).map(|c| c["status"].as_str().unwrap());
        assert_eq!((of("Established"), of("NonStructuralSchema")), (Some("True"), None), "{conditions:?}");
    }
    let said = plane.kubectl(&["get", "egress", "-A", "--request-timeout=10s"]);
    assert!(said.ok, "{said:?}");
}
