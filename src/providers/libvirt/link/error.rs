//! Why a call over a link has no answer.

use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use tokio::sync::oneshot;

use super::lane::Unanswered;
use super::ledger::Refusal;
use super::rpc::RpcError;

/// Why a call has no answer of libvirt's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkError {
    /// There is no connection: nothing was begun.
    NoLink(OpError),
    /// Too many calls that were cut may still run on the host: nothing was begun.
    Wedged,
    /// A call to the pool has not come back: nothing was begun.
    PoolStuck,
    /// Calls to guest agents have not come back: nothing was begun.
    AgentsStuck,
    /// See [`Unanswered`]; with the call's name and its limit.
    Unanswered(&'static str, Duration, Unanswered),
    /// libvirt's own answer.
    Rpc(RpcError),
}

impl LinkError {
    /// The connection ended before anything was begun over it.
    pub(super) fn is_lost_link(&self) -> bool {
        match self {
            Self::NoLink(error) => error.reason == Reason::Unreachable,
            Self::Unanswered(.., why) => matches!(why, Unanswered::Broken(_)),
            Self::Wedged | Self::PoolStuck | Self::AgentsStuck | Self::Rpc(_) => false,
        }
    }
}

impl From<Refusal> for LinkError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Wedged => Self::Wedged,
            Refusal::PoolStuck => Self::PoolStuck,
            Refusal::AgentsStuck => Self::AgentsStuck,
        }
    }
}

type Answered<T> = Result<Result<Result<T, RpcError>, Unanswered>, oneshot::error::RecvError>;

pub(super) fn outcome<T>(rpc: &'static str, limit: Duration, answered: Answered<T>) -> Result<T, LinkError> {
    match answered {
        Ok(Ok(Ok(value))) => Ok(value),
        Ok(Ok(Err(error))) => Err(LinkError::Rpc(error)),
        Ok(Err(unanswered)) => Err(LinkError::Unanswered(rpc, limit, unanswered)),
        // The work panicked.
        Err(_) => Err(LinkError::Unanswered(rpc, limit, Unanswered::Broken(None))),
    }
}

pub(super) fn gone() -> LinkError {
    LinkError::NoLink(OpError::transient(Reason::Unreachable, "the connection has ended"))
}
