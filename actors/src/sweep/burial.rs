//! The end of one orphan: a live look at its Proxy, the delete, and looks until it is seen gone. A delete may do its work in
//! parts, and is asked again while a look sees the instance and not that it goes.
//!
//! One at a time for each host. Whatever goes wrong ends this one and begins the next: a later sweep finds it again.

use std::time::Duration;

use super::{Alarm, Sweep, SweepMsg, lost_look, told};
use crate::domain::error::{Class, OpError};
use crate::domain::id::HostName;
use crate::domain::instance::InstanceState;
use crate::domain::reason::Reason;
use crate::domain::sweep::Orphan;
use crate::host::{Call, CallKind, Job, OpOutcome};
use crate::kit::work::{Done, work};
use crate::kit::{Ctx, Reply};
use crate::names;

/// The API server answers in milliseconds; one that does not is not well, and the orphan waits.
const OWNER_WITHIN: Duration = Duration::from_secs(15);

/// Between looks at what was deleted, and how many there are: a minute in all. After that the next sweep tells.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOKS: u32 = 30;

/// The orphan that is being deleted.
#[derive(Debug)]
pub(super) struct Burial {
    orphan: Orphan,
    looks: u32,
    /// The latest look saw it, and not on its way out: what was asked for is done only in part.
    ask_again: bool,
}

impl Sweep {
    /// Begins with the next one that is ripe, or ends the sweep of this host.
    pub(super) fn bury_next(&mut self, name: &HostName, pass: u64, ctx: &mut Ctx<SweepMsg>) {
        let Some(begun) = self.begun(name, pass) else { return };
        begun.burial = begun.next.pop_front().map(|orphan| Burial { orphan, looks: 0, ask_again: false });
        let Some(Burial { orphan, .. }) = &begun.burial else {
            return self.end(name, Ok(()), ctx);
        };
        let (key, uid) = (orphan.mark.key.clone(), orphan.mark.uid.clone());
        let (owners, of) = (self.args.owners.clone(), name.clone());
        let looked = ctx.tell(move |(host, done)| SweepMsg::OwnerLooked(host, pass, done));
        let reply = Reply::new(move |done| looked.send((of, done)), lost_look);
        let call = async move { owners.exist(&key, &uid).await };
        // The child before this one may still be on its way out.
        self.owner_looks += 1;
        ctx.start(work(format!("op/owner-{}", self.owner_looks), ctx.now().mono + OWNER_WITHIN, call, reply));
    }

    pub(super) fn owner_looked(
        &mut self,
        name: &HostName,
        pass: u64,
        done: Done<Result<bool, OpError>>,
        ctx: &mut Ctx<SweepMsg>,
    ) {
        let Some(orphan) = self.orphan(name, pass) else { return };
        let exists = match done {
            Done::Finished(exists) => exists,
            Done::Deadline => {
                Err(OpError::transient(Reason::Timeout, "nobody could say in time whether its Proxy exists"))
            }
            Done::Panicked(what) => Err(OpError::transient(Reason::Internal, what)),
            Done::Lost => Err(OpError::transient(Reason::Lost, "the look at its Proxy was cut short")),
        };
        match exists {
            Ok(false) => self.submit(name, pass, Call::Delete(orphan.mark), ctx),
            Ok(true) => {
                // The fleet did not know of it: it will.
                tracing::warn!(
                    provider = %self.args.provider, host = %name, proxy = %orphan.mark.key, uid = %orphan.mark.uid,
                    "an instance without a known Proxy has one after all: nothing is deleted"
                );
                if let Some(host) = self.hosts.get_mut(name) {
                    host.suspects.forget(&orphan.mark);
                }
                self.bury_next(name, pass, ctx);
            }
            Err(error) => self.not_deleted(name, pass, &orphan, &error, ctx),
        }
    }

    fn submit(&mut self, name: &HostName, pass: u64, call: Call, ctx: &mut Ctx<SweepMsg>) {
        let (kind, settings) = (call.kind(), &self.args.settings);
        let (within, lost): (_, fn() -> OpOutcome) = match kind {
            CallKind::Delete => (settings.delete_within, OpOutcome::lost_delete),
            CallKind::Get | CallKind::Create => (settings.get_within, OpOutcome::lost_get),
        };
        let deadline = ctx.now().mono + within;
        let ended = ctx.tell(move |(host, outcome)| SweepMsg::Ended(host, pass, outcome));
        let of = name.clone();
        let reply = Reply::new(move |outcome| ended.send((of, outcome)), lost);
        let Some(host) = self.hosts.get(name) else { return };
        let Some(epoch) = host.begun.as_ref().map(|begun| begun.epoch) else { return };
        host.handle.submit(Job { call, deadline, epoch, reply });
    }

    pub(super) fn op_ended(&mut self, name: &HostName, pass: u64, outcome: OpOutcome, ctx: &mut Ctx<SweepMsg>) {
        let Some(orphan) = self.orphan(name, pass) else { return };
        match (outcome.kind, outcome.result) {
            (_, Err(error)) if error.class == Class::NotFound => self.deleted(name, pass, &orphan, ctx),
            // Accepted is not done: it is looked at until it is gone.
            (CallKind::Delete, Ok(_)) => self.submit(name, pass, Call::Get(orphan.mark), ctx),
            (CallKind::Delete, Err(error)) => self.not_deleted(name, pass, &orphan, &error, ctx),
            (CallKind::Get | CallKind::Create, seen) => {
                let Some(Burial { looks, ask_again, .. }) =
                    self.begun(name, pass).and_then(|begun| begun.burial.as_mut())
                else {
                    return;
                };
                *looks += 1;
                *ask_again = matches!(&seen, Ok(Some(instance)) if instance.state != InstanceState::Deleting);
                if *looks < LOOKS {
                    return self.timers.arm_in(Alarm::Look(name.clone()), LOOK_EVERY);
                }
                let error = seen.err().unwrap_or_else(|| {
                    OpError::transient(Reason::Timeout, "it is still there a minute after its deletion was accepted")
                });
                self.not_deleted(name, pass, &orphan, &error, ctx);
            }
        }
    }

    pub(super) fn look(&mut self, name: &HostName, ctx: &mut Ctx<SweepMsg>) {
        let Some(pass) = self.hosts.get(name).and_then(|host| host.begun.as_ref()).map(|begun| begun.pass) else {
            return;
        };
        let Some(burial) = self.begun(name, pass).and_then(|begun| begun.burial.as_ref()) else { return };
        let mark = burial.orphan.mark.clone();
        let call = if burial.ask_again { Call::Delete(mark) } else { Call::Get(mark) };
        self.submit(name, pass, call, ctx);
    }

    /// The one that is being deleted by this sweep.
    fn orphan(&mut self, name: &HostName, pass: u64) -> Option<Orphan> {
        self.begun(name, pass)?.burial.as_ref().map(|burial| burial.orphan.clone())
    }

    fn deleted(&mut self, name: &HostName, pass: u64, orphan: &Orphan, ctx: &mut Ctx<SweepMsg>) {
        metrics::counter!(names::GC_DELETED_TOTAL, "provider" => self.args.provider.to_string()).increment(1);
        // Written one by one: each names something that was there.
        self.args.events.emit_acked(told::deleted(&self.args.provider, name, orphan), drop);
        self.swept.deleted(name, &orphan.mark);
        if let Some(host) = self.hosts.get_mut(name) {
            host.suspects.forget(&orphan.mark);
        }
        self.tell();
        self.bury_next(name, pass, ctx);
    }

    fn not_deleted(&mut self, name: &HostName, pass: u64, orphan: &Orphan, error: &OpError, ctx: &mut Ctx<SweepMsg>) {
        // Nothing went wrong with it if this replica does not lead any more, or the host has too much to do.
        if error.class != Class::Cancelled {
            self.args.events.emit(told::not_deleted(&self.args.provider, name, orphan, error));
            if let Some(host) = self.hosts.get_mut(name) {
                host.suspects.failed(&orphan.mark);
            }
        }
        self.bury_next(name, pass, ctx);
    }
}
