//! What well hosts and their Proxies feel while others stall.
//!
//! In a bad round, a host that holds 500 Proxies stops answering at the beginning of the window, and 250 more are wanted
//! there and 50 unwanted one after the other; and 500 bought Proxies, each a domain of its own, swallow their probes: half
//! of them were well before, half come one after the other. In a good round there are neither. They do not come all in one
//! moment: to take in 500 objects at once costs the cores of a small machine some milliseconds, well or not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use egress_actors::domain::desired::{Attributes, Desired};
use egress_actors::domain::lease_book::Ask;
use egress_actors::domain::plan::Settings;
use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{Mood, Path, Plan, World, external, key, managed};
use tokio::task::JoinSet;

use crate::measure::{Section, Spread, Trouble, cpu_time, is_quick, plain, quantile, row, say, sorted};

const PAIRS: usize = 12;
const QUICK_PAIRS: usize = 2;
const WINDOW: Duration = Duration::from_secs(8);
/// Of the window, in which what is new in a bad round comes one after the other.
const ARRIVAL: Duration = Duration::from_secs(4);

const HOSTS: [&str; 4] = ["hv1", "hv2", "hv3", "hv4"];
/// Proxies on the well hosts that are there all the time.
const RESIDENTS: usize = 40;
/// Chains of "make one, delete it" on the well hosts.
const CHAINS: usize = 8;
const SWALLOWING: usize = 500;
const STUCK: usize = 500;
const WANTED: usize = 250;
const UNWANTED: usize = 50;

/// What a well host takes for an operation, and a well proxy for a probe (`Path::Open`).
const OPERATION: Duration = Duration::from_millis(5);
const PROBE: Duration = Duration::from_millis(5);
const INTERVAL: Duration = Duration::from_millis(50);

const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// What is watched. All in milliseconds.
const KINDS: [(&str, &str); 4] = [
    ("grant", "grant"),
    ("create", "create to Ready"),
    ("delete", "delete to gone"),
    ("probe", "probe after its earliest due time"),
];

pub(crate) type Samples = Arc<Mutex<HashMap<&'static str, Vec<f64>>>>;

pub(crate) fn note(samples: &Samples, kind: &'static str, took: Duration) {
    let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
    samples.entry(kind).or_default().push(took.as_secs_f64() * 1e3);
}

pub async fn measure(section: &mut Section) -> Result<(), Trouble> {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    let pairs = if is_quick() { QUICK_PAIRS } else { PAIRS };
    for pair in 0..pairs {
        for turn in 0..2 {
            let is_bad = (pair + turn) % 2 == 1;
            let spent = cpu_time();
            let seen = round(is_bad).await?;
            let spent = cpu_time() - spent;
            let told: Vec<_> = KINDS.iter().map(|(kind, _)| format!("{kind} {:.2}", seen[kind].1)).collect();
            let kind = if is_bad { "bad" } else { "good" };
            say(&format!("  round {} {kind}: p99 ms: {}; {spent:.2?} of CPU", pair + 1, told.join(", ")));
            if is_bad { bad.push(seen) } else { good.push(seen) }
        }
    }
    section.paragraph(&format!(
        "{RESIDENTS} Proxies on {} hosts, probed every {} ms, with {CHAINS} more being made and deleted all the time and \
         a grant every millisecond. In the bad rounds, from the first moment of the window of {} s, another host with \
         {STUCK} Proxies answers nothing ({WANTED} more are wanted there, {UNWANTED} unwanted) and {SWALLOWING} bought \
         Proxies, each on a host of its own, swallow their probes: half of them were well until then, half are new. What \
         is new comes one after the other, over {} s. In the good rounds there is none of that. \
         {pairs} pairs of rounds in changing order, the usual 64 probe slots. The ratio is the median of the p99 of the \
         bad rounds over that of the good ones; beside it where the good rounds themselves lie around their median.",
        HOSTS.len(), INTERVAL.as_millis(), WINDOW.as_secs(), ARRIVAL.as_secs(),
    ));
    let mut rows = vec![row([&"p99, ms", &"good", &"bad", &"ratio", &"good rounds lie within", &"samples a round"])];
    for (kind, title) in KINDS {
        let good_p99 = Spread::of(good.iter().map(|seen: &Seen| seen[kind].1));
        let bad_p99 = Spread::of(bad.iter().map(|seen| seen[kind].1));
        let good_p50 = Spread::of(good.iter().map(|seen| seen[kind].0)).median;
        let bad_p50 = Spread::of(bad.iter().map(|seen| seen[kind].0)).median;
        let least = good.iter().map(|seen| seen[kind].1).fold(f64::INFINITY, f64::min);
        let ratio = bad_p99.median / good_p99.median;
        let (low, high) = (least / good_p99.median, good_p99.worst / good_p99.median);
        rows.push(row([
            &title,
            &format!("{:.2}", good_p99.median),
            &format!("{:.2}", bad_p99.median),
            &format!("{ratio:.2}"),
            &format!("{low:.2} to {high:.2}"),
            &plain(Spread::of(good.iter().map(|seen| seen[kind].2)).median),
        ]));
        section.result(
            "isolation",
            kind,
            &[
                ("p99_ratio", ratio),
                ("good_low_ratio", low),
                ("good_high_ratio", high),
                ("good_p99_ms", good_p99.median),
                ("bad_p99_ms", bad_p99.median),
                ("p50_ratio", bad_p50 / good_p50),
            ],
        );
    }
    section.table(&rows);
    Ok(())
}

/// p50, p99 and number of samples of each kind.
type Seen = HashMap<&'static str, (f64, f64, f64)>;

async fn round(bad: bool) -> Result<Seen, Trouble> {
    let plan = Plan {
        entries: vec![("lab", HOSTS.map(|host| (host, None)).to_vec()), ("swamp", vec![("bog", None)])],
        life: Settings {
            list_interval: Duration::from_secs(1),
            poll: (Duration::from_millis(10), Duration::from_secs(1)),
            ..Settings::default()
        },
        ..Plan::default()
    };
    let world = Arc::new(World::start_with(&plan));
    for host in HOSTS.iter().chain(&["bog"]) {
        world.host(host).set(Mood::Works(if *host == "bog" { Duration::ZERO } else { OPERATION }));
    }
    for n in 0..RESIDENTS {
        world.store.apply(resident(&format!("px-{n}")));
    }
    let mut present = RESIDENTS;
    if bad {
        for n in 0..STUCK {
            world.store.apply(managed(&format!("stuck-{n}"), "swamp"));
        }
        for n in 0..SWALLOWING / 2 {
            world.store.apply(bought(n));
        }
        present += STUCK + SWALLOWING / 2;
    }
    until(&world, "all Proxies are Ready", |world| world.store.count_in(Phase::Ready) == present).await?;

    let samples = Samples::default();
    let began = tokio::time::Instant::now();
    let stop = Instant::now() + WINDOW;
    let mut work = JoinSet::new();
    if bad {
        world.host("bog").set(Mood::Hangs);
        world.prober.set(".bog", Path::Swallows);
        world.prober.set(".bad.example", Path::Swallows);
        work.spawn(arrivals(world.clone()));
    }
    for chain in 0..CHAINS {
        work.spawn(make_and_delete(world.clone(), samples.clone(), chain, stop));
    }
    work.spawn(grants(world.clone(), samples.clone(), stop));
    while let Some(ended) = work.join_next().await {
        ended??;
    }
    note_probes(&world, &samples, began);
    let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    // What hangs would hold an orderly end up to its limit.
    world.host("bog").set(Mood::Works(Duration::ZERO));
    let world = Arc::into_inner(world).ok_or("somebody still holds the world")?;
    if !world.stop().await {
        return Err("the operator did not stop in order".into());
    }
    let mut seen = Seen::new();
    for (kind, _) in KINDS {
        let all = sorted(samples.get(kind).cloned().unwrap_or_default());
        if all.len() < 20 {
            return Err(format!("only {} samples of {kind}", all.len()).into());
        }
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let count = all.len() as f64;
        seen.insert(kind, (quantile(&all, 0.5), quantile(&all, 0.99), count));
    }
    Ok(seen)
}

fn resident(name: &str) -> Desired {
    let mut desired = managed(name, "lab");
    desired.check.interval = INTERVAL;
    desired.check.timeout = INTERVAL;
    desired.attributes = Arc::new(Attributes::from_iter([("tier".into(), "lab".into())]));
    desired
}

/// Their probes come due one after the other from two seconds on, as those of a fleet that runs for a while.
fn bought(n: usize) -> Desired {
    let mut desired = external(&format!("bought-{n}"), &format!("b{n}.bad.example"));
    desired.check.interval = Duration::from_secs(2) + Duration::from_millis(56) * u32::try_from(n).unwrap_or(0);
    desired.check.timeout = desired.check.timeout.min(desired.check.interval);
    desired
}

pub(crate) async fn until(world: &World, what: &str, holds: impl Fn(&World) -> bool) -> Result<(), Trouble> {
    let limit = Instant::now() + SETTLED_WITHIN;
    while !holds(world) {
        if Instant::now() > limit {
            return Err(format!("not within {SETTLED_WITHIN:?}: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Lateness of the probes on the well hosts, against the earliest moment that the jitter allows. What the jitter adds is
/// in the good rounds and the bad ones alike.
fn note_probes(world: &World, samples: &Samples, since: tokio::time::Instant) {
    let mut latest = HashMap::new();
    for look in HOSTS.iter().flat_map(|host| world.prober.looks(&format!(".{host}"))).filter(|look| look.at >= since) {
        if let Some(before) = latest.insert(look.host, look.at) {
            note(samples, "probe", (look.at - before).saturating_sub(PROBE + INTERVAL.mul_f64(0.9)));
        }
    }
}

async fn arrivals(world: Arc<World>) -> Result<(), Trouble> {
    let mut ticks = tokio::time::interval(ARRIVAL / u32::try_from(WANTED)?);
    for n in 0..WANTED {
        ticks.tick().await;
        world.store.apply(managed(&format!("wanted-{n}"), "swamp"));
        if n < SWALLOWING / 2 {
            world.store.apply(bought(SWALLOWING / 2 + n));
        }
        if n < UNWANTED {
            world.store.delete(&format!("stuck-{n}"));
        }
    }
    Ok(())
}

async fn make_and_delete(world: Arc<World>, samples: Samples, chain: usize, stop: Instant) -> Result<(), Trouble> {
    for n in 0.. {
        if Instant::now() >= stop {
            break;
        }
        let name = format!("fresh-{chain}-{n}");
        let began = Instant::now();
        world.store.apply(resident(&name));
        until(&world, "a fresh Proxy is Ready", |world| is_ready(world, &name)).await?;
        note(&samples, "create", began.elapsed());
        let began = Instant::now();
        world.store.delete(&name);
        until(&world, "a deleted Proxy is gone", |world| !world.store.exists(&name)).await?;
        note(&samples, "delete", began.elapsed());
    }
    Ok(())
}

/// As the lease API and the admin endpoint see it: what is written on the object waits half a second for what comes after.
pub(crate) fn is_ready(world: &World, name: &str) -> bool {
    world.handles.board.get(&key(name)).is_some_and(|view| view.status.phase == Phase::Ready)
}

pub(crate) async fn grants(world: Arc<World>, samples: Samples, stop: Instant) -> Result<(), Trouble> {
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    while Instant::now() < stop {
        ticks.tick().await;
        let ask = Ask {
            selectors: vec![Attributes::from_iter([("tier".into(), "lab".into())])],
            target: None,
            ttl: Duration::from_secs(60),
            owner: None,
            token: "bench".into(),
            exclude: Vec::new(),
            count: 1,
            partial: false,
        };
        let began = Instant::now();
        let granted = world.handles.leases.acquire(ask).await.map_err(|error| format!("{error:?}"))?;
        note(&samples, "grant", began.elapsed());
        let granted = granted.map_err(|refused| format!("no grant: {refused:?}"))?;
        for lease in granted.leases {
            world.handles.leases.release(lease.id).await.map_err(|error| format!("{error:?}"))?;
        }
    }
    Ok(())
}
