//! The suite against a world of a few lines: it passes a good backend, and it fails the faults that it is there for.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;

use self::world::{Fault, Rig};
use super::*;

mod world;

/// The names of the claims that this fault fails.
async fn failures(fault: Fault) -> Vec<&'static str> {
    let mut failed = Vec::new();
    macro_rules! each {
        ($($claim:ident)*) => {$(
            let rig = Rig::new(fault);
            if AssertUnwindSafe($claim(&rig)).catch_unwind().await.is_err() {
                failed.push(stringify!($claim));
            }
        )*};
    }
    each! {
        the_check_of_a_well_host_passes what_was_never_made_is_not_found a_created_instance_is_got_and_listed
        a_second_create_makes_no_second_instance deleting_twice_is_once creates_and_deletes_side_by_side_do_not_mix
        a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched a_second_create_goes_on_after_any_cut
        a_delete_ends_a_create_cut_at_any_await a_create_that_ends_after_its_cancel_is_found_and_not_doubled
        a_delete_cut_at_any_await_goes_on a_create_past_its_deadline_still_converges
        a_stopped_instance_is_told_as_stopped_and_can_be_made_anew a_paused_instance_is_not_stopped_and_not_absent
        an_instance_that_cannot_be_read_is_never_stopped_or_absent created_at_is_told_and_stays
        two_looks_at_an_instance_that_did_not_change_are_equal a_list_that_cannot_be_read_whole_is_an_error_or_shows_what_it_could_not_read
        get_finds_what_a_list_does_not_show_yet_and_a_list_never_shows_what_was_never_made
        a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted
        an_instance_whose_mark_was_changed_by_hand_is_left_alone
        another_operators_list_is_empty_and_its_delete_touches_nothing no_secret_is_in_a_debug_or_an_error
    }
    failed
}

#[tokio::test(start_paused = true)]
async fn a_good_backend_passes_every_claim() {
    assert_eq!(failures(Fault::None).await, Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn each_fault_fails_the_claim_that_is_about_it() {
    const LAGS: &str = "get_finds_what_a_list_does_not_show_yet_and_a_list_never_shows_what_was_never_made";
    const ENTRIES: &str = "a_list_of_the_whole_backend_has_other_entries_instances_and_they_can_be_deleted";
    const BY_HAND: &str = "an_instance_whose_mark_was_changed_by_hand_is_left_alone";
    const OPERATORS: &str = "another_operators_list_is_empty_and_its_delete_touches_nothing";
    const UNREADABLE: &str = "an_instance_that_cannot_be_read_is_never_stopped_or_absent";
    for (fault, claims) in [
        (Fault::Doubles, &["a_second_create_makes_no_second_instance"][..]),
        (Fault::LosesHalfMade, &["a_delete_ends_a_create_cut_at_any_await"]),
        (Fault::ForgetsLateCreates, &["a_second_create_goes_on_after_any_cut"]),
        (
            Fault::DeletesForeign,
            &["a_foreign_instance_of_our_name_is_a_conflict_and_is_not_touched", BY_HAND, OPERATORS],
        ),
        (Fault::ListsForeign, &["a_created_instance_is_got_and_listed", BY_HAND, OPERATORS]),
        (Fault::DeletesOnce, &["deleting_twice_is_once"]),
        (Fault::SharesPort, &["creates_and_deletes_side_by_side_do_not_mix"]),
        (Fault::TellsStoppedAsRunning, &["a_stopped_instance_is_told_as_stopped_and_can_be_made_anew"]),
        (Fault::TellsPausedAsStopped, &["a_paused_instance_is_not_stopped_and_not_absent"]),
        (Fault::TellsUnreadableAsAbsent, &[UNREADABLE]),
        (Fault::TellsUnreadableAsStopped, &[UNREADABLE]),
        (
            Fault::ListsPart,
            &["a_list_that_cannot_be_read_whole_is_an_error_or_shows_what_it_could_not_read", UNREADABLE],
        ),
        (Fault::ListsNothing, &["a_list_that_cannot_be_read_whole_is_an_error_or_shows_what_it_could_not_read"]),
        (Fault::GetsFromTheList, &[LAGS]),
        (Fault::ListsWhatWasAskedFor, &[LAGS]),
        (Fault::ListsTheDead, &[LAGS]),
        (Fault::ListsOwnEntryOnly, &[ENTRIES]),
        (Fault::ListsEveryEntry, &[ENTRIES]),
        (Fault::ListsAllAsStopped, &["a_created_instance_is_got_and_listed"]),
        (Fault::GetsOwnEntryOnly, &[ENTRIES]),
        (Fault::DeletesOwnEntryOnly, &[ENTRIES]),
        (Fault::HidesHalves, &["a_create_that_ends_after_its_cancel_is_found_and_not_doubled"]),
        (Fault::CreatedJustNow, &["created_at_is_told_and_stays"]),
        (Fault::CreatedAtTheEpoch, &["created_at_is_told_and_stays"]),
        (Fault::CreatedTomorrow, &["created_at_is_told_and_stays"]),
        (Fault::ForgetsTheAgeInLists, &["created_at_is_told_and_stays"]),
        (Fault::CountsLooks, &["two_looks_at_an_instance_that_did_not_change_are_equal"]),
        (Fault::SaysThePassword, &["no_secret_is_in_a_debug_or_an_error"]),
        (Fault::SaysTheUserData, &["no_secret_is_in_a_debug_or_an_error"]),
    ] {
        let failed = failures(fault).await;
        for claim in claims {
            assert!(failed.contains(claim), "{fault:?} passes `{claim}`; it fails {failed:?}");
        }
    }
}
