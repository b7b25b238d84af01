//! The index of the fleet: one actor per Proxy, started, replaced, parked and forgotten here.
//!
//! Owns who lives, by uid. Spoken to by the watch and by `providers`. Decides nothing about a Proxy's life but this: one
//! that keeps crashing is parked, so that it never takes its siblings down; any accepted change, or a long delay, wakes
//! it; and where somebody gave its instance up (`skip-cleanup`), the deletion of a parked one is completed here.
//!
//! ```text
//!   Up -- ends unasked --> Up (again) -- too often --> Parked -- change or delay --> Up
//!    '-- object gone, or another uid --> Ending --> forgotten, or Up with the new object
//!   Kept -- this replica begins to lead --> Up
//! ```

mod parking;
mod standby;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use crate::board::ProxyView;
use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use crate::domain::reason::Reason;
use crate::domain::status::{Condition, ConditionType, Phase, Status, Truth};
use crate::domain::sweep::Roll;
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildEnd, ChildSpec, Ctx, Exit, Fired, Ref, Reply, Timers};
use crate::ports::{Applied, Event, Rejected, Severity, Subject};
use crate::proxy::{ProxyHandle, Wires};

/// Between attempts to drop the finalizer of a parked Proxy that was given up.
const LET_GO_EVERY: Duration = Duration::from_secs(10);

/// The verbs of the fleet's index.
#[derive(Debug, Clone)]
pub struct ProxiesHandle(Ref<ProxiesMsg>, Arc<Known>);

/// What outlives an incarnation of the index.
#[derive(Debug, Default)]
struct Known {
    announced: AtomicBool,
    incarnations: AtomicU64,
}

impl ProxiesHandle {
    #[expect(clippy::new_without_default, reason = "a handle is made once, for its actor")]
    pub fn new() -> Self {
        Self(Ref::new("proxies"), Arc::default())
    }

    pub fn spec(&self, wires: Arc<Wires>) -> ChildSpec {
        // Thousands of children end together; each needs a moment on two cores.
        let known = self.1.clone();
        ChildSpec::of::<Proxies>("proxies", &self.0, move || (wires.clone(), known.clone()))
            .stop_within(Duration::from_secs(20))
    }

    /// Every Proxy that was known when this replica began to lead has had the time to announce itself to the registry.
    pub fn are_announced(&self) -> bool {
        self.1.announced.load(Relaxed)
    }

    /// The role of this replica changed.
    pub fn claim_changed(&self) {
        self.0.cast_or_drop(ProxiesMsg::ClaimChanged);
    }

    pub fn applied(&self, applied: Applied) {
        self.0.cast_or_drop(ProxiesMsg::Applied(Box::new(applied)));
    }

    pub fn rejected(&self, rejected: Rejected) {
        self.0.cast_or_drop(ProxiesMsg::Rejected(Box::new(rejected)));
    }

    pub fn gone(&self, key: ProxyKey, uid: Uid) {
        self.0.cast_or_drop(ProxiesMsg::Gone(key, uid));
    }

    pub fn synced(&self, living: Vec<(ProxyKey, Uid)>) {
        self.0.cast_or_drop(ProxiesMsg::Synced(living));
    }

    pub fn secret_changed(&self, namespace: Arc<str>, name: Arc<str>) {
        self.0.cast_or_drop(ProxiesMsg::SecretChanged(namespace, name));
    }

    /// Entries of the providers config came, changed or went.
    pub fn providers_changed(&self) {
        self.0.cast_or_drop(ProxiesMsg::ProvidersChanged);
    }

    /// Who lives: every object that is known, valid or not. None while this replica does not lead, and until the first
    /// complete list of all objects. Answers exactly once, also when the index dies with the question.
    pub fn roll_call(&self, done: impl FnOnce(Option<Roll>) + Send + 'static) {
        self.0.cast_or_drop(ProxiesMsg::RollCall(Reply::new(done, || None)));
    }

    /// A host passed its check after it had failed it.
    pub fn host_recovered(&self, provider: ProviderName, host: HostName) {
        self.0.cast_or_drop(ProxiesMsg::HostRecovered(provider, host));
    }
}

enum ProxiesMsg {
    /// An object is there.
    Applied(Box<Applied>),
    /// An object is there and not valid.
    Rejected(Box<Rejected>),
    /// The object of this uid is gone.
    Gone(ProxyKey, Uid),
    /// Who is not in the list is gone.
    Synced(Vec<(ProxyKey, Uid)>),
    SecretChanged(Arc<str>, Arc<str>),
    ProvidersChanged,
    HostRecovered(ProviderName, HostName),
    /// Who lives?
    RollCall(Reply<Option<Roll>>),
    /// The role of this replica changed.
    ClaimChanged,
    /// More of those that were kept are to be started.
    StartKept,
    /// The given-up instance of a parked Proxy was told of, or not; if so, its finalizer may go.
    GivenUp(ProxyKey, Uid, Result<(), OpError>),
    /// Its finalizer was not dropped.
    StillHeld(ProxyKey, Uid),
    Timer(Fired<Alarm>),
}

crate::named!(ProxiesMsg: Applied, Rejected, Gone, Synced, SecretChanged, ProvidersChanged, HostRecovered, RollCall,
    ClaimChanged, StartKept, GivenUp, StillHeld, Timer);

struct Member {
    /// The recorded status only while it is not on the board.
    applied: Applied,
    /// The object has a newer generation that is not valid.
    rejected: Option<Box<Rejected>>,
    proxy: ProxyHandle,
    life: Life,
    crashes: VecDeque<Instant>,
    /// It is parked and its instance is given up: the event about that is being written, or was.
    given_up: bool,
    /// How often that event could not be written.
    untold: u32,
}

enum Life {
    Up,
    /// Its object is gone; the actor ends. The object that has its name now, if any, comes next.
    Ending(Option<Applied>),
    Parked,
    /// Known, and without an actor: this replica stands by.
    Kept,
}

struct Proxies {
    wires: Arc<Wires>,
    /// The claim that the actors are under; none while this replica stands by.
    epoch: Option<u32>,
    /// Kept ones whose turn is yet to come.
    to_start: Vec<ProxyKey>,
    known: Arc<Known>,
    /// Of this index.
    incarnation: u64,
    /// All Proxies that there are have been heard of.
    synced: bool,
    members: HashMap<ProxyKey, Member>,
    /// Objects that never were valid, as they were last told: a source that repeats itself must not be answered by a
    /// write each time, which it would repeat.
    invalid: HashMap<ProxyKey, Rejected>,
    timers: Timers<Alarm>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Alarm {
    /// A parked one is tried again.
    Wake(ProxyKey),
    /// The finalizer of a parked one could not be dropped: once more.
    LetGo(ProxyKey),
    /// The event about what a parked one leaves could not be written: once more.
    GiveUp(ProxyKey),
    /// The registry has heard of all that were kept.
    Announced,
}

impl Proxies {
    fn applied(&mut self, applied: Applied, ctx: &mut Ctx<ProxiesMsg>) {
        let key = applied.desired.key.clone();
        self.invalid.remove(&key);
        let Some(member) = self.members.get_mut(&key) else {
            return self.welcome(applied, ctx);
        };
        if member.applied.desired.uid != applied.desired.uid {
            // The name was given to another object: nothing of the old one passes to it.
            match &mut member.life {
                Life::Ending(next) => *next = Some(applied),
                Life::Up => {
                    member.life = Life::Ending(Some(applied));
                    ctx.stop_child(&child_id(&key));
                }
                Life::Parked | Life::Kept => {
                    self.forget(&key, ctx);
                    self.welcome(applied, ctx);
                }
            }
            return;
        }
        let desired = applied.desired.sharing(&member.applied.desired);
        let changed = !Arc::ptr_eq(&member.applied.desired, &desired) || member.rejected.is_some();
        let shown = matches!(member.life, Life::Up) && self.wires.board.get_of(&key, &desired.uid).is_some();
        member.applied = Applied { desired, recorded: applied.recorded.filter(|_| !shown) };
        member.rejected = None;
        match &member.life {
            Life::Up if changed => member.proxy.desired(member.applied.desired.clone()),
            Life::Parked if member.applied.desired.deleting && member.applied.desired.annotations.skip_cleanup => {
                self.give_up(&key, ctx);
            }
            Life::Parked if changed => self.wake(&key, ctx),
            // Our own status coming back, for example.
            Life::Up | Life::Parked | Life::Kept => {}
            // It was told gone, and is there after all.
            Life::Ending(_) => member.life = Life::Ending(Some(member.applied.clone())),
        }
    }

    fn welcome(&mut self, applied: Applied, ctx: &mut Ctx<ProxiesMsg>) {
        let key = applied.desired.key.clone();
        let proxy = ProxyHandle::new(&key);
        let member = Member {
            applied,
            rejected: None,
            proxy,
            life: Life::Kept,
            crashes: VecDeque::new(),
            given_up: false,
            untold: 0,
        };
        self.members.insert(key.clone(), member);
        if self.epoch.is_some() {
            self.start(&key, ctx);
        }
    }

    fn start(&mut self, key: &ProxyKey, ctx: &mut Ctx<ProxiesMsg>) {
        let Some(member) = self.members.get_mut(key) else { return };
        (member.life, member.given_up) = (Life::Up, false);
        let mut applied = member.applied.clone();
        // From here on the status is on the board, and nowhere else: there are thousands.
        let shown = self.wires.board.get_of(key, &applied.desired.uid);
        match (shown, member.applied.recorded.take()) {
            (Some(view), _) => applied.recorded = Some(view.status.clone()),
            (None, Some(recorded)) => self.wires.board.put(ProxyView::new(&applied.desired, recorded)),
            (None, None) => {}
        }
        let spec = member.proxy.spec(child_id(key), applied, member.rejected.clone(), self.epoch, self.wires.clone());
        ctx.start(spec);
    }

    fn rejected(&mut self, rejected: Box<Rejected>, ctx: &mut Ctx<ProxiesMsg>) {
        let other = self.members.get(&rejected.key).map(|member| member.applied.desired.uid.clone());
        if let Some(other) = other.filter(|uid| *uid != rejected.uid) {
            // The name was given to another object.
            self.gone(&rejected.key, &other, ctx);
        }
        let same = |member: &&mut Member| member.applied.desired.uid == rejected.uid;
        if let Some(member) = self.members.get_mut(&rejected.key).filter(same) {
            member.rejected = Some(rejected.clone());
            if matches!(member.life, Life::Up) {
                member.proxy.rejected(rejected);
            }
            return;
        }
        // There is no good version to go on with: it is told on the object, once, and nothing else happens.
        let told = self.invalid.get(&rejected.key).is_some_and(|told| {
            (&told.uid, told.generation, &told.message) == (&rejected.uid, rejected.generation, &rejected.message)
        });
        if !told {
            if self.epoch.is_some() {
                self.tell_invalid(&rejected, ctx.now().wall);
            }
            self.invalid.insert(rejected.key.clone(), *rejected);
        }
    }

    fn tell_invalid(&self, rejected: &Rejected, now: SystemTime) {
        let condition = |kind, truth| Condition {
            kind,
            truth,
            reason: Reason::SpecInvalid,
            message: rejected.message.as_str().into(),
            since: now,
        };
        let status = Status {
            conditions: vec![condition(ConditionType::Ready, Truth::False)],
            ..Status::blank(Phase::Failed, rejected.generation)
        };
        self.warn_invalid(rejected);
        self.wires.records.status(&rejected.key, &rejected.uid, Arc::new(status));
    }

    /// Reaches people also where the object takes no status.
    fn warn_invalid(&self, rejected: &Rejected) {
        self.wires.events.emit(Event {
            about: Subject::Proxy(rejected.key.clone(), rejected.uid.clone()),
            severity: Severity::Warning,
            reason: Reason::SpecInvalid,
            note: rejected.message.clone(),
        });
    }

    fn gone(&mut self, key: &ProxyKey, uid: &Uid, ctx: &mut Ctx<ProxiesMsg>) {
        let Some(member) = self.members.get_mut(key).filter(|member| member.applied.desired.uid == *uid) else {
            // An object that was never valid may have had a status to be written.
            self.invalid.retain(|_, rejected| rejected.uid != *uid);
            return self.wires.records.forget(uid);
        };
        match member.life {
            Life::Up => {
                member.life = Life::Ending(None);
                ctx.stop_child(&child_id(key));
            }
            Life::Ending(_) => {}
            Life::Parked | Life::Kept => self.forget(key, ctx),
        }
    }

    fn synced(&mut self, living: Vec<(ProxyKey, Uid)>, ctx: &mut Ctx<ProxiesMsg>) {
        self.synced = true;
        self.wires.leases.synced(living.as_slice().into());
        // Also what a predecessor of this actor knew, and this one never heard of.
        let uids: Arc<HashSet<Uid>> = Arc::new(living.iter().map(|(_, uid)| uid.clone()).collect());
        self.wires.probes.synced(uids.clone());
        for entry in self.wires.directory.entries() {
            for host in entry.hosts.values() {
                host.keep_only(&uids);
            }
        }
        for view in self.wires.board.all().iter().filter(|view| !uids.contains(&view.uid)) {
            self.wires.board.remove(&view.key, &view.uid);
        }
        self.invalid.retain(|_, rejected| uids.contains(&rejected.uid));
        let living: HashSet<_> = living.into_iter().collect();
        let gone: Vec<_> = self
            .members
            .iter()
            .map(|(key, member)| (key.clone(), member.applied.desired.uid.clone()))
            .filter(|pair| !living.contains(pair))
            .collect();
        for (key, uid) in gone {
            self.gone(&key, &uid, ctx);
        }
    }

    fn roll(&self) -> Option<Roll> {
        if !self.synced || self.epoch.is_none() {
            return None;
        }
        let mut uids: HashSet<Uid> = self.invalid.values().map(|rejected| rejected.uid.clone()).collect();
        for member in self.members.values() {
            uids.insert(member.applied.desired.uid.clone());
            if let Life::Ending(Some(next)) = &member.life {
                uids.insert(next.desired.uid.clone());
            }
        }
        Some(Roll { epoch: self.incarnation, uids })
    }

    /// Takes everything back that a Proxy's actor has out: it may have ended without a chance to do so itself.
    fn take_back(&self, member: &Member) {
        let desired = &member.applied.desired;
        self.wires.leases.remove(&desired.key, &desired.uid);
        self.wires.probes.untrack(&desired.uid);
        for entry in self.wires.directory.entries() {
            for host in entry.hosts.values() {
                host.unfollow(&desired.uid);
            }
        }
    }

    fn forget(&mut self, key: &ProxyKey, ctx: &mut Ctx<ProxiesMsg>) {
        let Some(member) = self.members.remove(key) else { return };
        self.disarm(key);
        // What is not running leaves the tree with this.
        ctx.stop_child(&child_id(key));
        self.take_back(&member);
        let desired = &member.applied.desired;
        self.wires.board.remove(key, &desired.uid);
        self.wires.records.forget(&desired.uid);
        tracing::info!(proxy = %key, "proxy is gone");
    }

    fn ended(&mut self, key: &ProxyKey, exit: &Exit, ctx: &mut Ctx<ProxiesMsg>) {
        let Some(member) = self.members.get_mut(key) else { return };
        if let Life::Ending(next) = &mut member.life {
            let next = next.take();
            self.forget(key, ctx);
            if let Some(applied) = next {
                self.welcome(applied, ctx);
            }
            return;
        }
        self.crashed(key, exit, ctx);
    }
}

fn child_id(key: &ProxyKey) -> Arc<str> {
    format!("proxy/{key}").into()
}

impl Behavior for Proxies {
    const KIND: &'static str = "proxies";
    type Msg = ProxiesMsg;
    type Args = (Arc<Wires>, Arc<Known>);

    fn init((wires, known): Self::Args, ctx: &mut Ctx<ProxiesMsg>) -> Result<Self, InitError> {
        let epoch = wires.claim.epoch();
        known.announced.store(epoch.is_some(), Relaxed);
        let incarnation = known.incarnations.fetch_add(1, Relaxed);
        Ok(Self {
            wires,
            epoch,
            to_start: Vec::new(),
            known,
            incarnation,
            synced: false,
            members: HashMap::new(),
            invalid: HashMap::new(),
            timers: Timers::new(ctx.tell(ProxiesMsg::Timer)),
        })
    }

    fn handle(&mut self, message: ProxiesMsg, ctx: &mut Ctx<ProxiesMsg>) {
        match message {
            ProxiesMsg::Applied(applied) => self.applied(*applied, ctx),
            ProxiesMsg::Rejected(rejected) => self.rejected(rejected, ctx),
            ProxiesMsg::Gone(key, uid) => self.gone(&key, &uid, ctx),
            ProxiesMsg::Synced(living) => self.synced(living, ctx),
            ProxiesMsg::SecretChanged(namespace, name) => {
                for (key, member) in &self.members {
                    if key.namespace() == &*namespace && member.applied.desired.uses_secret(&name) {
                        member.proxy.secret_changed();
                    }
                }
            }
            ProxiesMsg::ProvidersChanged => {
                for member in self.members.values() {
                    if member.applied.desired.provider().is_some() {
                        member.proxy.provider_changed();
                    }
                }
            }
            ProxiesMsg::HostRecovered(provider, host) => {
                for member in self.members.values() {
                    let desired = &member.applied.desired;
                    if desired.provider() == Some(&provider) && desired.host.as_ref().is_none_or(|own| *own == host) {
                        member.proxy.host_recovered();
                    }
                }
            }
            ProxiesMsg::RollCall(reply) => reply.send(self.roll()),
            ProxiesMsg::ClaimChanged => self.claim_changed(ctx),
            ProxiesMsg::StartKept => self.start_kept(ctx),
            ProxiesMsg::GivenUp(key, uid, told) => self.given_up(&key, &uid, told, ctx),
            ProxiesMsg::StillHeld(key, uid) => {
                if self.members.get(&key).is_some_and(|member| member.applied.desired.uid == uid) {
                    self.timers.arm_in(Alarm::LetGo(key), LET_GO_EVERY);
                }
            }
            ProxiesMsg::Timer(fired) => match self.timers.accept(fired) {
                Some(Alarm::Announced) => self.all_announced(),
                Some(Alarm::Wake(key)) => self.wake(&key, ctx),
                Some(Alarm::GiveUp(key)) if self.is_parked(&key) => self.give_up(&key, ctx),
                Some(Alarm::LetGo(key)) => {
                    let parked = self.members.get(&key).filter(|member| matches!(member.life, Life::Parked));
                    if let Some(uid) = parked.map(|member| member.applied.desired.uid.clone()) {
                        self.let_go(&key, &uid, ctx);
                    }
                }
                Some(Alarm::GiveUp(_)) | None => {}
            },
        }
    }

    fn child_ended(&mut self, end: ChildEnd, ctx: &mut Ctx<ProxiesMsg>) {
        if let Some(key) = end.id.strip_prefix("proxy/").and_then(|key| ProxyKey::parse(key).ok()) {
            self.ended(&key, &end.exit, ctx);
        }
    }
}
