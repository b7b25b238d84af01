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
mod lists;
mod owners;
mod states;

pub use basics::{
    a_created_instance_is_got_and_listed, a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched,
    a_second_create_makes_no_second_instance, creates_and_deletes_side_by_side_do_not_mix, deleting_twice_is_once,
    the_check_of_a_well_host_passes, what_was_never_made_is_not_found,
};
pub use cuts::{
    a_create_past_its_deadline_still_converges, a_create_that_ends_after_its_cancel_is_found_and_not_doubled,
    a_delete_cut_at_any_await_goes_on, a_delete_ends_a_create_cut_at_any_await, a_second_create_goes_on_after_any_cut,
};
pub use lists::{
    a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted,
    a_list_that_cannot_be_read_whole_is_an_error_or_shows_what_it_could_not_read,
    get_finds_what_a_list_does_not_show_yet_and_a_list_never_shows_what_was_never_made,
};
pub use owners::{
    an_instance_whose_mark_was_changed_by_hand_is_left_alone,
    another_operators_list_is_empty_and_its_delete_touches_nothing, no_secret_is_in_a_debug_or_an_error,
};
pub use states::{
    a_paused_instance_is_not_stopped_and_not_absent, a_stopped_instance_is_told_as_stopped_and_can_be_made_anew,
    an_instance_that_cannot_be_read_is_never_stopped_or_absent, created_at_is_told_and_stays,
    two_looks_at_an_instance_that_did_not_change_are_equal,
};

/// How much of a list cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breakage {
    /// One instance, page, zone or kind of several.
    OnePart,
    /// All of it, in the way that looks most like an empty backend.
    Everything,
}

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

    /// Ends the instance around the backend, as a crash does. `false`, here and below, if that cannot be in this world:
    /// the claim then says so and passes. None of these has a default, so that each rig gives an answer.
    async fn stop(&self, mark: &OwnerMark) -> bool;

    /// Suspends it around the backend, or takes away all that the backend could know of its state, until [`ConformanceRig::resume`].
    async fn pause(&self, mark: &OwnerMark) -> bool;

    async fn resume(&self, mark: &OwnerMark);

    /// The instance is there and runs, and backends of this rig ([`ConformanceRig::backend`] is asked again) cannot read
    /// it until [`ConformanceRig::make_readable`].
    async fn make_unreadable(&self, mark: &OwnerMark) -> bool;

    async fn make_readable(&self, mark: &OwnerMark);

    /// Lists of backends of this rig cannot see these instances whole, until [`ConformanceRig::mend_list`].
    async fn break_list(&self, marks: &[OwnerMark], breakage: Breakage) -> bool;

    async fn mend_list(&self, marks: &[OwnerMark]);

    /// A new mark of another entry that shares the backend, and a backend configured for that entry.
    async fn mark_of_another_entry(&self) -> Option<(Arc<dyn Backend>, OwnerMark)>;

    /// Writes another operator into the mark of the instance, in all that carries it. What the mark is now.
    async fn change_mark(&self, mark: &OwnerMark) -> Option<OwnerMark>;

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
            a_stopped_instance_is_told_as_stopped_and_can_be_made_anew
            a_paused_instance_is_not_stopped_and_not_absent
            an_instance_that_cannot_be_read_is_never_stopped_or_absent
            created_at_is_told_and_stays
            two_looks_at_an_instance_that_did_not_change_are_equal
            a_list_that_cannot_be_read_whole_is_an_error_or_shows_what_it_could_not_read
            get_finds_what_a_list_does_not_show_yet_and_a_list_never_shows_what_was_never_made
            a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted
            an_instance_whose_mark_was_changed_by_hand_is_left_alone
            another_operators_list_is_empty_and_its_delete_touches_nothing
            no_secret_is_in_a_debug_or_an_error
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
    made_by(&*rig.backend(), &rig.spec(mark)).await
}

async fn made_by(backend: &dyn Backend, spec: &InstanceSpec) -> Instance {
    let mark = &spec.mark;
    eventually("the instance is made, runs and has an address", || async {
        backend.create(spec).await.or_else(again).map_err(|error| error.to_string())?;
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

/// The same in a list of every entry.
async fn all_rows(rig: &dyn ConformanceRig, operator: &OperatorId, mark: &OwnerMark) -> Vec<Instance> {
    let list = rig.backend().list(operator, None).await.expect("a list of a well host");
    list.into_iter().filter(|row| row.mark == *mark).map(|row| row.instance).collect()
}

/// Waits until lists show it: they may lag.
async fn listed(rig: &dyn ConformanceRig, mark: &OwnerMark) -> Instance {
    eventually("it is listed once", || async {
        match (rows(rig, &mark.operator, mark).await.as_slice(), all_rows(rig, &mark.operator, mark).await.len()) {
            ([one], 1) => Ok(one.clone()),
            (some, all) => Err(format!("{some:?} of its entry, {all} of all entries")),
        }
    })
    .await
}

/// Waits until no list shows it.
async fn unlisted(rig: &dyn ConformanceRig, mark: &OwnerMark) {
    eventually("it is not listed", || async {
        match all_rows(rig, &mark.operator, mark).await.len() {
            0 => Ok(()),
            rows => Err(format!("{rows} rows")),
        }
    })
    .await;
}

/// A claim that a rig cannot show passes, and is told.
#[expect(clippy::print_stderr, reason = "it is for whoever reads the output of the test")]
fn skipped(what: &str) {
    eprintln!("skipped: {what} cannot be in the world of this rig");
}

fn assert_conflict<T: std::fmt::Debug>(what: &str, answer: Result<T, OpError>) {
    let error = answer.expect_err(what);
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{what}: {error}");
}

#[cfg(test)]
mod tests;
