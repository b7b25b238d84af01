//! Events that must not be lost: each is written, and its writer told, before something is given up.
//!
//! Plain events go straight to the sink, which never waits. Spoken to by proxy and provider actors. Nothing is written
//! without the claim: who leads tells. What happens while it is suspended is kept, and told if it comes back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::error::{Class, OpError};
use crate::domain::reason::Reason;
use crate::election::Claim;
use crate::kit::actor::InitError;
use crate::kit::clock::Clock;
use crate::kit::work::{Done, work};
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Reply, Timers};
use crate::names;
use crate::ports::{Event, EventSink};

/// How an acknowledged event ended. `Err` has been logged as an error by then: a person can still find it.
pub type Acked = Result<(), OpError>;

const ACK_WITHIN: Duration = Duration::from_secs(15);

/// Events of a time without a claim. An outage is long, and who looks at the objects wants the latest.
const KEPT: usize = 256;

/// Between two looks at whether the claim is back.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

    /// Never waits; over its bound the sink drops and counts. While the claim is doubtful the event is kept: what has
    /// happened is told once it is known that nobody else has led.
    pub fn emit(&self, event: Event) {
        let state = self.claim.state();
        match state.epoch() {
            _ if state.leads(Clock::System.now().mono) => self.sink.emit(event),
            Some(epoch) => self.to.cast_or_drop(EventsMsg::Later(epoch, Box::new(event))),
            None => {}
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
    /// Write it if the claim of this epoch comes back.
    Later(u32, Box<Event>),
    /// Another look at the claim is due.
    Timer(Fired<()>),
}

crate::named!(EventsMsg: Acked, Later, Timer);

struct Writer {
    sink: Arc<dyn EventSink>,
    claim: Claim,
    next: u64,
    /// With the epoch in which each happened.
    kept: VecDeque<(u32, Box<Event>)>,
    timers: Timers<()>,
}

impl Writer {
    fn keep(&mut self, epoch: u32, event: Box<Event>) {
        if self.kept.len() == KEPT {
            metrics::counter!(names::EVENTS_DROPPED_TOTAL).increment(1);
            self.kept.pop_front();
        }
        self.kept.push_back((epoch, event));
    }

    /// Writes what was kept, if this replica leads again and has led all the time.
    fn tell_kept(&mut self, now: Instant) {
        let state = self.claim.state();
        self.kept.retain(|(epoch, _)| state.epoch() == Some(*epoch));
        if state.leads(now) {
            for (_, event) in self.kept.drain(..) {
                self.sink.emit(*event);
            }
        }
        if !self.kept.is_empty() {
            self.timers.arm_in((), LOOK_EVERY);
        }
    }
}

impl Behavior for Writer {
    const KIND: &'static str = "events";
    type Msg = EventsMsg;
    type Args = (Arc<dyn EventSink>, Claim);

    fn init((sink, claim): Self::Args, ctx: &mut Ctx<EventsMsg>) -> Result<Self, InitError> {
        let timers = Timers::new(ctx.tell(EventsMsg::Timer));
        Ok(Self { sink, claim, next: 0, kept: VecDeque::new(), timers })
    }

    fn handle(&mut self, message: EventsMsg, ctx: &mut Ctx<EventsMsg>) {
        let (event, reply) = match message {
            EventsMsg::Acked(event, reply) => (event, reply),
            EventsMsg::Later(epoch, event) => {
                self.keep(epoch, event);
                return self.tell_kept(ctx.now().mono);
            }
            EventsMsg::Timer(fired) => {
                if self.timers.accept(fired).is_some() {
                    self.tell_kept(ctx.now().mono);
                }
                return;
            }
        };
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
