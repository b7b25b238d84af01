//! The entries of the providers config as children, which come, change and go at run time.
//!
//! Owns the directory: which entries and hosts there are; and which ProviderHealths there are to be, of which it looks at
//! all now and then ([`mod@upkeep`]). Spoken to by the wiring (`configure`); the directory is read by everybody without asking.
//! An entry that keeps crashing is parked and tried again; its siblings never notice. Never writes a ProviderHealth: the
//! entry's own actor does.

mod directory;
mod upkeep;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use self::upkeep::{Upkeep, upkeep};
use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName};
use crate::domain::reason::Reason;
use crate::election::Claim;
use crate::events::EventsHandle;
use crate::host::HostHandle;
use crate::kit::actor::InitError;
use crate::kit::work::{Done, work};
use crate::kit::{
    Behavior, ChildEnd, ChildSpec, Ctx, Exit, Fired, Intensity, Overflow, Ref, Reply, Strategy, Supervision, Tell,
    Timers,
};
use crate::ports::{Event, FoundHealth, ProviderEntry, Records, Severity, Subject};
use crate::provider::{self, ProviderArgs, ProviderSettings};
use crate::records::RecordsHandle;
use crate::standing::{self, Standing};
use crate::sweep::{Owners, RollCall, SweepArgs, SweepSettings};

pub use self::directory::{Directory, EntryCard};

/// An entry that crashed too often is started again after this.
const REVIVE_AFTER: Duration = Duration::from_secs(60);

/// A standby that begins to lead looks at the ProviderHealths after this at the latest.
const LOOK_AT_CLAIM_EVERY: Duration = Duration::from_secs(1);

/// One look at them, which is one list.
const LOOK_WITHIN: Duration = Duration::from_secs(15);

/// The child that looks. No entry can have this name.
const LOOK: &str = "op/healths";

/// The verbs of the providers.
#[derive(Debug, Clone)]
pub struct ProvidersHandle {
    to: Ref<ProvidersMsg>,
    directory: Directory,
    /// The latest configuration, for a restart.
    wanted: Arc<ArcSwap<Vec<ProviderEntry>>>,
    standing: Standing,
}

impl ProvidersHandle {
    pub fn new(entries: Vec<ProviderEntry>) -> Self {
        Self {
            to: Ref::new("providers"),
            directory: Directory::default(),
            wanted: Arc::new(ArcSwap::from_pointee(entries)),
            standing: Standing::default(),
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

    /// The configuration on disk is not the one in use, and why; or it is again.
    pub fn config_refused(&self, why: Option<String>) {
        self.standing.set_refused(why);
        self.to.cast_or_drop(ProvidersMsg::Standing);
    }

    /// What stands for all entries at once.
    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }

    /// The verb for whoever changes it elsewhere.
    pub fn standing_changed(&self) -> Tell<()> {
        self.to.tell(|()| ProvidersMsg::Standing)
    }

    pub fn spec(&self, args: ProvidersArgs) -> ChildSpec {
        let (directory, wanted, standing) = (self.directory.clone(), self.wanted.clone(), self.standing.clone());
        ChildSpec::of::<Providers>("providers", &self.to, move || {
            (args.clone(), directory.clone(), wanted.clone(), standing.clone())
        })
        .stop_within(Duration::from_secs(15))
    }
}

#[derive(Clone)]
pub struct ProvidersArgs {
    pub settings: ProviderSettings,
    pub claim: Claim,
    pub records: RecordsHandle,
    /// Only read here: what is written goes through `records`.
    pub healths: Arc<dyn Records>,
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

impl fmt::Debug for ProvidersArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProvidersArgs").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum ProvidersMsg {
    /// The wanted entries changed.
    Configured,
    /// What stands for all entries changed.
    Standing,
    /// A look at the ProviderHealths ended, that was begun in this epoch.
    Looked(u32, Done<Result<Vec<FoundHealth>, OpError>>),
    Timer(Fired<Alarm>),
}

crate::named!(ProvidersMsg: Configured, Standing, Looked, Timer);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Alarm {
    /// A parked entry is tried again.
    Revive(ProviderName),
    /// Time for the next look at the ProviderHealths.
    Look,
}

#[derive(Debug)]
struct Providers {
    args: ProvidersArgs,
    directory: Directory,
    wanted: Arc<ArcSwap<Vec<ProviderEntry>>>,
    standing: Standing,
    /// Of what stands, what was told in events.
    told: Told,
    /// Hosts whose gauges the running child of an entry may have set.
    measured: HashMap<ProviderName, HashSet<HostName>>,
    timers: Timers<Alarm>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Told {
    is_suspect: bool,
    is_refused: bool,
}

impl Providers {
    /// Brings the directory and the children to what is wanted.
    fn settle(&mut self, ctx: &mut Ctx<ProvidersMsg>) {
        let wanted = self.wanted.load_full();
        let known = self.directory.cards();
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
                    Arc::new(EntryCard::new(entry, before.map(|card| &**card), ctx.env()))
                }
            };
            new.insert(entry.name.clone(), card);
        }
        for name in old.keys().filter(|name| !new.contains_key(*name)) {
            changed = true;
            tracing::info!(provider = %name, "provider is no longer configured");
            self.args.records.remove_provider_health(name);
        }
        self.directory.publish(new.clone());
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
    fn start(&mut self, name: &ProviderName, ctx: &mut Ctx<ProvidersMsg>) {
        let Some(card) = self.directory.entry(name) else { return };
        if ctx.has_child(&child_id(name)) {
            return;
        }
        self.measured.insert(name.clone(), card.entry.hosts.iter().map(|host| host.name.clone()).collect());
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
            standing: self.standing.clone(),
            untold: card.untold.clone(),
            sweep,
        }));
    }

    /// What is gone for good leaves no stale series behind. The child has ended: nobody sets them anew.
    fn retire(&mut self, name: &ProviderName, stays: impl Fn(&HostName) -> bool) {
        for host in self.measured.remove(name).iter().flatten().filter(|host| !stays(host)) {
            provider::retire(name, host);
        }
    }

    /// Begins a look at the ProviderHealths that are there.
    fn look(&mut self, ctx: &mut Ctx<ProvidersMsg>) {
        let now = ctx.now().mono;
        let Some(epoch) = self.args.claim.epoch().filter(|_| self.args.claim.may_mutate(now)) else {
            // A standby has nothing to put right.
            return self.timers.arm_in(Alarm::Look, LOOK_AT_CLAIM_EVERY);
        };
        let interval = self.args.settings.check_interval;
        self.timers.arm_in(Alarm::Look, interval.mul_f64(0.95 + rand::random::<f64>() * 0.1));
        let (healths, looked) = (self.args.healths.clone(), ctx.tell(move |done| ProvidersMsg::Looked(epoch, done)));
        // If the one before is still under way, this one is not begun, and its answer is of no use to anybody.
        let reply = Reply::new(move |done| looked.send(done), || Done::Lost);
        ctx.start(work(LOOK, now + LOOK_WITHIN, async move { healths.list_provider_healths().await }, reply));
    }

    fn looked(&mut self, epoch: u32, done: Done<Result<Vec<FoundHealth>, OpError>>) {
        let found = match done {
            Done::Finished(Ok(found)) => found,
            Done::Finished(Err(error)) => {
                return tracing::warn!(%error, "the ProviderHealths are not known: none is removed or put back");
            }
            Done::Panicked(error) => return tracing::error!(error, "a look at the ProviderHealths panicked"),
            Done::Deadline => {
                return tracing::warn!("the ProviderHealths are not known: the list did not end in time");
            }
            Done::Lost => return,
        };
        // Another replica may have led meanwhile, with another configuration.
        if self.args.claim.epoch() != Some(epoch) {
            return;
        }
        let cards = self.directory.entries();
        for (name, verdict) in upkeep(cards.iter().map(|card| &card.entry.name), &found) {
            let Some(card) = self.directory.entry(name) else {
                tracing::info!(provider = %name, "the ProviderHealth of an entry that is not configured is removed");
                self.args.records.remove_provider_health(name);
                continue;
            };
            match verdict {
                Upkeep::Foreign => self.is_taken(&card),
                Upkeep::Kept | Upkeep::LeftOver => {
                    if Self::is_free(&card) {
                        card.provider.tell_again();
                    }
                }
                Upkeep::Missing => {
                    Self::is_free(&card);
                    card.provider.tell_again();
                }
            }
        }
    }

    /// The name of its ProviderHealth is another's: told once.
    fn is_taken(&self, card: &EntryCard) {
        let name = &card.entry.name;
        let why = format!(
            "there is a ProviderHealth `{name}` that is not of this operator, so this entry has none: rename the entry, or \
             delete that object if nobody needs it"
        );
        if card.untold.swap(Some(Arc::new(why.clone()))).is_none() {
            tracing::error!(provider = %name, reason = %Reason::NameConflict, why, "provider health cannot be told");
            self.args.events.emit(Event {
                about: Subject::Provider(name.clone()),
                severity: Severity::Warning,
                reason: Reason::NameConflict,
                note: why,
            });
        }
    }

    /// True if it was another's before.
    fn is_free(card: &EntryCard) -> bool {
        let was_taken = card.untold.swap(None).is_some();
        if was_taken {
            tracing::info!(provider = %card.entry.name, "provider health can be told");
        }
        was_taken
    }

    /// Tells what stands now in every ProviderHealth, and with an event where it turned.
    fn tell_standing(&mut self) {
        let (suspects, refused) = (self.standing.suspects(), self.standing.refused());
        let before = self.told;
        self.told = Told { is_suspect: !suspects.is_empty(), is_refused: refused.is_some() };
        let mut turns = Vec::new();
        if self.told.is_suspect != before.is_suspect {
            turns.push(if self.told.is_suspect {
                let named = standing::names(&suspects);
                let note = format!("faults at these targets do not count against proxies: {named}");
                (Severity::Warning, Reason::ProbeTargetSuspect, note)
            } else {
                let note = "no probe target is suspect any more".to_owned();
                (Severity::Normal, Reason::ProbeTargetTrusted, note)
            });
        }
        if self.told.is_refused != before.is_refused {
            turns.push(if let Some(why) = &refused {
                (Severity::Warning, Reason::ConfigInvalid, standing::refusal(why))
            } else {
                let note = "the providers config on disk is in use again".to_owned();
                (Severity::Normal, Reason::ConfigAccepted, note)
            });
        }
        for card in self.directory.entries() {
            for (severity, reason, note) in &turns {
                self.args.events.emit(Event {
                    about: Subject::Provider(card.entry.name.clone()),
                    severity: *severity,
                    reason: *reason,
                    note: note.clone(),
                });
            }
            card.provider.tell_again();
        }
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

fn child_id(name: &ProviderName) -> Arc<str> {
    name.as_str().into()
}

impl Behavior for Providers {
    const KIND: &'static str = "providers";
    type Msg = ProvidersMsg;
    type Args = (ProvidersArgs, Directory, Arc<ArcSwap<Vec<ProviderEntry>>>, Standing);

    fn init((args, directory, wanted, standing): Self::Args, ctx: &mut Ctx<ProvidersMsg>) -> Result<Self, InitError> {
        let mut timers = Timers::new(ctx.tell(ProvidersMsg::Timer));
        timers.arm_in(Alarm::Look, Duration::ZERO);
        let (told, measured) = (Told::default(), HashMap::new());
        let mut providers = Self { args, directory, wanted, standing, told, measured, timers };
        providers.settle(ctx);
        ctx.cast_self(ProvidersMsg::Standing);
        Ok(providers)
    }

    fn handle(&mut self, message: ProvidersMsg, ctx: &mut Ctx<ProvidersMsg>) {
        match message {
            ProvidersMsg::Configured => {
                self.settle(ctx);
                self.look(ctx);
            }
            ProvidersMsg::Standing => self.tell_standing(),
            ProvidersMsg::Looked(epoch, done) => self.looked(epoch, done),
            ProvidersMsg::Timer(fired) => match self.timers.accept(fired) {
                Some(Alarm::Revive(name)) => self.start(&name, ctx),
                Some(Alarm::Look) => self.look(ctx),
                None => {}
            },
        }
    }

    fn child_ended(&mut self, end: ChildEnd, ctx: &mut Ctx<ProvidersMsg>) {
        let Ok(name) = ProviderName::parse(&end.id) else { return };
        let card = self.directory.entry(&name);
        if let Exit::GaveUp(why) = &end.exit {
            tracing::error!(provider = %name, error = %why, "provider is parked");
            // Nobody checks its hosts: what was seen last says nothing.
            self.retire(&name, |_| false);
            self.timers.arm_in(Alarm::Revive(name), REVIVE_AFTER);
            return;
        }
        self.retire(&name, |host| card.as_ref().is_some_and(|card| card.hosts.contains_key(host)));
        match card {
            Some(_) => self.start(&name, ctx),
            // What it still wrote while it ended came after it was removed.
            None => self.args.records.remove_provider_health(&name),
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
