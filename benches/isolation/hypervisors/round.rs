//! One round: an operator that starts on ten hosts, and a window in which one of them is bad, or none.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use egress_actors::domain::desired::{Attributes, Desired, Flavor};
use egress_actors::domain::instance::InstanceSpec;
use egress_actors::domain::plan::Settings;
use egress_actors::domain::status::Phase;
use egress_actors::domain::sweep::Terms;
use egress_actors::ports::Backend;
use egress_actors::proxy::Deadlines;
use egress_actors::sweep::SweepSettings;
use egress_actors::testkit::world::{Path, Plan, World, managed, on};
use egress_operator::providers::libvirt::link::rpc::Libvirt;
use egress_operator::providers::libvirt::link::{LaneKind, agent_interfaces};
use egress_operator::providers::libvirt::{LibvirtBackend, names};
use egress_operator::telemetry::Exporter;
use tokio::task::JoinSet;

use super::site::{Adapters, Site, Way, limits, mark};
use crate::measure::{Trouble, is_quick, quantile, sorted};
use crate::neighbours::{Samples, grants, is_ready, note, until};

pub(super) const WINDOW: Duration = Duration::from_secs(8);
/// Proxies on each scripted host that is well, all the time.
pub(super) const RESIDENTS: usize = 5;
pub(super) const STUCK: usize = 500;
pub(super) const WANTED: usize = 20;
pub(super) const UNWANTED: usize = 10;
const INTERVAL: Duration = Duration::from_millis(50);
/// What an open path takes, in the testkit.
const PROBE: Duration = Duration::from_millis(5);
const SWEEP_EVERY: Duration = Duration::from_millis(500);
const SETTLED_WITHIN: Duration = Duration::from_secs(120);

/// What was seen of one kind: p50, p99, the number of samples. In milliseconds.
pub(super) type Figures = (f64, f64, f64);

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) kinds: HashMap<&'static str, Figures>,
    /// No operation on the others waited longer for a slot, in milliseconds; a bound of the metric's buckets.
    pub(super) queue_bound: f64,
    pub(super) bad: Option<Bad>,
}

/// What was seen of the bad host itself, in milliseconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Bad {
    /// From the deadline of the first call that hangs until it was answered for.
    pub(super) over_deadline: f64,
    /// A deletion of another Proxy there, where the host can do it.
    pub(super) deletion: Option<f64>,
    /// Calls that the daemon held at once.
    pub(super) held: usize,
    /// From the moment that it was well again until all that was wanted meanwhile had been done there.
    pub(super) recovered: f64,
}

pub(super) async fn round(site: &Arc<Site>, way: Option<Way>, exporter: &Exporter) -> Result<Seen, Trouble> {
    site.clear();
    site.plant((0..STUCK).map(|n| format!("stuck-{n}")))?;
    let adapters = site.adapters(way)?;
    let world = Arc::new(World::start_with(&plan(site, &adapters)));
    let mut names = Vec::new();
    for (n, (provider, host)) in site.good().into_iter().enumerate() {
        names.extend((0..RESIDENTS).map(|k| (format!("resident-{n}-{k}"), provider, host.clone())));
    }
    let bad = site.bad_name();
    for (name, provider, host) in names.iter().filter(|(name, ..)| !world.store.exists(name)) {
        world.store.apply(resident(name, provider, host));
    }
    for name in (0..STUCK).map(|n| format!("stuck-{n}")).filter(|name| !world.store.exists(name)) {
        world.store.apply(machine(&name, "hv", &bad, "blank"));
    }
    let present = names.len() + STUCK;
    until_within(SETTLED_WITHIN, &world, "all Proxies are Ready", |world| {
        world.store.count_in(Phase::Ready) == present
    })
    .await?;
    if way == Some(Way::Packets) {
        // Its transfer begins now and is under way when the window does.
        world.store.apply(machine("upload", "hv", &bad, "big"));
        until(&world, "the upload is under way", |_| {
            site.bad_daemon().volumes().iter().any(|(name, written)| name.starts_with("base-big") && *written > 0)
        })
        .await?;
    }
    site.bad_daemon().most_held();

    let samples = Samples::default();
    let began = tokio::time::Instant::now();
    let before = waits(exporter, &bad);
    let breaks = site.clone();
    tokio::task::spawn_blocking(move || breaks.break_it(way)).await?;
    let stop = Instant::now() + WINDOW;
    let mut work = JoinSet::new();
    for (chain, (provider, host)) in site.good().into_iter().enumerate() {
        let (world, samples) = (world.clone(), samples.clone());
        work.spawn(make_and_delete(
            world,
            samples,
            ["create", "delete"],
            format!("fresh-{chain}"),
            provider,
            host,
            stop,
        ));
    }
    for host in site.real() {
        let (world, samples, name) = (world.clone(), samples.clone(), format!("real-{host}"));
        work.spawn(make_and_delete(world, samples, ["real_create", "real_delete"], name, "hv", host, stop));
    }
    work.spawn(grants(world.clone(), samples.clone(), stop));
    work.spawn(sweeps(site.clone(), adapters.first_good.clone(), samples.clone(), stop));
    let looked = way.map(|way| tokio::spawn(at_the_bad_one(site.clone(), world.clone(), adapters.bad.clone(), way)));
    while let Some(ended) = work.join_next().await {
        ended??;
    }
    note_probes(&world, &samples, &Site::good_ends(), began);
    let queue_bound = bound(&before, &waits(exporter, &bad));
    let mut bad = match looked {
        Some(looked) => Some(looked.await??),
        None => None,
    };
    let (heals, healed) = (site.clone(), Instant::now());
    tokio::task::spawn_blocking(move || heals.heal()).await?;
    if let Some(bad) = &mut bad {
        bad.held = site.bad_daemon().most_held();
        world.prober.set(&Site::bad_end(), Path::Open);
        (0..WANTED).for_each(|n| world.store.delete(&format!("wanted-{n}")));
        world.store.delete("upload");
        let settled = |world: &World| {
            let left = (0..STUCK).filter(|n| world.store.exists(&format!("stuck-{n}"))).count();
            left <= STUCK - UNWANTED
                && world.store.len() == names.len() + left
                && world.store.count_in(Phase::Ready) == names.len() + left
        };
        until_within(SETTLED_WITHIN, &world, "the host is as it was", settled).await?;
        bad.recovered = healed.elapsed().as_secs_f64() * 1e3;
    }
    let world = Arc::into_inner(world).ok_or("somebody still holds the world")?;
    let ended = world.stop().await;
    adapters.stop().await;
    if !ended {
        return Err("the operator did not stop in order".into());
    }
    let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    let figures = |all: Vec<f64>| {
        let all = sorted(all);
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let count = all.len() as f64;
        (quantile(&all, 0.5), quantile(&all, 0.99), count)
    };
    let kinds: HashMap<_, _> = samples.into_iter().map(|(kind, all)| (kind, figures(all))).collect();
    Ok(Seen { kinds, queue_bound, bad })
}

fn plan(site: &Site, adapters: &Adapters) -> Plan {
    let secs = Duration::from_secs;
    Plan {
        entries: Vec::new(),
        given: adapters.entries.clone(),
        store: Some(site.store.clone()),
        deadlines: Deadlines { get: secs(6), create: secs(30), delete: secs(15) },
        life: Settings {
            list_interval: secs(3),
            retry: (Duration::from_millis(200), secs(2)),
            poll: (Duration::from_millis(20), secs(1)),
            ..Settings::default()
        },
        slots: egress_operator::providers::libvirt::SLOTS,
        sweep: Some(SweepSettings {
            every: SWEEP_EVERY,
            terms: Terms { min_age: Duration::ZERO, max_deletes: 10, dry_run: false, namespace: None },
            delete_within: secs(15),
            get_within: secs(6),
        }),
        ..Plan::default()
    }
}

fn machine(name: &str, provider: &str, host: &str, image: &str) -> Desired {
    let mut desired = on(managed(name, provider), host);
    if let Flavor::Managed(managed) = &mut desired.flavor {
        managed.placement.image = Some(image.into());
    }
    desired
}

fn resident(name: &str, provider: &str, host: &str) -> Desired {
    let mut desired = machine(name, provider, host, "blank");
    desired.check.interval = INTERVAL;
    desired.check.timeout = INTERVAL;
    desired.attributes = Arc::new(Attributes::from_iter([("tier".into(), "lab".into())]));
    desired
}

async fn until_within(
    limit: Duration,
    world: &World,
    what: &str,
    holds: impl Fn(&World) -> bool,
) -> Result<(), Trouble> {
    let begun = Instant::now();
    while !holds(world) {
        if begun.elapsed() > limit {
            let phases = Phase::ALL.map(|phase| format!("{}: {}", phase.as_str(), world.store.count_in(phase)));
            return Err(format!("not within {limit:?}: {what}; {}", phases.join(", ")).into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// One machine after the other on one host.
async fn make_and_delete(
    world: Arc<World>,
    samples: Samples,
    kinds: [&'static str; 2],
    prefix: String,
    provider: &'static str,
    host: String,
    stop: Instant,
) -> Result<(), Trouble> {
    for n in 0.. {
        if Instant::now() >= stop {
            break;
        }
        let name = format!("{prefix}-{n}");
        let began = Instant::now();
        world.store.apply(resident(&name, provider, &host));
        until_within(SETTLED_WITHIN, &world, &format!("{name} is Ready"), |world| is_ready(world, &name)).await?;
        note(&samples, kinds[0], began.elapsed());
        let began = Instant::now();
        world.store.delete(&name);
        until_within(SETTLED_WITHIN, &world, &format!("{name} is gone"), |world| !world.store.exists(&name)).await?;
        note(&samples, kinds[1], began.elapsed());
    }
    Ok(())
}

/// Instances of nobody, until the sweep has found and removed them.
async fn sweeps(site: Arc<Site>, backend: impl Backend, samples: Samples, stop: Instant) -> Result<(), Trouble> {
    for n in 0.. {
        if Instant::now() >= stop {
            break;
        }
        let mark = mark(&format!("orphan-{n}"))?;
        let name = names::domain_name(&mark);
        let placement = egress_actors::domain::desired::Placement { image: Some("blank".into()), ..Default::default() };
        backend.create(&InstanceSpec { mark, placement, user_data: None, port: 3128, credentials: None }).await?;
        let begun = Instant::now();
        while site.first_good_daemon().domains().iter().any(|(there, _)| *there == name) {
            if begun.elapsed() > SETTLED_WITHIN {
                return Err(format!("{name} is not swept").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        note(&samples, "sweep", begun.elapsed());
    }
    Ok(())
}

/// Work for the bad host, and how the first call that hangs ends.
async fn at_the_bad_one(site: Arc<Site>, world: Arc<World>, backend: LibvirtBackend, way: Way) -> Result<Bad, Trouble> {
    let limit = limits().control;
    let (own, begun) = (backend.clone(), Instant::now());
    let first = tokio::spawn(async move {
        let link = own.link();
        let work = move |libvirt: &Libvirt<'_>| match way.lane() {
            LaneKind::Agent => {
                let domains = libvirt.rpc("virConnectListAllDomains", "", |c| c.list_all_domains(0))?;
                let one = domains.first();
                one.map_or(Ok(()), |one| {
                    libvirt.rpc("virDomainInterfaceAddresses", "", |_| agent_interfaces(one)).map(drop)
                })
            }
            LaneKind::Storage => {
                libvirt.rpc("virStoragePoolLookupByName", "", |c| c.lookup_storage_pool_by_name("default")).map(drop)
            }
            _ => libvirt.rpc("virConnectGetLibVersion", "", virt::connect::Connect::lib_version).map(drop),
        };
        let answered = link.call(way.lane(), "the first call that hangs", limit, work).await;
        (answered.is_err(), begun.elapsed())
    });
    if way == Way::Packets {
        world.prober.set(&Site::bad_end(), Path::Swallows);
    }
    let name = site.bad_name();
    for n in 0..WANTED {
        world.store.apply(machine(&format!("wanted-{n}"), "hv", &name, "blank"));
        if n < UNWANTED {
            world.store.delete(&format!("stuck-{n}"));
        }
        tokio::time::sleep(WINDOW / 2 / u32::try_from(WANTED)?).await;
    }
    let (is_cut, took) = first.await?;
    if !is_cut {
        return Err(format!("{}: the first call did not hang", way.title()).into());
    }
    let milliseconds = |took: Duration| took.as_secs_f64() * 1e3;
    let mut seen = Bad { over_deadline: milliseconds(took) - milliseconds(limit), ..Bad::default() };
    if way == Way::Agent {
        let one = format!("stuck-{}", STUCK - 1);
        let begun = Instant::now();
        world.store.delete(&one);
        until_within(SETTLED_WITHIN, &world, "a deletion at a host whose agents are silent", |world| {
            !world.store.exists(&one)
        })
        .await?;
        seen.deletion = Some(milliseconds(begun.elapsed()));
    }
    Ok(seen)
}

/// As in `neighbours`: against the earliest moment that the jitter allows.
fn note_probes(world: &World, samples: &Samples, ends: &[String], since: tokio::time::Instant) {
    let mut latest = HashMap::new();
    let looks = ends.iter().flat_map(|end| world.prober.looks(end));
    for look in looks.filter(|look| look.at >= since && look.host.starts_with("100.")) {
        if let Some(before) = latest.insert(look.host, look.at) {
            note(samples, "probe", (look.at - before).saturating_sub(PROBE + INTERVAL.mul_f64(0.9)));
        }
    }
}

/// Waits for a slot on hosts other than the bad one, by the bounds of the metric's buckets in milliseconds.
fn waits(exporter: &Exporter, bad: &str) -> Vec<(f64, f64)> {
    let text = exporter.render();
    let ours = text.lines().filter(|line| line.starts_with("egress_host_queue_wait_seconds_bucket"));
    let mut sums: Vec<(f64, f64)> = Vec::new();
    for line in ours.filter(|line| !line.contains(&format!("host=\"{bad}\""))) {
        let Some((_, rest)) = line.split_once("le=\"") else { continue };
        let Some((le, rest)) = rest.split_once('"') else { continue };
        let le = le.parse::<f64>().unwrap_or(f64::INFINITY) * 1e3;
        let count = rest.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok()).unwrap_or(0.0);
        match sums.iter_mut().find(|(bound, _)| bound.total_cmp(&le).is_eq()) {
            Some((_, sum)) => *sum += count,
            None => sums.push((le, count)),
        }
    }
    sums.sort_by(|a, b| a.0.total_cmp(&b.0));
    sums
}

/// The smallest bound that holds all that was seen between two looks.
fn bound(before: &[(f64, f64)], after: &[(f64, f64)]) -> f64 {
    let grown: Vec<_> = after
        .iter()
        .map(|(le, count)| (*le, count - before.iter().find(|(b, _)| b.total_cmp(le).is_eq()).map_or(0.0, |(_, c)| *c)))
        .collect();
    let all = grown.last().map_or(0.0, |(_, count)| *count);
    grown.iter().find(|(_, count)| *count >= all).map_or(0.0, |(le, _)| *le)
}

/// How often each way has its turn: as often as `--cycles=` says.
pub(super) fn cycles() -> usize {
    let asked = std::env::args().find_map(|argument| argument.strip_prefix("--cycles=")?.parse().ok());
    asked.unwrap_or(if is_quick() { 1 } else { 6 })
}
