//! What a watch of Proxies says, as facts about the fleet.
//!
//! A delete may be missed and a name may be given to another object while nobody looks; both show here, because every
//! uid that was told is remembered until it is told gone. One object that cannot be read never hides the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{ProxyKey, Uid};
use egress_actors::ports::{Applied, Rejected, SourceEvent};
use kube::core::DynamicObject;
use kube::runtime::watcher::Event;
use serde::Deserialize as _;

use super::super::seen::Seen;
use super::Folds;
use crate::crd::accept::{accept, accept_deleting, identity};
use crate::crd::proxy::{Proxy, ProxyStatus};
use crate::crd::status;

#[derive(Debug, Default)]
pub(super) struct Fold {
    /// Versions, for those who write.
    seen: Seen<Uid>,
    /// Who has each name, as told last.
    living: HashMap<ProxyKey, Uid>,
    /// What the list that is being read has shown so far.
    listed: Option<Vec<(ProxyKey, Uid)>>,
}

impl Folds for Fold {
    type Object = DynamicObject;
    const OF: &'static str = "Proxies";

    fn take(&mut self, event: Event<DynamicObject>, out: &mut VecDeque<SourceEvent>) {
        match event {
            Event::Init => {
                self.listed = Some(Vec::new());
                out.push_back(SourceEvent::ListStarted);
            }
            Event::InitApply(object) => {
                if let Some((key, uid)) = self.seen(object, out)
                    && let Some(listed) = &mut self.listed
                {
                    listed.push((key, uid));
                }
            }
            Event::InitDone => {
                let living = self.listed.take().unwrap_or_default();
                self.living = living.iter().cloned().collect();
                self.seen.keep(&self.living.values().cloned().collect());
                out.push_back(SourceEvent::Synced { living });
            }
            Event::Apply(object) => drop(self.seen(object, out)),
            Event::Delete(object) => {
                let Ok((key, uid)) = identity(&object.metadata) else { return };
                if self.living.get(&key) == Some(&uid) {
                    self.living.remove(&key);
                }
                self.seen.forget(&uid);
                out.push_back(SourceEvent::Gone { key, uid });
            }
        }
    }

    fn failed(&mut self, error: OpError, out: &mut VecDeque<SourceEvent>) {
        self.listed = None;
        out.push_back(SourceEvent::Unreadable(error));
    }
}

impl Fold {
    pub(super) fn new(seen: Seen<Uid>) -> Self {
        Self { seen, ..Self::default() }
    }

    fn seen(&mut self, object: DynamicObject, out: &mut VecDeque<SourceEvent>) -> Option<(ProxyKey, Uid)> {
        let (key, uid) = match identity(&object.metadata) {
            Ok(identity) => identity,
            Err(rejection) => {
                // The API server makes names and uids itself, and stores no other.
                tracing::error!(%rejection, "the API server sent an object without a name of its own");
                return None;
            }
        };
        self.seen.saw(&uid, object.metadata.resource_version.as_deref());
        if let Some(before) = self.living.insert(key.clone(), uid.clone())
            && before != uid
        {
            self.seen.forget(&before);
            out.push_back(SourceEvent::Gone { key: key.clone(), uid: before });
        }
        out.push_back(read(&key, &uid, object));
        Some((key, uid))
    }
}

/// The object as a fact. What cannot be accepted is told on itself; if it is being deleted, that goes on all the same.
fn read(key: &ProxyKey, uid: &Uid, object: DynamicObject) -> SourceEvent {
    let DynamicObject { metadata, mut data, .. } = object;
    let recorded = ProxyStatus::deserialize(data["status"].take()).ok().as_ref().and_then(status::recorded);
    let applied = |desired| {
        SourceEvent::Applied(Applied { desired: Arc::new(desired), recorded: recorded.clone().map(Arc::new) })
    };
    if metadata.deletion_timestamp.is_some() {
        return applied(accept_deleting(key, uid, &metadata, &data["spec"]));
    }
    let generation = metadata.generation.unwrap_or_default();
    let accepted = serde_path_to_error::deserialize(data["spec"].take())
        .map_err(|error| format!("spec.{}: {}", error.path(), error.inner()))
        .and_then(|spec| accept(&Proxy { metadata, spec, status: None }, None).map_err(|refused| refused.to_string()));
    match accepted {
        Ok(desired) => applied(desired),
        Err(message) => SourceEvent::Rejected(Rejected { key: key.clone(), uid: uid.clone(), generation, message }),
    }
}

#[cfg(test)]
mod tests {
    use egress_actors::domain::desired::Flavor;
    use egress_actors::domain::id::{HostName, ProviderName};
    use egress_actors::domain::reason::Reason;
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, uid: &str, more: Value) -> DynamicObject {
        let mut object = json!({
            "apiVersion": "crawl.example.com/v1alpha1", "kind": "Proxy",
            "metadata": {"name": name, "namespace": "crawl", "uid": uid, "generation": 3},
            "spec": {"external": {"url": "http://203.0.113.7:3128"}},
        });
        merge(&mut object, more);
        serde_json::from_value(object).unwrap()
    }

    fn merge(into: &mut Value, more: Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                for (key, value) in more {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, more) => *into = more,
        }
    }

    fn good(name: &str, uid: &str) -> DynamicObject {
        object(name, uid, json!({}))
    }

    /// Has a spec that no version of ours wrote.
    fn bad(name: &str, uid: &str, more: Value) -> DynamicObject {
        let mut object = object(name, uid, json!({"spec": {"maxLeases": "many"}}));
        let mut whole = serde_json::to_value(&object).unwrap();
        merge(&mut whole, more);
        object = serde_json::from_value(whole).unwrap();
        object
    }

    /// What is told of these events.
    fn told(events: Vec<Event<DynamicObject>>) -> Vec<String> {
        let (mut fold, mut out) = (Fold::default(), VecDeque::new());
        for event in events {
            fold.take(event, &mut out);
        }
        out.into_iter()
            .map(|event| match event {
                SourceEvent::ListStarted => "list".to_owned(),
                SourceEvent::Applied(applied) => format!("{} {}", applied.desired.key.name(), applied.desired.uid),
                SourceEvent::Rejected(rejected) => format!("{} bad: {}", rejected.key.name(), rejected.message),
                SourceEvent::Gone { key, uid } => format!("{} {uid} gone", key.name()),
                SourceEvent::Synced { living } => {
                    let mut names: Vec<_> = living.iter().map(|(key, uid)| format!("{}={uid}", key.name())).collect();
                    names.sort();
                    format!("synced {}", names.join(" "))
                }
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_list_is_whole_and_what_comes_after_it_are_changes() {
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let events = vec![
            Init,
            InitApply(good("a", "1")),
            InitApply(good("b", "2")),
            InitDone,
            Apply(good("c", "3")),
            Delete(good("a", "1")),
            Init,
            InitApply(good("c", "3")),
            InitDone,
        ];
        assert_eq!(
            told(events),
            ["list", "a 1", "b 2", "synced a=1 b=2", "c 3", "a 1 gone", "list", "c 3", "synced c=3"]
        );
    }

    #[test]
    fn a_name_that_another_object_has_now_tells_the_end_of_the_one_before_though_its_delete_was_missed() {
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let events = vec![Init, InitApply(good("a", "1")), InitDone, Apply(good("a", "2")), Delete(good("a", "1"))];
        assert_eq!(
            told(events),
            ["list", "a 1", "synced a=1", "a 1 gone", "a 2", "a 1 gone"],
            "late news harms nobody"
        );
        let mut fold = Fold::default();
        let mut out = VecDeque::new();
        for event in [Init, InitApply(good("a", "1")), InitDone, Apply(good("a", "2")), Delete(good("a", "1"))] {
            fold.take(event, &mut out);
        }
        assert_eq!(fold.living.values().map(Uid::as_str).collect::<Vec<_>>(), ["2"]);
    }

    #[test]
    fn an_object_that_cannot_be_read_is_told_with_its_field_and_is_among_the_living() {
        use Event::{Init, InitApply, InitDone};
        let events = vec![Init, InitApply(bad("a", "1", json!({}))), InitApply(good("b", "2")), InitDone];
        let told = told(events);
        assert!(told[1].starts_with("a bad: spec.maxLeases: invalid type: string"), "{told:?}");
        assert_eq!((told[2].as_str(), told[3].as_str()), ("b 2", "synced a=1 b=2"));
    }

    #[test]
    fn an_object_that_cannot_be_read_can_be_deleted_and_its_instance_is_not_forgotten() {
        let deleting = json!({"metadata": {
            "deletionTimestamp": "2026-12-01T00:00:00Z", "finalizers": ["other/one", "crawl.example.com/instance"],
            "annotations": {"crawl.example.com/host": "hv1", "crawl.example.com/drain": "maybe"},
        }});
        let read = |more: Value| {
            let mut whole = deleting.clone();
            merge(&mut whole, more);
            let object = bad("a", "1", whole);
            let (key, uid) = identity(&object.metadata).unwrap();
            match super::read(&key, &uid, object) {
                SourceEvent::Applied(applied) => applied.desired,
                other => panic!("{other:?}"),
            }
        };
        let desired = read(json!({"spec": {"external": null, "managed": {"provider": "local"}}}));
        assert!(desired.deleting && desired.finalizer && !desired.annotations.skip_cleanup);
        assert_eq!(desired.host.as_ref().map(HostName::as_str), Some("hv1"));
        assert_eq!(desired.provider().map(ProviderName::as_str), Some("local"));
        // Where it is cannot be read either: it is of a provider that nobody has.
        let desired = read(json!({"spec": null}));
        assert_eq!(desired.provider().map(ProviderName::as_str), Some("unreadable"));
        let desired = read(json!({"spec": null, "metadata": {"annotations": null}}));
        assert!(matches!(desired.flavor, Flavor::External(_)), "nothing was made");
    }

    #[test]
    fn a_failed_watch_is_told_and_nothing_is_gone() {
        let (mut fold, mut out) = (Fold::default(), VecDeque::new());
        fold.take(Event::Apply(good("a", "1")), &mut out);
        fold.failed(OpError::transient(Reason::Unreachable, "x"), &mut out);
        assert_eq!((fold.living.len(), out.len()), (1, 2));
        assert!(matches!(out.pop_back(), Some(SourceEvent::Unreadable(_))));
    }
}
