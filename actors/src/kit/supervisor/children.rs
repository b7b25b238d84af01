//! The running children of one actor: carries out what the [`Machine`] decides.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use ractor::{ActorCell, ActorId, SupervisionEvent};

use super::machine::{Effect, Machine};
use super::{ChildEnd, ChildId, ChildSpec, Exit, Restart, Strategy, Supervision};
use crate::kit::actor::{Birth, Env};
use crate::kit::reference::Tell;
use crate::kit::stat::{Stat, Status};

/// How long a killed child may take to be gone. A kill takes effect at the next await, and handlers do not await: who
/// needs longer is stuck in a handler.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(2);

/// A child is gone with all that ran below it, or was left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notice {
    id: ChildId,
    /// Of the incarnation.
    number: u64,
    exit: Exit,
}

/// Reports a child that ends before it has begun: killed at once, or its runtime is gone. ractor tells nobody of that.
#[derive(Debug)]
pub(crate) struct Unborn(Option<(Tell<Notice>, Notice)>);

impl Unborn {
    /// Of the root, whose end nobody waits for.
    pub(crate) fn untold() -> Self {
        Self(None)
    }

    /// From now on ractor reports its end.
    pub(crate) fn begins(mut self) {
        self.0 = None;
    }
}

impl Drop for Unborn {
    fn drop(&mut self) {
        if let Some((notify, notice)) = self.0.take() {
            notify.send(notice);
        }
    }
}

#[derive(Debug)]
struct Place {
    spec: ChildSpec,
    stat: Arc<Stat>,
    /// Stopped in its turn when the parent ends, not together with the others.
    in_order: bool,
    started: bool,
    live: Option<ActorCell>,
}

#[derive(Debug)]
pub(crate) struct Children {
    parent: ActorCell,
    /// The parent's own.
    stat: Arc<Stat>,
    env: Arc<Env>,
    notify: Tell<Notice>,
    strategy: Strategy,
    machine: Machine,
    /// Boxed: a table has room for twice as many, and there are thousands.
    places: HashMap<ChildId, Box<Place>>,
    by_actor: HashMap<ActorId, ChildId>,
    /// Children that were given up stay in the tree until they are started again or stopped.
    parked: HashMap<ChildId, Arc<Stat>>,
    initializing: bool,
}

/// What came of an exit, for the shell.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) ended: Vec<ChildEnd>,
    pub(crate) give_up: Option<String>,
}

impl Children {
    pub(crate) fn new(
        parent: ActorCell,
        stat: Arc<Stat>,
        env: Arc<Env>,
        supervision: Supervision,
        notify: Tell<Notice>,
    ) -> Self {
        Self {
            parent,
            stat,
            env,
            notify,
            strategy: supervision.strategy,
            machine: Machine::new(supervision),
            places: HashMap::new(),
            by_actor: HashMap::new(),
            parked: HashMap::new(),
            initializing: true,
        }
    }

    /// The parent's `init` is over: what it starts from now on is dynamic.
    pub(crate) fn initialized(&mut self) {
        self.initializing = false;
    }

    /// Starts a child. False if one of its id is there already, or the parent itself was left behind.
    pub(crate) fn start(&mut self, spec: ChildSpec) -> bool {
        if self.machine.knows(&spec.id) || self.stat.is_retired() {
            return false;
        }
        let id = spec.id.clone();
        let stat = if let Some(parked) = self.parked.remove(&id) {
            self.env.registry.wake(&parked, spec.kind, spec.names)
        } else {
            let path: Arc<str> = format!("{}/{id}", self.stat.path()).into();
            self.env.registry.place(path, &self.stat, spec.kind, spec.names)
        };
        // It may have to wait for its turn.
        stat.set_status(Status::Restarting);
        let restart = spec.restart;
        let in_order = restart != Restart::Temporary && (self.initializing || self.strategy == Strategy::RestForOne);
        self.places.insert(id.clone(), Box::new(Place { spec, stat, in_order, started: false, live: None }));
        self.stat.set_has_children(true);
        let effects = self.machine.start(id, restart);
        self.perform(effects);
        true
    }

    /// Shows a parked child in the tree, where its parent keeps the count of its crashes itself. Nothing happens if it runs.
    pub(crate) fn mark_parked(&mut self, id: &ChildId, kind: &'static str) {
        if self.machine.knows(id) || self.stat.is_retired() {
            return;
        }
        let stat = if let Some(parked) = self.parked.remove(id) {
            parked
        } else {
            let path: Arc<str> = format!("{}/{id}", self.stat.path()).into();
            self.env.registry.place(path, &self.stat, kind, &[])
        };
        stat.set_status(Status::Parked);
        self.parked.insert(id.clone(), stat);
        self.stat.set_has_children(true);
    }

    /// Stops a child for good; its end is told. A parked one, whose end was told, leaves the tree.
    pub(crate) fn stop(&mut self, id: &ChildId) -> Outcome {
        if let Some(parked) = self.parked.remove(id) {
            self.env.registry.remove(&parked);
        }
        let effects = self.machine.stop(id);
        self.perform(effects)
    }

    /// Kills a child for good, without giving it time.
    pub(crate) fn kill(&mut self, id: &ChildId) -> Outcome {
        let outcome = self.stop(id);
        self.end(id, Duration::ZERO);
        outcome
    }

    pub(crate) fn contains(&self, id: &ChildId) -> bool {
        self.machine.knows(id)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// What ractor reports of a child.
    pub(crate) fn observe(&mut self, event: SupervisionEvent) -> Outcome {
        let (cell, exit) = match event {
            SupervisionEvent::ActorTerminated(cell, state, reason) => {
                // What a killed child left; its successor must not find it still there.
                drop(state);
                // A killed child reports like one that ended by itself; that there is a reason is the only trace of it
                // (the kill itself, or that its task was cancelled), as our stops give none.
                (cell, if reason.is_none() { Exit::Normal } else { Exit::Killed })
            }
            SupervisionEvent::ActorFailed(cell, error) => (cell, Exit::Failed(error.to_string())),
            _ => return Outcome::default(),
        };
        // An incarnation that we already replaced or left behind is no news.
        let Some((id, place)) = self.by_actor.get(&cell.get_id()).and_then(|id| self.places.get_key_value(id)) else {
            return Outcome::default();
        };
        let notice = Notice { id: id.clone(), number: place.stat.number(), exit };
        if !place.stat.has_children() {
            return self.noticed(notice);
        }
        // It was killed, or panicked: those below it are dying, and one of them may be in the middle of starting
        // another. A successor that began now would meet them.
        (place.spec.clear)(&cell);
        place.stat.fell(Status::Restarting);
        let (env, stat, notify) = (self.env.clone(), place.stat.clone(), self.notify.clone());
        tokio::spawn(async move {
            sweep(&env, &stat).await;
            notify.send(notice);
        });
        Outcome::default()
    }

    /// A child is gone.
    pub(crate) fn noticed(&mut self, notice: Notice) -> Outcome {
        let Notice { id, number, exit } = notice;
        // The same end may be reported twice, by ractor and by one of our tasks.
        let current = self.places.get_mut(&id).filter(|place| place.stat.number() == number);
        let Some((place, cell)) = current.and_then(|place| place.live.take().map(|cell| (place, cell))) else {
            return Outcome::default();
        };
        self.by_actor.remove(&cell.get_id());
        place.stat.fell(Status::Restarting);
        (place.spec.clear)(&cell);
        let parent = self.stat.path();
        match &exit {
            Exit::Failed(why) => tracing::error!(child = %id, %parent, error = %why, "actor failed"),
            Exit::Killed => tracing::warn!(child = %id, %parent, "actor killed"),
            Exit::Normal | Exit::Asked | Exit::Abandoned | Exit::GaveUp(_) => {}
        }
        let effects = self.machine.exited(&id, exit, tokio::time::Instant::now().into_std());
        self.perform(effects)
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Outcome {
        let mut outcome = Outcome::default();
        for effect in effects {
            match effect {
                Effect::Start(id) => self.spawn(&id),
                Effect::Stop(id) => {
                    let limit = self.places.get(&id).map_or(Duration::ZERO, |place| place.spec.stop_within);
                    self.end(&id, limit);
                }
                Effect::Ended(end) => {
                    if let Some(place) = self.places.remove(&end.id) {
                        if matches!(end.exit, Exit::GaveUp(_)) {
                            place.stat.set_status(Status::Parked);
                            self.parked.insert(end.id.clone(), place.stat);
                        } else {
                            self.env.registry.remove(&place.stat);
                        }
                    }
                    outcome.ended.push(end);
                }
                Effect::GiveUp(why) => outcome.give_up = Some(why),
            }
        }
        self.stat.set_has_children(!(self.places.is_empty() && self.parked.is_empty()));
        outcome
    }

    fn spawn(&mut self, id: &ChildId) {
        let Some(place) = self.places.get_mut(id) else { return };
        if self.stat.is_retired() {
            return;
        }
        if std::mem::replace(&mut place.started, true) {
            self.env.registry.counters(place.spec.kind).restarts.fetch_add(1, Relaxed);
            place.stat = self.env.registry.succeed(&place.stat);
        } else {
            place.stat.set_status(Status::Running);
        }
        let notice = Notice { id: id.clone(), number: place.stat.number(), exit: Exit::Killed };
        let birth = Birth {
            parent: Some(self.parent.clone()),
            env: self.env.clone(),
            stat: place.stat.clone(),
            unborn: Unborn(Some((self.notify.clone(), notice))),
        };
        // What the start of a temporary child holds, its first arguments for example, goes with it.
        let temporary = place.spec.restart == Restart::Temporary;
        let start = if temporary { place.spec.start.take() } else { place.spec.start.clone() };
        let Some(start) = start else { return };
        let cell = {
            let _on = place.spec.runtime.as_ref().map(tokio::runtime::Handle::enter);
            start(birth)
        };
        place.stat.live(cell.clone());
        self.by_actor.insert(cell.get_id(), id.clone());
        place.live = Some(cell);
    }

    /// Asks it to stop, kills it at the limit, and hears back either way.
    fn end(&mut self, id: &ChildId, limit: Duration) {
        let Some(place) = self.places.get(id) else { return };
        let Some(cell) = place.live.clone() else { return };
        place.stat.set_status(Status::Stopping);
        let (id, env, stat, notify) = (id.clone(), self.env.clone(), place.stat.clone(), self.notify.clone());
        tokio::spawn(async move {
            let gone = stop_or_kill(&env, &cell, &stat, limit).await;
            let exit = if gone { Exit::Normal } else { Exit::Abandoned };
            notify.send(Notice { id, number: stat.number(), exit });
        });
    }

    /// Stops all, from the actor's own end: first those that were started on the way, of which there may be thousands,
    /// together; then the fixed ones in reverse order, each with its limit.
    ///
    /// A child keeps its place until it is gone: if this is dropped half-way (a kill), our `drop` sees to the rest.
    pub(crate) async fn stop_all(&mut self) {
        let alive = self.machine.alive_in_order();
        let (one_by_one, together): (Vec<_>, Vec<_>) =
            alive.into_iter().partition(|id| self.places.get(id).is_some_and(|place| place.in_order));
        futures::future::join_all(together.iter().filter_map(|id| self.asked(id))).await;
        for id in &together {
            self.forget(id);
        }
        for id in one_by_one.iter().rev() {
            if let Some(end) = self.asked(id) {
                end.await;
            }
            self.forget(id);
        }
        self.stat.set_has_children(false);
    }

    fn asked(&self, id: &ChildId) -> Option<impl Future<Output = bool> + use<>> {
        let place = self.places.get(id)?;
        let (cell, stat, limit) = (place.live.clone()?, place.stat.clone(), place.spec.stop_within);
        stat.set_status(Status::Stopping);
        (place.spec.clear)(&cell);
        let env = self.env.clone();
        Some(async move { stop_or_kill(&env, &cell, &stat, limit).await })
    }

    fn forget(&mut self, id: &ChildId) {
        if let Some(place) = self.places.remove(id) {
            self.env.registry.remove(&place.stat);
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // After an orderly stop nothing is left but places that waited for a restart. A parent that panicked or was killed
        // takes its children along, and nobody must go on casting into them; whoever supervises it sweeps up.
        for place in self.places.values() {
            match &place.live {
                Some(cell) => {
                    (place.spec.clear)(cell);
                    cell.kill();
                }
                None => self.env.registry.remove(&place.stat),
            }
        }
        for stat in self.parked.values() {
            self.env.registry.remove(stat);
        }
    }
}

/// True once it is gone, false if it was left behind; nothing runs below it either way.
async fn stop_or_kill(env: &Env, cell: &ActorCell, stat: &Stat, limit: Duration) -> bool {
    if !limit.is_zero() {
        cell.stop(None);
    }
    let gone = (!limit.is_zero() && cell.wait(Some(limit)).await.is_ok()) || kill(env, cell, stat).await;
    if stat.has_children() {
        sweep(env, stat).await;
    }
    gone
}

/// True once it is gone. False if it is stuck in a handler: nobody can end that, so it is counted and left behind.
async fn kill(env: &Env, cell: &ActorCell, stat: &Stat) -> bool {
    cell.kill();
    let gone = cell.wait(Some(KILL_GRACE)).await.is_ok();
    if !gone {
        tracing::error!(actor = %stat.path(), current = ?stat.current(), "actor ignored its kill and was left behind");
        env.registry.counters(stat.kind()).abandoned.fetch_add(1, Relaxed);
    }
    gone
}

/// Ends whatever runs below an actor that did not stop its children itself: it was killed, panicked, or was left behind.
///
/// It looks again until it finds nothing new, as one that is about to die may be starting another. All stay listed until
/// then: a sweep further up, or a late start, is found through them.
pub(crate) async fn sweep(env: &Env, stat: &Stat) {
    let mut swept = HashSet::new();
    loop {
        let below = env.registry.below(stat);
        let found: Vec<_> = below
            .iter()
            .filter_map(|stat| stat.cell().map(|cell| (stat, cell)))
            .filter(|(stat, _)| swept.insert(stat.number()))
            .collect();
        if found.is_empty() {
            for stat in &below {
                env.registry.remove(stat);
            }
            return;
        }
        futures::future::join_all(found.into_iter().map(|(stat, cell)| async move {
            // Else its state would wait in the queue of a parent that is stuck, with all the replies that it owes.
            if let Some(parent) = cell.try_get_supervisor() {
                cell.unlink(parent);
            }
            kill(env, cell, stat).await;
        }))
        .await;
    }
}
