//! What belongs to others, what is not allowed, and an API server that does not answer.

use super::*;
use crate::plane::Options;

#[tokio::test]
async fn foreign_objects_of_our_name_are_conflicts_and_stay_as_they_are() {
    let rig = Rig::new("allowedNamespaces: [crawl]").await;
    for kind in ["ConfigMap", "Secret", "NetworkPolicy"] {
        let spec = rig.spec(&rig.mark());
        let (group, data) = match kind {
            "NetworkPolicy" => ("networking.k8s.io/v1", json!({"spec": {"podSelector": {}}})),
            _ => ("v1", json!({})),
        };
        let mut object = json!({"apiVersion": group, "kind": kind, "metadata": {"name": name(&spec.mark)}});
        object.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let gvk = kube::core::GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let resource = kube::core::ApiResource::from_gvk(&gvk);
        let api = Api::<DynamicObject>::namespaced_with(rig.client.clone(), &rig.namespace, &resource);
        let before = api.create(&PostParams::default(), &object).await.unwrap();

        let error = rig.backend().create(&spec).await.unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{error}");
        assert!(error.detail.contains(kind) && error.detail.contains(&name(&spec.mark)), "{error}");
        assert!(rig.pods().get_opt(&name(&spec.mark)).await.unwrap().is_none(), "nothing starts on it");
        // It is not ours, so nothing of ours is left once the rest is gone: the deletion ends.
        rig.gone(&spec.mark).await;
        assert_eq!(api.get(&name(&spec.mark)).await.unwrap(), before, "{kind}");
    }
}

#[tokio::test]
async fn a_pod_that_somebody_put_another_mark_on_keeps_all_that_it_runs_with() {
    let rig = Rig::new("allowedNamespaces: [crawl]").await;
    let spec = rig.spec(&rig.mark());
    rig.made(&spec).await;
    let all = rig.kinds(&spec.mark).await;
    assert_eq!(all, ["Pod", "ConfigMap", "Secret", "NetworkPolicy"]);
    let theirs = json!({"metadata": {"annotations": {"crawl.example.com/owner-operator": "somebody"}}});
    rig.pods().patch(&name(&spec.mark), &PatchParams::default(), &Patch::Merge(&theirs)).await.unwrap();
    let backend = rig.backend();
    for entry in [None, Some(&spec.mark.entry)] {
        assert!(backend.list(&spec.mark.operator, entry).await.unwrap().is_empty(), "no half instance: {entry:?}");
    }
    let error = backend.delete(&spec.mark).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{error}");
    assert_eq!(rig.kinds(&spec.mark).await, all);
}

#[tokio::test]
async fn a_pod_without_a_mark_is_a_conflict_and_stays() {
    let rig = Rig::new("auth: none").await;
    let spec = rig.spec(&rig.mark());
    let mut pod = {
        let other = rig.spec(&rig.mark());
        rig.made(&other).await;
        rig.pods().get(&name(&other.mark)).await.unwrap()
    };
    // Our labels and no mark: a label is not ownership.
    pod.metadata.annotations = None;
    pod.metadata.name = Some(name(&spec.mark));
    (pod.metadata.resource_version, pod.metadata.uid, pod.status) = (None, None, None);
    pod.spec.as_mut().unwrap().node_name = None;
    let made = rig.pods().create(&PostParams::default(), &pod).await.unwrap();
    let backend = rig.backend();
    for error in [backend.create(&spec).await.unwrap_err(), backend.delete(&spec.mark).await.unwrap_err()] {
        assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{error}");
    }
    assert!(
        backend
            .list(&spec.mark.operator, Some(&spec.mark.entry))
            .await
            .unwrap()
            .iter()
            .all(|row| row.mark != spec.mark)
    );
    assert_eq!(rig.pods().get(&name(&spec.mark)).await.unwrap().uid(), made.uid());
}

/// What the operator needs in the namespace of its pods.
fn rules() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "delete"]},
        {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get", "list", "create", "update", "delete"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "create", "update", "delete"]}
    ])
}

async fn granted(rig: &Rig, rules: &Value) -> KubernetesBackend {
    rig.plane.service_account(&rig.namespace, "operator").await;
    let role: Role = serde_json::from_value(json!({"metadata": {"name": "operator"}, "rules": rules})).unwrap();
    Api::<Role>::namespaced(rig.client.clone(), &rig.namespace).create(&PostParams::default(), &role).await.unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": rig.namespace}]
    }))
    .unwrap();
    let bindings = Api::<RoleBinding>::namespaced(rig.client.clone(), &rig.namespace);
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let token = rig.plane.token(&rig.namespace, "operator").await;
    rig.backend_of(rig.plane.client_for(&token).await)
}

#[tokio::test]
async fn with_the_documented_rights_and_no_more_everything_works() {
    let rig = Rig::new("allowedNamespaces: [crawl]").await;
    let backend = granted(&rig, &rules()).await;
    eventually("the rights have reached the server", async || backend.check().await.ok()).await;
    let spec = rig.spec(&rig.mark());
    backend.create(&spec).await.unwrap();
    backend.create(&spec).await.unwrap();
    backend.get(&spec.mark).await.unwrap();
    assert_eq!(backend.list(&spec.mark.operator, Some(&spec.mark.entry)).await.unwrap().len(), 1);
    eventually("it is gone", async || {
        backend.delete(&spec.mark).await.unwrap();
        backend.get(&spec.mark).await.err().filter(|error| error.class == Class::NotFound)
    })
    .await;
    assert!(rig.kinds(&spec.mark).await.is_empty());
}

#[tokio::test]
async fn a_missing_right_is_told_by_the_check_and_by_the_call_and_is_no_absence() {
    let rig = Rig::new("").await;
    let mut rules = rules();
    rules[0]["verbs"] = json!(["list", "create"]);
    rules[1]["verbs"] = json!(["get", "list", "create", "update"]);
    let backend = granted(&rig, &rules).await;
    let wanted = "the operator may not get/delete pods, nor delete configmaps, nor delete secrets in namespace";
    eventually("the check tells", async || {
        let error = backend.check().await.unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::Forbidden), "{error}");
        error.detail.starts_with(wanted).then_some(())
    })
    .await;
    let mark = rig.mark();
    for error in [backend.get(&mark).await.unwrap_err(), backend.delete(&mark).await.unwrap_err()] {
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::Forbidden), "{error}");
        assert!(error.detail.contains("cannot get resource \"pods\""), "{error}");
    }
}

#[tokio::test]
async fn a_missing_namespace_and_a_full_quota_are_told_by_the_check() {
    let mut rig = Rig::new("").await;
    rig.backend().check().await.unwrap();
    let quota: k8s_openapi::api::core::v1::ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})).unwrap();
    let quotas = Api::namespaced(rig.client.clone(), &rig.namespace);
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    // Nobody counts here but the test.
    let counted = json!({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}});
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(&counted)).await.unwrap();
    eventually("the quota is seen", async || {
        let error = rig.backend().check().await.err()?;
        ((error.class, error.reason) == (Class::Transient, Reason::QuotaExceeded)).then_some(())
    })
    .await;
    rig.entry.namespace = "nowhere".to_owned();
    let error = rig.backend().check().await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NamespaceNotFound), "{error}");
    let error = rig.backend().create(&rig.spec(&rig.mark())).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NamespaceNotFound), "{error}");
}

#[tokio::test]
async fn what_the_server_refuses_as_invalid_is_permanent_and_told_by_the_check() {
    let rig = Rig::new("resources: {requests: {memory: 1Gi}, limits: {memory: 128Mi}}").await;
    for error in
        [rig.backend().check().await.unwrap_err(), rig.backend().create(&rig.spec(&rig.mark())).await.unwrap_err()]
    {
        assert_eq!((error.class, error.reason), (Class::Permanent, Reason::ConfigInvalid), "{error}");
        assert!(error.detail.contains("memory"), "{error}");
    }
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_frees_its_callers_and_proves_nothing() {
    let plane = Plane::start(Options::default()).await;
    let namespace = plane.namespace("pods").await;
    let cluster = Cluster::of(plane.client().await, None);
    let backend = KubernetesBackend::new(entry(&namespace, "auth: none"), cluster, Vec::new());
    let mark = OwnerMark {
        operator: OperatorId::parse("test/operator").unwrap(),
        entry: ProviderName::parse("pods").unwrap(),
        key: ProxyKey::new("crawl", "px-1").unwrap(),
        uid: Uid::parse("uid-1").unwrap(),
    };
    backend.check().await.unwrap();
    plane.api.freeze();
    let (got, listed) = tokio::join!(backend.get(&mark), backend.list(&mark.operator, Some(&mark.entry)));
    for error in [got.unwrap_err(), listed.unwrap_err()] {
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::Timeout), "{error}");
    }
    plane.api.thaw();
    plane.api.kill();
    let error = backend.get(&mark).await.unwrap_err();
    assert_eq!(error.class, Class::Transient, "{error}");
    assert!(matches!(error.reason, Reason::Unreachable | Reason::Timeout), "{error}");
    plane.start_api().await;
    assert_eq!(backend.get(&mark).await.unwrap_err().class, Class::NotFound);
}
