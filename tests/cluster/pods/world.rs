//! The rig of the conformance suite: what can happen to a pod, to its mark, and to our rights.

use super::*;

impl Rig {
    /// From now on backends of this rig are somebody who may do this and nothing else.
    async fn deny(&self, rules: &Value) {
        let account = format!("denied-{}", &uuid::Uuid::new_v4().to_string()[..8]);
        self.plane.service_account(&self.namespace, &account).await;
        let role: Role = serde_json::from_value(json!({"metadata": {"name": account}, "rules": rules})).unwrap();
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": account},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}]
        }))
        .unwrap();
        let post = PostParams::default();
        Api::namespaced(self.client.clone(), &self.namespace).create(&post, &role).await.unwrap();
        Api::namespaced(self.client.clone(), &self.namespace).create(&post, &binding).await.unwrap();
        let client = self.plane.client_for(&self.plane.token(&self.namespace, &account).await).await;
        let maps = Api::<ConfigMap>::namespaced(client.clone(), &self.namespace);
        let begun = std::time::Instant::now();
        // Until the rights have reached the server; with none there is nothing to wait for.
        while rules.as_array().is_some_and(|rules| !rules.is_empty())
            && maps.list_metadata(&ListParams::default()).await.is_err()
        {
            assert!(begun.elapsed() < Duration::from_mins(1), "the rights do not reach the server");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *self.denied.lock().unwrap() = Some(client);
    }
}

#[async_trait]
impl ConformanceRig for Rig {
    fn backend(&self) -> Arc<dyn Backend> {
        let denied = self.denied.lock().unwrap().clone();
        Arc::new(self.backend_of(denied.unwrap_or_else(|| self.client.clone())))
    }

    fn mark(&self) -> OwnerMark {
        let uid = uuid::Uuid::new_v4().to_string();
        OwnerMark {
            operator: OperatorId::parse("test/operator").unwrap(),
            entry: ProviderName::parse("pods").unwrap(),
            key: ProxyKey::new("crawl", &format!("px-{}", &uid[..8])).unwrap(),
            uid: Uid::parse(&uid).unwrap(),
        }
    }

    /// Pods; where there is none, whether anything else is left.
    async fn count(&self, mark: &OwnerMark) -> usize {
        self.kinds(mark).await.len().min(1)
    }

    async fn make_foreign(&self, mark: &OwnerMark) -> bool {
        let other = OwnerMark { operator: OperatorId::parse("another/operator").unwrap(), ..mark.clone() };
        self.made(&self.spec(&other)).await;
        true
    }

    async fn foreign_is_untouched(&self, mark: &OwnerMark) -> bool {
        let other = OwnerMark { operator: OperatorId::parse("another/operator").unwrap(), ..mark.clone() };
        let instance = self.backend().get(&other).await.unwrap();
        instance.state == InstanceState::Running && self.kinds(mark).await.contains(&"ConfigMap")
    }

    async fn stop(&self, mark: &OwnerMark) -> bool {
        set_status(&self.pods(), &name(mark), &json!({"phase": "Failed"})).await;
        true
    }

    /// Its node is lost, and nobody knows.
    async fn pause(&self, mark: &OwnerMark) -> bool {
        set_status(&self.pods(), &name(mark), &json!({"phase": "Unknown"})).await;
        true
    }

    async fn resume(&self, mark: &OwnerMark) {
        set_status(&self.pods(), &name(mark), &json!({"phase": "Running"})).await;
    }

    /// The operator has no rights any more.
    async fn make_unreadable(&self, _mark: &OwnerMark) -> bool {
        self.deny(&json!([])).await;
        true
    }

    async fn make_readable(&self, _mark: &OwnerMark) {
        *self.denied.lock().unwrap() = None;
    }

    async fn break_list(&self, _marks: &[OwnerMark], breakage: Breakage) -> bool {
        match breakage {
            // The first kinds that are asked for, and not the pods.
            Breakage::OnePart => {
                self.deny(&json!([{
                    "apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get", "list"]
                }]))
                .await;
            }
            Breakage::Everything => self.deny(&json!([])).await,
        }
        true
    }

    async fn mend_list(&self, _marks: &[OwnerMark]) {
        *self.denied.lock().unwrap() = None;
    }

    async fn mark_of_another_entry(&self) -> Option<(Arc<dyn Backend>, OwnerMark)> {
        let entry = KubernetesEntry { name: ProviderName::parse("others").unwrap(), ..self.entry.clone() };
        let mark = OwnerMark { entry: entry.name.clone(), ..self.mark() };
        let backend = KubernetesBackend::new(entry, Cluster::of(self.client.clone(), None), Vec::new());
        Some((Arc::new(backend), mark))
    }

    async fn change_mark(&self, mark: &OwnerMark) -> Option<OwnerMark> {
        let other = OwnerMark { operator: OperatorId::parse("another/operator").unwrap(), ..mark.clone() };
        let patch = json!({"metadata": {"annotations": {"crawl.example.com/owner-operator": other.operator.as_str()}}});
        let (patch, params, name) = (Patch::Merge(&patch), PatchParams::default(), name(mark));
        let policies = Api::<NetworkPolicy>::namespaced(self.client.clone(), &self.namespace);
        for kind in self.kinds(mark).await {
            match kind {
                "Pod" => drop(self.pods().patch(&name, &params, &patch).await.unwrap()),
                "ConfigMap" => drop(self.config_maps().patch(&name, &params, &patch).await.unwrap()),
                "Secret" => drop(self.secrets().patch(&name, &params, &patch).await.unwrap()),
                _ => drop(policies.patch(&name, &params, &patch).await.unwrap()),
            }
        }
        Some(other)
    }
}
