//! The running children of one actor: carries out what the [`Machine`] decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, ActorId, SupervisionEvent};

use super::machine::{Effect, Machine};
use super::{ChildEnd, ChildId, ChildSpec, Exit, Restart, Supervision};
use crate::kit::actor::{Birth, Env};
use crate::kit::reference::Tell;
use crate::kit::stat::{Stat, Status};

/// How long a killed child may take to be gone. A kill takes effect at the next await, and handlers do not await: who
/// needs longer is stuck in a handler.
const KILL_GRACE: Duration = Duration::from_secs(2);

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
    live: Option<ActorCell>,
}

#[derive(Debug)]
pub(crate) struct Children {
    parent: ActorCell,
    path: Arc<str>,
    env: Arc<Env>,
    notify: Tell<Notice>,
    machine: Machine,
    places: HashMap<ChildId, Place>,
    by_actor: HashMap<ActorId, ChildId>,
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
        path: Arc<str>,
        env: Arc<Env>,
        supervision: Supervision,
        notify: Tell<Notice>,
    ) -> Self {
        Self {
            parent,
            path,
            env,
            notify,
            machine: Machine::new(supervision),
            places: HashMap::new(),
            by_actor: HashMap::new(),
        }
    }

    /// Starts a child. False if one of its id is there already.
    pub(crate) fn start(&mut self, spec: ChildSpec) -> bool {
        if self.machine.knows(&spec.id) {
            return false;
        }
        let id = spec.id.clone();
        let path = self.path_of(&id);
        let stat = self.env.registry.place(path, Some(self.path.clone()), spec.kind, spec.names);
        let restart = spec.restart;
        self.places.insert(id.clone(), Place { spec, stat, live: None });
        let effects = self.machine.start(id, restart);
        self.perform(effects);
        true
    }

    fn path_of(&self, id: &ChildId) -> Arc<str> {
        format!("{}/{id}", self.path).into()
    }

    /// Lists a child that is not running, so that the tree shows it.
    pub(crate) fn mark_parked(&self, id: &ChildId, kind: &'static str) {
        let stat = self.env.registry.place(self.path_of(id), Some(self.path.clone()), kind, &[]);
        stat.set_status(Status::Parked);
    }

    pub(crate) fn unmark_parked(&self, id: &ChildId) {
        if let Some(stat) = self.env.registry.get(&self.path_of(id)).filter(|stat| stat.status() == Status::Parked) {
            self.env.registry.remove(&stat);
        }
    }

    /// Stops a child for good; its end is told.
    pub(crate) fn stop(&mut self, id: &ChildId) -> Outcome {
        let effects = self.machine.stop(id);
        self.perform(effects)
    }

    /// Kills a child for good, without giving it time.
    pub(crate) fn kill(&mut self, id: &ChildId) -> Outcome {
        let outcome = self.stop(id);
        if let Some(cell) = self.places.get(id).and_then(|place| place.live.as_ref()) {
            cell.kill();
        }
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
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                // A killed child reports like one that ended by itself; ractor's word for it is the only trace.
                let exit = if reason.as_deref() == Some("killed") { Exit::Killed } else { Exit::Normal };
                self.gone(cell.get_id(), exit)
            }
            SupervisionEvent::ActorFailed(cell, error) => self.gone(cell.get_id(), Exit::Failed(error.to_string())),
            _ => Outcome::default(),
        }
    }

    /// What one of our reapers reports.
    pub(crate) fn reaped(&mut self, notice: Notice) -> Outcome {
        if notice.abandoned {
            let kind = self.by_actor.get(&notice.who).and_then(|id| self.places.get(id)).map(|place| place.spec.kind);
            if let Some(kind) = kind {
                self.env.registry.count(kind, |totals| totals.abandoned += 1);
            }
            self.gone(notice.who, Exit::Abandoned)
        } else {
            // Gone without a report of its own: it was stopped before it had started.
            self.gone(notice.who, Exit::Normal)
        }
    }

    fn gone(&mut self, who: ActorId, exit: Exit) -> Outcome {
        // An incarnation that we already replaced or left behind is no news.
        let Some(id) = self.by_actor.remove(&who) else { return Outcome::default() };
        if let Some(place) = self.places.get_mut(&id) {
            if let Some(cell) = place.live.take() {
                (place.spec.clear)(&cell);
            }
            place.stat.set_status(Status::Restarting);
            self.env.registry.prune_below(place.stat.path());
        }
        match &exit {
            Exit::Failed(why) => tracing::error!(child = %id, parent = %self.path, error = %why, "actor failed"),
            Exit::Killed => tracing::warn!(child = %id, parent = %self.path, "actor killed"),
            Exit::Abandoned => {
                tracing::error!(child = %id, parent = %self.path, "actor ignored its kill and was left behind");
            }
            Exit::Normal | Exit::Asked | Exit::GaveUp(_) => {}
        }
        let effects = self.machine.exited(&id, exit, tokio::time::Instant::now().into_std());
        self.perform(effects)
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Outcome {
        let mut outcome = Outcome::default();
        for effect in effects {
            match effect {
                Effect::Start(id) => self.spawn(&id),
                Effect::Stop(id) => self.ask_to_stop(&id),
                Effect::Ended(end) => {
                    if let Some(place) = self.places.remove(&end.id) {
                        self.env.registry.remove(&place.stat);
                        if matches!(end.exit, Exit::GaveUp(_)) {
                            self.mark_parked(&end.id, place.spec.kind);
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
        if place.stat.status() == Status::Restarting {
            place.stat.restarted();
            self.env.registry.count(place.spec.kind, |totals| totals.restarts += 1);
        }
        place.stat.reborn();
        let birth = Birth { parent: Some(self.parent.clone()), env: self.env.clone(), stat: place.stat.clone() };
        let cell = {
            let _on = place.spec.runtime.as_ref().map(tokio::runtime::Handle::enter);
            (place.spec.start)(birth)
        };
        self.by_actor.insert(cell.get_id(), id.clone());
        place.live = Some(cell);
    }

    fn ask_to_stop(&mut self, id: &ChildId) {
        let Some(place) = self.places.get(id) else { return };
        let Some(cell) = place.live.clone() else { return };
        place.stat.set_status(Status::Stopping);
        let (limit, notify) = (place.spec.stop_within, self.notify.clone());
        tokio::spawn(async move {
            let who = cell.get_id();
            let abandoned = !stop_or_kill(&cell, limit).await;
            notify.send(Notice { who, abandoned });
        });
    }

    /// Stops all, from the actor's own end: fixed children in reverse order, each with its limit; temporary ones, of
    /// which there may be thousands, together.
    pub(crate) async fn stop_all(&mut self) {
        let alive = self.machine.alive_in_order();
        let (together, one_by_one): (Vec<_>, Vec<_>) =
            alive.into_iter().partition(|id| self.places.get(id).is_some_and(|p| p.spec.restart == Restart::Temporary));
        let cells: Vec<_> = together.iter().filter_map(|id| self.take(id)).collect();
        futures::future::join_all(cells.iter().map(|(cell, limit, _)| stop_or_kill(cell, *limit))).await;
        for (_, _, stat) in cells {
            self.env.registry.remove(&stat);
        }
        for id in one_by_one.iter().rev() {
            if let Some((cell, limit, stat)) = self.take(id) {
                if !stop_or_kill(&cell, limit).await {
                    self.env.registry.count(stat.kind(), |totals| totals.abandoned += 1);
                    tracing::error!(child = %id, parent = %self.path, "actor ignored its kill and was left behind");
                }
                self.env.registry.remove(&stat);
            }
        }
        self.env.registry.prune_below(&self.path);
    }

    fn take(&mut self, id: &ChildId) -> Option<(ActorCell, Duration, Arc<Stat>)> {
        let place = self.places.remove(id)?;
        let cell = place.live?;
        place.stat.set_status(Status::Stopping);
        (place.spec.clear)(&cell);
        Some((cell, place.spec.stop_within, place.stat))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // A parent that failed or was killed takes its children along; nobody must go on casting into them.
        for place in self.places.values() {
            if let Some(cell) = &place.live {
                (place.spec.clear)(cell);
                cell.kill();
            }
        }
    }
}

/// True once it is gone; false if it ignored its kill.
async fn stop_or_kill(cell: &ActorCell, limit: Duration) -> bool {
    cell.stop(None);
    if cell.wait(Some(limit)).await.is_ok() {
        return true;
    }
    cell.kill();
    cell.wait(Some(KILL_GRACE)).await.is_ok()
}
