//! The bounded entry to an actor: what comes from outside takes a place, or hears `Full` at once.
//!
//! ractor's mailboxes are unbounded. The place is an owned semaphore permit that travels inside the message and is given
//! back when the message is handled or dropped with its actor. Results and timers come in beside the bound.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::actor::Env;
use super::reference::{Answer, CallError, Named, Ref, answer, answered};
use super::stat::Counters;

/// A place in a bounded entry. Dropping it gives the place back.
#[derive(Debug)]
pub struct Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the queue is full")]
    Full,
    #[error("the actor is down")]
    Down,
}

/// A bounded way into an actor. Cheap to clone; all clones share the places.
pub struct Entry<M: Named> {
    to: Ref<M>,
    places: Arc<Semaphore>,
    counters: Arc<Counters>,
}

impl<M: Named> Clone for Entry<M> {
    fn clone(&self) -> Self {
        Self { to: self.to.clone(), places: self.places.clone(), counters: self.counters.clone() }
    }
}

impl<M: Named> std::fmt::Debug for Entry<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Entry({})", self.to.label())
    }
}

impl<M: Named> Entry<M> {
    /// An entry with so many places, to an actor of this kind. The tree shows the bound.
    pub fn new(env: &Arc<Env>, kind: &'static str, to: &Ref<M>, places: usize) -> Self {
        to.set_capacity(places);
        Self { to: to.clone(), places: Arc::new(Semaphore::new(places)), counters: env.registry.counters(kind) }
    }

    /// Takes a place, for a message that is sent with it.
    pub fn place(&self) -> Result<Permit, Refused> {
        self.places.clone().try_acquire_owned().map(Permit).map_err(|_| {
            self.counters.rejected.fetch_add(1, Relaxed);
            Refused::Full
        })
    }

    /// Sends a message that holds a place until it is handled.
    pub fn try_cast(&self, message: impl FnOnce(Permit) -> M) -> Result<(), Refused> {
        let permit = self.place()?;
        self.to.cast(message(permit)).map_err(|_| Refused::Down)
    }

    /// Waits for a place: for tasks that feed an actor from a stream, which then flows as fast as the actor works.
    pub async fn cast(&self, message: impl FnOnce(Permit) -> M) -> Result<(), Refused> {
        let permit = self.places.clone().acquire_owned().await.map_err(|_| Refused::Down)?;
        self.to.cast(message(Permit(permit))).map_err(|_| Refused::Down)
    }

    /// Sends a question and waits for its answer. For the HTTP edge only: actors cast.
    pub async fn call<T: Send + 'static>(
        &self,
        within: Duration,
        message: impl FnOnce(Answer<T>, Permit) -> M,
    ) -> Result<T, CallError> {
        let (sender, receiver) = answer();
        self.try_cast(|permit| message(sender, permit)).map_err(|refused| match refused {
            Refused::Full => CallError::Full,
            Refused::Down => CallError::Down,
        })?;
        answered(receiver, within).await
    }

    /// Places free just now.
    pub fn free(&self) -> usize {
        self.places.available_permits()
    }
}
