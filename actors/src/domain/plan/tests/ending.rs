//! Deletion, from every state.

use super::*;

type Happens<'a> = Row<&'a dyn Fn(&mut Life)>;

#[test]
fn a_deletion_withdraws_deletes_looks_and_then_drops_the_finalizer() {
    let mut life = Life::ready();
    life.wait(SETTLE);
    life.edit(|desired| desired.deleting = true);
    assert_eq!(life.withdrawn_for(), Some(Reason::Deleting));
    assert_eq!((life.phase(), life.plan.track.clone()), (Phase::Deleting, None));
    assert_eq!(life.plan.step, delete(Reason::Deleting));
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(Ok(instance("1", InstanceState::Deleting, None)), now));
    life.wait_for_wake();
    assert_eq!(life.plan.step, get(), "under way is not gone");
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
    life.tell(|seen, now| seen.on_released(Ok(()), now));
    assert_eq!(life.plan.step, Step::Nothing);
    life.edit(|desired| desired.finalizer = false);
    assert_eq!(life.plan.step, Step::Done);
}

#[test]
fn a_release_that_is_never_seen_is_made_again() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    life.tell(|seen, now| seen.on_released(Err(transient(Reason::Unreachable)), now));
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::DeletionBlocked));
    life.wait_for_wake();
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
    life.tell(|seen, now| seen.on_released(Ok(()), now));
    life.wait_for_wake();
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn a_deletion_waits_for_leases_up_to_the_drain_timeout() {
    for (leases, waits) in [(Some(1), true), (None, true), (Some(0), false)] {
        let mut life = Life::ready();
        life.settings.drain_timeout = Duration::from_mins(2);
        life.edit(|desired| desired.deleting = true);
        assert_eq!(life.plan.step, Step::Nothing, "a count from before the withdrawal says nothing");
        life.turn();
        assert_eq!(life.plan.step, Step::Nothing, "however often it is asked");
        if let Some(leases) = leases {
            life.tell(|seen, _| seen.on_leases_left(leases));
        }
        assert_eq!(life.plan.step == Step::Nothing, waits, "{leases:?}");
        if waits {
            assert_eq!((life.withdrawn_for(), life.ends_leases()), (Some(Reason::Deleting), false));
            let until = Some(Cordon { drain_by: life.plan.wake });
            assert_eq!(life.plan.cordon, until, "its holders are told until when they have it");
            life.wait_for_wake();
        }
        assert_eq!(life.plan.step, delete(Reason::Deleting), "{leases:?}");
        assert!(life.ends_leases());
    }
}

#[test]
fn leases_end_with_the_wait_for_them_though_nobody_can_delete_the_instance() {
    let mut life = Life::ready();
    life.tell(|seen, _| seen.on_provider(ProviderSeen::Unknown));
    life.edit(|desired| desired.deleting = true);
    assert_eq!((life.plan.step.clone(), life.ends_leases()), (Step::Nothing, true));
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_delete(Err(OpError::transient(Reason::Timeout, "no answer")), now));
    assert!(life.ends_leases());
}

#[test]
fn what_was_never_made_is_done_at_once() {
    for desired in [managed(), external()] {
        let mut life = Life::of(Desired { deleting: true, ..desired.clone() });
        assert_eq!(life.step(), Step::Done);
        let mut life = Life::of(Desired { deleting: true, finalizer: true, ..desired });
        assert_eq!(life.step(), Step::ReleaseFinalizer, "a finalizer that is there goes");
    }
    // A host was chosen and not recorded.
    let mut life = Life::of(managed());
    life.turn();
    life.tell(|seen, now| seen.on_reserved(Ok(host("a")), now));
    life.tell(|seen, now| seen.on_adopted(Ok(()), now));
    life.edit(|desired| desired.deleting = true);
    assert_eq!(life.plan.step, Step::Done);
    // And the write shows after all.
    life.edit(|desired| {
        desired.finalizer = true;
        desired.host = Some(host("a"));
    });
    assert_eq!(life.plan.step, delete(Reason::Deleting));
}

#[test]
fn what_carries_another_owners_mark_is_told_and_left_and_the_object_goes() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    let conflict = OpError::permanent(Reason::NameConflict, "pod `squids/px-1` belongs to somebody");
    life.tell(|seen, now| seen.on_delete(Err(conflict), now));
    match life.plan.step.clone() {
        Step::EmitGivenUp { reason: Reason::NameConflict, note } => {
            assert!(note.contains("belongs to somebody") && note.contains("host `a`"), "{note}");
        }
        other => panic!("{other:?}"),
    }
    life.tell(|seen, now| seen.on_given_up(Ok(()), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn a_deletion_that_waits_for_an_operation_that_never_ends_says_so() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    let mut told = Vec::new();
    for _ in 0..6 {
        life.tell(|seen, now| seen.on_delete(Err(transient(Reason::Busy)), now));
        told.push(life.condition(ConditionType::Ready).1 == Reason::DeletionBlocked);
        life.wait_for_wake();
    }
    assert_eq!(told, [false, false, false, false, true, true]);
}

#[test]
fn a_conflict_from_before_the_deletion_is_looked_at_again() {
    let mut life = Life::ready();
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    life.tell(|seen, now| seen.on_delete(Err(permanent(Reason::NameConflict)), now));
    life.wait(SETTLE);
    life.edit(|desired| desired.deleting = true);
    if life.plan.step == Step::Nothing {
        life.wait_for_wake();
    }
    assert_eq!(life.plan.step, delete(Reason::Deleting));
}

#[test]
fn a_deletion_goes_on_from_every_trouble() {
    let states: [Row<fn() -> Life>; 7] = [
        ("permanent error in get", || {
            let mut life = Life::adopted(managed());
            life.turn();
            life.tell(|seen, now| seen.on_get(Err(permanent(Reason::PoolNotFound)), now));
            life
        }),
        ("permanent error in create", || {
            let mut life = Life::adopted(managed());
            life.turn();
            life.tell(|seen, now| seen.on_get(gone(), now));
            life.tell(|seen, now| seen.on_create(Err(permanent(Reason::PoolNotFound)), now));
            life.tell(|seen, now| seen.on_get(gone(), now));
            life
        }),
        ("missing Secret", || {
            let mut life = Life::adopted(with_secret(managed()));
            life.turn();
            life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotFound)), now));
            life.tell(|seen, now| seen.on_get(gone(), now));
            life
        }),
        ("host away", || {
            let mut life = Life::ready();
            life.tell(|seen, now| seen.on_listed(None, now));
            life.tell(|seen, now| seen.on_get(Err(transient(Reason::Unreachable)), now));
            life
        }),
        ("paused", || {
            let mut life = Life::ready();
            life.edit(|desired| desired.paused = true);
            life
        }),
        ("being replaced", || {
            let mut life = Life::ready();
            life.edit(|desired| desired.annotations.recreate = Some("2".into()));
            life.tell(|seen, now| seen.on_delete(Err(transient(Reason::Unreachable)), now));
            life.wait_for_wake();
            life.tell(|seen, now| seen.on_delete(Err(transient(Reason::Unreachable)), now));
            life
        }),
        ("finalizer taken away by hand", || {
            let mut life = Life::ready();
            life.desired.finalizer = false;
            life
        }),
    ];
    for (name, state) in states {
        let mut life = state();
        life.edit(|desired| desired.deleting = true);
        if life.plan.step == Step::Nothing {
            life.wait_for_wake();
        }
        assert_eq!(life.plan.step, delete(Reason::Deleting), "{name}");
        life.tell(|seen, now| seen.on_delete(Ok(()), now));
        while !matches!(life.plan.step, Step::ReleaseFinalizer | Step::Done) {
            match life.plan.step {
                Step::Get { .. } => life.tell(|seen, now| seen.on_get(gone(), now)),
                _ => life.wait_for_wake(),
            };
        }
    }
}

#[test]
fn a_create_in_flight_is_cut_short_and_its_late_instance_is_found() {
    let mut life = Life::adopted(managed());
    life.turn();
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, create());
    life.edit(|desired| desired.deleting = true);
    assert!(life.plan.cancel);
    assert_eq!(life.plan.step, Step::Nothing, "one operation at a time");
    life.tell(|seen, now| seen.on_create(Err(OpError::effect_unknown(Reason::Cancelled, "cut short")), now));
    assert_eq!(life.plan.step, delete(Reason::Deleting));
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::Nothing, "one clean look is not enough");
    assert_eq!(life.now.until(life.plan.wake.expect("it looks again")), SETTLE);
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(Ok(running("late")), now));
    life.wait_for_wake();
    assert_eq!(life.plan.step, delete(Reason::Deleting), "the late one is deleted");
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::Nothing, "and looked for twice again");
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn a_delete_whose_end_was_not_seen_is_repeated_and_then_looked_for_twice() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_delete(Err(OpError::effect_unknown(Reason::Timeout, "no answer in 60 s")), now));
    life.wait_for_wake();
    assert_eq!(life.plan.step, delete(Reason::Deleting));
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::Nothing);
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn a_create_whose_end_was_not_seen_is_remembered_until_it_has_settled() {
    // Long after its start, so that nothing is left to doubt; then an instance is lost, and a create is cut short.
    let settled = || {
        let mut life = Life::ready();
        life.wait(SETTLE * 2).tell(|seen, now| seen.on_listed(Some(&running("1")), now));
        life.tell(|seen, now| seen.on_listed(None, now));
        life.tell(|seen, now| seen.on_get(gone(), now));
        assert_eq!(life.plan.step, create());
        life
    };
    let clean_looks = |mut life: Life| {
        life.edit(|desired| desired.deleting = true);
        life.tell(|seen, now| seen.on_delete(Ok(()), now));
        life.tell(|seen, now| seen.on_get(gone(), now));
        if life.plan.step == Step::ReleaseFinalizer { 1 } else { 2 }
    };
    let mut seen = settled();
    seen.tell(|seen, now| seen.on_create(Ok(running("2")), now));
    assert_eq!(clean_looks(seen), 1);
    let cut = || {
        let mut life = settled();
        life.tell(|seen, now| seen.on_create(Err(OpError::effect_unknown(Reason::Lost, "no answer")), now));
        life.tell(|seen, now| seen.on_get(gone(), now));
        life.wait_for_wake();
        life.tell(|seen, now| seen.on_create(Ok(running("2")), now));
        life
    };
    assert_eq!(clean_looks(cut()), 2, "the second create went well, and the first may still land");
    let mut later = cut();
    later.wait(SETTLE).tell(|seen, now| seen.on_listed(None, now));
    later.tell(|seen, now| seen.on_get(Ok(running("2")), now));
    assert_eq!(clean_looks(later), 1);
}

#[test]
fn two_clean_looks_are_a_settle_time_apart_also_when_the_config_makes_it_longer() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_delete(Err(OpError::effect_unknown(Reason::Timeout, "no answer")), now));
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    let slower = ProviderFacts { settle: SETTLE * 3, ..facts(2) };
    life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(slower)));
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.now.until(life.plan.wake.expect("it looks again")), SETTLE * 2);
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn an_actor_that_has_just_started_doubts_what_its_predecessor_left_running() {
    let recorded = Life::ready().plan.status;
    let restart = || {
        let desired = Desired { finalizer: true, host: Some(host("a")), ..managed() };
        Life::after_restart(desired, Some(recorded.clone()))
    };
    let looks = |life: &mut Life| {
        life.edit(|desired| desired.deleting = true);
        life.tell(|seen, now| seen.on_delete(Ok(()), now));
        life.tell(|seen, now| seen.on_get(gone(), now));
        if life.plan.step == Step::ReleaseFinalizer { 1 } else { 2 }
    };
    assert_eq!(looks(&mut restart()), 2);
    let mut life = restart();
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    assert_eq!(looks(&mut life), 2, "seen running at once: something may still be on its way");
    let mut life = restart();
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    life.wait(SETTLE).tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    assert_eq!(looks(&mut life), 2, "the list may have begun before");
    let mut life = restart();
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    life.wait(SETTLE * 2).tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    assert_eq!(looks(&mut life), 1, "seen running when all had settled");
}

#[test]
fn a_delete_that_fails_is_retried_for_ever_and_says_the_way_out() {
    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    let mut warned = Vec::new();
    for error in [transient(Reason::Unreachable), permanent(Reason::Forbidden)].into_iter().cycle().take(20) {
        assert_eq!(life.plan.step, delete(Reason::Deleting));
        life.tell(|seen, now| seen.on_delete(Err(error), now));
        warned.extend(life.warned());
        assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::DeletionBlocked));
        assert!(life.message(ConditionType::Ready).contains("skip-cleanup"));
        assert!(life.now.until(life.plan.wake.expect("it is retried")) <= life.settings.retry.1);
        life.wait_for_wake();
    }
    assert_eq!(warned, [Reason::DeletionBlocked], "told once");
}

#[test]
fn what_is_given_up_is_told_and_written_before_the_finalizer_goes() {
    let without_host = || ProviderSeen::Configured(ProviderFacts { hosts: Arc::from([place("b")]), ..facts(2) });
    let moved = || {
        let ids = "kvm://kvm/a/elsewhere/".into();
        ProviderSeen::Configured(ProviderFacts { hosts: Arc::from([HostFacts { ids, ..place("a") }]), ..facts(2) })
    };
    let ways: [(Happens<'_>, Reason); 4] = [
        (
            ("another backend", &|life| {
                life.tell(|seen, _| seen.on_provider(moved()));
            }),
            Reason::HostNotConfigured,
        ),
        (
            ("skip-cleanup", &|life| {
                life.edit(|desired| desired.annotations.skip_cleanup = true);
            }),
            Reason::CleanupSkipped,
        ),
        (
            ("no provider", &|life| {
                life.tell(|seen, _| seen.on_provider(ProviderSeen::NotConfigured));
            }),
            Reason::ProviderNotConfigured,
        ),
        (
            ("no host", &|life| {
                life.tell(|seen, _| seen.on_provider(without_host()));
            }),
            Reason::HostNotConfigured,
        ),
    ];
    for ((name, happen), reason) in ways {
        let mut life = Life::ready();
        happen(&mut life);
        assert!(life.offers(), "{name}: before a deletion it changes nothing");
        life.edit(|desired| desired.deleting = true);
        let Step::EmitGivenUp { reason: told, note } = life.plan.step.clone() else {
            panic!("{name}: {:?}", life.plan)
        };
        assert_eq!(told, reason);
        for word in ["kvm://kvm/a/1", "`a`", "`kvm`", "uid-1"] {
            assert!(note.contains(word), "{name}: {word} is not in: {note}");
        }
        life.tell(|seen, now| seen.on_given_up(Err(transient(Reason::Unreachable)), now));
        assert_eq!(life.plan.step, Step::Nothing, "{name}: not written, not released");
        life.wait_for_wake();
        life.tell(|seen, now| seen.on_given_up(Ok(()), now));
        assert_eq!(life.plan.step, Step::ReleaseFinalizer, "{name}");
    }
}

#[test]
fn an_event_that_cannot_be_written_does_not_hold_the_finalizer_for_ever() {
    let given_up = || {
        let mut life = Life::ready();
        life.edit(|desired| {
            desired.deleting = true;
            desired.annotations.skip_cleanup = true;
        });
        life
    };
    let mut life = given_up();
    life.tell(|seen, now| seen.on_given_up(Err(permanent(Reason::Forbidden)), now));
    assert_eq!(life.plan.step, Step::ReleaseFinalizer, "a namespace that ends takes no events");
    let mut life = given_up();
    for _ in 0..3 {
        assert!(matches!(life.plan.step, Step::EmitGivenUp { .. }));
        life.tell(|seen, now| seen.on_given_up(Err(transient(Reason::Unreachable)), now));
        if life.plan.step == Step::Nothing {
            life.wait_for_wake();
        }
    }
    assert_eq!(life.plan.step, Step::ReleaseFinalizer);
}

#[test]
fn skip_cleanup_waits_for_nothing() {
    let mut life = Life::ready();
    life.settings.drain_timeout = Duration::from_hours(1);
    life.edit(|desired| desired.deleting = true);
    assert_eq!(life.plan.step, Step::Nothing, "draining");
    life.edit(|desired| desired.annotations.skip_cleanup = true);
    assert!(matches!(life.plan.step, Step::EmitGivenUp { .. }));

    let mut life = Life::ready();
    life.edit(|desired| desired.deleting = true);
    assert_eq!(life.plan.step, delete(Reason::Deleting));
    life.edit(|desired| desired.annotations.skip_cleanup = true);
    assert!(matches!(life.plan.step, Step::EmitGivenUp { .. }), "beside the delete that hangs");
    assert!(life.plan.cancel);
}

#[test]
fn nothing_is_given_up_before_the_providers_config_is_known() {
    let recorded = Life::ready().plan.status;
    let desired = Desired { finalizer: true, host: Some(host("a")), deleting: true, ..managed() };
    let mut life = Life::after_restart(desired, Some(recorded));
    life.tell(|seen, _| seen.on_provider(ProviderSeen::Unknown));
    assert_eq!(life.plan.step, Step::Nothing);
    life.tell(|seen, _| seen.on_provider(ProviderSeen::NotConfigured));
    assert!(matches!(life.plan.step, Step::EmitGivenUp { .. }));
}

#[test]
fn a_deletion_does_not_wait_for_leases_on_what_has_ended() {
    let mut life = Life::ready();
    life.settings.drain_timeout = Duration::from_mins(2);
    life.tell(|seen, _| seen.on_leases_left(1));
    life.edit(|desired| desired.deleting = true);
    assert!(!life.ends_leases());
    // The list tells that it has stopped, and a look that it is so.
    let stopped = instance("1", InstanceState::Stopped, None);
    life.tell(|seen, now| seen.on_listed(Some(&stopped), now));
    if life.plan.step == get() {
        life.tell(|seen, now| seen.on_get(Ok(stopped.clone()), now));
    }
    assert_eq!((life.plan.step.clone(), life.ends_leases()), (delete(Reason::Deleting), true));
}
