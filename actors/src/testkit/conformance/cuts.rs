//! Claims about calls that are dropped in the middle, and about effects that come after that.

use std::time::Duration;

use super::{ConformanceRig, again, all_rows, cut, eventually, exactly_one, gone, made};
use crate::domain::error::Class;
use crate::domain::instance::OwnerMark;

/// Polls that one call may take; more would be a busy loop.
const MOST_POLLS: usize = 10_000;

/// Cuts creates after 1, 2, 3 ... polls, until one runs to its end, and gives each to `then`.
async fn creates_cut_at_every_await<'a, F: Future<Output = ()>>(
    rig: &'a dyn ConformanceRig,
    then: impl Fn(&'a dyn ConformanceRig, OwnerMark) -> F,
) {
    let backend = rig.backend();
    let mut failed = 0;
    for polls in 1..MOST_POLLS {
        let mark = rig.mark();
        let spec = rig.spec(&mark);
        let ended = cut(backend.create(&spec), polls).await;
        let whole = match ended {
            Some(Ok(_)) => true,
            // Bad luck of this world, which a round more makes good; not if it is the rule.
            Some(Err(error)) => {
                failed += 1;
                assert!(failed < 10 && again::<()>(error.clone()).is_err(), "creates fail uncut: {error}");
                false
            }
            None => false,
        };
        then(rig, mark).await;
        if whole {
            return;
        }
    }
    panic!("a create did not end within {MOST_POLLS} polls");
}

pub async fn a_second_create_goes_on_after_any_cut(rig: &dyn ConformanceRig) {
    creates_cut_at_every_await(rig, |rig, mark| async move {
        made(rig, &mark).await;
        exactly_one(rig, &mark).await;
        gone(rig, &mark).await;
    })
    .await;
}

pub async fn a_delete_ends_a_create_cut_at_any_await(rig: &dyn ConformanceRig) {
    creates_cut_at_every_await(rig, |rig, mark| async move { gone(rig, &mark).await }).await;
}

pub async fn a_create_that_ends_after_its_cancel_is_found_and_not_doubled(rig: &dyn ConformanceRig) {
    creates_cut_at_every_await(rig, |rig, mark| async move {
        // Nobody waits for it any more; whatever it started shows by now.
        tokio::time::sleep(rig.settle()).await;
        let backend = rig.backend();
        // Halves too: nobody else would ever find them.
        eventually("get, the list of the whole backend and the world agree", || async {
            let (answer, listed) = (backend.get(&mark).await, all_rows(rig, &mark.operator, &mark).await.len());
            match (&answer, listed, rig.count(&mark).await) {
                (Ok(_), 1, 1) => Ok(()),
                (Err(error), 0, 0) if error.class == Class::NotFound => Ok(()),
                (answer, listed, count) => {
                    Err(format!("get answers {answer:?}, {listed} are listed, and {count} are there"))
                }
            }
        })
        .await;
        made(rig, &mark).await;
        exactly_one(rig, &mark).await;
        gone(rig, &mark).await;
    })
    .await;
}

pub async fn a_delete_cut_at_any_await_goes_on(rig: &dyn ConformanceRig) {
    let backend = rig.backend();
    for polls in 1..MOST_POLLS {
        let mark = rig.mark();
        made(rig, &mark).await;
        let ended = cut(backend.delete(&mark), polls).await;
        // In between it is there, or it is not; it is never an error.
        match backend.get(&mark).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.class, Class::NotFound, "get in the middle of a delete: {error}"),
        }
        if polls % 2 == 0 {
            // Somebody changed his mind: what is half gone is made whole.
            made(rig, &mark).await;
            exactly_one(rig, &mark).await;
        }
        gone(rig, &mark).await;
        if matches!(ended, Some(Ok(()))) {
            return;
        }
    }
    panic!("a delete did not end within {MOST_POLLS} polls");
}

pub async fn a_create_past_its_deadline_still_converges(rig: &dyn ConformanceRig) {
    for deadline in [0, 1, 2, 5, 10, 20, 50, 100, 200].map(Duration::from_millis) {
        let mark = rig.mark();
        let (backend, spec) = (rig.backend(), rig.spec(&mark));
        // The first one is dropped at its deadline; the second one finds what that left.
        let _late = tokio::time::timeout(deadline, backend.create(&spec)).await;
        made(rig, &mark).await;
        exactly_one(rig, &mark).await;
        let _late = tokio::time::timeout(deadline, backend.delete(&mark)).await;
        gone(rig, &mark).await;
    }
}
