//! One Proxy with its object, its actor's view and a clock, for the tables.

mod acts;
mod complaints;
mod ending;
mod handing_over;
mod making;
mod removal;
mod serving;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use secrecy::SecretString;

use super::*;
use crate::domain::desired::{CloudInit, External, Flavor, Scheme, SecretRef};
use crate::domain::error::OpError;
use crate::domain::health::{Blame, Probed, Verdict};
use crate::domain::id::Uid;
use crate::domain::instance::{Instance, InstanceState, SecretBytes};
use crate::domain::status::{ConditionType, LastProbe, Phase, Truth};
use crate::testkit;

const SETTLE: Duration = Duration::from_secs(20);

fn host(name: &str) -> HostName {
    HostName::parse(name).expect("valid")
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint { scheme: Scheme::Http, host: address.into(), port: 3128 }
}

fn credentials(password: &str) -> Credentials {
    Credentials { username: "u".into(), password: Arc::new(SecretString::from(password)) }
}

fn managed() -> Desired {
    let uid = Uid::parse("uid-1").expect("valid");
    Desired { uid, attributes: Arc::default(), ..testkit::world::managed("px-1", "kvm") }
}

fn external() -> Desired {
    Desired { flavor: Flavor::External(External { endpoint: endpoint("203.0.113.7"), credentials: None }), ..managed() }
}

fn with_secret(mut desired: Desired) -> Desired {
    let secret = Some(SecretRef { name: "auth".into() });
    match &mut desired.flavor {
        Flavor::Managed(managed) => {
            managed.credentials = secret;
            managed.cloud_init = Some(CloudInit::Secret { name: "init".into(), key: "user-data".into() });
        }
        Flavor::External(external) => external.credentials = secret,
    }
    desired
}

fn instance(id: &str, state: InstanceState, address: Option<&str>) -> Instance {
    Instance {
        provider_id: format!("kvm://kvm/a/{id}").into(),
        state,
        endpoint: address.map(endpoint),
        generated: None,
        outdated: None,
        created_at: None,
        complaint: None,
    }
}

fn running(id: &str) -> Instance {
    instance(id, InstanceState::Running, Some("10.0.0.9"))
}

fn place(name: &str) -> HostFacts {
    HostFacts { name: host(name), ids: format!("kvm://kvm/{name}/").into() }
}

fn facts(revision: u64) -> ProviderFacts {
    ProviderFacts {
        revision,
        hosts: Arc::from([place("a"), place("b")]),
        settle: SETTLE,
        address_timeout: Duration::from_mins(5),
        may_generate_credentials: false,
    }
}

fn probed(verdict: Verdict, ok: bool) -> Probed {
    let probe = LastProbe {
        at: SystemTime::UNIX_EPOCH,
        ok,
        latency: Duration::ZERO,
        reason: (!ok).then_some(Reason::ProxyTimeout),
    };
    Probed { verdict, probe, blame: (!ok).then_some(Blame::Proxy), exit_ip: None }
}

fn unhealthy() -> Probed {
    probed(Verdict::Unhealthy { reason: Reason::ProxyTimeout, detail: "no answer in 10 s".into() }, false)
}

fn transient(reason: Reason) -> OpError {
    OpError::transient(reason, "host `a` does not answer")
}

fn permanent(reason: Reason) -> OpError {
    OpError::permanent(reason, "pool `fast` not found on host `a`")
}

/// A name for the message, and how the row comes about.
type Row<How> = (&'static str, How);

/// One Proxy on its way.
struct Life {
    desired: Desired,
    seen: Observed,
    settings: Settings,
    now: Now,
    plan: Plan,
}

impl Life {
    fn of(desired: Desired) -> Self {
        Self::after_restart(desired, None)
    }

    fn after_restart(desired: Desired, recorded: Option<Arc<Status>>) -> Self {
        let settings = Settings::default();
        let now = Now { mono: Instant::now(), wall: SystemTime::UNIX_EPOCH + Duration::from_hours(24) };
        let mut seen = Observed::new(&desired, recorded, &settings, now);
        seen.on_claim(true);
        seen.on_provider(ProviderSeen::Configured(facts(1)));
        let plan = plan(&desired, &seen, &settings, now);
        Self { desired, seen, settings, now, plan }
    }

    /// Asks for a plan, begins it, and checks what holds for every plan.
    fn turn(&mut self) -> &Plan {
        let first = plan(&self.desired, &self.seen, &self.settings, self.now);
        assert_eq!(first, plan(&self.desired, &self.seen, &self.settings, self.now), "asked twice, answered twice");
        assert!(first.wake.is_none_or(|wake| wake > self.now.mono), "a wake in the past spins");
        self.seen.on_planned(&self.desired, &first, self.now);
        if Task::of(&first.step).is_some() {
            let next = plan(&self.desired, &self.seen, &self.settings, self.now);
            assert!(
                Task::of(&next.step).is_none_or(|task| !task.is_on_host())
                    || !matches!(Task::of(&first.step), Some(task) if task.is_on_host()),
                "{:?} while {:?} runs",
                next.step,
                first.step
            );
        }
        self.plan = first;
        &self.plan
    }

    fn step(&mut self) -> Step {
        self.turn().step.clone()
    }

    /// Tells a fact, and turns.
    fn tell(&mut self, fact: impl FnOnce(&mut Observed, Now)) -> &mut Self {
        fact(&mut self.seen, self.now);
        self.turn();
        self
    }

    fn edit(&mut self, change: impl FnOnce(&mut Desired)) -> &mut Self {
        change(&mut self.desired);
        self.seen.on_desired(&self.desired, self.now);
        self.turn();
        self
    }

    fn wait(&mut self, time: Duration) -> &mut Self {
        self.now = self.now.after(time);
        self.turn();
        self
    }

    /// Waits until the plan itself asks to be woken.
    fn wait_for_wake(&mut self) -> &mut Self {
        let wake = self.plan.wake.expect("it waits for nothing");
        let time = self.now.until(wake);
        self.wait(time)
    }

    /// Finalizer and host are on the object and seen.
    fn adopted(desired: Desired) -> Self {
        Self::of(Desired { finalizer: true, host: Some(host("a")), ..desired })
    }

    /// A managed one, all the way to Ready.
    fn ready() -> Self {
        let mut life = Self::of(managed());
        life.turn();
        life.tell(|seen, now| seen.on_reserved(Ok(host("a")), now));
        life.tell(|seen, now| seen.on_adopted(Ok(()), now));
        life.edit(|desired| {
            desired.finalizer = true;
            desired.host = Some(host("a"));
        });
        life.tell(|seen, now| seen.on_get(Err(OpError::not_found("no such domain")), now));
        life.tell(|seen, now| seen.on_create(Ok(running("1")), now));
        life.tell(|seen, _| seen.on_leases_left(0));
        life.tell(|seen, now| seen.on_probed(probed(Verdict::Healthy, true), now));
        assert!(life.offers(), "{:?}", life.plan);
        life
    }

    fn offers(&self) -> bool {
        matches!(self.plan.serving, Serving::Offer(_))
    }

    fn withdrawn_for(&self) -> Option<Reason> {
        match self.plan.serving {
            Serving::Offer(_) | Serving::AsBefore => None,
            Serving::Withdraw { reason, .. } => Some(reason),
        }
    }

    fn ends_leases(&self) -> bool {
        matches!(self.plan.serving, Serving::Withdraw { ends_leases: true, .. })
    }

    fn phase(&self) -> Phase {
        self.plan.status.phase
    }

    fn condition(&self, kind: ConditionType) -> (Truth, Reason) {
        let condition = self.plan.status.condition(kind).expect("every condition is told");
        (condition.truth, condition.reason)
    }

    fn message(&self, kind: ConditionType) -> String {
        self.plan.status.condition(kind).expect("every condition is told").message.to_string()
    }

    fn warned(&self) -> Vec<Reason> {
        self.plan.notices.iter().filter(|n| n.severity == Severity::Warning).map(|n| n.reason).collect()
    }
}

fn get() -> Step {
    Step::Get { host: host("a") }
}

fn create() -> Step {
    Step::Create { host: host("a") }
}

fn delete(why: Reason) -> Step {
    Step::Delete { host: host("a"), why }
}

fn gone() -> Result<Instance, OpError> {
    Err(OpError::not_found("no such domain"))
}
