//! The orphan sweep of one provider entry: finds instances of ours without a Proxy, and deletes them slowly.
//!
//! Owns what its sweeps have seen, host by host. Spoken to by nobody: its own timers drive it, and what it found is read
//! in a cell. It sweeps only after the fleet has heard of all Proxies, and only while this replica leads. Each host has its
//! own rhythm, list and deadline, and a deletion goes through the admission of its host, one at a time, so that a host
//! that hangs delays nobody's sweep, and a sweep delays nobody's work. Never concludes anything from a list that failed.
//!
//! ```text
//!   every interval, per host:  take stock --> roll call --> judge (domain::sweep) --> for each that is ripe, oldest first,
//!   under the cap:             live look at its Proxy --> Delete (reads the mark again) --> Get until it is seen gone
//! ```

mod burial;
mod told;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use self::burial::Burial;
use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName, ProxyKey, Uid};
use crate::domain::instance::OwnerMark;
use crate::domain::reason::Reason;
use crate::domain::sweep::{Orphan, Roll, Spent, Suspects, Terms, Verdict};
use crate::election::Claim;
use crate::events::EventsHandle;
use crate::host::{HostHandle, OpOutcome, Stock};
use crate::kit::actor::{InitError, Lingering};
use crate::kit::work::Done;
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Timers};
use crate::names;
use crate::ports::Records;

pub use self::told::{HostSwept, Swept};

/// A standby looks so often whether it leads, and a leader whether all Proxies are known.
const LOOK_AT_CLAIM_EVERY: Duration = Duration::from_secs(1);

/// The fleet's index answers in a moment, or it has restarted.
const ROLL_CALL_WITHIN: Duration = Duration::from_secs(30);

/// The shortest and the longest that one list of a whole backend may take.
const LIST_WITHIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// How an entry is swept, the same for all entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepSettings {
    /// From the end of one sweep of a host to the next.
    pub every: Duration,
    pub terms: Terms,
    /// One deletion, and one look at what is left of it.
    pub delete_within: Duration,
    pub get_within: Duration,
}

/// The one question that the sweep has for the source of the Proxies.
#[derive(Clone)]
pub struct Owners(Arc<dyn Records>);

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owners")
    }
}

impl Owners {
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self(records)
    }

    /// A live look: is there an object with this uid?
    async fn exist(&self, key: &ProxyKey, uid: &Uid) -> Result<bool, OpError> {
        self.0.owner_exists(key, uid).await
    }
}

/// Asks the fleet who lives, and hears it, or none, exactly once.
pub type RollCall = Arc<dyn Fn(Box<dyn FnOnce(Option<Roll>) + Send>) + Send + Sync>;

/// Whether instances of that entry are this one's to sweep: its own, and those that no configured entry can see.
pub type IsSweptHere = Arc<dyn Fn(&ProviderName) -> bool + Send + Sync>;

#[derive(Clone)]
pub struct SweepArgs {
    pub provider: ProviderName,
    pub hosts: Vec<HostHandle>,
    pub settings: SweepSettings,
    pub claim: Claim,
    pub events: EventsHandle,
    pub owners: Owners,
    pub roll_call: RollCall,
    pub is_swept_here: IsSweptHere,
    /// Where the admin endpoint reads what was found.
    pub told: Arc<ArcSwap<Swept>>,
}

impl fmt::Debug for SweepArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweepArgs").field("provider", &self.provider).finish_non_exhaustive()
    }
}

/// Under its provider.
pub const CHILD: &str = "sweep";

/// How the sweep is started under its provider.
pub fn spec(args: SweepArgs) -> ChildSpec {
    ChildSpec::of::<Sweep>(CHILD, &Ref::new(format!("sweep/{}", args.provider)), move || args.clone())
}

/// Numbers the sweeps, so that an answer to an earlier one has no effect.
type Pass = u64;

#[derive(Debug)]
enum SweepMsg {
    /// Whether the fleet is known, before anything is listed.
    Known(HostName, Pass, bool),
    /// A host was listed.
    Stocked(HostName, Pass, Result<Stock, OpError>),
    /// The fleet said who lives.
    Called(HostName, Pass, Box<Stock>, Option<Roll>),
    /// The live look at an orphan's Proxy ended.
    OwnerLooked(HostName, Pass, Done<Result<bool, OpError>>),
    /// A deletion, or a look after one, ended.
    Ended(HostName, Pass, OpOutcome),
    Timer(Fired<Alarm>),
}

crate::named!(SweepMsg: Known, Stocked, Called, OwnerLooked, Ended, Timer);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Alarm {
    /// Time for the next sweep of this host, also if an answer is missing.
    Sweep(HostName),
    /// Time for another look at what was deleted.
    Look(HostName),
}

#[derive(Debug)]
struct Sweep {
    args: SweepArgs,
    hosts: HashMap<HostName, HostSweep>,
    spent: Spent,
    swept: Swept,
    passes: Pass,
    owner_looks: u64,
    timers: Timers<Alarm>,
}

/// Where the sweep of one host stands.
#[derive(Debug)]
struct HostSweep {
    handle: HostHandle,
    suspects: Suspects,
    /// The sweep that is under way.
    begun: Option<Begun>,
    /// What people have been told of, and whether it was ripe by then, so that only news are told.
    told: HashSet<(OwnerMark, bool)>,
}

#[derive(Debug)]
struct Begun {
    pass: Pass,
    at: Instant,
    /// The claim under which it is.
    epoch: Option<u32>,
    /// What is to be deleted, after the one that is being.
    next: VecDeque<Orphan>,
    burial: Option<Burial>,
}

impl Sweep {
    /// The sweep of this number, if it is still under way.
    fn begun(&mut self, host: &HostName, pass: Pass) -> Option<&mut Begun> {
        self.hosts.get_mut(host)?.begun.as_mut().filter(|begun| begun.pass == pass)
    }

    fn begin(&mut self, name: &HostName, ctx: &mut Ctx<SweepMsg>) {
        let now = ctx.now().mono;
        let Some(host) = self.hosts.get_mut(name) else { return };
        if !self.args.claim.may_mutate(now) {
            // Another may lead meanwhile: what was seen before says nothing then, and that one tells what there is.
            if self.args.claim.epoch().is_none() && !self.swept.hosts.is_empty() {
                for host in self.hosts.values_mut() {
                    (host.suspects, host.begun) = (Suspects::default(), None);
                    host.told.clear();
                }
                self.swept = Swept::default();
                self.args.told.store(Arc::default());
                retire(&self.args.provider);
            }
            return self.timers.arm_in(Alarm::Sweep(name.clone()), LOOK_AT_CLAIM_EVERY);
        }
        self.passes += 1;
        let pass = self.passes;
        let epoch = self.args.claim.epoch();
        host.begun = Some(Begun { pass, at: now, epoch, next: VecDeque::new(), burial: None });
        // A list of a backend is dear: none is made before there is something to hold it against.
        self.timers.arm_in(Alarm::Sweep(name.clone()), ROLL_CALL_WITHIN);
        let known = ctx.tell(move |(name, known)| SweepMsg::Known(name, pass, known));
        let of = name.clone();
        (self.args.roll_call)(Box::new(move |roll| known.send((of, roll.is_some()))));
    }

    fn known(&mut self, name: &HostName, pass: Pass, known: bool, ctx: &mut Ctx<SweepMsg>) {
        if self.begun(name, pass).is_none() {
            return;
        }
        if !known {
            return self.wait_for_the_fleet(name);
        }
        self.timers.cancel(&Alarm::Sweep(name.clone()));
        let within = self.args.settings.every.clamp(LIST_WITHIN.0, LIST_WITHIN.1);
        let Some(host) = self.hosts.get(name) else { return };
        let stocked = ctx.tell(move |(name, result)| SweepMsg::Stocked(name, pass, result));
        let of = name.clone();
        host.handle.take_stock(within, move |result| stocked.send((of, result)));
    }

    /// Not all Proxies are known yet.
    fn wait_for_the_fleet(&mut self, name: &HostName) {
        self.timers.arm_in(Alarm::Sweep(name.clone()), LOOK_AT_CLAIM_EVERY);
        self.swept.waits(name);
        self.tell();
    }

    fn stocked(&mut self, name: HostName, pass: Pass, stock: Result<Stock, OpError>, ctx: &mut Ctx<SweepMsg>) {
        if self.begun(&name, pass).is_none() {
            return;
        }
        match stock {
            Ok(stock) => {
                // The fleet is asked after the list: whose instance is in it was known by then.
                self.timers.arm_in(Alarm::Sweep(name.clone()), ROLL_CALL_WITHIN);
                let called = ctx.tell(move |(name, stock, roll)| SweepMsg::Called(name, pass, stock, roll));
                let stock = Box::new(stock);
                (self.args.roll_call)(Box::new(move |roll| called.send((name, stock, roll))));
            }
            Err(error) => {
                metrics::counter!(names::GC_SWEEP_ERRORS_TOTAL, "provider" => self.args.provider.to_string())
                    .increment(1);
                // Told when it begins, and when it is another trouble; the counter and the admin endpoint tell the rest.
                let before = self.swept.hosts.get(&name).and_then(|host| host.trouble.as_ref());
                if before.is_none_or(|before| before.reason != error.reason) {
                    tracing::warn!(provider = %self.args.provider, host = %name, %error, "host not swept: nothing is deleted");
                }
                self.end(&name, Err(error), ctx);
            }
        }
    }

    fn called(&mut self, name: &HostName, pass: Pass, stock: Stock, roll: Option<Roll>, ctx: &mut Ctx<SweepMsg>) {
        if self.begun(name, pass).is_none() {
            return;
        }
        let Some(roll) = roll else {
            return self.wait_for_the_fleet(name);
        };
        self.timers.cancel(&Alarm::Sweep(name.clone()));
        let now = ctx.now();
        let Stock { mut rows, busy } = stock;
        rows.retain(|row| (self.args.is_swept_here)(&row.mark.entry));
        let SweepSettings { terms, every, .. } = &self.args.settings;
        let left = self.spent.left(terms.max_deletes, every.mul_f64(0.9), now.mono);
        let Some(host) = self.hosts.get_mut(name) else { return };
        let orphans = host.suspects.judge(&rows, &roll, &busy, terms, now);
        let ripe = orphans.iter().filter(|orphan| orphan.verdict == Verdict::Ripe);
        let next: VecDeque<_> = if terms.dry_run { VecDeque::new() } else { ripe.take(left).cloned().collect() };
        let seen = orphans.iter().map(|orphan| (orphan.mark.clone(), orphan.verdict == Verdict::Ripe)).collect();
        let before = std::mem::replace(&mut host.told, seen);
        let is_news = !host.told.is_subset(&before);
        if is_news {
            self.args.events.emit(told::found(&self.args.provider, name, &orphans, next.len(), terms));
        }
        for _ in &next {
            self.spent.spend(now.mono);
        }
        if let Some(begun) = self.begun(name, pass) {
            begun.next = next;
        }
        self.swept.found(name, orphans, now.wall);
        self.tell();
        self.bury_next(name, pass, ctx);
    }

    /// The sweep of this host is over.
    fn end(&mut self, name: &HostName, result: Result<(), OpError>, ctx: &mut Ctx<SweepMsg>) {
        let Some(begun) = self.hosts.get_mut(name).and_then(|host| host.begun.take()) else { return };
        let took = ctx.now().mono.saturating_duration_since(begun.at);
        metrics::histogram!(names::GC_SWEEP_SECONDS, "provider" => self.args.provider.to_string()).record(took);
        self.swept.ended(name, result, took, ctx.now().wall);
        self.tell();
        let every = self.args.settings.every.mul_f64(0.95 + rand::random::<f64>() * 0.1);
        self.timers.arm_in(Alarm::Sweep(name.clone()), every);
    }

    fn tell(&self) {
        // None before the first list: that nothing is known of is not a 0.
        if let Some(orphans) = self.swept.orphans() {
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 orphans")]
            metrics::gauge!(names::GC_ORPHANS, "provider" => self.args.provider.to_string()).set(orphans as f64);
        }
        self.args.told.store(Arc::new(self.swept.clone()));
    }
}

impl Behavior for Sweep {
    const KIND: &'static str = "sweep";
    type Msg = SweepMsg;
    type Args = SweepArgs;

    fn init(args: SweepArgs, ctx: &mut Ctx<SweepMsg>) -> Result<Self, InitError> {
        let mut timers = Timers::new(ctx.tell(SweepMsg::Timer));
        let mut hosts = HashMap::with_capacity(args.hosts.len());
        for handle in &args.hosts {
            // Hosts begin at different times, so that not all of a large entry are listed at once.
            let first = args.settings.every.min(Duration::from_secs(10)).mul_f64(rand::random());
            timers.arm_in(Alarm::Sweep(handle.name.clone()), first);
            let (suspects, told) = (Suspects::default(), HashSet::new());
            hosts.insert(handle.name.clone(), HostSweep { handle: handle.clone(), suspects, begun: None, told });
        }
        Ok(Self { hosts, spent: Spent::default(), swept: Swept::default(), passes: 0, owner_looks: 0, timers, args })
    }

    fn handle(&mut self, message: SweepMsg, ctx: &mut Ctx<SweepMsg>) {
        match message {
            SweepMsg::Known(host, pass, known) => self.known(&host, pass, known, ctx),
            SweepMsg::Stocked(host, pass, stock) => self.stocked(host, pass, stock, ctx),
            SweepMsg::Called(host, pass, stock, roll) => self.called(&host, pass, *stock, roll, ctx),
            SweepMsg::OwnerLooked(host, pass, done) => self.owner_looked(&host, pass, done, ctx),
            SweepMsg::Ended(host, pass, outcome) => self.op_ended(&host, pass, outcome, ctx),
            SweepMsg::Timer(fired) => match self.timers.accept(fired) {
                Some(Alarm::Sweep(host)) => self.begin(&host, ctx),
                Some(Alarm::Look(host)) => self.look(&host, ctx),
                None => {}
            },
        }
    }

    fn stopping(&mut self, _: &mut Ctx<SweepMsg>) -> Option<Lingering> {
        retire(&self.args.provider);
        None
    }
}

fn retire(provider: &ProviderName) {
    metrics::gauge!(names::GC_ORPHANS, "provider" => provider.to_string()).set(names::RETIRED);
}

fn lost_look() -> Done<Result<bool, OpError>> {
    Done::Finished(Err(OpError::transient(Reason::Lost, "the look at the Proxy was lost")))
}
