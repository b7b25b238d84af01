//! Operations on a host, from the question to its one outcome.

use std::time::Instant;

use crate::domain::error::OpError;
use crate::domain::id::Uid;
use crate::domain::instance::{Instance, InstanceSpec, OwnerMark};
use crate::domain::reason::Reason;
use crate::kit::Reply;

/// What a proxy asks of a host.
#[derive(Debug)]
pub enum Call {
    Get(OwnerMark),
    Create(Box<InstanceSpec>),
    Delete(OwnerMark),
}

impl Call {
    pub fn kind(&self) -> CallKind {
        match self {
            Self::Get(_) => CallKind::Get,
            Self::Create(_) => CallKind::Create,
            Self::Delete(_) => CallKind::Delete,
        }
    }

    pub(super) fn uid(&self) -> &Uid {
        match self {
            Self::Get(mark) | Self::Delete(mark) => &mark.uid,
            Self::Create(spec) => &spec.mark.uid,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CallKind {
    // In the order in which they are let in.
    Delete,
    Create,
    Get,
}

impl CallKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Create => "create",
            Self::Get => "get",
        }
    }

    /// It can leave an effect behind.
    pub const fn mutates(self) -> bool {
        matches!(self, Self::Delete | Self::Create)
    }
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq)]
pub struct OpOutcome {
    pub kind: CallKind,
    /// The instance, for a get or create; `None` for a delete.
    pub result: Result<Option<Instance>, OpError>,
}

impl OpOutcome {
    // What a reply says that was dropped unanswered: one for each kind, as it must not depend on anything.
    pub(crate) fn lost_get() -> Self {
        Self { kind: CallKind::Get, result: Err(OpError::transient(Reason::Lost, "the look at the instance was lost")) }
    }

    pub(crate) fn lost_create() -> Self {
        Self {
            kind: CallKind::Create,
            result: Err(OpError::effect_unknown(Reason::Lost, "the end of the create was lost")),
        }
    }

    pub(crate) fn lost_delete() -> Self {
        Self {
            kind: CallKind::Delete,
            result: Err(OpError::effect_unknown(Reason::Lost, "the end of the delete was lost")),
        }
    }
}

/// One operation on its way.
#[derive(Debug)]
pub struct Job {
    pub call: Call,
    pub deadline: Instant,
    /// The claim under which it was decided. A mutation is begun under that claim only.
    pub epoch: Option<u32>,
    pub reply: Reply<OpOutcome>,
}

impl Job {
    pub(super) fn refuse(self, error: OpError) {
        let kind = self.call.kind();
        self.reply.send(OpOutcome { kind, result: Err(error) });
    }
}
