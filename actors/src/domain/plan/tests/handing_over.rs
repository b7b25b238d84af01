//! A password that changes in its Secret: it is given to the instance that lives, and holds nothing up.

use super::*;

fn refused() -> Probed {
    let told = probed(Verdict::Healthy, false);
    Probed { probe: LastProbe { reason: Some(Reason::ProxyAuthRequired), ..told.probe }, ..told }
}

/// Ready, with credentials of a Secret.
fn with_the_old_password() -> Life {
    let mut desired = with_secret(managed());
    if let Flavor::Managed(managed) = &mut desired.flavor {
        managed.cloud_init = None;
    }
    let mut life = Life::adopted(desired);
    assert_eq!(life.step(), Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read_password("old")), now));
    assert_eq!(life.plan.step, get());
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
    assert_eq!((life.offers(), life.plan.step.clone()), (true, Step::Nothing));
    life
}

/// The Secret has another password now, which is being handed over.
fn handing_over() -> Life {
    let mut life = with_the_old_password();
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Ok(read_password("new")), now));
    assert_eq!(life.plan.step, create());
    life
}

fn read_password(password: &str) -> SecretsRead {
    SecretsRead { credentials: Some(credentials(password)), user_data: None }
}

#[test]
fn an_instance_is_given_the_password_that_its_secret_has_now_and_stays() {
    let mut life = with_the_old_password();

    // The same again is no news, another one is handed over by a create of what is there.
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Ok(read_password("old")), now));
    assert_eq!(life.plan.step, Step::Nothing);
    life.tell(|seen, _| seen.on_secret_changed());
    life.tell(|seen, now| seen.on_secrets(Ok(read_password("new")), now));
    assert_eq!((life.plan.step.clone(), life.phase()), (create(), Phase::Ready));
    life.tell(|seen, now| seen.on_create(Err(transient(Reason::Unreachable)), now));
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    life.wait_for_wake();
    assert_eq!(life.plan.step, create(), "until it was taken");
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    assert_eq!((life.plan.step.clone(), life.phase()), (Step::Nothing, Phase::Ready));

    // It changed while nobody looked: the proxy refuses what the Secret says. Once: more would not help.
    life.tell(|seen, now| seen.on_probed(refused(), now));
    life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
    assert_eq!(life.plan.step, create());
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    life.tell(|seen, now| seen.on_probed(refused(), now));
    assert_eq!(life.plan.step, Step::Nothing);
}

#[test]
fn a_password_that_changes_while_another_is_handed_over_is_handed_over_too() {
    let mut life = handing_over();
    life.tell(|seen, _| seen.on_secret_changed());
    // It is probed with the new one meanwhile, which the instance does not know yet.
    life.tell(|seen, now| seen.on_probed(refused(), now));
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    assert_eq!(life.plan.step, Step::ReadSecrets);
    life.tell(|seen, now| seen.on_secrets(Ok(read_password("newest")), now));
    assert_eq!(life.plan.step, create(), "what was handed over was the one before");
    life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
    assert_eq!(life.plan.step, Step::Nothing);
}

#[test]
fn a_password_that_cannot_be_handed_over_holds_up_no_replacement() {
    let cannot = |life: &mut Life| {
        life.tell(|seen, now| seen.on_create(Err(permanent(Reason::NameConflict)), now));
        life.tell(|seen, now| seen.on_get(Ok(running("1")), now));
        assert_eq!(life.plan.step, Step::Nothing);
    };
    let mut life = handing_over();
    cannot(&mut life);
    life.edit(|desired| desired.annotations.recreate = Some("now".into()));
    assert_eq!(life.plan.step, delete(Reason::RecreateRequested));

    let mut life = handing_over();
    cannot(&mut life);
    let stopped = instance("1", InstanceState::Stopped, None);
    life.tell(|seen, now| seen.on_listed(Some(&stopped), now));
    life.tell(|seen, now| seen.on_get(Ok(stopped.clone()), now));
    assert_eq!(life.plan.step, delete(Reason::InstanceStopped));

    let mut life = handing_over();
    cannot(&mut life);
    life.tell(|seen, now| seen.on_listed(None, now));
    life.tell(|seen, now| seen.on_get(Err(OpError::not_found("gone")), now));
    assert_eq!(life.plan.step, create(), "what is gone is made anew at once");
}
