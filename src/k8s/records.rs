//! What we write onto our objects.
//!
//! Finalizers and the host go by JSON patch that tests what it was made from, so that no other's finalizer is ever
//! touched; statuses by server-side apply, always the whole of what we own, with the uid of the object that is meant.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Status;
use egress_actors::ports::{ProviderHealth, Records};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client, Resource as _};
use serde_json::{Value, json};

use super::{NAME, failure};
use crate::crd::proxy::Proxy;
use crate::crd::{API_VERSION, DRAIN, FINALIZER, HOST, provider_health, status};

/// A patch meets somebody else's write at most so often before the caller comes again with a backoff.
const TRIES: usize = 3;

#[derive(Clone)]
pub(super) struct ClusterRecords(Client);

impl fmt::Debug for ClusterRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterRecords")
    }
}

impl ClusterRecords {
    pub(super) fn new(client: Client) -> Self {
        Self(client)
    }

    fn proxies(&self, key: &ProxyKey) -> Api<Proxy> {
        Api::namespaced(self.0.clone(), key.namespace())
    }

    /// For answers that may be no Proxy.
    fn untyped(&self, key: &ProxyKey) -> Api<DynamicObject> {
        Api::namespaced_with(self.0.clone(), key.namespace(), &ApiResource::erase::<Proxy>(&()))
    }

    fn healths(&self) -> Api<provider_health::ProviderHealth> {
        Api::all(self.0.clone())
    }

    /// The object of exactly this uid.
    async fn find(&self, key: &ProxyKey, uid: &Uid) -> Result<PartialObjectMeta<Proxy>, OpError> {
        let found = failure::call(format!("read proxy {key}"), self.proxies(key).get_metadata(key.name())).await?;
        if found.metadata.uid.as_deref() == Some(uid.as_str()) {
            return Ok(found);
        }
        Err(OpError::not_found(format!("there is no proxy `{key}` with uid {uid} any more")))
    }

    /// Reads the object, and patches what `patch` makes of it; nothing to do is done.
    async fn edit(
        &self,
        key: &ProxyKey,
        uid: &Uid,
        patch: impl Fn(&ObjectMeta) -> Result<Vec<Value>, OpError> + Send + Sync,
    ) -> Result<(), OpError> {
        let mut last = None;
        for _ in 0..TRIES {
            let found = self.find(key, uid).await?;
            let mut operations = patch(&found.metadata)?;
            if operations.is_empty() {
                return Ok(());
            }
            // The uid tells a recreated object apart; the version tells that all else is as it was read.
            operations.insert(0, test("/metadata/uid", json!(uid.as_str())));
            operations.insert(1, test("/metadata/resourceVersion", json!(found.metadata.resource_version)));
            let operations =
                serde_json::from_value(Value::Array(operations)).expect("each is an operation of RFC 6902");
            let patch: Patch<()> = Patch::Json(operations);
            let (proxies, params) = (self.proxies(key), PatchParams::default());
            let sent = proxies.patch_metadata(key.name(), &params, &patch);
            match tokio::time::timeout(failure::CALL_WITHIN, sent).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) if is_overtaken(&error) => {
                    last = Some(failure::failed(format_args!("patch proxy {key}"), &error));
                }
                Ok(Err(error)) => return Err(failure::failed(format_args!("patch proxy {key}"), &error)),
                Err(_) => {
                    let detail = format!("cannot patch proxy {key}: the API server did not answer in time");
                    return Err(OpError::effect_unknown(Reason::Timeout, detail));
                }
            }
        }
        Err(last.expect("each try but the last that returned left an error"))
    }

    /// For an object that no apply can be computed for: its spec is not what the definition says.
    async fn replace_status(&self, key: &ProxyKey, uid: &Uid, wanted: &Status) -> Result<(), OpError> {
        let operations = json!([
            test("/metadata/uid", json!(uid.as_str())),
            {"op": "add", "path": "/status", "value": status::written(wanted)},
        ]);
        let operations = serde_json::from_value(operations).expect("each is an operation of RFC 6902");
        let (proxies, patch): (_, Patch<()>) = (self.untyped(key), Patch::Json(operations));
        let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
        let sent = proxies.patch_status(key.name(), &params, &patch);
        failure::call(format!("write the status of malformed proxy {key}"), sent).await.map(drop)
    }

    async fn apply_status<K>(&self, api: Api<K>, name: &str, object: Value) -> Result<(), kube::Error>
    where
        K: kube::Resource + serde::de::DeserializeOwned + Clone + fmt::Debug,
    {
        let params = PatchParams::apply(NAME).force();
        api.patch_status(name, &params, &Patch::Apply(object)).await.map(drop)
    }
}

/// An object that was written under an older definition, and cannot be merged with anything under this one.
fn is_untyped(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("failed to create typed live object"))
}

/// A test failed (422 with JSON patch), or a write came between (409).
fn is_overtaken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 409 | 422))
}

fn test(path: &str, value: Value) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

/// A key as a part of a JSON pointer (RFC 6901).
fn pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn adopting(key: &ProxyKey, host: Option<&HostName>, metadata: &ObjectMeta) -> Result<Vec<Value>, OpError> {
    let finalizers = metadata.finalizers.clone().unwrap_or_default();
    let mut patch = Vec::new();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        if metadata.deletion_timestamp.is_some() {
            let detail = format!("proxy `{key}` is being deleted and takes no finalizer any more");
            return Err(OpError::transient(Reason::Deleting, detail));
        }
        patch.push(if metadata.finalizers.is_some() {
            json!({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER})
        } else {
            json!({"op": "add", "path": "/metadata/finalizers", "value": [FINALIZER]})
        });
    }
    if let Some(host) = host {
        patch.extend(annotating(metadata.annotations.as_ref(), HOST, Some(host.as_str())));
    }
    Ok(patch)
}

fn releasing(metadata: &ObjectMeta) -> Vec<Value> {
    let at = metadata.finalizers.iter().flatten().position(|finalizer| finalizer == FINALIZER);
    at.map_or_else(Vec::new, |at| {
        let path = format!("/metadata/finalizers/{at}");
        vec![test(&path, json!(FINALIZER)), json!({"op": "remove", "path": path})]
    })
}

fn annotating(given: Option<&BTreeMap<String, String>>, name: &str, value: Option<&str>) -> Option<Value> {
    let path = format!("/metadata/annotations/{}", pointer(name));
    match (given, value) {
        (Some(given), Some(value)) if given.get(name).is_some_and(|before| before == value) => None,
        (Some(_), Some(value)) => Some(json!({"op": "add", "path": path, "value": value})),
        (None, Some(value)) => Some(json!({"op": "add", "path": "/metadata/annotations", "value": {name: value}})),
        (Some(given), None) if given.contains_key(name) => Some(json!({"op": "remove", "path": path})),
        (_, None) => None,
    }
}

#[async_trait]
impl Records for ClusterRecords {
    async fn adopt(&self, key: &ProxyKey, uid: &Uid, host: Option<&HostName>) -> Result<(), OpError> {
        self.edit(key, uid, |metadata| adopting(key, host, metadata)).await
    }

    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError> {
        match self.edit(key, uid, |metadata| Ok(releasing(metadata))).await {
            Err(error) if error.class == Class::NotFound => Ok(()),
            other => other,
        }
    }

    async fn write_status(&self, key: &ProxyKey, uid: &Uid, wanted: &Status) -> Result<(), OpError> {
        let object = json!({
            "apiVersion": API_VERSION,
            "kind": "Proxy",
            "metadata": {"name": key.name(), "namespace": key.namespace(), "uid": uid.as_str()},
            "status": status::written(wanted),
        });
        let sent = self.apply_status(self.proxies(key), key.name(), object);
        match tokio::time::timeout(failure::CALL_WITHIN, sent).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if is_untyped(&error) => self.replace_status(key, uid, wanted).await,
            // The uid is another one, or a write of ours is on its way: a look tells which.
            Ok(Err(error)) if failure::is_conflict(&error) => {
                self.find(key, uid).await?;
                Err(failure::failed(format_args!("write the status of proxy {key}"), &error))
            }
            Ok(Err(error)) => Err(failure::failed(format_args!("write the status of proxy {key}"), &error)),
            Err(_) => Err(OpError::transient(
                Reason::Timeout,
                format!("cannot write the status of proxy {key}: the API server did not answer in time"),
            )),
        }
    }

    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        let value = drain.then_some("true");
        self.edit(key, uid, |metadata| {
            Ok(annotating(metadata.annotations.as_ref(), DRAIN, value).into_iter().collect())
        })
        .await
    }

    async fn write_provider_health(&self, health: &ProviderHealth) -> Result<(), OpError> {
        let (name, what) = (health.entry.as_str(), format!("write ProviderHealth {}", health.entry));
        let metadata = json!({"name": name});
        let kind = provider_health::ProviderHealth::kind(&());
        let status = json!({
            "apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "status": provider_health::written(health),
        });
        let written = self.apply_status(self.healths(), name, status.clone());
        match tokio::time::timeout(failure::CALL_WITHIN, written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if failure::is_missing(&error) => {
                let spec = json!({
                    "apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": {"type": health.kind},
                });
                let params = PatchParams::apply(NAME).force();
                let healths = self.healths();
                failure::call(&what, healths.patch(name, &params, &Patch::Apply(spec))).await?;
                failure::call(&what, self.apply_status(self.healths(), name, status)).await
            }
            Ok(Err(error)) => Err(failure::failed(what, &error)),
            Err(_) => Err(OpError::transient(
                Reason::Timeout,
                format!("cannot {what}: the API server did not answer in time"),
            )),
        }
    }

    async fn remove_provider_health(&self, entry: &ProviderName) -> Result<(), OpError> {
        let healths = self.healths();
        let params = DeleteParams::default();
        let gone = healths.delete(entry.as_str(), &params);
        match failure::call(format!("remove ProviderHealth {entry}"), gone).await {
            Err(error) if error.class != Class::NotFound => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        match self.find(key, uid).await {
            Ok(_) => Ok(true),
            Err(error) if error.class == Class::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
