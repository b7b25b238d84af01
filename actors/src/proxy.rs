//! One Proxy: fills what was seen, asks the plan, carries out its step.
//!
//! Owns the [`Observed`] of its Proxy and what it has out elsewhere: an operation on a host, a place in the probe pool, an
//! offer in the lease registry. Spoken to by `proxies`; hears back from whatever it asked. It decides nothing itself:
//! every message becomes one `on_*` of the observed, then [`plan`] says what comes next. Answers to an older incarnation
//! go to nobody; what they would have told, the next look tells.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::board::{Board, ProxyView};
use crate::domain::clock::Now;
use crate::domain::desired::{Attributes, CloudInit, Desired, Flavor, HealthCheck};
use crate::domain::error::OpError;
use crate::domain::health::{FailureDomain, Probed};
use crate::domain::id::{HostName, OperatorId, ProviderName, ProxyKey};
use crate::domain::instance::{InstanceSpec, OwnerMark};
use crate::domain::lease_book::{Absence, Announcement, Cordon, Offer};
use crate::domain::plan::{
    self, Notice, Observed, Plan, ProviderFacts, ProviderSeen, SecretsRead, Serving, Settings, Step, plan,
};
use crate::domain::reason::Reason;
use crate::domain::status::{ConditionType, Phase, Status, Truth};
use crate::election::Claim;
use crate::events::EventsHandle;
use crate::host::{Call, CallKind, HostHandle, Job, OpOutcome, Sighting};
use crate::kit::actor::InitError;
use crate::kit::work::{Done, work};
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Reply, Restart, Timers};
use crate::leases::LeasesHandle;
use crate::names;
use crate::ports::{Applied, Event, Rejected, Secrets, Severity, Subject};
use crate::probes::{ProbesHandle, Track};
use crate::providers::Directory;
use crate::records::RecordsHandle;

/// Secrets come from a cache or one API call.
const READ_WITHIN: Duration = Duration::from_secs(15);

/// How long each kind of operation may take on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    pub get: Duration,
    /// A create may carry an image to the host.
    pub create: Duration,
    pub delete: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { get: secs(20), create: secs(600), delete: secs(120) }
    }
}

/// What every proxy actor needs of the rest.
#[derive(Clone)]
pub struct Wires {
    pub operator: OperatorId,
    pub settings: Settings,
    pub deadlines: Deadlines,
    pub claim: Claim,
    pub records: RecordsHandle,
    pub events: EventsHandle,
    pub secrets: Arc<dyn Secrets>,
    pub directory: Directory,
    pub probes: ProbesHandle,
    pub leases: LeasesHandle,
    pub board: Board,
}

impl std::fmt::Debug for Wires {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wires")
    }
}

/// The verbs of one Proxy's actor.
#[derive(Debug, Clone)]
pub struct ProxyHandle(Ref<ProxyMsg>);

impl ProxyHandle {
    pub fn new(key: &ProxyKey) -> Self {
        Self(Ref::new(format!("proxy/{key}")))
    }

    /// The object as it is now.
    pub fn desired(&self, desired: Arc<Desired>) {
        self.0.cast_or_drop(ProxyMsg::Desired(desired));
    }

    /// The object has a newer version that is not valid.
    pub fn rejected(&self, rejected: Rejected) {
        self.0.cast_or_drop(ProxyMsg::Rejected(Box::new(rejected)));
    }

    /// A Secret that it uses came, changed or went.
    pub fn secret_changed(&self) {
        self.0.cast_or_drop(ProxyMsg::SecretChanged);
    }

    /// Entries of the providers config came, changed or went.
    pub fn provider_changed(&self) {
        self.0.cast_or_drop(ProxyMsg::ProviderChanged);
    }

    /// The recorded host, or one that may be chosen, is well again.
    pub fn host_recovered(&self) {
        self.0.cast_or_drop(ProxyMsg::HostRecovered);
    }

    pub fn spec(&self, id: Arc<str>, applied: Applied, rejected: Option<Rejected>, wires: Arc<Wires>) -> ChildSpec {
        let args = move || Args { applied: applied.clone(), rejected: rejected.clone(), wires: wires.clone() };
        ChildSpec::of::<Proxy>(id, &self.0, args).restart(Restart::Temporary)
    }
}

enum ProxyMsg {
    /// The object as it is now.
    Desired(Arc<Desired>),
    /// The object has a newer version that is not valid.
    Rejected(Box<Rejected>),
    SecretChanged,
    ProviderChanged,
    HostRecovered,
    /// The provider chose a host, or not.
    Reserved(Result<HostName, OpError>),
    /// The finalizer and the host were written, or not.
    Adopted(Result<(), OpError>),
    SecretsRead(Result<Box<SecretsRead>, OpError>),
    /// An operation on the host ended.
    Outcome(Box<OpOutcome>),
    /// What the list of the host shows.
    Seen(Box<Sighting>),
    /// A probe of what was tracked at that number ended.
    Probed(u64, Box<Probed>),
    /// So many leases are out.
    LeasesLeft(u32),
    /// The Warning about what is given up was written, or not.
    GivenUp(Result<(), OpError>),
    /// The finalizer was dropped, or not.
    Released(Result<(), OpError>),
    Wake(Fired<()>),
}

crate::named!(ProxyMsg: Desired, Rejected, SecretChanged, ProviderChanged, HostRecovered, Reserved, Adopted, SecretsRead, Outcome, Seen,
    Probed, LeasesLeft, GivenUp, Released, Wake);

struct Args {
    applied: Applied,
    rejected: Option<Rejected>,
    wires: Arc<Wires>,
}

struct Proxy {
    desired: Arc<Desired>,
    attributes: Arc<Attributes>,
    rejected: Option<Rejected>,
    seen: Observed,
    wires: Arc<Wires>,
    timers: Timers<()>,
    woken_at: Option<Instant>,
    out: Out,
    /// The status as it was last handed to the writer, or found on the object.
    written: Option<Arc<Status>>,
}

/// What this actor has told others, so that it tells only news.
#[derive(Default)]
struct Out {
    followed: Option<HostHandle>,
    tracked: Option<(plan::Track, HealthCheck)>,
    offered: Option<Offer>,
    announced: Option<Announcement>,
    withdrawn: Option<Absence>,
    /// Nothing until something was told: a predecessor may have left a cordon.
    cordoned: Option<bool>,
    /// Counts what the probe pool was told: verdicts on anything older are dropped. 0: nothing was told, and a
    /// predecessor may be tracked.
    track: u64,
    /// The host that runs an operation for us.
    working_on: Option<HostHandle>,
}

impl Proxy {
    fn key(&self) -> &ProxyKey {
        &self.desired.key
    }

    fn mark(&self, provider: &ProviderName) -> OwnerMark {
        OwnerMark {
            operator: self.wires.operator.clone(),
            entry: provider.clone(),
            key: self.desired.key.clone(),
            uid: self.desired.uid.clone(),
        }
    }

    /// Asks the plan, carries out its step, and tells everybody what is news.
    fn advance(&mut self, ctx: &mut Ctx<ProxyMsg>) {
        let now = ctx.now();
        self.seen.on_claim(self.wires.claim.may_mutate(now.mono));
        let begun = Instant::now();
        let plan = plan(&self.desired, &self.seen, &self.wires.settings, now);
        self.seen.on_planned(&self.desired, &plan, now);
        metrics::histogram!(names::PLAN_STEP_SECONDS).record(begun.elapsed());

        self.follow(ctx);
        if plan.cancel
            && let Some(host) = self.out.working_on.take()
        {
            host.cancel(&self.desired.uid);
        }
        self.serve(&plan, ctx);
        self.track(&plan, ctx);
        self.tell(&plan);
        self.arm(plan.wake);
        self.take(plan.step, now, ctx);
    }

    fn arm(&mut self, wake: Option<Instant>) {
        if wake == self.woken_at {
            return;
        }
        self.woken_at = wake;
        match wake {
            Some(at) => self.timers.arm_at((), at),
            None => self.timers.cancel(&()),
        }
    }

    // --- the one thing to start

    fn take(&mut self, step: Step, now: Now, ctx: &mut Ctx<ProxyMsg>) {
        let (key, uid) = (self.desired.key.clone(), self.desired.uid.clone());
        match step {
            Step::Nothing | Step::Done => {}
            Step::ReserveHost => self.reserve(ctx),
            Step::RecordFinalizer { host } => {
                let tell = ctx.tell(ProxyMsg::Adopted);
                self.wires.records.adopt(&key, &uid, Some(host), move |written| tell.send(written));
            }
            Step::ReadSecrets => self.read_secrets(now, ctx),
            Step::Get { host } => self.submit(&host, Call::Get, self.wires.deadlines.get, now, ctx),
            Step::Delete { host, why } => {
                tracing::info!(proxy = %key, %host, reason = %why, "deleting the instance");
                self.submit(&host, Call::Delete, self.wires.deadlines.delete, now, ctx);
            }
            Step::Create { host } => {
                let Flavor::Managed(managed) = &self.desired.flavor else { return };
                tracing::info!(proxy = %key, provider = %managed.provider, %host, "creating the instance");
                let spec = InstanceSpec {
                    mark: self.mark(&managed.provider),
                    placement: managed.placement.clone(),
                    user_data: self.seen.user_data(&self.desired),
                    port: managed.port,
                    credentials: self.seen.credentials().cloned(),
                };
                self.submit(&host, |_| Call::Create(Box::new(spec)), self.wires.deadlines.create, now, ctx);
            }
            Step::EmitGivenUp { reason, note } => {
                let tell = ctx.tell(ProxyMsg::GivenUp);
                let event = self.event(Severity::Warning, reason, note);
                self.wires.events.emit_acked(event, move |acked| tell.send(acked));
            }
            Step::ReleaseFinalizer => {
                let tell = ctx.tell(ProxyMsg::Released);
                self.wires.records.release(&key, &uid, move |written| tell.send(written));
            }
        }
    }

    fn reserve(&self, ctx: &Ctx<ProxyMsg>) {
        let tell = ctx.tell(ProxyMsg::Reserved);
        let Flavor::Managed(managed) = &self.desired.flavor else { return };
        match self.wires.directory.entry(&managed.provider) {
            Some(card) => card.provider.reserve(&self.desired.uid, &managed.placement, tell),
            None => tell.send(Err(not_configured(&managed.provider))),
        }
    }

    fn read_secrets(&self, now: Now, ctx: &mut Ctx<ProxyMsg>) {
        let (secrets, desired) = (self.wires.secrets.clone(), self.desired.clone());
        let read = async move {
            let namespace = desired.key.namespace();
            let mut read = SecretsRead::default();
            if let Some(secret) = desired.credentials() {
                read.credentials = Some(secrets.credentials(namespace, secret).await?);
            }
            if let Flavor::Managed(managed) = &desired.flavor
                && let Some(cloud_init @ CloudInit::Secret { .. }) = &managed.cloud_init
            {
                read.user_data = Some(secrets.user_data(namespace, cloud_init).await?);
            }
            Ok(Box::new(read))
        };
        let tell = ctx.tell(ProxyMsg::SecretsRead);
        let answer = move |done| {
            tell.send(match done {
                Done::Finished(read) => read,
                Done::Deadline => Err(OpError::transient(Reason::Timeout, "the Secrets were not read in time")),
                Done::Panicked(what) => Err(OpError::transient(Reason::Internal, what)),
                Done::Lost => Err(OpError::transient(Reason::Lost, "reading the Secrets was cut short")),
            });
        };
        ctx.start(work("op/secrets", now.mono + READ_WITHIN, read, Reply::new(answer, || Done::Lost)));
    }

    fn submit(
        &mut self,
        host: &HostName,
        call: impl FnOnce(OwnerMark) -> Call,
        within: Duration,
        now: Now,
        ctx: &Ctx<ProxyMsg>,
    ) {
        let Flavor::Managed(managed) = &self.desired.flavor else { return };
        let call = call(self.mark(&managed.provider));
        let kind = call.kind();
        let tell = ctx.tell(|outcome| ProxyMsg::Outcome(Box::new(outcome)));
        let lost = match kind {
            CallKind::Get => OpOutcome::lost_get as fn() -> OpOutcome,
            CallKind::Create => OpOutcome::lost_create,
            CallKind::Delete => OpOutcome::lost_delete,
        };
        let reply = Reply::new(move |outcome| tell.send(outcome), lost);
        let found = self.wires.directory.entry(&managed.provider).and_then(|card| card.hosts.get(host).cloned());
        match found {
            Some(handle) => {
                handle.submit(Job { call, deadline: now.mono + within, reply });
                self.out.working_on = Some(handle);
            }
            None => reply.send(OpOutcome { kind, result: Err(not_configured(&managed.provider)) }),
        }
    }

    // --- what others are told

    /// Hears of the list of the recorded host; a host that was configured anew is followed anew.
    fn follow(&mut self, ctx: &Ctx<ProxyMsg>) {
        let wanted = self.desired.host.as_ref().zip(self.desired.provider()).and_then(|(host, provider)| {
            self.wires.directory.entry(provider).and_then(|card| card.hosts.get(host).cloned())
        });
        if let Some(old) = &self.out.followed
            && wanted.as_ref().is_none_or(|new| !new.is(old))
        {
            old.unfollow(&self.desired.uid);
            self.out.followed = None;
        }
        if self.out.followed.is_none()
            && let Some(host) = wanted
        {
            host.follow(&self.desired.uid, ctx.tell(|sighting| ProxyMsg::Seen(Box::new(sighting))));
            self.out.followed = Some(host);
        }
    }

    fn domain(&self) -> Option<FailureDomain> {
        FailureDomain::of(&self.desired)
    }

    fn serve(&mut self, plan: &Plan, ctx: &Ctx<ProxyMsg>) {
        let (key, uid) = (self.desired.key.clone(), self.desired.uid.clone());
        match &plan.serving {
            Serving::AsBefore => {}
            Serving::Offer(route) => {
                let offer = Offer {
                    key: key.clone(),
                    uid: uid.clone(),
                    endpoint: route.endpoint.clone(),
                    credentials: route.credentials.clone(),
                    attributes: self.attributes.clone(),
                    capacity: self.desired.max_leases,
                    domain: self.domain().map_or_else(|| key.as_str().into(), |domain| domain.to_string().into()),
                    exit_ip: plan.status.exit_ip.clone(),
                };
                if self.out.offered.as_ref() != Some(&offer) {
                    if plan.cordoned && self.out.offered.is_none() {
                        // The cordon stands before the offer does, or a lease could be granted in between.
                        self.wires.leases.announce(Announcement {
                            key: key.clone(),
                            uid: uid.clone(),
                            attributes: self.attributes.clone(),
                            capacity: self.desired.max_leases,
                            absence: Absence::Provisioning,
                        });
                        self.cordon(true, ctx);
                    }
                    self.wires.leases.offer(offer.clone());
                    self.out.offered = Some(offer);
                    self.out.withdrawn = None;
                }
            }
            Serving::Withdraw { reason } => {
                let absence = if self.desired.deleting {
                    Absence::Unhealthy
                } else {
                    match plan.status.phase {
                        Phase::Pending | Phase::Provisioning => Absence::Provisioning,
                        Phase::Ready | Phase::Unhealthy | Phase::Failed | Phase::Deleting => Absence::Unhealthy,
                    }
                };
                let news = Announcement {
                    key: key.clone(),
                    uid: uid.clone(),
                    attributes: self.attributes.clone(),
                    capacity: self.desired.max_leases,
                    absence,
                };
                if self.out.announced.as_ref() != Some(&news) || self.out.offered.is_some() {
                    self.wires.leases.announce(news.clone());
                    self.out.announced = Some(news);
                }
                if self.out.offered.take().is_some() || self.out.withdrawn != Some(absence) {
                    tracing::debug!(proxy = %key, %reason, "not on offer");
                    self.wires.leases.withdraw(&key, &uid, absence, ctx.tell(ProxyMsg::LeasesLeft));
                    self.out.withdrawn = Some(absence);
                }
            }
        }
        if self.out.cordoned != Some(plan.cordoned) {
            self.cordon(plan.cordoned, ctx);
        }
    }

    fn cordon(&mut self, cordoned: bool, ctx: &Ctx<ProxyMsg>) {
        let cordon = cordoned.then_some(Cordon { drain_by: None });
        let left = ctx.tell(ProxyMsg::LeasesLeft);
        self.wires.leases.cordon(&self.desired.key, &self.desired.uid, cordon, left);
        self.out.cordoned = Some(cordoned);
    }

    fn track(&mut self, plan: &Plan, ctx: &Ctx<ProxyMsg>) {
        let wanted = plan.track.clone().map(|track| (track, self.desired.check.clone()));
        let same = match (&self.out.tracked, &wanted) {
            (None, None) => self.out.track > 0,
            // That it was presumed healthy mattered for the first probe only.
            (Some((old, check)), Some((new, wanted))) => old.route == new.route && check == wanted,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            return;
        }
        self.out.track += 1;
        let number = self.out.track;
        match (&wanted, self.domain()) {
            (Some((track, check)), Some(domain)) => self.wires.probes.track(Track {
                key: self.desired.key.clone(),
                uid: self.desired.uid.clone(),
                domain,
                endpoint: track.route.endpoint.clone(),
                credentials: track.route.credentials.clone(),
                check: check.clone(),
                trusted: track.presumed,
                tell: ctx.tell(move |probed| ProxyMsg::Probed(number, Box::new(probed))),
            }),
            (Some(_) | None, _) => self.wires.probes.untrack(&self.desired.uid),
        }
        self.out.tracked = wanted;
    }

    fn tell(&mut self, plan: &Plan) {
        let mut status = plan.status.clone();
        if let Some(rejected) = &self.rejected {
            tell_rejected(&mut status, rejected);
        }
        let status = status.keeping_transitions_of(self.written.as_deref());
        for notice in &plan.notices {
            self.wires.events.emit(self.noticed(notice));
        }
        let news = self.written.as_ref().is_none_or(|written| status.differs_from(written));
        let status = Arc::new(status);
        if news {
            self.log(&status);
            self.wires.records.status(&self.desired.key, &self.desired.uid, (*status).clone());
            self.written = Some(status.clone());
        }
        // The live values go on the board with each probe, though they are not written.
        self.wires.board.put(ProxyView::new(&self.desired, self.attributes.clone(), status));
    }

    fn log(&self, status: &Status) {
        let before = self.written.as_ref().map(|written| written.phase);
        if before != Some(status.phase) {
            let ready = status.condition(ConditionType::Ready);
            tracing::info!(
                proxy = %self.key(), phase = status.phase.as_str(), reason = ready.map_or("", |c| c.reason.as_str()),
                why = ready.map_or("", |c| &*c.message), "phase changed"
            );
        }
    }

    fn noticed(&self, notice: &Notice) -> Event {
        let severity = match notice.severity {
            plan::Severity::Normal => Severity::Normal,
            plan::Severity::Warning => Severity::Warning,
        };
        self.event(severity, notice.reason, notice.note.to_string())
    }

    fn event(&self, severity: Severity, reason: Reason, note: String) -> Event {
        let about = Subject::Proxy(self.desired.key.clone(), self.desired.uid.clone());
        Event { about, severity, reason, note }
    }

    // --- what was seen

    fn provider_seen(&self) -> ProviderSeen {
        let Flavor::Managed(managed) = &self.desired.flavor else { return ProviderSeen::NotConfigured };
        match self.wires.directory.entry(&managed.provider) {
            Some(card) => ProviderSeen::Configured(ProviderFacts {
                revision: card.entry.revision,
                hosts: card.entry.hosts.iter().map(|host| host.name.clone()).collect(),
                settle: card.entry.settle,
                address_timeout: card.entry.address_timeout,
                may_generate_credentials: card.entry.may_generate_credentials,
            }),
            None if self.wires.directory.is_known() => ProviderSeen::NotConfigured,
            None => ProviderSeen::Unknown,
        }
    }

    fn outcome(&mut self, outcome: OpOutcome, now: Now) {
        self.out.working_on = None;
        if let Err(error) = &outcome.result {
            tracing::debug!(proxy = %self.key(), op = outcome.kind.as_str(), %error, "operation failed");
        }
        let instance = || OpError::transient(Reason::Internal, "the backend answered without an instance");
        match outcome.kind {
            CallKind::Get => {
                self.seen.on_get(outcome.result.and_then(|found| found.ok_or_else(instance)), now);
            }
            CallKind::Create => {
                self.seen.on_create(outcome.result.and_then(|found| found.ok_or_else(instance)), now);
            }
            CallKind::Delete => self.seen.on_delete(outcome.result.map(|_| ()), now),
        }
    }
}

fn not_configured(provider: &ProviderName) -> OpError {
    OpError::permanent(
        Reason::ProviderNotConfigured,
        format!(
            "provider `{provider}` is not in the providers config; add it there, or make the Proxy anew with another"
        ),
    )
}

/// A newer version of the object is not valid: that is told, and the last good version goes on.
fn tell_rejected(status: &mut Status, rejected: &Rejected) {
    status.observed_generation = rejected.generation;
    if let Some(ready) = status.conditions.iter_mut().find(|condition| condition.kind == ConditionType::Ready) {
        ready.message = format!("{}; the last valid version goes on ({})", rejected.message, ready.message).into();
        if ready.truth != Truth::True {
            ready.reason = Reason::SpecInvalid;
        }
    }
}

impl Behavior for Proxy {
    const KIND: &'static str = "proxy";
    type Msg = ProxyMsg;
    type Args = Args;

    fn init(args: Args, ctx: &mut Ctx<ProxyMsg>) -> Result<Self, InitError> {
        let Args { applied, rejected, wires } = args;
        let now = ctx.now();
        let seen = Observed::new(&applied.desired, applied.recorded.clone(), &wires.settings, now);
        let mut proxy = Self {
            attributes: Arc::new(applied.desired.attributes.clone()),
            desired: applied.desired,
            rejected,
            seen,
            wires,
            timers: Timers::new(ctx.tell(ProxyMsg::Wake)),
            woken_at: None,
            out: Out::default(),
            written: applied.recorded,
        };
        let provider = proxy.provider_seen();
        proxy.seen.on_provider(provider);
        proxy.advance(ctx);
        Ok(proxy)
    }

    fn handle(&mut self, message: ProxyMsg, ctx: &mut Ctx<ProxyMsg>) {
        let now = ctx.now();
        match message {
            ProxyMsg::Desired(desired) => {
                if self.desired.attributes != desired.attributes {
                    self.attributes = Arc::new(desired.attributes.clone());
                }
                self.seen.on_desired(&desired, now);
                self.desired = desired;
                self.rejected = None;
            }
            ProxyMsg::Rejected(rejected) => self.rejected = Some(*rejected),
            ProxyMsg::SecretChanged => self.seen.on_secret_changed(),
            ProxyMsg::ProviderChanged => {
                let provider = self.provider_seen();
                self.seen.on_provider(provider);
            }
            ProxyMsg::HostRecovered => self.seen.on_host_recovered(),
            ProxyMsg::Reserved(outcome) => self.seen.on_reserved(outcome, now),
            ProxyMsg::Adopted(outcome) => self.seen.on_adopted(outcome, now),
            ProxyMsg::SecretsRead(outcome) => self.seen.on_secrets(outcome.map(|read| *read), now),
            ProxyMsg::Outcome(outcome) => self.outcome(*outcome, now),
            ProxyMsg::Seen(sighting) => match *sighting {
                Sighting::Present(instance) => self.seen.on_listed(Some(&instance), now),
                Sighting::Absent => self.seen.on_listed(None, now),
                // A host that cannot be listed says nothing: the Proxy keeps what it knows.
                Sighting::Unread(_) => {}
            },
            ProxyMsg::Probed(number, probed) if number == self.out.track => self.seen.on_probed(*probed, now),
            ProxyMsg::Probed(..) => return,
            ProxyMsg::LeasesLeft(leases) => self.seen.on_leases_left(leases),
            ProxyMsg::GivenUp(outcome) => self.seen.on_given_up(outcome, now),
            ProxyMsg::Released(outcome) => self.seen.on_released(outcome, now),
            ProxyMsg::Wake(fired) => {
                if self.timers.accept(fired).is_none() {
                    return;
                }
                self.woken_at = None;
            }
        }
        self.advance(ctx);
    }
}
