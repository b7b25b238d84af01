//! The life of a Proxy that is wanted.

use super::facts::Sight;
use super::observed::lives;
use super::view::{Backing, Replacement, Standing, View};
use super::{Intent, Serving, Step, Task, Track, Wake};
use crate::domain::id::HostName;
use crate::domain::reason::Reason;

pub(super) fn intent(view: &View<'_>) -> Intent {
    let mut wake = Wake::default();
    let wished = view.replacement(&mut wake);
    // What works is not given up for what cannot be made.
    let replacing = wished.filter(|_| view.has_all_for_create());
    let route = view.route().filter(|_| view.is_up());
    let step = next_step(view, wished, replacing, &mut wake);
    let withdraw = |reason| Serving::Withdraw { reason, ends_leases: is_lost(view, &step) };
    let serving = match (&route, view.standing(), replacing) {
        (Some(_), _, Some(replacement)) => withdraw(replacement.reason),
        (Some(route), Standing::Healthy | Standing::Presumed, None) => Serving::Offer(route.clone()),
        (Some(_), Standing::Unhealthy { .. }, None) => withdraw(Reason::Unhealthy),
        (Some(_), Standing::Unknown, None) => withdraw(Reason::NotProbed),
        (None, Standing::Presumed, None) if view.is_up() && !view.is_in_trouble() => Serving::AsBefore,
        (None, _, _) => withdraw(why_without_a_route(view)),
    };
    let drain_by = replacing.and_then(|replacement| view.drain_by(replacement.since));
    Intent {
        cancel: false,
        wake,
        serving,
        track: route.map(|route| Track { route, presumed: view.standing() == Standing::Presumed }),
        replacing: replacing.map(|replacement| replacement.reason),
        cordon: view.cordon(drain_by),
        step,
    }
}

/// The instance that was leased is gone, or goes with this step; or it is reached in another way now, or may not be any
/// more: its credentials were taken back.
fn is_lost(view: &View<'_>, step: &Step) -> bool {
    let is_absent = view.managed().is_some() && matches!(view.seen.sight, Sight::Absent);
    let is_another = view.seen.leased.as_ref().is_some_and(|leased| match view.route() {
        Some(route) => route != *leased,
        None => leased.credentials.is_some() && view.desired.credentials().is_some() && !view.has_credentials(),
    });
    let goes = view.seen.removal.is_some() || matches!(step, Step::Delete { .. } | Step::Create { .. });
    is_absent || is_another || goes
}

fn why_without_a_route(view: &View<'_>) -> Reason {
    match (&view.seen.sight, &view.seen.remaking) {
        (_, Some((reason, _))) => *reason,
        (Sight::Present(instance), None) if !lives(instance.state) => Reason::InstanceStopped,
        (Sight::Present(_), None) => Reason::WaitingForAddress,
        (Sight::Unseen | Sight::Absent, None) => Reason::Pending,
    }
}

fn next_step(view: &View<'_>, wished: Option<Replacement>, replacing: Option<Replacement>, wake: &mut Wake) -> Step {
    let seen = view.seen;
    if !seen.may_mutate || seen.on_host.is_some() || seen.aside.is_some() {
        return Step::Nothing;
    }
    // What stays in use while it is read again must not hold up the rest.
    let lacks = view.wants_credentials() || wished.is_some() && !view.has_all_for_create();
    if lacks && may_start(view, Task::ReadSecrets, wake) {
        return Step::ReadSecrets;
    }
    if view.managed().is_none() || view.backing() != Backing::There {
        return Step::Nothing;
    }
    if view.desired.paused {
        // Left alone: looked at, where there can be something to look at, and nothing else.
        return match &seen.host {
            Some(host) => look(view, host, wake),
            None => Step::Nothing,
        };
    }
    let Some(host) = view.adopted_host() else { return adopt(view, wake) };
    if let Some(removal) = &seen.removal {
        let why = seen.remaking.as_ref().map_or(Reason::InstanceStopped, |(reason, _)| *reason);
        return if removal.asked { look(view, host, wake) } else { delete(view, host, why, wake) };
    }
    if let Step::Get { host } = look(view, host, wake) {
        return Step::Get { host };
    }
    match &seen.sight {
        Sight::Unseen => Step::Nothing,
        // Get before create: a look that is still to come, or could not answer, comes first.
        Sight::Absent if seen.look_at.is_some() => Step::Nothing,
        Sight::Absent => create(view, host, wake),
        Sight::Present(instance) if !lives(instance.state) => delete(view, host, Reason::InstanceStopped, wake),
        Sight::Present(_) => match replacing {
            Some(replacement) if view.is_drained(replacement.since, wake) => {
                delete(view, host, replacement.reason, wake)
            }
            Some(_) => Step::Nothing,
            // A create of what is there hands the credentials over, where the backend can.
            None if seen.hand_over && wished.is_none() && view.has_all_for_create() => create(view, host, wake),
            None => {
                view.is_past(view.address_timeout_at(), wake);
                Step::Nothing
            }
        },
    }
}

/// Finalizer and host, until the object shows both.
fn adopt(view: &View<'_>, wake: &mut Wake) -> Step {
    let Some(host) = view.seen.host.as_ref().or(view.seen.reserved.as_ref()) else {
        return if may_start(view, Task::Reserve, wake) { Step::ReserveHost } else { Step::Nothing };
    };
    let written = view.seen.adopted_at.map(|at| at + view.settings.seen_within);
    if view.is_past(written, wake) && may_start(view, Task::Adopt, wake) {
        return Step::RecordFinalizer { host: host.clone() };
    }
    Step::Nothing
}

/// A look, if one is due.
pub(super) fn look(view: &View<'_>, host: &HostName, wake: &mut Wake) -> Step {
    let due = match (&view.seen.sight, view.seen.look_at) {
        (_, Some(at)) => view.is_past(Some(at), wake),
        (Sight::Unseen, None) => true,
        (Sight::Absent | Sight::Present(_), None) => false,
    };
    // A look changes nothing: what is latched for another reason may be looked at.
    let open = view.desired.deleting
        || view.seen.latch.as_ref().is_none_or(|latch| latch.task != Task::Get)
        || is_open_again(view, wake);
    if due && open && view.may_try(Task::Get, wake) { Step::Get { host: host.clone() } } else { Step::Nothing }
}

fn create(view: &View<'_>, host: &HostName, wake: &mut Wake) -> Step {
    if !view.has_all_for_create() {
        return if may_start(view, Task::ReadSecrets, wake) { Step::ReadSecrets } else { Step::Nothing };
    }
    if view.is_past(view.seen.remake_at, wake) && may_start(view, Task::Create, wake) {
        return Step::Create { host: host.clone() };
    }
    Step::Nothing
}

fn delete(view: &View<'_>, host: &HostName, why: Reason, wake: &mut Wake) -> Step {
    // After a look that found it still there the next delete comes with the next look's time, not at once.
    let again = view.seen.look_at.filter(|_| view.seen.removal.is_some());
    if view.is_past(again, wake) && may_start(view, Task::Delete, wake) {
        return Step::Delete { host: host.clone(), why };
    }
    Step::Nothing
}

/// Not latched, and not backing off.
fn may_start(view: &View<'_>, task: Task, wake: &mut Wake) -> bool {
    is_open_again(view, wake) && view.may_try(task, wake)
}

/// A permanent failure stops everything but looks, until something changes or the slow timer ends.
fn is_open_again(view: &View<'_>, wake: &mut Wake) -> bool {
    let until = view.seen.latch.as_ref().map(|latch| latch.since + view.settings.reevaluate_after);
    view.is_past(until, wake)
}
