//! Proxies and the Secrets that they use, watched.
//!
//! ```text
//! Secrets  list, then watch (metadata only) ----------------------------> SecretChanged
//! Proxies            once the Secrets are listed: list, then watch -----> ListStarted, Applied.., Synced, Applied, Gone
//! ```
//! What the API server says is folded by `fold` (objects) and here (Secrets); both know only keys, uids and versions. A
//! watch that fails in any way is told as `Unreadable` and begun anew with a list: a list costs little, and a watch that
//! goes on from a version that the server does not know never ends (fault 115).

mod fold;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::backoff::Backoff;
use egress_actors::domain::error::OpError;
use egress_actors::domain::id::Uid;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::{ProxySource, SourceEvent};
use futures::stream::{self, BoxStream, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::watch;

use self::fold::Fold;
use super::client::WATCH_FOR;
use super::failure;
use super::seen::Seen;
use crate::crd::SECRET_LABEL;
use crate::crd::proxy::Proxy;

/// Between two parts of a list. A watch may be silent for long, a list may not.
const LIST_STALLS_AFTER: Duration = Duration::from_secs(30);

/// First and longest delay before a failed watch is begun anew.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Without the Secrets the fleet starts all the same, after this: their rights may be missing, and not every Proxy has one.
const SECRETS_FIRST: Duration = Duration::from_secs(10);

/// The watches of one cluster.
pub(super) struct Source {
    client: Client,
    namespace: Option<Arc<str>>,
    seen: Seen<Uid>,
}

impl Source {
    /// What is read goes into `seen` too, for those who write.
    pub(super) fn new(client: Client, namespace: Option<Arc<str>>, seen: Seen<Uid>) -> Self {
        Self { client, namespace, seen }
    }

    fn proxies(&self) -> Api<DynamicObject> {
        let kind = kube::core::ApiResource::erase::<Proxy>(&());
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }

    /// Metadata only: what is in them is read on use.
    fn secrets(&self) -> Api<PartialObjectMeta<Secret>> {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }
}

impl ProxySource for Source {
    fn events(&self) -> BoxStream<'static, SourceEvent> {
        let (listed, secrets_listed) = watch::channel(false);
        let (proxies, secrets) = (self.proxies(), self.secrets());
        let config = watcher::Config::default().timeout(u32::try_from(WATCH_FOR.as_secs()).unwrap_or(60));
        let labelled = config.clone().labels(&format!("{SECRET_LABEL}=true"));
        let secrets =
            feed(move || watcher::watcher(secrets.clone(), labelled.clone()).boxed(), SecretsFold::new(listed));
        let fold = Fold::new(self.seen.clone());
        let proxies = feed(move || watcher::watcher(proxies.clone(), config.clone()).boxed(), fold);
        stream::select(after(secrets_listed, proxies), secrets).boxed()
    }
}

/// The stream, once the Secrets are listed: what a Proxy reads of a Secret is then never older than what is watched.
fn after(
    mut listed: watch::Receiver<bool>,
    events: BoxStream<'static, SourceEvent>,
) -> BoxStream<'static, SourceEvent> {
    stream::once(async move {
        if tokio::time::timeout(SECRETS_FIRST, listed.wait_for(|listed| *listed)).await.is_err() {
            tracing::warn!("the Secrets cannot be listed: Proxies start without, and do not see when a Secret changes");
        }
        events
    })
    .flatten()
    .boxed()
}

/// Takes in what one watch says.
trait Folds: Send + 'static {
    type Object: Send + 'static;
    /// What it is of, for people.
    const OF: &'static str;
    fn take(&mut self, event: Event<Self::Object>, out: &mut VecDeque<SourceEvent>);
    /// The watch failed, and will be begun anew.
    fn failed(&mut self, error: OpError, out: &mut VecDeque<SourceEvent>);
}

type Watch<K> = BoxStream<'static, watcher::Result<Event<K>>>;

struct Feed<F: Folds, O> {
    fold: F,
    open: O,
    watch: Option<Watch<F::Object>>,
    listing: bool,
    backoff: Backoff,
    /// The latest watch failed: how long to wait before the next one.
    pause: Option<Duration>,
    out: VecDeque<SourceEvent>,
}

/// One watch after the other, for ever.
fn feed<F, O>(open: O, fold: F) -> BoxStream<'static, SourceEvent>
where
    F: Folds,
    O: Fn() -> Watch<F::Object> + Send + 'static,
{
    let backoff = Backoff::new(AGAIN.0, AGAIN.1);
    let feed = Feed { fold, open, watch: None, listing: true, backoff, pause: None, out: VecDeque::new() };
    stream::unfold(feed, |mut feed| async move {
        loop {
            if let Some(event) = feed.out.pop_front() {
                return Some((event, feed));
            }
            feed.turn().await;
        }
    })
    .boxed()
}

impl<F: Folds, O: Fn() -> Watch<F::Object>> Feed<F, O> {
    async fn turn(&mut self) {
        if let Some(pause) = self.pause.take() {
            tokio::time::sleep(pause).await;
        }
        let watch = self.watch.get_or_insert_with(&self.open);
        // kube limits a list by nothing. A watch it opens anew, without a word, whenever the server ends it or should have:
        // a fleet in which nothing happens says nothing for days.
        let next = if self.listing {
            tokio::time::timeout(LIST_STALLS_AFTER, watch.next()).await
        } else {
            Ok(watch.next().await)
        };
        let error = match next {
            Ok(Some(Ok(event))) => {
                match &event {
                    Event::Init => self.listing = true,
                    Event::InitDone => {
                        self.listing = false;
                        self.backoff.reset();
                    }
                    Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => {}
                }
                return self.fold.take(event, &mut self.out);
            }
            Ok(Some(Err(error))) => failure_of(F::OF, &error),
            Ok(None) => OpError::transient(Reason::Internal, format!("the watch of {} ended", F::OF)),
            Err(_) => OpError::transient(
                Reason::Timeout,
                format!("the list of {} got no answer within {} s", F::OF, LIST_STALLS_AFTER.as_secs()),
            ),
        };
        self.watch = None;
        self.listing = true;
        self.pause = Some(self.backoff.next(rand::random()));
        self.fold.failed(error, &mut self.out);
    }
}

fn failure_of(what: &str, error: &watcher::Error) -> OpError {
    use watcher::Error;
    match error {
        Error::InitialListFailed(error) => failure::failed(format_args!("list {what}"), error),
        Error::WatchStartFailed(error) | Error::WatchFailed(error) => {
            failure::failed(format_args!("watch {what}"), error)
        }
        Error::WatchError(status) => failure::refused(format_args!("watch {what}"), status),
        Error::NoResourceVersion => {
            OpError::transient(Reason::APIError, format!("the list of {what} has no resourceVersion"))
        }
    }
}

/// Namespace and name.
type SecretName = (Arc<str>, Arc<str>);

type Versions = HashMap<SecretName, String>;

/// Labelled Secrets by name, with the version seen last.
struct SecretsFold {
    known: Versions,
    /// What the list that is being read has shown so far.
    listed: Option<Versions>,
    /// Told once the first list is complete. Then what it showed is no news: nobody can have read anything older.
    first: Option<watch::Sender<bool>>,
    was_told: bool,
}

impl SecretsFold {
    fn new(first: watch::Sender<bool>) -> Self {
        Self { known: HashMap::new(), listed: None, first: Some(first), was_told: false }
    }

    fn listed(&mut self, out: &mut VecDeque<SourceEvent>) {
        let Some(listed) = self.listed.take() else { return };
        let before = std::mem::replace(&mut self.known, listed);
        self.was_told = false;
        // Nobody waits any more: Proxies may have been started on what was there before.
        let is_in_time = self.first.take().is_some_and(|first| first.send(true).is_ok());
        if is_in_time {
            return;
        }
        let changed = self.known.iter().filter(|(name, version)| before.get(*name) != Some(*version)).map(|(n, _)| n);
        let gone = before.keys().filter(|name| !self.known.contains_key(*name));
        out.extend(changed.chain(gone).map(secret_changed));
    }
}

impl Folds for SecretsFold {
    type Object = PartialObjectMeta<Secret>;
    const OF: &'static str = "Secrets";

    fn take(&mut self, event: Event<Self::Object>, out: &mut VecDeque<SourceEvent>) {
        match event {
            Event::Init => self.listed = Some(HashMap::new()),
            Event::InitApply(secret) => {
                if let (Some(listed), Some((name, version))) = (&mut self.listed, named(&secret)) {
                    listed.insert(name, version);
                }
            }
            Event::InitDone => self.listed(out),
            Event::Apply(secret) => {
                if let Some((name, version)) = named(&secret)
                    && self.known.get(&name) != Some(&version)
                {
                    out.push_back(secret_changed(&name));
                    self.known.insert(name, version);
                }
            }
            // The label went, or the Secret did.
            Event::Delete(secret) => {
                if let Some((name, _)) = named(&secret) {
                    self.known.remove(&name);
                    out.push_back(secret_changed(&name));
                }
            }
        }
    }

    /// Not a failure of the source: the fleet is known, and goes on with what was read.
    fn failed(&mut self, error: OpError, _out: &mut VecDeque<SourceEvent>) {
        self.listed = None;
        if self.was_told {
            tracing::debug!(%error, "still no watch of the Secrets");
        } else {
            tracing::warn!(%error, "the Secrets cannot be watched: a changed one is seen when the watch is back");
        }
        self.was_told = true;
    }
}

fn named(secret: &PartialObjectMeta<Secret>) -> Option<(SecretName, String)> {
    let metadata = &secret.metadata;
    let name = (metadata.namespace.as_deref()?.into(), metadata.name.as_deref()?.into());
    Some((name, metadata.resource_version.clone()?))
}

fn secret_changed((namespace, name): &SecretName) -> SourceEvent {
    SourceEvent::SecretChanged { namespace: Arc::clone(namespace), name: Arc::clone(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Watch<PartialObjectMeta<Secret>> {
        stream::iter([Ok(Event::Init), Ok(Event::InitDone)]).chain(stream::pending()).boxed()
    }

    struct Told;

    impl Folds for Told {
        type Object = PartialObjectMeta<Secret>;
        const OF: &'static str = "objects";

        fn take(&mut self, event: Event<Self::Object>, out: &mut VecDeque<SourceEvent>) {
            if matches!(event, Event::InitDone) {
                out.push_back(SourceEvent::Synced { living: Vec::new() });
            }
        }

        fn failed(&mut self, error: OpError, out: &mut VecDeque<SourceEvent>) {
            out.push_back(SourceEvent::Unreadable(error));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_fleet_is_not_taken_for_a_watch_that_failed() {
        let mut feed = feed(well, Told);
        assert!(matches!(feed.next().await, Some(SourceEvent::Synced { .. })));
        let more = tokio::time::timeout(Duration::from_hours(24), feed.next()).await;
        assert!(more.is_err(), "{more:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_stalls_is_told_and_begun_anew() {
        let mut feed = feed(|| stream::iter([Ok(Event::Init)]).chain(stream::pending()).boxed(), Told);
        for _ in 0..3 {
            let told = tokio::time::timeout(Duration::from_mins(2), feed.next()).await.unwrap();
            assert!(
                matches!(&told, Some(SourceEvent::Unreadable(error)) if error.reason == Reason::Timeout),
                "{told:?}"
            );
        }
    }
}
