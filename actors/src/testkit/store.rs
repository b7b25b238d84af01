//! An API server in memory: a source of objects, and the writer of what the operator records on them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::stream::BoxStream;
use tokio::time::Instant;

use super::wishes::key;
use super::world::lock;
use crate::domain::desired::Desired;
use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use crate::domain::reason::Reason;
use crate::domain::status::{Phase, Status, keep_transitions};
use crate::ports::{Applied, FoundHealth, Mandate, ProviderHealth, ProxySource, Records, Rejected, SourceEvent};

#[derive(Debug, Clone)]
struct Object {
    key: ProxyKey,
    uid: Uid,
    /// The latest valid version; none if there never was one.
    desired: Option<Desired>,
    /// What is wrong with a newer version.
    invalid: Option<Rejected>,
    status: Option<Status>,
}

impl Object {
    /// What a source tells of it, in order.
    fn events(&self) -> Vec<SourceEvent> {
        let applied = self.desired.as_ref().map(|desired| {
            let recorded = self.status.clone().map(Arc::new);
            SourceEvent::Applied(Applied { desired: Arc::new(desired.clone()), recorded })
        });
        applied.into_iter().chain(self.invalid.clone().map(SourceEvent::Rejected)).collect()
    }

    fn valid(&mut self) -> Result<&mut Desired, OpError> {
        self.desired.as_mut().ok_or_else(|| OpError::not_found(format!("proxy `{}` has no valid version", self.key)))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Store {
    objects: Mutex<BTreeMap<ProxyKey, Object>>,
    streams: Mutex<Vec<mpsc::UnboundedSender<SourceEvent>>>,
    /// New streams wait for their list, while this is some.
    held: Mutex<Option<Vec<mpsc::UnboundedSender<SourceEvent>>>>,
    writes: Mutex<HashMap<&'static str, u64>>,
    /// Every status that was written, in order.
    history: Mutex<Vec<(ProxyKey, Instant, Status)>>,
    /// None: an object of that name that is somebody else's.
    health: Mutex<BTreeMap<ProviderName, Option<ProviderHealth>>>,
    refuses: Mutex<HashMap<&'static str, OpError>>,
}

impl Store {
    fn tell(&self, events: impl IntoIterator<Item = SourceEvent>) {
        let mut streams = lock(&self.streams);
        for event in events {
            streams.retain(|stream| stream.unbounded_send(event.clone()).is_ok());
        }
    }

    fn write(&self, what: &'static str) -> Result<(), OpError> {
        *lock(&self.writes).entry(what).or_default() += 1;
        lock(&self.refuses).get(what).map_or(Ok(()), |error| Err(error.clone()))
    }

    // --- what somebody does to the objects

    /// Makes or replaces an object; what the operator recorded on one of the same uid stays.
    pub fn apply(&self, mut desired: Desired) {
        let mut objects = lock(&self.objects);
        let old = objects.get(&desired.key).filter(|old| old.uid == desired.uid);
        let status = old.and_then(|old| old.status.clone());
        if let Some(old) = old.and_then(|old| old.desired.as_ref()) {
            (desired.finalizer, desired.host) = (old.finalizer, old.host.clone());
        }
        let (key, uid) = (desired.key.clone(), desired.uid.clone());
        let object = Object { key: key.clone(), uid, desired: Some(desired), invalid: None, status };
        self.tell(object.events());
        objects.insert(key, object);
    }

    /// Changes an object in place.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Desired)) {
        let mut objects = lock(&self.objects);
        let object = objects.get_mut(&key(name)).expect("the object is there");
        change(object.valid().expect("it has a valid version"));
        object.invalid = None;
        self.tell(object.events());
    }

    /// Changes the spec of an object: its generation grows.
    pub fn respec(&self, name: &str, change: impl FnOnce(&mut Desired)) {
        self.edit(name, |desired| {
            desired.generation += 1;
            change(desired);
        });
    }

    /// Asks for the deletion of an object; without a finalizer it is gone at once.
    pub fn delete(&self, name: &str) {
        let mut objects = lock(&self.objects);
        let Some(object) = objects.get_mut(&key(name)) else { return };
        match &mut object.desired {
            Some(desired) if desired.finalizer => {
                desired.deleting = true;
                self.tell(object.events());
            }
            Some(_) | None => self.drop_object(&mut objects, &key(name)),
        }
    }

    fn drop_object(&self, objects: &mut BTreeMap<ProxyKey, Object>, key: &ProxyKey) {
        if let Some(Object { key, uid, .. }) = objects.remove(key) {
            self.tell([SourceEvent::Gone { key, uid }]);
        }
    }

    /// A newer version of an object that is not valid; or an object that never was, if there is none of that name.
    pub fn reject(&self, name: &str, message: &str) {
        let mut objects = lock(&self.objects);
        let object = objects.entry(key(name)).or_insert_with(|| Object {
            key: key(name),
            uid: Uid::parse(&format!("uid-{name}")).expect("a valid uid"),
            desired: None,
            invalid: None,
            status: None,
        });
        object.invalid = Some(Rejected {
            key: object.key.clone(),
            uid: object.uid.clone(),
            generation: object.desired.as_ref().map_or(1, |desired| desired.generation + 1),
            message: message.to_owned(),
        });
        // As a cluster does it: the good version is not told again.
        self.tell(object.invalid.clone().map(SourceEvent::Rejected));
    }

    /// A labelled Secret of the Proxies' namespace came, changed or went.
    pub fn secret_changed(&self, name: &str) {
        self.tell([SourceEvent::SecretChanged { namespace: key("any").namespace().into(), name: name.into() }]);
    }

    /// From now on this kind of write fails, or the list of `healths`; `None`: it works again.
    pub fn refuse(&self, what: &'static str, error: Option<OpError>) {
        let mut refuses = lock(&self.refuses);
        match error {
            Some(error) => refuses.insert(what, error),
            None => refuses.remove(what),
        };
    }

    /// Tells something out of the order, as a source may.
    pub fn say(&self, event: SourceEvent) {
        self.tell([event]);
    }

    /// Ends every stream, which a source never should.
    pub fn cut_streams(&self) {
        lock(&self.streams).clear();
    }

    /// From now on new streams get no list, as if the source took its time.
    pub fn hold_lists(&self) {
        lock(&self.held).get_or_insert_default();
    }

    /// They get it now.
    pub fn release_lists(&self) {
        for stream in lock(&self.held).take().into_iter().flatten() {
            self.open(stream);
        }
    }

    fn open(&self, stream: mpsc::UnboundedSender<SourceEvent>) {
        let objects = lock(&self.objects);
        let mut list = vec![SourceEvent::ListStarted];
        list.extend(objects.values().flat_map(Object::events));
        let living = objects.values().map(|object| (object.key.clone(), object.uid.clone())).collect();
        list.push(SourceEvent::Synced { living });
        for event in list {
            drop(stream.unbounded_send(event));
        }
        lock(&self.streams).push(stream);
    }

    // --- what is there

    pub fn exists(&self, name: &str) -> bool {
        lock(&self.objects).contains_key(&key(name))
    }

    pub fn len(&self) -> usize {
        lock(&self.objects).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn status(&self, name: &str) -> Option<Status> {
        lock(&self.objects).get(&key(name)).and_then(|object| object.status.clone())
    }

    /// Every status that was written for it, in order.
    pub fn statuses(&self, name: &str) -> Vec<Status> {
        let key = key(name);
        lock(&self.history).iter().filter(|(of, ..)| *of == key).map(|(.., status)| status.clone()).collect()
    }

    /// When this phase was first written for it.
    pub fn became(&self, name: &str, phase: Phase) -> Option<Instant> {
        let key = key(name);
        lock(&self.history).iter().find(|(of, _, status)| *of == key && status.phase == phase).map(|(_, at, _)| *at)
    }

    pub fn desired(&self, name: &str) -> Option<Desired> {
        lock(&self.objects).get(&key(name)).and_then(|object| object.desired.clone())
    }

    pub fn phase(&self, name: &str) -> Option<Phase> {
        self.status(name).map(|status| status.phase)
    }

    pub fn count_in(&self, phase: Phase) -> usize {
        lock(&self.objects).values().filter(|object| object.status.as_ref().is_some_and(|s| s.phase == phase)).count()
    }

    /// Writes so far, also those refused: `finalizer`, `status`, `release`, `annotation`, `health`.
    pub fn writes(&self, what: &'static str) -> u64 {
        lock(&self.writes).get(what).copied().unwrap_or(0)
    }

    pub(super) fn forget(&self) {
        *lock(&self.history) = Vec::new();
    }

    /// Ours of that name.
    pub fn health(&self, entry: &str) -> Option<ProviderHealth> {
        lock(&self.health).get(&provider(entry)).cloned().flatten()
    }

    /// Somebody removes the ProviderHealth of that name, whosever it is.
    pub fn remove_health(&self, entry: &str) {
        lock(&self.health).remove(&provider(entry));
    }

    /// Somebody puts one of their own there, in place of any.
    pub fn put_foreign_health(&self, entry: &str) {
        lock(&self.health).insert(provider(entry), None);
    }

    /// One of ours, as an operator of before left it.
    pub fn put_health(&self, health: ProviderHealth) {
        lock(&self.health).insert(health.entry.clone(), Some(health));
    }

    pub fn has_foreign_health(&self, entry: &str) -> bool {
        lock(&self.health).get(&provider(entry)).is_some_and(Option::is_none)
    }
}

fn provider(name: &str) -> ProviderName {
    ProviderName::parse(name).expect("a valid provider name")
}

impl ProxySource for Store {
    fn events(&self) -> BoxStream<'static, SourceEvent> {
        let (sender, receiver) = mpsc::unbounded();
        match &mut *lock(&self.held) {
            Some(held) => held.push(sender),
            None => self.open(sender),
        }
        receiver.boxed()
    }
}

#[async_trait]
impl Records for Store {
    async fn adopt(&self, key: &ProxyKey, uid: &Uid, host: Option<&HostName>, _: &Mandate) -> Result<(), OpError> {
        self.write("finalizer")?;
        let mut objects = lock(&self.objects);
        let object = found(&mut objects, key, uid)?;
        let desired = object.valid()?;
        desired.finalizer = true;
        desired.host = host.cloned();
        self.tell(object.events());
        Ok(())
    }

    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError> {
        self.write("release")?;
        let mut objects = lock(&self.objects);
        let Ok(object) = found(&mut objects, key, uid) else { return Ok(()) };
        let desired = object.valid()?;
        desired.finalizer = false;
        if desired.deleting {
            self.drop_object(&mut objects, key);
        } else {
            self.tell(object.events());
        }
        Ok(())
    }

    async fn write_status(&self, key: &ProxyKey, uid: &Uid, status: &Status, _: &Mandate) -> Result<(), OpError> {
        self.write("status")?;
        let mut objects = lock(&self.objects);
        let object = found(&mut objects, key, uid)?;
        lock(&self.history).push((key.clone(), Instant::now(), status.clone()));
        // A write that changes nothing is told to nobody.
        if object.status.as_ref() != Some(status) {
            object.status = Some(status.clone());
            self.tell(object.events());
        }
        Ok(())
    }

    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        self.write("annotation")?;
        let mut objects = lock(&self.objects);
        let object = found(&mut objects, key, uid)?;
        object.valid()?.annotations.drain = drain;
        self.tell(object.events());
        Ok(())
    }

    async fn write_provider_health(&self, health: &ProviderHealth, _: &Mandate) -> Result<(), OpError> {
        self.write("health")?;
        let mut healths = lock(&self.health);
        let mut health = health.clone();
        match healths.get(&health.entry) {
            Some(None) => return Err(OpError::permanent(Reason::NameConflict, "it is somebody else's")),
            Some(Some(stored)) => keep_transitions(&mut health.conditions, |kind| {
                let found = stored.conditions.iter().find(|condition| condition.kind == kind)?;
                Some((found.truth, found.since))
            }),
            None => {}
        }
        healths.insert(health.entry.clone(), Some(health));
        Ok(())
    }

    async fn remove_provider_health(&self, entry: &ProviderName, _: &Mandate) -> Result<(), OpError> {
        self.write("health")?;
        let mut healths = lock(&self.health);
        if healths.get(entry).is_some_and(Option::is_some) {
            healths.remove(entry);
        }
        Ok(())
    }

    async fn list_provider_healths(&self) -> Result<Vec<FoundHealth>, OpError> {
        lock(&self.refuses).get("healths").map_or(Ok(()), |error| Err(error.clone()))?;
        let healths = lock(&self.health);
        Ok(healths.iter().map(|(entry, ours)| FoundHealth { entry: entry.clone(), is_ours: ours.is_some() }).collect())
    }

    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        if let Some(error) = lock(&self.refuses).get("owner") {
            return Err(error.clone());
        }
        Ok(lock(&self.objects).get(key).is_some_and(|object| object.uid == *uid))
    }
}

fn found<'a>(
    objects: &'a mut BTreeMap<ProxyKey, Object>,
    key: &ProxyKey,
    uid: &Uid,
) -> Result<&'a mut Object, OpError> {
    objects
        .get_mut(key)
        .filter(|object| object.uid == *uid)
        .ok_or_else(|| OpError::not_found(format!("proxy `{key}` is gone")))
}
