//! Two writers in one pool, interleaved by chance, with faults that stop after a while.

use std::collections::VecDeque;

use proptest::prelude::*;
use tokio::time::{sleep, timeout};

use super::super::scripted::{Fault, ScriptedSource, ScriptedStore, Wrong};
use super::*;

const SIZE: u64 = 700 * 1024;

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0..SIZE).prop_map(Fault::FailAt),
        (0..SIZE).prop_map(Fault::StallAt),
        (0..SIZE).prop_map(Fault::FullAt),
        Just(Fault::CreateLost),
        Just(Fault::MarkerBroken),
        Just(Fault::MarkerLost),
        Just(Fault::DeleteFails),
    ]
}

fn wrong() -> impl Strategy<Value = Option<Wrong>> {
    prop_oneof![
        2 => Just(None),
        1 => (0..SIZE).prop_map(|at| Some(Wrong::EndsAt(at))),
        1 => (0..SIZE).prop_map(|at| Some(Wrong::SilentAt(at))),
    ]
}

/// One writer: begins after a while, is killed some times in the middle, and tries until the base is there.
async fn writer(store: Arc<ScriptedStore>, source: Arc<ScriptedSource>, begins: u64, kills: Vec<u64>) -> u32 {
    sleep(Duration::from_millis(begins)).await;
    let want = wanted(Some(digest(&source.content())));
    let mut kills = kills.into_iter();
    for tries in 1..100 {
        let run = fetch(store.clone(), source.clone(), want.clone());
        let ended = match kills.next() {
            // Dropping its flights cuts it, as the end of the process does.
            Some(after) => timeout(Duration::from_millis(after), run).await.ok(),
            None => Some(run.await),
        };
        if let Some(Ok(base)) = ended {
            assert_eq!(base.name, NAME);
            assert_eq!(store.whole(NAME), Some(source.content()), "a base that is not whole was given out");
            return tries;
        }
        sleep(Duration::from_secs(3)).await;
    }
    panic!("no base after a hundred tries");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn two_writers_never_give_out_a_part_and_both_end_with_the_base(
        seed: u64,
        faults in prop::collection::vec(fault(), 0..5),
        wrongs in prop::collection::vec(wrong(), 0..5),
        begins in 0_u64..3000,
        kills in prop::collection::vec(100_u64..4000, 0..3),
        others in prop::collection::vec(100_u64..4000, 0..3),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let store = ScriptedStore::slow(seed, (Duration::from_millis(100), Duration::from_millis(200)));
            store.pool().faults = faults.into();
            let source = ScriptedSource::disk(SIZE);
            *source.wrongs.lock().unwrap() = VecDeque::from(wrongs);
            let one = writer(store.clone(), source.clone(), 0, kills);
            let other = writer(store.clone(), source.clone(), begins, others);
            tokio::join!(one, other);
            assert_eq!(store.whole(NAME), Some(source.content()));
            assert_eq!(store.pool().whole_deleted, Vec::<String>::new(), "a whole base was deleted");
            assert_eq!(store.pool().volumes.len(), 2);
        });
    }
}
