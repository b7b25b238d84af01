//! The end of a Proxy. It always can finish, whatever the state: no latch, no missing Secret, no pause and no read that
//! fails stands in its way; and what is given up is told, and the telling is written, before the finalizer goes.

use std::time::Instant;

use super::making::look;
use super::view::{Backing, View};
use super::{Intent, Serving, Step, Task, Wake};
use crate::domain::error::OpError;
use crate::domain::id::HostName;
use crate::domain::reason::Reason;

pub(super) fn intent(view: &View<'_>) -> Intent {
    let mut wake = Wake::default();
    let step = next_step(view, &mut wake);
    // The instance may stand for long, with a host that does not answer. Its leases do not wait for that.
    let is_lost = view.desired.annotations.skip_cleanup
        || view.seen.removal.is_some()
        || matches!(step, Step::Delete { .. })
        || is_drained(view, &mut Wake::default());
    // A create, or a look for one, is not wanted any more; a delete is, unless the instance is given up.
    let unwanted = |task| {
        matches!(task, Task::Get | Task::Create) && view.seen.removal.is_none() || view.desired.annotations.skip_cleanup
    };
    Intent {
        step,
        cancel: view.seen.may_mutate && view.seen.on_host.is_some_and(|running| unwanted(running.task)),
        wake,
        serving: Serving::Withdraw { reason: Reason::Deleting, ends_leases: is_lost },
        track: None,
        replacing: None,
        cordon: view.cordon(view.drain_by(deleting_since(view))),
    }
}

fn deleting_since(view: &View<'_>) -> Instant {
    view.seen.deleting_since.unwrap_or(view.now.mono)
}

fn is_drained(view: &View<'_>, wake: &mut Wake) -> bool {
    view.is_drained(deleting_since(view), wake)
}

fn next_step(view: &View<'_>, wake: &mut Wake) -> Step {
    let seen = view.seen;
    if !seen.may_mutate || seen.aside.is_some() {
        return Step::Nothing;
    }
    let drained = |wake: &mut Wake| is_drained(view, wake);
    let Some(host) = seen.host.as_ref().filter(|_| view.managed().is_some()) else {
        // External, or never created: a create needs a recorded host.
        return if view.managed().is_some() || drained(wake) { release(view, wake) } else { Step::Nothing };
    };
    if view.desired.annotations.skip_cleanup {
        return give_up(view, host, Reason::CleanupSkipped, wake);
    }
    match view.backing() {
        Backing::NoProvider if drained(wake) => give_up(view, host, Reason::ProviderNotConfigured, wake),
        Backing::NoHost | Backing::Moved if drained(wake) => give_up(view, host, Reason::HostNotConfigured, wake),
        Backing::Unknown | Backing::NoProvider | Backing::NoHost | Backing::Moved => Step::Nothing,
        Backing::There if seen.on_host.is_some() => Step::Nothing,
        Backing::There if seen.cleaned => release(view, wake),
        Backing::There if is_past_seeing(view) => give_up(view, host, Reason::EffectUnknown, wake),
        Backing::There if whose_it_is(view).is_some() => give_up(view, host, Reason::NameConflict, wake),
        Backing::There => match &seen.removal {
            Some(removal) if removal.asked => look(view, host, wake),
            Some(_) if !view.is_past(seen.look_at, wake) => Step::Nothing,
            // Nobody waits for leases on what has ended meanwhile.
            None if !drained(wake) => look(view, host, wake),
            Some(_) | None if view.may_try(Task::Delete, wake) => {
                Step::Delete { host: host.clone(), why: Reason::Deleting }
            }
            Some(_) | None => Step::Nothing,
        },
    }
}

/// What the delete said of whoever's thing is in the place of our instance. It stays, and nothing of ours is left.
fn whose_it_is<'a>(view: &View<'a>) -> Option<&'a OpError> {
    let latch = view.seen.latch.as_ref()?;
    let said = latch.task == Task::Delete && latch.error.reason == Reason::NameConflict;
    (said && latch.since >= deleting_since(view)).then_some(&latch.error)
}

/// The backend accepted the delete, and for long no look has been able to tell its end, nor can be expected to.
fn is_past_seeing(view: &View<'_>) -> bool {
    let blind = view.seen.removal.as_ref().filter(|removal| !removal.asked).and_then(|removal| removal.blind);
    blind.is_some_and(|(first, latest)| latest >= first + view.settings.removed_within)
}

fn give_up(view: &View<'_>, host: &HostName, reason: Reason, wake: &mut Wake) -> Step {
    if view.seen.given_up || view.seen.cleaned {
        return release(view, wake);
    }
    if view.may_try(Task::TellGivenUp, wake) {
        return Step::EmitGivenUp { reason, note: what_may_be_left(view, host, reason) };
    }
    Step::Nothing
}

fn release(view: &View<'_>, wake: &mut Wake) -> Step {
    if !view.desired.finalizer {
        return Step::Done;
    }
    let written = view.seen.released_at.map(|at| at + view.settings.seen_within);
    if view.is_past(written, wake) && view.may_try(Task::Release, wake) {
        return Step::ReleaseFinalizer;
    }
    Step::Nothing
}

fn what_may_be_left(view: &View<'_>, host: &HostName, reason: Reason) -> String {
    let entry = view.managed().map_or("?", |managed| managed.provider.as_str());
    if let Some(said) = whose_it_is(view).filter(|_| reason == Reason::NameConflict) {
        return format!(
            "nothing of {} (uid {}) is deleted on host `{host}` of provider `{entry}`, as what is there is not its own: {}; \
             if it should go, remove it there by hand",
            view.desired.key, view.desired.uid, said.detail
        );
    }
    let why = match reason {
        Reason::EffectUnknown => format!(
            "the backend accepted the deletion, and no look can tell its end ({})",
            view.seen.tries.told(Task::Get).map_or_else(|| "none was answered".to_owned(), OpError::to_string)
        ),
        Reason::ProviderNotConfigured => format!("provider `{entry}` is not configured any more"),
        Reason::HostNotConfigured if view.backing() == Backing::Moved => {
            format!("provider `{entry}` leads to another backend than the one it was made in")
        }
        Reason::HostNotConfigured => format!("host `{host}` of provider `{entry}` is not configured any more"),
        _ => "the skip-cleanup annotation is set".to_owned(),
    };
    let instance = view.seen.provider_id().map_or_else(|| "an instance".to_owned(), |id| format!("the instance {id}"));
    format!(
        "{why}: {instance} of {} (uid {}) may be left on host `{host}` of provider `{entry}`; remove it there by hand, unless the sweep for \
         orphans does",
        view.desired.key, view.desired.uid
    )
}
