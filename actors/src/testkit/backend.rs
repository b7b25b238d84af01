//! A host of a provider in memory, as a test says it is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::world::lock;
use crate::domain::desired::{Endpoint, Scheme};
use crate::domain::error::OpError;
use crate::domain::id::{OperatorId, ProviderName, Uid};
use crate::domain::instance::{Instance, InstanceSpec, InstanceState, Listed, OwnerMark};
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

type Instances = Arc<Mutex<HashMap<Uid, (OwnerMark, Instance)>>>;

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
        lock(&self.instances).get(&uid_of(name)).map(|(_, instance)| instance.provider_id.clone())
    }

    /// Changes what the backend tells of an instance, as if somebody had touched it by hand.
    pub fn touch(&self, name: &str, change: impl FnOnce(&mut Instance)) {
        change(&mut lock(&self.instances).get_mut(&uid_of(name)).expect("the instance is there").1);
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

    async fn answer(
        &self,
        kind: &'static str,
        uid: &Uid,
        effect: impl FnOnce() + Send + 'static,
    ) -> Result<(), OpError> {
        lock(&self.calls).push(Seen { kind, uid: uid.clone(), at: Instant::now() });
        *lock(&self.running) += 1;
        let _counted = Counted(self.running.clone());
        let mood = lock(&self.but).get(kind).cloned().unwrap_or_else(|| lock(&self.mood).clone());
        match mood {
            Mood::Works(after) => {
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
            lock(&instances).entry(mark.uid.clone()).or_insert((mark, instance));
        };
        self.answer("create", &uid, effect).await?;
        let made = lock(&self.instances).get(&uid).map(|(_, instance)| instance.clone());
        made.ok_or_else(|| OpError::not_found("it was removed while it was made"))
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        self.answer("get", &mark.uid, || ()).await?;
        lock(&self.instances)
            .get(&mark.uid)
            .map(|(_, instance)| instance.clone())
            .ok_or_else(|| OpError::not_found(format!("no instance of {}", mark.key)))
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        let (instances, uid) = (self.instances.clone(), mark.uid.clone());
        self.answer("delete", &mark.uid, move || drop(lock(&instances).remove(&uid))).await
    }

    async fn list(&self, operator: &OperatorId, entry: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
        self.answer("list", &uid_of("all"), || ()).await?;
        let instances = lock(&self.instances);
        let is_asked_for =
            |mark: &OwnerMark| mark.operator == *operator && entry.is_none_or(|entry| mark.entry == *entry);
        let ours = instances.values().filter(|(mark, _)| is_asked_for(mark));
        Ok(ours.map(|(mark, instance)| Listed { mark: mark.clone(), instance: instance.clone() }).collect())
    }

    async fn check(&self) -> Result<(), OpError> {
        self.answer("check", &uid_of("all"), || ()).await
    }
}
