//! What stuck operations and swallowed probes leave behind: threads, descriptors, memory, tasks.

use std::time::{Duration, Instant};

use egress_actors::domain::plan::Settings;
use egress_actors::domain::status::Phase;
use egress_actors::proxy::Deadlines;
use egress_actors::testkit::world::{Mood, Path, Plan, World, external, managed};

use crate::measure::{Section, Trouble, is_quick, resident, row, say, threads_and_descriptors};

/// A round: as many operations cut at their deadline as there are Proxies.
const ROUNDS: usize = 1_000;
const QUICK_ROUNDS: usize = 100;
const WARM_UP: usize = 100;
const PROXIES: usize = 20;

const DEADLINE: Duration = Duration::from_millis(5);
const WITHIN: Duration = Duration::from_secs(600);

struct Weighed {
    threads: usize,
    descriptors: usize,
    memory: u64,
    tasks: usize,
    actors: usize,
    queued: usize,
}

pub async fn measure(section: &mut Section) -> Result<(), Trouble> {
    let world = World::start_with(&Plan {
        deadlines: Deadlines { get: DEADLINE, create: DEADLINE, delete: DEADLINE },
        life: Settings {
            list_interval: Duration::from_millis(100),
            retry: (Duration::from_millis(1), Duration::from_millis(10)),
            poll: (Duration::from_millis(1), Duration::from_millis(10)),
            ..Settings::default()
        },
        ..Plan::default()
    });
    world.host("hv1").set(Mood::Works(Duration::ZERO));
    for n in 0..PROXIES {
        let mut bought = external(&format!("bought-{n}"), &format!("b{n}.bad.example"));
        (bought.check.interval, bought.check.timeout) = (Duration::from_millis(20), DEADLINE);
        world.store.apply(bought);
    }
    rounds(&world, WARM_UP).await?;
    let before = at_rest(&world).await?;
    let (cut, probed) = (calls(&world), world.prober.probes());
    let count = if is_quick() { QUICK_ROUNDS } else { ROUNDS };
    rounds(&world, count).await?;
    let (cut, probed) = (calls(&world) - cut, world.prober.probes() - probed);
    let after = at_rest(&world).await?;
    if !world.stop().await {
        return Err("the operator did not stop in order".into());
    }

    section.paragraph(&format!(
        "Afterwards: {count} rounds in which {PROXIES} operations on a host that never answers are cut at a deadline of \
         {} ms, with {PROXIES} Proxies swallowing their probes meanwhile ({cut} calls and {probed} probes). Compared are \
         two moments of rest, after {WARM_UP} rounds and after {count} more.",
        DEADLINE.as_millis()
    ));
    let mut rows = vec![row([&"at rest", &"before", &"after"])];
    let mib = |bytes: u64| format!("{:.1}", to_f64(bytes) / 1024.0 / 1024.0);
    rows.push(row([&"threads", &before.threads, &after.threads]));
    rows.push(row([&"descriptors", &before.descriptors, &after.descriptors]));
    rows.push(row([&"memory, MiB", &mib(before.memory), &mib(after.memory)]));
    rows.push(row([&"tasks", &before.tasks, &after.tasks]));
    rows.push(row([&"actors", &before.actors, &after.actors]));
    rows.push(row([&"messages queued", &before.queued, &after.queued]));
    section.table(&rows);
    let grown = |before: usize, after: usize| to_f64(after.saturating_sub(before) as u64);
    section.result(
        "isolation",
        "flat",
        &[
            ("rounds", to_f64(count as u64)),
            ("threads_delta", grown(before.threads, after.threads)),
            ("fds_delta", grown(before.descriptors, after.descriptors)),
            ("rss_delta_mib", to_f64(after.memory.saturating_sub(before.memory)) / 1024.0 / 1024.0),
            ("tasks_delta", grown(before.tasks, after.tasks)),
            ("actors_delta", grown(before.actors, after.actors)),
            ("queued_delta", grown(before.queued, after.queued)),
        ],
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

fn calls(world: &World) -> usize {
    ["get", "create", "delete"].iter().map(|kind| world.host("hv1").all_calls(kind)).sum()
}

/// Proxies are wanted on a host that never answers, until so many of their operations were cut.
async fn rounds(world: &World, count: usize) -> Result<(), Trouble> {
    world.host("hv1").set(Mood::Hangs);
    world.prober.set(".bad.example", Path::Swallows);
    let (limit, target) = (Instant::now() + WITHIN, calls(world) + count * PROXIES);
    for n in 0..PROXIES {
        world.store.apply(managed(&format!("px-{n}"), "lab"));
    }
    let mut told = Instant::now();
    while calls(world) < target {
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            say(&format!("  flat: {} operations to go", target - calls(world)));
        }
        if Instant::now() > limit {
            return Err(format!("{count} rounds took longer than {WITHIN:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Lets the host answer again, until all that was wanted is there, and gone again; then looks at what is left.
async fn at_rest(world: &World) -> Result<Weighed, Trouble> {
    world.host("hv1").set(Mood::Works(Duration::ZERO));
    world.prober.set(".bad.example", Path::Open);
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        let limit = Instant::now() + WITHIN;
        while !holds() {
            if Instant::now() > limit {
                return Err(Trouble::from(format!("not within {WITHIN:?}: {what}")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    until("all Proxies are Ready", &|| world.store.count_in(Phase::Ready) == 2 * PROXIES).await?;
    for n in 0..PROXIES {
        world.store.delete(&format!("px-{n}"));
    }
    until("the deleted ones are gone", &|| world.store.len() == PROXIES).await?;
    world.forget_the_past();
    // Time for the allocator to give back what it does not need.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let env = &world.handles.env;
    let mut weighed = look(tasks(), env)?;
    // A probe or a list may be under way in any one look.
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let look = look(tasks(), env)?;
        weighed = Weighed {
            threads: weighed.threads.min(look.threads),
            descriptors: weighed.descriptors.min(look.descriptors),
            memory: weighed.memory.min(look.memory),
            tasks: weighed.tasks.min(look.tasks),
            actors: weighed.actors.min(look.actors),
            queued: weighed.queued.min(look.queued),
        };
    }
    Ok(weighed)
}

fn look(tasks: usize, env: &egress_actors::kit::Env) -> Result<Weighed, Trouble> {
    let (threads, descriptors) = threads_and_descriptors()?;
    let queued = env.registry.all().iter().map(|stat| stat.depth()).sum();
    Ok(Weighed { threads, descriptors, memory: resident()?, tasks, actors: env.registry.len(), queued })
}
