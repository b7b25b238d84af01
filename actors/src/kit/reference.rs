//! References to actors that survive restarts, and the ways to answer.
//!
//! A [`Ref`] is a cell that the supervisor's slot refills, so that nobody holds an incarnation. Upward answers travel
//! through a [`Tell`], which knows one verb only. A [`Reply`] answers exactly once, even when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use ractor::{ActorRef, ActorStatus};
use tokio::sync::oneshot;

use super::actor::Mail;
use super::stat::Stat;

/// A message whose variants have names, for the statistics. Implemented by [`named!`](crate::named).
pub trait Named: Send + 'static {
    const NAMES: &'static [&'static str];
    /// The position of this message's name in `NAMES`.
    fn index(&self) -> u8;
}

impl Named for () {
    const NAMES: &'static [&'static str] = &["()"];

    fn index(&self) -> u8 {
        0
    }
}

/// The message was not taken: the actor is down. It comes back to the sender.
#[derive(Debug)]
pub struct Down<M>(pub M);

pub(super) struct Target<M: Named> {
    pub(super) actor: ActorRef<Mail<M>>,
    pub(super) stat: Arc<Stat>,
}

impl<M: Named> Target<M> {
    fn is_up(&self) -> bool {
        matches!(self.actor.get_status(), ActorStatus::Unstarted | ActorStatus::Starting | ActorStatus::Running)
    }

    pub(super) fn send(&self, mail: Mail<M>) -> Result<(), Mail<M>> {
        self.stat.queued();
        self.actor.send_message(mail).map_err(|refused| {
            self.stat.unqueued();
            match refused {
                ractor::MessagingErr::SendErr(mail) => mail,
                // The type is right by construction, and a closed channel hands the message back as `SendErr`.
                ractor::MessagingErr::ChannelClosed | ractor::MessagingErr::InvalidActorType => Mail::Nothing,
            }
        })
    }
}

struct Cell<M: Named> {
    label: Arc<str>,
    capacity: AtomicUsize,
    target: ArcSwapOption<Target<M>>,
}

/// A reference that outlives the incarnations of its actor. Empty while the actor is down.
pub struct Ref<M: Named>(Arc<Cell<M>>);

impl<M: Named> Clone for Ref<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: Named> fmt::Debug for Ref<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ref({})", self.0.label)
    }
}

impl<M: Named> Ref<M> {
    /// A reference to an actor that is yet to be started with it.
    pub fn new(label: impl Into<Arc<str>>) -> Self {
        Self(Arc::new(Cell { label: label.into(), capacity: AtomicUsize::new(0), target: ArcSwapOption::empty() }))
    }

    /// Sends without waiting. `Down` hands the message back.
    pub fn cast(&self, message: M) -> Result<(), Down<M>> {
        let target = self.0.target.load();
        match &*target {
            Some(target) => target.send(Mail::User(message)).map_err(|mail| match mail {
                Mail::User(message) => Down(message),
                Mail::Notice(_) | Mail::Nothing => unreachable!("a refused message comes back as it was sent"),
            }),
            None => Err(Down(message)),
        }
    }

    /// Sends where a lost message is repaired by the next look: the actor is down, and its restart asks anew.
    pub fn cast_or_drop(&self, message: M) {
        if self.cast(message).is_err() {
            tracing::trace!(to = %self.0.label, "message dropped: the actor is down");
        }
    }

    pub fn is_up(&self) -> bool {
        self.0.target.load().as_ref().is_some_and(|target| target.is_up())
    }

    /// Narrows the reference to one verb.
    pub fn tell<T: 'static>(&self, wrap: impl Fn(T) -> M + Send + Sync + 'static) -> Tell<T> {
        let to = self.clone();
        Tell::new(move |value| to.cast_or_drop(wrap(value)))
    }

    pub(super) fn label(&self) -> &Arc<str> {
        &self.0.label
    }

    pub(super) fn set_capacity(&self, places: usize) {
        self.0.capacity.store(places, Relaxed);
        if let Some(target) = &*self.0.target.load() {
            target.stat.set_capacity(places);
        }
    }

    pub(super) fn fill(&self, target: Target<M>) {
        target.stat.set_capacity(self.0.capacity.load(Relaxed));
        self.0.target.store(Some(Arc::new(target)));
    }

    /// Empties the cell if it still holds this incarnation. A successor may fill it at the same moment, when the parent of
    /// both died: hence the exchange.
    pub(super) fn clear(&self, actor: &ractor::ActorCell) {
        let held = self.0.target.load();
        if held.as_ref().is_some_and(|target| target.actor.get_id() == actor.get_id()) {
            self.0.target.compare_and_swap(&*held, None);
        }
    }

    /// Ends the present incarnation at once, as a crash would: for tests.
    #[cfg(any(test, feature = "testkit"))]
    pub fn kill(&self) {
        if let Some(target) = &*self.0.target.load() {
            target.actor.kill();
        }
    }

    /// The present incarnation.
    #[cfg(test)]
    pub(super) fn cell(&self) -> Option<ractor::ActorCell> {
        self.0.target.load().as_ref().map(|target| target.actor.get_cell())
    }
}

/// A way to tell somebody one kind of thing. Never waits; what cannot be delivered is dropped.
pub struct Tell<T>(Arc<dyn Fn(T) + Send + Sync>);

impl<T> Clone for Tell<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Tell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tell")
    }
}

impl<T> Tell<T> {
    pub fn new(deliver: impl Fn(T) + Send + Sync + 'static) -> Self {
        Self(Arc::new(deliver))
    }

    /// To nobody.
    pub fn nowhere() -> Self
    where
        T: 'static,
    {
        Self::new(drop)
    }

    pub fn send(&self, value: T) {
        (self.0)(value);
    }
}

/// An answer that is owed. Dropped unanswered, it answers with what `lost` gives.
pub struct Reply<T: 'static> {
    deliver: Option<Box<dyn FnOnce(T) + Send>>,
    lost: fn() -> T,
}

impl<T: 'static> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

impl<T: 'static> Reply<T> {
    pub fn new(deliver: impl FnOnce(T) + Send + 'static, lost: fn() -> T) -> Self {
        Self { deliver: Some(Box::new(deliver)), lost }
    }

    pub fn send(mut self, value: T) {
        if let Some(deliver) = self.deliver.take() {
            deliver(value);
        }
    }
}

impl<T: 'static> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(deliver) = self.deliver.take() {
            deliver((self.lost)());
        }
    }
}

/// The actor's end of a call from the edge.
#[derive(Debug)]
pub struct Answer<T>(oneshot::Sender<T>);

impl<T> Answer<T> {
    /// The caller has gone: a timeout, a closed connection. Asked before the work is done.
    pub fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }

    /// Hands the answer over, or back when nobody waits for it any more: the actor undoes what it did.
    pub fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }

    /// Hands the answer over where it does not matter that nobody waits for it.
    pub fn give(self, value: T) {
        if self.0.send(value).is_err() {
            tracing::trace!("an answer found nobody waiting");
        }
    }
}

/// Why a call has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("the queue is full")]
    Full,
    #[error("the actor is down")]
    Down,
    #[error("no answer in time")]
    Timeout,
}

pub(super) async fn answered<T>(receiver: oneshot::Receiver<T>, within: Duration) -> Result<T, CallError> {
    match tokio::time::timeout(within, receiver).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(CallError::Down),
        Err(_) => Err(CallError::Timeout),
    }
}

pub(super) fn answer<T>() -> (Answer<T>, oneshot::Receiver<T>) {
    let (sender, receiver) = oneshot::channel();
    (Answer(sender), receiver)
}
