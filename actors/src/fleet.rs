//! The fleet: registry, probe pool, Proxies, and the watch that feeds them.
//!
//! `rest_for_one` states who depends on whom: a crash of the registry restarts probes, proxies and watch, and the watch's
//! new list brings everything back. Hosts are not of the fleet and outlive it, as the instances do.

use std::sync::Arc;
use std::time::Duration;

use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildSpec, Ctx, Intensity, Overflow, Ref, Strategy, Supervision};

/// The children in the order of starting: leases, probes, proxies, watch.
pub type Members = Arc<dyn Fn() -> Vec<ChildSpec> + Send + Sync>;

/// How the fleet is started under the operator.
pub fn spec(members: Members) -> ChildSpec {
    ChildSpec::of::<Fleet>("fleet", &Ref::new("fleet"), move || members.clone()).stop_within(Duration::from_secs(30))
}

struct Fleet;

impl Behavior for Fleet {
    const KIND: &'static str = "fleet";
    type Msg = ();
    type Args = Members;

    fn init(members: Members, ctx: &mut Ctx<()>) -> Result<Self, InitError> {
        for member in members() {
            ctx.start(member);
        }
        Ok(Self)
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}

    fn supervision() -> Supervision {
        Supervision {
            strategy: Strategy::RestForOne,
            intensity: Intensity { restarts: 5, within: Duration::from_secs(30) },
            overflow: Overflow::Escalate,
        }
    }
}
