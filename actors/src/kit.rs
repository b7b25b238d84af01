//! Our OTP on top of ractor: what every actor of the system stands on. Knows nothing of proxies.
//!
//! For those who know OTP:
//!
//! | OTP | here |
//! |---|---|
//! | `gen_server` | [`Behavior`]: a state with *synchronous* handlers in a shell, the only ractor actor of the project ([`actor`]) |
//! | `gen_server:cast`, registered name | [`Ref::cast`]: a cell that each restart refills; nobody holds an incarnation ([`mod@reference`]) |
//! | `gen_server:call` | [`Entry::call`], for the HTTP edge only; actors cast, and hear back through a [`Tell`] or a [`Reply`] |
//! | bounded mailbox (none) | [`Entry`]: what comes from outside takes a place, or hears `Full` at once ([`mailbox`]) |
//! | `supervisor`, child specs | any actor can have children: [`ChildSpec`], [`Supervision`], [`Ctx::start`] ([`supervisor`]) |
//! | `simple_one_for_one`, `start_child` | [`Ctx::start`] after `init` |
//! | `{shutdown, Timeout}`, `brutal_kill` | [`ChildSpec::stop_within`], with zero |
//! | intensity reached: the supervisor exits | [`Overflow::Escalate`]; or [`Overflow::Park`], which OTP has not |
//! | `terminate/2` | [`Behavior::stopping`], which may give a future to wait for |
//! | `handle_continue` | [`Ctx::cast_self`] |
//! | `Task` under a supervisor | [`task::task`]; one killable call with a deadline: [`work::work`] |
//! | `erlang:start_timer`, `cancel_timer` | [`Timers`]: keyed, late firings are told apart |
//! | `process_info`, observer | [`stat`] and [`tree`]: read without asking the actor |
//! | application | [`Env`] (what one tree shares) and [`Root`] |
//!
//! What differs from OTP, and why:
//!
//! - A handler cannot wait: it is a plain function (design.md 5.2). It starts work and hears back.
//! - A kill takes effect between messages. An actor stuck *in* a handler cannot be killed by anybody; after a grace it is
//!   left behind, counted ([`stat::Totals::abandoned`]), its place refilled and whatever ran below it ended.
//!   (tokio keeps the task that a thread woke last on that thread: it is stuck with it. A handler never blocks.)
//! - A successor begins only when nothing of its predecessor runs any more, neither itself nor anything below it.
//! - Messages queued in an incarnation die with it: their [`Reply`]s answer that they are lost, their permits come back.
//! - A parent that panics or is killed takes its children along without their `stopping`; one that fails or gives up stops
//!   them in order first.
//!
//! ```
//! use egress_actors::kit::{Behavior, ChildSpec, Ctx, Env, Ref, Root, actor::InitError, clock::Clock};
//!
//! enum CounterMsg {
//!     /// Adds that many.
//!     Add(u32),
//!     /// The end of counting.
//!     Enough,
//! }
//! egress_actors::named!(CounterMsg: Add, Enough);
//!
//! struct Counter(u32);
//!
//! impl Behavior for Counter {
//!     const KIND: &'static str = "counter";
//!     type Msg = CounterMsg;
//!     type Args = u32;
//!
//!     fn init(first: u32, ctx: &mut Ctx<CounterMsg>) -> Result<Self, InitError> {
//!         ctx.cast_self(CounterMsg::Add(2));
//!         ctx.cast_self(CounterMsg::Enough);
//!         Ok(Self(first))
//!     }
//!
//!     fn handle(&mut self, message: CounterMsg, ctx: &mut Ctx<CounterMsg>) {
//!         match message {
//!             CounterMsg::Add(n) => self.0 += n,
//!             CounterMsg::Enough => ctx.stop(),
//!         }
//!     }
//! }
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let env = Env::new(Clock::System);
//! let counter = Ref::new("counter");
//! let mut root = Root::start(&env, ChildSpec::of::<Counter>("counter", &counter, || 1));
//! // Starting does not wait: until the counter is up, a cast hands its message back.
//! assert!(counter.cast(CounterMsg::Add(3)).is_err());
//! assert_eq!(root.ended().await, egress_actors::kit::Exit::Normal);
//! # });
//! ```

pub mod actor;
pub mod clock;
pub mod mailbox;
pub mod reference;
pub mod stat;
pub mod supervisor;
pub mod task;
pub mod timers;
pub mod tree;
pub mod work;

pub use actor::{Behavior, Ctx, Env, Root};
pub use mailbox::{Entry, Permit, Refused};
pub use reference::{Answer, CallError, Named, Ref, Reply, Tell};
pub use supervisor::{ChildEnd, ChildId, ChildSpec, Exit, Intensity, Overflow, Restart, Strategy, Supervision};
pub use timers::{Fired, Timers};

/// Names the variants of a message enum for the statistics: `named!(HostMsg: Submit, Done, Tick);`
#[macro_export]
macro_rules! named {
    ($msg:ident: $($variant:ident),+ $(,)?) => {
        impl $crate::kit::Named for $msg {
            const NAMES: &'static [&'static str] = &[$(stringify!($variant)),+];

            fn index(&self) -> u8 {
                enum Order { $($variant),+ }
                match self { $(Self::$variant { .. } => Order::$variant as u8),+ }
            }
        }
    };
}

#[cfg(test)]
mod tests;
