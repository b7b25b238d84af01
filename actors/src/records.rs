//! The one writer of Proxy and ProviderHealth objects.
//!
//! Owns what is still to be written: finalizers first, statuses conflated by uid (the latest wins), so many writes at
//! once and no more. Spoken to by proxy and provider actors. Writes only under a current claim; a write that fails is
//! tried again with backoff, and its place is the memory it takes: one status a Proxy.
//!
//! What is wanted stands in a table beside the actor ([`Wanted`]) until it is written, and a message only says where to
//! look: a writer that restarts begins with what the table holds, and nobody has to know what of theirs was lost.
//!
//! What was wanted under one claim is not written under a later one: in between another replica led, and knows better.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;

use crate::domain::backoff::Backoff;
use crate::domain::error::{Class, OpError};
use crate::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use crate::domain::reason::Reason;
use crate::domain::status::Status;
use crate::election::Claim;
use crate::kit::actor::InitError;
use crate::kit::work::{Done, work};
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Reply, Timers};
use crate::names;
use crate::ports::{Mandate, ProviderHealth, Records};

/// Writes under way at once. The API server is measured to take its best rate at 32.
pub const AT_ONCE: usize = 32;

/// One write must end by then; the API server itself gives up at 60 s, and a stuck write holds a place.
const WRITE_WITHIN: Duration = Duration::from_secs(15);

/// A status waits this long for a newer one: what passes through three phases in a second is written once.
const SETTLE: Duration = Duration::from_millis(500);

/// How a write of a finalizer or an annotation ended.
pub type Written = Result<(), OpError>;

fn lost() -> Written {
    Err(OpError::effect_unknown(Reason::Lost, "the write was cut short"))
}

/// The verbs of the writer.
#[derive(Debug, Clone)]
pub struct RecordsHandle {
    to: Ref<RecordsMsg>,
    wanted: Wanted,
    /// Tells what was wanted from what was wanted since: never the same twice, also for a slot that was empty between.
    versions: Arc<AtomicU64>,
    claim: Claim,
}

impl RecordsHandle {
    pub fn new(claim: Claim) -> Self {
        Self { to: Ref::new("records"), wanted: Wanted::default(), versions: Arc::default(), claim }
    }

    pub fn spec(&self, records: Arc<dyn Records>) -> ChildSpec {
        let (wanted, claim) = (self.wanted.clone(), self.claim.clone());
        ChildSpec::of::<Writer>("records", &self.to, move || (records.clone(), claim.clone(), wanted.clone()))
    }

    /// Sets the finalizer and the host.
    pub fn adopt(
        &self,
        key: &ProxyKey,
        uid: &Uid,
        host: Option<HostName>,
        done: impl FnOnce(Written) + Send + 'static,
    ) {
        self.urgent(key, uid, Change::Adopt(host), done);
    }

    /// Drops the finalizer.
    pub fn release(&self, key: &ProxyKey, uid: &Uid, done: impl FnOnce(Written) + Send + 'static) {
        self.urgent(key, uid, Change::Release, done);
    }

    pub fn annotate_drain(&self, key: &ProxyKey, uid: &Uid, drain: bool, done: impl FnOnce(Written) + Send + 'static) {
        self.urgent(key, uid, Change::Drain(drain), done);
    }

    fn urgent(&self, key: &ProxyKey, uid: &Uid, change: Change, done: impl FnOnce(Written) + Send + 'static) {
        let reply = Reply::new(done, lost);
        self.to.cast_or_drop(RecordsMsg::Urgent(Box::new(Urgent {
            key: key.clone(),
            uid: uid.clone(),
            change,
            epoch: self.claim.epoch(),
            reply,
        })));
    }

    /// Writes the status, or a later one of the same uid instead.
    pub fn status(&self, key: &ProxyKey, uid: &Uid, status: Arc<Status>) {
        self.want(Slot::Proxy(uid.clone()), Content::Status(key.clone(), uid.clone(), status));
    }

    /// The object is gone: what was still to be written of it is void.
    pub fn forget(&self, uid: &Uid) {
        let slot = Slot::Proxy(uid.clone());
        if self.wanted.remove(&slot).is_some() {
            self.to.cast_or_drop(RecordsMsg::Forget(slot));
        }
    }

    pub fn provider_health(&self, health: ProviderHealth) {
        self.want(Slot::Provider(health.entry.clone()), Content::Health(Box::new(health)));
    }

    pub fn remove_provider_health(&self, entry: &ProviderName) {
        self.want(Slot::Provider(entry.clone()), Content::NoHealth(entry.clone()));
    }

    fn want(&self, slot: Slot, content: Content) {
        // A standby has nothing to say.
        let Some(epoch) = self.claim.epoch() else { return };
        let version = self.versions.fetch_add(1, Relaxed);
        self.wanted.insert(slot.clone(), Want { content, version, epoch });
        self.to.cast_or_drop(RecordsMsg::Wanted(slot));
    }
}

#[derive(Debug, Clone)]
enum Change {
    Adopt(Option<HostName>),
    Release,
    Drain(bool),
}

#[derive(Debug)]
struct Urgent {
    key: ProxyKey,
    uid: Uid,
    change: Change,
    epoch: Option<u32>,
    reply: Reply<Written>,
}

/// What is conflated under one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Slot {
    Proxy(Uid),
    Provider(ProviderName),
}

#[derive(Debug, Clone)]
enum Content {
    Status(ProxyKey, Uid, Arc<Status>),
    Health(Box<ProviderHealth>),
    NoHealth(ProviderName),
}

/// The latest that is wanted under each slot and not written yet.
type Wanted = Arc<DashMap<Slot, Want>>;

#[derive(Debug)]
struct Want {
    content: Content,
    version: u64,
    /// The claim under which it was wanted.
    epoch: u32,
}

#[derive(Debug)]
enum RecordsMsg {
    /// A finalizer or annotation, answered.
    Urgent(Box<Urgent>),
    /// Something new is wanted here.
    Wanted(Slot),
    /// Nothing is to be written here any more.
    Forget(Slot),
    /// An urgent write ended.
    UrgentEnded,
    /// A conflated write ended.
    Ended(Slot, Done<Written>),
    /// A failed write is due again.
    Timer(Fired<Slot>),
}

crate::named!(RecordsMsg: Urgent, Wanted, Forget, UrgentEnded, Ended, Timer);

/// How the writing under one slot goes, until it is done.
#[derive(Debug)]
struct Pending {
    writing: Option<u64>,
    backoff: Backoff,
}

struct Writer {
    records: Arc<dyn Records>,
    claim: Claim,
    wanted: Wanted,
    urgent: VecDeque<Box<Urgent>>,
    pending: HashMap<Slot, Pending>,
    due: VecDeque<Slot>,
    at_work: usize,
    next: u64,
    timers: Timers<Slot>,
}

impl Writer {
    /// Writes it soon, unless that is under way: then the latest is taken, or the end finds a newer version.
    fn want(&mut self, slot: Slot) {
        if !self.pending.contains_key(&slot) {
            let backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
            self.pending.insert(slot.clone(), Pending { writing: None, backoff });
            self.timers.arm_in(slot, SETTLE);
        }
    }

    fn pump(&mut self, ctx: &mut Ctx<RecordsMsg>) {
        while self.at_work < AT_ONCE {
            if let Some(urgent) = self.urgent.pop_front() {
                self.write_urgent(*urgent, ctx);
            } else if let Some(slot) = self.due.pop_front() {
                self.write(slot, ctx);
            } else {
                break;
            }
        }
    }

    /// For what was decided under the claim of this epoch.
    fn mandate(&self, epoch: Option<u32>, ctx: &Ctx<RecordsMsg>) -> Mandate {
        let (claim, clock) = (self.claim.clone(), ctx.env().clock);
        Mandate::new(move || claim.may_mutate_in(epoch, clock.now().mono))
    }

    /// Starts one write. The work's own deadline answers, so nothing here waits.
    fn begin(
        &mut self,
        kind: &'static str,
        call: impl Future<Output = Written> + Send + 'static,
        answer: impl FnOnce(Done<Written>) + Send + 'static,
        ctx: &mut Ctx<RecordsMsg>,
    ) {
        metrics::counter!(names::API_WRITES_TOTAL, "kind" => kind).increment(1);
        self.at_work += 1;
        self.next += 1;
        let deadline = ctx.now().mono + WRITE_WITHIN;
        ctx.start(work(format!("op/{}", self.next), deadline, call, Reply::new(answer, || Done::Lost)));
    }

    fn write_urgent(&mut self, urgent: Urgent, ctx: &mut Ctx<RecordsMsg>) {
        let Urgent { key, uid, change, epoch, reply } = urgent;
        let mandate = self.mandate(epoch, ctx);
        if let Err(error) = mandate.stands() {
            return reply.send(Err(error));
        }
        let records = self.records.clone();
        let kind = match change {
            Change::Adopt(_) | Change::Release => "finalizer",
            Change::Drain(_) => "annotation",
        };
        let call = async move {
            match change {
                Change::Adopt(host) => records.adopt(&key, &uid, host.as_ref(), &mandate).await,
                Change::Release => records.release(&key, &uid).await,
                Change::Drain(drain) => records.annotate_drain(&key, &uid, drain).await,
            }
        };
        let ended = ctx.tell(|()| RecordsMsg::UrgentEnded);
        let answer = move |done: Done<Written>| {
            reply.send(written(done));
            ended.send(());
        };
        self.begin(kind, call, answer, ctx);
    }

    fn write(&mut self, slot: Slot, ctx: &mut Ctx<RecordsMsg>) {
        let Some(pending) = self.pending.get_mut(&slot) else { return };
        let state = self.claim.state();
        self.wanted.remove_if(&slot, |_, want| state.epoch() != Some(want.epoch));
        if !self.wanted.contains_key(&slot) {
            self.pending.remove(&slot);
            return;
        }
        if !state.leads(ctx.now().mono) {
            // Kept: if the claim comes back it is written.
            self.timers.arm_in(slot, Duration::from_secs(1));
            return;
        }
        let Some((version, content)) = self.wanted.get(&slot).map(|want| (want.version, want.content.clone())) else {
            self.pending.remove(&slot);
            return;
        };
        pending.writing = Some(version);
        let (records, mandate) = (self.records.clone(), self.mandate(state.epoch(), ctx));
        let kind = content.kind();
        let call = async move {
            match content {
                Content::Status(key, uid, status) => records.write_status(&key, &uid, &status, &mandate).await,
                Content::Health(health) => records.write_provider_health(&health, &mandate).await,
                Content::NoHealth(entry) => records.remove_provider_health(&entry, &mandate).await,
            }
        };
        let ended = ctx.tell(move |done| RecordsMsg::Ended(slot.clone(), done));
        self.begin(kind, call, move |done| ended.send(done), ctx);
    }

    fn ended(&mut self, slot: Slot, done: Done<Written>) {
        let Some(pending) = self.pending.get_mut(&slot) else { return };
        let version = pending.writing.take();
        match written(done) {
            Ok(()) => {
                pending.backoff.reset();
                self.wanted.remove_if(&slot, |_, want| Some(want.version) == version);
                if self.wanted.contains_key(&slot) {
                    self.due.push_back(slot);
                } else {
                    self.pending.remove(&slot);
                }
            }
            // The object is gone, and there is nobody to tell.
            Err(error) if error.class == Class::NotFound => {
                self.wanted.remove(&slot);
                self.pending.remove(&slot);
            }
            // It would fail for ever: the object is another's. Whoever wants it written finds that out by looking.
            Err(error) if error.class == Class::Permanent => {
                tracing::warn!(?slot, %error, "not written, and not tried again");
                self.wanted.remove_if(&slot, |_, want| Some(want.version) == version);
                pending.backoff.reset();
                if self.wanted.contains_key(&slot) {
                    self.timers.arm_in(slot, SETTLE);
                } else {
                    self.pending.remove(&slot);
                }
            }
            // It was not sent: another look at the claim tells how it goes on.
            Err(error) if error.class == Class::Cancelled => self.timers.arm_in(slot, Duration::from_secs(1)),
            Err(error) => {
                let after = pending.backoff.next(rand::random());
                tracing::warn!(?slot, %error, retry_in_ms = after.as_millis(), "status not written");
                self.timers.arm_in(slot, after);
            }
        }
    }
}

impl Content {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Status(..) => "status",
            Self::Health(_) | Self::NoHealth(_) => "provider_health",
        }
    }
}

fn written(done: Done<Written>) -> Written {
    match done {
        Done::Finished(written) => written,
        Done::Deadline => Err(OpError::effect_unknown(Reason::Timeout, "the write did not end in time")),
        Done::Panicked(what) => Err(OpError::effect_unknown(Reason::Internal, what)),
        Done::Lost => lost(),
    }
}

impl Behavior for Writer {
    const KIND: &'static str = "records";
    type Msg = RecordsMsg;
    type Args = (Arc<dyn Records>, Claim, Wanted);

    fn init((records, claim, wanted): Self::Args, ctx: &mut Ctx<RecordsMsg>) -> Result<Self, InitError> {
        let left: Vec<_> = wanted.iter().map(|want| want.key().clone()).collect();
        let mut writer = Self {
            records,
            claim,
            wanted,
            urgent: VecDeque::new(),
            pending: HashMap::new(),
            due: VecDeque::new(),
            at_work: 0,
            next: 0,
            timers: Timers::new(ctx.tell(RecordsMsg::Timer)),
        };
        for slot in left {
            writer.want(slot);
        }
        Ok(writer)
    }

    fn handle(&mut self, message: RecordsMsg, ctx: &mut Ctx<RecordsMsg>) {
        match message {
            RecordsMsg::Urgent(urgent) => self.urgent.push_back(urgent),
            RecordsMsg::Wanted(slot) => self.want(slot),
            // Unless it is wanted again.
            RecordsMsg::Forget(slot) if !self.wanted.contains_key(&slot) => {
                self.timers.cancel(&slot);
                self.pending.remove(&slot);
            }
            RecordsMsg::Forget(_) => {}
            RecordsMsg::UrgentEnded => self.at_work = self.at_work.saturating_sub(1),
            RecordsMsg::Ended(slot, done) => {
                self.at_work = self.at_work.saturating_sub(1);
                self.ended(slot, done);
            }
            RecordsMsg::Timer(fired) => {
                if let Some(slot) = self.timers.accept(fired) {
                    self.due.push_back(slot);
                }
            }
        }
        self.pump(ctx);
    }
}
