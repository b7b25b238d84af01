//! Feeds the wished fleet from its source into `proxies`.
//!
//! Owns the stream and the knowledge whether it is in sync. It is the last child of the fleet: when what stands before
//! it was restarted, so is this, and its new list repopulates them. There is no other resync.

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use futures::StreamExt;

use crate::domain::error::OpError;
use crate::kit::actor::InitError;
use crate::kit::task::task;
use crate::kit::{Behavior, ChildSpec, Ctx, Entry, Permit, Ref};
use crate::ports::{ProxySource, SourceEvent};
use crate::proxies::ProxiesHandle;

/// Events on their way from the source: the source waits when the fleet is slower.
const PLACES: usize = 1024;

/// Whether the fleet is known, for `/readyz`.
#[derive(Debug, Clone, Default)]
pub struct SourceState {
    /// A complete list has been seen since the watch began. It begins anew with the fleet: then the registry may be empty.
    pub synced: bool,
    /// Why the source cannot be read, and since when.
    pub unreadable: Option<(OpError, SystemTime)>,
}

/// The verbs of the watch: none but its start. Its state is read without asking.
#[derive(Debug, Clone)]
pub struct WatchHandle {
    to: Ref<WatchMsg>,
    state: Arc<ArcSwap<SourceState>>,
}

impl WatchHandle {
    #[expect(clippy::new_without_default, reason = "a handle is made once, for its actor")]
    pub fn new() -> Self {
        Self { to: Ref::new("watch"), state: Arc::default() }
    }

    pub fn state(&self) -> Arc<SourceState> {
        self.state.load_full()
    }

    pub fn spec(&self, source: Arc<dyn ProxySource>, proxies: ProxiesHandle) -> ChildSpec {
        let (to, state) = (self.to.clone(), self.state.clone());
        ChildSpec::of::<Watch>("watch", &self.to, move || Args {
            source: source.clone(),
            proxies: proxies.clone(),
            to: to.clone(),
            state: state.clone(),
        })
    }
}

struct Args {
    source: Arc<dyn ProxySource>,
    proxies: ProxiesHandle,
    to: Ref<WatchMsg>,
    state: Arc<ArcSwap<SourceState>>,
}

enum WatchMsg {
    /// One fact from the source.
    Event(Box<SourceEvent>, Permit),
}

crate::named!(WatchMsg: Event);

struct Watch {
    proxies: ProxiesHandle,
    state: Arc<ArcSwap<SourceState>>,
}

impl Behavior for Watch {
    const KIND: &'static str = "watch";
    type Msg = WatchMsg;
    type Args = Args;

    fn init(args: Args, ctx: &mut Ctx<WatchMsg>) -> Result<Self, InitError> {
        // An unreadable source stays known as such until it says otherwise.
        let unreadable = args.state.load().unreadable.clone();
        args.state.store(Arc::new(SourceState { synced: false, unreadable }));
        let entry = Entry::new(ctx.env(), Self::KIND, &args.to, PLACES);
        let source = args.source;
        // A stream that ends has broken its contract: the feed fails and is started anew, with a new list.
        ctx.start(task("feed", move |stop| {
            let (mut events, entry) = (source.events(), entry.clone());
            async move {
                loop {
                    let event = tokio::select! {
                        () = stop.wait() => return Ok(()),
                        event = events.next() => event.ok_or("the stream of the source ended")?,
                    };
                    entry
                        .cast(|place| WatchMsg::Event(Box::new(event), place))
                        .await
                        .map_err(|refused| format!("cannot hand an event over: {refused}"))?;
                }
            }
        }));
        Ok(Self { proxies: args.proxies, state: args.state })
    }

    fn handle(&mut self, WatchMsg::Event(event, _place): WatchMsg, ctx: &mut Ctx<WatchMsg>) {
        match *event {
            SourceEvent::ListStarted => {}
            SourceEvent::Applied(applied) => self.proxies.applied(applied),
            SourceEvent::Rejected(rejected) => self.proxies.rejected(rejected),
            SourceEvent::Gone { key, uid } => self.proxies.gone(key, uid),
            SourceEvent::Synced { living } => {
                self.state.store(Arc::new(SourceState { synced: true, unreadable: None }));
                tracing::info!(proxies = living.len(), "fleet is in sync");
                self.proxies.synced(living);
            }
            SourceEvent::SecretChanged { namespace, name } => self.proxies.secret_changed(namespace, name),
            SourceEvent::Unreadable(error) => {
                let before = self.state.load();
                let since = before.unreadable.as_ref().map_or(ctx.now().wall, |(_, since)| *since);
                if before.unreadable.is_none() {
                    tracing::warn!(%error, "the source of proxies cannot be read: nothing is taken for gone");
                }
                self.state.store(Arc::new(SourceState { synced: before.synced, unreadable: Some((error, since)) }));
            }
        }
    }
}
