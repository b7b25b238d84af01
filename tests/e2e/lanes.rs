//! Rounds of tries, many tries side by side, until a round has found nothing to do any more.

use std::cell::RefCell;

use futures::future::join_all;

/// More rounds than any life has steps.
const MOST: usize = 1000;

/// Calls `attempt` with 0, 1, 2.. in as many lanes, each `variants` of them a round, and begins no more once each of some
/// round has answered that there was nothing to do. Tells how many there were.
pub(crate) async fn lanes(lanes: usize, variants: usize, attempt: impl AsyncFn(usize) -> bool) -> usize {
    let answers: RefCell<Vec<Option<bool>>> = RefCell::default();
    let next = || {
        let mut answers = answers.borrow_mut();
        let is_idle = answers.chunks_exact(variants).any(|round| round.iter().all(|answer| *answer == Some(false)));
        assert!(answers.len() < MOST * variants, "it never ends");
        answers.push(None);
        (!is_idle).then(|| answers.len() - 1)
    };
    join_all((0..lanes).map(|_| async {
        while let Some(number) = next() {
            let answer = attempt(number).await;
            answers.borrow_mut()[number] = Some(answer);
        }
    }))
    .await;
    answers.borrow().iter().flatten().count()
}
