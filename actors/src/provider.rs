//! One entry of the providers config: its hosts, who gets a place on which, and how well they are.
//!
//! Owns the host actors of the entry, the reservations that are not yet recorded on an object, and the verdicts of the
//! periodic checks. Spoken to by proxy actors (`reserve`). Never runs an operation itself: hosts do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::domain::clock::Now;
use crate::domain::desired::Placement;
use crate::domain::error::OpError;
use crate::domain::id::{HostName, OperatorId, ProviderName, Uid};
use crate::domain::placement::{Seat, host_for, is_early};
use crate::domain::reason::Reason;
use crate::domain::status::{Condition, ConditionType};
use crate::domain::target::{TargetHealth, entry_health};
use crate::election::Claim;
use crate::events::EventsHandle;
use crate::host::{Checked, HostArgs, HostHandle};
use crate::kit::actor::InitError;
use crate::kit::{
    Behavior, ChildEnd, ChildSpec, Ctx, Exit, Fired, Intensity, Overflow, Ref, Reply, Strategy, Supervision, Tell,
    Timers,
};
use crate::names;
use crate::ports::{Event, HostEntry, ProviderEntry, ProviderHealth, Severity, Subject};
use crate::records::RecordsHandle;
use crate::standing::Standing;
use crate::sweep::{self, SweepArgs};

/// A reservation that no Proxy has taken up by then is void: its actor crashed, or its object went.
const RESERVED_FOR: Duration = Duration::from_secs(120);

/// `checkedAt` of an unchanged verdict is written at most this often (contract.md 2).
const REWRITE_AFTER: Duration = Duration::from_secs(300);

/// A host that crashed too often is started again after this.
const REVIVE_AFTER: Duration = Duration::from_secs(60);

/// A standby that begins to lead checks its hosts after this at the latest.
const LOOK_AT_CLAIM_EVERY: Duration = Duration::from_secs(1);

/// With a well host at hand, so long is waited for the first checks of the others: a burst of Proxies is to spread, and a
/// host that hangs is to delay none for its whole timeout.
const SPREAD_WITHIN: Duration = Duration::from_secs(1);

/// The verbs of a provider entry.
#[derive(Debug, Clone)]
pub struct ProviderHandle(Ref<ProviderMsg>);

impl ProviderHandle {
    pub fn new(name: &ProviderName) -> Self {
        Self(Ref::new(format!("provider/{name}")))
    }

    /// Asks for a host for this Proxy; asked again, it answers the same while the reservation lasts. Before the first
    /// checks it is answered once they say which hosts can be had. Answers exactly once, also when the provider dies with the question.
    pub fn reserve(&self, uid: &Uid, placement: &Placement, tell: Tell<Result<HostName, OpError>>) {
        let reply = Reply::new(
            move |answer| tell.send(answer),
            || Err(OpError::transient(Reason::Lost, "the provider is restarting")),
        );
        let reserve = Reserve { uid: uid.clone(), placement: placement.clone(), reply };
        self.0.cast_or_drop(ProviderMsg::Reserve(Box::new(reserve)));
    }

    /// Writes its ProviderHealth anew: somebody removed it, or what stands for all entries has changed.
    pub fn tell_again(&self) {
        self.0.cast_or_drop(ProviderMsg::TellAgain);
    }

    pub fn spec(&self, args: ProviderArgs) -> ChildSpec {
        let id: Arc<str> = args.entry.name.as_str().into();
        ChildSpec::of::<Provider>(id, &self.0, move || args.clone())
    }
}

#[derive(Debug)]
struct Reserve {
    uid: Uid,
    placement: Placement,
    reply: Reply<Result<HostName, OpError>>,
}

#[derive(Debug)]
enum ProviderMsg {
    /// A Proxy asks for a host.
    Reserve(Box<Reserve>),
    /// A host was checked.
    Checked(Checked),
    /// The ProviderHealth is to be written anew.
    TellAgain,
    Timer(Fired<Alarm>),
}

crate::named!(ProviderMsg: Reserve, Checked, TellAgain, Timer);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Alarm {
    /// Time for the next round of checks.
    Check,
    /// A host that gave up is started again.
    Revive(HostName),
    /// The sweep gave up and is started again.
    ReviveSweep,
    /// Enough was waited for checks: a host that is well is taken.
    Spread,
}

/// How a provider works, the same for all entries.
#[derive(Debug, Clone)]
pub struct ProviderSettings {
    pub operator: OperatorId,
    pub list_interval: Duration,
    pub check_interval: Duration,
    pub check_timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct ProviderArgs {
    pub entry: ProviderEntry,
    /// One for each host of the entry.
    pub hosts: Vec<HostHandle>,
    pub settings: ProviderSettings,
    pub claim: Claim,
    pub records: RecordsHandle,
    pub events: EventsHandle,
    /// Hears of a host that passed its check after it had failed it.
    pub recovered: Tell<(ProviderName, HostName)>,
    /// Where the admin endpoint reads the verdicts.
    pub verdicts: Arc<ArcSwap<Vec<TargetHealth>>>,
    /// What stands for all entries at once.
    pub standing: Standing,
    /// Why its ProviderHealth is not to be written, if it is not.
    pub untold: Arc<ArcSwapOption<String>>,
    /// None where nothing is swept.
    pub sweep: Option<SweepArgs>,
}

#[derive(Debug)]
struct Provider {
    args: ProviderArgs,
    reserved: HashMap<Uid, (HostName, Instant)>,
    /// Who asked before enough was known of the hosts. One of each Proxy.
    early: HashMap<Uid, Box<Reserve>>,
    verdicts: HashMap<HostName, TargetHealth>,
    /// None before every host was checked under this claim.
    written_at: Option<Instant>,
    timers: Timers<Alarm>,
}

impl Provider {
    /// Answers, or keeps the question for later.
    fn reserve(&mut self, ask: Box<Reserve>, ctx: &mut Ctx<ProviderMsg>) {
        let now = ctx.now().mono;
        self.reserved.retain(|_, (_, at)| now.saturating_duration_since(*at) < RESERVED_FOR);
        if let Some(host) = self.place_of(&ask.uid) {
            return ask.reply.send(Ok(host));
        }
        let seats = self.seats();
        if is_early(&seats, &ask.placement, self.is_patient()) {
            self.early.insert(ask.uid.clone(), ask);
            return;
        }
        let chosen = host_for(&self.args.entry.name, &seats, &ask.placement, &ask.uid);
        if let Ok(host) = &chosen {
            self.reserved.insert(ask.uid.clone(), (host.clone(), now));
        }
        ask.reply.send(chosen);
    }

    fn reserve_early(&mut self, ctx: &mut Ctx<ProviderMsg>) {
        // Who names a host is never early.
        if self.early.is_empty() || is_early(&self.seats(), &Placement::default(), self.is_patient()) {
            return;
        }
        for ask in std::mem::take(&mut self.early).into_values() {
            self.reserve(ask, ctx);
        }
    }

    fn is_patient(&self) -> bool {
        self.timers.is_armed(&Alarm::Spread)
    }

    fn place_of(&self, uid: &Uid) -> Option<HostName> {
        let reserved = self.reserved.get(uid).map(|(host, _)| host.clone());
        reserved
            .or_else(|| self.args.hosts.iter().find(|host| host.followed().contains(uid)).map(|host| host.name.clone()))
    }

    fn seats(&self) -> Vec<Seat<'_>> {
        self.args.hosts.iter().zip(&self.args.entry.hosts).map(|(handle, entry)| self.seat(handle, entry)).collect()
    }

    fn seat<'a>(&'a self, handle: &HostHandle, entry: &'a HostEntry) -> Seat<'a> {
        let followed = handle.followed();
        let waiting = self.reserved.iter().filter(|(u, (h, _))| *h == handle.name && !followed.contains(*u)).count();
        Seat {
            host: &entry.name,
            capacity: entry.capacity,
            taken: u32::try_from(followed.len() + waiting).unwrap_or(u32::MAX),
            checked: self.verdicts.get(&handle.name).map(|verdict| verdict.trouble.as_ref().map_or(Ok(()), Err)),
        }
    }

    fn start_host(&self, name: &HostName, ctx: &mut Ctx<ProviderMsg>) {
        let pair = self.args.hosts.iter().zip(&self.args.entry.hosts).find(|(handle, _)| handle.name == *name);
        if let Some((handle, entry)) = pair {
            ctx.start(handle.spec(HostArgs {
                provider: self.args.entry.name.clone(),
                entry: entry.clone(),
                operator: self.args.settings.operator.clone(),
                claim: self.args.claim.clone(),
                list_interval: self.args.settings.list_interval,
            }));
        }
    }

    fn start_sweep(&self, ctx: &mut Ctx<ProviderMsg>) {
        if let Some(args) = &self.args.sweep {
            ctx.start(sweep::spec(args.clone()));
        }
    }

    fn check_all(&mut self, ctx: &mut Ctx<ProviderMsg>) {
        if self.args.claim.epoch().is_none() {
            // A standby asks nobody for anything, and another may write the verdicts anew meanwhile.
            self.written_at = None;
            self.timers.arm_in(Alarm::Check, LOOK_AT_CLAIM_EVERY);
            return;
        }
        if self.verdicts.len() < self.args.hosts.len() {
            self.timers.arm_in(Alarm::Spread, SPREAD_WITHIN);
        }
        for host in &self.args.hosts {
            host.check(self.args.settings.check_timeout, ctx.tell(ProviderMsg::Checked));
        }
        let interval = self.args.settings.check_interval;
        self.timers.arm_in(Alarm::Check, interval.mul_f64(0.95 + rand::random::<f64>() * 0.1));
    }

    fn checked(&mut self, checked: Checked, ctx: &mut Ctx<ProviderMsg>) {
        let now = ctx.now();
        let verdict = TargetHealth {
            name: checked.host.clone(),
            trouble: checked.result.err(),
            latency: checked.took,
            checked_at: now.wall,
        };
        let (ready, reason) = (verdict.is_ready(), verdict.reason());
        let labels = [("provider", self.args.entry.name.to_string()), ("target", checked.host.to_string())];
        metrics::gauge!(names::PROVIDER_TARGET_UP, &labels).set(if ready { 1.0 } else { 0.0 });
        metrics::gauge!(names::PROVIDER_TARGET_CHECK_DURATION_SECONDS, &labels).set(checked.took.as_secs_f64());
        let unix = now.wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        metrics::gauge!(names::PROVIDER_TARGET_CHECK_TIMESTAMP_SECONDS, &labels).set(unix.as_secs_f64());

        let before = self.verdicts.insert(checked.host, verdict.clone());
        let changed = before.as_ref().is_none_or(|before| before.reason() != reason);
        if changed {
            let (provider, host) = (&self.args.entry.name, &verdict.name);
            if ready {
                tracing::info!(%provider, %host, "provider target is well");
            } else {
                tracing::warn!(%provider, %host, %reason, why = verdict.message(), "provider target is not well");
            }
            if before.is_some() || !ready {
                self.args.events.emit(Event {
                    about: Subject::Provider(provider.clone()),
                    severity: if ready { Severity::Normal } else { Severity::Warning },
                    reason,
                    note: format!("host `{host}`: {}", verdict.message()),
                });
            }
        }
        if ready && before.is_some_and(|before| !before.is_ready()) {
            self.args.recovered.send((self.args.entry.name.clone(), verdict.name));
        }
        let mut targets: Vec<_> = self.verdicts.values().cloned().collect();
        targets.sort_by(|a, b| a.name.cmp(&b.name));
        self.args.verdicts.store(Arc::new(targets));
        self.reserve_early(ctx);
        let all_known = self.verdicts.len() == self.args.hosts.len();
        let stale = self.written_at.is_none_or(|at| now.mono.saturating_duration_since(at) >= REWRITE_AFTER);
        if all_known && (changed || stale) {
            self.write(now);
        }
    }

    fn write(&mut self, now: Now) {
        self.written_at = Some(now.mono);
        if self.args.untold.load().is_some() {
            return;
        }
        let targets = self.args.verdicts.load_full();
        let health = entry_health(self.args.hosts.len(), &targets);
        let ready = Condition {
            kind: ConditionType::Ready,
            truth: health.ready,
            reason: health.reason,
            message: health.message.into(),
            // For a flip: what is as it was written before keeps its time there.
            since: now.wall,
        };
        let [suspicion, acceptance] = self.args.standing.conditions(now.wall);
        self.args.records.provider_health(ProviderHealth {
            entry: self.args.entry.name.clone(),
            kind: self.args.entry.kind,
            conditions: vec![ready, suspicion, acceptance],
            targets: targets.to_vec(),
        });
    }
}

/// Takes the gauges of a host that is gone out of sight.
pub(crate) fn retire(provider: &ProviderName, host: &HostName) {
    let labels = [("provider", provider.to_string()), ("target", host.to_string())];
    metrics::gauge!(names::PROVIDER_TARGET_UP, &labels).set(names::RETIRED);
    metrics::gauge!(names::PROVIDER_TARGET_CHECK_DURATION_SECONDS, &labels).set(names::RETIRED);
    metrics::gauge!(names::PROVIDER_TARGET_CHECK_TIMESTAMP_SECONDS, &labels).set(names::RETIRED);
}

impl Behavior for Provider {
    const KIND: &'static str = "provider";
    type Msg = ProviderMsg;
    type Args = ProviderArgs;

    fn init(args: ProviderArgs, ctx: &mut Ctx<ProviderMsg>) -> Result<Self, InitError> {
        let mut timers = Timers::new(ctx.tell(ProviderMsg::Timer));
        timers.arm_in(Alarm::Check, Duration::ZERO);
        let (reserved, early, verdicts) = (HashMap::new(), HashMap::new(), HashMap::new());
        let provider = Self { reserved, early, verdicts, written_at: None, timers, args };
        for host in provider.args.hosts.clone() {
            provider.start_host(&host.name, ctx);
        }
        provider.start_sweep(ctx);
        Ok(provider)
    }

    fn handle(&mut self, message: ProviderMsg, ctx: &mut Ctx<ProviderMsg>) {
        match message {
            ProviderMsg::Reserve(ask) => self.reserve(ask, ctx),
            ProviderMsg::Checked(checked) => self.checked(checked, ctx),
            // Before the first time it will be told anyway.
            ProviderMsg::TellAgain if self.written_at.is_some() => self.write(ctx.now()),
            ProviderMsg::TellAgain => {}
            ProviderMsg::Timer(fired) => match self.timers.accept(fired) {
                Some(Alarm::Check) => self.check_all(ctx),
                Some(Alarm::Revive(host)) => self.start_host(&host, ctx),
                Some(Alarm::ReviveSweep) => self.start_sweep(ctx),
                Some(Alarm::Spread) => self.reserve_early(ctx),
                None => {}
            },
        }
    }

    fn child_ended(&mut self, end: ChildEnd, ctx: &mut Ctx<ProviderMsg>) {
        let Exit::GaveUp(why) = &end.exit else { return };
        if &*end.id == sweep::CHILD {
            tracing::error!(provider = %self.args.entry.name, error = %why, "the orphan sweep is parked");
            return self.timers.arm_in(Alarm::ReviveSweep, REVIVE_AFTER);
        }
        tracing::error!(provider = %self.args.entry.name, host = %end.id, error = %why, "host is parked");
        if let Some(name) = end.id.strip_prefix("host/").and_then(|name| HostName::parse(name).ok()) {
            self.timers.arm_in(Alarm::Revive(name.clone()), REVIVE_AFTER);
            // Nobody is there to be checked: without this its last good verdict would stand.
            let error = OpError::transient(Reason::Crashed, format!("its actor keeps crashing and is parked: {why}"));
            self.checked(Checked { host: name, result: Err(error), took: Duration::ZERO }, ctx);
        }
    }

    fn supervision() -> Supervision {
        // One host that keeps crashing must not take the entry's other hosts along.
        Supervision {
            strategy: Strategy::OneForOne,
            intensity: Intensity { restarts: 5, within: Duration::from_secs(30) },
            overflow: Overflow::Park,
        }
    }
}
