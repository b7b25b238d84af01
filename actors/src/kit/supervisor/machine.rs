//! The decisions of a supervisor, as a pure machine: exits and requests in, effects out. It never waits.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::{ChildEnd, ChildId, Exit, Overflow, Restart, Strategy, Supervision};

/// What the table of children is to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    Start(ChildId),
    /// Ask it to stop; its exit is awaited.
    Stop(ChildId),
    /// It will not be restarted; the parent hears of it.
    Ended(ChildEnd),
    /// More restarts than normal: the supervisor fails.
    GiveUp(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Up,
    /// Asked to stop. `forget`: by its parent, for good; else to be started again with those before it.
    Stopping {
        forget: bool,
    },
}

#[derive(Debug)]
struct Child {
    restart: Restart,
    state: State,
    /// Position in the order of starting.
    order: u64,
    restarts: VecDeque<Instant>,
}

#[derive(Debug)]
pub struct Machine {
    supervision: Supervision,
    children: HashMap<ChildId, Child>,
    next_order: u64,
    restarts: VecDeque<Instant>,
    /// Under `RestForOne`: everything from this position on is being stopped, to be started again in order.
    restarting_from: Option<u64>,
}

impl Machine {
    pub fn new(supervision: Supervision) -> Self {
        Self { supervision, children: HashMap::new(), next_order: 0, restarts: VecDeque::new(), restarting_from: None }
    }

    /// A new child behind all others. Nothing happens if one of that id is there.
    pub fn start(&mut self, id: ChildId, restart: Restart) -> Vec<Effect> {
        if self.children.contains_key(&id) {
            return Vec::new();
        }
        let order = self.next_order;
        self.next_order += 1;
        // While those before it are being restarted it waits for its turn.
        let waits = self.restarting_from.is_some();
        let state = if waits { State::Idle } else { State::Up };
        self.children.insert(id.clone(), Child { restart, state, order, restarts: VecDeque::new() });
        if waits { Vec::new() } else { vec![Effect::Start(id)] }
    }

    /// The parent wants it gone for good.
    pub fn stop(&mut self, id: &ChildId) -> Vec<Effect> {
        match self.children.get_mut(id) {
            None => Vec::new(),
            Some(child) => match child.state {
                State::Idle => {
                    self.children.remove(id);
                    vec![Effect::Ended(ChildEnd { id: id.clone(), exit: Exit::Asked })]
                }
                State::Up => {
                    child.state = State::Stopping { forget: true };
                    vec![Effect::Stop(id.clone())]
                }
                State::Stopping { .. } => {
                    child.state = State::Stopping { forget: true };
                    Vec::new()
                }
            },
        }
    }

    /// A child ended. `exit` is how it looks from outside; our own record says whether we asked.
    pub fn exited(&mut self, id: &ChildId, exit: Exit, now: Instant) -> Vec<Effect> {
        let Some(child) = self.children.get_mut(id) else { return Vec::new() };
        match child.state {
            State::Idle => Vec::new(),
            // Stopped for good; or on behalf of one before it, where a temporary child is not started again (as in OTP).
            State::Stopping { forget } if forget || child.restart == Restart::Temporary => {
                self.children.remove(id);
                let exit = if exit == Exit::Abandoned { exit } else { Exit::Asked };
                let mut effects = vec![Effect::Ended(ChildEnd { id: id.clone(), exit })];
                effects.extend(self.advance());
                effects
            }
            State::Stopping { .. } => {
                child.state = State::Idle;
                self.advance()
            }
            State::Up => {
                let again = match child.restart {
                    Restart::Permanent => true,
                    Restart::Transient => exit != Exit::Normal,
                    Restart::Temporary => false,
                };
                if !again {
                    self.children.remove(id);
                    return vec![Effect::Ended(ChildEnd { id: id.clone(), exit })];
                }
                self.restart(id, &exit, now)
            }
        }
    }

    fn restart(&mut self, id: &ChildId, exit: &Exit, now: Instant) -> Vec<Effect> {
        let Supervision { strategy, intensity, overflow } = self.supervision;
        let Some(child) = self.children.get_mut(id) else { return Vec::new() };
        let log = match overflow {
            Overflow::Escalate => &mut self.restarts,
            Overflow::Park => &mut child.restarts,
        };
        log.push_back(now);
        while log.front().is_some_and(|&at| now.saturating_duration_since(at) > intensity.within) {
            log.pop_front();
        }
        if log.len() > intensity.restarts as usize {
            let why = format!(
                "{id} ended more than {} times within {} s, lastly: {}",
                intensity.restarts,
                intensity.within.as_secs(),
                exit.as_text()
            );
            return match overflow {
                Overflow::Escalate => {
                    child.state = State::Idle;
                    vec![Effect::GiveUp(why)]
                }
                Overflow::Park => {
                    self.children.remove(id);
                    vec![Effect::Ended(ChildEnd { id: id.clone(), exit: Exit::GaveUp(why) })]
                }
            };
        }
        let order = child.order;
        match strategy {
            Strategy::OneForOne => vec![Effect::Start(id.clone())],
            Strategy::RestForOne => {
                child.state = State::Idle;
                self.restarting_from = Some(self.restarting_from.map_or(order, |from| from.min(order)));
                self.advance()
            }
        }
    }

    /// The next move of a `RestForOne` restart: stop the last one that is up, or start all in order when none is.
    fn advance(&mut self) -> Vec<Effect> {
        let Some(from) = self.restarting_from else { return Vec::new() };
        let mut rest: Vec<(u64, ChildId)> = self
            .children
            .iter()
            .filter(|(_, child)| child.order >= from)
            .map(|(id, child)| (child.order, id.clone()))
            .collect();
        rest.sort_unstable_by_key(|(order, _)| *order);
        if rest.iter().any(|(_, id)| matches!(self.children[id].state, State::Stopping { .. })) {
            return Vec::new();
        }
        if let Some((_, id)) = rest.iter().rev().find(|(_, id)| self.children[id].state == State::Up)
            && let Some(child) = self.children.get_mut(id)
        {
            child.state = State::Stopping { forget: false };
            return vec![Effect::Stop(id.clone())];
        }
        self.restarting_from = None;
        let mut effects = Vec::new();
        for (_, id) in rest {
            if let Some(child) = self.children.get_mut(&id) {
                child.state = State::Up;
                effects.push(Effect::Start(id));
            }
        }
        effects
    }

    /// The children that are up or stopping, in the order of starting.
    pub fn alive_in_order(&self) -> Vec<ChildId> {
        let mut alive: Vec<_> =
            self.children.iter().filter(|(_, c)| c.state != State::Idle).map(|(id, c)| (c.order, id.clone())).collect();
        alive.sort_unstable_by_key(|(order, _)| *order);
        alive.into_iter().map(|(_, id)| id).collect()
    }

    pub fn knows(&self, id: &ChildId) -> bool {
        self.children.contains_key(id)
    }
}

impl Exit {
    pub(crate) fn as_text(&self) -> String {
        match self {
            Self::Normal => "it ended by itself".to_owned(),
            Self::Asked => "it was asked to stop".to_owned(),
            Self::Failed(why) | Self::GaveUp(why) => why.clone(),
            Self::Killed => "it was killed".to_owned(),
            Self::Abandoned => "it ignored its kill and was left behind".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
