//! What we write onto our objects.
//!
//! Finalizers and the host go by JSON patch that tests what it was made from, so that no other's finalizer is ever
//! touched; statuses by server-side apply, always the whole of what we own, with the uid of the object that is meant and
//! the version that was seen last. A write that was held up on its way, for as long as a process may be stopped, undoes
//! nothing: it names a version that is no more. Who writes over it anew asks for the mandate first ([`Mandate`]).
//! ProviderHealths are the business of [`healths`].

mod healths;

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Status;
use egress_actors::ports::{FoundHealth, Mandate, ProviderHealth, Records};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};

use self::healths::Healths;
pub(super) use self::healths::is_ours;
use super::seen::Seen;
use super::{NAME, failure};
use crate::crd::proxy::Proxy;
use crate::crd::{API_VERSION, DRAIN, FINALIZER, HOST, status};

/// A patch meets somebody else's write at most so often before the caller comes again with a backoff.
const TRIES: usize = 3;

#[derive(Clone)]
pub(super) struct ClusterRecords {
    client: Client,
    /// By uid. The watch fills it too.
    proxies_seen: Seen<Uid>,
    healths: Healths,
}

impl fmt::Debug for ClusterRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterRecords")
    }
}

impl ClusterRecords {
    pub(super) fn new(client: Client, operator: OperatorId, proxies_seen: Seen<Uid>) -> Self {
        let healths = Healths::new(client.clone(), operator);
        Self { client, proxies_seen, healths }
    }

    fn proxies(&self, key: &ProxyKey) -> Api<Proxy> {
        Api::namespaced(self.client.clone(), key.namespace())
    }

    /// For answers that may be no Proxy.
    fn untyped(&self, key: &ProxyKey) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), key.namespace(), &ApiResource::erase::<Proxy>(&()))
    }

    /// The object of exactly this uid.
    async fn find(&self, key: &ProxyKey, uid: &Uid) -> Result<PartialObjectMeta<Proxy>, OpError> {
        let found = failure::call(format!("read proxy {key}"), self.proxies(key).get_metadata(key.name())).await?;
        if found.metadata.uid.as_deref() == Some(uid.as_str()) {
            self.proxies_seen.read(uid, found.metadata.resource_version.as_deref());
            return Ok(found);
        }
        Err(OpError::not_found(format!("there is no proxy `{key}` with uid {uid} any more")))
    }

    /// Reads the object, and patches what `patch` makes of it; nothing to do is done.
    async fn edit(
        &self,
        key: &ProxyKey,
        uid: &Uid,
        mandate: &Mandate,
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
            mandate.stands()?;
            let sent = proxies.patch_metadata(key.name(), &params, &patch);
            match tokio::time::timeout(failure::CALL_WITHIN, sent).await {
                Ok(Ok(patched)) => {
                    self.proxies_seen.answered(uid, patched.metadata.resource_version.as_deref());
                    return Ok(());
                }
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
    async fn replace_status(
        &self,
        key: &ProxyKey,
        uid: &Uid,
        wanted: &Status,
        over: Option<String>,
    ) -> Result<(), OpError> {
        let mut operations = vec![test("/metadata/uid", json!(uid.as_str()))];
        operations.extend(over.map(|version| test("/metadata/resourceVersion", json!(version))));
        operations.push(json!({"op": "add", "path": "/status", "value": status::written(wanted)}));
        let operations = serde_json::from_value(Value::Array(operations)).expect("each is an operation of RFC 6902");
        let (proxies, patch): (_, Patch<()>) = (self.untyped(key), Patch::Json(operations));
        let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
        let sent = proxies.patch_status(key.name(), &params, &patch);
        let written = failure::call(format!("write the status of malformed proxy {key}"), sent).await;
        match &written {
            Ok(written) => self.proxies_seen.answered(uid, written.metadata.resource_version.as_deref()),
            // Whatever the reason: a look tells which version is there now.
            Err(_) => drop(self.find(key, uid).await?),
        }
        written.map(drop)
    }

    /// Answers with the version that is there now.
    async fn apply_status(&self, key: &ProxyKey, object: Value) -> Result<Option<String>, kube::Error> {
        let params = PatchParams::apply(NAME).force();
        let written = self.proxies(key).patch_status(key.name(), &params, &Patch::Apply(object)).await?;
        Ok(written.metadata.resource_version)
    }
}

/// Says which version this is written over; null would be taken for a version.
fn put_over(object: &mut Value, version: Option<&str>) {
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = json!(version);
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
    async fn adopt(
        &self,
        key: &ProxyKey,
        uid: &Uid,
        host: Option<&HostName>,
        mandate: &Mandate,
    ) -> Result<(), OpError> {
        self.edit(key, uid, mandate, |metadata| adopting(key, host, metadata)).await
    }

    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError> {
        // Whoever leads meanwhile would do the same: all that this was for is gone.
        match self.edit(key, uid, &Mandate::always(), |metadata| Ok(releasing(metadata))).await {
            Err(error) if error.class == Class::NotFound => Ok(()),
            other => other,
        }
    }

    async fn write_status(&self, key: &ProxyKey, uid: &Uid, wanted: &Status, mandate: &Mandate) -> Result<(), OpError> {
        let what = || format!("write the status of proxy {key}");
        let mut last = None;
        for _ in 0..TRIES {
            let over = self.proxies_seen.of(uid);
            mandate.stands()?;
            let mut object = json!({
                "apiVersion": API_VERSION,
                "kind": "Proxy",
                "metadata": {"name": key.name(), "namespace": key.namespace(), "uid": uid.as_str()},
                "status": status::written(wanted),
            });
            put_over(&mut object, over.as_deref());
            let sent = self.apply_status(key, object);
            match tokio::time::timeout(failure::CALL_WITHIN, sent).await {
                Ok(Ok(version)) => {
                    self.proxies_seen.answered(uid, version.as_deref());
                    return Ok(());
                }
                Ok(Err(error)) if is_untyped(&error) => return self.replace_status(key, uid, wanted, over).await,
                // Somebody wrote since, or the uid is another one: a look tells which, and what to write over now.
                Ok(Err(error)) if failure::is_conflict(&error) => {
                    self.find(key, uid).await?;
                    last = Some(failure::failed(what(), &error));
                }
                Ok(Err(error)) => return Err(failure::failed(what(), &error)),
                Err(_) => {
                    let detail = format!("cannot {}: the API server did not answer in time", what());
                    return Err(OpError::transient(Reason::Timeout, detail));
                }
            }
        }
        // Somebody writes this object all the time: the caller comes again with a backoff.
        Err(last.expect("each try but the last that returned left an error"))
    }

    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        let value = drain.then_some("true");
        // A person asked for it, whoever leads.
        self.edit(key, uid, &Mandate::always(), |metadata| {
            Ok(annotating(metadata.annotations.as_ref(), DRAIN, value).into_iter().collect())
        })
        .await
    }

    async fn write_provider_health(&self, health: &ProviderHealth, mandate: &Mandate) -> Result<(), OpError> {
        self.healths.write(health, mandate).await
    }

    async fn list_provider_healths(&self) -> Result<Vec<FoundHealth>, OpError> {
        self.healths.list().await
    }

    async fn remove_provider_health(&self, entry: &ProviderName, mandate: &Mandate) -> Result<(), OpError> {
        self.healths.remove(entry, mandate).await
    }

    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        match self.find(key, uid).await {
            Ok(_) => Ok(true),
            Err(error) if error.class == Class::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}
