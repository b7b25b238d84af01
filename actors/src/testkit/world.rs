//! A whole operator on scripted ports: the world as a test says it is.
//!
//! Time is the runtime's: under a paused clock an hour takes a moment, and the order of everything is the same each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use super::backend::{Lists, Mood, ScriptedHost, Seen};
pub use super::network::{Look, Path, ScriptedProber};
pub use super::replica::{Claims, Line, Outage};
use super::replica::{LinedHost, LinedStore, Seat};
pub use super::store::Store;
pub use super::told::{RecordingSink, StaticSecrets};
pub use super::wishes::{any, external, key, managed, on, only, with_secret};
use crate::domain::id::{HostName, OperatorId, ProviderName};
use crate::domain::lease_book::{Ask, Lease};
use crate::domain::plan::Settings;
use crate::domain::status::Phase;
use crate::kit::clock::Clock;
use crate::kit::{Env, Root, tree};
use crate::leases::NotGranted;
use crate::operator::{Handles, Operator, OperatorSettings, Ports};
use crate::ports::{HostEntry, ProviderEntry};
use crate::proxy::Deadlines;
use crate::sweep::SweepSettings;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running operator with everything that a test wants to see or change.
#[derive(Debug)]
pub struct World {
    pub store: Arc<Store>,
    pub sink: Arc<RecordingSink>,
    pub secrets: Arc<StaticSecrets>,
    pub prober: Arc<ScriptedProber>,
    pub hosts: HashMap<String, Arc<ScriptedHost>>,
    pub handles: Handles,
    /// Everything that this replica does goes through it; nothing in a world without an election.
    pub line: Arc<Line>,
    entries: Vec<ProviderEntry>,
    settings: OperatorSettings,
    seat: Option<Seat>,
    root: Option<Root>,
}

/// An entry's name and its hosts, with their capacity.
pub type Entry = (&'static str, Vec<(&'static str, Option<u32>)>);

type Ported = (Arc<Store>, Arc<RecordingSink>, Arc<StaticSecrets>, Arc<ScriptedProber>);

/// What a world is made of, before it runs.
#[derive(Debug, Clone)]
pub struct Plan {
    pub entries: Vec<Entry>,
    /// Further entries, with adapters of the caller's own.
    pub given: Vec<ProviderEntry>,
    /// The objects of an earlier world; without them there are none.
    pub store: Option<Arc<Store>>,
    pub workers: usize,
    pub deadlines: Deadlines,
    pub life: Settings,
    /// Operations that run at once on each host.
    pub slots: usize,
    pub serve_without_claim: bool,
    /// None: nothing is swept.
    pub sweep: Option<SweepSettings>,
    /// Stands for election under this name.
    pub identity: Option<&'static str>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            entries: vec![("lab", vec![("hv1", None)])],
            given: Vec::new(),
            store: None,
            workers: 64,
            deadlines: Deadlines::default(),
            life: Settings::default(),
            slots: 4,
            serve_without_claim: false,
            sweep: None,
            identity: None,
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
                backend: format!("scripted/{name}").into(),
                hosts: members
                    .iter()
                    .map(|(host, capacity)| {
                        let backend = ScriptedHost::new(host);
                        hosts.insert((*host).to_owned(), backend.clone());
                        let ids = format!("scripted://{name}/{host}/").into();
                        let name = HostName::parse(host).expect("a valid host name");
                        HostEntry { name, ids, capacity: *capacity, slots: plan.slots, backend }
                    })
                    .collect(),
                settle: Duration::from_secs(1),
                address_timeout: Duration::from_secs(300),
                may_generate_credentials: false,
            })
            .chain(plan.given.iter().cloned())
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
            serve_without_claim: plan.serve_without_claim,
            sweep: plan.sweep.clone(),
            edge: None,
        };
        let store = plan.store.clone().unwrap_or_default();
        let ports = (store, Arc::default(), Arc::default(), Arc::default());
        let seat = plan.identity.map(|identity| Seat {
            claims: Arc::default(),
            line: Arc::default(),
            identity: identity.into(),
        });
        Self::run(ports, hosts, entries, settings, seat)
    }

    /// Another replica of the same operator, on the same objects, hosts and record; with its own sight of the network.
    ///
    /// # Panics
    /// If this one does not stand for election.
    #[must_use]
    pub fn beside(&self, identity: &str) -> Self {
        let seat = self.seat.as_ref().expect("it stands for election");
        let seat = Seat { claims: seat.claims.clone(), line: Arc::default(), identity: identity.into() };
        let ports = (self.store.clone(), Arc::default(), self.secrets.clone(), Arc::default());
        Self::run(ports, self.hosts.clone(), self.entries.clone(), self.settings.clone(), Some(seat))
    }

    /// The record that the replicas share.
    ///
    /// # Panics
    /// If this one does not stand for election.
    pub fn claims(&self) -> &Claims {
        &self.seat.as_ref().expect("it stands for election").claims
    }

    /// Ends the operator as `kill -9` does: nothing that it has under way is finished, and nothing is let go.
    pub async fn kill(mut self) {
        self.line.cut(Some(Outage::Hangs));
        if let Some(root) = self.root.take() {
            root.stop_within(Duration::ZERO).await;
        }
    }

    fn run(
        (store, sink, secrets, prober): Ported,
        hosts: HashMap<String, Arc<ScriptedHost>>,
        entries: Vec<ProviderEntry>,
        settings: OperatorSettings,
        seat: Option<Seat>,
    ) -> Self {
        let line = seat.as_ref().map(|seat| seat.line.clone()).unwrap_or_default();
        let env = Env::new(Clock::derived());
        let ports = Ports {
            source: store.clone(),
            records: Arc::new(LinedStore(store.clone(), line.clone())),
            events: sink.clone(),
            secrets: secrets.clone(),
            prober: prober.clone(),
            candidacy: seat.as_ref().map(Seat::candidacy),
        };
        let operator = Operator::wire(&env, &ports, lined(&entries, &hosts, &line), &settings);
        let handles = operator.handles.clone();
        let root = Some(operator.start(Vec::new(), Vec::new()));
        Self { store, sink, secrets, prober, hosts, handles, line, entries, settings, seat, root }
    }

    /// A running actor panics at its next so many messages; one that is cursed for ever has `u32::MAX`.
    pub fn curse(&self, path: &str, times: u32) {
        self.handles.env.registry.curse(path, times);
    }

    /// How often the actor at this place was restarted; none if there is no such place.
    pub fn restarts(&self, path: &str) -> Option<u32> {
        self.handles.env.registry.get(path).map(|stat| stat.restarts())
    }

    /// Drops what was recorded of the past, for whoever weighs the operator and not its records.
    pub fn forget_the_past(&self) {
        self.hosts.values().for_each(|host| host.forget());
        self.prober.forget();
        self.sink.forget();
        self.store.forget();
    }

    /// The tree as text, for messages.
    pub fn tree(&self) -> String {
        tree::draw(&tree::snapshot(&self.handles.env.registry))
    }

    /// The leases of one ask, at once.
    pub async fn lease(&self, ask: Ask) -> Result<Vec<Lease>, NotGranted> {
        self.handles.leases.acquire(ask).await.expect("the registry answers").map(|granted| granted.leases)
    }

    pub fn host(&self, name: &str) -> &ScriptedHost {
        &self.hosts[name]
    }

    /// The configured entries, to be changed and given to `handles.providers.configure`.
    pub fn entries(&self) -> Vec<ProviderEntry> {
        self.entries.clone()
    }

    /// Changes the configuration of an entry while the operator runs.
    pub fn reconfigure(&mut self, name: &str, change: impl FnOnce(&mut ProviderEntry)) {
        let entry = self.entries.iter_mut().find(|entry| entry.name.as_str() == name).expect("the entry is there");
        entry.revision += 1;
        change(entry);
        self.handles.providers.configure(self.entries.clone());
    }

    /// Takes an entry out of the configuration; what it was comes back, to be put in again.
    pub fn unconfigure(&mut self, name: &str) -> ProviderEntry {
        let at = self.entries.iter().position(|entry| entry.name.as_str() == name).expect("the entry is there");
        let entry = self.entries.remove(at);
        self.handles.providers.configure(self.entries.clone());
        entry
    }

    pub fn configure(&mut self, entry: ProviderEntry) {
        self.entries.push(entry);
        self.handles.providers.configure(self.entries.clone());
    }

    /// Stops the operator in order and starts another one on the same world.
    pub async fn restart(mut self) -> Self {
        self.stop_in_place().await;
        let Self { store, sink, secrets, prober, hosts, entries, settings, seat, .. } = self;
        let settings = OperatorSettings { epoch: settings.epoch + 1, ..settings };
        Self::run((store, sink, secrets, prober), hosts, entries, settings, seat)
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

/// The entries with hosts as this replica reaches them.
fn lined(
    entries: &[ProviderEntry],
    hosts: &HashMap<String, Arc<ScriptedHost>>,
    line: &Arc<Line>,
) -> Vec<ProviderEntry> {
    let mut entries = entries.to_vec();
    for host in entries.iter_mut().flat_map(|entry| &mut entry.hosts) {
        if let Some(scripted) = hosts.get(host.name.as_str()) {
            host.backend = Arc::new(LinedHost(scripted.clone(), line.clone()));
        }
    }
    entries
}
