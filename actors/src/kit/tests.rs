//! The kit at work on ractor. Most tests run on one thread under a paused clock, so that limits and windows pass in no
//! time; those that need a thread that is really stuck say so.

mod entries;
mod random;
mod stopping;
mod stuck;
mod supervision;
mod task;
mod timers;
mod tree;
mod work;

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::actor::{InitError, Lingering};
use super::clock::Clock;
use super::{
    Behavior, ChildEnd, ChildSpec, Ctx, Env, Exit, Intensity, Overflow, Ref, Root, Strategy, Supervision, Timers,
};

/// What happened, in order.
#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// What was noted since the last look.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// How an actor treats its children: the parameter of [`Puppet`].
const ONE: u8 = 0;
const REST: u8 = 1;
const PARK: u8 = 2;

/// An actor that does as it is told, and notes what happens to it.
struct Puppet<const S: u8> {
    script: Script,
    kept: Vec<Box<dyn Any + Send>>,
    timers: Timers<&'static str>,
}

#[derive(Debug, Clone, Default)]
struct Script {
    name: String,
    log: Log,
    children: Vec<ChildSpec>,
    /// How long its `stopping` takes.
    lingers: Option<Duration>,
    /// Why its `init` fails.
    unable: Option<&'static str>,
}

type Deed = Box<dyn FnOnce(&mut Ctx<Msg>) + Send>;

enum Msg {
    /// Whatever a behaviour may do.
    Do(Deed),
    /// Stays in the state.
    Keep(Box<dyn Any + Send>),
    Arm(&'static str, Duration),
    Fired(super::Fired<&'static str>),
}

crate::named!(Msg: Do, Keep, Arm, Fired);

impl Msg {
    fn run(what: impl FnOnce(&mut Ctx<Msg>) + Send + 'static) -> Self {
        Self::Do(Box::new(what))
    }

    fn panic() -> Self {
        Self::run(|_| panic!("boom"))
    }
}

impl<const S: u8> Behavior for Puppet<S> {
    const KIND: &'static str = "puppet";
    type Msg = Msg;
    type Args = Script;

    fn init(script: Script, ctx: &mut Ctx<Msg>) -> Result<Self, InitError> {
        script.log.note(format!("start {}", script.name));
        if let Some(why) = script.unable {
            return Err(why.into());
        }
        for child in &script.children {
            assert!(ctx.start(child.clone()));
        }
        let timers = Timers::new(ctx.tell(Msg::Fired));
        Ok(Self { script, kept: Vec::new(), timers })
    }

    fn handle(&mut self, message: Msg, ctx: &mut Ctx<Msg>) {
        match message {
            Msg::Do(what) => what(ctx),
            Msg::Keep(what) => self.kept.push(what),
            Msg::Arm(key, after) => self.timers.arm_in(key, after),
            Msg::Fired(fired) => {
                let accepted = self.timers.accept(fired);
                self.script.log.note(format!("fired {accepted:?}"));
            }
        }
    }

    fn child_ended(&mut self, end: ChildEnd, _: &mut Ctx<Msg>) {
        let exit = match end.exit {
            Exit::Failed(why) => format!("failed: {why}"),
            Exit::GaveUp(_) => "gave up".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        self.script.log.note(format!("{} hears: {} {exit}", self.script.name, end.id));
    }

    fn stopping(&mut self, _: &mut Ctx<Msg>) -> Option<Lingering> {
        self.script.log.note(format!("stop {}", self.script.name));
        let (limit, log, name) = (self.script.lingers?, self.script.log.clone(), self.script.name.clone());
        Some(Box::pin(async move {
            tokio::time::sleep(limit).await;
            log.note(format!("lingered {name}"));
        }))
    }

    fn supervision() -> Supervision {
        Supervision {
            strategy: if S == REST { Strategy::RestForOne } else { Strategy::OneForOne },
            intensity: Intensity { restarts: 2, within: Duration::from_mins(1) },
            overflow: if S == PARK { Overflow::Park } else { Overflow::Escalate },
        }
    }
}

impl Script {
    fn of(log: &Log, name: &str) -> Self {
        Self { name: name.into(), log: log.clone(), ..Self::default() }
    }

    fn with(mut self, children: impl IntoIterator<Item = ChildSpec>) -> Self {
        self.children = children.into_iter().collect();
        self
    }

    fn lingering(mut self, limit: Duration) -> Self {
        self.lingers = Some(limit);
        self
    }

    fn spec<const S: u8>(self, to: &Ref<Msg>) -> ChildSpec {
        ChildSpec::of::<Puppet<S>>(self.name.clone(), to, move || self.clone())
    }
}

/// A leaf.
fn leaf(log: &Log, name: &str) -> (Ref<Msg>, ChildSpec) {
    let to = Ref::new(name);
    let spec = Script::of(log, name).spec::<ONE>(&to);
    (to, spec)
}

/// A running tree: `top` and these children.
struct Scene {
    env: Arc<Env>,
    log: Log,
    top: Ref<Msg>,
    root: Root,
}

impl Scene {
    async fn of<const S: u8>(log: &Log, children: impl IntoIterator<Item = ChildSpec>) -> Self {
        let env = Env::new(Clock::derived());
        let top = Ref::new("top");
        let root = Root::start(&env, Script::of(log, "top").with(children).spec::<S>(&top));
        settle().await;
        Self { env, log: log.clone(), top, root }
    }

    /// On a real clock, where settling is not enough.
    async fn up<const S: u8>(log: &Log, children: impl IntoIterator<Item = ChildSpec>) -> Self {
        let scene = Self::of::<S>(log, children).await;
        eventually("top is up", || scene.top.is_up()).await;
        scene
    }

    /// Has `top` do this, and waits until the consequences are over.
    async fn have(&self, what: impl FnOnce(&mut Ctx<Msg>) + Send + 'static) {
        assert!(self.top.cast(Msg::run(what)).is_ok(), "top is up");
        settle().await;
    }

    /// What happened since the last look.
    fn events(&self) -> String {
        self.log.take().join(", ")
    }

    fn paths(&self) -> Vec<String> {
        paths(&self.env)
    }
}

fn paths(env: &Env) -> Vec<String> {
    let mut paths: Vec<String> = env.registry.all().iter().map(|stat| stat.path().to_string()).collect();
    paths.sort();
    paths
}

/// Lets everything that is ready happen: under a paused clock, time passes only when nothing else can.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

async fn tell(to: &Ref<Msg>, message: Msg) {
    assert!(to.cast(message).is_ok(), "{to:?} is up");
    settle().await;
}

/// For tests on real threads: looks again and again, up to a limit.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = std::time::Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(std::time::Instant::now() < limit, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
