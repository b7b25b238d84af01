//! The probe pool: who is probed when, how many at once, and what a series of probes comes to.
//!
//! Owns the schedule, the slots, the streaks and the guard against correlated failure. Spoken to by proxy actors
//! (`track`, `untrack`) and by the lease registry (`look_now`). Tells each Proxy's actor what its probes came to. A probe
//! is a plain task under a deadline, not an actor: ractor links take a process-wide lock.
//!
//! **Isolation.** At most `max(2, workers / 8)` slots serve one failure domain, and Proxies whose latest probe failed
//! share a lane of half the slots, of which one domain gets a quarter of its cap: whoever swallows probes waits behind
//! its own kind. So do newcomers of a domain of which nobody is known to be good. Domains take turns, and a probe that is
//! slow gives its slot up to those who wait: it is made anew among the suspects. Lateness is measured, and is never a failed
//! probe.

mod schedule;
mod targets;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::task::AbortHandle;
use url::Url;

use self::schedule::{Lane, Schedule};
use self::targets::Targets;
use crate::domain::desired::{Endpoint, HealthCheck};
use crate::domain::health::{
    Blame, FailureDomain, Probe, ProbeFault, ProbeOutcome, Probed, Sample, Streak, Thresholds,
};
use crate::domain::id::{ProxyKey, Uid};
use crate::domain::instance::Credentials;
use crate::domain::reason::Reason;
use crate::domain::status::LastProbe;
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Reply, Tell, Timers};
use crate::names;
use crate::ports::Prober;
use crate::standing::Standing;

/// The first probe of a Proxy that has no answer for this long, or for a quarter of its timeout, gives its slot up if others
/// need it.
const SLOW_AFTER: Duration = Duration::from_millis(500);

/// A later one does so after three times what its latest good one took, and not before this: hosts full of good Proxies
/// that fall silent at once must not hold all slots even for half a second.
const SLOW_AFTER_AT_LEAST: Duration = Duration::from_millis(100);

/// A probe is cut this long after its own deadline should have ended it.
const GRACE: Duration = Duration::from_secs(1);

/// An immediate look, asked by reports, happens at most this often a Proxy (contract.md 5).
const LOOK_AT_MOST_EVERY: Duration = Duration::from_secs(5);

/// While a target fails, our own looks at it come this often.
const DIRECT_EVERY: Duration = Duration::from_secs(15);

/// A Proxy to be probed from now on.
#[derive(Debug, Clone)]
pub struct Track {
    pub key: ProxyKey,
    pub uid: Uid,
    pub domain: FailureDomain,
    pub endpoint: Endpoint,
    pub credentials: Option<Credentials>,
    pub check: HealthCheck,
    /// It was recorded Ready before this process began: its first failure counts in full.
    pub trusted: bool,
    pub tell: Tell<Probed>,
}

/// The verbs of the pool.
#[derive(Debug, Clone)]
pub struct ProbesHandle(Ref<ProbesMsg>);

impl ProbesHandle {
    #[expect(clippy::new_without_default, reason = "a handle is made once, for its actor")]
    pub fn new() -> Self {
        Self(Ref::new("probes"))
    }

    pub fn spec(&self, args: ProbesArgs) -> ChildSpec {
        ChildSpec::of::<Probes>("probes", &self.0, move || args.clone())
    }

    /// Probes this Proxy from now on. A later call for the same uid replaces this one: what is on its way for the old
    /// endpoint, credentials or check is dropped.
    pub fn track(&self, track: Track) {
        self.0.cast_or_drop(ProbesMsg::Track(Box::new(track)));
    }

    pub fn untrack(&self, uid: &Uid) {
        self.0.cast_or_drop(ProbesMsg::Untrack(uid.clone()));
    }

    /// A complete list: who is not in it is untracked.
    pub fn synced(&self, living: Arc<HashSet<Uid>>) {
        self.0.cast_or_drop(ProbesMsg::Synced(living));
    }

    /// The verb for the lease registry: probe this one now.
    pub fn look_now(&self) -> Tell<Uid> {
        self.0.tell(ProbesMsg::LookNow)
    }
}

#[derive(Debug)]
enum ProbesMsg {
    /// Probe this Proxy from now on.
    Track(Box<Track>),
    Untrack(Uid),
    /// Who is not in the list is gone.
    Synced(Arc<HashSet<Uid>>),
    /// Somebody reports trouble: look now.
    LookNow(Uid),
    /// A probe has no answer yet.
    Slow(Uid, u64),
    /// A probe ended.
    Done(Uid, u64, Box<ProbeOutcome>),
    /// Our own look at a target ended.
    Direct(Arc<Url>, bool),
    Timer(Fired<Alarm>),
}

crate::named!(ProbesMsg: Track, Untrack, Synced, LookNow, Slow, Done, Direct, Timer);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Alarm {
    /// The next probe is due.
    Due,
    /// Time for our own looks at targets.
    Direct,
}

#[derive(Clone)]
pub struct ProbesArgs {
    pub prober: Arc<dyn Prober>,
    /// Probes under way at once.
    pub workers: usize,
    /// The target of a Proxy that names none.
    pub default_target: Arc<Url>,
    /// Where suspect targets are published.
    pub standing: Standing,
    /// Hears that they are not the same any more.
    pub suspects_changed: Tell<()>,
}

impl std::fmt::Debug for ProbesArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbesArgs").field("workers", &self.workers).finish_non_exhaustive()
    }
}

struct Tracked {
    track: Track,
    target: Arc<Url>,
    known: Known,
    /// An answer to an older one is dropped.
    generation: u64,
    running: Option<AbortHandle>,
    due: Instant,
    looked_at: Option<Instant>,
}

/// What its probes said so far.
#[derive(Debug, Clone)]
struct Known {
    streak: Streak,
    lane: Lane,
    /// What the latest probe took that went through.
    usual: Option<Duration>,
}

impl Tracked {
    fn probe(&self) -> Probe {
        probe(&self.track, &self.target)
    }

    fn slow_after(&self) -> Duration {
        let timeout = self.track.check.timeout;
        match self.known.usual {
            Some(usual) => (usual * 3).max(SLOW_AFTER_AT_LEAST).min(timeout),
            None => SLOW_AFTER.min(timeout / 4),
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

struct Probes {
    args: ProbesArgs,
    /// Boxed: the table has room for twice as many.
    tracked: HashMap<Uid, Box<Tracked>>,
    schedule: Schedule,
    targets: Targets,
    generation: u64,
    /// What the timer is set to: most messages do not change it.
    armed: Option<Instant>,
    timers: Timers<Alarm>,
}

impl Probes {
    fn track(&mut self, track: Track, now: Instant) {
        let target = track.check.target.clone().unwrap_or_else(|| self.args.default_target.clone());
        // Before the old one leaves its target, which may be the same.
        self.targets.join(probe(&track, &target));
        // The same place probed in the same way keeps what is known of it: a change of labels is no reason to doubt it.
        let known = self.remove(&track.uid, Some((&track, &target))).unwrap_or_else(|| {
            let (streak, lane) =
                if track.trusted { (Streak::presumed_healthy(), Lane::Usual) } else { (Streak::new(), Lane::Newcomer) };
            Known { streak, lane, usual: None }
        });
        self.generation += 1;
        let (uid, generation) = (track.uid.clone(), self.generation);
        self.schedule.add(&uid, &track.domain, known.lane, now);
        self.tracked.insert(
            uid,
            Box::new(Tracked { track, target, known, generation, running: None, due: now, looked_at: None }),
        );
    }

    /// Takes a Proxy out. What is known of it comes back if `next` is probed at the same place and target.
    fn remove(&mut self, uid: &Uid, next: Option<(&Track, &Arc<Url>)>) -> Option<Known> {
        let old = self.tracked.remove(uid)?;
        self.schedule.remove(uid);
        self.targets.leave(&old.target);
        let Some((track, _)) = next.filter(|(_, target)| **target == old.target) else {
            self.targets.forget(&old.target, uid);
            return None;
        };
        let same = track.endpoint == old.track.endpoint && track.credentials == old.track.credentials;
        same.then(|| old.known.clone())
    }

    /// Starts what is due and admitted, and arms the timer for the rest.
    fn pump(&mut self, ctx: &mut Ctx<ProbesMsg>) {
        let now = ctx.now().mono;
        loop {
            if let Some(uid) = self.schedule.next(now) {
                self.start(&uid, now, ctx);
            } else if let Some(uid) = self.schedule.cut() {
                self.cut(&uid);
            } else {
                break;
            }
        }
        let due = self.schedule.next_due(now);
        if due != self.armed {
            self.armed = due;
            match due {
                Some(at) => self.timers.arm_at(Alarm::Due, at),
                None => self.timers.cancel(&Alarm::Due),
            }
        }
    }

    fn start(&mut self, uid: &Uid, now: Instant, ctx: &Ctx<ProbesMsg>) {
        let Some(tracked) = self.tracked.get_mut(uid) else { return };
        metrics::histogram!(names::PROBE_LAG_SECONDS).record(now.saturating_duration_since(tracked.due));
        let probe = tracked.probe();
        let (uid, generation) = (uid.clone(), tracked.generation);
        let (tell, slow, slow_after) = (ctx.tell(|message| message), uid.clone(), tracked.slow_after());
        let done = tell.clone();
        // Dropped unanswered, by a panic or an abort, it still gives its slot back.
        let reply = Reply::new(
            move |outcome| done.send(ProbesMsg::Done(uid, generation, Box::new(outcome))),
            || failed(Duration::ZERO, Reason::Lost, "the probe was cut short"),
        );
        let prober = self.args.prober.clone();
        let task = tokio::spawn(async move {
            let (began, within) = (tokio::time::Instant::now(), probe.timeout + GRACE);
            let mut run = pin!(AssertUnwindSafe(prober.probe(&probe)).catch_unwind());
            let mut ended = tokio::time::timeout(slow_after, &mut run).await;
            if ended.is_err() {
                tell.send(ProbesMsg::Slow(slow, generation));
                ended = tokio::time::timeout_at(began + within, run).await;
            }
            reply.send(match ended {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => failed(Duration::ZERO, Reason::Internal, "the prober panicked"),
                Err(_) => failed(within, Reason::ProxyTimeout, "the probe did not end by its deadline"),
            });
        });
        tracked.running = Some(task.abort_handle());
    }

    /// Ends a slow probe, as others need its slot. That is no failure: it is made anew, with all the time it needs.
    fn cut(&mut self, uid: &Uid) {
        let Some(tracked) = self.tracked.get_mut(uid) else { return };
        self.generation += 1;
        tracked.generation = self.generation;
        if let Some(running) = tracked.running.take() {
            running.abort();
        }
    }

    fn is_slow(&mut self, uid: &Uid, generation: u64) {
        if self.tracked.get(uid).is_some_and(|tracked| tracked.generation == generation) {
            self.schedule.is_slow(uid);
        }
    }

    fn done(&mut self, uid: &Uid, generation: u64, outcome: &ProbeOutcome, ctx: &Ctx<ProbesMsg>) {
        let now = ctx.now();
        let Some(tracked) = self.tracked.get_mut(uid).filter(|tracked| tracked.generation == generation) else {
            return;
        };
        tracked.running = None;
        let result = outcome.fault.as_ref().map_or("ok", |fault| fault.reason.as_str());
        metrics::counter!(names::PROBES_TOTAL, "result" => result).increment(1);
        metrics::histogram!(names::PROBE_SECONDS).record(outcome.latency);

        // The guard sees the probe before the streak does, or the one that makes a target suspect would still count.
        let sample = Sample::from(outcome);
        let suspect = self.targets.on_probe(&tracked.target, &tracked.track.domain, uid, sample, now.mono);
        let known = &mut tracked.known;
        let verdict = known.streak.count(outcome, Thresholds::from(&tracked.track.check), suspect).clone();
        match outcome.fault.as_ref().map(|fault| fault.blame) {
            None => (known.lane, known.usual) = (Lane::Usual, Some(outcome.latency)),
            Some(Blame::Proxy) => known.lane = Lane::Suspect,
            // It says nothing of the Proxy.
            Some(Blame::Target) => {}
        }
        let interval = tracked.track.check.interval;
        tracked.due = now.mono + interval.mul_f64(0.9 + rand::random::<f64>() * 0.2);
        self.schedule.ended(uid, known.lane, tracked.due);
        tracked.track.tell.send(Probed {
            verdict,
            probe: LastProbe {
                at: now.wall,
                ok: outcome.fault.is_none(),
                latency: outcome.latency,
                reason: outcome.fault.as_ref().map(|fault| fault.reason),
            },
            blame: outcome.fault.as_ref().map(|fault| fault.blame),
            exit_ip: outcome.exit_ip.clone(),
        });
    }

    fn look_now(&mut self, uid: &Uid, now: Instant) {
        let Some(tracked) = self.tracked.get_mut(uid) else { return };
        let lately = tracked.looked_at.is_some_and(|at| now.saturating_duration_since(at) < LOOK_AT_MOST_EVERY);
        if tracked.running.is_none() && !lately {
            tracked.looked_at = Some(now);
            tracked.due = now;
            self.schedule.hasten(uid, now);
        }
    }

    /// Our own looks at targets.
    fn look_directly(&mut self, ctx: &Ctx<ProbesMsg>) {
        for probe in self.targets.looks() {
            let (prober, target) = (self.args.prober.clone(), probe.target.clone());
            let tell = ctx.tell(move |succeeded| ProbesMsg::Direct(target.clone(), succeeded));
            let reply = Reply::new(move |succeeded| tell.send(succeeded), || false);
            tokio::spawn(async move {
                let within = probe.timeout + GRACE;
                let looked = tokio::time::timeout(within, prober.direct(&probe)).await;
                reply.send(looked.is_ok_and(|outcome| outcome.fault.is_none()));
            });
        }
    }
}

fn probe(track: &Track, target: &Arc<Url>) -> Probe {
    Probe {
        endpoint: track.endpoint.clone(),
        credentials: track.credentials.clone(),
        target: target.clone(),
        expect_status: track.check.expect_status.clone(),
        timeout: track.check.timeout,
    }
}

fn failed(latency: Duration, reason: Reason, detail: &str) -> ProbeOutcome {
    let fault = ProbeFault { blame: Blame::Proxy, reason, detail: detail.to_owned() };
    ProbeOutcome { latency, exit_ip: None, fault: Some(fault) }
}

impl Behavior for Probes {
    const KIND: &'static str = "probes";
    type Msg = ProbesMsg;
    type Args = ProbesArgs;

    fn init(args: ProbesArgs, ctx: &mut Ctx<ProbesMsg>) -> Result<Self, InitError> {
        let mut timers = Timers::new(ctx.tell(ProbesMsg::Timer));
        timers.arm_in(Alarm::Direct, DIRECT_EVERY);
        Ok(Self {
            schedule: Schedule::new(args.workers),
            tracked: HashMap::new(),
            targets: Targets::new(args.standing.clone(), args.suspects_changed.clone()),
            generation: 0,
            armed: None,
            timers,
            args,
        })
    }

    fn handle(&mut self, message: ProbesMsg, ctx: &mut Ctx<ProbesMsg>) {
        match message {
            ProbesMsg::Track(track) => {
                self.track(*track, ctx.now().mono);
                self.look_directly(ctx);
            }
            ProbesMsg::Untrack(uid) => drop(self.remove(&uid, None)),
            ProbesMsg::Synced(living) => {
                let gone: Vec<_> = self.tracked.keys().filter(|uid| !living.contains(*uid)).cloned().collect();
                for uid in gone {
                    self.remove(&uid, None);
                }
            }
            ProbesMsg::LookNow(uid) => self.look_now(&uid, ctx.now().mono),
            ProbesMsg::Slow(uid, generation) => self.is_slow(&uid, generation),
            ProbesMsg::Done(uid, generation, outcome) => self.done(&uid, generation, &outcome, ctx),
            ProbesMsg::Direct(target, succeeded) => self.targets.on_look(&target, succeeded),
            ProbesMsg::Timer(fired) => match self.timers.accept(fired) {
                Some(Alarm::Direct) => {
                    self.look_directly(ctx);
                    self.timers.arm_in(Alarm::Direct, DIRECT_EVERY);
                }
                Some(Alarm::Due) => self.armed = None,
                None => {}
            },
        }
        self.pump(ctx);
    }
}
