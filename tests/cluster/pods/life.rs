//! What is made, what it tells while it lives, and that nothing stays.

use super::*;

#[tokio::test]
async fn every_variant_of_a_pod_is_taken_under_the_restricted_standard() {
    let rig = Rig::new(
        r#"image: "squid:5", images: {six: "squid:6"}, imagePullPolicy: IfNotPresent, imagePullSecrets: [r], runAsUser: 13,
        nodeSelector: {kubernetes.io/arch: amd64}, allowedNamespaces: [crawl], allowDestinations: ["10.0.0.0/8:443"],
        tolerations: [{operator: Exists}, {key: a, value: b, effect: NoExecute, tolerationSeconds: 60}],
        sizes: {big: {resources: {requests: {cpu: "1", memory: 1Gi, ephemeral-storage: 64Mi}, limits: {memory: 1Gi}},
          nodeSelector: {pool: big}, tolerations: [{key: c, operator: Exists, effect: NoSchedule}]}}"#,
    )
    .await;
    let credentials =
        Credentials { username: "ann".into(), password: Arc::new(secrecy::SecretString::from("open sesame")) };
    let placed = |size: Option<&str>, image: Option<&str>| Placement {
        size: size.map(Into::into),
        image: image.map(Into::into),
        zone: None,
    };
    let rows = [
        (placed(None, None), 3128, None),
        (placed(Some("big"), Some("six")), 3128, None),
        (placed(None, None), 80, None),
        (placed(None, None), 3128, Some(credentials)),
    ];
    for (placement, port, credentials) in rows {
        let spec = InstanceSpec { placement, port, credentials: credentials.clone(), ..rig.spec(&rig.mark()) };
        let instance = rig.made(&spec).await;
        assert_eq!(instance.endpoint.unwrap().port, port);
        assert_eq!(instance.generated.is_some(), credentials.is_none());
        assert_eq!(rig.kinds(&spec.mark).await, ["Pod", "ConfigMap", "Secret", "NetworkPolicy"]);
        rig.gone(&spec.mark).await;
        assert!(rig.kinds(&spec.mark).await.is_empty());
    }
}

#[tokio::test]
async fn a_pod_on_a_node_ends_first_and_what_it_needs_goes_after_it() {
    let rig = Rig::new("allowedNamespaces: [crawl]").await;
    let spec = rig.spec(&rig.mark());
    rig.made(&spec).await;
    hold(&rig, &spec.mark).await;
    let backend = rig.backend();
    backend.delete(&spec.mark).await.unwrap();
    backend.delete(&spec.mark).await.unwrap();
    assert_eq!(backend.get(&spec.mark).await.unwrap().state, InstanceState::Deleting);
    assert_eq!(rig.kinds(&spec.mark).await.len(), 4, "the policy stays as long as the pod");
    let error = backend.create(&spec).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::Deleting), "{error}");
    rig.pods().delete(&name(&spec.mark), &DeleteParams::default().grace_period(0)).await.unwrap();
    let half = backend.get(&spec.mark).await.unwrap();
    assert_eq!((half.state, half.endpoint), (InstanceState::Stopped, None), "so that it is deleted to its end");
    backend.delete(&spec.mark).await.unwrap();
    assert!(rig.kinds(&spec.mark).await.is_empty());
    assert_eq!(backend.get(&spec.mark).await.unwrap_err().class, Class::NotFound);
}

/// The kubelet leaves it alone from now on.
async fn hold(rig: &Rig, mark: &OwnerMark) {
    let patch = json!({"metadata": {"annotations": {"hold": "true"}}});
    rig.pods().patch(&name(mark), &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_a_pod_is_told_by_get_and_list_in_the_same_words() {
    let rig = Rig::new("auth: none").await;
    let spec = rig.spec(&rig.mark());
    rig.made(&spec).await;
    hold(&rig, &spec.mark).await;
    let backend = rig.backend();
    let waiting = |reason: &str| container(false, &json!({"waiting": {"reason": reason, "message": "m"}}), &json!({}));
    let ended = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "FATAL: Bungled squid.conf"}});
    let crashing = container(false, &json!({"waiting": {"reason": "CrashLoopBackOff"}}), &ended);
    let rows = [
        (
            json!({"containerStatuses": [waiting("ErrImagePull")]}),
            InstanceState::Starting,
            Reason::ImagePullFailed,
            "m",
        ),
        (json!({"containerStatuses": [crashing]}), InstanceState::Starting, Reason::CrashLooping, "Bungled"),
        (
            json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
            InstanceState::Stopped,
            Reason::Evicted,
            "low on memory",
        ),
    ];
    for (status, state, reason, words) in rows {
        set_status(&rig.pods(), &name(&spec.mark), &status).await;
        let got = backend.get(&spec.mark).await.unwrap();
        let complaint = got.complaint.clone().unwrap();
        assert_eq!((got.state, complaint.reason), (state, reason), "{got:?}");
        assert!(complaint.detail.contains(words), "{got:?}");
        let list = backend.list(&spec.mark.operator, Some(&spec.mark.entry)).await.unwrap();
        assert_eq!(list.into_iter().map(|row| row.instance).collect::<Vec<_>>(), [got]);
    }
}

#[tokio::test]
async fn a_pod_that_was_replaced_is_read_as_it_is_now() {
    let rig = Rig::new("").await;
    let spec = rig.spec(&rig.mark());
    let first = rig.made(&spec).await;
    rig.pods().delete(&name(&spec.mark), &DeleteParams::default()).await.unwrap();
    rig.until(&spec.mark, "only a half is left", |half| half.state == InstanceState::Stopped).await;
    let second = rig.made(&spec).await;
    assert_ne!(first.provider_id, second.provider_id);
    assert_ne!(first.endpoint, second.endpoint);
    assert_eq!(first.generated, second.generated, "the Secret was there all the time");
}

#[tokio::test]
async fn a_configuration_of_before_is_put_right_before_the_pod_starts() {
    let mut rig = Rig::new("auth: none").await;
    let spec = rig.spec(&rig.mark());
    rig.made(&spec).await;
    rig.pods().delete(&name(&spec.mark), &DeleteParams::default()).await.unwrap();
    rig.until(&spec.mark, "only a half is left", |half| half.state == InstanceState::Stopped).await;
    rig.entry = entry(&rig.namespace, "auth: none, allowDestinations: [10.9.8.7]");
    rig.made(&spec).await;
    let conf = rig.config_maps().get(&name(&spec.mark)).await.unwrap().data.unwrap()["squid.conf"].clone();
    assert!(conf.contains("10.9.8.7"), "{conf}");
}

#[tokio::test]
async fn a_changed_secret_of_the_proxy_reaches_the_pod_that_runs() {
    let rig = Rig::new("").await;
    let with = |password: &str| {
        let password = Arc::new(secrecy::SecretString::from(password.to_owned()));
        Some(Credentials { username: "ann".into(), password })
    };
    let spec = InstanceSpec { credentials: with("one"), ..rig.spec(&rig.mark()) };
    rig.made(&spec).await;
    let stored = async || rig.secrets().get(&name(&spec.mark)).await.unwrap().data.unwrap();
    let first = stored().await;
    assert_eq!(first.keys().collect::<Vec<_>>(), ["passwords"], "a hash, and nothing that could be read back");
    rig.backend().create(&InstanceSpec { credentials: with("two"), ..spec.clone() }).await.unwrap();
    assert_ne!(stored().await, first);
}

#[tokio::test]
async fn a_list_of_many_is_complete_and_only_of_this_operator_and_entry() {
    let rig = Rig::new("auth: none").await;
    let mut config_maps = Vec::new();
    // Halves are rows too, and cheap: more than a page of them.
    let sample = rig.spec(&rig.mark());
    rig.made(&sample).await;
    let template = rig.config_maps().get(&name(&sample.mark)).await.unwrap();
    for _ in 0..620 {
        let mark = rig.mark();
        let mut copy = template.clone();
        copy.metadata.name = Some(name(&mark));
        (copy.metadata.resource_version, copy.metadata.uid) = (None, None);
        let notes = copy.metadata.annotations.as_mut().unwrap();
        notes.insert("crawl.example.com/owner-proxy".to_owned(), mark.key.to_string());
        notes.insert("crawl.example.com/owner-uid".to_owned(), mark.uid.to_string());
        config_maps.push(copy);
    }
    let api = rig.config_maps();
    let create = |copy: ConfigMap| {
        let api = api.clone();
        async move { api.create(&PostParams::default(), &copy).await.unwrap() }
    };
    futures::future::join_all(config_maps.into_iter().map(create)).await;
    let list = rig.backend().list(&sample.mark.operator, Some(&sample.mark.entry)).await.unwrap();
    assert_eq!(list.len(), 621);
    assert_eq!(list.iter().filter(|row| row.instance.state == InstanceState::Stopped).count(), 620);
    let other = ProviderName::parse("other").unwrap();
    assert!(rig.backend().list(&sample.mark.operator, Some(&other)).await.unwrap().is_empty());
}
