//! Our OTP on top of ractor: what every actor of the system stands on. Knows nothing of proxies.
//!
//! - [`actor`]: a behaviour is a state with *synchronous* handlers; the shell around it is the only ractor actor of the
//!   project. A handler cannot wait for the world, as it cannot await (design.md 5.2).
//! - [`reference`]: handles as cells that a restart refills; answers narrowed to one verb; reply tokens that always answer.
//! - [`supervisor`]: child specs as data, strategies, restart intensity, ordered start and reverse stop.
//! - [`mailbox`]: the bounded entry from outside.
//! - [`work`]: one interruptible operation with a deadline and exactly one outcome.
//! - [`task`]: a plain future as a supervised child.
//! - [`timers`]: keyed timers whose late firings are told apart.
//! - [`stat`], [`tree`]: what each actor is doing, read without asking it.
//! - [`clock`]: both clocks, or a derived pair under a paused runtime.

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
