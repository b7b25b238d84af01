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

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::task::AbortHandle;
use url::Url;

use self::schedule::{Lane, Schedule};
use crate::domain::desired::{Endpoint, HealthCheck};
use crate::domain::health::{
    Blame, FailureDomain, Probe, ProbeFault, ProbeOutcome, Probed, Sample, Streak, Suspicion, TargetGuard, Thresholds,
};
use crate::domain::id::{ProxyKey, Uid};
use crate::domain::instance::Credentials;
use crate::domain::reason::Reason;
use crate::domain::status::LastProbe;
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Fired, Ref, Reply, Tell, Timers};
use crate::names;
use crate::ports::Prober;

/// A probe without an answer for this long, or for a quarter of its timeout, gives its slot up if others need it; one
/// through a proxy that is known to take its time, after twice that time.
const SLOW_AFTER: Duration = Duration::from_millis(500);

/// A probe is cut this long after its own deadline should have ended it.
const GRACE: Duration = Duration::from_secs(1);

/// An immediate look, asked by reports, happens at most this often a Proxy (contract.md 5).
const LOOK_AT_MOST_EVERY: Duration = Duration::from_secs(5);

/// While a target fails, our own looks at it come this often.
const DIRECT_EVERY: Duration = Duration::from_secs(15);

/// Our own looks under way at once, over all targets.
const DIRECT_AT_ONCE: usize = 4;

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
}

impl std::fmt::Debug for ProbesArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProbesArgs").field("workers", &self.workers).finish_non_exhaustive()
    }
}

struct Tracked {
    track: Track,
    target: Arc<Url>,
    streak: Streak,
    /// An answer to an older one is dropped.
    generation: u64,
    running: Option<AbortHandle>,
    due: Instant,
    looked_at: Option<Instant>,
    suspect: bool,
    /// A probe of it went through, or it was recorded Ready.
    proven: bool,
    /// What the latest probe took that went through.
    usual: Duration,
}

impl Tracked {
    fn slow_after(&self) -> Duration {
        let timeout = self.track.check.timeout;
        SLOW_AFTER.min(timeout / 4).max(self.usual * 2).min(timeout)
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Our own look at a target.
#[derive(Debug, Default)]
struct DirectLook {
    running: bool,
    at: Option<Instant>,
    /// A failure at the target was seen since the latest look.
    doubted: bool,
    users: usize,
}

struct Probes {
    args: ProbesArgs,
    tracked: HashMap<Uid, Tracked>,
    schedule: Schedule,
    guard: TargetGuard,
    direct: HashMap<Arc<Url>, DirectLook>,
    suspects: HashMap<Arc<Url>, Suspicion>,
    generation: u64,
    /// What the timer is set to: most messages do not change it.
    armed: Option<Instant>,
    timers: Timers<Alarm>,
}

impl Probes {
    fn track(&mut self, track: Track, now: Instant) {
        let target = track.check.target.clone().unwrap_or_else(|| self.args.default_target.clone());
        let old = self.remove(&track.uid, Some((&track, &target)));
        self.generation += 1;
        let uid = track.uid.clone();
        // The same place probed in the same way keeps its streak: a change of labels is no reason to doubt it.
        let fresh = if track.trusted { Streak::presumed_healthy() } else { Streak::new() };
        let (streak, proven) = old.unwrap_or((fresh, track.trusted));
        self.direct.entry(target.clone()).or_default().users += 1;
        let lane = if proven { Lane::Usual } else { Lane::Newcomer };
        self.schedule.add(&uid, &track.domain, lane, now);
        self.tracked.insert(
            uid,
            Tracked {
                track,
                target,
                streak,
                generation: self.generation,
                running: None,
                due: now,
                looked_at: None,
                suspect: false,
                proven,
                usual: Duration::ZERO,
            },
        );
    }

    /// Takes a Proxy out. Its streak comes back, and whether it is proven, if `next` is probed at the same place and target.
    fn remove(&mut self, uid: &Uid, next: Option<(&Track, &Arc<Url>)>) -> Option<(Streak, bool)> {
        let old = self.tracked.remove(uid)?;
        self.schedule.remove(uid);
        let same = next.is_some_and(|(track, target)| {
            track.endpoint == old.track.endpoint && *target == old.target && track.credentials == old.track.credentials
        });
        if next.is_none_or(|(_, target)| *target != old.target) {
            self.guard.forget(&old.target, uid);
        }
        if let Some(look) = self.direct.get_mut(&old.target) {
            look.users -= 1;
            if look.users == 0 && next.is_none_or(|(_, target)| *target != old.target) {
                self.direct.remove(&old.target);
                // Nobody probes it any more: it is not suspect either.
                self.tell_suspicion(&old.target, None);
                self.guard.keep_only(|target| *target != *old.target);
            }
        }
        same.then(|| (old.streak.clone(), old.proven))
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
        let probe = Probe {
            endpoint: tracked.track.endpoint.clone(),
            credentials: tracked.track.credentials.clone(),
            target: tracked.target.clone(),
            expect_status: tracked.track.check.expect_status.clone(),
            timeout: tracked.track.check.timeout,
        };
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
        self.guard.on_probe(&tracked.target, &tracked.track.domain, uid, sample, now.mono);
        if sample == Sample::TargetFault
            && let Some(look) = self.direct.get_mut(&tracked.target)
        {
            look.doubted = true;
        }
        let suspicion = self.guard.suspicion(&tracked.target);
        let thresholds = Thresholds::from(&tracked.track.check);
        let verdict = tracked.streak.count(outcome, thresholds, suspicion.is_some()).clone();
        tracked.suspect = outcome.fault.as_ref().is_some_and(|fault| fault.blame == Blame::Proxy);
        let interval = tracked.track.check.interval;
        tracked.due = now.mono + interval.mul_f64(0.9 + rand::random::<f64>() * 0.2);
        if outcome.fault.is_none() {
            tracked.proven = true;
            tracked.usual = outcome.latency;
        }
        let lane = match (tracked.suspect, tracked.proven) {
            (true, _) => Lane::Suspect,
            (false, true) => Lane::Usual,
            (false, false) => Lane::Newcomer,
        };
        self.schedule.ended(uid, lane, tracked.due);
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
        let target = tracked.target.clone();
        self.tell_suspicion(&target, suspicion);
    }

    /// Says so, once, when the guard changes its mind about a target.
    fn tell_suspicion(&mut self, target: &Arc<Url>, suspicion: Option<Suspicion>) {
        let name = target.host_str().unwrap_or("unknown").to_owned();
        match (self.suspects.contains_key(target), suspicion) {
            (false, Some(why)) => {
                tracing::warn!(%target, ?why, reason = %Reason::ProbeTargetSuspect, "probe target is suspect: its faults do not count against proxies");
                metrics::gauge!(names::PROBE_TARGET_SUSPECT, "target" => name).set(1.0);
                self.suspects.insert(target.clone(), why);
            }
            (true, None) => {
                tracing::info!(%target, reason = %Reason::ProbeTargetTrusted, "probe target is trusted again");
                metrics::gauge!(names::PROBE_TARGET_SUSPECT, "target" => name).set(0.0);
                self.suspects.remove(target);
            }
            (true, Some(_)) | (false, None) => {}
        }
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

    /// Our own looks at targets: once to prove that we can, then while somebody doubts.
    fn look_directly(&mut self, ctx: &Ctx<ProbesMsg>) {
        let now = ctx.now().mono;
        let mut under_way = self.direct.values().filter(|look| look.running).count();
        for (target, look) in &mut self.direct {
            if under_way >= DIRECT_AT_ONCE {
                break;
            }
            let wanted = look.at.is_none() || look.doubted || self.suspects.contains_key(target);
            if look.running || !wanted {
                continue;
            }
            under_way += 1;
            (look.running, look.at, look.doubted) = (true, Some(now), false);
            let user = self.tracked.values().find(|tracked| tracked.target == *target);
            let Some(user) = user else { continue };
            let probe = Probe {
                endpoint: user.track.endpoint.clone(),
                credentials: None,
                target: target.clone(),
                expect_status: user.track.check.expect_status.clone(),
                timeout: user.track.check.timeout,
            };
            let (prober, target) = (self.args.prober.clone(), target.clone());
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
            // Ten minutes: longer than most intervals, so that slow ones have a voice.
            guard: TargetGuard::new(Duration::from_secs(600)),
            direct: HashMap::new(),
            suspects: HashMap::new(),
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
            ProbesMsg::Direct(target, succeeded) => {
                if let Some(look) = self.direct.get_mut(&target) {
                    look.running = false;
                    self.guard.on_direct(&target, succeeded);
                    let suspicion = self.guard.suspicion(&target);
                    self.tell_suspicion(&target, suspicion);
                }
            }
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
