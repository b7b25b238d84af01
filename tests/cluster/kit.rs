//! The kit itself: a plane comes up, can be broken and recovers, and leaves nothing behind.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::eventually;
use crate::plane::{Options, Part, Plane};

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "b"}})).unwrap()
}

/// Whether a read as admin is answered within a moment.
async fn answers(plane: &Plane) -> bool {
    let maps = Api::<ConfigMap>::namespaced(plane.client().await, "default");
    let params = ListParams::default();
    tokio::time::timeout(Duration::from_secs(2), maps.list_metadata(&params)).await.is_ok_and(|answer| answer.is_ok())
}

#[tokio::test]
async fn a_service_account_has_a_token_and_only_its_own_rights() {
    let plane = Plane::shared().await;
    let namespace = plane.namespace("kit").await;
    assert_ne!(namespace, plane.namespace("kit").await);
    plane.service_account(&namespace, "reader").await;
    let token = plane.token(&namespace, "reader").await;

    let theirs = Api::<ConfigMap>::namespaced(plane.client_for(&token).await, &namespace);
    let refused = theirs.create(&PostParams::default(), &config_map("theirs")).await.unwrap_err();
    assert!(refused.to_string().contains(&format!("system:serviceaccount:{namespace}:reader")), "{refused}");
    let ours = Api::<ConfigMap>::namespaced(plane.client().await, &namespace);
    ours.create(&PostParams::default(), &config_map("ours")).await.unwrap();

    let audited = plane.audited();
    let writes: Vec<_> = audited
        .iter()
        .filter(|line| line.is_complete() && line.is_write() && line.object_ref.namespace == namespace)
        .filter(|line| line.object_ref.resource == "configmaps")
        .map(|line| (line.user.username.as_str(), line.verb.as_str(), line.response_status.as_ref().unwrap().code))
        .collect();
    let reader = format!("system:serviceaccount:{namespace}:reader");
    assert_eq!(writes, [(reader.as_str(), "create", 403), ("admin", "create", 201)]);
}

#[tokio::test]
async fn kubectl_speaks_to_the_plane() {
    let plane = Plane::shared().await;
    let said = plane.kubectl(&["version", "-o", "json"]);
    assert!(said.ok, "{said:?}");
    let version: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(version["serverVersion"]["minor"], version["clientVersion"]["minor"], "{version}");
}

#[tokio::test]
async fn a_plane_can_be_frozen_stopped_and_started_again_with_its_data() {
    let plane = Plane::start(Options::default()).await;
    let maps = Api::<ConfigMap>::namespaced(plane.client().await, "default");
    maps.create(&PostParams::default(), &config_map("kept")).await.unwrap();

    for part in [&plane.api, &plane.etcd] {
        part.freeze();
        assert!(part.is_running());
        assert!(!answers(&plane).await, "{} is frozen and yet there is an answer", part.name());
        part.thaw();
        eventually("thawed", async || (answers(&plane).await).then_some(())).await;
    }
    for end in [Part::stop, Part::kill] {
        end(&plane.api);
        end(&plane.etcd);
        assert!(!plane.is_ready().await);
        plane.start_etcd().await;
        plane.start_api().await;
        maps.get("kept").await.unwrap();
    }
}

#[tokio::test]
async fn controllers_remove_a_namespace() {
    let plane = Plane::start(Options { controllers: true, ..Options::default() }).await;
    let namespace = plane.namespace("gone").await;
    let all = Api::<Namespace>::all(plane.client().await);
    all.delete(&namespace, &DeleteParams::default()).await.unwrap();
    eventually("the namespace is gone", async || (all.get_opt(&namespace).await.unwrap().is_none()).then_some(()))
        .await;
}

/// Not a test: what the next one runs in a process of its own.
#[tokio::test]
#[ignore = "ends its process"]
async fn a_process_that_aborts_with_a_plane() {
    let plane = Plane::shared().await;
    println!("\nleft {} {} {}", plane.etcd.pid().unwrap(), plane.api.pid().unwrap(), plane.directory().display());
    plane.etcd.freeze();
    std::process::abort();
}

#[tokio::test]
async fn nothing_outlives_a_test_process_that_aborts() {
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "kit::a_process_that_aborts_with_a_plane"])
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    let left = text.lines().find_map(|line| line.strip_prefix("left ")).unwrap_or_else(|| panic!("{output:?}"));
    let left: Vec<&str> = left.split(' ').collect();
    for pid in &left[..2] {
        eventually("the process is gone", async || (!Path::new("/proc").join(pid).exists()).then_some(())).await;
    }
    eventually("the directory is gone", async || (!Path::new(left[2]).exists()).then_some(())).await;
}
