//! A removal that the backend has accepted, and that does not end or cannot be followed.

use super::*;

#[test]
fn a_deletion_that_no_look_can_follow_asks_again_and_ends_with_a_word_of_what_may_be_left() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    let began = life.now;
    let mut deletes = 0;
    let note = loop {
        match life.plan.step.clone() {
            Step::Delete { .. } => {
                deletes += 1;
                life.tell(|seen, now| seen.on_delete(Ok(()), now));
            }
            Step::Get { .. } => {
                life.tell(|seen, now| seen.on_get(Err(permanent(Reason::APIError)), now));
                assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::DeletionBlocked));
                assert!(life.message(ConditionType::Ready).contains("skip-cleanup"));
            }
            Step::EmitGivenUp { reason: Reason::EffectUnknown, note } => break note,
            Step::Nothing => {
                life.wait_for_wake();
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(deletes > 2, "{deletes}");
    let took = life.now.mono - began.mono;
    assert!(took >= life.settings.removed_within && took <= life.settings.removed_within * 2, "{took:?}");
    for word in ["kvm://kvm/a/1", "`a`", "`kvm`", "APIError"] {
        assert!(note.contains(word), "{word} is not in: {note}");
    }
    life.tell(|seen, now| seen.on_given_up(Ok(()), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn looks_that_fail_for_a_while_give_nothing_up() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    for _ in 0..30 {
        if life.plan.step == Step::Nothing {
            life.wait_for_wake();
        }
        assert_eq!(life.plan.step, get(), "what may pass is waited for");
        life.tell(|seen, now| seen.on_get(Err(transient(Reason::Unreachable)), now));
    }
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(Err(permanent(Reason::APIError)), now));
    assert_eq!(life.plan.step, delete(Reason::Deleting));
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer, "one look that answers is enough");
}

#[test]
fn what_turns_out_to_be_anothers_while_its_end_is_waited_for_is_told_and_left() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(Err(permanent(Reason::NameConflict)), now));
    assert_eq!(life.plan.step, delete(Reason::Deleting), "the delete is asked: it knows what it may touch");
    life.tell(|seen, now| seen.on_delete(Err(permanent(Reason::NameConflict)), now));
    assert!(matches!(life.plan.step, Step::EmitGivenUp { reason: Reason::NameConflict, .. }), "{:?}", life.plan.step);
}

#[test]
fn a_removal_that_does_not_end_says_so_in_a_deletion_and_in_a_replacement() {
    let leaving = || instance("1", InstanceState::Deleting, None);
    for deleting in [true, false] {
        let mut life = Life::ready();
        if deleting {
            life.edit(|desired| desired.deleting = true);
        } else {
            life.edit(|desired| desired.annotations.recreate = Some("2".into()));
        }
        assert!(matches!(life.plan.step, Step::Delete { .. }));
        life.tell(|seen, now| seen.on_delete(Ok(()), now));
        let began = life.now;
        let mut warned = Vec::new();
        while life.now.mono < began.mono + life.settings.removed_within * 2 {
            if life.plan.step == Step::Nothing {
                life.wait_for_wake();
                warned.extend(life.warned());
            }
            assert_eq!(life.plan.step, get());
            let early = life.now.mono < began.mono + life.settings.removed_within;
            life.tell(|seen, now| seen.on_get(Ok(leaving()), now));
            warned.extend(life.warned());
            assert_eq!(life.condition(ConditionType::Ready).1 != Reason::DeletionBlocked, early, "{deleting}");
        }
        let message = life.message(ConditionType::Ready);
        assert!(message.contains("kvm://kvm/a/1") && message.contains("120 s"), "{message}");
        assert_eq!(message.contains("skip-cleanup"), deleting, "{message}");
        assert_eq!(warned.iter().filter(|reason| **reason == Reason::DeletionBlocked).count(), 1, "{warned:?}");
    }
}
