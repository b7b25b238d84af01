//! What the provider `kubernetes` has left in its namespace.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

/// What is in a namespace of pods, whosever it is.
pub(crate) struct Remains {
    client: Client,
    namespace: String,
}

impl Remains {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    /// Kind and name of each.
    pub(crate) async fn all(&self) -> Vec<String> {
        let mut all = self.of::<Pod>("Pod").await;
        all.extend(self.of::<ConfigMap>("ConfigMap").await);
        all.extend(self.of::<Secret>("Secret").await);
        all.extend(self.of::<NetworkPolicy>("NetworkPolicy").await);
        all
    }

    async fn of<K>(&self, kind: &str) -> Vec<String>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), &self.namespace);
        let found = api.list_metadata(&ListParams::default()).await.unwrap();
        found.items.iter().map(|object| format!("{kind} {}", object.name_any())).collect()
    }
}
