//! The root: wires every actor, and starts and stops them in order.
//!
//! An end of the root that nobody asked for ends the process; below it, each supervisor contains what it can.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::board::Board;
use crate::domain::id::OperatorId;
use crate::domain::lease_book::Terms;
use crate::domain::plan::Settings;
use crate::election::candidate::{Ballot, ElectionArgs};
use crate::election::{Claim, Unopposed};
use crate::events::EventsHandle;
use crate::fleet::{FleetArgs, FleetHandle};
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Env, Ref, Root, Tell};
use crate::leases::{LeasesArgs, LeasesHandle};
use crate::ports::{Candidacy, EventSink, Prober, ProviderEntry, ProxySource, Records, Secrets};
use crate::probes::{ProbesArgs, ProbesHandle};
use crate::provider::ProviderSettings;
use crate::providers::{Directory, ProvidersArgs, ProvidersHandle, Sweeping};
use crate::proxies::ProxiesHandle;
use crate::proxy::{Deadlines, Wires};
use crate::records::RecordsHandle;
use crate::sweep::{Owners, RollCall, SweepSettings};
use crate::watch::WatchHandle;

/// The world, as adapters of the ports.
#[derive(Clone)]
pub struct Ports {
    pub source: Arc<dyn ProxySource>,
    pub records: Arc<dyn Records>,
    pub events: Arc<dyn EventSink>,
    pub secrets: Arc<dyn Secrets>,
    pub prober: Arc<dyn Prober>,
    /// What this replica stands for election with; none where it is the only one.
    pub candidacy: Option<Candidacy>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ports")
    }
}

/// What the flags say.
#[derive(Debug, Clone)]
pub struct OperatorSettings {
    pub operator: OperatorId,
    /// The upper half of every fencing number where nobody else can lead: it grows with each start. With an election it is
    /// the claim's own.
    pub epoch: u32,
    pub life: Settings,
    pub deadlines: Deadlines,
    pub check_interval: Duration,
    pub check_timeout: Duration,
    pub health_workers: usize,
    pub probe_target: Arc<Url>,
    pub max_lease_ttl: Duration,
    pub lease_cooldown: Duration,
    pub serve_without_claim: bool,
    /// None: backends are not swept for orphans.
    pub sweep: Option<SweepSettings>,
    /// Where election runs: a runtime whose workers nothing else can occupy.
    pub edge: Option<tokio::runtime::Handle>,
}

/// What the servers and the wiring hold of a running operator.
#[derive(Debug, Clone)]
pub struct Handles {
    pub env: Arc<Env>,
    pub claim: Claim,
    pub leases: LeasesHandle,
    pub providers: ProvidersHandle,
    pub directory: Directory,
    pub board: Board,
    pub watch: WatchHandle,
    pub proxies: ProxiesHandle,
}

/// An operator that is wired and not started.
#[derive(Debug)]
pub struct Operator {
    pub handles: Handles,
    children: Vec<ChildSpec>,
}

impl Operator {
    /// Makes every handle, so that all references are there before the first actor is.
    pub fn wire(env: &Arc<Env>, ports: &Ports, entries: Vec<ProviderEntry>, settings: &OperatorSettings) -> Self {
        let (probes, leases, proxies) = (ProbesHandle::new(), LeasesHandle::new(env), ProxiesHandle::new());
        let (watch, board, fleet) = (WatchHandle::new(), Board::default(), FleetHandle::new());
        // The registry hears of a new claim before those that offer under it.
        let (first, second, third) = (leases.clone(), proxies.clone(), fleet.clone());
        let woken = Tell::new(move |_| {
            first.claim_changed();
            second.claim_changed();
            third.claim_changed();
        });
        let (election, claim) = match &ports.candidacy {
            None => Unopposed::spec(settings.epoch),
            Some(candidacy) => {
                let (ballot, claim) = Ballot::new();
                (ballot.spec(ElectionArgs { candidacy: candidacy.clone(), changed: woken }), claim)
            }
        };
        let election = match &settings.edge {
            Some(edge) => election.on(edge),
            None => election,
        };
        let records = RecordsHandle::new(claim.clone());
        let events = EventsHandle::new(ports.events.clone(), claim.clone());
        let providers = ProvidersHandle::new(entries);
        let directory = providers.directory();

        let (told, well, called) = (proxies.clone(), proxies.clone(), proxies.clone());
        let roll_call: RollCall = Arc::new(move |done| called.roll_call(done));
        let providers_spec = providers.spec(ProvidersArgs {
            settings: ProviderSettings {
                operator: settings.operator.clone(),
                list_interval: settings.life.list_interval,
                check_interval: settings.check_interval,
                check_timeout: settings.check_timeout,
            },
            claim: claim.clone(),
            records: records.clone(),
            healths: ports.records.clone(),
            events: events.clone(),
            changed: Tell::new(move |()| told.providers_changed()),
            recovered: Tell::new(move |(provider, host)| well.host_recovered(provider, host)),
            sweep: settings.sweep.clone().map(|settings| Sweeping {
                settings,
                owners: Owners::new(ports.records.clone()),
                roll_call,
            }),
        });
        let wires = Arc::new(Wires {
            operator: settings.operator.clone(),
            settings: settings.life.clone(),
            deadlines: settings.deadlines,
            claim: claim.clone(),
            records: records.clone(),
            events: events.clone(),
            secrets: ports.secrets.clone(),
            directory: directory.clone(),
            probes: probes.clone(),
            leases: leases.clone(),
            board: board.clone(),
        });
        let members = vec![
            leases.spec(LeasesArgs {
                terms: Terms::new(settings.epoch, settings.max_lease_ttl, settings.lease_cooldown),
                claim: claim.clone(),
                serve_without_claim: settings.serve_without_claim,
                look_now: probes.look_now(),
            }),
            probes.spec(ProbesArgs {
                prober: ports.prober.clone(),
                workers: settings.health_workers,
                default_target: settings.probe_target.clone(),
                standing: providers.standing(),
                suspects_changed: providers.standing_changed(),
            }),
            proxies.spec(wires),
            watch.spec(ports.source.clone(), proxies.clone()),
        ];
        let (hosts, shown) = (directory.clone(), board.clone());
        let fleet = fleet.spec(FleetArgs {
            members: Arc::new(move || members.clone()),
            claim: claim.clone(),
            deposed: Tell::new(move |()| {
                shown.clear();
                for host in hosts.entries().iter().flat_map(|entry| entry.hosts.values()) {
                    host.stand_down();
                }
            }),
        });
        let children = vec![election, records.spec(ports.records.clone()), events.spec(), providers_spec, fleet];
        let handles = Handles { env: env.clone(), claim, leases, providers, directory, board, watch, proxies };
        Self { handles, children }
    }

    /// Starts everything, `last` last, so that nobody is answered before there is an answer. What is `first` is there also
    /// while everything else ends, and answers for it.
    pub fn start(self, first: Vec<ChildSpec>, last: Vec<ChildSpec>) -> Root {
        let children: Arc<[ChildSpec]> = first.into_iter().chain(self.children).chain(last).collect();
        // To start a child that is there is to do nothing, so the second one of a name would silently be missing.
        let mut names = HashSet::new();
        let twice = children.iter().map(ChildSpec::id).find(|id| !names.insert(*id));
        assert!(twice.is_none(), "two children of the operator have the same name: {twice:?}");
        let root = ChildSpec::of::<Supervisor>("operator", &Ref::new("operator"), move || children.clone());
        Root::start(&self.handles.env, root.stop_within(Duration::from_secs(60)))
    }
}

struct Supervisor;

impl Behavior for Supervisor {
    const KIND: &'static str = "operator";
    type Msg = ();
    type Args = Arc<[ChildSpec]>;

    fn init(children: Self::Args, ctx: &mut Ctx<()>) -> Result<Self, InitError> {
        for child in children.iter() {
            ctx.start(child.clone());
        }
        Ok(Self)
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}
}
