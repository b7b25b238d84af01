//! Who leads: the claim as a value with an expiry, tested where it is used.
//!
//! Owns the publication of the claim. Read by everything that changes the world; asked by nobody. In standalone mode the
//! state directory's lock makes this the only operator, and the claim is always held.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Ref};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimState {
    /// Another replica leads, or nobody is known to.
    Standby,
    /// Ours until the instant; `None` while nothing can take it away.
    Leading { epoch: u32, until: Option<Instant> },
    /// Ours lastly, and expired: no writes, no mutations, no new grants; nothing is forgotten.
    Suspended { epoch: u32 },
}

impl ClaimState {
    /// True while the claim is provably ours.
    pub fn leads(self, now: Instant) -> bool {
        match self {
            Self::Leading { until, .. } => until.is_none_or(|until| now < until),
            Self::Standby | Self::Suspended { .. } => false,
        }
    }
}

/// The claim as everybody reads it.
#[derive(Debug, Clone)]
pub struct Claim(watch::Receiver<ClaimState>);

impl Claim {
    /// A claim and the end that publishes it.
    pub fn new(state: ClaimState) -> (watch::Sender<ClaimState>, Self) {
        let (publish, read) = watch::channel(state);
        (publish, Self(read))
    }

    /// Held from now on: there is no other operator.
    pub fn always(epoch: u32) -> Self {
        Self::new(ClaimState::Leading { epoch, until: None }).1
    }

    pub fn state(&self) -> ClaimState {
        *self.0.borrow()
    }

    /// Whether the backend and the objects may be changed now.
    pub fn may_mutate(&self, now: Instant) -> bool {
        self.state().leads(now)
    }

    /// The epoch of the claim that is, or was lastly, ours.
    pub fn epoch(&self) -> Option<u32> {
        match self.state() {
            ClaimState::Standby => None,
            ClaimState::Leading { epoch, .. } | ClaimState::Suspended { epoch } => Some(epoch),
        }
    }
}

/// The election of a mode without competitors: it publishes once and stays, so that the tree has its place.
#[derive(Debug)]
pub struct Unopposed {
    _publish: Arc<watch::Sender<ClaimState>>,
}

impl Unopposed {
    /// The child that holds the claim, and the claim.
    pub fn spec(epoch: u32) -> (ChildSpec, Claim) {
        let (publish, claim) = Claim::new(ClaimState::Leading { epoch, until: None });
        let publish = Arc::new(publish);
        (ChildSpec::of::<Self>("election", &Ref::new("election"), move || publish.clone()), claim)
    }
}

impl Behavior for Unopposed {
    const KIND: &'static str = "election";
    type Msg = ();
    type Args = Arc<watch::Sender<ClaimState>>;

    fn init(publish: Self::Args, _: &mut Ctx<()>) -> Result<Self, InitError> {
        Ok(Self { _publish: publish })
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}
}
