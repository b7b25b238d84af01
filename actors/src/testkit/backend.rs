//! A host of a provider in memory, as a test says it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::wishes::key;
use super::world::lock;
use crate::domain::desired::{Endpoint, Placement, Scheme};
use crate::domain::error::OpError;
use crate::domain::id::{OperatorId, ProviderName, Uid};
use crate::domain::instance::{Instance, InstanceSpec, InstanceState, Listed, OwnerMark};
use crate::domain::reason::Reason;
use crate::ports::Backend;

/// How a scripted host answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    /// After so long.
    Works(Duration),
    /// Never.
    Hangs,
    /// Never, and what was asked for happens all the same, after so long.
    Late(Duration),
    /// After so long; a delete only stops the instance, and the next one removes it.
    InParts(Duration),
    /// At once, with this.
    Fails(OpError),
    /// The adapter panics.
    Panics,
}

/// One call as the host saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub kind: &'static str,
    pub uid: Uid,
    pub at: Instant,
}

type Instances = Arc<Mutex<HashMap<Uid, Kept>>>;

#[derive(Debug)]
struct Kept {
    mark: OwnerMark,
    instance: Instance,
    since: Instant,
}

/// What a list of a scripted host leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lists {
    All,
    /// What is younger than this.
    Late(Duration),
    /// Everything.
    Nothing,
    /// Every second instance.
    Half,
}

/// See the module.
#[derive(Debug)]
pub struct ScriptedHost {
    name: String,
    mood: Mutex<Mood>,
    /// What is different for one kind of call.
    but: Mutex<HashMap<&'static str, Mood>>,
    instances: Instances,
    calls: Mutex<Vec<Seen>>,
    running: Arc<Mutex<usize>>,
    made: Mutex<u64>,
    lists: Mutex<Lists>,
    /// Instances with such names are never deleted.
    kept: Mutex<Option<String>>,
}

struct Counted(Arc<Mutex<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        *lock(&self.0) -= 1;
    }
}

fn uid_of(name: &str) -> Uid {
    Uid::parse(&format!("uid-{name}")).expect("a valid uid")
}

impl ScriptedHost {
    pub(super) fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            mood: Mutex::new(Mood::Works(Duration::from_millis(50))),
            but: Mutex::default(),
            instances: Arc::default(),
            calls: Mutex::default(),
            running: Arc::default(),
            made: Mutex::default(),
            lists: Mutex::new(Lists::All),
            kept: Mutex::default(),
        })
    }

    pub fn set(&self, mood: Mood) {
        *lock(&self.mood) = mood;
        lock(&self.but).clear();
    }

    /// One kind of call answers differently: `create`, `get`, `delete`, `list`, `check`.
    pub fn set_for(&self, kind: &'static str, mood: Mood) {
        lock(&self.but).insert(kind, mood);
    }

    /// Uids of the instances that are there.
    pub fn instances(&self) -> Vec<Uid> {
        lock(&self.instances).keys().cloned().collect()
    }

    /// The backend's own name of the instance, new with each that is made.
    pub fn instance_id(&self, name: &str) -> Option<Arc<str>> {
        lock(&self.instances).get(&uid_of(name)).map(|kept| kept.instance.provider_id.clone())
    }

    /// Changes what the backend tells of an instance, as if somebody had touched it by hand.
    pub fn touch(&self, name: &str, change: impl FnOnce(&mut Instance)) {
        change(&mut lock(&self.instances).get_mut(&uid_of(name)).expect("the instance is there").instance);
    }

    /// Changes the owner mark of an instance by hand.
    pub fn remark(&self, name: &str, change: impl FnOnce(&mut OwnerMark)) {
        change(&mut lock(&self.instances).get_mut(&uid_of(name)).expect("the instance is there").mark);
    }

    /// An instance that was made so long ago, by whoever the mark says.
    pub fn plant(&self, name: &str, operator: &str, entry: &str, age: Duration) {
        let mark = OwnerMark {
            operator: OperatorId::parse(operator).expect("a valid id"),
            entry: ProviderName::parse(entry).expect("a valid name"),
            key: key(name),
            uid: uid_of(name),
        };
        let spec =
            InstanceSpec { mark, placement: Placement::default(), user_data: None, port: 3128, credentials: None };
        let created_at = SystemTime::now().checked_sub(age);
        let instance = Instance { created_at, ..self.instance(&spec) };
        let kept = Kept { mark: spec.mark, instance, since: Instant::now() };
        lock(&self.instances).insert(uid_of(name), kept);
    }

    /// Deletions of instances whose Proxy's name begins like this fail.
    pub fn keep(&self, prefix: &str) {
        *lock(&self.kept) = Some(prefix.to_owned());
    }

    /// From now on its lists leave something out, without a word.
    pub fn set_lists(&self, lists: Lists) {
        *lock(&self.lists) = lists;
    }

    /// Removes an instance behind the operator's back.
    pub fn lose(&self, name: &str) {
        lock(&self.instances).remove(&uid_of(name));
    }

    /// How often a kind of call came in for a Proxy.
    pub fn calls(&self, kind: &str, name: &str) -> usize {
        let uid = uid_of(name);
        lock(&self.calls).iter().filter(|call| call.kind == kind && call.uid == uid).count()
    }

    pub fn all_calls(&self, kind: &str) -> usize {
        lock(&self.calls).iter().filter(|call| call.kind == kind).count()
    }

    /// Everything that it was asked, in order.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.calls).clone()
    }

    pub(super) fn forget(&self) {
        *lock(&self.calls) = Vec::new();
    }

    /// Calls that have not ended.
    pub fn running(&self) -> usize {
        *lock(&self.running)
    }

    fn mood_for(&self, kind: &str) -> Mood {
        lock(&self.but).get(kind).cloned().unwrap_or_else(|| lock(&self.mood).clone())
    }

    async fn answer(
        &self,
        kind: &'static str,
        uid: &Uid,
        effect: impl FnOnce() + Send + 'static,
    ) -> Result<(), OpError> {
        lock(&self.calls).push(Seen { kind, uid: uid.clone(), at: Instant::now() });
        *lock(&self.running) += 1;
        let _counted = Counted(self.running.clone());
        match self.mood_for(kind) {
            Mood::Works(after) | Mood::InParts(after) => {
                tokio::time::sleep(after).await;
                effect();
                Ok(())
            }
            Mood::Hangs => std::future::pending().await,
            Mood::Late(after) => {
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    effect();
                });
                std::future::pending().await
            }
            Mood::Fails(error) => Err(error),
            Mood::Panics => panic!("scripted panic of host {}", self.name),
        }
    }

    fn instance(&self, spec: &InstanceSpec) -> Instance {
        let mut made = lock(&self.made);
        *made += 1;
        let OwnerMark { entry, key, .. } = &spec.mark;
        Instance {
            provider_id: format!("scripted://{entry}/{}/{key}-{made}", self.name).replace("crawl/", "").into(),
            state: InstanceState::Running,
            endpoint: Some(Endpoint {
                scheme: Scheme::Http,
                host: format!("{}.{}", key.name(), self.name).into(),
                port: spec.port,
            }),
            generated: None,
            outdated: None,
            created_at: Some(SystemTime::now()),
            complaint: None,
        }
    }
}

#[async_trait]
impl Backend for ScriptedHost {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        let (instances, instance, mark) = (self.instances.clone(), self.instance(spec), spec.mark.clone());
        let uid = mark.uid.clone();
        let effect = move || {
            let kept = Kept { mark, instance, since: Instant::now() };
            lock(&instances).entry(kept.mark.uid.clone()).or_insert(kept);
        };
        self.answer("create", &uid, effect).await?;
        let made = lock(&self.instances).get(&uid).map(|kept| kept.instance.clone());
        made.ok_or_else(|| OpError::not_found("it was removed while it was made"))
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        self.answer("get", &mark.uid, || ()).await?;
        lock(&self.instances)
            .get(&mark.uid)
            .map(|kept| kept.instance.clone())
            .ok_or_else(|| OpError::not_found(format!("no instance of {}", mark.key)))
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        if lock(&self.instances).get(&mark.uid).is_some_and(|kept| kept.mark != *mark) {
            let detail = format!("the instance of {} has another owner's mark", mark.key);
            return Err(OpError::permanent(Reason::NameConflict, detail));
        }
        if lock(&self.kept).as_ref().is_some_and(|prefix| mark.key.name().starts_with(prefix)) {
            return Err(OpError::transient(Reason::APIError, "it is locked"));
        }
        let (instances, uid) = (self.instances.clone(), mark.uid.clone());
        let in_parts = matches!(self.mood_for("delete"), Mood::InParts(_));
        let effect = move || {
            let mut instances = lock(&instances);
            match instances.get_mut(&uid) {
                Some(kept) if in_parts && kept.instance.state != InstanceState::Stopped => {
                    kept.instance.state = InstanceState::Stopped;
                }
                Some(_) | None => drop(instances.remove(&uid)),
            }
        };
        self.answer("delete", &mark.uid, effect).await
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        self.answer("list", &uid_of("all"), || ()).await?;
        let instances = lock(&self.instances);
        let is_asked_for =
            |mark: &OwnerMark| mark.operator == *operator && entry.is_none_or(|entry| mark.entry == *entry);
        let mut ours: Vec<_> = instances.values().filter(|kept| is_asked_for(&kept.mark)).collect();
        ours.sort_by(|a, b| a.mark.key.cmp(&b.mark.key));
        match *lock(&self.lists) {
            Lists::All => {}
            Lists::Late(by) => ours.retain(|kept| kept.since.elapsed() >= by),
            Lists::Nothing => ours.clear(),
            Lists::Half => ours = ours.into_iter().step_by(2).collect(),
        }
        Ok(ours.iter().map(|kept| Listed { mark: kept.mark.clone(), instance: kept.instance.clone() }).collect())
    }

    async fn check(&self) -> Result<(), OpError> {
        self.answer("check", &uid_of("all"), || ()).await
    }
}
