//! The entries of the providers config as children, which come, change and go at run time.
//!
//! Owns the directory: which entries and hosts there are. Spoken to by the wiring (`configure`); the directory is read by
//! everybody without asking. An entry that keeps crashing is parked and tried again; its siblings never notice.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::domain::id::{HostName, ProviderName};
use crate::domain::target::TargetHealth;
use crate::election::Claim;
use crate::events::EventsHandle;
use crate::host::HostHandle;
use crate::kit::actor::InitError;
use crate::kit::{
    Behavior, ChildEnd, ChildSpec, Ctx, Env, Exit, Fired, Intensity, Overflow, Ref, Strategy, Supervision, Tell, Timers,
};
use crate::ports::ProviderEntry;
use crate::provider::{ProviderArgs, ProviderHandle, ProviderSettings};
use crate::records::RecordsHandle;
use crate::sweep::{Owners, RollCall, SweepArgs, SweepSettings, Swept};

/// An entry that crashed too often is started again after this.
const REVIVE_AFTER: Duration = Duration::from_secs(60);

/// One entry as everybody sees it.
#[derive(Debug)]
pub struct EntryCard {
    pub entry: ProviderEntry,
    pub provider: ProviderHandle,
    pub hosts: HashMap<HostName, HostHandle>,
    /// The latest verdict on each host; empty before the first check.
    pub verdicts: Arc<ArcSwap<Vec<TargetHealth>>>,
    /// What its sweep for orphans found.
    pub swept: Arc<ArcSwap<Swept>>,
}

/// Which entries there are. Read without waiting; written by `providers` only.
#[derive(Debug, Clone, Default)]
pub struct Directory(Arc<ArcSwapOption<Cards>>);

type Cards = HashMap<ProviderName, Arc<EntryCard>>;

impl Directory {
    pub fn entry(&self, name: &ProviderName) -> Option<Arc<EntryCard>> {
        self.0.load().as_ref().and_then(|cards| cards.get(name).cloned())
    }

    /// False until the configuration has been opened for the first time: what is missing before says nothing.
    pub fn is_known(&self) -> bool {
        self.0.load().is_some()
    }

    /// Whether `sweeper` looks after the instances of `entry`: its own, and those of an entry that nobody who sees the
    /// same backend is called any more; the first in order of name does that for all who see it.
    pub fn is_swept_by(&self, entry: &ProviderName, sweeper: &ProviderName) -> bool {
        if entry == sweeper {
            return true;
        }
        let entries = self.entries();
        let Some(backend) = entries.iter().find(|card| card.entry.name == *sweeper).map(|card| &card.entry.backend)
        else {
            return false;
        };
        let mut sharing = entries.iter().map(|card| &card.entry).filter(|entry| entry.backend == *backend);
        sharing.clone().all(|other| other.name != *entry) && sharing.next().is_some_and(|first| first.name == *sweeper)
    }

    /// All entries in order of name.
    pub fn entries(&self) -> Vec<Arc<EntryCard>> {
        let mut all: Vec<_> = self.0.load().iter().flat_map(|cards| cards.values().cloned()).collect();
        all.sort_by(|a, b| a.entry.name.cmp(&b.entry.name));
        all
    }
}

/// The verbs of the providers.
#[derive(Debug, Clone)]
pub struct ProvidersHandle {
    to: Ref<ProvidersMsg>,
    directory: Directory,
    /// The latest configuration, for a restart.
    wanted: Arc<ArcSwap<Vec<ProviderEntry>>>,
}

impl ProvidersHandle {
    pub fn new(entries: Vec<ProviderEntry>) -> Self {
        Self {
            to: Ref::new("providers"),
            directory: Directory::default(),
            wanted: Arc::new(ArcSwap::from_pointee(entries)),
        }
    }

    pub fn directory(&self) -> Directory {
        self.directory.clone()
    }

    /// The whole configuration anew: entries that did not change are left alone.
    pub fn configure(&self, entries: Vec<ProviderEntry>) {
        self.wanted.store(Arc::new(entries));
        self.to.cast_or_drop(ProvidersMsg::Configured);
    }

    pub fn spec(&self, args: ProvidersArgs) -> ChildSpec {
        let (directory, wanted) = (self.directory.clone(), self.wanted.clone());
        ChildSpec::of::<Providers>("providers", &self.to, move || (args.clone(), directory.clone(), wanted.clone()))
            .stop_within(Duration::from_secs(15))
    }
}

#[derive(Debug, Clone)]
pub struct ProvidersArgs {
    pub settings: ProviderSettings,
    pub claim: Claim,
    pub records: RecordsHandle,
    pub events: EventsHandle,
    /// Hears that entries came, changed or went.
    pub changed: Tell<()>,
    /// Hears of a host that passed its check after it had failed it.
    pub recovered: Tell<(ProviderName, HostName)>,
    /// None: there is no sweep.
    pub sweep: Option<Sweeping>,
}

/// What the sweeps of all entries have in common.
#[derive(Clone)]
pub struct Sweeping {
    pub settings: SweepSettings,
    pub owners: Owners,
    pub roll_call: RollCall,
}

impl fmt::Debug for Sweeping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sweeping").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum ProvidersMsg {
    /// The wanted entries changed.
    Configured,
    /// A parked entry is tried again.
    Timer(Fired<ProviderName>),
}

crate::named!(ProvidersMsg: Configured, Timer);

#[derive(Debug)]
struct Providers {
    args: ProvidersArgs,
    directory: Directory,
    wanted: Arc<ArcSwap<Vec<ProviderEntry>>>,
    timers: Timers<ProviderName>,
}

impl Providers {
    /// Brings the directory and the children to what is wanted.
    fn settle(&mut self, ctx: &mut Ctx<ProvidersMsg>) {
        let wanted = self.wanted.load_full();
        let known = self.directory.0.load_full();
        let mut changed = known.is_none();
        let old = known.unwrap_or_default();
        let mut new = HashMap::with_capacity(wanted.len());
        for entry in wanted.iter() {
            let before = old.get(&entry.name);
            let card = match before {
                Some(card) if card.entry.revision == entry.revision => card.clone(),
                Some(_) | None => {
                    changed = true;
                    tracing::info!(provider = %entry.name, kind = entry.kind, changed = before.is_some(), "provider configured");
                    Arc::new(card(entry, before.map(|card| &**card), ctx.env()))
                }
            };
            new.insert(entry.name.clone(), card);
        }
        for name in old.keys().filter(|name| !new.contains_key(*name)) {
            changed = true;
            tracing::info!(provider = %name, "provider is no longer configured");
            self.args.records.remove_provider_health(name);
        }
        self.directory.0.store(Some(Arc::new(new.clone())));
        for (name, card) in &old.iter().collect::<Vec<_>>() {
            if !new.get(*name).is_some_and(|now| Arc::ptr_eq(now, card)) {
                // A changed entry starts anew when its old child has ended.
                ctx.stop_child(&child_id(name));
            }
        }
        for name in new.keys() {
            self.start(name, ctx);
        }
        if changed {
            self.args.changed.send(());
        }
    }

    /// Starts the entry unless it runs, or its old incarnation is still ending.
    fn start(&self, name: &ProviderName, ctx: &mut Ctx<ProvidersMsg>) {
        let Some(card) = self.directory.entry(name) else { return };
        if ctx.has_child(&child_id(name)) {
            return;
        }
        let hosts: Vec<_> = card.entry.hosts.iter().filter_map(|host| card.hosts.get(&host.name).cloned()).collect();
        let sweep = self.args.sweep.as_ref().map(|sweeping| self.sweep(&card, hosts.clone(), sweeping.clone()));
        ctx.start(card.provider.spec(ProviderArgs {
            entry: card.entry.clone(),
            hosts,
            settings: self.args.settings.clone(),
            claim: self.args.claim.clone(),
            records: self.args.records.clone(),
            events: self.args.events.clone(),
            recovered: self.args.recovered.clone(),
            verdicts: card.verdicts.clone(),
            sweep,
        }));
    }

    fn sweep(&self, card: &EntryCard, hosts: Vec<HostHandle>, sweeping: Sweeping) -> SweepArgs {
        let (directory, sweeper) = (self.directory.clone(), card.entry.name.clone());
        SweepArgs {
            provider: card.entry.name.clone(),
            hosts,
            settings: sweeping.settings,
            claim: self.args.claim.clone(),
            events: self.args.events.clone(),
            owners: sweeping.owners,
            roll_call: sweeping.roll_call,
            is_swept_here: Arc::new(move |entry| directory.is_swept_by(entry, &sweeper)),
            told: card.swept.clone(),
        }
    }
}

/// Hosts that stay keep their handles, and with them their followers.
fn card(entry: &ProviderEntry, before: Option<&EntryCard>, env: &Arc<Env>) -> EntryCard {
    let host = |name: &HostName| {
        let kept = before.and_then(|card| card.hosts.get(name)).cloned();
        (name.clone(), kept.unwrap_or_else(|| HostHandle::new(env, &entry.name, name)))
    };
    EntryCard {
        entry: entry.clone(),
        provider: before.map_or_else(|| ProviderHandle::new(&entry.name), |card| card.provider.clone()),
        hosts: entry.hosts.iter().map(|h| host(&h.name)).collect(),
        verdicts: Arc::default(),
        swept: Arc::default(),
    }
}

fn child_id(name: &ProviderName) -> Arc<str> {
    name.as_str().into()
}

impl Behavior for Providers {
    const KIND: &'static str = "providers";
    type Msg = ProvidersMsg;
    type Args = (ProvidersArgs, Directory, Arc<ArcSwap<Vec<ProviderEntry>>>);

    fn init((args, directory, wanted): Self::Args, ctx: &mut Ctx<ProvidersMsg>) -> Result<Self, InitError> {
        let mut providers = Self { args, directory, wanted, timers: Timers::new(ctx.tell(ProvidersMsg::Timer)) };
        providers.settle(ctx);
        Ok(providers)
    }

    fn handle(&mut self, message: ProvidersMsg, ctx: &mut Ctx<ProvidersMsg>) {
        match message {
            ProvidersMsg::Configured => self.settle(ctx),
            ProvidersMsg::Timer(fired) => {
                if let Some(name) = self.timers.accept(fired) {
                    self.start(&name, ctx);
                }
            }
        }
    }

    fn child_ended(&mut self, end: ChildEnd, ctx: &mut Ctx<ProvidersMsg>) {
        let Ok(name) = ProviderName::parse(&end.id) else { return };
        if let Exit::GaveUp(why) = &end.exit {
            tracing::error!(provider = %name, error = %why, "provider is parked");
            self.timers.arm_in(name, REVIVE_AFTER);
        } else {
            self.start(&name, ctx);
        }
    }

    fn supervision() -> Supervision {
        Supervision {
            strategy: Strategy::OneForOne,
            intensity: Intensity { restarts: 5, within: Duration::from_secs(30) },
            overflow: Overflow::Park,
        }
    }
}
