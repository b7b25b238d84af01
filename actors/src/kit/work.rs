//! One interruptible operation: a temporary child that runs one future under a deadline and gives exactly one outcome.
//!
//! The deadline is kept by the child itself, not by the future: it frees the one who waits even if the future never
//! returns, or blocks its thread. A kill drops the future; the reply, dropped with it, answers [`Done::Lost`].
//!
//! The future is aborted, not waited for: it is dropped at the await where it stands, usually at once, but the outcome may
//! be told a little earlier. One that never comes to an await goes on, and keeps its thread.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures::FutureExt;

use super::actor::{Behavior, Ctx, InitError};
use super::reference::{Ref, Reply};
use super::supervisor::{ChildId, ChildSpec, Restart};
use super::task::{AbortOnDrop, panic_text};
use super::timers::{Fired, Timers};

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done<T> {
    Finished(T),
    /// The deadline passed; the future is dropped.
    Deadline,
    /// The future panicked.
    Panicked(String),
    /// It was killed, or its parent died.
    Lost,
}

/// A temporary child that runs `future` once. `reply` hears how it ended.
pub fn work<T: Send + 'static>(
    id: impl Into<ChildId>,
    deadline: Instant,
    future: impl Future<Output = T> + Send + 'static,
    reply: Reply<Done<T>>,
) -> ChildSpec {
    // A spec may start many incarnations; this one starts once, as temporary children are not restarted.
    let once: Once<T> = Arc::new(Mutex::new(Some((Box::pin(future), reply))));
    ChildSpec::of::<Work<T>>(id, &Ref::new("work"), move || (once.clone(), deadline)).restart(Restart::Temporary)
}

type Running<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Once<T> = Arc<Mutex<Option<(Running<T>, Reply<Done<T>>)>>>;
type Owed<T> = Arc<Mutex<Option<Reply<Done<T>>>>>;

fn answer<T: Send + 'static>(owed: &Owed<T>, done: Done<T>) {
    let reply = owed.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(reply) = reply {
        reply.send(done);
    }
}

struct Work<T: Send + 'static> {
    owed: Owed<T>,
    timers: Timers<()>,
    _running: AbortOnDrop,
}

impl<T: Send + 'static> Drop for Work<T> {
    fn drop(&mut self) {
        // The future holds the other half: what was not answered by now is lost, even if it never yields again.
        answer(&self.owed, Done::Lost);
    }
}

enum WorkMsg {
    Ended,
    Deadline(Fired<()>),
}

crate::named!(WorkMsg: Ended, Deadline);

impl<T: Send + 'static> Behavior for Work<T> {
    const KIND: &'static str = "op";
    type Msg = WorkMsg;
    type Args = (Once<T>, Instant);

    fn init((once, deadline): Self::Args, ctx: &mut Ctx<WorkMsg>) -> Result<Self, InitError> {
        let (future, reply) =
            once.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or("an operation runs once")?;
        let owed: Owed<T> = Arc::new(Mutex::new(Some(reply)));
        let mut timers = Timers::new(ctx.tell(WorkMsg::Deadline));
        timers.arm_at((), deadline);
        let ended = ctx.tell(|()| WorkMsg::Ended);
        let told = owed.clone();
        let running = tokio::spawn(async move {
            match AssertUnwindSafe(future).catch_unwind().await {
                Ok(value) => answer(&told, Done::Finished(value)),
                Err(panic) => answer(&told, Done::Panicked(panic_text(&*panic))),
            }
            ended.send(());
        });
        Ok(Self { owed, timers, _running: AbortOnDrop(running.abort_handle()) })
    }

    fn handle(&mut self, message: WorkMsg, ctx: &mut Ctx<WorkMsg>) {
        match message {
            WorkMsg::Ended => ctx.stop(),
            WorkMsg::Deadline(fired) => {
                if self.timers.accept(fired).is_some() {
                    answer(&self.owed, Done::Deadline);
                    ctx.stop();
                }
            }
        }
    }
}
