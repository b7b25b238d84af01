//! A Proxy whose actor keeps crashing: parked, shown, tried again, and let go where its instance was given up.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{Alarm, LET_GO_EVERY, Life, Proxies, ProxiesMsg, child_id};
use crate::domain::error::{Class, OpError};
use crate::domain::id::{ProxyKey, Uid};
use crate::domain::lease_book::Absence;
use crate::domain::reason::Reason;
use crate::domain::status::{Condition, ConditionType, Phase, Status, Truth};
use crate::kit::{Ctx, Exit, Tell};
use crate::ports::{Event, Severity, Subject};

/// More ends than this within the window, and it is parked.
const CRASHES: usize = 3;
const CRASH_WINDOW: Duration = Duration::from_secs(60);

/// So often it is tried to write what a parked one leaves, before its finalizer goes.
const TELL_ATTEMPTS: u32 = 3;

/// A parked Proxy is tried again after this, though nothing changed: what made it crash may have gone.
const REVIVE_AFTER: Duration = Duration::from_secs(600);

impl Proxies {
    /// Starts it once more, or parks it when it did so too often.
    pub(super) fn crashed(&mut self, key: &ProxyKey, exit: &Exit, ctx: &mut Ctx<ProxiesMsg>) {
        let now = ctx.now().mono;
        let Some(member) = self.members.get_mut(key) else { return };
        member.crashes.push_back(now);
        while member.crashes.front().is_some_and(|&at| now.saturating_duration_since(at) > CRASH_WINDOW) {
            member.crashes.pop_front();
        }
        if member.crashes.len() <= CRASHES {
            return self.start(key, ctx);
        }
        let why = exit_text(exit);
        tracing::error!(proxy = %key, error = %why, "proxy is parked: its actor keeps crashing");
        member.life = Life::Parked;
        member.crashes.clear();
        self.timers.arm_in(Alarm::Wake(key.clone()), REVIVE_AFTER);
        ctx.mark_parked(&child_id(key), "proxy");
        self.park(key, &why, ctx);
    }

    fn park(&mut self, key: &ProxyKey, why: &str, ctx: &Ctx<ProxiesMsg>) {
        let Some(member) = self.members.get(key) else { return };
        let desired = &member.applied.desired;
        self.wires.leases.withdraw(&desired.key, &desired.uid, Absence::Unhealthy, Tell::nowhere());
        self.wires.probes.untrack(&desired.uid);
        let shown = self.wires.board.get_of(key, &desired.uid);
        let before = shown.as_ref().map(|view| view.status.clone()).or_else(|| member.applied.recorded.clone());
        let status = parked_status(before.as_deref(), desired.generation, desired.deleting, why, ctx.now().wall);
        let status = Arc::new(status);
        if let Some(view) = shown {
            let mut view = (*view).clone();
            view.status = status.clone();
            self.wires.board.put(view);
        }
        self.wires.records.status(key, &desired.uid, status);
        self.wires.events.emit(Event {
            about: Subject::Proxy(key.clone(), desired.uid.clone()),
            severity: Severity::Warning,
            reason: Reason::Crashed,
            note: format!("its actor keeps crashing and is parked: {why}"),
        });
        if desired.deleting && desired.annotations.skip_cleanup {
            self.give_up(key, ctx);
        }
    }

    pub(super) fn is_parked(&self, key: &ProxyKey) -> bool {
        self.members.get(key).is_some_and(|member| matches!(member.life, Life::Parked))
    }

    /// What was to be tried again is not: the object is another one, or wants something else.
    pub(super) fn disarm(&mut self, key: &ProxyKey) {
        for alarm in [Alarm::Wake, Alarm::LetGo, Alarm::GiveUp] {
            self.timers.cancel(&alarm(key.clone()));
        }
    }

    pub(super) fn wake(&mut self, key: &ProxyKey, ctx: &mut Ctx<ProxiesMsg>) {
        if self.is_parked(key) {
            self.disarm(key);
            tracing::info!(proxy = %key, "parked proxy is tried again");
            self.start(key, ctx);
        }
    }

    /// Completes the deletion of a parked Proxy whose instance was given up: tells what may be left, then lets go.
    pub(super) fn give_up(&mut self, key: &ProxyKey, ctx: &Ctx<ProxiesMsg>) {
        let Some(member) = self.members.get_mut(key) else { return };
        // Told once: every further look at the object comes through here too.
        if !member.applied.desired.finalizer || std::mem::replace(&mut member.given_up, true) {
            return;
        }
        let desired = &member.applied.desired;
        let recorded = self
            .wires
            .board
            .get_of(key, &desired.uid)
            .map(|view| view.status.clone())
            .or_else(|| member.applied.recorded.clone());
        let left = recorded.and_then(|status| status.provider_id.clone());
        let note = match (left, &desired.host) {
            (Some(id), _) => format!("skip-cleanup: the instance {id} may be left behind"),
            (None, Some(host)) => {
                let entry = desired.provider().map_or("?", |provider| provider.as_str());
                format!(
                    "skip-cleanup: an instance of uid {} may be left on host `{host}` of provider `{entry}`",
                    desired.uid
                )
            }
            (None, None) => "skip-cleanup: no instance is known".to_owned(),
        };
        let event = Event {
            about: Subject::Proxy(key.clone(), desired.uid.clone()),
            severity: Severity::Warning,
            reason: Reason::CleanupSkipped,
            note,
        };
        let (key, uid) = (key.clone(), desired.uid.clone());
        let told = ctx.tell(move |told| ProxiesMsg::GivenUp(key.clone(), uid.clone(), told));
        self.wires.events.emit_acked(event, move |acked| told.send(acked));
    }

    /// An event that cannot be written after several tries is in the log as an error: the deletion goes on all the same.
    pub(super) fn given_up(&mut self, key: &ProxyKey, uid: &Uid, told: Result<(), OpError>, ctx: &mut Ctx<ProxiesMsg>) {
        let Some(member) = self.members.get_mut(key).filter(|member| member.applied.desired.uid == *uid) else {
            return;
        };
        if let Err(error) = told {
            member.untold += 1;
            if error.class != Class::Permanent && member.untold < TELL_ATTEMPTS {
                member.given_up = false;
                return self.timers.arm_in(Alarm::GiveUp(key.clone()), LET_GO_EVERY);
            }
        }
        self.let_go(key, uid, ctx);
    }

    /// Drops the finalizer of a parked Proxy whose instance was given up.
    pub(super) fn let_go(&self, key: &ProxyKey, uid: &Uid, ctx: &Ctx<ProxiesMsg>) {
        let pair = (key.clone(), uid.clone());
        let held = ctx.tell(move |()| ProxiesMsg::StillHeld(pair.0.clone(), pair.1.clone()));
        self.wires.records.release(key, uid, move |released| {
            if let Err(error) = released {
                tracing::warn!(%error, "finalizer of a parked proxy not dropped; it is tried again");
                held.send(());
            }
        });
    }
}

fn exit_text(exit: &Exit) -> String {
    match exit {
        Exit::Normal => "it ended by itself".to_owned(),
        Exit::Asked => "it was asked to stop".to_owned(),
        Exit::Failed(why) | Exit::GaveUp(why) => why.clone(),
        Exit::Killed => "it was killed".to_owned(),
        Exit::Abandoned => "it was stuck in a message and left behind".to_owned(),
    }
}

fn parked_status(before: Option<&Status>, generation: i64, deleting: bool, why: &str, now: SystemTime) -> Status {
    let message = if deleting {
        format!(
            "the operator keeps failing on this Proxy ({why}); to delete it without its instance, annotate it crawl.example.com/skip-cleanup: \"true\""
        )
    } else {
        format!("the operator keeps failing on this Proxy ({why}); any change of it makes it try again")
    };
    let mut status = before.cloned().unwrap_or_else(|| Status::blank(Phase::Failed, generation));
    status.phase = if deleting { Phase::Deleting } else { Phase::Failed };
    status.observed_generation = generation;
    status.conditions.retain(|condition| condition.kind != ConditionType::Ready);
    status.conditions.insert(
        0,
        Condition {
            kind: ConditionType::Ready,
            truth: Truth::False,
            reason: Reason::Crashed,
            message: message.into(),
            since: now,
        },
    );
    status.keeping_transitions_of(before)
}
