//! Events that must not be lost: each is written, and its writer told, before something is given up.
//!
//! Plain events go straight to the sink, which never waits. Spoken to by proxy and provider actors. Nothing is written
//! without the claim: who leads tells.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::error::{Class, OpError};
use crate::domain::reason::Reason;
use crate::election::Claim;
use crate::kit::actor::InitError;
use crate::kit::clock::Clock;
use crate::kit::work::{Done, work};
use crate::kit::{Behavior, ChildSpec, Ctx, Ref, Reply};
use crate::ports::{Event, EventSink};

/// How an acknowledged event ended. `Err` has been logged as an error by then: a person can still find it.
pub type Acked = Result<(), OpError>;

const ACK_WITHIN: Duration = Duration::from_secs(15);

/// The verbs of the event writer.
#[derive(Clone)]
pub struct EventsHandle {
    to: Ref<EventsMsg>,
    sink: Arc<dyn EventSink>,
    claim: Claim,
}

impl std::fmt::Debug for EventsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventsHandle")
    }
}

impl EventsHandle {
    pub fn new(sink: Arc<dyn EventSink>, claim: Claim) -> Self {
        Self { to: Ref::new("events"), sink, claim }
    }

    pub fn spec(&self) -> ChildSpec {
        let (sink, claim) = (self.sink.clone(), self.claim.clone());
        ChildSpec::of::<Writer>("events", &self.to, move || (sink.clone(), claim.clone()))
    }

    /// Never waits; over its bound the sink drops and counts.
    pub fn emit(&self, event: Event) {
        if self.claim.may_mutate(Clock::System.now().mono) {
            self.sink.emit(event);
        }
    }

    /// Writes the event and tells how that went. One that cannot be written is logged as an error instead.
    pub fn emit_acked(&self, event: Event, done: impl FnOnce(Acked) + Send + 'static) {
        let told = event.clone();
        let done = move |acked: Acked| {
            if let Err(error) = &acked {
                let Event { about, reason, note, .. } = told;
                tracing::error!(?about, %reason, note, %error, "event not written");
            }
            done(acked);
        };
        let reply = Reply::new(done, || Err(OpError::effect_unknown(Reason::Lost, "the event writer is restarting")));
        self.to.cast_or_drop(EventsMsg::Acked(Box::new(event), reply));
    }
}

#[derive(Debug)]
enum EventsMsg {
    /// Write and answer.
    Acked(Box<Event>, Reply<Acked>),
}

crate::named!(EventsMsg: Acked);

struct Writer {
    sink: Arc<dyn EventSink>,
    claim: Claim,
    next: u64,
}

impl Behavior for Writer {
    const KIND: &'static str = "events";
    type Msg = EventsMsg;
    type Args = (Arc<dyn EventSink>, Claim);

    fn init((sink, claim): Self::Args, _: &mut Ctx<EventsMsg>) -> Result<Self, InitError> {
        Ok(Self { sink, claim, next: 0 })
    }

    fn handle(&mut self, message: EventsMsg, ctx: &mut Ctx<EventsMsg>) {
        let EventsMsg::Acked(event, reply) = message;
        if !self.claim.may_mutate(ctx.now().mono) {
            return reply.send(Err(OpError::new(Class::Cancelled, Reason::NotLeading, "this replica does not lead")));
        }
        self.next += 1;
        let (sink, written) = (self.sink.clone(), *event);
        let answer = move |done: Done<Acked>| {
            reply.send(match done {
                Done::Finished(acked) => acked,
                Done::Deadline => Err(OpError::transient(Reason::Timeout, "the event was not written in time")),
                Done::Panicked(what) => Err(OpError::transient(Reason::Internal, what)),
                Done::Lost => Err(OpError::transient(Reason::Lost, "the write of the event was cut short")),
            });
        };
        let deadline = ctx.now().mono + ACK_WITHIN;
        let call = async move { sink.emit_acked(written).await };
        ctx.start(work(format!("op/{}", self.next), deadline, call, Reply::new(answer, || Done::Lost)));
    }
}
