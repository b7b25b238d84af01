//! What one Proxy's actor has seen, and how each fact changes it.
//!
//! Facts only: what follows from them is [`plan`](super::plan)'s. Lost with the actor and gathered anew by its successor,
//! which starts from the recorded status and doubts what its predecessor may have left running.

use std::sync::Arc;
use std::time::{Duration, Instant};

use url::Url;

use super::facts::{Latch, ProviderSeen, Removal, Running, SecretsRead, Sight};
use super::tries::{Task, Tries};
use super::{Plan, Route, Serving, Settings, Step};
use crate::domain::backoff::Backoff;
use crate::domain::clock::Now;
use crate::domain::desired::{CloudInit, Desired, Endpoint, Flavor, Scheme, SecretRef};
use crate::domain::error::OpError;
use crate::domain::health::Verdict;
use crate::domain::id::{HostName, Uid};
use crate::domain::instance::{Credentials, InstanceState, SecretBytes};
use crate::domain::reason::Reason;
use crate::domain::status::{LastProbe, Status};

/// Everything that is known of one Proxy beside its object. See the verbs.
#[derive(Debug, Clone)]
pub struct Observed {
    // What is known from outside.
    pub(super) may_mutate: bool,
    pub(super) provider: ProviderSeen,
    pub(super) leases_left: Option<u32>,
    // The object.
    pub(super) generation: i64,
    pub(super) deleting_since: Option<Instant>,
    /// Where the instance is or will be. Never moves: an instance on the old host would be forgotten.
    pub(super) host: Option<HostName>,
    pub(super) reserved: Option<HostName>,
    pub(super) adopted_at: Option<Instant>,
    pub(super) released_at: Option<Instant>,
    /// The `recreate` value that the instance answers to, and since when another one is asked for.
    pub(super) recreated: Option<Arc<str>>,
    pub(super) recreate_since: Option<Instant>,
    // The Secrets.
    pub(super) secret: Option<SecretRef>,
    pub(super) credentials: Option<Credentials>,
    pub(super) user_data: Option<SecretBytes>,
    pub(super) secrets_stale: bool,
    /// The instance that lives may ask for other credentials than these.
    pub(super) hand_over: bool,
    /// They were handed over because a probe was refused: a second time would change nothing.
    pub(super) was_refused: bool,
    /// What is being read just now is outdated already.
    pub(super) reread_secrets: bool,
    // The instance.
    pub(super) sight: Sight,
    /// The endpoint in the recorded status, until a look says more.
    pub(super) remembered: Option<Endpoint>,
    pub(super) look_at: Option<Instant>,
    pub(super) polls: Backoff,
    /// A mutation ended, or may have been left by a predecessor, without its end being seen: since when.
    pub(super) doubt_since: Option<Instant>,
    pub(super) removal: Option<Removal>,
    /// An instance was seen gone after a delete, and none was asked for since.
    pub(super) cleaned: bool,
    /// Where the latest create was sent, until the instance is seen or seen gone: what its id is to begin with.
    pub(super) sent_to: Option<Arc<str>>,
    /// Why the instance is being made anew, and which one it was.
    pub(super) remaking: Option<(Reason, Option<Arc<str>>)>,
    pub(super) losses: Backoff,
    pub(super) remake_at: Option<Instant>,
    pub(super) addressless_since: Option<Instant>,
    // Operations.
    pub(super) on_host: Option<Running>,
    pub(super) aside: Option<Running>,
    pub(super) tries: Tries,
    pub(super) latch: Option<Latch>,
    pub(super) given_up: bool,
    pub(super) retry: Backoff,
    pub(super) seed: u64,
    // Health.
    pub(super) tracked: Option<Endpoint>,
    pub(super) judged: Option<(Endpoint, Verdict)>,
    /// Recorded Ready with this endpoint, and not judged since.
    pub(super) presumed: Option<Endpoint>,
    pub(super) unhealthy_since: Option<Instant>,
    pub(super) last_probe: Option<LastProbe>,
    pub(super) exit_ip: Option<Arc<str>>,
    // What was said.
    pub(super) offered: bool,
    /// The way in that was offered last: what leases that are out were granted with.
    pub(super) leased: Option<Route>,
    pub(super) cordoned: bool,
    told: Option<Arc<Status>>,
}

/// Without a provider that states one.
const SETTLE: Duration = Duration::from_secs(30);

impl Observed {
    /// At the start of an actor. `recorded` is the status on the object, of the same uid.
    pub fn new(desired: &Desired, recorded: Option<Arc<Status>>, settings: &Settings, now: Now) -> Self {
        let endpoint = recorded.as_ref().and_then(|status| read_endpoint(status.endpoint.as_deref()?));
        let provider_id = recorded.as_ref().and_then(|status| status.provider_id.clone());
        let remembered = endpoint.clone().filter(|_| matches!(desired.flavor, Flavor::Managed(_)));
        let mut seen = Self {
            may_mutate: false,
            provider: ProviderSeen::Unknown,
            leases_left: None,
            generation: desired.generation,
            deleting_since: None,
            host: provider_id.as_deref().and_then(|id| host_in(id, desired)),
            reserved: None,
            adopted_at: None,
            released_at: None,
            // Without a recorded status nothing was ever made for another value.
            recreated: match &recorded {
                Some(status) => status.recreated.clone(),
                None => desired.annotations.recreate.clone(),
            },
            recreate_since: None,
            secret: desired.credentials().cloned(),
            credentials: None,
            user_data: None,
            secrets_stale: false,
            hand_over: false,
            was_refused: false,
            reread_secrets: false,
            sight: Sight::Unseen,
            // One list tells all instances of a host: a restart does not ask for each.
            look_at: Some(if remembered.is_some() { now.mono + settings.list_interval } else { now.mono }),
            remembered,
            polls: Backoff::new(settings.poll.0, settings.poll.1),
            doubt_since: (desired.finalizer || desired.host.is_some()).then_some(now.mono),
            removal: None,
            cleaned: false,
            sent_to: None,
            remaking: None,
            losses: Backoff::new(settings.retry.0, settings.retry.1),
            remake_at: None,
            addressless_since: None,
            on_host: None,
            aside: None,
            tries: Tries::default(),
            latch: None,
            given_up: false,
            retry: Backoff::new(settings.retry.0, settings.retry.1),
            seed: seed_of(&desired.uid),
            tracked: None,
            judged: None,
            presumed: endpoint.filter(|_| recorded.as_ref().is_some_and(|status| status.is_ready())),
            unhealthy_since: None,
            last_probe: recorded.as_ref().and_then(|status| status.last_probe.clone()),
            exit_ip: recorded.as_ref().and_then(|status| status.exit_ip.clone()),
            offered: false,
            leased: None,
            cordoned: false,
            told: recorded,
        };
        seen.on_desired(desired, now);
        seen
    }

    /// The object came, or changed. Only of the same uid: another one is another Proxy.
    pub fn on_desired(&mut self, desired: &Desired, now: Now) {
        if desired.generation != self.generation {
            self.generation = desired.generation;
            self.try_again();
        }
        if desired.credentials() != self.secret.as_ref() {
            self.secret = desired.credentials().cloned();
            self.credentials = None;
            self.reread_secrets = self.is_reading_secrets();
        }
        if desired.deleting && self.deleting_since.is_none() {
            self.deleting_since = Some(now.mono);
            // A replacement that got nowhere is no reason to give up: the deletion asks by itself.
            self.removal.iter_mut().for_each(|removal| removal.blind = None);
        }
        if self.host.is_none() {
            self.host.clone_from(&desired.host);
        }
        if desired.finalizer && desired.host.is_some() {
            self.adopted_at = None;
            self.put_right(Task::Adopt);
        }
        self.recreate_since = match &desired.annotations.recreate {
            Some(value) if self.recreated.as_ref() != Some(value) => self.recreate_since.or(Some(now.mono)),
            Some(_) | None => None,
        };
        if self.recreate_since.is_some() {
            self.needs_no_hand_over();
        }
    }

    /// The claim came or went. Without it nothing is started, and nothing is forgotten.
    pub fn on_claim(&mut self, may_mutate: bool) {
        self.may_mutate = may_mutate;
    }

    /// The providers config was read, or changed.
    pub fn on_provider(&mut self, provider: ProviderSeen) {
        let revision = |seen: &ProviderSeen| match seen {
            ProviderSeen::Configured(facts) => Some(facts.revision),
            ProviderSeen::Unknown | ProviderSeen::NotConfigured => None,
        };
        if revision(&provider) != revision(&self.provider) {
            self.try_again();
        }
        self.provider = provider;
    }

    /// The host passed its check after it had failed it: what failed because of that need not wait any longer.
    pub fn on_host_recovered(&mut self) {
        self.try_again();
    }

    /// A Secret that this Proxy uses changed. What was read of it stays in use until it is read again.
    pub fn on_secret_changed(&mut self) {
        self.secrets_stale = true;
        self.reread_secrets = self.is_reading_secrets();
        self.user_data = None;
        self.try_again();
    }

    /// The lease registry told how many leases are out; it does so after each offer, withdrawal and cordon.
    pub fn on_leases_left(&mut self, leases: u32) {
        self.leases_left = Some(leases);
    }

    /// The step of this plan begins, and its words are told. Called once after each [`plan`](super::plan), before the
    /// step is started.
    pub fn on_planned(&mut self, desired: &Desired, plan: &Plan, now: Now) {
        let offers = plan.serving.is_on();
        if (self.offered && !offers) || (plan.cordon.is_some() && !self.cordoned) {
            // A lease may have been granted just before: the old count says nothing.
            self.leases_left = None;
        }
        (self.offered, self.cordoned) = (offers, plan.cordon.is_some());
        if let Serving::Offer(route) = &plan.serving
            && self.leased.as_ref() != Some(route)
        {
            self.leased = Some(route.clone());
        }
        let endpoint = plan.track.as_ref().map(|track| &track.route.endpoint);
        if self.tracked.as_ref() != endpoint {
            if self.judged.as_ref().is_some_and(|(judged, _)| endpoint.is_some_and(|endpoint| endpoint != judged)) {
                self.forget_verdict();
            }
            self.tracked = endpoint.cloned();
        }
        self.told = Some(plan.status.clone());
        if let Some(task) = Task::of(&plan.step) {
            let slot = if task.is_on_host() { &mut self.on_host } else { &mut self.aside };
            *slot = Some(Running { task, since: now.mono });
        }
        match &plan.step {
            Step::Create { .. } => {
                self.cleaned = false;
                self.sent_to = self.ids();
                self.recreated = self.recreated_by(&plan.step, desired);
                self.recreate_since = None;
            }
            Step::Delete { why, .. } => {
                if self.removal.is_none() {
                    self.removal = Some(Removal::default());
                    self.polls.reset();
                    if !desired.deleting {
                        self.remaking = Some((*why, self.provider_id()));
                    }
                }
            }
            Step::Nothing
            | Step::ReserveHost
            | Step::RecordFinalizer { .. }
            | Step::ReadSecrets
            | Step::Get { .. }
            | Step::EmitGivenUp { .. }
            | Step::ReleaseFinalizer
            | Step::Done => {}
        }
    }

    pub fn on_reserved(&mut self, outcome: Result<HostName, OpError>, now: Now) {
        if let Some(host) = self.ended(Task::Reserve, outcome, now) {
            self.reserved = Some(host);
        }
    }

    /// The write was accepted; what counts is the object that shows it.
    pub fn on_adopted(&mut self, outcome: Result<(), OpError>, now: Now) {
        if self.ended(Task::Adopt, outcome, now).is_some() {
            self.adopted_at = Some(now.mono);
        }
    }

    /// An error is of the credentials, or of the whole read.
    pub fn on_secrets(&mut self, outcome: Result<SecretsRead, OpError>, now: Now) {
        if !self.is_reading_secrets() {
            return;
        }
        let outcome = match outcome {
            // Neither what it says nor how it failed is of what is there now.
            _ if std::mem::take(&mut self.reread_secrets) => Ok(()),
            Ok(SecretsRead { credentials, user_data }) => {
                self.secrets_stale = false;
                if credentials != self.credentials {
                    self.hand_over = self.credentials.is_some() && credentials.is_some() && self.has_instance();
                    self.was_refused = false;
                }
                self.credentials = credentials;
                let failed;
                (self.user_data, failed) = match user_data {
                    Some(Ok(user_data)) => (Some(user_data), Ok(())),
                    // What lives was made with it: only the next create needs it, and none is wished for.
                    Some(Err(_)) if self.has_instance() && !self.may_be_replaced() => (None, Ok(())),
                    Some(Err(error)) => (None, Err(error)),
                    None => (None, Ok(())),
                };
                failed
            }
            Err(error) => {
                if error.reason == Reason::SecretNotLabelled {
                    // No failure to read: the permission to use it was taken back.
                    self.credentials = None;
                }
                Err(error)
            }
        };
        self.ended(Task::ReadSecrets, outcome, now);
    }

    /// Somebody asked for a new instance, or may soon, as this one is not well.
    fn may_be_replaced(&self) -> bool {
        self.recreate_since.is_some() || self.unhealthy_since.is_some()
    }

    /// The instance lives as far as is known, and nobody is removing it.
    pub(super) fn has_instance(&self) -> bool {
        self.removal.is_none()
            && match &self.sight {
                Sight::Unseen => self.remembered.is_some(),
                Sight::Absent => false,
                Sight::Present(instance) => lives(instance.state),
            }
    }

    /// The credentials that were read, for the create.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The user data for the create.
    pub fn user_data(&self, desired: &Desired) -> Option<SecretBytes> {
        match &desired.flavor {
            Flavor::Managed(managed) => match &managed.cloud_init {
                Some(CloudInit::Inline(text)) => Some(SecretBytes(text.as_bytes().into())),
                Some(CloudInit::Secret { .. }) => self.user_data.clone(),
                None => None,
            },
            Flavor::External(_) => None,
        }
    }

    /// The status as last planned, or as recorded before.
    pub fn told(&self) -> Option<&Arc<Status>> {
        self.told.as_ref()
    }

    pub(super) fn provider_id(&self) -> Option<Arc<str>> {
        match &self.sight {
            Sight::Present(instance) => Some(instance.provider_id.clone()),
            Sight::Unseen => self.told.as_ref().and_then(|told| told.provider_id.clone()),
            Sight::Absent => None,
        }
    }

    /// The instance's id, or what it begins with: in which backend the instance is.
    pub(super) fn place(&self) -> Option<Arc<str>> {
        self.provider_id().or_else(|| self.sent_to.clone())
    }

    fn ids(&self) -> Option<Arc<str>> {
        match (&self.provider, &self.host) {
            (ProviderSeen::Configured(facts), Some(host)) => facts.host(host).map(|host| host.ids.clone()),
            _ => None,
        }
    }

    /// The `recreate` value that the instance answers to, once this step has begun: a create answers to the latest.
    pub(super) fn recreated_by(&self, step: &Step, desired: &Desired) -> Option<Arc<str>> {
        match (step, &desired.annotations.recreate) {
            (Step::Create { .. }, Some(value)) => Some(value.clone()),
            _ => self.recreated.clone(),
        }
    }

    pub(super) fn settle(&self) -> Duration {
        match &self.provider {
            ProviderSeen::Configured(facts) => facts.settle,
            ProviderSeen::Unknown | ProviderSeen::NotConfigured => SETTLE,
        }
    }

    /// What failed is not needed any more, or came about otherwise.
    pub(super) fn put_right(&mut self, task: Task) {
        self.tries.succeeded(task);
        if self.latch.as_ref().is_some_and(|latch| latch.task == task) {
            self.latch = None;
        }
    }

    /// The instance goes, and its successor is made with what is read by then: that this one could not be given its
    /// credentials holds up nothing.
    pub(super) fn needs_no_hand_over(&mut self) {
        if std::mem::take(&mut self.hand_over) {
            self.put_right(Task::Create);
        }
    }

    fn try_again(&mut self) {
        self.latch = None;
        self.tries.clear();
    }

    fn is_reading_secrets(&self) -> bool {
        self.aside.is_some_and(|running| running.task == Task::ReadSecrets)
    }
}

/// On its way to running or running, as far as anybody can tell.
pub(super) const fn lives(state: InstanceState) -> bool {
    match state {
        InstanceState::Starting | InstanceState::Running | InstanceState::Paused | InstanceState::Unknown => true,
        InstanceState::Stopped | InstanceState::Deleting => false,
    }
}

/// Reads an endpoint as a status shows it.
fn read_endpoint(text: &str) -> Option<Endpoint> {
    let url = Url::parse(text).ok()?;
    let scheme = match url.scheme() {
        "http" => Scheme::Http,
        "https" => Scheme::Https,
        _ => return None,
    };
    let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').into();
    Some(Endpoint { scheme, host, port: url.port_or_known_default()? })
}

/// The host in `type://entry/host/identity`, if it is of the Proxy's own entry.
fn host_in(provider_id: &str, desired: &Desired) -> Option<HostName> {
    let (_, path) = provider_id.split_once("://")?;
    let mut parts = path.split('/');
    let (entry, host, _identity) = (parts.next()?, parts.next()?, parts.next()?);
    let ours = desired.provider().is_some_and(|provider| provider.as_str() == entry);
    HostName::parse(host).ok().filter(|_| ours)
}

fn seed_of(uid: &Uid) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}
