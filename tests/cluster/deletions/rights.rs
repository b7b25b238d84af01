//! Deletions of an operator whose rights on the pods were taken away.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};

use super::*;

#[tokio::test]
async fn without_rights_a_deletion_waits_and_says_why_and_goes_on_with_skip_cleanup() {
    let Some(case) = Case::new().await else { return };
    let (operator, kubelet, pods_right) = without_much_right(&case).await;
    take_away(&case, &pods_right).await;
    case.proxies.delete("px").await;
    eventually("it says what is missing", async || {
        let status = serde_json::to_string(&case.proxies.get("px").await?.status?).unwrap();
        status.contains("Forbidden").then_some(())
    })
    .await;
    case.annotate(SKIP, "true").await;
    case.goes_and_tells("CleanupSkipped", &["on host `local`"]).await;
    drop(kubelet);
    ends(operator).await;
}

#[tokio::test]
async fn without_rights_a_deletion_waits_and_leaves_nothing_once_they_are_back() {
    let Some(case) = Case::new().await else { return };
    let (operator, kubelet, pods_right) = without_much_right(&case).await;
    take_away(&case, &pods_right).await;
    case.proxies.delete("px").await;
    eventually("it says what is missing", async || {
        let status = serde_json::to_string(&case.proxies.get("px").await?.status?).unwrap();
        status.contains("Forbidden").then_some(())
    })
    .await;
    ends(operator).await;
    bind(&case, &case.pods_in, &pods_right).await;
    let operator = case.operator().await;
    case.goes_without_a_trace().await;
    drop(kubelet);
    ends(operator).await;
}

/// A Ready Proxy of an operator whose rights over pods are one binding, of this name.
async fn without_much_right(case: &Case) -> (Operator, Kubelet, String) {
    let account = format!("op-{}", case.namespace);
    case.plane.service_account(&case.namespace, &account).await;
    let role = json!({"metadata": {"name": account}, "rules": [
        {"apiGroups": ["crawl.example.com"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]},
    ]});
    let roles = Api::<ClusterRole>::all(case.client.clone());
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    let binding = json!({
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": case.namespace}],
    });
    let bindings = Api::<ClusterRoleBinding>::all(case.client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    bind(case, &case.namespace, &account).await;
    bind(case, &case.pods_in, &account).await;

    let token = case.plane.token(&case.namespace, &account).await;
    let (kubelet, operator) = (case.kubelet(), case.launch(&case.plane.kubeconfig_for(&token)).start().await);
    case.apply().await;
    case.proxies.becomes("px", "Ready").await;
    (operator, kubelet, account)
}

/// Everything in one namespace.
async fn bind(case: &Case, namespace: &str, account: &str) {
    let binding = json!({
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": case.namespace}],
    });
    let bindings = Api::<RoleBinding>::namespaced(case.client.clone(), namespace);
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}

async fn take_away(case: &Case, binding: &str) {
    let bindings = Api::<RoleBinding>::namespaced(case.client.clone(), &case.pods_in);
    bindings.delete(binding, &DeleteParams::default()).await.unwrap();
    let token = case.plane.token(&case.namespace, binding).await;
    let theirs = Api::<Pod>::namespaced(case.plane.client_for(&token).await, &case.pods_in);
    eventually("the right is gone", async || theirs.list(&ListParams::default()).await.is_err().then_some(())).await;
}
