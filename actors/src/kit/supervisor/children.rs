//! The running children of one actor: carries out what the [`Machine`] decides.

use std::collections::HashMap;
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

/// A child whose stop was asked for is gone, or was left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Notice {
    who: ActorId,
    abandoned: bool,
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
    places: HashMap<ChildId, Place>,
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
            self.env.registry.succeed(&parked)
        } else {
            let path: Arc<str> = format!("{}/{id}", self.stat.path()).into();
            self.env.registry.place(Stat::new(path, Some(self.stat.path().clone()), spec.kind, spec.names))
        };
        // It may have to wait for its turn.
        stat.set_status(Status::Restarting);
        let restart = spec.restart;
        let in_order = restart != Restart::Temporary && (self.initializing || self.strategy == Strategy::RestForOne);
        self.places.insert(id.clone(), Place { spec, stat, in_order, started: false, live: None });
        let effects = self.machine.start(id, restart);
        self.perform(effects);
        true
    }

    /// Shows a parked child in the tree, where its parent keeps the count of its crashes itself.
    pub(crate) fn mark_parked(&mut self, id: &ChildId, kind: &'static str) {
        let path: Arc<str> = format!("{}/{id}", self.stat.path()).into();
        let stat = self.env.registry.place(Stat::new(path, Some(self.stat.path().clone()), kind, &[]));
        stat.set_status(Status::Parked);
        self.parked.insert(id.clone(), stat);
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
        match event {
            SupervisionEvent::ActorTerminated(cell, state, reason) => {
                // What a killed child left; its successor must not find it still there.
                drop(state);
                // A killed child reports like one that ended by itself; that there is a reason is the only trace of it
                // (the kill itself, or that its task was cancelled), as our stops give none.
                let exit = if reason.is_none() { Exit::Normal } else { Exit::Killed };
                self.gone(cell.get_id(), exit)
            }
            SupervisionEvent::ActorFailed(cell, error) => self.gone(cell.get_id(), Exit::Failed(error.to_string())),
            _ => Outcome::default(),
        }
    }

    /// What one of our reapers reports.
    pub(crate) fn reaped(&mut self, notice: Notice) -> Outcome {
        // Gone without a report of its own: it was stopped before it had started.
        self.gone(notice.who, if notice.abandoned { Exit::Abandoned } else { Exit::Normal })
    }

    fn gone(&mut self, who: ActorId, exit: Exit) -> Outcome {
        // An incarnation that we already replaced or left behind is no news.
        let Some(id) = self.by_actor.remove(&who) else { return Outcome::default() };
        let parent = self.stat.path();
        if let Some(place) = self.places.get_mut(&id) {
            place.stat.fell(Status::Restarting);
            if let Some(cell) = place.live.take() {
                (place.spec.clear)(&cell);
                if exit == Exit::Abandoned {
                    leave_behind(&self.env, &cell, &place.stat);
                }
            }
        }
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
        let birth = Birth { parent: Some(self.parent.clone()), env: self.env.clone(), stat: place.stat.clone() };
        let cell = {
            let _on = place.spec.runtime.as_ref().map(tokio::runtime::Handle::enter);
            (place.spec.start)(birth)
        };
        self.by_actor.insert(cell.get_id(), id.clone());
        place.live = Some(cell);
    }

    /// Asks it to stop, kills it at the limit, and hears back either way.
    fn end(&mut self, id: &ChildId, limit: Duration) {
        let Some(place) = self.places.get(id) else { return };
        let Some(cell) = place.live.clone() else { return };
        place.stat.set_status(Status::Stopping);
        let notify = self.notify.clone();
        tokio::spawn(async move {
            let who = cell.get_id();
            let abandoned = !stop_or_kill(&cell, limit).await;
            notify.send(Notice { who, abandoned });
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
        let ends = futures::future::join_all(together.iter().filter_map(|id| self.asked(id))).await;
        for (id, gone) in together.iter().zip(ends) {
            self.forget(id, gone);
        }
        for id in one_by_one.iter().rev() {
            if let Some(end) = self.asked(id) {
                let gone = end.await;
                self.forget(id, gone);
            }
        }
    }

    fn asked(&self, id: &ChildId) -> Option<impl Future<Output = bool> + use<>> {
        let place = self.places.get(id)?;
        let (cell, limit) = (place.live.clone()?, place.spec.stop_within);
        place.stat.set_status(Status::Stopping);
        (place.spec.clear)(&cell);
        Some(async move { stop_or_kill(&cell, limit).await })
    }

    fn forget(&mut self, id: &ChildId, gone: bool) {
        let Some(place) = self.places.remove(id) else { return };
        if !gone && let Some(cell) = &place.live {
            leave_behind(&self.env, cell, &place.stat);
        }
        self.env.registry.remove(&place.stat);
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // A parent that failed or was killed takes its children along; nobody must go on casting into them. After an
        // orderly stop nothing is left but places that waited for a restart.
        for place in self.places.values() {
            if let Some(cell) = &place.live {
                (place.spec.clear)(cell);
                cell.kill();
            }
            self.env.registry.remove(&place.stat);
        }
        for stat in self.parked.values() {
            self.env.registry.remove(stat);
        }
    }
}

/// True once it is gone; false if it ignored its kill.
async fn stop_or_kill(cell: &ActorCell, limit: Duration) -> bool {
    if !limit.is_zero() {
        cell.stop(None);
        if cell.wait(Some(limit)).await.is_ok() {
            return true;
        }
    }
    cell.kill();
    cell.wait(Some(KILL_GRACE)).await.is_ok()
}

/// Counts an actor that is stuck in a handler, and ends what runs below it: it cannot do that itself, and its successor
/// is about to start the same again.
fn leave_behind(env: &Env, stuck: &ActorCell, stat: &Stat) {
    tracing::error!(actor = %stat.path(), current = ?stat.current(), "actor ignored its kill and was left behind");
    env.registry.counters(stat.kind()).abandoned.fetch_add(1, Relaxed);
    let mut pending = vec![stuck.clone()];
    while let Some(above) = pending.pop() {
        for child in above.get_children() {
            // Else its state would wait in the queue of the stuck one, with all the replies that it owes.
            child.unlink(above.clone());
            child.kill();
            pending.push(child);
        }
    }
    env.registry.remove_below(stat);
}
