//! Events as `kubectl describe` shows them (`events.k8s.io/v1`), written off the actors.
//!
//! One queue with a bound and one writer: an event more than it holds is dropped and counted, and nobody ever waits for
//! the API server because something happened. The same words about the same object within some minutes are counted on the
//! first event. kube's own recorder folds other words too, and so hides what a person needs to read.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::OperatorId;
use egress_actors::domain::reason::Reason;
use egress_actors::kit::supervisor::ChildSpec;
use egress_actors::kit::task::task;
use egress_actors::names;
use egress_actors::ports::{Event, EventSink, Severity, Subject};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as Written, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{Mutex, mpsc};
use uuid::Uuid;

use super::records::is_ours;
use super::{Identity, NAME, failure};
use crate::crd::API_VERSION;
use crate::crd::provider_health::ProviderHealth;

/// Events on their way. A whole rack that fails makes some hundred at once.
const PLACES: usize = 1024;

/// The same again within this is a count on the first. The API server keeps events for an hour.
const SAME_WITHIN: Duration = Duration::from_mins(6);

/// First events that are remembered for that.
const REMEMBERED: usize = 4096;

/// The longest note that the API server takes, in bytes.
const NOTE_MAX: usize = 1024;

/// The sink and its writer.
pub(super) struct Events {
    client: Client,
    instance: Arc<str>,
    operator: OperatorId,
    queue: mpsc::Sender<Event>,
    /// Taken by the writer while it runs.
    queued: Arc<Mutex<Queued>>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("instance", &self.instance).finish_non_exhaustive()
    }
}

struct Queued {
    events: mpsc::Receiver<Event>,
    first: HashMap<(String, Reason), First>,
}

/// An event that was written, and how often it has happened since.
struct First {
    note: String,
    name: String,
    count: i32,
    latest: Instant,
}

impl Events {
    pub(super) fn new(client: Client, identity: &Identity, operator: OperatorId) -> Self {
        let (queue, events) = mpsc::channel(PLACES);
        let instance = identity.pod.as_ref().map_or_else(|| identity.replica.clone(), |pod| pod.name.clone());
        Self {
            client,
            instance,
            operator,
            queue,
            queued: Arc::new(Mutex::new(Queued { events, first: HashMap::new() })),
        }
    }

    /// Writes what is queued, one after the other.
    pub(super) fn writer(self: &Arc<Self>) -> ChildSpec {
        let events = self.clone();
        // `events` is the actors' own, which writes those that are acknowledged.
        task("k8s/events", move |stop| {
            let events = events.clone();
            async move {
                let mut queued = events.queued.lock().await;
                loop {
                    let event = tokio::select! {
                        () = stop.wait() => return Ok(()),
                        event = queued.events.recv() => event.ok_or("nobody can emit events any more")?,
                    };
                    if let Err(error) = events.write_or_count(event, &mut queued.first).await {
                        metrics::counter!(names::EVENTS_DROPPED_TOTAL).increment(1);
                        tracing::warn!(%error, "an event was not written");
                    }
                }
            }
        })
    }

    async fn write_or_count(&self, event: Event, first: &mut HashMap<(String, Reason), First>) -> Result<(), OpError> {
        let now = Instant::now();
        let slot = (subject(&event.about).uid.unwrap_or_else(|| about(&event.about)), event.reason);
        if let Some(before) = first.get_mut(&slot)
            && before.note == event.note
            && now.duration_since(before.latest) < SAME_WITHIN
        {
            (before.count, before.latest) = (before.count.saturating_add(1), now);
            let series = EventSeries { count: before.count, last_observed_time: MicroTime(Timestamp::now()) };
            let patch = Patch::Merge(json!({"series": series}));
            let (name, events) = (before.name.clone(), self.of(&event.about));
            let counted = failure::call("count an event", events.patch(&name, &PatchParams::default(), &patch)).await;
            if counted.is_ok() {
                return Ok(());
            }
            // It is not there any more: a new one.
        }
        let name = self.write(&event).await?;
        if first.len() >= REMEMBERED {
            first.retain(|_, event| now.duration_since(event.latest) < SAME_WITHIN);
        }
        if first.len() < REMEMBERED {
            first.insert(slot, First { note: event.note, name, count: 1, latest: now });
        }
        Ok(())
    }

    async fn write(&self, event: &Event) -> Result<String, OpError> {
        let regarding = self.regarding(&event.about).await;
        let written = self.written(event, regarding, Timestamp::now());
        let what = format!("write the event {} about {}", event.reason, about(&event.about));
        let events = self.of(&event.about);
        let made = failure::call(what, events.create(&PostParams::default(), &written)).await?;
        Ok(made.metadata.name.unwrap_or_default())
    }

    /// With its uid, by which `kubectl describe` looks for events. An event without one is better than none, and than one
    /// on the object of another operator that has the name.
    async fn regarding(&self, about: &Subject) -> ObjectReference {
        let mut object = subject(about);
        if let Subject::Provider(entry) = about {
            let healths: Api<ProviderHealth> = Api::all(self.client.clone());
            let found = healths.get_metadata_opt(entry.as_str());
            let found = failure::call("read the ProviderHealth of an event", found).await.ok().flatten();
            object.uid = found.and_then(|found| uid_if_ours(found.metadata, &self.operator));
        }
        object
    }

    fn of(&self, about: &Subject) -> Api<Written> {
        Api::namespaced(self.client.clone(), subject(about).namespace.as_deref().unwrap_or("default"))
    }

    fn written(&self, event: &Event, subject: ObjectReference, now: Timestamp) -> Written {
        let name = subject.name.as_deref().unwrap_or_default();
        Written {
            metadata: ObjectMeta {
                // As everybody names them, and not by `generateName`, which may not end with a full stop. Names of objects
                // have up to 253 characters, and so has this.
                name: Some(format!("{}.{}", name.chars().take(200).collect::<String>(), Uuid::new_v4().simple())),
                namespace: Some(subject.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(cut(&event.note)),
            reason: Some(event.reason.as_str().to_owned()),
            regarding: Some(subject),
            reporting_controller: Some(NAME.to_owned()),
            reporting_instance: Some(self.instance.chars().take(128).collect()),
            type_: Some(
                match event.severity {
                    Severity::Normal => "Normal",
                    Severity::Warning => "Warning",
                }
                .to_owned(),
            ),
            ..Written::default()
        }
    }
}

#[async_trait]
impl EventSink for Events {
    fn emit(&self, event: Event) {
        // The log has them too: it outlives the hour for which the API server keeps events.
        event.log();
        if self.queue.try_send(event).is_err() {
            metrics::counter!(names::EVENTS_DROPPED_TOTAL).increment(1);
        }
    }

    async fn emit_acked(&self, event: Event) -> Result<(), OpError> {
        event.log();
        self.write(&event).await.map(drop)
    }
}

fn about(subject: &Subject) -> String {
    match subject {
        Subject::Proxy(key, _) => format!("proxy {key}"),
        Subject::Provider(entry) => format!("provider {entry}"),
    }
}

fn subject(about: &Subject) -> ObjectReference {
    let of = |kind: &str, name: &str| ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    };
    match about {
        Subject::Proxy(key, uid) => ObjectReference {
            namespace: Some(key.namespace().to_owned()),
            uid: Some(uid.to_string()),
            ..of("Proxy", key.name())
        },
        Subject::Provider(entry) => of("ProviderHealth", entry.as_str()),
    }
}

fn uid_if_ours(found: ObjectMeta, operator: &OperatorId) -> Option<String> {
    if is_ours(&found, operator) { found.uid } else { None }
}

fn cut(note: &str) -> String {
    if note.len() <= NOTE_MAX {
        return note.to_owned();
    }
    let end = (0..=NOTE_MAX - '…'.len_utf8()).rev().find(|&at| note.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &note[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::OWNER;

    #[test]
    fn an_event_is_not_told_on_the_provider_health_of_another_operator() {
        let operator = OperatorId::parse("op-1").unwrap();
        let found = |owner: &str| ObjectMeta {
            uid: Some("u-1".to_owned()),
            annotations: Some([(OWNER.to_owned(), owner.to_owned())].into()),
            ..ObjectMeta::default()
        };
        assert_eq!(uid_if_ours(found("op-1"), &operator).as_deref(), Some("u-1"));
        assert_eq!(uid_if_ours(found("op-2"), &operator), None);
    }

    #[test]
    fn a_long_note_is_cut_to_what_the_api_server_takes() {
        assert_eq!(cut("short"), "short");
        for long in ["x".repeat(3000), "ä".repeat(1500), format!("{}ä", "x".repeat(1023))] {
            let cut = cut(&long);
            assert!(cut.len() <= NOTE_MAX && cut.ends_with('…'), "{} bytes", cut.len());
        }
    }
}
