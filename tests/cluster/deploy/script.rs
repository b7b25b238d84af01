//! `scripts/deploy.sh`, which is `make deploy` and `make undeploy`, on a cluster without nodes.

use std::process::Stdio;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams};
use tokio::process::Command;

use super::{NAME, NAMESPACE, checkout};
use crate::eventually;
use crate::life::Proxies;
use crate::manifest::external;
use crate::plane::{Options, Plane, Said, binaries};

const TOKENS: &str = "egress-proxies-operator-tokens";

async fn deploy(plane: &Plane, verb: &str, environment: &[(&str, &str)]) -> Said {
    let output = Command::new(checkout("scripts/deploy.sh"))
        .arg(verb)
        .env_remove("IMG")
        .env("KUBECTL", binaries::find("kubectl"))
        .env("KUBECONFIG", plane.kubeconfig())
        .env("DEPLOY_WAIT", "no")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Said { ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
}

#[tokio::test]
async fn deploy_makes_the_token_once_tells_when_it_does_not_come_up_and_undeploy_leaves_no_proxy_behind() {
    let plane = Plane::start(Options { controllers: true, ..Options::default() }).await;
    let client = plane.client().await;
    let token = async || {
        let secret = Api::<Secret>::namespaced(client.clone(), NAMESPACE).get(TOKENS).await.unwrap();
        String::from_utf8(secret.data.unwrap()["DISCOVERY_TOKEN"].0.clone()).unwrap()
    };

    let said = deploy(&plane, "up", &[("IMG", "registry.example/egress:v7")]).await;
    assert!(said.ok, "{said:?}");
    assert!(said.out.contains("port-forward"), "it says what to do next: {said:?}");
    let first = token().await;
    assert!(first.len() == 64 && first.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert!(!format!("{said:?}").contains(&first));
    let deployment = Api::<Deployment>::namespaced(client.clone(), NAMESPACE).get(NAME).await.unwrap();
    let image = deployment.spec.unwrap().template.spec.unwrap().containers.remove(0).image;
    assert_eq!(image.as_deref(), Some("registry.example/egress:v7"));
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    eventually("the controllers make the pods", async || {
        let found = pods.list_metadata(&ListParams::default()).await.unwrap().items.len();
        (found == 2).then_some(())
    })
    .await;

    // There are no nodes.
    let said = deploy(&plane, "up", &[("DEPLOY_WAIT", "yes"), ("DEPLOY_TIMEOUT", "2")]).await;
    assert!(!said.ok && said.err.contains("not up after 2 s") && said.err.contains("DEPLOY_WAIT=no"), "{said:?}");
    assert_eq!(token().await, first, "crawlers have it");

    let crawl = plane.namespace("crawl").await;
    let proxies = Proxies::of(&plane, &crawl).await;
    proxies.apply(&external("px-1", 3128).namespace(&crawl)).await;
    let said = deploy(&plane, "down", &[]).await;
    assert!(!said.ok && said.err.contains("PROXIES=keep") && said.err.contains("1 Proxies"), "{said:?}");
    assert_eq!(token().await, first);

    let said = deploy(&plane, "down", &[("PROXIES", "keep")]).await;
    assert!(said.ok, "{said:?}");
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    assert!(deployments.get_opt(NAME).await.unwrap().is_none());
    assert!(proxies.get("px-1").await.is_some());
    assert_eq!(token().await, first);

    let said = deploy(&plane, "down", &[("PROXIES", "delete"), ("DEPLOY_WAIT", "yes"), ("DEPLOY_TIMEOUT", "60")]).await;
    assert!(said.ok, "{said:?}");
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    assert!(definitions.get_opt("proxies.crawl.example.com").await.unwrap().is_none());
    let namespaces = Api::<Namespace>::all(client.clone());
    assert!(namespaces.get_opt(NAMESPACE).await.unwrap().is_none());
    let said = deploy(&plane, "down", &[]).await;
    assert!(said.ok, "twice is once: {said:?}");
    let said = deploy(&plane, "install", &[]).await;
    assert!(said.ok, "{said:?}");
    definitions.get("proxies.crawl.example.com").await.unwrap();
}

#[tokio::test]
async fn what_others_changed_is_told_or_taken_back_and_rights_of_another_variant_go() {
    let plane = Plane::start(Options::default()).await;
    let client = plane.client().await;
    assert!(plane.kubectl(&["create", "namespace", "crawl"]).ok);
    let install = checkout("config/install.yaml").display().to_string();
    let said = plane.kubectl(&["apply", "-f", &install]);
    assert!(said.ok, "{said:?}");
    let said =
        plane.kubectl(&["-n", NAMESPACE, "set", "image", "deployment", NAME, "operator=registry.example/other:v1"]);
    assert!(said.ok, "{said:?}");

    let wide = Api::<ClusterRole>::all(client.clone());
    let wide_bindings = Api::<ClusterRoleBinding>::all(client.clone());
    let narrow = Api::<Role>::namespaced(client.clone(), "crawl");
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), "crawl");
    let name = "egress-proxies-operator-proxies";
    assert!(wide.get_opt(name).await.unwrap().is_some() && narrow.get_opt(name).await.unwrap().is_none());
    // Somebody's own, for the same ServiceAccount and for that of an operator elsewhere.
    for (own, account) in [("egress-squids", NAMESPACE), ("egress-proxies-operator-elsewhere", "elsewhere")] {
        let account = format!("--serviceaccount={account}:{NAME}");
        for kind in ["rolebinding", "clusterrolebinding"] {
            let said = plane.kubectl(&["-n", "crawl", "create", kind, own, "--clusterrole=view", &account]);
            assert!(said.ok, "{said:?}");
        }
    }

    let image = ("IMG", "registry.example/egress:v7");
    let narrowed = [image, ("CONFIG", "config/namespaced"), ("FORCE", "yes")];
    let said = deploy(&plane, "up", &narrowed[..2]).await;
    assert!(!said.ok && said.err.contains("conflict") && said.err.contains("FORCE=yes"), "{said:?}");
    let said = deploy(&plane, "up", &narrowed).await;
    assert!(said.ok && said.out.contains("Rights of another variant: ClusterRole"), "{said:?}");
    let deployment = Api::<Deployment>::namespaced(client.clone(), NAMESPACE).get(NAME).await.unwrap();
    let now = deployment.spec.unwrap().template.spec.unwrap().containers.remove(0).image;
    assert_eq!(now.as_deref(), Some(image.1));
    assert!(wide.get_opt(name).await.unwrap().is_none() && wide_bindings.get_opt(name).await.unwrap().is_none());
    assert!(narrow.get_opt(name).await.unwrap().is_some() && bindings.get_opt(name).await.unwrap().is_some());
    assert!(wide.get_opt(NAME).await.unwrap().is_some(), "what both have stays");

    let said = deploy(&plane, "up", &[image, narrowed[2]]).await;
    assert!(said.ok, "{said:?}");
    assert!(narrow.get_opt(name).await.unwrap().is_none() && bindings.get_opt(name).await.unwrap().is_none());
    assert!(wide.get_opt(name).await.unwrap().is_some());
    let said = deploy(&plane, "down", &[("CONFIG", "config/namespaced")]).await;
    assert!(said.ok, "{said:?}");
    assert!(wide.get_opt(name).await.unwrap().is_none() && wide_bindings.get_opt(name).await.unwrap().is_none());
    for own in ["egress-squids", "egress-proxies-operator-elsewhere"] {
        assert!(bindings.get_opt(own).await.unwrap().is_some(), "{own}");
        assert!(wide_bindings.get_opt(own).await.unwrap().is_some(), "{own}");
    }
}

#[tokio::test]
async fn an_undeploy_that_nobody_could_finish_and_typing_errors_are_told_at_once() {
    let plane = Plane::start(Options::default()).await;
    let crawl = plane.namespace("crawl").await;
    assert!(deploy(&plane, "install", &[]).await.ok);
    let proxies = Proxies::of(&plane, &crawl).await;
    proxies.apply(&external("px-1", 3128).namespace(&crawl)).await;
    let finalizer = r#"{"metadata":{"finalizers":["crawl.example.com/instance"]}}"#;
    assert!(plane.kubectl(&["patch", "px", "px-1", "-n", &crawl, "--type=merge", "-p", finalizer]).ok);
    let said = deploy(&plane, "down", &[("PROXIES", "delete")]).await;
    assert!(!said.ok && said.err.contains("No operator runs") && said.err.contains("skip-cleanup"), "{said:?}");
    assert!(proxies.get("px-1").await.is_some());
    let said = deploy(&plane, "down", &[("PROXIES", "all")]).await;
    assert!(!said.ok && said.err.contains("`delete` or `keep`, not `all`"), "{said:?}");
    let said = deploy(&plane, "up", &[("CONFIG", "config/defualt")]).await;
    assert!(!said.ok && said.err.contains("there is no config/defualt/kustomization.yaml"), "{said:?}");
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_told_with_the_way_out() {
    let nowhere = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(nowhere.path(), "{}").unwrap();
    let output = Command::new(checkout("scripts/deploy.sh"))
        .arg("up")
        .env("KUBECTL", binaries::find("kubectl"))
        .env("KUBECONFIG", nowhere.path())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("KUBECONFIG") && said.contains("kind create cluster"), "{said}");
}
