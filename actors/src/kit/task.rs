//! A plain future as a supervised child: it is restarted like an actor, stopped by a signal, aborted at the limit.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::actor::{Behavior, Ctx, InitError, Lingering};
use super::reference::Ref;
use super::supervisor::{ChildId, ChildSpec};

/// Tells a task that it shall end.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    /// A signal and its trigger.
    pub fn new() -> (StopTrigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (StopTrigger(sender), Self(receiver))
    }

    /// Resolves when the task shall end; also when nobody is left who could tell.
    pub async fn wait(&self) {
        let mut seen = self.0.clone();
        let _ended_either_way = seen.wait_for(|&stop| stop).await;
    }

    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }
}

#[derive(Debug)]
pub struct StopTrigger(watch::Sender<bool>);

impl StopTrigger {
    pub fn set(&self) {
        self.0.send_replace(true);
    }
}

type Running = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;
type Body = Arc<dyn Fn(StopSignal) -> Running + Send + Sync>;

/// A permanent child that runs `body`. An `Err` or a panic is a failure; `Ok` is a normal end.
pub fn task<F>(id: impl Into<ChildId>, body: impl Fn(StopSignal) -> F + Send + Sync + 'static) -> ChildSpec
where
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    let body: Body = Arc::new(move |stop| Box::pin(body(stop)));
    ChildSpec::of::<Task>(id, &Ref::new("task"), move || body.clone())
}

struct Task {
    stop: StopTrigger,
    running: Option<JoinHandle<()>>,
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

enum TaskMsg {
    Ended(Result<(), String>),
}

crate::named!(TaskMsg: Ended);

impl Behavior for Task {
    const KIND: &'static str = "task";
    type Msg = TaskMsg;
    type Args = Body;

    fn init(body: Self::Args, ctx: &mut Ctx<TaskMsg>) -> Result<Self, InitError> {
        let (stop, signal) = StopSignal::new();
        let ended = ctx.tell(TaskMsg::Ended);
        let future = body(signal);
        let running = tokio::spawn(async move {
            let result = AssertUnwindSafe(future).catch_unwind().await;
            ended.send(result.unwrap_or_else(|panic| Err(format!("panicked: {}", panic_text(&*panic)))));
        });
        Ok(Self { stop, running: Some(running) })
    }

    fn handle(&mut self, message: TaskMsg, ctx: &mut Ctx<TaskMsg>) {
        match message {
            TaskMsg::Ended(Ok(())) => ctx.stop(),
            TaskMsg::Ended(Err(why)) => ctx.fail(why),
        }
    }

    fn stopping(&mut self, _: &mut Ctx<TaskMsg>) -> Option<Lingering> {
        self.stop.set();
        let running = self.running.take()?;
        let abort = AbortOnDrop(running.abort_handle());
        Some(Box::pin(async move {
            let _abort = abort;
            let _ended_either_way = running.await;
        }))
    }
}

/// Aborts a task when it is dropped: at a kill, where nothing else runs.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}
