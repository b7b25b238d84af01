//! From nothing to an instance, and from a lost instance to the next one.

use super::*;

#[test]
fn a_managed_proxy_is_made_in_order_and_offered_once_it_is_healthy() {
    let mut life = Life::of(managed());
    assert_eq!(life.step(), Step::ReserveHost);
    assert_eq!(life.phase(), Phase::Pending);
    life.tell(|seen, now| seen.on_reserved(Ok(host("a")), now));
    assert_eq!(life.plan.step, Step::RecordFinalizer { host: host("a") });
    life.tell(|seen, now| seen.on_adopted(Ok(()), now));
    assert_eq!(life.plan.step, Step::Nothing, "an accepted write is not a seen one");
    life.edit(|desired| {
        desired.finalizer = true;
        desired.host = Some(host("a"));
    });
    assert_eq!(life.plan.step, get());
    assert_eq!(life.phase(), Phase::Provisioning);
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, create());
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::False, Reason::Creating));
    life.tell(|seen, now| seen.on_create(Ok(instance("1", InstanceState::Starting, None)), now));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::False, Reason::WaitingForAddress));
    assert_eq!(life.plan.track, None);
    life.wait_for_wake();
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    assert_eq!(life.plan.track.as_ref().map(|track| track.presumed), Some(false));
    assert_eq!(life.withdrawn_for(), Some(Reason::NotProbed));
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::NotProbed));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Unknown, false), now));
    assert_eq!(life.message(ConditionType::Ready), "no probe has decided yet; the latest one failed: ProxyTimeout");
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
    assert_eq!(life.phase(), Phase::Ready);
    assert_eq!(life.plan.status.endpoint.as_deref(), Some("http://10.0.0.9:3128"));
    assert_eq!(life.plan.notices.iter().map(|n| n.reason).collect::<Vec<_>>(), [Reason::Healthy]);
    assert!(life.turn().notices.is_empty(), "an event is told once");
    assert_eq!(life.plan.step, Step::Nothing);
    assert_eq!(life.plan.wake, None, "a fleet at rest is at rest");
}

#[test]
fn a_write_that_is_never_seen_is_made_again() {
    let mut life = Life::of(managed());
    life.turn();
    life.tell(|seen, now| seen.on_reserved(Ok(host("a")), now));
    life.tell(|seen, now| seen.on_adopted(Ok(()), now));
    life.edit(|desired| desired.finalizer = true);
    assert_eq!(life.plan.step, Step::Nothing, "half of the patch is not the patch");
    life.edit(|desired| (desired.finalizer, desired.host) = (false, Some(host("a"))));
    assert_eq!(life.plan.step, Step::Nothing, "nor is the other half");
    life.wait_for_wake();
    assert_eq!(life.plan.step, Step::RecordFinalizer { host: host("a") });
}

#[test]
fn what_came_about_otherwise_is_no_trouble_any_more() {
    let mut life = Life::of(managed());
    life.turn();
    life.tell(|seen, now| seen.on_reserved(Ok(host("a")), now));
    life.tell(|seen, now| seen.on_adopted(Err(transient(Reason::Timeout)), now));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::False, Reason::Timeout));
    life.edit(|desired| {
        desired.finalizer = true;
        desired.host = Some(host("a"));
    });
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::False, Reason::Creating), "the write was done");

    let mut init = managed();
    if let Flavor::Managed(managed) = &mut init.flavor {
        managed.cloud_init = Some(CloudInit::Secret { name: "init".into(), key: "user-data".into() });
    }
    let mut life = Life::adopted(init);
    life.turn();
    life.tell(|seen, now| seen.on_get(gone(), now));
    life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotFound)), now));
    assert_eq!(life.phase(), Phase::Failed);
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    assert_eq!(
        life.condition(ConditionType::Provisioned),
        (Truth::True, Reason::Provisioned),
        "user data is not needed"
    );
}

#[test]
fn an_instance_that_is_there_already_is_adopted_and_not_made() {
    let mut life = Life::adopted(managed());
    life.turn();
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    assert_eq!(life.plan.step, Step::Nothing);
    assert!(life.plan.track.is_some());
}

#[test]
fn secrets_are_read_before_the_create_and_again_before_the_next_one() {
    let mut life = Life::adopted(with_secret(managed()));
    let read =
        || SecretsRead { credentials: Some(credentials("p")), user_data: Some(Ok(SecretBytes(Arc::from(*b"#x")))) };
    assert_eq!(life.step(), Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read()), now));
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, create());
    assert!(life.seen.user_data(&life.desired).is_some() && life.seen.credentials().is_some());
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    assert!(life.seen.user_data(&life.desired).is_none(), "user data is not kept in memory for nothing");
    assert_eq!(life.plan.track.as_ref().expect("has an address").route.credentials, Some(credentials("p")));
    life.tell(|seen, now| seen.on_listed(None, now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, Step::ReadSecrets);
}

#[test]
fn a_transient_failure_is_retried_later_and_later_and_the_phase_stays() {
    let mut life = Life::adopted(managed());
    life.turn();
    life.tell(|seen, now| seen.on_get(gone(), now));
    let mut waits = Vec::new();
    for _ in 0..12 {
        assert_eq!(life.plan.step, create());
        life.tell(|seen, now| seen.on_create(Err(transient(Reason::QuotaExceeded)), now));
        assert_eq!(life.plan.step, get(), "get before create");
        assert_eq!(life.phase(), Phase::Provisioning);
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::False, Reason::QuotaExceeded));
        life.tell(|seen, now| seen.on_get(gone(), now));
        waits.push(life.now.until(life.plan.wake.expect("it is retried")));
        life.wait_for_wake();
    }
    let cap = life.settings.retry.1;
    assert!(waits[0] <= life.settings.retry.0 && waits[11] >= cap / 2 && waits[11] <= cap, "{waits:?}");
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::Provisioned));
}

#[test]
fn having_to_wait_for_a_slot_is_not_told() {
    let mut life = Life::adopted(managed());
    life.turn();
    let before = life.plan.status.clone();
    life.tell(|seen, now| seen.on_get(Err(transient(Reason::Busy)), now));
    assert!(!life.plan.status.differs_from(&before));
    life.wait_for_wake();
    assert_eq!(life.plan.step, get());
}

#[test]
fn a_permanent_failure_latches_until_something_changes_or_the_slow_timer_ends() {
    let ways: [Row<fn(&mut Life)>; 5] = [
        ("host", |life| {
            life.tell(|seen, _| seen.on_host_recovered());
        }),
        ("generation", |life| {
            life.edit(|desired| desired.generation += 1);
        }),
        ("secret", |life| {
            life.tell(|seen, _| seen.on_secret_changed());
        }),
        ("config", |life| {
            life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(facts(2))));
        }),
        ("timer", |life| {
            life.wait_for_wake();
        }),
    ];
    for (way, open) in ways {
        let mut life = Life::adopted(managed());
        life.turn();
        life.tell(|seen, now| seen.on_get(gone(), now));
        life.tell(|seen, now| seen.on_create(Err(permanent(Reason::PoolNotFound)), now));
        assert_eq!(life.phase(), Phase::Failed, "{way}");
        assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::PoolNotFound), "{way}");
        assert_eq!(life.warned(), [Reason::PoolNotFound], "{way}");
        life.tell(|seen, now| seen.on_get(gone(), now));
        life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(facts(1))));
        life.wait(Duration::from_mins(1));
        assert_eq!(life.plan.step, Step::Nothing, "{way}");
        assert_eq!(life.phase(), Phase::Failed, "{way}");
        open(&mut life);
        assert_eq!(life.plan.step, create(), "{way}");
    }
}

#[test]
fn a_stopped_or_gone_instance_is_warned_about_and_made_anew() {
    // A failed probe, or the list, asks for a look; only the look concludes.
    let signs: [Row<fn(&mut Life)>; 4] = [
        ("list: absent", |life| {
            life.tell(|seen, now| seen.on_listed(None, now));
        }),
        ("list: stopped", |life| {
            let row = instance("1", InstanceState::Stopped, None);
            life.tell(|seen, now| seen.on_listed(Some(&row), now));
        }),
        ("list: another one", |life| {
            life.tell(|seen, now| seen.on_listed(Some(&running("2")), now));
        }),
        ("probe", |life| {
            life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, false), now));
        }),
    ];
    for (sign, show) in signs {
        let mut life = Life::ready();
        show(&mut life);
        assert_eq!(life.plan.step, get(), "{sign}");
        assert!(life.offers(), "{sign}: a sign is not a proof");
        life.tell(|seen, now| seen.on_get(gone(), now));
        assert_eq!(life.plan.step, create(), "{sign}: gone is made anew");
        assert_eq!(life.withdrawn_for(), Some(Reason::NotFound), "{sign}");
        assert_eq!(life.warned(), [Reason::NotFound], "{sign}");
        assert_eq!(life.plan.status.address, None, "{sign}");

        let mut life = Life::ready();
        show(&mut life);
        life.tell(|seen, now| seen.on_get(Ok(instance("1", InstanceState::Stopped, None)), now));
        assert_eq!(life.plan.step, delete(Reason::InstanceStopped), "{sign}");
        assert_eq!(life.warned(), [Reason::InstanceStopped], "{sign}");
        life.tell(|seen, now| seen.on_delete(Ok(()), now));
        assert_eq!(life.plan.step, get(), "{sign}: accepted is not done");
        life.tell(|seen, now| seen.on_get(gone(), now));
        assert_eq!(life.plan.step, create(), "{sign}");
        assert_eq!(life.warned(), [], "{sign}: told once");
        life.tell(|seen, now| seen.on_create(Ok(running("2")), now));
        assert_eq!(life.withdrawn_for(), Some(Reason::NotProbed), "{sign}: the new one inherits no verdict");
        life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
        assert!(life.offers(), "{sign}");
    }
}

#[test]
fn an_instance_that_keeps_stopping_is_made_anew_later_and_later() {
    let mut life = Life::ready();
    let mut delays = Vec::new();
    for n in 0..6 {
        life.tell(|seen, now| seen.on_listed(None, now));
        life.tell(|seen, now| seen.on_get(gone(), now));
        delays.push(life.plan.wake.map_or(Duration::ZERO, |wake| life.now.until(wake)));
        if life.plan.step != create() {
            life.wait_for_wake();
        }
        assert_eq!(life.plan.step, create());
        life.tell(|seen, now| seen.on_create(Ok(running(&format!("n{n}"))), now));
    }
    assert_eq!(delays[0], Duration::ZERO, "the first is replaced at once");
    assert!(delays[5] > Duration::from_secs(7), "{delays:?}");
}

#[test]
fn paused_is_not_stopped_and_unknown_is_unknown() {
    for (state, reason) in
        [(InstanceState::Paused, Reason::InstancePaused), (InstanceState::Unknown, Reason::InstanceUnknown)]
    {
        let mut life = Life::ready();
        life.tell(|seen, now| seen.on_listed(Some(&instance("1", state, None)), now));
        assert_eq!(life.plan.step, Step::Nothing, "{state:?}");
        assert!(life.offers(), "{state:?}: the probes say whether it serves");
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, reason));
        assert_eq!(life.plan.status.address.as_deref(), Some("10.0.0.9"), "an address not told is not an address lost");
    }
}

#[test]
fn a_failure_to_read_never_demotes_a_working_proxy() {
    let errors = [
        transient(Reason::Unreachable),
        permanent(Reason::HostKeyMismatch),
        OpError::effect_unknown(Reason::Lost, "x"),
    ];
    for error in errors {
        let mut life = Life::ready();
        life.tell(|seen, now| seen.on_listed(None, now));
        life.tell(|seen, now| seen.on_get(Err(error.clone()), now));
        assert!(life.offers(), "{error}");
        assert_eq!(life.phase(), Phase::Ready, "{error}");
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, error.reason));
        assert_eq!(life.plan.status.address.as_deref(), Some("10.0.0.9"));
        life.wait_for_wake();
        assert_eq!(life.plan.step, get(), "{error}: and it is looked at again");
    }
}

#[test]
fn after_a_create_whose_end_was_not_seen_comes_a_look() {
    let mut life = Life::adopted(managed());
    life.turn();
    life.tell(|seen, now| seen.on_get(gone(), now));
    life.tell(|seen, now| seen.on_create(Err(OpError::effect_unknown(Reason::Timeout, "no answer in 60 s")), now));
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(Ok(running("late")), now));
    assert_eq!(life.plan.step, Step::Nothing, "it is adopted");
    assert!(life.plan.track.is_some());
}

#[test]
fn an_instance_without_an_address_is_told_and_neither_replaced_nor_forgotten() {
    let mut life = Life::adopted(managed());
    life.turn();
    let starting = || instance("1", InstanceState::Running, None);
    life.tell(|seen, now| seen.on_get(Ok(starting()), now));
    let mut told = Vec::new();
    for _ in 0..60 {
        life.wait_for_wake();
        told.extend(life.warned());
        if life.plan.step == get() {
            life.tell(|seen, now| seen.on_get(Ok(starting()), now));
            told.extend(life.warned());
        }
    }
    assert_eq!(told, [Reason::AddressTimeout]);
    assert_eq!(life.phase(), Phase::Provisioning);
    life.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    assert!(life.plan.track.is_some(), "the list tells addresses too");
}

#[test]
fn a_paused_proxy_is_left_alone_and_goes_on_serving() {
    let mut life = Life::of(Desired { paused: true, ..managed() });
    assert_eq!(life.step(), Step::Nothing);
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::Paused));

    let mut life = Life::ready();
    life.edit(|desired| desired.paused = true);
    assert!(life.offers());
    assert_eq!(life.condition(ConditionType::Ready), (Truth::True, Reason::Paused));
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert!(life.offers(), "it is not replaced");
    life.tell(|seen, now| seen.on_listed(None, now));
    life.tell(|seen, now| seen.on_get(Ok(instance("1", InstanceState::Stopped, None)), now));
    assert_eq!(life.plan.step, Step::Nothing);
    assert!(!life.offers(), "what has stopped does not serve");
    assert!(!life.ends_leases(), "whoever paused it may start it again");
    life.edit(|desired| desired.paused = false);
    assert_eq!((life.plan.step.clone(), life.ends_leases()), (delete(Reason::InstanceStopped), true));
}

#[test]
fn a_new_recreate_value_drains_replaces_and_is_recorded() {
    let mut life = Life::ready();
    life.settings.drain_timeout = Duration::from_mins(1);
    life.tell(|seen, _| seen.on_leases_left(1));
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert_eq!(life.withdrawn_for(), Some(Reason::RecreateRequested));
    assert_eq!(life.plan.step, Step::Nothing, "a lease is out");
    assert!(life.plan.track.is_some(), "what still serves leases is still probed");
    assert!(!life.ends_leases() && life.plan.cordon == Some(Cordon { drain_by: life.plan.wake }), "{:?}", life.plan);
    life.tell(|seen, _| seen.on_leases_left(0));
    assert_eq!(life.plan.step, delete(Reason::RecreateRequested));
    assert!(life.ends_leases());
    assert_eq!(life.plan.status.recreated, None);
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.edit(|desired| desired.annotations.recreate = None);
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.step, create(), "once begun it goes on, whatever the annotation says now");
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    life.tell(|seen, now| seen.on_create(Ok(running("2")), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert_eq!(life.withdrawn_for(), Some(Reason::RecreateRequested), "the value came after the create had begun");
}

#[test]
fn a_recreate_value_is_answered_once() {
    let mut life = Life::ready();
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert_eq!(life.plan.step, delete(Reason::RecreateRequested), "without a drain timeout at once");
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(life.plan.status.recreated.as_deref(), Some("2"), "recorded with the create, not after it");
    life.tell(|seen, now| seen.on_create(Ok(running("2")), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
    let mut next = Life::after_restart(life.desired.clone(), Some(life.plan.status.clone()));
    next.tell(|seen, now| seen.on_listed(Some(&running("2")), now));
    assert_eq!(next.plan.step, Step::Nothing);
    assert!(next.offers());
}

#[test]
fn an_instance_unhealthy_for_recreate_after_is_replaced() {
    let mut life = Life::ready();
    life.edit(|desired| desired.recreate_after = Some(Duration::from_mins(30)));
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    assert_eq!(life.phase(), Phase::Unhealthy);
    life.wait(Duration::from_mins(29)).tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert_eq!(life.plan.step, Step::Nothing);
    life.wait_for_wake();
    assert_eq!(life.plan.step, delete(Reason::RecreateAfterUnhealthy));
    assert_eq!(life.warned(), [Reason::RecreateAfterUnhealthy]);
}

#[test]
fn without_the_claim_nothing_is_started_and_nothing_is_forgotten() {
    let mut life = Life::ready();
    life.tell(|seen, _| seen.on_claim(false));
    life.tell(|seen, now| seen.on_listed(None, now));
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert_eq!(life.plan.step, Step::Nothing);
    life.edit(|desired| desired.annotations.recreate = None);
    assert!(life.offers());
    life.edit(|desired| desired.deleting = true);
    assert_eq!(life.plan.step, Step::Nothing);
    life.tell(|seen, _| seen.on_claim(true));
    assert_eq!(life.plan.step, delete(Reason::Deleting));
}

#[test]
fn without_its_provider_or_host_a_working_proxy_works_and_a_new_one_says_what_is_missing() {
    let without_host = ProviderSeen::Configured(ProviderFacts { hosts: Arc::from([place("b")]), ..facts(2) });
    for (provider, reason) in
        [(ProviderSeen::NotConfigured, Reason::ProviderNotConfigured), (without_host, Reason::HostNotConfigured)]
    {
        let mut life = Life::ready();
        life.tell(|seen, _| seen.on_provider(provider.clone()));
        assert!(life.offers());
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, reason));
        let mut life = Life::adopted(managed());
        life.tell(|seen, _| seen.on_provider(provider));
        assert_eq!((life.phase(), life.plan.step.clone()), (Phase::Failed, Step::Nothing));
        assert_eq!(life.condition(ConditionType::Ready), (Truth::False, reason));
        life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(facts(3))));
        assert_eq!(life.plan.step, get());
    }
}

#[test]
fn an_entry_that_leads_elsewhere_makes_nothing_anew_and_is_not_believed_about_what_it_left() {
    let elsewhere = || {
        let ids = "kvm://kvm/a/elsewhere/".into();
        ProviderSeen::Configured(ProviderFacts { hosts: Arc::from([HostFacts { ids, ..place("a") }]), ..facts(2) })
    };
    let recorded = Life::ready().plan.status;
    let desired = Desired { finalizer: true, host: Some(host("a")), ..managed() };
    // At run time, after a restart, and with a create whose end nobody saw.
    let mut cut = Life::adopted(managed());
    cut.turn();
    cut.tell(|seen, now| seen.on_get(gone(), now));
    assert_eq!(cut.plan.step, create());
    cut.tell(|seen, now| seen.on_create(Err(OpError::effect_unknown(Reason::Lost, "cut")), now));
    for (mut life, serves) in
        [(Life::ready(), true), (Life::after_restart(desired, Some(recorded)), true), (cut, false)]
    {
        life.tell(|seen, _| seen.on_provider(elsewhere()));
        if life.seen.on_host.is_some() {
            life.tell(|seen, now| seen.on_get(Err(transient(Reason::Lost)), now));
        }
        life.tell(|seen, now| seen.on_listed(None, now));
        assert_eq!((life.plan.step.clone(), life.offers()), (Step::Nothing, serves));
        assert_eq!(life.condition(ConditionType::Provisioned).1, Reason::HostNotConfigured);
        assert!(life.message(ConditionType::Provisioned).contains("another backend"));
        // Put back, it is as it was.
        life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(facts(3))));
        if life.plan.step == get() {
            life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
        }
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::Provisioned));
    }
}

#[test]
fn the_host_of_an_instance_never_moves() {
    // Somebody edits the annotation: the instance would be forgotten on `a`, and a second one made on `b`.
    let mut life = Life::ready();
    life.edit(|desired| desired.host = Some(host("b")));
    assert_eq!(life.plan.step, Step::RecordFinalizer { host: host("a") });
    let mut next = Life::after_restart(life.desired.clone(), Some(life.plan.status.clone()));
    assert_eq!(next.step(), Step::RecordFinalizer { host: host("a") });
    life.edit(|desired| desired.deleting = true);
    life.tell(|seen, now| seen.on_adopted(Ok(()), now));
    assert_eq!(life.plan.step, delete(Reason::Deleting));
}

#[test]
fn what_works_is_not_given_up_for_what_cannot_be_made() {
    // Nobody can be asked for a new one.
    let mut life = Life::ready();
    life.tell(|seen, _| seen.on_provider(ProviderSeen::NotConfigured));
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert!(life.offers(), "{:?}", life.plan);
    life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(facts(2))));
    assert_eq!(life.plan.step, delete(Reason::RecreateRequested));

    // What it is to be made with cannot be read.
    let mut life = Life::ready();
    let Flavor::Managed(managed) = &mut life.desired.flavor else { panic!("managed") };
    managed.cloud_init = Some(CloudInit::Secret { name: "init".into(), key: "user-data".into() });
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert_eq!((life.plan.step.clone(), life.offers()), (Step::ReadSecrets, true));
    let gone = OpError::transient(Reason::SecretNotFound, "there is no such Secret");
    life.tell(|seen, now| seen.on_secrets(Ok(SecretsRead { credentials: None, user_data: Some(Err(gone)) }), now));
    assert!(life.offers() && life.plan.step == Step::Nothing, "{:?}", life.plan);
    life.tell(|seen, _| seen.on_secret_changed());
    let read = Some(Ok(SecretBytes(Arc::from(*b"#x"))));
    life.tell(|seen, now| seen.on_secrets(Ok(SecretsRead { credentials: None, user_data: read }), now));
    assert_eq!(life.plan.step, delete(Reason::RecreateRequested));
}
