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

use super::Folds;
use crate::crd::accept::{accept, accept_deleting, identity};
use crate::crd::proxy::{Proxy, ProxyStatus};
use crate::crd::status;

#[derive(Debug, Default)]
pub(super) struct Fold {
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
                out.push_back(SourceEvent::Synced { living });
            }
            Event::Apply(object) => drop(self.seen(object, out)),
            Event::Delete(object) => {
                let Ok((key, uid)) = identity(&object.metadata) else { return };
                if self.living.get(&key) == Some(&uid) {
                    self.living.remove(&key);
                }
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
    fn seen(&mut self, object: DynamicObject, out: &mut VecDeque<SourceEvent>) -> Option<(ProxyKey, Uid)> {
        let (key, uid) = match identity(&object.metadata) {
            Ok(identity) => identity,
            Err(rejection) => {
                // The API server makes names and uids itself, and stores no other.
                tracing::error!(%rejection, "the API server sent an object without a name of its own");
                return None;
            }
        };
        if let Some(before) = self.living.insert(key.clone(), uid.clone())
            && before != uid
        {
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
