//! One host of a provider entry: which operations run on it, and what it shows.
//!
//! Owns the admission of operations (slots, a bounded queue, one mutation per uid at a time), one listing per interval,
//! and the health check beside both. Spoken to by proxy actors (`submit`, `follow`) and by its provider (`check`).
//! Answers each operation exactly once. Never waits for the backend: each call is a child under a deadline, so that a
//! host that stalls fills its own slots and nothing else.
//!
//! ```text
//!   Submit --> queue (delete before create before get) --> op/<n> --> OpOutcome
//!                '-- full, deadline passed, cancelled: answered without a call
//!   every interval: op/list --> Sighting to each follower
//! ```

mod admission;
mod handle;
mod job;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::admission::{Admission, Effect, OpNumber};
use self::handle::Followers;
use crate::domain::error::OpError;
use crate::domain::id::{HostName, OperatorId, ProviderName, Uid};
use crate::domain::instance::{Instance, Listed};
use crate::domain::reason::Reason;
use crate::election::Claim;
use crate::kit::work::{Done, work};
use crate::kit::{Behavior, Ctx, Fired, Permit, Reply, Tell, Timers};
use crate::names;
use crate::ports::{Backend, HostEntry};

pub use self::handle::{HostHandle, Sighting};
pub use self::job::{Call, CallKind, Job, OpOutcome};

/// Operations that wait for a slot; beyond that `Busy` is the honest answer, and the proxies back off.
const QUEUE: usize = 256;

/// From a new follower to the list that tells it: long enough for all of a restart to be in it.
const FOLLOWED_TO_LIST: Duration = Duration::from_millis(250);

/// The call as metrics and texts name it.
const LIST: &str = "list";

/// The child that lists everything for a sweep.
const STOCK: &str = "op/stock";

/// The health of a host as its check tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub host: HostName,
    pub result: Result<(), OpError>,
    pub took: Duration,
}

/// Everything of ours on a host, and for whom operations wait or run there.
#[derive(Debug, Clone, PartialEq)]
pub struct Stock {
    /// A complete list, of every entry that ever made instances in this backend.
    pub rows: Vec<Listed>,
    pub busy: HashSet<Uid>,
}

fn busy(name: &HostName) -> OpError {
    OpError::new(
        crate::domain::error::Class::Cancelled,
        Reason::Busy,
        format!("host `{name}` has as many operations waiting as it takes"),
    )
}

#[derive(Debug)]
enum HostMsg {
    /// An operation to run.
    Submit(Box<Job>, Permit),
    /// End what runs or waits for this uid.
    Cancel(Uid),
    /// Another replica leads: end what mutates.
    StandDown,
    /// Somebody wants to hear of a uid: list soon.
    Followed,
    /// Check the host and tell the verdict.
    Check(Duration, Tell<Checked>),
    /// List everything of ours, whatever entry made it.
    TakeStock(Duration, Reply<Result<Stock, OpError>>),
    /// An operation ended.
    Ended(OpNumber, Done<Result<Option<Instance>, OpError>>),
    /// The periodic list ended.
    Listed(Instant, Done<Result<Vec<Listed>, OpError>>),
    /// The list of everything ended.
    StockTaken(Instant, Reply<Result<Stock, OpError>>, Done<Result<Vec<Listed>, OpError>>),
    /// The check ended.
    CheckEnded(Instant, Done<Result<(), OpError>>),
    Timer(Fired<Alarm>),
}

crate::named!(HostMsg: Submit, Cancel, StandDown, Followed, Check, TakeStock, Ended, Listed, StockTaken, CheckEnded,
    Timer);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Alarm {
    /// Time for the next list.
    List,
    /// The earliest deadline of a waiting operation has passed.
    Queue,
}

#[derive(Debug, Clone)]
pub struct HostArgs {
    pub provider: ProviderName,
    pub entry: HostEntry,
    pub operator: OperatorId,
    pub claim: Claim,
    pub list_interval: Duration,
}

struct Host {
    args: HostArgs,
    backend: Arc<dyn Backend>,
    admission: Admission<Box<Job>>,
    running: HashMap<OpNumber, Running>,
    followers: Followers,
    checking: Vec<Tell<Checked>>,
    listing: Listing,
    /// The first list after a start tells what was there before it.
    listed_once: bool,
    timers: Timers<Alarm>,
}

/// Where the periodic list stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// For its interval.
    Waiting,
    /// Due in a moment.
    Hastened,
    Running,
    /// Somebody came while it ran: another one follows.
    RunningAndAgain,
}

struct Running {
    kind: CallKind,
    reply: Reply<OpOutcome>,
    since: Instant,
}

impl Host {
    fn label(&self, call: &'static str) -> [(&'static str, String); 3] {
        [
            ("provider", self.args.provider.to_string()),
            ("host", self.args.entry.name.to_string()),
            ("call", call.to_owned()),
        ]
    }

    fn perform(&mut self, effects: Vec<Effect<Box<Job>>>, ctx: &mut Ctx<HostMsg>) {
        for effect in effects {
            match effect {
                Effect::Start(number, job) => self.start(number, *job, ctx),
                Effect::Busy(job) => job.refuse(busy(&self.args.entry.name)),
                Effect::Expired(job) => job.refuse(OpError::cancelled(format!(
                    "host `{}` had no free slot before the deadline",
                    self.args.entry.name
                ))),
                Effect::Cancelled(job) => job.refuse(OpError::cancelled("cancelled while it waited for a slot")),
                Effect::Kill(number) => ctx.kill_child(&op_id(number)),
            }
        }
        for waited in self.admission.take_waits() {
            let [provider, host, _] = self.label("");
            metrics::histogram!(names::HOST_QUEUE_WAIT_SECONDS, &[provider, host]).record(waited);
        }
        match self.admission.next_deadline() {
            Some(at) => self.timers.arm_at(Alarm::Queue, at),
            None => self.timers.cancel(&Alarm::Queue),
        }
    }

    fn start(&mut self, number: OpNumber, job: Job, ctx: &mut Ctx<HostMsg>) {
        let Job { call, deadline, epoch, reply } = job;
        let kind = call.kind();
        let now = ctx.now();
        if kind.mutates() && !self.args.claim.may_mutate_in(epoch, now.mono) {
            let error = OpError::new(
                crate::domain::error::Class::Cancelled,
                Reason::NotLeading,
                "this replica does not lead: nothing is changed in the backend",
            );
            reply.send(OpOutcome { kind, result: Err(error) });
            let effects = self.admission.ended(number, now.mono);
            return self.perform(effects, ctx);
        }
        let backend = self.backend.clone();
        let call = async move {
            match call {
                Call::Get(mark) => backend.get(&mark).await.map(Some),
                Call::Create(spec) => backend.create(&spec).await.map(Some),
                Call::Delete(mark) => backend.delete(&mark).await.map(|()| None),
            }
        };
        self.running.insert(number, Running { kind, reply, since: now.mono });
        let ended = ctx.tell(move |done| HostMsg::Ended(number, done));
        ctx.start(work(op_id(number), deadline, call, Reply::new(move |done| ended.send(done), || Done::Lost)));
    }

    fn ended(&mut self, number: OpNumber, done: Done<Result<Option<Instance>, OpError>>, ctx: &mut Ctx<HostMsg>) {
        let now = ctx.now().mono;
        if let Some(running) = self.running.remove(&number) {
            let result = self.settled(running.kind.as_str(), running.kind.mutates(), running.since, done, ctx);
            running.reply.send(OpOutcome { kind: running.kind, result });
        }
        let effects = self.admission.ended(number, now);
        self.perform(effects, ctx);
    }

    /// What an ended child means for the one who asked, and the measure of the call: a started mutation whose end was not
    /// seen has an unknown effect.
    fn settled<T>(
        &self,
        call: &'static str,
        mutates: bool,
        since: Instant,
        done: Done<Result<T, OpError>>,
        ctx: &Ctx<HostMsg>,
    ) -> Result<T, OpError> {
        let host = &self.args.entry.name;
        let cut = |reason: Reason, what: String| {
            if mutates { OpError::effect_unknown(reason, what) } else { OpError::transient(reason, what) }
        };
        let result = match done {
            Done::Finished(result) => result,
            Done::Deadline => {
                Err(cut(Reason::Timeout, format!("{call} on host `{host}` did not end before its deadline")))
            }
            Done::Panicked(what) => {
                tracing::error!(provider = %self.args.provider, %host, op = call, error = %what, "backend panicked");
                Err(cut(Reason::Internal, format!("{call} on host `{host}` failed inside the operator")))
            }
            Done::Lost => Err(cut(Reason::Lost, format!("{call} on host `{host}` was cut short"))),
        };
        let outcome = result.as_ref().map_or_else(|error| error.reason.as_str(), |_| "ok");
        let took = ctx.now().mono.saturating_duration_since(since);
        tracing::debug!(
            provider = %self.args.provider, %host, op = call, outcome, elapsed_ms = took.as_millis(), "operation done"
        );
        let [provider, host, call] = self.label(call);
        metrics::histogram!(names::HOST_CALL_SECONDS, &[provider, host, call, ("outcome", outcome.to_owned())])
            .record(took);
        result
    }

    /// After a restart a Proxy is worth offering only once its instance was seen: it does not wait for the next interval.
    /// Thousands that come at once share one list.
    fn list_soon(&mut self) {
        match self.listing {
            Listing::Waiting => {
                self.listing = Listing::Hastened;
                self.timers.arm_in(Alarm::List, FOLLOWED_TO_LIST);
            }
            Listing::Running => self.listing = Listing::RunningAndAgain,
            Listing::Hastened | Listing::RunningAndAgain => {}
        }
    }

    fn start_list(&mut self, ctx: &mut Ctx<HostMsg>) {
        self.listing = Listing::Running;
        let backend = self.backend.clone();
        let (operator, entry) = (self.args.operator.clone(), self.args.provider.clone());
        let since = ctx.now().mono;
        let listed = ctx.tell(move |done| HostMsg::Listed(since, done));
        let deadline = since + list_deadline(self.args.list_interval);
        ctx.start(work(
            "op/list",
            deadline,
            async move { backend.list(&operator, Some(&entry)).await },
            Reply::new(move |done| listed.send(done), || Done::Lost),
        ));
    }

    fn listed(&mut self, since: Instant, done: Done<Result<Vec<Listed>, OpError>>, ctx: &Ctx<HostMsg>) {
        match self.settled(LIST, false, since, done, ctx) {
            Ok(rows) => {
                if !std::mem::replace(&mut self.listed_once, true) {
                    self.tell_adopted(&rows);
                }
                let mut seen: HashMap<Uid, Instance> = rows
                    .into_iter()
                    // Another entry of the same backend may hold instances of ours: they are not this entry's.
                    .filter(|row| row.mark.entry == self.args.provider)
                    .map(|row| (row.mark.uid, row.instance))
                    .collect();
                for mut follower in self.followers.iter_mut() {
                    let sighting = seen.remove(follower.key()).map_or(Sighting::Absent, Sighting::Present);
                    // Trouble is told with every list: whoever was just making or deleting it could not use it then.
                    if sighting.is_trouble() || follower.told.as_ref() != Some(&sighting) {
                        follower.told = Some(sighting.clone());
                        follower.tell.send(sighting);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(provider = %self.args.provider, host = %self.args.entry.name, %error, "list failed");
                for mut follower in self.followers.iter_mut() {
                    if !matches!(follower.told, Some(Sighting::Unread(_))) {
                        let sighting = Sighting::Unread(error.clone());
                        follower.told = Some(sighting.clone());
                        follower.tell.send(sighting);
                    }
                }
            }
        }
        let again = self.listing == Listing::RunningAndAgain;
        self.listing = if again { Listing::Hastened } else { Listing::Waiting };
        self.timers.arm_in(Alarm::List, if again { FOLLOWED_TO_LIST } else { jittered(self.args.list_interval) });
    }

    /// After a start: what ran on without us is ours again.
    fn tell_adopted(&self, rows: &[Listed]) {
        let instances = rows.iter().filter(|row| row.mark.entry == self.args.provider).count();
        if instances > 0 {
            tracing::info!(provider = %self.args.provider, host = %self.args.entry.name, instances, "instances found");
        }
    }

    /// Beside the operations and the periodic list; one at a time.
    fn take_stock(&self, within: Duration, reply: Reply<Result<Stock, OpError>>, ctx: &mut Ctx<HostMsg>) {
        if ctx.has_child(&STOCK.into()) {
            let detail = format!("host `{}` is being listed for a sweep already", self.args.entry.name);
            return reply.send(Err(OpError::transient(Reason::Busy, detail)));
        }
        let (backend, operator) = (self.backend.clone(), self.args.operator.clone());
        let since = ctx.now().mono;
        let taken = ctx.tell(move |(reply, done)| HostMsg::StockTaken(since, reply, done));
        let answer = Reply::new(move |done| taken.send((reply, done)), || Done::Lost);
        ctx.start(work(STOCK, since + within, async move { backend.list(&operator, None).await }, answer));
    }

    fn check(&mut self, within: Duration, tell: Tell<Checked>, ctx: &mut Ctx<HostMsg>) {
        self.checking.push(tell);
        if self.checking.len() > 1 {
            return;
        }
        let backend = self.backend.clone();
        let since = ctx.now().mono;
        let ended = ctx.tell(move |done| HostMsg::CheckEnded(since, done));
        ctx.start(work(
            "op/check",
            since + within,
            async move { backend.check().await },
            Reply::new(move |done| ended.send(done), || Done::Lost),
        ));
    }
}

fn op_id(number: OpNumber) -> Arc<str> {
    format!("op/{number}").into()
}

/// A list may take longer than its interval on a slow host; it is cut before it looks like silence.
fn list_deadline(interval: Duration) -> Duration {
    (interval * 2).clamp(Duration::from_secs(5), Duration::from_secs(60))
}

/// Spread over a tenth of the interval, so that a thousand hosts do not list at once.
fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.95 + rand::random::<f64>() * 0.1)
}

impl Behavior for Host {
    const KIND: &'static str = "host";
    type Msg = HostMsg;
    type Args = (HostArgs, Followers);

    fn init((args, followers): Self::Args, ctx: &mut Ctx<HostMsg>) -> Result<Self, crate::kit::actor::InitError> {
        let mut timers = Timers::new(ctx.tell(HostMsg::Timer));
        timers.arm_in(Alarm::List, Duration::ZERO);
        Ok(Self {
            backend: args.entry.backend.clone(),
            admission: Admission::new(args.entry.slots, QUEUE),
            running: HashMap::new(),
            followers,
            checking: Vec::new(),
            listing: Listing::Waiting,
            listed_once: false,
            timers,
            args,
        })
    }

    fn handle(&mut self, message: HostMsg, ctx: &mut Ctx<HostMsg>) {
        match message {
            HostMsg::Submit(job, _place) => {
                let (uid, kind, deadline) = (job.call.uid().clone(), job.call.kind(), job.deadline);
                let effects = self.admission.submit(uid, kind, deadline, job, ctx.now().mono);
                self.perform(effects, ctx);
            }
            HostMsg::Cancel(uid) => {
                let effects = self.admission.cancel(&uid);
                self.perform(effects, ctx);
            }
            HostMsg::StandDown => {
                let effects = self.admission.cancel_mutations();
                self.perform(effects, ctx);
            }
            HostMsg::Followed => self.list_soon(),
            HostMsg::Check(within, tell) => self.check(within, tell, ctx),
            HostMsg::TakeStock(within, reply) => self.take_stock(within, reply, ctx),
            HostMsg::Ended(number, done) => self.ended(number, done, ctx),
            HostMsg::Listed(since, done) => self.listed(since, done, ctx),
            HostMsg::StockTaken(since, reply, done) => {
                let rows = self.settled(LIST, false, since, done, ctx);
                reply.send(rows.map(|rows| Stock { rows, busy: self.admission.uids().cloned().collect() }));
            }
            HostMsg::CheckEnded(since, done) => {
                let took = ctx.now().mono.saturating_duration_since(since);
                let result = self.settled("check", false, since, done, ctx);
                let checked = Checked { host: self.args.entry.name.clone(), result, took };
                for tell in self.checking.drain(..) {
                    tell.send(checked.clone());
                }
            }
            HostMsg::Timer(fired) => match self.timers.accept(fired) {
                // A standby asks nobody for anything; who follows after it began to lead is listed at once.
                Some(Alarm::List) if self.args.claim.epoch().is_none() => {
                    self.listing = Listing::Waiting;
                    self.timers.arm_in(Alarm::List, jittered(self.args.list_interval));
                }
                Some(Alarm::List) => self.start_list(ctx),
                Some(Alarm::Queue) => {
                    let effects = self.admission.expire(ctx.now().mono);
                    self.perform(effects, ctx);
                }
                None => {}
            },
        }
    }
}
