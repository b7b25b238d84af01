//! The candidate: carries out what [`domain::claim`](crate::domain::claim) decides, and publishes what came of it.
//!
//! Owns this replica's part in the election: one call at a time on the shared record, and the leader's mark on its own pod.
//! Spoken to by nobody; whoever must act on a change is woken ([`ElectionArgs::changed`]) and reads the claim. Runs on the
//! edge runtime, where nothing else can occupy its worker. Never waits: each call is a piece of work with a deadline.
//!
//! ```text
//!   Standby -- the record is ours --> Leading -- not renewed in time, by a timer of its own --> Suspended
//!      ^                                 ^  '-- another holder is seen --> Standby                 |
//!      '-- another holder is seen -------+--------------------------------------------------------'|
//!                                        '-- ours again, the same epoch ---------------------------'
//! ```
//!
//! The mark follows the claim: taken away at the start and when another leads, set when this one begins to lead. It is
//! for the Service, and proves nothing. So that the Service never leads to nobody, a leader that ends keeps it, and goes on
//! answering as a standby, until the next one has set its own ([`ClaimSettings::hand_over`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use super::Claim;
use crate::domain::backoff::Backoff;
use crate::domain::claim::{Candidate, ClaimSettings, ClaimState, ClaimWrite, Next, Stored, let_go};
use crate::domain::clock::Now;
use crate::domain::error::OpError;
use crate::domain::reason::Reason;
use crate::kit::actor::{InitError, Lingering};
use crate::kit::work::{Done, work};
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Reply, Tell, Timers};
use crate::names;
use crate::ports::{Candidacy, ClaimStore, Claimed};

/// A call that takes longer is given up: two fit into the renew deadline of ten seconds.
const CALL_WITHIN: Duration = Duration::from_secs(5);

/// Patching the pods of one Deployment.
const MARK_WITHIN: Duration = Duration::from_secs(10);

/// Letting go at the end must not hold up a pod that is being replaced: without it the next one waits for the lease.
const LET_GO_WITHIN: Duration = Duration::from_secs(5);

/// Between two looks at who comes next.
const NEXT_EVERY: Duration = Duration::from_millis(250);

/// From the next one's claim to its mark, and from there to every node of the cluster.
const KNOWN_AFTER: Duration = Duration::from_secs(2);

/// What the candidate needs.
#[derive(Debug, Clone)]
pub struct ElectionArgs {
    pub candidacy: Candidacy,
    /// Wakes whoever must act: the role changed. They read the claim.
    pub changed: Tell<ClaimState>,
}

/// Makes the claim and its publisher, before anybody who needs the claim is wired.
#[derive(Debug)]
pub struct Ballot {
    publish: watch::Sender<ClaimState>,
    holder: Arc<ArcSwapOption<Arc<str>>>,
}

impl Ballot {
    pub fn new() -> (Self, Claim) {
        let (publish, claim) = Claim::new(ClaimState::Standby);
        (Self { publish, holder: claim.holder.clone() }, claim)
    }

    /// The child that stands for election. It is stopped last: what it lets go must be at rest by then.
    pub fn spec(self, args: ElectionArgs) -> ChildSpec {
        let ballot = Arc::new(self);
        let hand_over = args.candidacy.settings.hand_over.map_or(Duration::ZERO, |within| within + KNOWN_AFTER);
        ChildSpec::of::<Election>("election", &Ref::new("election"), move || (args.clone(), ballot.clone()))
            .stop_within(LET_GO_WITHIN + hand_over + Duration::from_secs(2))
    }
}

#[derive(Debug)]
enum ElectionMsg {
    Read(Done<Result<Option<Stored>, OpError>>),
    /// A write that was sent at that instant.
    Wrote(Instant, Done<Result<Claimed, OpError>>),
    /// The mark was set or taken away, or not.
    Marked(bool, Done<Result<(), OpError>>),
    Timer(Fired<Alarm>),
}

crate::named!(ElectionMsg: Read, Wrote, Marked, Timer);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Alarm {
    /// The next call is due.
    Act,
    /// The claim ends, unless it is renewed before.
    Expiry,
    /// The mark is tried again.
    Mark,
}

struct Election {
    store: Arc<dyn ClaimStore>,
    me: Arc<str>,
    settings: ClaimSettings,
    candidate: Candidate,
    ballot: Arc<Ballot>,
    changed: Tell<ClaimState>,
    calling: bool,
    /// As it was set lastly; unknown at the start.
    marked: Option<bool>,
    marking: bool,
    mark_backoff: Backoff,
    /// Calls that failed one after the other.
    failed: u32,
    /// Numbers the calls: one that has just ended may still be in its place.
    next: u64,
    timers: Timers<Alarm>,
}

impl Election {
    /// Publishes what holds now, and does what is due.
    fn go_on(&mut self, ctx: &mut Ctx<ElectionMsg>) {
        let now = ctx.now();
        self.publish(now);
        self.mark(ctx);
        if self.calling {
            return;
        }
        match self.candidate.next(now) {
            // Spread, so that replicas that start together do not ask together for ever. A renewal is not put off.
            Next::Wait(at) => {
                let spread =
                    if self.candidate.state(now.mono).leads(now.mono) { 0.0 } else { rand::random::<f64>() * 0.2 };
                self.timers.arm_at(Alarm::Act, at + Duration::from_secs_f64(spread));
            }
            Next::Read => {
                let (store, told) = (self.store.clone(), ctx.tell(ElectionMsg::Read));
                let call = async move { store.read().await };
                self.calling = true;
                let reply = Reply::new(move |done| told.send(done), || Done::Lost);
                ctx.start(work(self.number("claim"), now.mono + CALL_WITHIN, call, reply));
            }
            Next::Write(write) => self.write(write, now, ctx),
        }
    }

    fn write(&mut self, write: ClaimWrite, now: Now, ctx: &mut Ctx<ElectionMsg>) {
        metrics::counter!(names::API_WRITES_TOTAL, "kind" => "claim").increment(1);
        let (store, sent_at) = (self.store.clone(), now.mono);
        let told = ctx.tell(move |done| ElectionMsg::Wrote(sent_at, done));
        let call = async move { store.write(&write).await };
        self.calling = true;
        let reply = Reply::new(move |done| told.send(done), || Done::Lost);
        ctx.start(work(self.number("claim"), sent_at + CALL_WITHIN, call, reply));
    }

    fn number(&mut self, call: &str) -> String {
        self.next += 1;
        format!("op/{call}-{}", self.next)
    }

    fn read(&mut self, done: Done<Result<Option<Stored>, OpError>>, now: Now) {
        self.calling = false;
        match ended(done) {
            Ok(found) => {
                self.failed = 0;
                self.candidate.on_read(found, now.mono);
            }
            Err(error) => self.fail("read", &error, now),
        }
    }

    fn wrote(&mut self, sent_at: Instant, done: Done<Result<Claimed, OpError>>, now: Now) {
        self.calling = false;
        match ended(done) {
            Ok(Claimed::Stored(stored)) => {
                self.failed = 0;
                self.candidate.on_written(stored, sent_at, now.mono);
            }
            Ok(Claimed::Overtaken) => {
                tracing::debug!("the claim was changed by another meanwhile");
                self.candidate.on_overtaken(now.mono);
            }
            Err(error) => self.fail("write", &error, now),
        }
    }

    fn fail(&mut self, call: &'static str, error: &OpError, now: Now) {
        self.failed += 1;
        // An outage is told at its start, and then once in a minute or so.
        if self.failed % 16 == 1 {
            tracing::warn!(call, %error, failed = self.failed, "the claim cannot be looked after");
        }
        self.candidate.on_failed(now.mono);
    }

    fn publish(&mut self, now: Now) {
        let state = self.candidate.state(now.mono);
        let holder = self.candidate.holder();
        if self.ballot.holder.load().as_deref() != holder {
            self.ballot.holder.store(holder.cloned().map(Arc::new));
            if let Some(holder) = holder {
                tracing::info!(%holder, "the claim has a holder");
            }
        }
        let before = self.ballot.publish.send_replace(state);
        match state {
            ClaimState::Leading { until: Some(until), .. } => self.timers.arm_at(Alarm::Expiry, until),
            ClaimState::Leading { until: None, .. } | ClaimState::Standby | ClaimState::Suspended { .. } => {
                self.timers.cancel(&Alarm::Expiry);
            }
        }
        if (before.role(), before.epoch()) == (state.role(), state.epoch()) {
            return;
        }
        metrics::gauge!(names::LEADING).set(if state.leads(now.mono) { 1.0 } else { 0.0 });
        match state {
            ClaimState::Leading { epoch, .. } => tracing::info!(epoch, was = before.role(), "this replica leads"),
            ClaimState::Standby => tracing::info!(was = before.role(), "this replica stands by: another one leads"),
            ClaimState::Suspended { epoch } => {
                tracing::warn!(
                    epoch,
                    "the claim ran out and could not be renewed: nothing is changed and nothing new is leased until it is ours again"
                );
            }
        }
        self.changed.send(state);
    }

    /// Brings the mark after the claim. While it is not known whether the claim is ours, the mark stays as it is.
    fn mark(&mut self, ctx: &mut Ctx<ElectionMsg>) {
        let wanted = match self.candidate.state(ctx.now().mono) {
            ClaimState::Leading { .. } => true,
            ClaimState::Standby => false,
            ClaimState::Suspended { .. } => return,
        };
        if self.marking || self.marked == Some(wanted) || self.timers.is_armed(&Alarm::Mark) {
            return;
        }
        self.marking = true;
        let store = self.store.clone();
        let told = ctx.tell(move |done| ElectionMsg::Marked(wanted, done));
        let call = async move { store.mark_leader(wanted).await };
        let reply = Reply::new(move |done| told.send(done), || Done::Lost);
        ctx.start(work(self.number("mark"), ctx.now().mono + MARK_WITHIN, call, reply));
    }

    fn marked(&mut self, leads: bool, done: Done<Result<(), OpError>>) {
        self.marking = false;
        match ended(done) {
            Ok(()) => {
                self.marked = Some(leads);
                self.mark_backoff.reset();
            }
            Err(error) => {
                self.marked = None;
                let after = self.mark_backoff.next(rand::random());
                tracing::warn!(%error, leads, retry_in_ms = after.as_millis(), "the leader's label is not as it should be");
                self.timers.arm_in(Alarm::Mark, after);
            }
        }
    }
}

fn ended<T>(done: Done<Result<T, OpError>>) -> Result<T, OpError> {
    match done {
        Done::Finished(result) => result,
        Done::Deadline => Err(OpError::effect_unknown(Reason::Timeout, "the call did not end in time")),
        Done::Panicked(what) => Err(OpError::effect_unknown(Reason::Internal, what)),
        Done::Lost => Err(OpError::effect_unknown(Reason::Lost, "the call was cut short")),
    }
}

/// Lets go of what is ours. A renewal that is under way may come between: then once more.
async fn release(store: &dyn ClaimStore, me: &str, clock: crate::kit::clock::Clock) -> Result<bool, OpError> {
    for _ in 0..3 {
        let Some(found) = store.read().await? else { return Ok(false) };
        let Some(write) = let_go(me, &found, clock.now().wall) else { return Ok(false) };
        if let Claimed::Stored(_) = store.write(&write).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Who has taken the claim after us, if anybody does in time. A read that fails is made again.
async fn successor(store: &dyn ClaimStore, me: &str, within: Duration) -> Option<Arc<str>> {
    let look = async {
        loop {
            tokio::time::sleep(NEXT_EVERY).await;
            if let Ok(Some(found)) = store.read().await
                && !found.record.is_free()
                && *found.record.holder != *me
            {
                return found.record.holder;
            }
        }
    };
    tokio::time::timeout(within, look).await.ok()
}

impl Behavior for Election {
    const KIND: &'static str = "election";
    type Msg = ElectionMsg;
    type Args = (ElectionArgs, Arc<Ballot>);

    fn init((args, ballot): Self::Args, ctx: &mut Ctx<ElectionMsg>) -> Result<Self, InitError> {
        let Candidacy { store, identity, settings } = args.candidacy;
        let before = *ballot.publish.borrow();
        let mut timers = Timers::new(ctx.tell(ElectionMsg::Timer));
        timers.arm_in(Alarm::Act, Duration::ZERO);
        metrics::gauge!(names::LEADING).set(if before.leads(ctx.now().mono) { 1.0 } else { 0.0 });
        Ok(Self {
            store,
            candidate: Candidate::new(identity.clone(), settings, before, ctx.now().mono),
            me: identity,
            settings,
            ballot,
            changed: args.changed,
            calling: false,
            marked: None,
            marking: false,
            mark_backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            failed: 0,
            next: 0,
            timers,
        })
    }

    fn handle(&mut self, message: ElectionMsg, ctx: &mut Ctx<ElectionMsg>) {
        let now = ctx.now();
        match message {
            ElectionMsg::Read(done) => self.read(done, now),
            ElectionMsg::Wrote(sent_at, done) => self.wrote(sent_at, done, now),
            ElectionMsg::Marked(leads, done) => self.marked(leads, done),
            ElectionMsg::Timer(fired) => {
                if self.timers.accept(fired).is_none() {
                    return;
                }
            }
        }
        self.go_on(ctx);
    }

    fn stopping(&mut self, ctx: &mut Ctx<ElectionMsg>) -> Option<Lingering> {
        let held = self.candidate.state(ctx.now().mono).epoch();
        // Nobody is told: whoever would act has ended, and what has not must find the claim gone.
        self.ballot.publish.send_replace(ClaimState::Standby);
        self.ballot.holder.store(None);
        metrics::gauge!(names::LEADING).set(0.0);
        if held.is_none() && !self.calling {
            return None;
        }
        let epoch = held.unwrap_or_default();
        let (store, me, clock) = (self.store.clone(), self.me.clone(), ctx.env().clock);
        let (ballot, hand_over) = (self.ballot.clone(), self.settings.hand_over);
        Some(Box::pin(async move {
            match tokio::time::timeout(LET_GO_WITHIN, release(&*store, &me, clock)).await {
                Ok(Ok(true)) => {
                    tracing::info!(epoch, "the claim is let go: the next one starts at once");
                    if let Some(within) = hand_over {
                        if let Some(next) = successor(&*store, &me, within).await {
                            tracing::info!(%next, "the claim has a new holder");
                            ballot.holder.store(Some(Arc::new(next)));
                            tokio::time::sleep(KNOWN_AFTER).await;
                        } else {
                            tracing::info!(waited_s = within.as_secs(), "nobody takes the claim");
                        }
                    }
                }
                Ok(Ok(false)) => tracing::info!(epoch, "the claim was not ours any more"),
                Ok(Err(error)) => {
                    tracing::warn!(epoch, %error, "the claim is not let go: the next one waits for its end");
                }
                Err(_) => tracing::warn!(epoch, "letting the claim go took too long: the next one waits for its end"),
            }
            // The next leader does it too. A pod that only restarts its container must not stay in the Service.
            let unmark = store.mark_leader(false);
            if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), unmark).await {
                tracing::debug!(%error, "the leader's label is left for the next leader to take");
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::domain::claim::{ClaimRecord, LET_GO};

    /// Tells these one after the other, and the last one again and again.
    struct Told(Mutex<Vec<Result<&'static str, OpError>>>);

    #[async_trait]
    impl ClaimStore for Told {
        async fn read(&self) -> Result<Option<Stored>, OpError> {
            let mut told = self.0.lock().unwrap();
            let holder = if told.len() > 1 { told.remove(0) } else { told[0].clone() }?;
            let lease = if holder == "a" { LET_GO } else { Duration::from_secs(15) };
            let at = std::time::SystemTime::UNIX_EPOCH;
            let record = ClaimRecord { holder: holder.into(), lease, acquired_at: at, renewed_at: at, transitions: 1 };
            Ok(Some(Stored { record, version: "1".into() }))
        }

        async fn write(&self, _: &ClaimWrite) -> Result<Claimed, OpError> {
            Ok(Claimed::Overtaken)
        }

        async fn mark_leader(&self, _: bool) -> Result<(), OpError> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_let_go_waits_for_the_next_one_and_not_for_ever() {
        let away = || Err(OpError::transient(Reason::Unreachable, "away"));
        let within = Duration::from_secs(5);
        for (told, next) in
            [(vec![Ok("a"), away(), Ok("a"), Ok("b")], Some("b")), (vec![Ok("a")], None), (vec![away()], None)]
        {
            let begun = tokio::time::Instant::now();
            let found = successor(&Told(Mutex::new(told)), "a", within).await;
            assert_eq!(found.as_deref(), next);
            assert!(begun.elapsed() <= within);
        }
    }
}
