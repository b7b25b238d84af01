use egress_actors::domain::desired::Placement;
use egress_actors::domain::error::Class;
use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::{OwnerMark, SecretBytes};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::config::providers::{self, Entry};

/// An entry with these fields beside name, type and namespace.
fn entry(fields: &str) -> KubernetesEntry {
    let text = format!("providers: [{{name: pods, type: kubernetes, namespace: crawl-proxies, {fields}}}]");
    match providers::parse(Path::new("p.yaml"), text.as_bytes()).expect("valid").entries.remove(0) {
        Entry::Kubernetes(entry) => *entry,
        other @ (Entry::Process(_) | Entry::Libvirt(_)) => panic!("{other:?}"),
    }
}

fn spec() -> InstanceSpec {
    let mark = OwnerMark {
        operator: OperatorId::parse("op/1").expect("valid"),
        entry: ProviderName::parse("pods").expect("valid"),
        key: ProxyKey::new("crawl", "px-1").expect("valid"),
        uid: Uid::parse("uid-1").expect("valid"),
    };
    InstanceSpec { mark, placement: Placement::default(), user_data: None, port: 3128, credentials: None }
}

fn given() -> Credentials {
    Credentials { username: "ann".into(), password: std::sync::Arc::new(SecretString::from("open sesame")) }
}

fn made(fields: &str, spec: &InstanceSpec) -> Manifest {
    Manifest::of(&entry(fields), &[], Some("egress-system"), spec).expect("a manifest")
}

fn value<T: serde::Serialize>(of: &T) -> Value {
    serde_json::to_value(of).expect("an object")
}

#[test]
fn the_objects_are_as_reviewed() {
    let manifest = made("allowedNamespaces: [crawl]", &spec());
    let text = serde_json::to_string_pretty(&json!([
        value(&manifest.pod),
        value(&manifest.network_policy),
        value(&manifest.config_map)["metadata"],
    ]))
    .expect("JSON");
    // To review a change: EGRESS_TESTS_REWRITE=1, then read the diff.
    if std::env::var_os("EGRESS_TESTS_REWRITE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/providers/kubernetes/manifest/golden.json");
        std::fs::write(path, text + "\n").expect("the source tree can be written");
        return;
    }
    assert_eq!(text, include_str!("golden.json").trim_end());
}

#[test]
fn all_objects_of_an_instance_have_one_name_and_the_mark() {
    let manifest = made("allowedNamespaces: []", &spec());
    let secret = manifest.secret(&given()).expect("a secret");
    let policy = manifest.network_policy.as_ref().expect("a policy");
    for meta in [&manifest.pod.metadata, &manifest.config_map.metadata, &secret.metadata, &policy.metadata] {
        assert_eq!(meta.name.as_ref(), Some(&manifest.name));
        assert_eq!(mark::ours(meta, &spec().mark), Ok(()));
        assert_eq!(meta.owner_references, None);
    }
    // Nobody is named, and the operator is let in all the same.
    let from = value(policy)["spec"]["ingress"][0]["from"].clone();
    assert_eq!(from[0]["namespaceSelector"]["matchExpressions"][0]["values"], json!(["egress-system"]));
    let alone = Manifest::of(&entry("allowedNamespaces: []"), &[], None, &spec()).expect("a manifest");
    assert_eq!(value(&alone.network_policy)["spec"].get("ingress"), None, "nobody comes in");
    assert!(made("", &spec()).network_policy.is_none());
}

#[test]
fn a_size_replaces_resources_and_adds_the_rest() {
    let fields = "nodeSelector: {pool: a, arch: arm}, tolerations: [{key: x, operator: Exists}], \
        sizes: {big: {resources: {limits: {memory: 1Gi}}, nodeSelector: {pool: b}, tolerations: [{key: y, value: z}]}, same: {}}";
    let sized = |size: Option<&str>| {
        let placement = Placement { size: size.map(Into::into), ..Placement::default() };
        value(&made(fields, &InstanceSpec { placement, ..spec() }).pod)["spec"].clone()
    };
    let plain = sized(None);
    assert_eq!(plain["nodeSelector"], json!({"pool": "a", "arch": "arm"}));
    assert_eq!(plain["containers"][0]["resources"]["limits"], json!({"memory": "128Mi"}));
    assert_eq!(sized(Some("same")), plain);
    let big = sized(Some("big"));
    assert_eq!(big["nodeSelector"], json!({"pool": "b", "arch": "arm"}));
    assert_eq!(big["containers"][0]["resources"], json!({"limits": {"memory": "1Gi"}}));
    let tolerations = json!([{"key": "x", "operator": "Exists"}, {"key": "y", "operator": "Equal", "value": "z"}]);
    assert_eq!(big["tolerations"], tolerations);
}

#[test]
fn images_are_chosen_by_key_only() {
    let fields = "image: squid:5, images: {six: squid:6}, imagePullPolicy: Never, imagePullSecrets: [r]";
    let of = |image: Option<&str>| {
        let placement = Placement { image: image.map(Into::into), ..Placement::default() };
        value(&made(fields, &InstanceSpec { placement, ..spec() }).pod)["spec"].clone()
    };
    assert_eq!(of(None)["containers"][0]["image"], "squid:5");
    assert_eq!(of(Some("six"))["containers"][0]["image"], "squid:6");
    assert_eq!(of(None)["containers"][0]["imagePullPolicy"], "Never");
    assert_eq!(of(None)["imagePullSecrets"], json!([{"name": "r"}]));
}

#[test]
fn what_cannot_be_made_is_told_with_the_field_and_what_there_is() {
    let refused = |fields: &str, spec: InstanceSpec| {
        let error = Manifest::of(&entry(fields), &[], None, &spec).expect_err("a refusal");
        assert_eq!(error.class, Class::Permanent);
        (error.reason, error.detail)
    };
    let size =
        |key: &str| InstanceSpec { placement: Placement { size: Some(key.into()), ..Placement::default() }, ..spec() };
    let image = InstanceSpec { placement: Placement { image: Some("x".into()), ..Placement::default() }, ..spec() };
    let rows = [
        (
            refused("", size("xl")),
            Reason::SpecInvalid,
            "placement.size `xl` is not in `sizes` of provider `pods`; it has none",
        ),
        (refused("sizes: {a: {}, b: {}}", size("xl")), Reason::SpecInvalid, "it has `a`, `b`"),
        (refused("", image), Reason::SpecInvalid, "placement.image `x` is not in `images`"),
        (
            refused("", InstanceSpec { user_data: Some(SecretBytes(b"x".to_vec().into())), ..spec() }),
            Reason::CloudInitInvalid,
            "remove it",
        ),
    ];
    for ((reason, detail), wanted, part) in rows {
        assert!(reason == wanted && detail.contains(part), "{reason}: {detail}");
    }
}

#[test]
fn a_low_port_is_opened_to_a_user_that_is_not_root() {
    let low = value(&made("", &InstanceSpec { port: 80, ..spec() }).pod);
    let sysctls = json!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "80"}]);
    assert_eq!(low["spec"]["securityContext"]["sysctls"], sysctls);
    assert_eq!(low["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"], 80);
    assert_eq!(value(&made("", &spec()).pod)["spec"]["securityContext"].get("sysctls"), None);
}

#[test]
fn the_configuration_asks_for_what_the_secret_has() {
    let with = InstanceSpec { credentials: Some(given()), ..spec() };
    let rows =
        [("", &spec(), Asked::Generated), ("auth: none", &spec(), Asked::Nothing), ("auth: none", &with, Asked::Given)];
    for (fields, spec, asked) in rows {
        let manifest = made(fields, spec);
        let conf = &manifest.config_map.data.as_ref().expect("data")["squid.conf"];
        assert!(conf.contains("\nhttp_port 3128\n") && conf.contains("cache_mem 16 MB"), "{conf}");
        assert_eq!(
            conf.contains("/usr/lib/squid/basic_ncsa_auth /etc/egress-proxy-auth/passwords"),
            asked != Asked::Nothing
        );
        let volumes = value(&manifest.pod)["spec"]["volumes"].to_string();
        assert_eq!(volumes.contains("secretName"), asked != Asked::Nothing);
        assert_eq!((manifest.asked, Asked::of(&manifest.pod)), (asked, asked));
    }
}

#[test]
fn a_password_is_kept_only_where_we_made_it_and_shows_nowhere_else() {
    let generated = made("", &spec());
    let secret = generated.secret(&given()).expect("a secret");
    assert_eq!(super::generated(&secret), Some(given()));
    let own = made("", &InstanceSpec { credentials: Some(given()), ..spec() });
    let hashed = own.secret(&given()).expect("a secret");
    assert_eq!(hashed.data.as_ref().expect("data").keys().collect::<Vec<_>>(), ["passwords"]);
    assert_eq!(super::generated(&hashed), None);
    for text in [value(&own.pod), value(&own.config_map), value(&generated.pod)] {
        assert!(!text.to_string().contains("sesame"));
    }
    let mut damaged = secret.clone();
    damaged.data.as_mut().expect("data").remove("password");
    assert_eq!(super::generated(&damaged), None);
}

#[test]
fn a_pod_that_runs_with_an_older_configuration_is_told_in_which_way() {
    let open = || [Opening::destination("10.0.0.1".parse().expect("a destination"))];
    let differs =
        |pod: &core::Pod, fields: &str, openings: &[Opening]| Current::of(&entry(fields), openings).differs(pod);
    let guarded = made("", &InstanceSpec { port: 8080, ..spec() }).pod;
    assert_eq!(differs(&guarded, "", &[]), None, "name and port are the Proxy's");
    assert!(differs(&guarded, "", &open()).expect("words").contains("`allowDestinations`"));
    assert!(differs(&guarded, "auth: none", &[]).expect("words").contains("`auth`"));
    let own = made("", &InstanceSpec { credentials: Some(given()), ..spec() }).pod;
    assert_eq!(differs(&own, "auth: none", &[]), None, "the Proxy says so");
    let plain = made("auth: none", &spec()).pod;
    assert_eq!(differs(&plain, "auth: none", &[]), None);
    assert!(differs(&plain, "", &[]).is_some());
    let mut unknown = plain;
    unknown.metadata.annotations.as_mut().expect("notes").remove(CONFIG);
    assert_eq!(differs(&unknown, "auth: none", &open()), None, "what cannot be compared is not told");
}
