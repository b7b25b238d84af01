use std::path::Path;

use super::*;
use crate::config::providers::{Entry, Loaded, parse};

fn parsed(text: &str) -> Result<Loaded, String> {
    parse(Path::new("p.yaml"), text.as_bytes()).map_err(|error| error.to_string())
}

/// An entry with these fields beside name, type and namespace, from line 3 on.
fn entry(fields: &str) -> String {
    format!("providers:\n- {{name: pods, type: kubernetes, namespace: crawl-proxies,\n{fields}}}\n")
}

fn only(text: &str) -> KubernetesEntry {
    match parsed(text).expect("valid").entries.as_slice() {
        [Entry::Kubernetes(entry)] => (**entry).clone(),
        other => panic!("{other:?}"),
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn what_is_left_out_has_a_default_that_fits_128_mebibytes() {
    let read = only(&entry(""));
    assert_eq!((read.name.as_str(), read.namespace.as_str()), ("pods", "crawl-proxies"));
    assert_eq!((read.image.as_str(), read.run_as_user, read.auth), (IMAGE, 65_532, Auth::Generated));
    assert_eq!(read.binary, "/usr/sbin/squid");
    assert_eq!(read.auth_helper, "/usr/lib/squid/basic_ncsa_auth");
    assert_eq!(read.resources.limits, BTreeMap::from([("memory", "128Mi".to_owned())]));
    assert_eq!(read.resources.requests.len(), 2);
    assert_eq!((read.allowed_namespaces, read.image_pull_policy), (None, None));
    assert_eq!(parsed(&entry("")).expect("valid").warnings, Vec::<String>::new());
}

#[test]
fn every_field_is_read_as_written() {
    let read = only(&entry(
        r#"image: "registry.example:5000/squid@sha256:00ff", images: {six: "squid:6.6"}, imagePullPolicy: Always,
        imagePullSecrets: [regcred], binary: /opt/squid, authHelper: /opt/ncsa, runAsUser: 13, auth: none,
        resources: {requests: {cpu: 1, memory: 0.5Gi}, limits: {ephemeral-storage: 64Mi}},
        nodeSelector: {kubernetes.io/arch: amd64}, tolerations: [{key: egress, operator: Exists, effect: NoSchedule}],
        sizes: {big: {resources: {limits: {memory: 1Gi}}, nodeSelector: {pool: big},
          tolerations: [{key: a.example/b, value: c, effect: NoExecute, tolerationSeconds: 60}]}, plain: {}},
        allowDestinations: ["10.0.0.0/8:443"], allowedNamespaces: [crawl, spiders]"#,
    ));
    assert_eq!(read.image, "registry.example:5000/squid@sha256:00ff");
    assert_eq!(read.images, labels(&[("six", "squid:6.6")]));
    assert_eq!(
        (read.image_pull_policy, read.image_pull_secrets),
        (Some(PullPolicy::Always), vec!["regcred".to_owned()])
    );
    assert_eq!((read.binary.as_str(), read.auth_helper.as_str(), read.run_as_user), ("/opt/squid", "/opt/ncsa", 13));
    assert_eq!(read.resources.requests, BTreeMap::from([("cpu", "1".to_owned()), ("memory", "0.5Gi".to_owned())]));
    assert_eq!(read.resources.limits, BTreeMap::from([("ephemeral-storage", "64Mi".to_owned())]));
    assert_eq!(read.node_selector, labels(&[("kubernetes.io/arch", "amd64")]));
    let egress = Toleration {
        key: Some("egress".to_owned()),
        operator: Operator::Exists,
        value: None,
        effect: Some(Effect::NoSchedule),
        toleration_seconds: None,
    };
    assert_eq!(read.tolerations, [egress]);
    let big = &read.sizes["big"];
    assert_eq!(big.node_selector, labels(&[("pool", "big")]));
    assert_eq!((big.tolerations[0].operator, big.tolerations[0].toleration_seconds), (Operator::Equal, Some(60)));
    assert_eq!(read.sizes["plain"], PodSize::default());
    assert_eq!(read.allowed_namespaces, Some(vec!["crawl".to_owned(), "spiders".to_owned()]));
    assert_eq!(read.auth, Auth::None);
}

#[test]
fn each_bad_field_is_refused_with_line_path_and_reason() {
    let fields = "name, type, namespace, image, images, imagePullPolicy, imagePullSecrets, binary, authHelper, runAsUser, resources, nodeSelector, tolerations, sizes, allowDestinations, allowedNamespaces, auth";
    let rows: Vec<(&str, String)> = vec![
        ("ports: 1", format!("providers[0].ports: unknown field `ports`, expected one of {fields}")),
        ("image: \"a b\"", "providers[0].image: `a b` is not an image; write it like registry.example/squid:6.6".into()),
        ("images: {A: b}", "providers[0].images.A: the key `A` must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`".into()),
        ("imagePullPolicy: Sometimes", "providers[0].imagePullPolicy: unknown variant `Sometimes`, expected one of Always, IfNotPresent, Never".into()),
        ("imagePullSecrets: [A]", "providers[0].imagePullSecrets[0]: `A` is not the name of a Secret".into()),
        ("binary: squid", "providers[0].binary: `squid` is not an absolute path without blanks and quotes; write it like /usr/sbin/squid".into()),
        ("authHelper: \"/a b\"", "providers[0].authHelper: `/a b` is not an absolute path without blanks and quotes; write it like /usr/lib/squid/basic_ncsa_auth".into()),
        ("runAsUser: 0", "providers[0].runAsUser: 0 is no user for a pod that must not be root; write 1 to 2147483647".into()),
        ("resources: {limits: {memory: 1 GB}}", "providers[0].resources.limits.memory: `1 GB` is not a quantity; write it like 100m, 0.5, 64Mi or 1Gi".into()),
        ("resources: {limits: {gpu: 1}}", "providers[0].resources.limits.gpu: unknown field `gpu`, expected one of cpu, memory, ephemeral-storage".into()),
        ("nodeSelector: {a/b/c: d}", "providers[0].nodeSelector: `a/b/c: d` is not a label of a node".into()),
        ("tolerations: [{operator: Equal}]", "providers[0].tolerations[0]: without `key` the operator must be Exists".into()),
        ("tolerations: [{key: a, operator: Exists, value: b}]", "providers[0].tolerations[0]: with the operator Exists there is no `value`".into()),
        ("tolerations: [{key: a, tolerationSeconds: 1}]", "providers[0].tolerations[0]: `tolerationSeconds` is for the effect NoExecute only".into()),
        ("sizes: {s: {cpus: 1}}", "providers[0].sizes.s.cpus: unknown field `cpus`, expected one of resources, nodeSelector, tolerations".into()),
        ("sizes: {s: {resources: {requests: {cpu: x}}}}", "providers[0].sizes.s.resources.requests.cpu: `x` is not a quantity; write it like 100m, 0.5, 64Mi or 1Gi".into()),
        ("allowedNamespaces: [Crawl]", "providers[0].allowedNamespaces[0]: `Crawl` is not the name of a namespace: at most 63 lower-case letters, digits and `-`, not at its ends".into()),
        ("auth: basic", "providers[0].auth: `basic` is neither `none` nor `generated`".into()),
        ("allowDestinations: [shop.example]", "providers[0].allowDestinations[0]: `shop.example` is not a destination (names are not looked up); write an address or CIDR, with or without a port: 127.0.0.1, 127.0.0.1:8092, 10.1.0.0/16, fd00::/8, [::1]:80".into()),
    ];
    for (fields, expected) in rows {
        let error = parsed(&entry(fields)).expect_err(fields);
        let told = error.strip_prefix("providers config p.yaml:3:").expect("the third line");
        assert_eq!(told.split_once(": ").expect("a column").1, expected, "{fields}");
    }
    let bad = "providers:\n- {name: pods, type: kubernetes}\n";
    assert_eq!(parsed(bad), Err("providers config p.yaml:2:16: providers[0]: missing field `namespace`".to_owned()));
}

#[test]
fn what_is_risky_is_allowed_with_a_warning() {
    let warned = |fields: &str| parsed(&entry(fields)).expect("valid").warnings;
    let open = "provider `pods`: with auth none and without allowedNamespaces whoever reaches its pods can use them, leased or not";
    assert_eq!(warned("auth: none"), [open]);
    assert_eq!(warned("auth: none, allowedNamespaces: [crawl]"), Vec::<String>::new());
    let wide = "provider `pods`: allowDestinations ::/0 lets every client into the cluster's networks";
    assert_eq!(warned("allowDestinations: [\"::/0\"]"), [wide]);
}

#[test]
fn quantities_are_those_of_kubernetes() {
    for good in ["0", "1", "100m", "0.5", "64Mi", "1.5Gi", "2k", "10E"] {
        assert!(is_quantity(good), "{good}");
    }
    for bad in ["", "m", "-1", "1 Gi", "1GB", "1e3x", ".5", "1.2.3", "Mi64", "1,5"] {
        assert!(!is_quantity(bad), "{bad}");
    }
}
