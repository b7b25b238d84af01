//! The events on their way to one consumer: conflated, so that a slow one costs no more than the fleet is large.
//!
//! The keeper pushes, the stream pops. For each object (by uid) there is at most one pending `Applied`, one `Rejected`
//! and one `Gone`; a newer one takes the place of the older. `ListStarted` and `Synced` keep their places, so a list
//! that was begun is still complete when it is read.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egress_actors::domain::id::{ProxyKey, Uid};
use egress_actors::ports::SourceEvent;
use futures::stream::{BoxStream, StreamExt as _, unfold};
use tokio::sync::Notify;

/// One consumer's pending events.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    pending: Mutex<Pending>,
    wake: Notify,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Pending {
    next: u64,
    events: BTreeMap<u64, SourceEvent>,
    places: HashMap<Slot, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Slot {
    ListStarted,
    Applied(ProxyKey, Uid),
    Rejected(ProxyKey, Uid),
    Gone(ProxyKey, Uid),
    Synced,
    Secret(Arc<str>, Arc<str>),
    Unreadable,
}

fn slot(event: &SourceEvent) -> Slot {
    match event {
        SourceEvent::ListStarted => Slot::ListStarted,
        SourceEvent::Applied(applied) => Slot::Applied(applied.desired.key.clone(), applied.desired.uid.clone()),
        SourceEvent::Rejected(rejected) => Slot::Rejected(rejected.key.clone(), rejected.uid.clone()),
        SourceEvent::Gone { key, uid } => Slot::Gone(key.clone(), uid.clone()),
        SourceEvent::Synced { .. } => Slot::Synced,
        SourceEvent::SecretChanged { namespace, name } => Slot::Secret(Arc::clone(namespace), Arc::clone(name)),
        SourceEvent::Unreadable(_) => Slot::Unreadable,
    }
}

impl Pending {
    fn push(&mut self, event: SourceEvent) {
        let slot = slot(&event);
        match &slot {
            // What is valid now is no longer rejected; and a good version is never lost to a later rejection.
            Slot::Applied(key, uid) => self.remove(&Slot::Rejected(key.clone(), uid.clone())),
            Slot::Gone(key, uid) => {
                self.remove(&Slot::Applied(key.clone(), uid.clone()));
                self.remove(&Slot::Rejected(key.clone(), uid.clone()));
            }
            // A list that nobody has read yet is replaced by the newer one as a whole.
            Slot::ListStarted => {
                self.remove(&Slot::ListStarted);
                self.remove(&Slot::Synced);
            }
            Slot::Rejected(..) | Slot::Synced | Slot::Secret(..) | Slot::Unreadable => {}
        }
        if let Slot::Applied(..) = slot
            && let Some(place) = self.places.get(&slot)
            && self.places.get(&Slot::ListStarted).is_none_or(|list| list < place)
        {
            self.events.insert(*place, event);
            return;
        }
        self.remove(&slot);
        self.events.insert(self.next, event);
        self.places.insert(slot, self.next);
        self.next += 1;
    }

    fn remove(&mut self, slot: &Slot) {
        if let Some(place) = self.places.remove(slot) {
            self.events.remove(&place);
        }
    }

    fn pop(&mut self) -> Option<SourceEvent> {
        let (_, event) = self.events.pop_first()?;
        self.places.remove(&slot(&event));
        Some(event)
    }
}

impl Subscriber {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, event: SourceEvent) {
        self.pending().push(event);
        self.wake.notify_one();
    }

    /// True if the consumer is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The consumer's side; dropping it closes the subscription.
    pub(super) fn stream(self: Arc<Self>) -> BoxStream<'static, SourceEvent> {
        let consumer = Consumer(self);
        unfold(consumer, |consumer| async move {
            loop {
                let next = consumer.0.pending().pop();
                if let Some(event) = next {
                    return Some((event, consumer));
                }
                // A push between the look and here has left a permit: it is not missed.
                consumer.0.wake.notified().await;
            }
        })
        .boxed()
    }
}

struct Consumer(Arc<Subscriber>);

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use egress_actors::domain::error::OpError;
    use egress_actors::domain::reason::Reason;
    use egress_actors::ports::{Applied, Rejected};
    use futures::FutureExt as _;

    use super::*;
    use crate::crd::accept::accept;
    use crate::crd::proxy::Proxy;

    fn applied(name: &str, uid: &str, generation: i64) -> SourceEvent {
        let spec = serde_json::from_value(serde_json::json!({"external": {"url": "http://a:1"}})).unwrap();
        let mut proxy = Proxy::new(name, spec);
        proxy.metadata.uid = Some(uid.into());
        proxy.metadata.generation = Some(generation);
        SourceEvent::Applied(Applied { desired: Arc::new(accept(&proxy, None).unwrap()), recorded: None })
    }

    fn rejected(name: &str, uid: &str, message: &str) -> SourceEvent {
        let key = ProxyKey::new("default", name).unwrap();
        let uid = Uid::parse(uid).unwrap();
        SourceEvent::Rejected(Rejected { key, uid, generation: 1, message: message.into() })
    }

    fn gone(name: &str, uid: &str) -> SourceEvent {
        SourceEvent::Gone { key: ProxyKey::new("default", name).unwrap(), uid: Uid::parse(uid).unwrap() }
    }

    /// What a consumer reads after all events were pushed.
    fn read(events: Vec<SourceEvent>) -> Vec<String> {
        let subscriber = Arc::new(Subscriber::default());
        for event in events {
            subscriber.push(event);
        }
        let mut stream = Arc::clone(&subscriber).stream();
        let mut told = Vec::new();
        while let Some(Some(event)) = stream.next().now_or_never() {
            told.push(match event {
                SourceEvent::ListStarted => "list".to_owned(),
                SourceEvent::Applied(a) => format!("{} {}", a.desired.key.name(), a.desired.generation),
                SourceEvent::Rejected(r) => format!("{} bad {}", r.key.name(), r.message),
                SourceEvent::Gone { key, uid } => format!("{} gone {uid}", key.name()),
                SourceEvent::Synced { living } => format!("synced {}", living.len()),
                SourceEvent::SecretChanged { name, .. } => format!("secret {name}"),
                SourceEvent::Unreadable(e) => format!("unreadable {}", e.detail),
            });
        }
        told
    }

    fn secret(name: &str) -> SourceEvent {
        SourceEvent::SecretChanged { namespace: "default".into(), name: name.into() }
    }

    fn synced() -> SourceEvent {
        SourceEvent::Synced { living: Vec::new() }
    }

    #[test]
    fn the_latest_of_an_object_wins_and_keeps_its_place_in_the_list() {
        let events =
            vec![SourceEvent::ListStarted, applied("a", "1", 1), applied("b", "2", 1), synced(), applied("a", "1", 2)];
        assert_eq!(read(events), ["list", "a 2", "b 1", "synced 0"]);
    }

    #[test]
    fn a_rejection_never_hides_the_good_version_and_ends_with_the_next_one() {
        assert_eq!(
            read(vec![applied("a", "1", 1), rejected("a", "1", "x"), rejected("a", "1", "y")]),
            ["a 1", "a bad y"]
        );
        assert_eq!(read(vec![applied("a", "1", 1), rejected("a", "1", "x"), applied("a", "1", 2)]), ["a 2"]);
    }

    #[test]
    fn a_recreated_name_shows_both_its_end_and_its_new_life() {
        let events = vec![applied("a", "1", 1), rejected("a", "1", "x"), gone("a", "1"), applied("a", "2", 1)];
        assert_eq!(read(events), ["a gone 1", "a 1"]);
    }

    #[test]
    fn a_second_list_replaces_an_unread_one_and_is_whole() {
        let list = || vec![SourceEvent::ListStarted, applied("a", "1", 1), applied("b", "2", 1), synced()];
        assert_eq!(read([list(), list()].concat()), ["list", "a 1", "b 1", "synced 0"]);
    }

    #[test]
    fn a_stalled_consumer_holds_no_more_than_the_fleet() {
        let unreadable = || SourceEvent::Unreadable(OpError::transient(Reason::Internal, "x"));
        let mut events = Vec::new();
        for i in 0..1000 {
            events.extend([applied("a", "1", i), secret("s"), unreadable(), rejected("a", "1", "x")]);
        }
        assert_eq!(read(events), ["a 999", "secret s", "unreadable x", "a bad x"]);
    }

    #[tokio::test]
    async fn a_waiting_consumer_is_woken_and_its_end_is_seen() {
        let subscriber = Arc::new(Subscriber::default());
        let mut stream = Arc::clone(&subscriber).stream();
        let reading = tokio::spawn(async move { stream.next().await });
        tokio::task::yield_now().await;
        subscriber.push(secret("s"));
        assert!(matches!(reading.await.unwrap(), Some(SourceEvent::SecretChanged { .. })));
        assert!(subscriber.is_closed());
    }
}
