//! What is told about a Proxy: phase, conditions and events.
//!
//! Words are stable while nothing changes: no counters, no times, or a fleet at rest would write statuses for ever.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::facts::Sight;
use super::observed::lives;
use super::view::{Backing, Standing, View};
use super::{Intent, Notice, Severity, Task};
use crate::domain::error::OpError;
use crate::domain::instance::{Instance, InstanceState};
use crate::domain::reason::Reason;
use crate::domain::status::{Condition, ConditionType, Phase, Status, Truth};
use crate::domain::words;

const WAY_OUT: &str = "to give the instance up, annotate the Proxy with crawl.example.com/skip-cleanup=true";

/// Truth, reason and words of one condition.
struct Told {
    truth: Truth,
    reason: Reason,
    message: String,
}

impl Told {
    fn new(truth: Truth, reason: Reason, message: impl Into<String>) -> Self {
        Self { truth, reason, message: message.into() }
    }
}

/// Something that keeps us from going on.
struct Trouble {
    reason: Reason,
    message: String,
    /// Nothing is tried until something changes.
    lasting: bool,
}

pub(super) fn status(view: &View<'_>, intent: &Intent) -> Status {
    let trouble = trouble(view);
    let provisioned = provisioned(view, intent, trouble.as_ref());
    let healthy = healthy(view);
    let ready = ready(view, intent, trouble.as_ref(), &provisioned);
    let drained = drained(view, intent);
    let phase = phase(view, intent, trouble.as_ref(), &provisioned);
    let conditions = [
        (ConditionType::Ready, ready),
        (ConditionType::Provisioned, provisioned),
        (ConditionType::Healthy, healthy),
        (ConditionType::Drained, drained),
    ];
    let endpoint = view.endpoint();
    let since = whole_seconds(view.now.wall);
    let status = Status {
        phase,
        observed_generation: view.desired.generation,
        provider_id: view.seen.provider_id().filter(|_| view.managed().is_some()),
        address: endpoint.map(|endpoint| endpoint.host.clone()),
        endpoint: endpoint.map(|endpoint| endpoint.to_string().into()),
        exit_ip: view.seen.exit_ip.clone(),
        last_probe: view.seen.last_probe.clone(),
        recreated: view.seen.recreated_by(&intent.step, view.desired),
        conditions: conditions
            .into_iter()
            .map(|(kind, told)| Condition {
                kind,
                truth: told.truth,
                reason: told.reason,
                message: words::shared(&told.message),
                since,
            })
            .collect(),
    };
    status.keeping_transitions_of(view.seen.told().map(|told| &**told))
}

/// The API keeps no smaller part of a time: what is told is then equal to what is read back.
fn whole_seconds(at: SystemTime) -> SystemTime {
    at.duration_since(UNIX_EPOCH).map_or(at, |since| UNIX_EPOCH + Duration::from_secs(since.as_secs()))
}

/// Events out of what was told before and what is told now: only where the reason of Ready has changed, or where
/// something came up that a person must put right while the proxy serves.
pub(super) fn notices(before: Option<&Arc<Status>>, status: &Status) -> Vec<Notice> {
    let is_news = |condition: &&Condition| {
        let told = before.and_then(|told| told.condition(condition.kind));
        told.is_none_or(|told| told.reason != condition.reason)
    };
    let ready = status.condition(ConditionType::Ready);
    let news = ready.filter(is_news).and_then(of_ready);
    let beside = status.condition(ConditionType::Provisioned).filter(is_news).into_iter().filter(|provisioned| {
        ready.is_some_and(|ready| ready.truth == Truth::True) && needs_a_person(provisioned.reason)
    });
    let warned = beside.map(|condition| Notice {
        severity: Severity::Warning,
        reason: condition.reason,
        note: condition.message.clone(),
    });
    news.into_iter().chain(warned).collect()
}

/// What a proxy that works goes on with, and what is told all the same where people look first.
const fn needs_a_person(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::SecretNotFound
            | Reason::SecretInvalid
            | Reason::SecretNotLabelled
            | Reason::ProviderNotConfigured
            | Reason::HostNotConfigured
            | Reason::InstanceOutdated
    )
}

fn of_ready(ready: &Condition) -> Option<Notice> {
    let severity = match ready.reason {
        // Steps on the way that everybody expects.
        Reason::Pending
        | Reason::Creating
        | Reason::WaitingForAddress
        | Reason::NotProbed
        | Reason::Provisioned
        | Reason::Deleting
        | Reason::Busy => return None,
        Reason::Healthy | Reason::Paused | Reason::RecreateRequested => Severity::Normal,
        _ => Severity::Warning,
    };
    Some(Notice { severity, reason: ready.reason, note: ready.message.clone() })
}

fn phase(view: &View<'_>, intent: &Intent, trouble: Option<&Trouble>, provisioned: &Told) -> Phase {
    if view.desired.deleting {
        return Phase::Deleting;
    }
    if intent.serving.is_on() {
        return Phase::Ready;
    }
    if trouble.is_some_and(|trouble| trouble.lasting) && view.route().is_none() {
        return Phase::Failed;
    }
    if provisioned.truth == Truth::True {
        return match view.standing() {
            Standing::Unhealthy { .. } => Phase::Unhealthy,
            Standing::Unknown if was_unhealthy(view) => Phase::Unhealthy,
            _ if view.managed().is_none() => Phase::Pending,
            Standing::Unknown | Standing::Presumed | Standing::Healthy => Phase::Provisioning,
        };
    }
    match view.managed() {
        Some(_) if view.adopted_host().is_some() => Phase::Provisioning,
        Some(_) | None => Phase::Pending,
    }
}

/// Told unhealthy with this endpoint before a restart: without a verdict it stays so.
fn was_unhealthy(view: &View<'_>) -> bool {
    view.endpoint().is_some_and(|endpoint| {
        view.seen.told().is_some_and(|told| {
            told.phase == Phase::Unhealthy && told.endpoint.as_deref() == Some(&*endpoint.to_string())
        })
    })
}

fn trouble(view: &View<'_>) -> Option<Trouble> {
    let seen = view.seen;
    if let Some(managed) = view.managed() {
        let entry = &managed.provider;
        let missing = match (view.backing(), &seen.host) {
            (Backing::NoProvider, _) => {
                Some((Reason::ProviderNotConfigured, format!("provider `{entry}` is not in the providers config")))
            }
            (Backing::NoHost, Some(host)) => {
                Some((Reason::HostNotConfigured, format!("provider `{entry}` has no host `{host}` any more")))
            }
            (Backing::Moved, _) => {
                let instance = view.seen.provider_id().map_or_else(|| "its instance".to_owned(), |id| format!("{id}"));
                let what = format!("provider `{entry}` leads to another backend than the one that has {instance}");
                Some((Reason::HostNotConfigured, what))
            }
            (Backing::NoHost, None) | (Backing::Unknown | Backing::There, _) => None,
        };
        if let Some((reason, what)) = missing {
            let only_there =
                view.endpoint().is_some() && view.desired.credentials().is_none() && view.route().is_none();
            let also =
                if only_there { "; until then nobody knows the credentials that its backend gave it" } else { "" };
            let message = format!("{what}; correct or put back the entry, or delete the Proxy{also}");
            return Some(Trouble { reason, message, lasting: true });
        }
    }
    if let Some(instance) = view.late_to_go() {
        let message = late_removal(instance, view.settings.removed_within);
        return Some(Trouble { reason: Reason::DeletionBlocked, message, lasting: false });
    }
    if let Some(latch) = &seen.latch {
        let host = if view.managed().is_some() { ", when its host passes a check that it failed," } else { "" };
        let message = format!(
            "{} fails: {}; it is tried again when the spec, a used Secret or the providers config changes{host} and \
             every {} s{}",
            latch.task.in_words(),
            latch.error.detail,
            view.settings.reevaluate_after.as_secs(),
            meanwhile(view, latch.task)
        );
        return Some(Trouble { reason: latch.error.reason, message, lasting: true });
    }
    [Task::ReadSecrets, Task::Reserve, Task::Adopt, Task::Delete, Task::Create, Task::Get].into_iter().find_map(
        |task| {
            let error = seen.tries.told(task)?;
            let message = retried(task, error) + meanwhile(view, task);
            Some(Trouble { reason: error.reason, message, lasting: false })
        },
    )
}

/// What goes on with what was read before.
fn meanwhile(view: &View<'_>, task: Task) -> &'static str {
    if task == Task::ReadSecrets && view.seen.credentials.is_some() {
        "; until then, and not after a restart of the operator, the credentials read before are used"
    } else {
        ""
    }
}

fn late_removal(instance: &Instance, within: Duration) -> String {
    let complaint = instance.complaint.as_ref().map_or_else(String::new, |said| format!(": {}", said.detail));
    format!(
        "the backend accepted the removal of {} more than {} s ago and has not ended it{complaint}; see what holds it up \
         there, and end it there by force if its host or node is gone for good",
        instance.provider_id,
        within.as_secs()
    )
}

fn retried(task: Task, error: &OpError) -> String {
    format!("{} fails: {}; it is retried", task.in_words(), error.detail)
}

fn provisioned(view: &View<'_>, intent: &Intent, trouble: Option<&Trouble>) -> Told {
    if view.managed().is_none() {
        return match trouble {
            Some(trouble) if view.seen.credentials.is_none() => {
                Told::new(Truth::False, trouble.reason, trouble.message.clone())
            }
            Some(trouble) => Told::new(Truth::True, trouble.reason, trouble.message.clone()),
            None => Told::new(Truth::True, Reason::Provisioned, "an external proxy: nothing is made"),
        };
    }
    if view.is_up() && view.endpoint().is_some() {
        // A failure to read never demotes what works: it is told, and that is all.
        let (reason, message) = match (&view.seen.sight, trouble) {
            (_, Some(trouble)) => {
                let message = format!("{}; the instance keeps its address", trouble.message);
                match outdated(view) {
                    // What comes and goes by itself does not hide what stays.
                    Some(words) if needs_a_person(trouble.reason) => (trouble.reason, format!("{message}; {words}")),
                    Some(words) => (Reason::InstanceOutdated, format!("{words}; {message}")),
                    None => (trouble.reason, message),
                }
            }
            (Sight::Present(instance), None) if let Some(complaint) = &instance.complaint => {
                (complaint.reason, format!("{}; the probes say whether it serves", complaint.detail))
            }
            (_, None) if let Some(words) = outdated(view) => (Reason::InstanceOutdated, words),
            (Sight::Present(instance), None) if instance.state == InstanceState::Paused => (
                Reason::InstancePaused,
                "the backend has paused the instance; the probes say whether it serves".to_owned(),
            ),
            (Sight::Present(instance), None) if instance.state == InstanceState::Unknown => {
                (Reason::InstanceUnknown, "the backend cannot tell the instance's state".to_owned())
            }
            (_, None) => (Reason::Provisioned, "the instance has an address".to_owned()),
        };
        return Told::new(Truth::True, reason, message);
    }
    if view.desired.deleting {
        return Told::new(Truth::False, Reason::Deleting, "the instance is being deleted");
    }
    if let Some(trouble) = trouble {
        return Told::new(Truth::False, trouble.reason, trouble.message.clone());
    }
    if view.desired.paused {
        return Told::new(Truth::False, Reason::Paused, "spec.paused is set: no instance is made or replaced");
    }
    if let Some((_, Some(id))) = &view.seen.remaking
        && view.seen.removal.is_some()
    {
        let reason = view.seen.remaking.as_ref().map_or(Reason::Creating, |(reason, _)| *reason);
        return Told::new(Truth::False, reason, format!("the instance {id} is being deleted"));
    }
    match (&view.seen.sight, &intent.step) {
        (Sight::Present(instance), _) if let Some(complaint) = &instance.complaint => {
            let what =
                if lives(instance.state) { "the instance has no address yet" } else { "the instance has stopped" };
            Told::new(Truth::False, complaint.reason, format!("{what}: {}", complaint.detail))
        }
        (Sight::Present(instance), _) if !lives(instance.state) => {
            Told::new(Truth::False, Reason::InstanceStopped, "the instance has stopped")
        }
        (Sight::Present(_), _) if view.address_timeout_at().is_some_and(|at| view.now.mono >= at) => Told::new(
            Truth::False,
            Reason::AddressTimeout,
            "the instance has no address yet; look at its console and its network, or annotate the Proxy with \
             crawl.example.com/recreate",
        ),
        (Sight::Present(_), _) => Told::new(Truth::False, Reason::WaitingForAddress, "the instance has no address yet"),
        (Sight::Unseen | Sight::Absent, _) if view.adopted_host().is_none() => {
            Told::new(Truth::False, Reason::Pending, "the host is being chosen and recorded")
        }
        (Sight::Unseen | Sight::Absent, _) => Told::new(Truth::False, Reason::Creating, "the instance is being made"),
    }
}

/// That the instance runs with an older configuration, and the way out.
fn outdated(view: &View<'_>) -> Option<String> {
    match &view.seen.sight {
        Sight::Present(instance) => instance.outdated.as_deref().map(|ways| {
            format!(
                "the instance runs with an older configuration of its provider entry: {ways}; to apply the new one, give \
                 the Proxy's annotation crawl.example.com/recreate a new value"
            )
        }),
        // In the same words until a look: a restart of ours is no news about the Proxy.
        Sight::Unseen => {
            let told = view.seen.told().and_then(|told| told.condition(ConditionType::Provisioned));
            told.filter(|told| told.reason == Reason::InstanceOutdated).map(|told| told.message.to_string())
        }
        Sight::Absent => None,
    }
}

fn healthy(view: &View<'_>) -> Told {
    match view.standing() {
        // In the same words: a restart of ours is no news about the Proxy.
        Standing::Healthy | Standing::Presumed => Told::new(Truth::True, Reason::Healthy, "the probes go through"),
        Standing::Unhealthy { reason, detail } => Told::new(Truth::False, reason, format!("the probes fail: {detail}")),
        Standing::Unknown => {
            if was_unhealthy(view)
                && let Some(told) = view.seen.told().and_then(|told| told.condition(ConditionType::Healthy))
            {
                return Told::new(told.truth, told.reason, &*told.message);
            }
            Told::new(Truth::Unknown, Reason::NotProbed, "no verdict yet")
        }
    }
}

fn ready(view: &View<'_>, intent: &Intent, trouble: Option<&Trouble>, provisioned: &Told) -> Told {
    if view.desired.deleting {
        return deleting(view);
    }
    if intent.serving.is_on() {
        let (reason, message) = match (view.desired.annotations.drain, view.desired.paused) {
            (true, _) => (Reason::Healthy, "healthy, and cordoned by the drain annotation"),
            (false, true) => (Reason::Paused, "serving; spec.paused is set: it is left as it is"),
            (false, false) => (Reason::Healthy, "serving"),
        };
        let beside = Some(provisioned).filter(|provisioned| needs_a_person(provisioned.reason));
        let message = beside.map_or_else(|| message.to_owned(), |beside| format!("{message}; {}", beside.message));
        return Told::new(Truth::True, reason, message);
    }
    if let Some(reason) = intent.replacing {
        return Told::new(
            Truth::False,
            reason,
            format!("{}; {}", because(reason), "it is made anew once it is drained"),
        );
    }
    if provisioned.truth != Truth::True
        && let Some(trouble) = trouble
    {
        return Told::new(Truth::False, trouble.reason, trouble.message.clone());
    }
    if let Some((reason, id)) = &view.seen.remaking {
        let which = id.as_deref().unwrap_or("the instance");
        return Told::new(Truth::False, *reason, format!("{}: {which} is replaced by a new one", because(*reason)));
    }
    if provisioned.truth != Truth::True {
        return Told::new(Truth::False, provisioned.reason, provisioned.message.clone());
    }
    match view.standing() {
        Standing::Unhealthy { reason, detail } => {
            let mut message = format!("the probes fail: {reason}: {detail}");
            if let Sight::Present(instance) = &view.seen.sight
                && let Some(complaint) = &instance.complaint
            {
                message = format!("{message}; and the backend says: {}: {}", complaint.reason, complaint.detail);
            }
            Told::new(Truth::False, Reason::Unhealthy, message)
        }
        Standing::Unknown if was_unhealthy(view) => Told::new(
            Truth::False,
            Reason::Unhealthy,
            view.seen
                .told()
                .and_then(|told| told.condition(ConditionType::Ready))
                .map_or_else(String::new, |told| told.message.to_string()),
        ),
        Standing::Unknown => Told::new(Truth::False, Reason::NotProbed, undecided(view)),
        Standing::Presumed | Standing::Healthy => match trouble {
            Some(trouble) => Told::new(Truth::False, trouble.reason, trouble.message.clone()),
            None => Told::new(
                Truth::False,
                Reason::InstanceUnknown,
                "waiting for a first look at the instance: its credentials are kept by the backend only",
            ),
        },
    }
}

/// The first failures do not decide, and it may take minutes until they do: who looks wants to know of them.
fn undecided(view: &View<'_>) -> String {
    // Not what was said of the address before this one.
    let of_this = view.seen.judged.as_ref().is_some_and(|(endpoint, _)| view.endpoint() == Some(endpoint));
    match view.seen.last_probe.as_ref().filter(|probe| of_this && !probe.ok).and_then(|probe| probe.reason) {
        Some(reason) => format!("no probe has decided yet; the latest one failed: {reason}"),
        None => "no probe has decided yet".to_owned(),
    }
}

fn because(reason: Reason) -> &'static str {
    match reason {
        Reason::InstanceStopped => "the instance has stopped",
        Reason::NotFound => "the instance is gone from the backend",
        Reason::RecreateRequested => "the recreate annotation has a new value",
        Reason::RecreateAfterUnhealthy => "the instance was unhealthy for spec.recreateAfter",
        _ => "the instance is made anew",
    }
}

fn deleting(view: &View<'_>) -> Told {
    let seen = view.seen;
    // In the order of what a person can do something about.
    let blocked = [Task::Delete, Task::Release, Task::TellGivenUp, Task::Get]
        .into_iter()
        .filter(|task| *task != Task::Get || seen.removal.is_some())
        .find_map(|task| Some((task, seen.tries.told(task)?)));
    if let Some((task, error)) = blocked {
        let message = match task {
            Task::Delete | Task::Get => format!("{} ({}); {WAY_OUT}", retried(task, error), error.reason),
            _ => format!("{} ({})", retried(task, error), error.reason),
        };
        return Told::new(Truth::False, Reason::DeletionBlocked, message);
    }
    if let Some(instance) = view.late_to_go() {
        let message = format!("{}; {WAY_OUT}", late_removal(instance, view.settings.removed_within));
        return Told::new(Truth::False, Reason::DeletionBlocked, message);
    }
    if seen.removal.is_none() && !seen.cleaned && !view.settings.drain_timeout.is_zero() && !view.has_no_leases() {
        return Told::new(Truth::False, Reason::Deleting, "waiting for its leases to end, up to --drain-timeout");
    }
    if view.managed().is_some() && view.backing() == Backing::Unknown {
        return Told::new(
            Truth::False,
            Reason::Deleting,
            format!("waiting for the providers config to be read; {WAY_OUT}"),
        );
    }
    let message = match seen.doubt_since {
        Some(_) if seen.removal.is_some() => "waiting to see that nothing is left of the instance, nor comes late",
        Some(_) | None => "being deleted",
    };
    Told::new(Truth::False, Reason::Deleting, message)
}

fn drained(view: &View<'_>, intent: &Intent) -> Told {
    let asked = view.desired.annotations.drain;
    if asked && view.seen.cordoned && view.seen.leases_left == Some(0) {
        return Told::new(Truth::True, Reason::Drained, "no lease is left");
    }
    if asked || view.desired.deleting || intent.replacing.is_some() {
        return Told::new(Truth::False, Reason::Draining, "no new lease is granted");
    }
    Told::new(Truth::False, Reason::NotDraining, "")
}
