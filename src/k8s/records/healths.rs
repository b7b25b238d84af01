//! ProviderHealth objects: which are ours, and what is written onto them.
//!
//! Ours has the operator's id in an annotation, or was written by an operator of before that had none; everything else of
//! our names is another's, and neither written nor removed. The first write of each looks at what is there; from then on
//! the answers to our own writes are enough, as a write names the version it is written over. Of an object is kept: its
//! version, and since when its conditions are as they are.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::id::{OperatorId, ProviderName};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{ConditionType, Truth, keep_transitions};
use egress_actors::ports::{FoundHealth, Mandate, ProviderHealth};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::failure;
use crate::crd::provider_health::{self, ProviderHealthStatus};
use crate::crd::{API_VERSION, MANAGED_BY, OWNER};
use crate::k8s::NAME;

#[derive(Clone)]
pub(super) struct Healths {
    client: Client,
    operator: OperatorId,
    known: Arc<Mutex<HashMap<ProviderName, Known>>>,
}

impl fmt::Debug for Healths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Healths")
    }
}

/// One of ours, as it was seen last.
#[derive(Debug, Clone)]
struct Known {
    version: Option<String>,
    generation: Option<i64>,
    kind: String,
    turns: Vec<(ConditionType, Truth, SystemTime)>,
}

/// Whose an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Us,
    /// An operator of before, which did not say so.
    UsUnmarked,
    Another,
}

/// True if it is this operator's, and not that of another one that was there first.
pub(in crate::k8s) fn is_ours(metadata: &ObjectMeta, operator: &OperatorId) -> bool {
    owner(metadata, operator) != Owner::Another
}

fn owner(metadata: &ObjectMeta, operator: &OperatorId) -> Owner {
    match metadata.annotations.as_ref().and_then(|annotations| annotations.get(OWNER)) {
        Some(id) if id == operator.as_str() => Owner::Us,
        Some(_) => Owner::Another,
        None => {
            let mut managers = metadata.managed_fields.iter().flatten();
            let ours = managers.any(|fields| fields.manager.as_deref() == Some(NAME));
            if ours { Owner::UsUnmarked } else { Owner::Another }
        }
    }
}

fn is_labelled(metadata: &ObjectMeta) -> bool {
    metadata.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|by| by == NAME)
}

impl Healths {
    pub(super) fn new(client: Client, operator: OperatorId) -> Self {
        Self { client, operator, known: Arc::default() }
    }

    /// What is there may be another's, and of another version.
    fn all(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<provider_health::ProviderHealth>(&()))
    }

    fn of(&self, entry: &ProviderName) -> Option<Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(entry).cloned()
    }

    fn saw(&self, entry: &ProviderName, known: Known) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.clone(), known);
    }

    fn forget(&self, entry: &ProviderName) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(entry);
    }

    pub(super) async fn write(&self, health: &ProviderHealth, mandate: &Mandate) -> Result<(), OpError> {
        match self.try_write(health, mandate).await {
            // It was removed since it was seen.
            Err(error) if error.class == Class::NotFound => {
                self.forget(&health.entry);
                self.try_write(health, mandate).await
            }
            written => written,
        }
        // Whatever the reason: a look tells what is there now. If another replica led and wrote, the caller comes again
        // if this one still leads.
        .inspect_err(|_| self.forget(&health.entry))
    }

    async fn try_write(&self, health: &ProviderHealth, mandate: &Mandate) -> Result<(), OpError> {
        let what = format!("write ProviderHealth {}", health.entry);
        let known = match self.of(&health.entry).filter(|known| known.kind == health.kind) {
            Some(known) => known,
            None => self.own(health, &what, mandate).await?,
        };
        let mut health = health.clone();
        keep_transitions(&mut health.conditions, |kind| {
            known.turns.iter().find(|(of, ..)| *of == kind).map(|(_, truth, since)| (*truth, *since))
        });
        mandate.stands()?;
        let mut object = Self::object(&health.entry, known.version.as_deref());
        object["status"] = json!(provider_health::written(&health, known.generation));
        let (all, params, object) = (self.all(), PatchParams::apply(NAME).force(), Patch::Apply(object));
        let sent = all.patch_status(health.entry.as_str(), &params, &object);
        let written = failure::call(what, sent).await?;
        let turns = health.conditions.iter().map(|condition| (condition.kind, condition.truth, condition.since));
        self.saw(&health.entry, Known { version: written.metadata.resource_version, turns: turns.collect(), ..known });
        Ok(())
    }

    /// Finds or makes the object, and sees to it that it is marked as ours; its status is another write.
    async fn own(&self, health: &ProviderHealth, what: &str, mandate: &Mandate) -> Result<Known, OpError> {
        let (all, name) = (self.all(), health.entry.as_str());
        let Some(found) = failure::call(what, all.get_opt(name)).await? else {
            // Not by server-side apply: it would take an object over that somebody makes at this moment.
            let object = serde_json::from_value(self.marked(health, None)).expect("it has a name and a kind");
            let params = PostParams { field_manager: Some(NAME.to_owned()), ..PostParams::default() };
            mandate.stands()?;
            let made = failure::call(what, all.create(&params, &object)).await?;
            return Ok(known(&made));
        };
        let owner = owner(&found.metadata, &self.operator);
        if owner == Owner::Another {
            let detail = format!(
                "cannot {what}: there is one that is not of this operator ({OWNER} is not `{}`): rename the entry, or \
                 delete that object if nobody needs it",
                self.operator
            );
            return Err(OpError::permanent(Reason::NameConflict, detail));
        }
        let seen = known(&found);
        if owner == Owner::Us && is_labelled(&found.metadata) && seen.kind == health.kind {
            return Ok(seen);
        }
        let (params, object) = (PatchParams::apply(NAME).force(), self.marked(health, seen.version.as_deref()));
        mandate.stands()?;
        let marked = failure::call(what, all.patch(name, &params, &Patch::Apply(object))).await?;
        Ok(known(&marked))
    }

    fn object(entry: &ProviderName, over: Option<&str>) -> Value {
        let kind = <provider_health::ProviderHealth as kube::Resource>::kind(&());
        let mut object = json!({"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": entry.as_str()}});
        super::put_over(&mut object, over);
        object
    }

    fn marked(&self, health: &ProviderHealth, over: Option<&str>) -> Value {
        let mut object = Self::object(&health.entry, over);
        object["metadata"]["labels"] = json!({MANAGED_BY: NAME});
        object["metadata"]["annotations"] = json!({OWNER: self.operator.as_str()});
        object["spec"] = json!({"type": health.kind});
        object
    }

    pub(super) async fn list(&self) -> Result<Vec<FoundHealth>, OpError> {
        let (all, params) = (self.all(), ListParams::default());
        let listed = failure::call("list ProviderHealths", all.list_metadata(&params)).await?;
        let found = listed.items.into_iter().filter_map(|found| {
            let is_ours = is_ours(&found.metadata, &self.operator);
            // What no entry can be called is not ours.
            Some(FoundHealth { entry: ProviderName::parse(found.metadata.name.as_deref()?).ok()?, is_ours })
        });
        Ok(found.collect())
    }

    pub(super) async fn remove(&self, entry: &ProviderName, mandate: &Mandate) -> Result<(), OpError> {
        self.forget(entry);
        let (all, what) = (self.all(), format!("remove ProviderHealth {entry}"));
        let found = match failure::call(&what, all.get_metadata(entry.as_str())).await {
            Err(error) if error.class == Class::NotFound => return Ok(()),
            found => found?,
        };
        if owner(&found.metadata, &self.operator) == Owner::Another {
            return Ok(());
        }
        // This one, as it was seen: not one that somebody puts in its place.
        let seen = Preconditions { uid: found.metadata.uid, resource_version: found.metadata.resource_version };
        let params = DeleteParams { preconditions: Some(seen), ..DeleteParams::default() };
        mandate.stands()?;
        match failure::call(what, all.delete(entry.as_str(), &params)).await {
            Err(error) if error.class != Class::NotFound => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

fn known(found: &DynamicObject) -> Known {
    let status: ProviderHealthStatus = serde_json::from_value(found.data["status"].clone()).unwrap_or_default();
    Known {
        version: found.metadata.resource_version.clone(),
        generation: found.metadata.generation,
        kind: found.data["spec"]["type"].as_str().unwrap_or_default().to_owned(),
        turns: provider_health::turns(&status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_ours_by_its_annotation_or_by_its_writer_where_it_has_none() {
        let operator = OperatorId::parse("cluster.egress.op").unwrap();
        for (annotations, manager, whose) in [
            (json!({OWNER: "cluster.egress.op"}), NAME, Owner::Us),
            (json!({OWNER: "cluster.egress.op"}), "a-person", Owner::Us),
            (json!({OWNER: "cluster.other.op"}), NAME, Owner::Another),
            (json!({OWNER: ""}), NAME, Owner::Another),
            (json!({}), NAME, Owner::UsUnmarked),
            (json!({}), "a-person", Owner::Another),
            (json!({"a.example.com/b": "c"}), "a-person", Owner::Another),
        ] {
            let metadata: ObjectMeta = serde_json::from_value(json!({
                "name": "local", "annotations": annotations, "managedFields": [{"manager": "kubectl"}, {"manager": manager}],
            }))
            .unwrap();
            assert_eq!(owner(&metadata, &operator), whose, "{metadata:?}");
        }
        assert_eq!(owner(&ObjectMeta::default(), &operator), Owner::Another);
    }
}
