//! Random hours of a fleet that is swept all the time, on a host whose lists lie: what is wanted keeps its very instance, and
//! what nobody wants goes.

use std::time::Duration;

use egress_actors::domain::sweep::Terms;
use egress_actors::sweep::SweepSettings;
use egress_actors::testkit::world::{Lists, Mood, Plan, World, managed};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::{MINUTE, SECOND, fleet, pass};

const STABLE: [&str; 6] = ["stays-0", "stays-1", "stays-2", "stays-3", "stays-4", "stays-5"];
const COMING_AND_GOING: usize = 12;

fn plan() -> Plan {
    let terms = Terms { min_age: Duration::ZERO, max_deletes: 1000, dry_run: false, namespace: None };
    let sweep = SweepSettings { every: 7 * SECOND, terms, delete_within: 20 * SECOND, get_within: 10 * SECOND };
    Plan { sweep: Some(sweep), ..Plan::default() }
}

/// Something that somebody does, or that goes wrong.
fn happen(world: &World, random: &mut StdRng) -> String {
    let host = world.host("hv1");
    let name = format!("px-{}", random.random_range(0..COMING_AND_GOING));
    let exists = world.store.exists(&name);
    match random.random_range(0..12) {
        0..=3 if !exists => {
            world.store.apply(managed(&name, "lab"));
            format!("{name} is made")
        }
        0 | 1 => {
            world.store.delete(&name);
            format!("{name} is deleted")
        }
        2 | 3 => {
            world.store.edit(&name, |desired| desired.annotations.skip_cleanup = true);
            world.store.delete(&name);
            format!("{name} is given up")
        }
        4 | 5 => {
            let lists = [Lists::All, Lists::Late(30 * SECOND), Lists::Nothing, Lists::Half];
            let lists = *lists.choose(random).expect("some");
            host.set_lists(lists);
            format!("lists: {lists:?}")
        }
        6 => {
            host.set_for("create", Mood::Late(random.random_range(1..700) * SECOND));
            "creates come late, and nobody hears of them".to_owned()
        }
        7 => {
            host.set_for("delete", Mood::Late(random.random_range(1..90) * SECOND));
            "deletes come late, and nobody hears of them".to_owned()
        }
        8 => {
            host.set_for("list", Mood::Hangs);
            "lists hang".to_owned()
        }
        9 => {
            host.set(Mood::Works(random.random_range(1..3000) * Duration::from_millis(1)));
            "the host works".to_owned()
        }
        10 => {
            let paths = [
                "/operator/providers/lab/sweep",
                "/operator/providers/lab/host/hv1",
                "/operator/fleet/proxies",
                "/operator/fleet/leases",
                "/operator/providers/lab",
            ];
            let path = paths.choose(random).expect("some");
            world.curse(path, 1);
            format!("{path} panics")
        }
        _ => {
            host.plant(&format!("left-{}", random.random_range(0..5)), "test", "lab", MINUTE);
            "something is left behind".to_owned()
        }
    }
}

#[tokio::test(start_paused = true)]
async fn in_random_hours_no_sweep_takes_what_lives_and_in_the_end_nothing_is_left() {
    for seed in 0..3 {
        let mut random = StdRng::seed_from_u64(seed);
        let world = World::start_with(&plan());
        fleet(&world, &STABLE).await;
        let before: Vec<_> = STABLE.iter().map(|name| world.host("hv1").instance_id(name)).collect();
        let mut story = Vec::new();
        for _ in 0..120 {
            story.push(happen(&world, &mut random));
            pass(random.random_range(1..60) * SECOND).await;
            let now: Vec<_> = STABLE.iter().map(|name| world.host("hv1").instance_id(name)).collect();
            assert_eq!(before, now, "seed {seed}: {story:#?}");
        }
        world.host("hv1").set(Mood::Works(SECOND));
        world.host("hv1").set_lists(Lists::All);
        for n in 0..COMING_AND_GOING {
            world.store.delete(&format!("px-{n}"));
        }
        let left = |world: &World| world.host("hv1").instances().len();
        let limit = tokio::time::Instant::now() + 60 * MINUTE;
        while left(&world) > STABLE.len() {
            assert!(
                tokio::time::Instant::now() < limit,
                "seed {seed}: {:?} are left\n{story:#?}",
                world.host("hv1").instances()
            );
            pass(SECOND).await;
        }
        let now: Vec<_> = STABLE.iter().map(|name| world.host("hv1").instance_id(name)).collect();
        assert_eq!(before, now, "seed {seed}");
        let swept = world.handles.directory.entries()[0].swept.load_full();
        assert!(swept.hosts.values().any(|host| host.ended.is_some()), "seed {seed}: it was swept");
    }
}
