//! Who leads: the claim as a value with an expiry, tested where it is used.
//!
//! Owns the publication of the claim. Read by everything that changes the world; asked by nobody. In a cluster the
//! [`candidate`] renews a record that the replicas share; in standalone mode the state directory's lock makes this the only
//! operator, and the claim is always held ([`Unopposed`]).

pub mod candidate;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

pub use crate::domain::claim::ClaimState;
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Ref};
use crate::names;

/// The claim as everybody reads it.
#[derive(Debug, Clone)]
pub struct Claim {
    state: watch::Receiver<ClaimState>,
    holder: Arc<ArcSwapOption<Arc<str>>>,
}

impl Claim {
    /// A claim and the end that publishes it.
    pub fn new(state: ClaimState) -> (watch::Sender<ClaimState>, Self) {
        let (publish, state) = watch::channel(state);
        (publish, Self { state, holder: Arc::default() })
    }

    /// Held from now on: there is no other operator.
    pub fn always(epoch: u32) -> Self {
        Self::new(ClaimState::Leading { epoch, until: None }).1
    }

    /// The same, held by this one.
    #[must_use]
    pub fn held_by(self, holder: &str) -> Self {
        self.holder.store(Some(Arc::new(holder.into())));
        self
    }

    pub fn state(&self) -> ClaimState {
        *self.state.borrow()
    }

    /// Whether the backend and the objects may be changed now.
    pub fn may_mutate(&self, now: Instant) -> bool {
        self.state().leads(now)
    }

    /// The same, for what was decided under the claim of this epoch: what another replica did since is not known to it.
    pub fn may_mutate_in(&self, epoch: Option<u32>, now: Instant) -> bool {
        let state = self.state();
        state.leads(now) && state.epoch() == epoch
    }

    /// The epoch of the claim that is, or was lastly, ours.
    pub fn epoch(&self) -> Option<u32> {
        self.state().epoch()
    }

    /// Who holds it, as far as it was seen: also this replica.
    pub fn holder(&self) -> Option<Arc<str>> {
        self.holder.load_full().map(|holder| (*holder).clone())
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
        metrics::gauge!(names::LEADING).set(1.0);
        Ok(Self { _publish: publish })
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}
}
