//! What every [`Backend`] must do, as claims that run against a real one.
//!
//! # Expected flow
//! An adapter's tests implement [`ConformanceRig`] for a world that they own (a state directory, a lab host, a fake
//! server), and name the suite once: [`conformance_tests!`](crate::conformance_tests) makes a test of each claim, with
//! a rig of its own, so that claims run in parallel and fail by name.
//!
//! # Guarantees
//! A claim looks at the world through the backend *and* around it ([`ConformanceRig::count`]), as a backend that
//! forgets an instance would otherwise pass. It removes what it made, unless it fails.
//!
//! # Assumptions
//! Nobody else uses the marks of the rig. Real time, or a paused clock for a world that has no other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;

use super::eventually;
use crate::domain::desired::Placement;
use crate::domain::error::{Class, OpError};
use crate::domain::id::OperatorId;
use crate::domain::instance::{Instance, InstanceSpec, InstanceState, OwnerMark};
use crate::domain::reason::Reason;
use crate::ports::Backend;

mod basics;
mod cuts;

pub use basics::{
    a_created_instance_is_got_and_listed, a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched,
    a_second_create_makes_no_second_instance, creates_and_deletes_side_by_side_do_not_mix, deleting_twice_is_once,
    the_check_of_a_well_host_passes, what_was_never_made_is_not_found,
};
pub use cuts::{
    a_create_past_its_deadline_still_converges, a_create_that_ends_after_its_cancel_is_found_and_not_doubled,
    a_delete_cut_at_any_await_goes_on, a_delete_ends_a_create_cut_at_any_await, a_second_create_goes_on_after_any_cut,
};

/// The world of one backend under test.
#[async_trait]
pub trait ConformanceRig: Send + Sync + 'static {
    fn backend(&self) -> Arc<dyn Backend>;

    /// A mark that was never used: own key, own uid.
    fn mark(&self) -> OwnerMark;

    fn spec(&self, mark: &OwnerMark) -> InstanceSpec {
        InstanceSpec {
            mark: mark.clone(),
            placement: Placement::default(),
            user_data: None,
            port: 3128,
            credentials: None,
        }
    }

    /// How many instances of this mark there really are, whole or half, seen without the backend.
    async fn count(&self, mark: &OwnerMark) -> usize;

    /// Puts something of another owner in the place that the instance of `mark` would take. `false` if that cannot be
    /// in this world.
    async fn make_foreign(&self, mark: &OwnerMark) -> bool;

    /// Is it still there, as it was made?
    async fn foreign_is_untouched(&self, mark: &OwnerMark) -> bool;

    /// How long an effect that nobody waits for any more can take to show.
    fn settle(&self) -> Duration {
        Duration::from_millis(300)
    }
}

/// A `#[tokio::test]` for each claim. The expression makes a [`ConformanceRig`], and may await.
#[macro_export]
macro_rules! conformance_tests {
    ($rig:expr) => {
        $crate::conformance_tests! { @each $rig,
            the_check_of_a_well_host_passes
            what_was_never_made_is_not_found
            a_created_instance_is_got_and_listed
            a_second_create_makes_no_second_instance
            deleting_twice_is_once
            creates_and_deletes_side_by_side_do_not_mix
            a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched
            a_second_create_goes_on_after_any_cut
            a_delete_ends_a_create_cut_at_any_await
            a_create_that_ends_after_its_cancel_is_found_and_not_doubled
            a_delete_cut_at_any_await_goes_on
            a_create_past_its_deadline_still_converges
        }
    };
    (@each $rig:expr, $($claim:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $claim() {
                let rig = $rig;
                $crate::testkit::conformance::$claim(&rig).await;
            }
        )*
    };
}

/// Runs a future for at most so many polls, then drops it: a cancel at the await that it is in.
struct Cut<F> {
    future: Option<Pin<Box<F>>>,
    polls_left: usize,
}

fn cut<F: Future>(future: F, polls: usize) -> Cut<F> {
    Cut { future: Some(Box::pin(future)), polls_left: polls }
}

impl<F: Future> Future for Cut<F> {
    /// `None` if it was cut.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut future) = self.future.take() else { return Poll::Ready(None) };
        if self.polls_left == 0 {
            return Poll::Ready(None);
        }
        self.polls_left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Dropped right after the poll that waits, not at the next wake: that is where a kill finds it too.
            Poll::Pending if self.polls_left == 0 => Poll::Ready(None),
            Poll::Pending => {
                self.future = Some(future);
                Poll::Pending
            }
        }
    }
}

/// Creates until it runs and has an address, as the actors do: again after each answer that allows it, and anew where
/// the instance has stopped (a delete that was cut may still end it).
async fn made(rig: &dyn ConformanceRig, mark: &OwnerMark) -> Instance {
    let (backend, spec) = (rig.backend(), rig.spec(mark));
    eventually("the instance is made, runs and has an address", || async {
        backend.create(&spec).await.or_else(again).map_err(|error| error.to_string())?;
        match backend.get(mark).await {
            Ok(instance) if instance.state == InstanceState::Running && instance.endpoint.is_some() => Ok(instance),
            Ok(instance) if instance.state == InstanceState::Stopped => {
                backend.delete(mark).await.or_else(again).map_err(|error| error.to_string())?;
                Err(format!("{instance:?}"))
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Only looks.
async fn running(rig: &dyn ConformanceRig, mark: &OwnerMark) -> Instance {
    let backend = rig.backend();
    eventually("the instance runs and has an address", || async {
        match backend.get(mark).await {
            Ok(instance) if instance.state == InstanceState::Running && instance.endpoint.is_some() => Ok(instance),
            Ok(instance) => Err(format!("{instance:?}")),
            Err(error) => again(error).map_err(|error| error.to_string()),
        }
    })
    .await
}

/// Deletes until gone, as the actors do: two clean looks, a settle time apart, with nothing left around the backend.
async fn gone(rig: &dyn ConformanceRig, mark: &OwnerMark) {
    let backend = rig.backend();
    eventually("the instance is deleted and stays away", || async {
        backend.delete(mark).await.or_else(again).map_err(|error| error.to_string())?;
        absent(rig, mark).await?;
        tokio::time::sleep(rig.settle()).await;
        absent(rig, mark).await
    })
    .await;
}

async fn absent(rig: &dyn ConformanceRig, mark: &OwnerMark) -> Result<(), String> {
    match rig.backend().get(mark).await {
        Err(error) if error.class == Class::NotFound => {}
        other => return Err(format!("get answers {other:?}")),
    }
    match rig.count(mark).await {
        0 => Ok(()),
        left => Err(format!("get answers NotFound and {left} are there")),
    }
}

/// An error that says "try again" is tried again; another one ends the claim.
fn again<T>(error: OpError) -> Result<T, OpError> {
    match error.class {
        Class::Transient | Class::EffectUnknown => Err(error),
        Class::Permanent | Class::NotFound | Class::Cancelled => panic!("a final answer in the middle: {error}"),
    }
}

async fn exactly_one(rig: &dyn ConformanceRig, mark: &OwnerMark) {
    assert_eq!(rig.count(mark).await, 1, "instances of {mark:?} around the backend");
}

/// The rows of this mark in a list of its operator.
async fn rows(rig: &dyn ConformanceRig, operator: &OperatorId, mark: &OwnerMark) -> Vec<Instance> {
    let list = rig.backend().list(operator, Some(&mark.entry)).await.expect("a list of a well host");
    list.into_iter().filter(|row| row.mark == *mark).map(|row| row.instance).collect()
}

fn assert_conflict<T: std::fmt::Debug>(what: &str, answer: Result<T, OpError>) {
    let error = answer.expect_err(what);
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{what}: {error}");
}

#[cfg(test)]
mod tests;
