//! What an actor of this system is: a [`Behavior`] with synchronous handlers, in a shell that is the only ractor actor.
//!
//! The shell keeps the statistics, classifies the ends of children, and carries out starts and stops. As a handler is a
//! plain function, it can neither await another actor nor the world; it starts work and hears back.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, ActorRuntime, SupervisionEvent};
use tokio::sync::oneshot;

use super::clock::Clock;
use super::reference::{Named, Ref, Target, Tell};
use super::stat::{Registry, Stat, Status};
use super::supervisor::children::{Children, KILL_GRACE, Notice, Outcome, Unborn, sweep};
use super::supervisor::{ChildEnd, ChildId, ChildSpec, Exit, Restart, Supervision};
use super::task::panic_text;
use crate::domain::clock::Now;

/// What one running system shares: the index of its tree and its clock. No process-wide names: trees can run side by side.
#[derive(Debug, Default)]
pub struct Env {
    pub registry: Registry,
    pub clock: Clock,
}

impl Env {
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { registry: Registry::default(), clock })
    }
}

/// Why an actor could not begin. Its supervisor decides whether to try again.
pub type InitError = Box<dyn std::error::Error + Send + Sync>;

/// What the actor still has to wait for when it ends; its supervisor's limit is over it.
pub type Lingering = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An actor: state, and what it does with a message.
pub trait Behavior: Sized + Send + 'static {
    /// Kind of actor, for the tree and as a metric label.
    const KIND: &'static str;
    type Msg: Named;
    type Args: Send + 'static;

    /// Builds the state and starts the fixed children; nothing else. What takes long is a message to itself
    /// ([`Ctx::cast_self`]); messages from others may come before that one. An `Err` counts as a failure.
    fn init(args: Self::Args, ctx: &mut Ctx<Self::Msg>) -> Result<Self, InitError>;

    fn handle(&mut self, message: Self::Msg, ctx: &mut Ctx<Self::Msg>);

    /// A child that will not be restarted has ended; its id is free again.
    fn child_ended(&mut self, _end: ChildEnd, _ctx: &mut Ctx<Self::Msg>) {}

    /// The actor is about to end in order, by its own will or by its supervisor's; children are still there, and are stopped
    /// once the future that this gives is through. Not called after a kill or a failure: nothing that must happen may live
    /// only here.
    fn stopping(&mut self, _ctx: &mut Ctx<Self::Msg>) -> Option<Lingering> {
        None
    }

    fn supervision() -> Supervision {
        Supervision::default()
    }
}

/// What travels in a mailbox.
pub(super) enum Mail<M> {
    User(M),
    Notice(Notice),
    Nothing,
}

/// What a behaviour can do beside changing its own state.
pub struct Ctx<M: Named> {
    myself: ActorRef<Mail<M>>,
    stat: Arc<Stat>,
    env: Arc<Env>,
    /// None until the first one is started: most actors never have any, and there are thousands of them.
    children: Option<Box<Children>>,
    supervision: fn() -> Supervision,
    /// `init` is over: what is started from now on is dynamic.
    initialized: bool,
    ended: Vec<ChildEnd>,
    verdict: Verdict,
}

#[derive(Debug)]
enum Verdict {
    GoOn,
    Stop,
    Fail(String),
}

impl<M: Named> fmt::Debug for Ctx<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ctx({})", self.stat.path())
    }
}

impl<M: Named> Ctx<M> {
    pub fn now(&self) -> Now {
        self.env.clock.now()
    }

    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// Where this actor is in the tree.
    pub fn path(&self) -> &Arc<str> {
        self.stat.path()
    }

    pub fn stat(&self) -> &Arc<Stat> {
        &self.stat
    }

    /// Sends to this incarnation: what arrives after its end is dropped.
    pub fn cast_self(&self, message: M) {
        let target = Target { actor: self.myself.clone(), stat: self.stat.clone() };
        drop(target.send(Mail::User(message)));
    }

    /// A way to tell this incarnation one kind of thing: for timers and the results of its own work.
    pub fn tell<T: 'static>(&self, wrap: impl Fn(T) -> M + Send + Sync + 'static) -> Tell<T> {
        let target = Target { actor: self.myself.clone(), stat: self.stat.clone() };
        Tell::new(move |value| drop(target.send(Mail::User(wrap(value)))))
    }

    /// Starts a child. False if one of its id is there already, also while that one is being stopped; then nothing is
    /// started, and replies in the spec answer that they are lost.
    pub fn start(&mut self, spec: ChildSpec) -> bool {
        self.family().start(spec)
    }

    /// Stops a child for good, within its limit. Its end is told by `child_ended`; that of a parked one was told before, it
    /// only leaves the tree.
    pub fn stop_child(&mut self, id: &ChildId) {
        let outcome = self.children.as_mut().map(|children| children.stop(id));
        self.note(outcome.unwrap_or_default());
    }

    /// Ends a child for good and at once. Its end is told by `child_ended`.
    pub fn kill_child(&mut self, id: &ChildId) {
        let outcome = self.children.as_mut().map(|children| children.kill(id));
        self.note(outcome.unwrap_or_default());
    }

    pub fn has_child(&self, id: &ChildId) -> bool {
        self.children.as_ref().is_some_and(|children| children.contains(id))
    }

    /// Shows a place in the tree where no actor runs: a child that is parked. Starting a child of that id replaces it,
    /// stopping it takes it away.
    pub fn mark_parked(&mut self, id: &ChildId, kind: &'static str) {
        self.family().mark_parked(id, kind);
    }

    pub fn child_count(&self) -> usize {
        self.children.as_ref().map_or(0, |children| children.len())
    }

    /// Ends this actor normally after the current message.
    pub fn stop(&mut self) {
        if matches!(self.verdict, Verdict::GoOn) {
            self.verdict = Verdict::Stop;
        }
    }

    /// Ends this actor as failed after the current message. Unlike after a panic, its children are stopped in order first.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.verdict = Verdict::Fail(why.into());
    }

    fn family(&mut self) -> &mut Children {
        self.children.get_or_insert_with(|| {
            let notices = self.myself.clone();
            let notify = Tell::new(move |notice| drop(notices.send_message(Mail::Notice(notice))));
            let (parent, supervision) = (self.myself.get_cell(), (self.supervision)());
            let mut children = Children::new(parent, self.stat.clone(), self.env.clone(), supervision, notify);
            if self.initialized {
                children.initialized();
            }
            Box::new(children)
        })
    }

    fn note(&mut self, outcome: Outcome) {
        self.ended.extend(outcome.ended);
        if let Some(why) = outcome.give_up {
            self.verdict = Verdict::Fail(why);
        }
    }
}

/// What a spawn needs to know.
pub struct Birth {
    pub(super) parent: Option<ActorCell>,
    pub(super) env: Arc<Env>,
    pub(super) stat: Arc<Stat>,
    pub(super) unborn: Unborn,
}

impl fmt::Debug for Birth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Birth({})", self.stat.path())
    }
}

struct Shell<B>(PhantomData<fn() -> B>);

struct Inside<B: Behavior> {
    /// Until `init`. Boxed, as it would take its place in the task for as long as the actor lives.
    args: Option<Box<(B::Args, Unborn)>>,
    behavior: Option<B>,
    ctx: Ctx<B::Msg>,
    failure: Option<String>,
}

impl<B: Behavior> Inside<B> {
    /// One step of the actor. After a panic its state is gone before anybody hears of it, as its successor may need what
    /// it held: a file, a port.
    fn step(&mut self, step: impl FnOnce(&mut Self)) -> Result<(), ActorProcessingErr> {
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
            step(&mut *self);
            self.settle();
        }));
        done.map_err(|panic| {
            self.behavior = None;
            panic_text(&*panic).into()
        })
    }

    /// Tells the behaviour of ended children, and applies what it decided meanwhile.
    fn settle(&mut self) {
        while let Some(behavior) = self.behavior.as_mut()
            && !self.ctx.ended.is_empty()
        {
            for end in std::mem::take(&mut self.ctx.ended) {
                behavior.child_ended(end, &mut self.ctx);
            }
        }
        match std::mem::replace(&mut self.ctx.verdict, Verdict::GoOn) {
            Verdict::GoOn => return,
            Verdict::Stop => {}
            // Reported by `post_stop`: an `Err` from here would kill the children instead of stopping them.
            Verdict::Fail(why) => self.failure = Some(why),
        }
        self.ctx.myself.stop(None);
    }
}

impl<B: Behavior> Actor for Shell<B> {
    type Msg = Mail<B::Msg>;
    type State = Inside<B>;
    type Arguments = (Birth, B::Args);

    async fn pre_start(
        &self,
        myself: ActorRef<Self::Msg>,
        (birth, args): Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        // `init` waits for `post_start`: a failure before the link would be told to nobody.
        let ctx = Ctx {
            myself,
            stat: birth.stat,
            env: birth.env,
            children: None,
            supervision: B::supervision,
            initialized: false,
            ended: Vec::new(),
            verdict: Verdict::GoOn,
        };
        Ok(Inside { args: Some(Box::new((args, birth.unborn))), behavior: None, ctx, failure: None })
    }

    async fn post_start(&self, _: ActorRef<Self::Msg>, inside: &mut Self::State) -> Result<(), ActorProcessingErr> {
        let (args, unborn) = *inside.args.take().expect("post_start runs once");
        unborn.begins();
        inside.behavior = Some(B::init(args, &mut inside.ctx)?);
        inside.ctx.initialized = true;
        if let Some(children) = &mut inside.ctx.children {
            children.initialized();
        }
        inside.step(|_| ())
    }

    async fn handle(
        &self,
        _: ActorRef<Self::Msg>,
        mail: Self::Msg,
        inside: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        inside.step(|inside| match mail {
            Mail::User(message) => {
                inside.ctx.stat.begin(message.index());
                #[cfg(any(test, feature = "testkit"))]
                inside.ctx.env.registry.strike(&inside.ctx.stat);
                let behavior = inside.behavior.as_mut().expect("messages are handled after post_start");
                behavior.handle(message, &mut inside.ctx);
                inside.ctx.stat.end();
            }
            Mail::Notice(notice) => {
                let outcome = inside.ctx.children.as_mut().map(|children| children.noticed(notice));
                inside.ctx.note(outcome.unwrap_or_default());
            }
            Mail::Nothing => {}
        })
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        inside: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        inside.step(|inside| {
            let outcome = inside.ctx.children.as_mut().map(|children| children.observe(event));
            inside.ctx.note(outcome.unwrap_or_default());
        })
    }

    async fn post_stop(&self, _: ActorRef<Self::Msg>, inside: &mut Self::State) -> Result<(), ActorProcessingErr> {
        inside.ctx.stat.set_status(Status::Stopping);
        if inside.failure.is_none()
            && let Some(behavior) = inside.behavior.as_mut()
            && let Some(lingering) = behavior.stopping(&mut inside.ctx)
        {
            lingering.await;
        }
        if let Some(children) = &mut inside.ctx.children {
            children.stop_all().await;
        }
        // Here and not later: ractor sends the rest of the state to the parent, to be dropped when that gets round to it.
        inside.behavior = None;
        inside.failure.take().map_or(Ok(()), |why| Err(why.into()))
    }
}

/// Starts an actor and fills its reference. Returns at once; `init` runs in the actor's own task.
pub(super) fn spawn<B: Behavior>(birth: Birth, to: &Ref<B::Msg>, args: B::Args) -> ActorCell {
    let stat = birth.stat.clone();
    let parent = birth.parent.clone();
    let shell = Shell::<B>(PhantomData);
    let spawned = match parent {
        Some(parent) => ActorRuntime::spawn_linked_instant(None, shell, (birth, args), parent),
        None => ActorRuntime::spawn_instant(None, shell, (birth, args)),
    };
    let (actor, _joined) = spawned.expect("an actor without a name cannot collide with another");
    let cell = actor.get_cell();
    to.fill(Target { actor, stat });
    cell
}

/// A running tree, held by its root.
pub struct Root {
    env: Arc<Env>,
    /// Of the anchor.
    stat: Arc<Stat>,
    cell: ActorCell,
    ended: oneshot::Receiver<Exit>,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Root({} places)", self.env.registry.len())
    }
}

impl Root {
    /// Starts a tree whose root is described by `spec`. The root is not restarted, its end is the end of the tree; the
    /// restart type and the limit in `spec` do not count. Returns at once, before the references of the tree are filled.
    /// Dropping this does not end the tree.
    pub fn start(env: &Arc<Env>, spec: ChildSpec) -> Self {
        let (told, ended) = oneshot::channel();
        let stat = env.registry.anchor(Anchor::KIND, <() as Named>::NAMES);
        let birth = Birth { parent: None, env: env.clone(), stat: stat.clone(), unborn: Unborn::untold() };
        let cell = spawn::<Anchor>(birth, &Ref::new("anchor"), (spec, told));
        Self { env: env.clone(), stat, cell, ended }
    }

    /// Resolves when the tree has ended by itself, with how. Nothing of it runs any more, but for what is stuck in a handler.
    pub async fn ended(&mut self) -> Exit {
        (&mut self.ended).await.unwrap_or(Exit::Killed)
    }

    /// Stops the tree in order; kills it at the limit. True if it ended in time; false up to a few seconds after the limit.
    pub async fn stop_within(self, limit: Duration) -> bool {
        self.cell.stop(None);
        if self.cell.wait(Some(limit)).await.is_ok() {
            return true;
        }
        self.cell.kill();
        // What is not stuck in a handler is gone in no time.
        let _in_time = self.cell.wait(Some(KILL_GRACE)).await;
        sweep(&self.env, &self.stat).await;
        false
    }
}

/// Holds the root of a tree, so that its end is classified like any child's.
struct Anchor {
    told: Option<oneshot::Sender<Exit>>,
}

impl Behavior for Anchor {
    const KIND: &'static str = "anchor";
    type Msg = ();
    type Args = (ChildSpec, oneshot::Sender<Exit>);

    fn init((spec, told): Self::Args, ctx: &mut Ctx<()>) -> Result<Self, InitError> {
        // The limit is the one that `Root::stop_within` is given.
        ctx.start(spec.restart(Restart::Temporary).stop_within(Duration::MAX));
        Ok(Self { told: Some(told) })
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}

    fn child_ended(&mut self, end: ChildEnd, ctx: &mut Ctx<()>) {
        if let Some(told) = self.told.take() {
            drop(told.send(end.exit));
        }
        ctx.stop();
    }
}
