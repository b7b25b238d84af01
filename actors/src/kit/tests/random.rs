//! Random trees under random kills: what should be there is there, what should not is gone, and nothing leaks.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::oneshot;

use super::super::{ChildId, Restart};
use super::*;

/// What grows, as data.
#[derive(Debug, Clone)]
struct Plant {
    id: ChildId,
    /// An index into the behaviours.
    kind: u8,
    restart: Restart,
    to: Ref<Order>,
    fixed: Vec<Plant>,
    /// Started after `init`.
    grown: Vec<Plant>,
}

enum Order {
    Grow,
    Panic,
    Stop,
    Fail,
    StopChild(ChildId),
    KillChild(ChildId),
    StartChild(ChildId),
    /// Which children it expects to have: `Ctx` and its own record must agree on it.
    Tell(oneshot::Sender<BTreeSet<ChildId>>),
}

crate::named!(Order: Grow, Panic, Stop, Fail, StopChild, KillChild, StartChild, Tell);

const MANY: Intensity = Intensity { restarts: 100_000, within: Duration::from_mins(1) };
const FEW: Intensity = Intensity { restarts: 3, within: Duration::from_mins(10) };

/// Bit 0: rest for one. Bit 1: few restarts. Bit 2: parks.
struct Growing<const K: u8> {
    plant: Plant,
    /// Started and not told to have ended.
    there: BTreeSet<ChildId>,
    grown: bool,
    /// Whose end is due.
    leaving: BTreeSet<ChildId>,
}

impl Plant {
    fn spec(&self) -> ChildSpec {
        let plant = self.clone();
        let args = move || plant.clone();
        let spec = match self.kind {
            0 => ChildSpec::of::<Growing<0>>(self.id.clone(), &self.to, args),
            1 => ChildSpec::of::<Growing<1>>(self.id.clone(), &self.to, args),
            2 => ChildSpec::of::<Growing<2>>(self.id.clone(), &self.to, args),
            3 => ChildSpec::of::<Growing<3>>(self.id.clone(), &self.to, args),
            _ => ChildSpec::of::<Growing<6>>(self.id.clone(), &self.to, args),
        };
        spec.restart(self.restart)
    }

    fn random(rng: &mut StdRng, id: String, depth: u32, kinds: &[u8]) -> Self {
        let kind = kinds[rng.random_range(0..kinds.len())];
        let restart = [Restart::Permanent, Restart::Transient, Restart::Temporary][rng.random_range(0..3)];
        let mut below = |prefix: &str, most: u32| -> Vec<Plant> {
            let count = if depth == 0 { 0 } else { rng.random_range(0..=most) };
            (0..count).map(|n| Self::random(rng, format!("{prefix}{n}"), depth - 1, kinds)).collect()
        };
        let (fixed, grown) = (below("f", 3), below("g", 3));
        Self { to: Ref::new(id.as_str()), id: id.into(), kind, restart, fixed, grown }
    }

    fn all<'a>(&'a self, into: &mut Vec<&'a Plant>) {
        into.push(self);
        for child in self.fixed.iter().chain(&self.grown) {
            child.all(into);
        }
    }
}

impl<const K: u8> Growing<K> {
    fn start(&mut self, child: &Plant, ctx: &mut Ctx<Order>) {
        assert_eq!(ctx.start(child.spec()), self.there.insert(child.id.clone()), "a start fails if its id is taken");
    }
}

impl<const K: u8> Behavior for Growing<K> {
    const KIND: &'static str = "growing";
    type Msg = Order;
    type Args = Plant;

    fn init(plant: Plant, ctx: &mut Ctx<Order>) -> Result<Self, InitError> {
        let mut this = Self { plant: plant.clone(), there: BTreeSet::new(), grown: false, leaving: BTreeSet::new() };
        for child in &plant.fixed {
            this.start(child, ctx);
        }
        ctx.cast_self(Order::Grow);
        Ok(this)
    }

    fn handle(&mut self, message: Order, ctx: &mut Ctx<Order>) {
        let plant = self.plant.clone();
        match message {
            Order::Grow => {
                plant.grown.iter().for_each(|child| self.start(child, ctx));
                self.grown = true;
            }
            Order::Panic => panic!("ordered"),
            Order::Stop => ctx.stop(),
            Order::Fail => ctx.fail("ordered"),
            Order::StopChild(id) => {
                self.leaving.insert(id.clone());
                ctx.stop_child(&id);
            }
            Order::KillChild(id) => {
                self.leaving.insert(id.clone());
                ctx.kill_child(&id);
            }
            Order::StartChild(id) => {
                if let Some(child) = plant.fixed.iter().chain(&plant.grown).find(|child| child.id == id)
                    && self.grown
                    && ctx.start(child.spec())
                {
                    self.leaving.remove(&id);
                    self.there.insert(id);
                }
            }
            // A message can come before what `init` sends to itself: the reference is filled earlier.
            Order::Tell(answer) if !self.grown => ctx.cast_self(Order::Tell(answer)),
            Order::Tell(answer) => {
                assert_eq!(ctx.child_count(), self.there.len());
                assert!(self.there.iter().all(|id| ctx.has_child(id)));
                drop(answer.send(self.there.clone()));
            }
        }
    }

    fn child_ended(&mut self, end: ChildEnd, _: &mut Ctx<Order>) {
        assert!(self.there.remove(&end.id), "{} ended twice", end.id);
        let asked = self.leaving.remove(&end.id);
        let child = self.plant.fixed.iter().chain(&self.plant.grown).find(|child| child.id == end.id).expect("ours");
        match end.exit {
            Exit::Asked => assert!(asked || (K & 1 == 1 && child.restart == Restart::Temporary), "unasked: {end:?}"),
            Exit::Normal => assert_ne!(child.restart, Restart::Permanent),
            Exit::Failed(_) | Exit::Killed => assert_eq!(child.restart, Restart::Temporary),
            Exit::GaveUp(_) => assert!(K & 4 == 4, "only who parks hears of it"),
            Exit::Abandoned => panic!("nobody is stuck here"),
        }
    }

    fn supervision() -> Supervision {
        Supervision {
            strategy: if K & 1 == 1 { Strategy::RestForOne } else { Strategy::OneForOne },
            intensity: if K & 2 == 2 { FEW } else { MANY },
            overflow: if K & 4 == 4 { Overflow::Park } else { Overflow::Escalate },
        }
    }
}

/// What runs according to the actors themselves, from the top: paths. `None` while somebody does not answer.
async fn told(plant: &Plant, path: String) -> Option<BTreeSet<String>> {
    let (answer, heard) = oneshot::channel();
    plant.to.cast(Order::Tell(answer)).ok()?;
    let there = tokio::time::timeout(Duration::from_secs(5), heard).await.ok()?.ok()?;
    let mut paths = BTreeSet::new();
    for child in plant.fixed.iter().chain(&plant.grown).filter(|child| there.contains(&child.id)) {
        paths.extend(Box::pin(told(child, format!("{path}/{}", child.id))).await?);
    }
    paths.insert(path);
    Some(paths)
}

/// What runs according to the registry.
fn listed(env: &Env) -> BTreeSet<String> {
    let all = env.registry.all();
    all.iter().filter(|stat| stat.status().as_str() == "running").map(|stat| stat.path().to_string()).collect()
}

async fn disturb(rng: &mut StdRng, plants: &[&Plant], times: usize) {
    for _ in 0..times {
        // Not the root: its end is the end of the tree.
        let victim = plants[rng.random_range(1..plants.len())];
        let child = victim.fixed.iter().chain(&victim.grown).map(|child| child.id.clone()).next_back();
        match (rng.random_range(0..8), child) {
            (0 | 1, _) => victim.to.kill(),
            (2, _) => victim.to.cast_or_drop(Order::Panic),
            (3, _) => victim.to.cast_or_drop(Order::Fail),
            (4, _) => victim.to.cast_or_drop(Order::Stop),
            (5, Some(child)) => victim.to.cast_or_drop(Order::StopChild(child)),
            (6, Some(child)) => victim.to.cast_or_drop(Order::KillChild(child)),
            (7, Some(child)) => victim.to.cast_or_drop(Order::StartChild(child)),
            _ => {}
        }
        if rng.random_ratio(1, 3) {
            tokio::task::yield_now().await;
        }
    }
}

/// Waits until the actors and the registry agree and nobody is on the way. False if the tree has ended.
async fn quiet(seed: u64, env: &Env, root: &mut Root, plant: &Plant) -> bool {
    let mut last = (None, BTreeSet::new());
    for _ in 0..5_000 {
        if let Ok(exit) = tokio::time::timeout(Duration::from_millis(1), root.ended()).await {
            assert!(matches!(exit, Exit::Failed(_)), "seed {seed}: nobody touched the root: {exit:?}");
            return false;
        }
        let on_the_way =
            env.registry.all().iter().any(|stat| matches!(stat.status().as_str(), "restarting" | "stopping"));
        last = (told(plant, format!("/{}", plant.id)).await, listed(env));
        if !on_the_way && last.0.as_ref() == Some(&last.1) {
            return true;
        }
    }
    panic!("seed {seed}: the actors say {:?}, the registry {:?}", last.0, last.1);
}

async fn play(seed: u64, kinds: &[u8]) -> bool {
    let handle = tokio::runtime::Handle::current();
    let tasks = handle.metrics().num_alive_tasks();
    let mut rng = StdRng::seed_from_u64(seed);
    let mut plant = Plant::random(&mut rng, "r".into(), 3, kinds);
    plant.fixed.push(Plant { restart: Restart::Permanent, ..Plant::random(&mut rng, "f9".into(), 2, kinds) });
    // With few restarts, some trees end as a whole.
    let doomed = kinds.contains(&2) && seed.is_multiple_of(4);
    if doomed {
        plant.kind = 2;
    }
    let mut plants = Vec::new();
    plant.all(&mut plants);
    let env = Env::new(Clock::System);
    let mut root = Root::start(&env, plant.spec());
    let mut lives = quiet(seed, &env, &mut root, &plant).await;
    assert!(lives);
    assert_eq!(listed(&env).len(), plants.len(), "seed {seed}: all were started");
    for _ in 0..4 {
        let times = rng.random_range(1..20);
        disturb(&mut rng, &plants, times).await;
        if doomed {
            disturb(&mut rng, &[&plant, &plant.fixed[plant.fixed.len() - 1]], times).await;
        }
        lives = quiet(seed, &env, &mut root, &plant).await;
        if !lives {
            break;
        }
        always_there(seed, &env, &plant, kinds);
    }
    if rng.random_ratio(1, 2) {
        disturb(&mut rng, &plants, 10).await;
    }
    assert!(root.stop_within(Duration::from_secs(20)).await, "seed {seed}");
    let abandoned: u64 = env.registry.totals().iter().map(|(_, totals)| totals.abandoned).sum();
    assert_eq!(abandoned, 0, "seed {seed}");
    eventually("no place is left", || env.registry.is_empty()).await;
    eventually("no task is left", || handle.metrics().num_alive_tasks() == tasks).await;
    assert!(plants.iter().all(|plant| !plant.to.is_up()), "seed {seed}: no reference is left filled");
    lives
}

/// Whom nobody could stop for good: fixed permanent children that no order names, below parents of the same sort.
fn always_there(seed: u64, env: &Env, plant: &Plant, kinds: &[u8]) {
    if kinds.iter().any(|kind| kind & 4 == 4) {
        return;
    }
    let mut pending = vec![(plant, format!("/{}", plant.id))];
    while let Some((parent, path)) = pending.pop() {
        let named = parent.fixed.iter().chain(&parent.grown).map(|child| child.id.clone()).next_back();
        for child in &parent.fixed {
            if child.restart == Restart::Permanent && Some(&child.id) != named.as_ref() {
                let path = format!("{path}/{}", child.id);
                assert!(env.registry.get(&path).is_some(), "seed {seed}: {path} is missing");
                pending.push((child, path));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_trees_under_random_kills_end_with_the_expected_children_and_no_leak() {
    for seed in 0..60 {
        assert!(play(seed, &[0, 1]).await, "seed {seed}: with so many restarts allowed nobody gives up");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_trees_that_give_up_or_park_leave_no_leak_either() {
    let mut ended = 0;
    for seed in 1_000..1_060 {
        ended += u32::from(!play(seed, &[0, 1, 2, 3, 6]).await);
    }
    assert!(ended > 0, "some tree gave up as a whole");
}
