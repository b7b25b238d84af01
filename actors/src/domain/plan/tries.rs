//! What failed lately, and when it may be tried again.

use std::time::Instant;

use crate::domain::backoff::Backoff;
use crate::domain::clock::Now;
use crate::domain::error::{Class, OpError};
use crate::domain::reason::Reason;

use super::Step;

/// A kind of step that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    Reserve,
    Adopt,
    ReadSecrets,
    Get,
    Create,
    Delete,
    TellGivenUp,
    Release,
}

impl Task {
    /// The kind of a step; none for those that start nothing.
    pub const fn of(step: &Step) -> Option<Self> {
        match step {
            Step::Nothing | Step::Done => None,
            Step::ReserveHost => Some(Self::Reserve),
            Step::RecordFinalizer { .. } => Some(Self::Adopt),
            Step::ReadSecrets => Some(Self::ReadSecrets),
            Step::Get { .. } => Some(Self::Get),
            Step::Create { .. } => Some(Self::Create),
            Step::Delete { .. } => Some(Self::Delete),
            Step::EmitGivenUp { .. } => Some(Self::TellGivenUp),
            Step::ReleaseFinalizer => Some(Self::Release),
        }
    }

    /// Runs on a provider's host, where it may take as long as its deadline.
    pub const fn is_on_host(self) -> bool {
        matches!(self, Self::Get | Self::Create | Self::Delete)
    }

    /// As in "reading the Secrets fails".
    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Reserve => "choosing a host",
            Self::Adopt => "writing the finalizer",
            Self::ReadSecrets => "reading the Secrets",
            Self::Get => "looking at the instance",
            Self::Create => "making the instance",
            Self::Delete => "deleting the instance",
            Self::TellGivenUp => "writing the event about what is given up",
            Self::Release => "dropping the finalizer",
        }
    }
}

/// So often in a row `Busy` is no news: with the usual backoff that is a quarter of a minute.
const PATIENCE: u32 = 4;

/// Tasks whose latest attempt failed. Empty for nearly every Proxy: it is kept small, as there are many.
#[derive(Debug, Clone, Default)]
pub(super) struct Tries(Vec<Failing>);

#[derive(Debug, Clone)]
pub(super) struct Failing {
    pub(super) task: Task,
    pub(super) error: OpError,
    backoff: Backoff,
    not_before: Instant,
}

impl Tries {
    pub(super) fn failed(&mut self, task: Task, error: OpError, fresh: Backoff, seed: u64, now: Now) {
        let mut backoff = self.get(task).map_or(fresh, |failing| failing.backoff);
        let not_before = now.mono + backoff.next(seed);
        self.0.retain(|failing| failing.task != task);
        self.0.push(Failing { task, error, backoff, not_before });
    }

    pub(super) fn succeeded(&mut self, task: Task) {
        self.0.retain(|failing| failing.task != task);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn not_before(&self, task: Task) -> Option<Instant> {
        self.get(task).map(|failing| failing.not_before)
    }

    pub(super) fn failures(&self, task: Task) -> u32 {
        self.get(task).map_or(0, |failing| failing.backoff.failures())
    }

    /// The error of a task, if it is worth telling: having been cancelled by ourselves is not, and having to wait for an
    /// earlier operation only if that does not end.
    pub(super) fn told(&self, task: Task) -> Option<&OpError> {
        let failing = self.get(task)?;
        let is_patient = failing.error.reason == Reason::Busy && failing.backoff.failures() <= PATIENCE;
        (failing.error.class != Class::Cancelled && !is_patient).then_some(&failing.error)
    }

    pub(super) fn any_told(&self) -> bool {
        self.0.iter().any(|failing| self.told(failing.task).is_some())
    }

    fn get(&self, task: Task) -> Option<&Failing> {
        self.0.iter().find(|failing| failing.task == task)
    }
}
