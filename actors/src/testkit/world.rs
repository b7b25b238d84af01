//! A whole operator on scripted ports: the world as a test says it is.
//!
//! Time is the runtime's: under a paused clock an hour takes a moment, and the order of everything is the same each time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::StreamExt;
use futures::channel::mpsc;
use futures::stream::BoxStream;
use secrecy::SecretString;

use crate::domain::desired::{
    Annotations, Attributes, CloudInit, Desired, Endpoint, External, Flavor, HealthCheck, Managed, Placement, Scheme,
    SecretRef,
};
use crate::domain::error::OpError;
use crate::domain::health::{Blame, Probe, ProbeFault, ProbeOutcome};
use crate::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use crate::domain::instance::{Credentials, Instance, InstanceSpec, InstanceState, Listed, OwnerMark, SecretBytes};
use crate::domain::plan::Settings;
use crate::domain::reason::Reason;
use crate::domain::status::{Phase, Status};
use crate::kit::clock::Clock;
use crate::kit::{Env, Root};
use crate::operator::{Handles, Operator, OperatorSettings, Ports};
use crate::ports::{
    Applied, Backend, Event, EventSink, HostEntry, Prober, ProviderEntry, ProviderHealth, ProxySource, Records,
    Rejected, Secrets, SourceEvent, Subject,
};
use crate::proxy::Deadlines;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// --- wishes

/// A managed Proxy `crawl/<name>` on a provider.
pub fn managed(name: &str, provider: &str) -> Desired {
    let flavor = Flavor::Managed(Managed {
        provider: ProviderName::parse(provider).expect("a valid provider name"),
        placement: Placement::default(),
        cloud_init: None,
        port: 3128,
        credentials: None,
    });
    desired(name, flavor)
}

/// A bought Proxy `crawl/<name>` at `<host>:3128`.
pub fn external(name: &str, host: &str) -> Desired {
    let endpoint = Endpoint { scheme: Scheme::Http, host: host.into(), port: 3128 };
    desired(name, Flavor::External(External { endpoint, credentials: None }))
}

fn desired(name: &str, flavor: Flavor) -> Desired {
    Desired {
        key: key(name),
        uid: Uid::parse(&format!("uid-{name}")).expect("a valid uid"),
        generation: 1,
        flavor,
        attributes: Attributes::from([("tier".into(), "dc".into())]),
        max_leases: 1,
        check: HealthCheck::default(),
        recreate_after: None,
        paused: false,
        deleting: false,
        finalizer: false,
        host: None,
        annotations: Annotations::default(),
    }
}

pub fn key(name: &str) -> ProxyKey {
    ProxyKey::new("crawl", name).expect("a valid name")
}

// --- objects

#[derive(Debug, Clone)]
struct Object {
    desired: Desired,
    status: Option<Status>,
}

/// An API server in memory: a source of objects, and the writer of what the operator records on them.
#[derive(Debug, Default)]
pub struct Store {
    objects: Mutex<BTreeMap<ProxyKey, Object>>,
    streams: Mutex<Vec<mpsc::UnboundedSender<SourceEvent>>>,
    writes: Mutex<HashMap<&'static str, u64>>,
    health: Mutex<BTreeMap<ProviderName, ProviderHealth>>,
}

impl Store {
    fn tell(&self, event: &SourceEvent) {
        lock(&self.streams).retain(|stream| stream.unbounded_send(event.clone()).is_ok());
    }

    fn tell_applied(&self, object: &Object) {
        self.tell(&SourceEvent::Applied(Applied {
            desired: Arc::new(object.desired.clone()),
            recorded: object.status.clone().map(Arc::new),
        }));
    }

    fn count(&self, what: &'static str) {
        *lock(&self.writes).entry(what).or_default() += 1;
    }

    /// Makes or replaces an object; what the operator recorded on one of the same uid stays.
    pub fn apply(&self, mut desired: Desired) {
        let mut objects = lock(&self.objects);
        let old = objects.get(&desired.key).filter(|old| old.desired.uid == desired.uid);
        let status = old.and_then(|old| old.status.clone());
        if let Some(old) = old {
            (desired.finalizer, desired.host) = (old.desired.finalizer, old.desired.host.clone());
        }
        let object = Object { desired, status };
        self.tell_applied(&object);
        objects.insert(object.desired.key.clone(), object);
    }

    /// Changes an object in place.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Desired)) {
        let mut objects = lock(&self.objects);
        let object = objects.get_mut(&key(name)).expect("the object is there");
        change(&mut object.desired);
        self.tell_applied(object);
    }

    /// Asks for the deletion of an object; without a finalizer it is gone at once.
    pub fn delete(&self, name: &str) {
        let mut objects = lock(&self.objects);
        let Some(object) = objects.get_mut(&key(name)) else { return };
        if object.desired.finalizer {
            object.desired.deleting = true;
            self.tell_applied(object);
        } else if let Some(object) = objects.remove(&key(name)) {
            self.tell(&SourceEvent::Gone { key: object.desired.key, uid: object.desired.uid });
        }
    }

    /// Tells that a newer version of an object is not valid.
    pub fn reject(&self, name: &str, message: &str) {
        let objects = lock(&self.objects);
        let object = objects.get(&key(name)).expect("the object is there");
        self.tell(&SourceEvent::Rejected(Rejected {
            key: object.desired.key.clone(),
            uid: object.desired.uid.clone(),
            generation: object.desired.generation + 1,
            message: message.to_owned(),
        }));
    }

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

    pub fn desired(&self, name: &str) -> Option<Desired> {
        lock(&self.objects).get(&key(name)).map(|object| object.desired.clone())
    }

    pub fn phase(&self, name: &str) -> Option<Phase> {
        self.status(name).map(|status| status.phase)
    }

    pub fn count_in(&self, phase: Phase) -> usize {
        lock(&self.objects).values().filter(|object| object.status.as_ref().is_some_and(|s| s.phase == phase)).count()
    }

    /// Writes so far: `finalizer`, `status`, `release`, ...
    pub fn writes(&self, what: &'static str) -> u64 {
        lock(&self.writes).get(what).copied().unwrap_or(0)
    }

    pub fn health(&self, entry: &str) -> Option<ProviderHealth> {
        lock(&self.health).get(&ProviderName::parse(entry).expect("a valid provider name")).cloned()
    }
}

impl ProxySource for Store {
    fn events(&self) -> BoxStream<'static, SourceEvent> {
        let objects = lock(&self.objects);
        let (sender, receiver) = mpsc::unbounded();
        let mut list = vec![SourceEvent::ListStarted];
        for object in objects.values() {
            list.push(SourceEvent::Applied(Applied {
                desired: Arc::new(object.desired.clone()),
                recorded: object.status.clone().map(Arc::new),
            }));
        }
        let living = objects.values().map(|o| (o.desired.key.clone(), o.desired.uid.clone())).collect();
        list.push(SourceEvent::Synced { living });
        for event in list {
            drop(sender.unbounded_send(event));
        }
        lock(&self.streams).push(sender);
        receiver.boxed()
    }
}

#[async_trait]
impl Records for Store {
    async fn adopt(&self, key: &ProxyKey, uid: &Uid, host: Option<&HostName>) -> Result<(), OpError> {
        self.count("finalizer");
        let mut objects = lock(&self.objects);
        let object = found(&mut objects, key, uid)?;
        object.desired.finalizer = true;
        object.desired.host = host.cloned();
        self.tell_applied(object);
        Ok(())
    }

    async fn release(&self, key: &ProxyKey, uid: &Uid) -> Result<(), OpError> {
        self.count("release");
        let mut objects = lock(&self.objects);
        let Ok(object) = found(&mut objects, key, uid) else { return Ok(()) };
        object.desired.finalizer = false;
        if object.desired.deleting {
            objects.remove(key);
            self.tell(&SourceEvent::Gone { key: key.clone(), uid: uid.clone() });
        } else {
            let object = object.clone();
            self.tell_applied(&object);
        }
        Ok(())
    }

    async fn write_status(&self, key: &ProxyKey, uid: &Uid, status: &Status) -> Result<(), OpError> {
        self.count("status");
        let mut objects = lock(&self.objects);
        let object = found(&mut objects, key, uid)?;
        object.status = Some(status.clone());
        self.tell_applied(object);
        Ok(())
    }

    async fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool) -> Result<(), OpError> {
        self.count("annotation");
        let mut objects = lock(&self.objects);
        let object = found(&mut objects, key, uid)?;
        object.desired.annotations.drain = drain;
        self.tell_applied(object);
        Ok(())
    }

    async fn write_provider_health(&self, health: &ProviderHealth) -> Result<(), OpError> {
        self.count("health");
        lock(&self.health).insert(health.entry.clone(), health.clone());
        Ok(())
    }

    async fn remove_provider_health(&self, entry: &ProviderName) -> Result<(), OpError> {
        lock(&self.health).remove(entry);
        Ok(())
    }

    async fn owner_exists(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        Ok(lock(&self.objects).get(key).is_some_and(|object| object.desired.uid == *uid))
    }
}

fn found<'a>(
    objects: &'a mut BTreeMap<ProxyKey, Object>,
    key: &ProxyKey,
    uid: &Uid,
) -> Result<&'a mut Object, OpError> {
    objects
        .get_mut(key)
        .filter(|object| object.desired.uid == *uid)
        .ok_or_else(|| OpError::not_found(format!("proxy `{key}` is gone")))
}

// --- backends

/// How a scripted host answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mood {
    /// After so long.
    Works(Duration),
    /// Never.
    Hangs,
    /// At once, with this.
    Fails(OpError),
    /// The adapter panics.
    Panics,
}

/// A host in memory.
#[derive(Debug)]
pub struct ScriptedHost {
    name: String,
    mood: Mutex<Mood>,
    instances: Mutex<HashMap<Uid, (OwnerMark, Instance)>>,
    calls: Mutex<Vec<(&'static str, Uid)>>,
}

impl ScriptedHost {
    fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            mood: Mutex::new(Mood::Works(Duration::from_millis(50))),
            instances: Mutex::default(),
            calls: Mutex::default(),
        })
    }

    pub fn set(&self, mood: Mood) {
        *lock(&self.mood) = mood;
    }

    /// Uids of the instances that are there.
    pub fn instances(&self) -> Vec<Uid> {
        lock(&self.instances).keys().cloned().collect()
    }

    /// Changes what the backend tells of an instance, as if somebody had touched it by hand.
    pub fn touch(&self, name: &str, change: impl FnOnce(&mut Instance)) {
        let uid = Uid::parse(&format!("uid-{name}")).expect("a valid uid");
        change(&mut lock(&self.instances).get_mut(&uid).expect("the instance is there").1);
    }

    /// Removes an instance behind the operator's back.
    pub fn lose(&self, name: &str) {
        let uid = Uid::parse(&format!("uid-{name}")).expect("a valid uid");
        lock(&self.instances).remove(&uid);
    }

    /// How often a kind of call came in for a Proxy.
    pub fn calls(&self, kind: &str, name: &str) -> usize {
        let uid = format!("uid-{name}");
        lock(&self.calls).iter().filter(|(k, u)| *k == kind && u.as_str() == uid).count()
    }

    pub fn all_calls(&self, kind: &str) -> usize {
        lock(&self.calls).iter().filter(|(k, _)| *k == kind).count()
    }

    async fn answer(&self, kind: &'static str, uid: &Uid) -> Result<(), OpError> {
        lock(&self.calls).push((kind, uid.clone()));
        let mood = lock(&self.mood).clone();
        match mood {
            Mood::Works(after) => {
                tokio::time::sleep(after).await;
                Ok(())
            }
            Mood::Hangs => std::future::pending().await,
            Mood::Fails(error) => Err(error),
            Mood::Panics => panic!("scripted panic of host {}", self.name),
        }
    }
}

#[async_trait]
impl Backend for ScriptedHost {
    async fn create(&self, spec: &InstanceSpec) -> Result<Instance, OpError> {
        self.answer("create", &spec.mark.uid).await?;
        let mut instances = lock(&self.instances);
        let instance = instances.entry(spec.mark.uid.clone()).or_insert_with(|| {
            let instance = Instance {
                provider_id: format!("scripted://{}/{}/{}", spec.mark.entry, self.name, spec.mark.uid).into(),
                state: InstanceState::Running,
                endpoint: Some(Endpoint {
                    scheme: Scheme::Http,
                    host: format!("{}.{}", spec.mark.key.name(), self.name).into(),
                    port: spec.port,
                }),
                generated: None,
                created_at: Some(SystemTime::now()),
            };
            (spec.mark.clone(), instance)
        });
        Ok(instance.1.clone())
    }

    async fn get(&self, mark: &OwnerMark) -> Result<Instance, OpError> {
        self.answer("get", &mark.uid).await?;
        lock(&self.instances)
            .get(&mark.uid)
            .map(|(_, instance)| instance.clone())
            .ok_or_else(|| OpError::not_found(format!("no instance of {}", mark.key)))
    }

    async fn delete(&self, mark: &OwnerMark) -> Result<(), OpError> {
        self.answer("delete", &mark.uid).await?;
        lock(&self.instances).remove(&mark.uid);
        Ok(())
    }

    async fn list(&self, operator: &OperatorId) -> Result<Vec<Listed>, OpError> {
        self.answer("list", &Uid::parse("all").expect("a valid uid")).await?;
        let instances = lock(&self.instances);
        let ours = instances.values().filter(|(mark, _)| mark.operator == *operator);
        Ok(ours.map(|(mark, instance)| Listed { mark: mark.clone(), instance: instance.clone() }).collect())
    }

    async fn check(&self) -> Result<(), OpError> {
        self.answer("check", &Uid::parse("all").expect("a valid uid")).await
    }
}

// --- probes

/// How the proxies of one host name answer probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    Open,
    /// Takes the probe and never answers.
    Swallows,
    Fails(Blame, Reason),
}

/// A network in memory. Every endpoint is open unless a test says otherwise, by suffix of its host name.
#[derive(Debug, Default)]
pub struct ScriptedProber {
    paths: Mutex<Vec<(String, Path)>>,
    direct_fails: Mutex<bool>,
    probes: Mutex<u64>,
    seen: Seen,
}

type See = dyn Fn(&Probe) + Send + Sync;

#[derive(Default)]
struct Seen(OnceLock<Box<See>>);

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seen")
    }
}

impl ScriptedProber {
    /// Shows each probe as it begins, to the first who asks.
    pub fn on_probe(&self, see: impl Fn(&Probe) + Send + Sync + 'static) {
        let _first_wins = self.seen.0.set(Box::new(see));
    }

    /// From now on the endpoints whose host ends with `suffix` answer like this.
    pub fn set(&self, suffix: &str, path: Path) {
        let mut paths = lock(&self.paths);
        paths.retain(|(known, _)| known != suffix);
        paths.push((suffix.to_owned(), path));
    }

    pub fn set_direct_fails(&self, fails: bool) {
        *lock(&self.direct_fails) = fails;
    }

    pub fn probes(&self) -> u64 {
        *lock(&self.probes)
    }
}

#[async_trait]
impl Prober for ScriptedProber {
    async fn probe(&self, probe: &Probe) -> ProbeOutcome {
        *lock(&self.probes) += 1;
        if let Some(see) = self.seen.0.get() {
            see(probe);
        }
        let found =
            lock(&self.paths).iter().rev().find(|(s, _)| probe.endpoint.host.ends_with(s)).map(|(_, p)| p.clone());
        let fault = |blame, reason| Some(ProbeFault { blame, reason, detail: format!("scripted {reason}") });
        let (latency, fault) = match found.unwrap_or(Path::Open) {
            Path::Open => (Duration::from_millis(5), None),
            Path::Swallows => (probe.timeout, fault(Blame::Proxy, Reason::ProxyTimeout)),
            Path::Fails(blame, reason) => (Duration::from_millis(5), fault(blame, reason)),
        };
        tokio::time::sleep(latency).await;
        ProbeOutcome { latency, exit_ip: None, fault }
    }

    async fn direct(&self, _: &Probe) -> ProbeOutcome {
        let fails = *lock(&self.direct_fails);
        let fault = ProbeFault { blame: Blame::Target, reason: Reason::TargetTimeout, detail: "scripted".to_owned() };
        ProbeOutcome { latency: Duration::ZERO, exit_ip: None, fault: fails.then_some(fault) }
    }
}

// --- events and secrets

/// Keeps what was told.
#[derive(Debug, Default)]
pub struct RecordingSink {
    events: Mutex<Vec<Event>>,
}

impl RecordingSink {
    pub fn events(&self) -> Vec<Event> {
        lock(&self.events).clone()
    }

    pub fn about(&self, name: &str) -> Vec<Event> {
        let key = key(name);
        self.events().into_iter().filter(|e| matches!(&e.about, Subject::Proxy(k, _) if *k == key)).collect()
    }
}

#[async_trait]
impl EventSink for RecordingSink {
    fn emit(&self, event: Event) {
        lock(&self.events).push(event);
    }

    async fn emit_acked(&self, event: Event) -> Result<(), OpError> {
        lock(&self.events).push(event);
        Ok(())
    }
}

/// Secrets by `namespace/name`; reading those of a cursed name panics in whoever reads.
#[derive(Debug, Default)]
pub struct StaticSecrets(Mutex<HashMap<String, (String, String)>>);

impl StaticSecrets {
    pub fn put(&self, name: &str, username: &str, password: &str) {
        lock(&self.0).insert(name.to_owned(), (username.to_owned(), password.to_owned()));
    }
}

#[async_trait]
impl Secrets for StaticSecrets {
    async fn credentials(&self, namespace: &str, secret: &SecretRef) -> Result<Credentials, OpError> {
        let found = lock(&self.0).get(&*secret.name).cloned();
        let (username, password) = found.ok_or_else(|| {
            OpError::transient(Reason::SecretNotFound, format!("secret `{namespace}/{}` not found", secret.name))
        })?;
        Ok(Credentials { username: username.into(), password: Arc::new(SecretString::from(password)) })
    }

    async fn user_data(&self, _: &str, cloud_init: &CloudInit) -> Result<SecretBytes, OpError> {
        match cloud_init {
            CloudInit::Inline(text) => Ok(SecretBytes(text.as_bytes().into())),
            CloudInit::Secret { name, .. } => {
                Err(OpError::transient(Reason::SecretNotFound, format!("secret `{name}` not found")))
            }
        }
    }
}

// --- the whole

/// A running operator with everything that a test wants to see or change.
#[derive(Debug)]
pub struct World {
    pub store: Arc<Store>,
    pub sink: Arc<RecordingSink>,
    pub secrets: Arc<StaticSecrets>,
    pub prober: Arc<ScriptedProber>,
    pub hosts: HashMap<String, Arc<ScriptedHost>>,
    pub handles: Handles,
    entries: Vec<ProviderEntry>,
    settings: OperatorSettings,
    root: Option<Root>,
}

/// An entry's name and its hosts, with their capacity.
pub type Entry = (&'static str, Vec<(&'static str, Option<u32>)>);

type Ported = (Arc<Store>, Arc<RecordingSink>, Arc<StaticSecrets>, Arc<ScriptedProber>);

/// What a world is made of, before it runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub entries: Vec<Entry>,
    pub workers: usize,
    pub deadlines: Deadlines,
    pub life: Settings,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            entries: vec![("lab", vec![("hv1", None)])],
            workers: 64,
            deadlines: Deadlines::default(),
            life: Settings::default(),
        }
    }
}

impl World {
    /// One entry `lab` with one host `hv1`.
    pub fn start() -> Self {
        Self::start_with(&Plan::default())
    }

    pub fn start_with(plan: &Plan) -> Self {
        let mut hosts = HashMap::new();
        let entries: Vec<_> = plan
            .entries
            .iter()
            .map(|(name, members)| ProviderEntry {
                name: ProviderName::parse(name).expect("a valid provider name"),
                kind: "scripted",
                revision: 1,
                hosts: members
                    .iter()
                    .map(|(host, capacity)| {
                        let backend = ScriptedHost::new(host);
                        hosts.insert((*host).to_owned(), backend.clone());
                        let name = HostName::parse(host).expect("a valid host name");
                        HostEntry { name, capacity: *capacity, slots: 4, backend }
                    })
                    .collect(),
                settle: Duration::from_secs(1),
                address_timeout: Duration::from_secs(300),
                may_generate_credentials: false,
            })
            .collect();
        let settings = OperatorSettings {
            operator: OperatorId::parse("test").expect("a valid id"),
            epoch: 1,
            life: plan.life.clone(),
            deadlines: plan.deadlines,
            check_interval: Duration::from_secs(60),
            check_timeout: Duration::from_secs(15),
            health_workers: plan.workers,
            probe_target: Arc::new("https://target.example/generate_204".parse().expect("a valid URL")),
            max_lease_ttl: Duration::from_secs(3600),
            lease_cooldown: Duration::from_secs(300),
            serve_without_claim: false,
            edge: None,
        };
        let ports = (Arc::default(), Arc::default(), Arc::default(), Arc::default());
        Self::run(ports, hosts, entries, settings)
    }

    fn run(
        (store, sink, secrets, prober): Ported,
        hosts: HashMap<String, Arc<ScriptedHost>>,
        entries: Vec<ProviderEntry>,
        settings: OperatorSettings,
    ) -> Self {
        let env = Env::new(Clock::derived());
        let ports = Ports {
            source: store.clone(),
            records: store.clone(),
            events: sink.clone(),
            secrets: secrets.clone(),
            prober: prober.clone(),
        };
        let operator = Operator::wire(&env, &ports, entries.clone(), &settings);
        let handles = operator.handles.clone();
        let root = Some(operator.start(Vec::new()));
        Self { store, sink, secrets, prober, hosts, handles, entries, settings, root }
    }

    pub fn host(&self, name: &str) -> &ScriptedHost {
        &self.hosts[name]
    }

    /// The configured entries, to be changed and given to `handles.providers.configure`.
    pub fn entries(&self) -> Vec<ProviderEntry> {
        self.entries.clone()
    }

    /// Stops the operator in order and starts another one on the same world.
    pub async fn restart(mut self) -> Self {
        self.stop_in_place().await;
        let Self { store, sink, secrets, prober, hosts, entries, settings, .. } = self;
        let settings = OperatorSettings { epoch: settings.epoch + 1, ..settings };
        Self::run((store, sink, secrets, prober), hosts, entries, settings)
    }

    /// Stops the operator. True if it ended in order.
    pub async fn stop(mut self) -> bool {
        self.stop_in_place().await
    }

    async fn stop_in_place(&mut self) -> bool {
        match self.root.take() {
            Some(root) => root.stop_within(Duration::from_secs(120)).await,
            None => true,
        }
    }

    /// Waits until something holds, for at most so long of the runtime's time. The message says what was waited for.
    pub async fn eventually(&self, what: &str, within: Duration, holds: impl Fn(&Self) -> bool) {
        let limit = tokio::time::Instant::now() + within;
        while !holds(self) {
            assert!(tokio::time::Instant::now() < limit, "not within {within:?}: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub async fn ready(&self, name: &str) {
        let what = format!("{name} is Ready");
        self.eventually(&what, Duration::from_secs(120), |world| world.store.phase(name) == Some(Phase::Ready)).await;
    }
}
