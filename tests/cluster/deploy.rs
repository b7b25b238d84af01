//! What is shipped to put the operator into a cluster: `config/`, `config/install.yaml`, `make deploy`.
//!
//! `rights` runs the real binary under the shipped RBAC, `script` runs `scripts/deploy.sh`. Everything is rendered by the
//! real kubectl and taken by a real API server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use egress_actors::names;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::plane::{Options, Plane, Said, binaries};

mod rights;
mod script;

/// The namespace and the name of everything that is the operator's own.
const NAMESPACE: &str = "egress-system";
const NAME: &str = "egress-proxies-operator";

/// A file or folder of the checkout.
fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What a kustomization of `config/` comes to, as text.
fn rendered(folder: &Path) -> String {
    let output = Command::new(binaries::find("kubectl"))
        .arg("kustomize")
        .arg(folder)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {}", folder.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `config/default` with components, as an overlay of a user would have them.
fn with_components(names: &[&str]) -> String {
    let overlay = tempfile::Builder::new().prefix(".overlay-").tempdir_in(checkout("config")).unwrap();
    let components: Vec<_> = names.iter().map(|name| format!("../components/{name}")).collect();
    let text = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../default"], "components": components,
    });
    std::fs::write(overlay.path().join("kustomization.yaml"), text.to_string()).unwrap();
    rendered(overlay.path())
}

/// The documents of a stream.
fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind<'a>(documents: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| document["kind"] == kind)
}

/// A pod as the Deployment would make it.
fn pod_of(documents: &[Value], name: &str) -> Pod {
    let deployment = of_kind(documents, "Deployment").next().unwrap();
    let deployment: Deployment = serde_json::from_value(deployment.clone()).unwrap();
    let template = deployment.spec.unwrap().template;
    let mut metadata = template.metadata.unwrap();
    metadata.name = Some(name.to_owned());
    Pod { metadata, spec: template.spec, status: None }
}

/// The samples that name hosts of your own, and are in no kustomization.
fn machines() -> String {
    let read = |name: &str| std::fs::read_to_string(checkout(&format!("config/samples/{name}"))).unwrap();
    ["proxy-kvm.yaml", "proxy-kvm2.yaml", "crawl-pool-kvm2.yaml"].map(read).join("\n---\n")
}

/// Real, not a dry run: later objects need the namespaces. Unknown fields are errors.
fn apply(plane: &Plane, text: &str) -> Said {
    let file = tempfile::NamedTempFile::new_in(plane.directory()).unwrap();
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().display().to_string();
    plane.kubectl(&["apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", &path])
}

#[tokio::test]
async fn every_variant_is_taken_by_the_api_server_and_its_pods_by_the_restricted_standard() {
    let plane = Plane::start(Options::default()).await;
    let pods = Api::<Pod>::namespaced(plane.client().await, NAMESPACE);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let variants = [
        ("config/default", rendered(&checkout("config/default"))),
        // With the namespace `crawl`, which the one after the next needs.
        ("samples", rendered(&checkout("config/samples/cluster"))),
        ("samples of machines", machines()),
        ("config/large", rendered(&checkout("config/large"))),
        ("config/namespaced", rendered(&checkout("config/namespaced"))),
        ("components", with_components(&["large", "kvm-ssh", "tls", "network-policy"])),
        ("config/install.yaml", std::fs::read_to_string(checkout("config/install.yaml")).unwrap()),
    ];
    for (name, text) in &variants {
        let said = apply(&plane, text);
        assert!(said.ok && !said.err.contains("Warning"), "{name}: {said:?}");
        let documents = documents(text);
        if of_kind(&documents, "Deployment").next().is_none() {
            continue;
        }
        pods.create(&dry_run, &pod_of(&documents, "a")).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    // So that a namespace that has lost its label would show.
    let mut pod = pod_of(&documents(&variants[0].1), "b");
    pod.spec.as_mut().unwrap().security_context = None;
    let refused = pods.create(&dry_run, &pod).await.unwrap_err();
    assert!(refused.to_string().contains("violates PodSecurity \"restricted"), "{refused}");
}

#[test]
fn install_yaml_is_what_config_default_says() {
    let there = std::fs::read_to_string(checkout("config/install.yaml")).unwrap();
    let objects: String = there.lines().skip_while(|line| line.starts_with('#')).map(|l| format!("{l}\n")).collect();
    assert!(objects == rendered(&checkout("config/default")), "config/install.yaml is old: run `make manifests`");
}

#[test]
fn the_alerts_and_the_service_monitor_speak_of_what_there_is() {
    let documents = documents(&with_components(&["monitoring"]));
    let rules = of_kind(&documents, "PrometheusRule").next().unwrap();
    let known: Vec<&str> = names::ALL.iter().map(|metric| metric.name).collect();
    let mut told = 0;
    for rule in rules["spec"]["groups"][0]["rules"].as_array().unwrap() {
        let expression = rule["expr"].as_str().unwrap();
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for metric in words.filter(|word| word.starts_with("egress_") || word.starts_with("proxy_operator_")) {
            let base = metric.strip_suffix("_bucket").unwrap_or(metric);
            assert!(known.contains(&base), "{}: there is no metric {metric}", rule["alert"]);
            told += 1;
        }
    }
    assert!(told > 10);
    let monitor = of_kind(&documents, "ServiceMonitor").next().unwrap();
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    let port = &monitor["spec"]["endpoints"][0]["port"];
    let scraped: Vec<_> = of_kind(&documents, "Service")
        .filter(|service| wanted.iter().all(|(label, value)| service["metadata"]["labels"][label] == *value))
        .collect();
    assert_eq!(scraped.len(), 1);
    assert_eq!(
        (&scraped[0]["spec"]["ports"][0]["name"], &scraped[0]["metadata"]["name"]),
        (port, &json!("egress-admin"))
    );
}

#[test]
fn the_parts_of_the_deployment_fit_each_other() {
    let documents = documents(&rendered(&checkout("config/default")));
    let deployment = of_kind(&documents, "Deployment").next().unwrap();
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    for selector in of_kind(&documents, "Service").map(|service| service["spec"]["selector"].as_object().unwrap()) {
        // The role is set by the pod that leads.
        let of_pods = selector.iter().filter(|(label, _)| **label != egress_operator::crd::ROLE_LABEL);
        of_pods.for_each(|(label, value)| assert_eq!(labels[label], *value));
    }
    let discovery = of_kind(&documents, "Service").find(|service| service["metadata"]["name"] == "egress-discovery");
    assert_eq!(discovery.unwrap()["spec"]["selector"][egress_operator::crd::ROLE_LABEL], "leader");
    assert_eq!(labels["app.kubernetes.io/name"], NAME, "a new leader finds the pods of others by this");

    let container = &template["spec"]["containers"][0];
    let name = container["env"].as_array().unwrap().iter().find(|env| env["name"] == "EGRESS_OPERATOR_NAME").unwrap();
    let lease = of_kind(&documents, "Role")
        .flat_map(|role| role["rules"].as_array().unwrap())
        .find(|rule| rule["resources"][0] == "leases" && !rule["resourceNames"].is_null())
        .unwrap();
    assert_eq!(lease["resourceNames"], json!([name["value"]]), "the Lease has the name of the operator");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let grace = template["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace > 45, "the end in order takes up to 45 s");
    assert_eq!(container["resources"]["limits"]["memory"], "128Mi");
}

#[test]
fn the_shipped_providers_config_and_the_samples_are_understood_by_the_operator() {
    use egress_operator::config::providers::{Entry, parse};
    let documents = documents(&rendered(&checkout("config/default")));
    let map = of_kind(&documents, "ConfigMap").next().unwrap();
    let text = map["data"]["providers.yaml"].as_str().unwrap();
    let entries = parse(Path::new("providers.yaml"), text.as_bytes()).unwrap().entries;
    let [Entry::Kubernetes(pods)] = entries.as_slice() else { panic!("{entries:?}") };
    let role = of_kind(&documents, "Role").find(|role| role["metadata"]["name"] == "egress-proxies-operator-pods");
    assert_eq!(role.unwrap()["metadata"]["namespace"], pods.namespace.as_str(), "the rights are where the pods are");
    let samples = self::documents(&rendered(&checkout("config/samples/cluster")));
    for managed in
        of_kind(&samples, "Proxy").map(|proxy| &proxy["spec"]["managed"]).filter(|managed| !managed.is_null())
    {
        assert_eq!(managed["provider"], pods.name.as_str());
    }
}
