//! When a Proxy is offered, withdrawn and cordoned, and what is told of it.

use super::*;

#[test]
fn an_external_proxy_is_tracked_and_offered_and_nothing_is_made() {
    let mut life = Life::of(external());
    assert_eq!(life.step(), Step::Nothing);
    assert_eq!(life.phase(), Phase::Pending);
    assert!(life.plan.track.is_some());
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
    assert_eq!(life.phase(), Phase::Ready);
    life.edit(|desired| desired.annotations.recreate = Some("2".into()));
    assert!(life.offers(), "there is nothing to make anew");
    life.edit(|desired| desired.deleting = true);
    assert_eq!((life.plan.step.clone(), life.withdrawn_for()), (Step::Done, Some(Reason::Deleting)));
}

#[test]
fn credentials_are_read_before_anything_is_tracked_and_follow_their_secret() {
    let read = |password| SecretsRead { credentials: Some(credentials(password)), user_data: None };
    let mut life = Life::of(with_secret(external()));
    assert_eq!(life.step(), Step::ReadSecrets);
    assert_eq!(life.plan.track, None);
    life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotLabelled)), now));
    assert_eq!(life.phase(), Phase::Failed);
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::SecretNotLabelled));
    life.tell(|seen, _| seen.on_secret_changed());
    assert_eq!(life.plan.step, Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read("old")), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    let password = |life: &Life| match &life.plan.serving {
        Serving::Offer(route) => route.credentials.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(password(&life), Some(credentials("old")));
    life.tell(|seen, _| seen.on_secret_changed());
    assert_eq!(password(&life), Some(credentials("old")), "in use until it is read again");
    // It changes once more while it is read: what was read is old already.
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Ok(read("middle")), now));
    assert_eq!(life.plan.step, Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read("new")), now));
    assert_eq!(password(&life), Some(credentials("new")));
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotFound)), now));
    assert_eq!(password(&life), Some(credentials("new")), "a failure to read never demotes");
    assert_eq!(life.phase(), Phase::Ready);
}

#[test]
fn a_secret_that_loses_its_label_is_not_used_any_more_and_comes_back_with_it() {
    let read = || SecretsRead { credentials: Some(credentials("one")), user_data: None };
    let mut life = Life::of(with_secret(external()));
    assert_eq!(life.step(), Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read()), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotLabelled)), now));
    assert!(!life.offers());
    assert_eq!(life.plan.track, None, "nor is it probed with it");
    assert_eq!(life.phase(), Phase::Failed);
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::SecretNotLabelled));
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Ok(read()), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
}

type Happens = Box<dyn FnOnce(&mut Life)>;

#[test]
fn what_a_person_must_put_right_is_told_on_a_proxy_that_serves_and_warned_of_once() {
    let secret_fails = |error: OpError| {
        Box::new(move |life: &mut Life| {
            life.tell(|seen, _| seen.on_secret_changed());
            assert_eq!(life.plan.step, Step::ReadSecrets);
            life.tell(|seen, now| seen.on_secrets(Err(error), now));
        }) as Happens
    };
    let provider = |seen: ProviderSeen| {
        Box::new(move |life: &mut Life| {
            life.tell(|known, _| known.on_provider(seen));
        }) as Happens
    };
    let no_host = || ProviderSeen::Configured(ProviderFacts { hosts: Arc::from([]), ..facts(2) });
    let bought = || {
        let mut life = Life::of(with_secret(external()));
        life.turn();
        let read = SecretsRead { credentials: Some(credentials("p")), user_data: None };
        life.tell(|seen, now| seen.on_secrets(Ok(read), now));
        life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
        life
    };
    let missing = || transient(Reason::SecretNotFound);
    let rows: Vec<(Life, Happens, Reason, &str)> = vec![
        (bought(), secret_fails(missing()), Reason::SecretNotFound, "credentials read before"),
        (bought(), secret_fails(permanent(Reason::SecretInvalid)), Reason::SecretInvalid, "credentials read before"),
        (Life::ready(), provider(ProviderSeen::NotConfigured), Reason::ProviderNotConfigured, "provider `kvm` is not"),
        (Life::ready(), provider(no_host()), Reason::HostNotConfigured, "has no host `a`"),
    ];
    for (mut life, trouble, reason, words) in rows {
        trouble(&mut life);
        assert!(life.offers(), "{reason}: it serves on");
        assert_eq!(life.phase(), Phase::Ready);
        assert_eq!(life.condition(ConditionType::Ready), (Truth::True, Reason::Healthy));
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, reason));
        for condition in [ConditionType::Ready, ConditionType::Provisioned] {
            let message = life.message(condition);
            assert!(message.contains(words), "{reason}: {message}");
        }
        assert!(life.message(ConditionType::Ready).starts_with("serving; "));
        assert_eq!(life.warned(), [reason]);
        assert!(life.plan.notices[0].note.contains(words), "{:?}", life.plan.notices);
        life.turn();
        assert_eq!(life.plan.notices, [], "{reason}: once");
        // Put right, it is as it was.
        life.tell(|seen, _| seen.on_provider(ProviderSeen::Configured(facts(3))));
        if life.plan.step == Step::ReadSecrets {
            let read = SecretsRead { credentials: Some(credentials("p")), user_data: None };
            life.tell(|seen, now| seen.on_secrets(Ok(read), now));
        }
        assert_eq!(life.message(ConditionType::Ready), "serving");
        assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::Provisioned));
    }
}

#[test]
fn an_instance_with_an_older_configuration_of_its_entry_is_told_once_until_it_is_made_anew() {
    let outdated = Instance { outdated: Some("it still reaches 10.0.0.0/8".into()), ..running("1") };
    let mut life = Life::ready();
    life.tell(|seen, now| seen.on_listed(Some(&outdated), now));
    assert!(life.offers());
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::InstanceOutdated));
    assert_eq!(life.warned(), [Reason::InstanceOutdated]);
    let ready = life.message(ConditionType::Ready);
    assert!(ready.contains("still reaches 10.0.0.0/8") && ready.contains("/recreate"), "{ready}");
    let told = life.turn().status.clone();

    // A look that fails for a while hides it no more than a restart does.
    life.tell(|seen, now| seen.on_probed(Probed { blame: Some(Blame::Proxy), ..probed(Verdict::Healthy, false) }, now));
    life.tell(|seen, now| seen.on_get(Err(transient(Reason::Unreachable)), now));
    assert_eq!((life.condition(ConditionType::Provisioned).1, life.warned()), (Reason::InstanceOutdated, vec![]));
    assert!(life.message(ConditionType::Provisioned).contains("does not answer"));
    let mut again = Life::after_restart(life.desired.clone(), Some(told.clone()));
    assert!(!again.turn().status.differs_from(&told), "{:#?}", again.plan.status);
    again.tell(|seen, now| seen.on_listed(Some(&outdated), now));
    assert!(!again.plan.status.differs_from(&told) && again.plan.notices.is_empty());
    again.tell(|seen, now| seen.on_listed(Some(&running("1")), now));
    assert_eq!(again.message(ConditionType::Ready), "serving");
}

#[test]
fn a_failure_to_read_is_no_warning_about_a_proxy_that_serves() {
    let mut life = Life::ready();
    life.tell(|seen, now| seen.on_probed(Probed { blame: Some(Blame::Proxy), ..probed(Verdict::Healthy, false) }, now));
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(Err(transient(Reason::Unreachable)), now));
    assert_eq!(life.condition(ConditionType::Provisioned), (Truth::True, Reason::Unreachable));
    assert_eq!((life.message(ConditionType::Ready).as_str(), life.warned()), ("serving", vec![]));
}

/// Whether the instance lives decides what a cloud-init Secret without its label holds up.
#[test]
fn a_cloud_init_secret_that_loses_its_label_takes_no_serving_proxy_down_and_holds_up_the_next_create_only() {
    let read =
        |password, user_data| SecretsRead { credentials: Some(credentials(password)), user_data: Some(user_data) };
    let unlabelled = || Err(permanent(Reason::SecretNotLabelled));
    let mut life = Life::adopted(with_secret(managed()));
    assert_eq!(life.step(), Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read("old", Ok(SecretBytes(Arc::from(*b"#x"))))), now));
    life.tell(|seen, now| seen.on_get(gone(), now));
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
    let before = life.plan.status.clone();

    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Ok(read("new", unlabelled())), now));
    let Serving::Offer(route) = &life.plan.serving else { panic!("{:?}", life.plan) };
    assert_eq!(route.credentials, Some(credentials("new")), "the other Secret is as good as ever");
    assert!(!life.plan.status.differs_from(&before), "{:#?}", life.plan.status);
    assert_eq!(life.plan.step, Step::Nothing);

    // It ends, and is to be made anew: now the user data is needed.
    let stopped = instance("1", InstanceState::Stopped, None);
    life.tell(|seen, now| seen.on_listed(Some(&stopped), now));
    life.tell(|seen, now| seen.on_get(Ok(stopped.clone()), now));
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    while life.plan.step != Step::ReadSecrets {
        match life.plan.step {
            Step::Get { .. } => life.tell(|seen, now| seen.on_get(gone(), now)),
            Step::Nothing => life.wait_for_wake(),
            ref other => panic!("{other:?}"),
        };
    }
    life.tell(|seen, now| seen.on_secrets(Ok(read("new", unlabelled())), now));
    assert_eq!(life.phase(), Phase::Failed);
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::SecretNotLabelled));
}

#[test]
fn a_secret_that_is_put_right_while_it_is_read_is_read_again_at_once() {
    let mut life = Life::of(with_secret(external()));
    assert_eq!(life.step(), Step::ReadSecrets);
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotLabelled)), now));
    assert_eq!(life.plan.step, Step::ReadSecrets);
    assert_ne!(life.phase(), Phase::Failed);
}

#[test]
fn an_unhealthy_proxy_is_withdrawn_and_keeps_its_address() {
    let mut life = Life::ready();
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert_eq!(life.withdrawn_for(), Some(Reason::Unhealthy));
    assert_eq!(life.phase(), Phase::Unhealthy);
    assert_eq!(life.plan.status.address.as_deref(), Some("10.0.0.9"));
    assert_eq!(life.condition(ConditionType::Healthy), (Truth::False, Reason::ProxyTimeout));
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::Unhealthy));
    assert_eq!(life.warned(), [Reason::Unhealthy]);
    assert_eq!(life.plan.step, get(), "what fails is looked at");
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    let before = life.plan.status.clone();
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert_eq!(life.plan.step, Step::Nothing, "but not at every probe");
    assert!(!life.plan.status.differs_from(&before), "and nothing new is written");
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
}

#[test]
fn the_faults_of_a_target_ask_for_no_look_at_the_instance() {
    let mut life = Life::ready();
    let target = Probed { blame: Some(Blame::Target), ..probed(Verdict::Healthy, false) };
    life.tell(|seen, now| seen.on_probed(target, now));
    assert_eq!(life.plan.step, Step::Nothing);
}

#[test]
fn a_new_address_is_probed_before_it_is_offered() {
    let mut life = Life::ready();
    let moved = instance("1", InstanceState::Running, Some("10.0.0.10"));
    life.tell(|seen, now| seen.on_listed(Some(&moved), now));
    assert_eq!(life.plan.step, get(), "a list may be old");
    life.tell(|seen, now| seen.on_get(Ok(moved.clone()), now));
    assert_eq!(life.withdrawn_for(), Some(Reason::NotProbed));
    assert_eq!(life.plan.track.as_ref().expect("tracked").route.endpoint, endpoint("10.0.0.10"));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert!(life.offers());
}

#[test]
fn a_proxy_recorded_ready_is_offered_at_once_and_withdrawn_on_the_first_failure() {
    let restart = |desired: Desired| {
        let recorded = Life::ready().plan.status;
        Life::after_restart(Desired { finalizer: true, host: Some(host("a")), ..desired }, Some(recorded))
    };
    let mut life = restart(managed());
    life.turn();
    assert!(life.offers() && life.plan.track.as_ref().is_some_and(|track| track.presumed));
    assert_eq!(life.phase(), Phase::Ready);
    assert_eq!(life.plan.step, Step::Nothing, "the host's list comes first");
    assert!(!life.plan.status.differs_from(&Life::ready().plan.status), "a restart writes nothing");
    life.wait_for_wake();
    assert_eq!(life.plan.step, get(), "and if it does not come");
    life.tell(|seen, now| seen.on_get(Err(transient(Reason::Unreachable)), now));
    assert!(life.offers(), "a host that stalls takes no working Proxy down");
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert_eq!(life.withdrawn_for(), Some(Reason::Unhealthy));

    // Credentials that only the backend keeps come with the first look, those of a Secret are read first. Until then it
    // is neither offered nor withdrawn; if they cannot be had, it is withdrawn and says so.
    let generates = || ProviderSeen::Configured(ProviderFacts { may_generate_credentials: true, ..facts(1) });
    let mut life = restart(managed());
    life.tell(|seen, _| seen.on_provider(generates()));
    assert_eq!((&life.plan.serving, &life.plan.track), (&Serving::AsBefore, &None));
    assert!(!life.plan.status.differs_from(&Life::ready().plan.status));
    let told = Instance { generated: Some(credentials("g")), ..running("1") };
    life.tell(|seen, now| seen.on_listed(Some(&told), now));
    let Serving::Offer(route) = &life.plan.serving else { panic!("{:?}", life.plan) };
    assert_eq!(route.credentials, Some(credentials("g")));
    assert!(life.plan.track.as_ref().is_some_and(|track| track.presumed));

    let mut life = restart(managed());
    life.tell(|seen, _| seen.on_provider(generates()));
    life.wait_for_wake();
    life.tell(|seen, now| seen.on_get(Err(transient(Reason::Unreachable)), now));
    assert!(life.withdrawn_for().is_some());
    assert_eq!(life.condition(ConditionType::Ready), (Truth::False, Reason::Unreachable));
    assert!(life.message(ConditionType::Ready).contains("host `a` does not answer"));

    let mut life = restart(with_secret(managed()));
    assert_eq!(life.step(), Step::ReadSecrets);
    assert_eq!(life.plan.serving, Serving::AsBefore);
    let read = SecretsRead { credentials: Some(credentials("p")), user_data: None };
    life.tell(|seen, now| seen.on_secrets(Ok(read), now));
    assert!(life.offers());

    // Another instance than the recorded one inherits nothing.
    let mut life = restart(managed());
    life.tell(|seen, now| seen.on_listed(Some(&running("2")), now));
    assert_eq!(life.withdrawn_for(), Some(Reason::NotProbed));
}

#[test]
fn an_external_proxy_whose_url_changed_while_we_were_down_is_not_presumed() {
    let mut life = Life::of(external());
    life.turn();
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    let recorded = life.plan.status.clone();
    let mut same = Life::after_restart(external(), Some(recorded.clone()));
    same.turn();
    assert!(same.offers());
    let mut moved = external();
    moved.flavor = Flavor::External(External { endpoint: endpoint("203.0.113.8"), credentials: None });
    let mut life = Life::after_restart(moved, Some(recorded));
    life.turn();
    assert_eq!(life.withdrawn_for(), Some(Reason::NotProbed));
}

#[test]
fn a_proxy_recorded_unhealthy_stays_so_until_a_verdict() {
    let mut life = Life::ready();
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    let recorded = life.plan.status.clone();
    let mut life = Life::after_restart(life.desired.clone(), Some(recorded.clone()));
    life.turn();
    assert_eq!((life.phase(), life.withdrawn_for()), (Phase::Unhealthy, Some(Reason::NotProbed)));
    assert!(!life.plan.status.differs_from(&recorded), "a restart writes nothing: {:#?}", life.plan.status);
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Unknown, false), now));
    assert_eq!(life.phase(), Phase::Unhealthy);
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert_eq!(life.phase(), Phase::Ready);
}

#[test]
fn the_drain_annotation_cordons_and_is_drained_once_a_fresh_count_says_so() {
    let mut life = Life::ready();
    assert_eq!(life.condition(ConditionType::Drained), (Truth::False, Reason::NotDraining));
    life.edit(|desired| desired.annotations.drain = true);
    assert!(life.plan.cordon == Some(Cordon { drain_by: None }) && life.offers());
    assert_eq!(life.condition(ConditionType::Drained), (Truth::False, Reason::Draining), "an old count says nothing");
    life.turn();
    assert_eq!(life.condition(ConditionType::Drained), (Truth::False, Reason::Draining), "however often it is asked");
    life.tell(|seen, _| seen.on_leases_left(1));
    assert_eq!(life.condition(ConditionType::Drained), (Truth::False, Reason::Draining));
    life.tell(|seen, _| seen.on_leases_left(0));
    assert_eq!(life.condition(ConditionType::Drained), (Truth::True, Reason::Drained));
    assert_eq!(life.plan.step, Step::Nothing, "the instance stays");
    life.edit(|desired| desired.annotations.drain = false);
    assert!(life.plan.cordon.is_none() && life.offers());
    assert_eq!(life.condition(ConditionType::Drained), (Truth::False, Reason::NotDraining));
}

#[test]
fn transition_times_move_only_when_a_condition_flips() {
    let mut life = Life::ready();
    let since = |life: &Life, kind| life.plan.status.condition(kind).expect("told").since;
    let (ready, provisioned) = (since(&life, ConditionType::Ready), since(&life, ConditionType::Provisioned));
    life.wait(Duration::from_mins(1));
    assert_eq!(since(&life, ConditionType::Ready), ready);
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert!(since(&life, ConditionType::Ready) > ready);
    assert_eq!(since(&life, ConditionType::Provisioned), provisioned);
}

#[test]
fn an_answer_that_nobody_waits_for_changes_nothing() {
    let mut life = Life::ready();
    let before = life.plan.clone();
    life.tell(|seen, now| seen.on_get(gone(), now));
    life.tell(|seen, now| seen.on_create(Ok(running("x")), now));
    life.tell(|seen, now| seen.on_delete(Ok(()), now));
    life.tell(|seen, now| seen.on_released(Ok(()), now));
    life.tell(|seen, now| seen.on_adopted(Err(transient(Reason::Unreachable)), now));
    assert_eq!(life.turn().status, before.status);
    assert_eq!(life.plan.step, before.step);
}

#[test]
fn a_lease_ends_with_the_address_or_the_permission_it_has_though_nothing_else_is_on_offer_yet() {
    fn healthy(life: &mut Life) {
        life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    }
    let mut life = Life::of(external());
    life.turn();
    healthy(&mut life);
    assert!(life.offers());
    life.edit(|desired| {
        let Flavor::External(external) = &mut desired.flavor else { panic!("external") };
        external.endpoint = endpoint("203.0.113.8");
    });
    assert!(!life.offers() && life.ends_leases(), "the new one was not probed yet: {:?}", life.plan);

    let mut life = Life::of(with_secret(external()));
    let read = SecretsRead { credentials: Some(credentials("p")), user_data: None };
    life.turn();
    life.tell(|seen, now| seen.on_secrets(Ok(read), now));
    healthy(&mut life);
    assert!(life.offers());
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Err(permanent(Reason::SecretNotLabelled)), now));
    assert!(life.ends_leases(), "whoever renews would be told the password: {:?}", life.plan);

    let mut life = Life::of(external());
    life.turn();
    healthy(&mut life);
    life.tell(|seen, now| seen.on_probed(unhealthy(), now));
    assert!(!life.offers() && !life.ends_leases(), "it may be well again in a moment");
}
