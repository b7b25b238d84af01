//! A whole life in a small world: a backend whose effects may come late, an object that is seen late, an actor that
//! crashes and forgets; and what must hold whatever happens.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::acts::{Act, End, act};
use super::*;
use crate::domain::error::Class;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Create,
    Delete,
}

struct World {
    now: Now,
    settings: Settings,
    /// The object as it is stored, and as the actor has last seen it.
    stored: Desired,
    shown: Desired,
    exists: bool,
    recorded: Option<Arc<Status>>,
    seen: Observed,
    plan: Plan,
    claim: bool,
    provider: ProviderSeen,
    on_host: Option<Step>,
    aside: Option<Step>,
    /// What is there, by host; and what is still on its way.
    instances: BTreeMap<HostName, Instance>,
    late: Vec<(Instant, HostName, Effect)>,
    made: u32,
    reserved: u32,
    /// This actor's latest look since its latest mutation found nothing.
    saw_none: bool,
    ever_stopped: bool,
    ever_recreated: bool,
    told_given_up: bool,
    /// The latest look ended with a permanent error.
    blind: bool,
}

impl World {
    fn new(desired: Desired, settings: Settings) -> Self {
        let now = Now { mono: Instant::now(), wall: SystemTime::UNIX_EPOCH + Duration::from_hours(24) };
        let seen = Observed::new(&desired, None, &settings, now);
        let plan = plan(&desired, &seen, &settings, now);
        let provider = ProviderSeen::Configured(facts(1));
        let mut world = Self {
            now,
            settings,
            stored: desired.clone(),
            shown: desired,
            exists: true,
            recorded: None,
            seen,
            plan,
            claim: true,
            provider,
            on_host: None,
            aside: None,
            instances: BTreeMap::new(),
            late: Vec::new(),
            made: 0,
            reserved: 0,
            saw_none: false,
            ever_stopped: false,
            ever_recreated: false,
            told_given_up: false,
            blind: false,
        };
        world.start();
        world
    }

    /// An actor starts, with what the object tells.
    fn start(&mut self) {
        self.shown = self.stored.clone();
        self.seen = Observed::new(&self.shown, self.recorded.clone(), &self.settings, self.now);
        self.seen.on_claim(self.claim);
        self.seen.on_provider(self.provider.clone());
        self.saw_none = false;
        self.told_given_up = false;
        self.turn();
    }

    fn turn(&mut self) {
        if !self.exists {
            return;
        }
        let plan = plan(&self.shown, &self.seen, &self.settings, self.now);
        self.check(&plan);
        self.seen.on_planned(&self.shown, &plan, self.now);
        match Task::of(&plan.step) {
            Some(task) if task.is_on_host() => self.on_host = Some(plan.step.clone()),
            Some(_) => self.aside = Some(plan.step.clone()),
            None => {}
        }
        if matches!(plan.step, Step::Create { .. } | Step::Delete { .. }) {
            self.saw_none = false;
        }
        self.plan = plan;
    }

    /// What must hold of every plan.
    fn check(&self, plan: &Plan) {
        assert!(plan.wake.is_none_or(|wake| wake > self.now.mono), "it would spin: {plan:?}");
        assert!(self.claim || Task::of(&plan.step).is_none(), "started without the claim: {:?}", plan.step);
        match Task::of(&plan.step) {
            Some(task) if task.is_on_host() => assert!(self.on_host.is_none(), "two operations at once: {plan:?}"),
            Some(_) => assert!(self.aside.is_none(), "two writes at once: {plan:?}"),
            None => {}
        }
        match &plan.step {
            Step::Create { host } => {
                assert!(
                    self.shown.finalizer && self.shown.host.as_ref() == Some(host),
                    "created before it is recorded"
                );
                assert!(!self.shown.deleting && !self.shown.paused, "created against the wish");
                assert!(self.saw_none, "created without having looked");
            }
            Step::Delete { host, why } => {
                assert_eq!(self.stored.host.as_ref(), Some(host), "deleted where nothing of ours can be");
                let right = match why {
                    Reason::Deleting => self.shown.deleting,
                    Reason::InstanceStopped => self.ever_stopped && !self.shown.paused,
                    Reason::RecreateRequested => self.ever_recreated && !self.shown.paused,
                    Reason::RecreateAfterUnhealthy => self.shown.recreate_after.is_some() && !self.shown.paused,
                    other => panic!("deleted for {other}"),
                };
                assert!(right, "deleted for {why} without cause");
            }
            Step::ReleaseFinalizer => self.check_release(),
            Step::EmitGivenUp { reason: Reason::EffectUnknown, .. } => {
                assert!(self.blind, "given up though looks are answered");
            }
            Step::EmitGivenUp { .. } => assert!(
                self.shown.annotations.skip_cleanup || self.provider != ProviderSeen::Configured(facts(1)),
                "given up without cause"
            ),
            Step::Nothing
            | Step::Done
            | Step::ReserveHost
            | Step::RecordFinalizer { .. }
            | Step::ReadSecrets
            | Step::Get { .. } => {}
        }
        if matches!(plan.step, Step::Create { .. } | Step::Delete { .. }) {
            let ended = matches!(plan.serving, Serving::Withdraw { ends_leases: true, .. });
            assert!(ended, "leases on what goes or comes go on: {plan:?}");
        }
        if self.shown.deleting {
            assert!(!plan.serving.is_on() && plan.track.is_none(), "served while deleted");
        }
        if let (Serving::Offer(route), Some(track)) = (&plan.serving, &plan.track) {
            assert_eq!(route, &track.route, "offered is what is probed");
        }
    }

    fn check_release(&self) {
        assert!(self.shown.deleting, "released without a deletion");
        if self.told_given_up {
            return;
        }
        assert!(self.instances.is_empty(), "released over {:?}", self.instances);
        let coming = self.late.iter().any(|(_, _, effect)| *effect == Effect::Create);
        assert!(!coming && !matches!(self.on_host, Some(Step::Create { .. })), "released while one may still come");
    }

    fn advance(&mut self, time: Duration) {
        self.now = self.now.after(time);
        let (landed, late) = std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= self.now.mono);
        self.late = late;
        let mut landed: Vec<_> = landed;
        landed.sort_by_key(|(at, ..)| *at);
        for (_, host, effect) in landed {
            self.land(&host, effect);
        }
    }

    fn land(&mut self, host: &HostName, effect: Effect) {
        match effect {
            Effect::Delete => drop(self.instances.remove(host)),
            Effect::Create if self.instances.contains_key(host) => {}
            Effect::Create => {
                self.made += 1;
                let made = Instance {
                    provider_id: format!("kvm://kvm/{host}/{}", self.made).into(),
                    ..running(&self.made.to_string())
                };
                self.instances.insert(host.clone(), made);
                assert!(self.instances.len() <= 1, "two instances: {:?}", self.instances);
            }
        }
    }

    fn end_on_host(&mut self, end: End) {
        let Some(step) = self.on_host.take() else { return };
        let (host, effect) = match &step {
            Step::Get { host } => (host, None),
            Step::Create { host } => (host, Some(Effect::Create)),
            Step::Delete { host, .. } => (host, Some(Effect::Delete)),
            other => panic!("{other:?} is not for a host"),
        };
        let unknown = OpError::effect_unknown(Reason::Timeout, "no answer in 60 s");
        let error = match (end, effect) {
            (End::Good, _) => None,
            (End::Transient, _) => Some(transient(Reason::Unreachable)),
            (End::Permanent, _) => Some(permanent(Reason::PoolNotFound)),
            (End::Cancelled, _) => Some(OpError::cancelled("not started")),
            (_, None) => Some(transient(Reason::Timeout)),
            (End::UnknownDone, Some(effect)) => {
                self.land(host, effect);
                Some(unknown)
            }
            (End::UnknownLate(seconds), Some(effect)) => {
                let at = self.now.mono + Duration::from_secs(u64::from(seconds));
                self.late.push((at, host.clone(), effect));
                Some(unknown)
            }
            (End::UnknownNever, Some(_)) => Some(unknown),
        };
        if effect.is_none() {
            self.blind = error.as_ref().is_some_and(|error| error.class == Class::Permanent);
        }
        match (effect, error) {
            (None, None) => {
                let found = self.instances.get(host).cloned().ok_or_else(|| OpError::not_found("no such domain"));
                self.saw_none = found.is_err();
                self.seen.on_get(found, self.now);
            }
            (None, Some(error)) => self.seen.on_get(Err(error), self.now),
            (Some(Effect::Create), None) => {
                self.land(host, Effect::Create);
                self.seen.on_create(Ok(self.instances[host].clone()), self.now);
            }
            (Some(Effect::Create), Some(error)) => self.seen.on_create(Err(error), self.now),
            (Some(Effect::Delete), None) => {
                self.land(host, Effect::Delete);
                self.seen.on_delete(Ok(()), self.now);
            }
            (Some(Effect::Delete), Some(error)) => self.seen.on_delete(Err(error), self.now),
        }
    }

    fn end_aside(&mut self, end: End) {
        let Some(step) = self.aside.take() else { return };
        let good = matches!(end, End::Good);
        let done = good || matches!(end, End::UnknownDone);
        let error = || match end {
            End::Permanent => permanent(Reason::Forbidden),
            _ => transient(Reason::Unreachable),
        };
        match step {
            Step::ReserveHost => {
                self.reserved += 1;
                let host = host(if self.reserved.is_multiple_of(2) { "b" } else { "a" });
                self.seen.on_reserved(if good { Ok(host) } else { Err(error()) }, self.now);
            }
            Step::RecordFinalizer { host } => {
                let refused = self.stored.deleting && !self.stored.finalizer;
                if done && !refused {
                    self.stored.finalizer = true;
                    self.stored.host = Some(host);
                }
                self.seen.on_adopted(if good && !refused { Ok(()) } else { Err(error()) }, self.now);
            }
            Step::ReadSecrets => {
                let read = SecretsRead {
                    credentials: Some(credentials("p")),
                    user_data: Some(Ok(SecretBytes(Arc::from(*b"#cloud-config")))),
                };
                self.seen.on_secrets(if good { Ok(read) } else { Err(error()) }, self.now);
            }
            Step::EmitGivenUp { .. } => {
                // Not written is logged as an error: told either way, in the end.
                self.told_given_up = true;
                self.seen.on_given_up(if good { Ok(()) } else { Err(error()) }, self.now);
            }
            Step::ReleaseFinalizer => {
                if done {
                    self.check_release();
                    self.stored.finalizer = false;
                    self.exists = false;
                }
                self.seen.on_released(if good { Ok(()) } else { Err(error()) }, self.now);
            }
            other => panic!("{other:?} is not aside"),
        }
    }

    fn show(&mut self) {
        self.shown = self.stored.clone();
        self.seen.on_desired(&self.shown, self.now);
    }

    fn probe(&mut self, well: bool) {
        if self.plan.track.is_some() {
            self.seen.on_probed(if well { probed(Verdict::Healthy, true) } else { unhealthy() }, self.now);
        }
    }

    fn act(&mut self, act: Act) {
        if !self.exists {
            return;
        }
        match act {
            Act::Wait(seconds) => self.advance(Duration::from_secs(u64::from(seconds))),
            Act::WaitForWake => {
                if let Some(wake) = self.plan.wake {
                    self.advance(self.now.until(wake));
                }
            }
            Act::EndOnHost(end) => self.end_on_host(end),
            Act::EndAside(end) => self.end_aside(end),
            Act::Show => self.show(),
            Act::Write => self.recorded = Some(self.plan.status.clone()),
            Act::List => {
                let row = self.shown.host.as_ref().and_then(|host| self.instances.get(host)).cloned();
                self.seen.on_listed(row.as_ref(), self.now);
            }
            Act::Probe(well) => self.probe(well),
            Act::Crash(lands) => {
                if let (Some(seconds), Some(Step::Create { .. } | Step::Delete { .. })) = (lands, &self.on_host) {
                    self.end_on_host(End::UnknownLate(seconds));
                }
                (self.on_host, self.aside) = (None, None);
                self.start();
            }
            Act::Stop => {
                for instance in self.instances.values_mut() {
                    instance.state = InstanceState::Stopped;
                    self.ever_stopped = true;
                }
            }
            Act::Vanish => self.instances.clear(),
            Act::Leases(leases) => self.seen.on_leases_left(u32::from(leases)),
            Act::Delete => self.stored.deleting = true,
            Act::SkipCleanup => self.stored.annotations.skip_cleanup = true,
            Act::Recreate(value) => {
                self.ever_recreated = true;
                self.stored.annotations.recreate = (value > 0).then(|| value.to_string().into());
            }
            Act::Pause(paused) => {
                self.stored.paused = paused;
                self.stored.generation += 1;
            }
            Act::Drain(drain) => self.stored.annotations.drain = drain,
            Act::TakeFinalizer if self.stored.deleting => {}
            Act::TakeFinalizer => self.stored.finalizer = false,
            Act::Secret => self.seen.on_secret_changed(),
            Act::Claim(claim) => {
                self.claim = claim;
                self.seen.on_claim(claim);
            }
            Act::Provider(which) => {
                self.provider = match which {
                    0 => ProviderSeen::NotConfigured,
                    1 => ProviderSeen::Configured(ProviderFacts { hosts: Arc::from([]), ..facts(2) }),
                    2 => ProviderSeen::Unknown,
                    _ => ProviderSeen::Configured(facts(1)),
                };
                self.seen.on_provider(self.provider.clone());
            }
        }
        self.turn();
    }

    /// Faults stop, and everything that is waited for comes; time moves only when the plan itself asks to be woken.
    fn settle_down(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        self.act(Act::Claim(true));
        if self.provider == ProviderSeen::Unknown {
            self.act(Act::Provider(3));
        }
        for _ in 0..400 {
            if done(self) {
                return Ok(());
            }
            if self.aside.is_some() {
                self.act(Act::EndAside(End::Good));
            } else if self.on_host.is_some() {
                self.act(Act::EndOnHost(End::Good));
            } else if self.shown != self.stored {
                self.act(Act::Show);
            } else if self.plan.track.is_some() && self.seen.judged.as_ref().is_none_or(|(_, v)| *v != Verdict::Healthy)
            {
                self.act(Act::Probe(true));
            } else if self.plan.wake.is_some() {
                self.act(Act::WaitForWake);
            } else {
                return Err(format!("it waits for nothing: {:#?}", self.plan));
            }
        }
        Err(format!("it does not end: {:#?}", self.plan))
    }
}

fn wish() -> impl Strategy<Value = Desired> {
    (any::<bool>(), any::<bool>()).prop_map(|(secret, recreate)| Desired {
        recreate_after: recreate.then_some(Duration::from_mins(2)),
        ..if secret { with_secret(managed()) } else { managed() }
    })
}

fn settings() -> impl Strategy<Value = Settings> {
    prop_oneof![Just(0), Just(45)]
        .prop_map(|drain| Settings { drain_timeout: Duration::from_secs(drain), ..Settings::default() })
}

proptest! {
    // `PROPTEST_CASES` asks for more.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(600), ..ProptestConfig::default() })]

    /// Whatever happens, the invariants of [`World::check`] hold; and once faults stop a deletion ends, with nothing of
    /// ours left that was not given up.
    #[test]
    fn a_deletion_ends_from_every_state_and_leaves_nothing_behind(
        desired in wish(), settings in settings(), acts in prop::collection::vec(act(), 0..120),
    ) {
        let mut world = World::new(desired, settings);
        for act in acts {
            world.act(act);
        }
        world.act(Act::Delete);
        let ended = world.settle_down(|world| !world.exists || world.plan.step == Step::Done && world.shown == world.stored);
        prop_assert!(ended.is_ok(), "{}", ended.unwrap_err());
        world.advance(SETTLE * 2);
        prop_assert!(world.instances.is_empty() || world.told_given_up, "left behind: {:?}", world.instances);
    }

    /// Once faults stop, a Proxy that is wanted is offered.
    #[test]
    fn a_wanted_proxy_becomes_ready_from_every_state(
        desired in wish(), settings in settings(), acts in prop::collection::vec(act(), 0..120),
    ) {
        let mut world = World::new(desired, settings);
        let kept = |act: &Act| !matches!(act, Act::Delete | Act::Pause(_) | Act::Provider(_));
        for act in acts.into_iter().filter(kept) {
            world.act(act);
        }
        let offered = |world: &World| {
            matches!(world.plan.serving, Serving::Offer(_))
                && world.shown == world.stored
                && world.plan.wake.is_none()
                && world.on_host.is_none()
                && world.aside.is_none()
        };
        // Once as it is, and once more when the list has told what nobody had noticed.
        for _ in 0..2 {
            let ended = world.settle_down(offered);
            prop_assert!(ended.is_ok(), "{}", ended.unwrap_err());
            world.act(Act::List);
        }
        let ended = world.settle_down(offered);
        prop_assert!(ended.is_ok(), "{}", ended.unwrap_err());
        prop_assert_eq!(world.plan.status.phase, Phase::Ready);
        prop_assert!(world.instances.values().all(|instance| instance.state == InstanceState::Running));
    }
}
