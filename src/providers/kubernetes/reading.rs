//! From a Pod to an instance: its state, its address, and what is wrong with it. Pure: values to values.
//!
//! The words are for a status that is written only when it changes: no counters, no times, no back-off that grows.

use std::net::IpAddr;
use std::sync::Arc;

use egress_actors::domain::desired::{Endpoint, Scheme};
use egress_actors::domain::instance::{Complaint, Credentials, Instance, InstanceState};
use egress_actors::domain::reason::Reason;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::manifest::{Asked, CONTAINER, Current};
use super::mark;
use crate::config::providers::KubernetesEntry;
use crate::providers::squid_words::words_of_squid;

/// Longest part of foreign words that is repeated.
const WORDS_MAX: usize = 400;

/// The instance that a pod of ours is. `generated` is what its Secret has.
pub(super) fn instance(
    pod: &Pod,
    entry: &KubernetesEntry,
    current: &Current,
    generated: Option<Credentials>,
) -> Instance {
    let (mut state, mut complaint) = state(pod);
    let asks = Asked::of(pod) == Asked::Generated;
    if asks && generated.is_none() && state != InstanceState::Deleting {
        // Nobody can be let in any more: it is to be made anew.
        state = InstanceState::Stopped;
        complaint = complain(Reason::SecretNotFound, "the Secret with its generated credentials is gone or damaged");
    }
    Instance {
        provider_id: provider_id(entry, &pod.metadata),
        state,
        endpoint: (state == InstanceState::Running).then(|| endpoint(pod)).flatten(),
        generated: generated.filter(|_| asks),
        outdated: (state == InstanceState::Running).then(|| current.differs(pod)).flatten().map(Into::into),
        created_at: created_at(&pod.metadata),
        complaint,
    }
}

/// What an earlier call left without a pod.
pub(super) fn half(meta: &ObjectMeta, entry: &KubernetesEntry) -> Instance {
    Instance {
        provider_id: format!("{}/{}", place(entry, meta), meta.name.as_deref().unwrap_or_default()).into(),
        state: InstanceState::Stopped,
        endpoint: None,
        generated: None,
        outdated: None,
        created_at: created_at(meta),
        complaint: complain(Reason::InstanceStopped, "its ConfigMap is there and its pod is not"),
    }
}

/// Type, entry, host, namespace, and pod: by its uid too, as a pod that takes another's name is another instance. An
/// entry has one host, named like itself.
fn provider_id(entry: &KubernetesEntry, meta: &ObjectMeta) -> Arc<str> {
    let name = meta.name.as_deref().unwrap_or_default();
    format!("{}/{name}/{}", place(entry, meta), meta.uid.as_deref().unwrap_or_default()).into()
}

fn place(entry: &KubernetesEntry, meta: &ObjectMeta) -> String {
    // The sweep sees those of other entries too.
    let name = mark::owner(meta).map_or_else(|| entry.name.clone(), |owner| owner.entry);
    format!("kubernetes://{name}/{name}/{}", entry.namespace)
}

fn created_at(meta: &ObjectMeta) -> Option<std::time::SystemTime> {
    meta.creation_timestamp.as_ref().map(|time| time.0.into())
}

fn endpoint(pod: &Pod) -> Option<Endpoint> {
    // Anything but an address would be a name that somebody resolves.
    let address: IpAddr = pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok()?;
    let container = pod.spec.as_ref()?.containers.iter().find(|container| container.name == CONTAINER)?;
    let port = container.ports.as_ref()?.first()?.container_port;
    Some(Endpoint { scheme: Scheme::Http, host: address.to_string().into(), port: u16::try_from(port).ok()? })
}

type State = (InstanceState, Option<Complaint>);

fn state(pod: &Pod) -> State {
    let nothing = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&nothing);
    if pod.metadata.deletion_timestamp.is_some() {
        return (InstanceState::Deleting, disrupted(status).or_else(|| held(&pod.metadata)));
    }
    let container = status.container_statuses.iter().flatten().find(|container| container.name == CONTAINER);
    match status.phase.as_deref() {
        Some("Failed") => (InstanceState::Stopped, Some(failed(status, container))),
        Some("Succeeded") => {
            (InstanceState::Stopped, complain(Reason::InstanceStopped, "squid ended, and nobody asked it to"))
        }
        Some("Unknown") => (InstanceState::Unknown, Some(node_lost(pod))),
        _ => match container {
            Some(container) => alive(pod, status, container),
            None => (InstanceState::Starting, unscheduled(status)),
        },
    }
}

fn alive(pod: &Pod, status: &PodStatus, container: &ContainerStatus) -> State {
    let now = container.state.as_ref();
    if container.ready && now.is_some_and(|state| state.running.is_some()) {
        // The container is ready and its pod is not: the node's controller says so when the node is silent.
        let silent = condition(status, "Ready").is_some_and(|ready| ready.status == "False");
        return (InstanceState::Running, silent.then(|| node_lost(pod)));
    }
    let before = container.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let complaint = match now {
        Some(state) if state.waiting.is_some() => {
            let waiting = state.waiting.as_ref();
            let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
            let message = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default();
            waits(reason, message, container).or_else(|| before.map(ended))
        }
        // Between two starts.
        Some(state) if state.terminated.is_some() => state.terminated.as_ref().map(ended),
        Some(_) | None => before.map(ended),
    };
    (InstanceState::Starting, complaint)
}

/// The kubelet's words for what it waits for.
fn waits(reason: &str, message: &str, container: &ContainerStatus) -> Option<Complaint> {
    let image = &container.image;
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => {
            complain(Reason::ImagePullFailed, &format!("image `{image}`: {reason}: {}", words(message)))
        }
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "PreCreateHookError"
        | "PostStartHookError" => {
            complain(Reason::ConfigInvalid, &format!("the container cannot be started: {}", words(message)))
        }
        // The kubelet only tells for how long it backs off; what counts is how the container ended.
        _ => None,
    }
}

/// How the container ended, in its own last words.
fn ended(how: &ContainerStateTerminated) -> Complaint {
    let said = how.message.as_deref().filter(|said| !said.trim().is_empty()).map(last_words);
    let said = said.unwrap_or_else(|| "it says nothing".to_owned());
    match how.reason.as_deref() {
        Some("OOMKilled") => Complaint {
            reason: Reason::OOMKilled,
            detail: "squid took more memory than its limit and was killed: raise resources.limits.memory".into(),
        },
        Some("StartError" | "ContainerCannotRun") => Complaint {
            reason: Reason::ConfigInvalid,
            detail: format!("the container cannot be started: {said}").into(),
        },
        Some(_) | None => Complaint {
            reason: Reason::CrashLooping,
            detail: format!("squid ended with exit code {}: {said}", how.exit_code).into(),
        },
    }
}

/// Why the pod will not run again.
fn failed(status: &PodStatus, container: Option<&ContainerStatus>) -> Complaint {
    let message = words(status.message.as_deref().unwrap_or_default());
    let reason = match status.reason.as_deref() {
        Some("NodeLost") => Reason::NodeLost,
        // What the kubelet says when it does not admit a pod that the scheduler gave to it.
        Some(said) if said.starts_with("OutOf") => Reason::Unschedulable,
        Some("NodeAffinity" | "UnexpectedAdmissionError" | "Topology" | "SysctlForbidden") => Reason::Unschedulable,
        Some("Evicted" | "NodeShutdown" | "Terminated" | "Preempting" | "Shutdown") => Reason::Evicted,
        Some(_) | None => {
            if let Some(disrupted) = disrupted(status) {
                return disrupted;
            }
            let state = container.and_then(|container| container.state.as_ref());
            return match state.and_then(|state| state.terminated.as_ref()) {
                Some(how) => ended(how),
                None => {
                    Complaint { reason: Reason::InstanceStopped, detail: format!("the pod failed: {message}").into() }
                }
            };
        }
    };
    Complaint { reason, detail: message.into() }
}

/// Somebody in the cluster takes the pod away.
fn disrupted(status: &PodStatus) -> Option<Complaint> {
    let target = condition(status, "DisruptionTarget").filter(|target| target.status == "True")?;
    let why = target.reason.as_deref().unwrap_or_default();
    let reason = match why {
        "DeletionByTaintManager" | "DeletionByPodGC" => Reason::NodeLost,
        _ => Reason::Evicted,
    };
    complain(reason, &format!("{why}: {}", words(target.message.as_deref().unwrap_or_default())))
}

/// Others want to do something before the pod goes. We put none on ours.
fn held(meta: &ObjectMeta) -> Option<Complaint> {
    let names: Vec<_> = meta.finalizers.iter().flatten().map(|name| format!("`{name}`")).collect();
    let detail = format!("the pod has finalizers that are others' to take away: {}", words(&names.join(", ")));
    (!names.is_empty()).then(|| Complaint { reason: Reason::Deleting, detail: detail.into() })
}

fn unscheduled(status: &PodStatus) -> Option<Complaint> {
    let scheduled = condition(status, "PodScheduled").filter(|scheduled| scheduled.status == "False")?;
    complain(Reason::Unschedulable, &words(scheduled.message.as_deref().or(scheduled.reason.as_deref())?))
}

fn node_lost(pod: &Pod) -> Complaint {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("?");
    Complaint { reason: Reason::NodeLost, detail: format!("node `{node}` does not answer the cluster").into() }
}

fn condition<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

#[expect(clippy::unnecessary_wraps, reason = "complaints are optional wherever they go")]
fn complain(reason: Reason, detail: &str) -> Option<Complaint> {
    Some(Complaint { reason, detail: detail.into() })
}

/// Out of a log: Squid's own sentence if there is one, else the last line.
fn last_words(log: &str) -> String {
    words_of_squid(log).unwrap_or_else(|| words(log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("")))
}

/// One line, without control characters, bounded.
fn words(text: &str) -> String {
    let line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX).collect();
    let line = line.trim_end_matches('.').to_owned();
    if line.is_empty() { "no more is said".to_owned() } else { line }
}

#[cfg(test)]
mod tests;
