//! Single calls of the API: each with a limit that frees its caller, and an error that has its class.
//!
//! "Not there" is an answer here, never an error, and only ever the server's own 404 that names the object.

use std::fmt::Debug;
use std::time::Duration;

use egress_actors::domain::error::OpError;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Site, errors};

/// A call takes milliseconds. An API server that is slower than this is not well.
pub(super) const LIMIT: Duration = Duration::from_secs(10);

/// Objects a page: some MiB of JSON at most.
const PAGE: u32 = 500;

/// Whether a call that was cut short may have done something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Change,
}

/// What became of a create.
pub(super) enum Made<K> {
    New(K),
    /// Somebody has the name.
    Taken,
}

/// The calls, in the namespace of one entry.
#[derive(Clone)]
pub(super) struct Calls<'a> {
    client: Client,
    namespace: &'a str,
}

/// A kind that the calls are about.
pub(super) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<'a> Calls<'a> {
    pub(super) async fn of(site: &'a Site) -> Result<Self, OpError> {
        let client = site.cluster.client().await.map_err(|why| errors::no_client(site.entry.name.as_str(), &why))?;
        Ok(Self { client, namespace: &site.entry.namespace })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// How an object is named to people.
    pub(super) fn what<K: Kind>(&self, name: &str) -> String {
        format!("{} `{}/{name}`", K::kind(&()), self.namespace)
    }

    fn api<K: Kind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    pub(super) async fn get<K: Kind>(&self, name: &str) -> Result<Option<K>, OpError> {
        let doing = format!("read {}", self.what::<K>(name));
        limited(&doing, Effect::None, async { absent_or(self.api::<K>().get(name).await) }).await
    }

    pub(super) async fn get_metadata<K: Kind>(&self, name: &str) -> Result<Option<PartialObjectMeta<K>>, OpError> {
        let doing = format!("read {}", self.what::<K>(name));
        limited(&doing, Effect::None, async { absent_or(self.api::<K>().get_metadata(name).await) }).await
    }

    pub(super) async fn create<K: Kind>(&self, object: &K) -> Result<Made<K>, OpError> {
        let doing = format!("create {}", self.what::<K>(&object.name_any()));
        let api = self.api::<K>();
        let params = PostParams::default();
        limited(&doing, Effect::Change, async {
            match api.create(&params, object).await {
                Ok(made) => Ok(Made::New(made)),
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Made::Taken),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Everything but the storing: permission, admission, validation.
    pub(super) async fn try_create<K: Kind>(&self, object: &K) -> Result<(), OpError> {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let doing = format!("create a {} in namespace `{}`", K::kind(&()), self.namespace);
        limited(&doing, Effect::None, self.api::<K>().create(&params, object)).await.map(drop)
    }

    /// In place of exactly the version that `object` names.
    pub(super) async fn replace<K: Kind>(&self, object: &K) -> Result<(), OpError> {
        let name = object.name_any();
        let doing = format!("update {}", self.what::<K>(&name));
        limited(&doing, Effect::Change, self.api::<K>().replace(&name, &PostParams::default(), object)).await.map(drop)
    }

    /// Exactly the object with this uid. One that is gone already is a success.
    pub(super) async fn delete<K: Kind>(&self, name: &str, uid: Option<String>) -> Result<(), OpError> {
        let doing = format!("delete {}", self.what::<K>(name));
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::background() };
        let api = self.api::<K>();
        limited(&doing, Effect::Change, async { absent_or(api.delete(name, &params).await).map(drop) }).await
    }

    /// Every object with these labels, page by page, or an error: never a part.
    pub(super) async fn each<K: Kind>(&self, selector: &str, mut see: impl FnMut(K) + Send) -> Result<(), OpError> {
        let (api, doing) = (self.api::<K>(), self.listing::<K>());
        let mut page = Some(ListParams::default().labels(selector).limit(PAGE));
        while let Some(params) = page {
            let list = limited(&doing, Effect::None, api.list(&params)).await?;
            list.items.into_iter().for_each(&mut see);
            page = next(params, list.metadata.continue_);
        }
        Ok(())
    }

    /// The same without what the objects hold.
    pub(super) async fn each_metadata<K: Kind>(
        &self,
        selector: &str,
        mut see: impl FnMut(PartialObjectMeta<K>) + Send,
    ) -> Result<(), OpError> {
        let (api, doing) = (self.api::<K>(), self.listing::<K>());
        let mut page = Some(ListParams::default().labels(selector).limit(PAGE));
        while let Some(params) = page {
            let list = limited(&doing, Effect::None, api.list_metadata(&params)).await?;
            list.items.into_iter().for_each(&mut see);
            page = next(params, list.metadata.continue_);
        }
        Ok(())
    }

    /// That a list is answered: one object at most, and nothing is made of it.
    pub(super) async fn try_list<K: Kind>(&self) -> Result<(), OpError> {
        let (api, params) = (self.api::<K>(), ListParams::default().limit(1));
        limited(&self.listing::<K>(), Effect::None, api.list_metadata(&params)).await.map(drop)
    }

    fn listing<K: Kind>(&self) -> String {
        format!("list {} in namespace `{}`", K::plural(&()), self.namespace)
    }
}

fn next(params: ListParams, token: Option<String>) -> Option<ListParams> {
    token.filter(|token| !token.is_empty()).map(|token| params.continue_token(&token))
}

/// None if the server says of this very object that it is not there. A 404 that names no object may come from anything that
/// stands before the server, or from a path that is wrong: it is no evidence.
fn absent_or<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status))
            if status.code == 404 && status.details.as_ref().is_some_and(|details| !details.name.is_empty()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Any call within the limit.
pub(super) async fn limited<T>(
    doing: &str,
    effect: Effect,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, OpError> {
    match tokio::time::timeout(LIMIT, call).await {
        Ok(answer) => answer.map_err(|error| errors::of(doing, effect, &error)),
        Err(_) => Err(errors::late(doing, effect)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_is_only_what_the_server_says_by_name() {
        for (code, details, absent) in [
            (404, json!({"name": "px-1", "kind": "pods"}), true),
            (404, json!({"kind": "pods"}), false),
            (404, json!(null), false),
            (403, json!({"name": "px-1", "kind": "pods"}), false),
        ] {
            let status = json!({"status": "Failure", "code": code, "message": "no", "details": details});
            let error = kube::Error::Api(serde_json::from_value::<kube::core::Status>(status).unwrap().boxed());
            assert_eq!(matches!(absent_or::<()>(Err(error)), Ok(None)), absent, "{code} {details}");
        }
    }
}
