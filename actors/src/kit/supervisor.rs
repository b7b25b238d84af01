//! Supervision: child specs as data, the decision as a pure machine, the running children as a table.
//!
//! Children started in `init` are fixed: when their parent ends, they are stopped one by one from the last to the first.
//! Those started later, and temporary ones, are dynamic: they are stopped together, before the fixed ones. (Under
//! `RestForOne` the later ones depend on the earlier ones, so that only temporary ones are stopped together.)
//!
//! Every actor of the system can have children: its shell owns a [`Children`](children::Children) table and classifies
//! exits by our own record of who asked for them, as ractor reports a killed child like one that ended by itself.
//!
//! ```text
//!           start                exit, to be restarted
//!   Idle ----------> Up ------------------------------> Idle -> (those behind it stopped, in reverse) -> start in order
//!                    |  stop
//!                    '-------> Stopping -- exit --> Idle
//!                                  '-- limit: kill -- grace: abandon (counted) --> Idle
//! ```

pub(super) mod children;
pub mod machine;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ractor::ActorCell;

use super::actor::{self, Behavior, Birth};
use super::reference::Ref;

/// What one child is called among its siblings; the last part of its path in the tree.
pub type ChildId = Arc<str>;

/// What happens to siblings when a child is to be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing.
    OneForOne,
    /// Those that were started after it are stopped, in reverse, and started again behind it, in order: they depend on it.
    /// Temporary ones among them end.
    RestForOne,
}

/// Whether a child that ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Always.
    Permanent,
    /// If it did not end by itself normally.
    Transient,
    /// Never, whoever ended it: its parent hears of the end.
    Temporary,
}

/// How many restarts are normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Intensity {
    pub restarts: u32,
    pub within: Duration,
}

/// What happens when restarts are more than normal.
///
/// `Park` is for independent siblings ([`Strategy::OneForOne`]): those that stand behind a parked child under `RestForOne`
/// go on without what they depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// Counted over all children; the supervisor stops the others in order and fails, and its own supervisor decides.
    Escalate,
    /// Counted for each child; that child stays down, its parent hears of it ([`Exit::GaveUp`]) and may start it again. It
    /// stays visible in the tree until then, or until [`stop_child`](super::Ctx::stop_child).
    Park,
}

/// How an actor treats its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supervision {
    pub strategy: Strategy,
    pub intensity: Intensity,
    pub overflow: Overflow,
}

impl Default for Supervision {
    fn default() -> Self {
        Self {
            strategy: Strategy::OneForOne,
            // OTP's default of 1 in 5 s gives up too soon where a backend can make a child crash twice.
            intensity: Intensity { restarts: 5, within: Duration::from_secs(30) },
            overflow: Overflow::Escalate,
        }
    }
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// By itself, normally.
    Normal,
    /// As its supervisor asked.
    Asked,
    /// A panic or an error.
    Failed(String),
    /// Killed, and not by its supervisor.
    Killed,
    /// It ignored its kill and was left behind.
    Abandoned,
    /// It was restarted too often.
    GaveUp(String),
}

/// A child that will not be restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildEnd {
    pub id: ChildId,
    pub exit: Exit,
}

/// How to start a child, as data. Starting is synchronous: `init` runs in the child's own task.
#[derive(Clone)]
pub struct ChildSpec {
    pub(super) id: ChildId,
    pub(super) kind: &'static str,
    pub(super) names: &'static [&'static str],
    pub(super) restart: Restart,
    pub(super) stop_within: Duration,
    pub(super) runtime: Option<tokio::runtime::Handle>,
    /// None once a temporary child was started: it is started once.
    pub(super) start: Option<Arc<dyn Fn(Birth) -> ActorCell + Send + Sync>>,
    pub(super) clear: Arc<dyn Fn(&ActorCell) + Send + Sync>,
}

impl fmt::Debug for ChildSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChildSpec")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("restart", &self.restart)
            .field("stop_within", &self.stop_within)
            .finish_non_exhaustive()
    }
}

/// Long enough for an actor to finish its handler; what waits for the world says its own limit.
const STOP_WITHIN: Duration = Duration::from_secs(5);

impl ChildSpec {
    /// A permanent child. `args` is called for each incarnation; `to` is refilled with each.
    pub fn of<B: Behavior>(
        id: impl Into<ChildId>,
        to: &Ref<B::Msg>,
        args: impl Fn() -> B::Args + Send + Sync + 'static,
    ) -> Self {
        let (fill, clear) = (to.clone(), to.clone());
        Self {
            id: id.into(),
            kind: B::KIND,
            names: <B::Msg as super::Named>::NAMES,
            restart: Restart::Permanent,
            stop_within: STOP_WITHIN,
            runtime: None,
            start: Some(Arc::new(move |birth| actor::spawn::<B>(birth, &fill, args()))),
            clear: Arc::new(move |cell| clear.clear(cell)),
        }
    }

    #[must_use]
    pub fn restart(mut self, restart: Restart) -> Self {
        self.restart = restart;
        self
    }

    /// How long a stop may take before the child is killed; with zero it is killed at once. A parent needs the sum of the
    /// limits of its fixed children and the largest of the others.
    #[must_use]
    pub fn stop_within(mut self, limit: Duration) -> Self {
        self.stop_within = limit;
        self
    }

    /// Runs the child, and what it starts, on this runtime.
    #[must_use]
    pub fn on(mut self, runtime: &tokio::runtime::Handle) -> Self {
        self.runtime = Some(runtime.clone());
        self
    }

    pub fn id(&self) -> &ChildId {
        &self.id
    }
}
