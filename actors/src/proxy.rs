//! One Proxy: fills what was seen, asks the plan, carries out its step.
//!
//! Owns the [`Observed`] of its Proxy and what it has out elsewhere: an operation on a host, a place in the probe pool, an
//! offer in the lease registry. Spoken to by `proxies`; hears back from whatever it asked. It decides nothing itself:
//! every message becomes one `on_*` of the observed, then [`plan`] says what comes next. Answers to an older incarnation
//! go to nobody; what they would have told, the next look tells.
//!
//! Here: the wires, the messages, and what was seen. [`step`]: the one thing that is started next. [`told`]: what others
//! are told.

mod step;
mod told;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::domain::clock::Now;
use crate::domain::desired::{Desired, Flavor};
use crate::domain::error::OpError;
use crate::domain::health::Probed;
use crate::domain::id::{HostName, OperatorId, ProxyKey};
use crate::domain::plan::{HostFacts, Observed, ProviderFacts, ProviderSeen, SecretsRead, Settings, plan};
use crate::domain::reason::Reason;
use crate::domain::status::Status;
use crate::election::Claim;
use crate::events::EventsHandle;
use crate::host::{CallKind, OpOutcome, Sighting};
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Restart, Timers};
use crate::leases::LeasesHandle;
use crate::names;
use crate::ports::{Applied, HostEntry, ProviderEntry, Rejected, Secrets};
use crate::probes::ProbesHandle;
use crate::providers::{Directory, EntryCard};
use crate::records::RecordsHandle;

use told::Out;

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
    pub fn rejected(&self, rejected: Box<Rejected>) {
        self.0.cast_or_drop(ProxyMsg::Rejected(rejected));
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

    /// The claim came back, or ran out.
    pub fn claim_changed(&self) {
        self.0.cast_or_drop(ProxyMsg::ClaimChanged);
    }

    /// An actor under the claim of this epoch: under another one it is void.
    pub fn spec(
        &self,
        id: Arc<str>,
        applied: Applied,
        rejected: Option<Box<Rejected>>,
        epoch: Option<u32>,
        wires: Arc<Wires>,
    ) -> ChildSpec {
        let args = move || Args { applied: applied.clone(), rejected: rejected.clone(), epoch, wires: wires.clone() };
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
    /// The claim came back, or ran out.
    ClaimChanged,
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

crate::named!(ProxyMsg: Desired, Rejected, SecretChanged, ProviderChanged, HostRecovered, ClaimChanged, Reserved, Adopted,
    SecretsRead, Outcome, Seen, Probed, LeasesLeft, GivenUp, Released, Wake);

struct Args {
    applied: Applied,
    rejected: Option<Box<Rejected>>,
    epoch: Option<u32>,
    wires: Arc<Wires>,
}

struct Proxy {
    desired: Arc<Desired>,
    rejected: Option<Box<Rejected>>,
    seen: Observed,
    /// The provider entry that it names, if it is configured.
    card: Option<Arc<EntryCard>>,
    /// The claim under which it was started. Under any other it says and does nothing: it is about to be stopped.
    epoch: Option<u32>,
    wires: Arc<Wires>,
    timers: Timers<()>,
    woken_at: Option<Instant>,
    out: Out,
    /// The status that is on the object, or on its way there; but for what is not written for its own sake.
    written: Option<Arc<Status>>,
}

impl Proxy {
    fn key(&self) -> &ProxyKey {
        &self.desired.key
    }

    /// Asks the plan, carries out its step, and tells everybody what is news.
    fn advance(&mut self, ctx: &mut Ctx<ProxyMsg>) {
        if self.wires.claim.epoch() != self.epoch {
            return;
        }
        let now = ctx.now();
        self.look_up_provider();
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

    /// What is planned, asked and followed until the next look goes by the same card: the answers of a changed entry
    /// must not be taken for those of the one before.
    fn look_up_provider(&mut self) {
        let Flavor::Managed(managed) = &self.desired.flavor else { return };
        let card = self.wires.directory.entry(&managed.provider);
        let is_same = match (&card, &self.card) {
            (Some(card), Some(before)) => Arc::ptr_eq(card, before),
            (None, _) | (_, None) => false,
        };
        if is_same {
            return;
        }
        self.seen.on_provider(match &card {
            Some(card) => ProviderSeen::Configured(facts_of(&card.entry)),
            None if self.wires.directory.is_known() => ProviderSeen::NotConfigured,
            None => ProviderSeen::Unknown,
        });
        self.card = card;
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

fn facts_of(entry: &ProviderEntry) -> ProviderFacts {
    let host = |host: &HostEntry| HostFacts { name: host.name.clone(), ids: host.ids.clone() };
    ProviderFacts {
        revision: entry.revision,
        hosts: entry.hosts.iter().map(host).collect(),
        settle: entry.settle,
        address_timeout: entry.address_timeout,
        may_generate_credentials: entry.may_generate_credentials,
    }
}

impl Behavior for Proxy {
    const KIND: &'static str = "proxy";
    type Msg = ProxyMsg;
    type Args = Args;

    fn init(args: Args, ctx: &mut Ctx<ProxyMsg>) -> Result<Self, InitError> {
        let Args { applied, rejected, epoch, wires } = args;
        let now = ctx.now();
        let seen = Observed::new(&applied.desired, applied.recorded.clone(), &wires.settings, now);
        let mut proxy = Self {
            desired: applied.desired,
            rejected,
            seen,
            card: None,
            epoch,
            wires,
            timers: Timers::new(ctx.tell(ProxyMsg::Wake)),
            woken_at: None,
            out: Out::default(),
            written: applied.recorded,
        };
        proxy.advance(ctx);
        Ok(proxy)
    }

    fn handle(&mut self, message: ProxyMsg, ctx: &mut Ctx<ProxyMsg>) {
        let now = ctx.now();
        match message {
            ProxyMsg::Desired(desired) => {
                self.seen.on_desired(&desired, now);
                self.desired = desired;
                self.rejected = None;
            }
            ProxyMsg::Rejected(rejected) => self.rejected = Some(rejected),
            ProxyMsg::SecretChanged => self.seen.on_secret_changed(),
            ProxyMsg::ProviderChanged | ProxyMsg::ClaimChanged => {}
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
