//! The fleet: registry, probe pool, Proxies, and the watch that feeds them.
//!
//! `rest_for_one` states who depends on whom: a crash of the registry restarts probes, proxies and watch, and the watch's
//! new list brings everything back. Hosts are not of the fleet and outlive it, as the instances do.
//!
//! When another replica leads, all members are stopped in reverse order and started again as a standby: what was leased,
//! probed and on its way belongs to a claim that is gone. Nothing else resets them, and the process goes on.

use std::sync::Arc;
use std::time::Duration;

use crate::election::Claim;
use crate::kit::actor::InitError;
use crate::kit::{Behavior, ChildEnd, ChildId, ChildSpec, Ctx, Intensity, Overflow, Ref, Strategy, Supervision, Tell};

/// The children in the order of starting: leases, probes, proxies, watch.
pub type Members = Arc<dyn Fn() -> Vec<ChildSpec> + Send + Sync>;

/// The verbs of the fleet.
#[derive(Debug, Clone)]
pub struct FleetHandle(Ref<FleetMsg>);

/// What the fleet is made of.
#[derive(Clone)]
pub struct FleetArgs {
    pub members: Members,
    pub claim: Claim,
    /// Told when the members of a lost claim are about to be stopped: what they have under way elsewhere is void.
    pub deposed: Tell<()>,
}

impl std::fmt::Debug for FleetArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetArgs")
    }
}

impl FleetHandle {
    #[expect(clippy::new_without_default, reason = "a handle is made once, for its actor")]
    pub fn new() -> Self {
        Self(Ref::new("fleet"))
    }

    /// How the fleet is started under the operator.
    pub fn spec(&self, args: FleetArgs) -> ChildSpec {
        ChildSpec::of::<Fleet>("fleet", &self.0, move || args.clone()).stop_within(Duration::from_secs(30))
    }

    /// The role of this replica changed.
    pub fn claim_changed(&self) {
        self.0.cast_or_drop(FleetMsg::ClaimChanged);
    }
}

#[derive(Debug)]
enum FleetMsg {
    /// The role of this replica changed.
    ClaimChanged,
}

crate::named!(FleetMsg: ClaimChanged);

struct Fleet {
    args: FleetArgs,
    /// In the order of starting.
    members: Vec<ChildId>,
    /// The claim that the members work under; none while they stand by.
    epoch: Option<u32>,
    /// They are being stopped, to be started anew.
    falling: bool,
}

impl Fleet {
    fn start(&mut self, ctx: &mut Ctx<FleetMsg>) {
        // Read before the members read it: a change in between comes as a message.
        self.epoch = self.args.claim.epoch();
        self.falling = false;
        let members = (self.args.members)();
        self.members = members.iter().map(|member| member.id().clone()).collect();
        for member in members {
            ctx.start(member);
        }
    }

    fn claim_changed(&mut self, ctx: &mut Ctx<FleetMsg>) {
        let epoch = self.args.claim.epoch();
        match self.epoch {
            _ if self.falling => {}
            None => self.epoch = epoch,
            Some(before) if epoch == Some(before) => {}
            Some(before) => {
                tracing::info!(epoch = before, "another replica leads: the fleet is stopped, and stands by");
                self.falling = true;
                self.args.deposed.send(());
                self.fall(ctx);
            }
        }
    }

    /// Stops the last member that is left; starts all anew when none is.
    fn fall(&mut self, ctx: &mut Ctx<FleetMsg>) {
        match self.members.iter().rev().find(|id| ctx.has_child(id)).cloned() {
            Some(last) => ctx.stop_child(&last),
            None => self.start(ctx),
        }
    }
}

impl Behavior for Fleet {
    const KIND: &'static str = "fleet";
    type Msg = FleetMsg;
    type Args = FleetArgs;

    fn init(args: FleetArgs, ctx: &mut Ctx<FleetMsg>) -> Result<Self, InitError> {
        let mut fleet = Self { args, members: Vec::new(), epoch: None, falling: false };
        fleet.start(ctx);
        Ok(fleet)
    }

    fn handle(&mut self, FleetMsg::ClaimChanged: FleetMsg, ctx: &mut Ctx<FleetMsg>) {
        self.claim_changed(ctx);
    }

    fn child_ended(&mut self, _: ChildEnd, ctx: &mut Ctx<FleetMsg>) {
        if self.falling {
            self.fall(ctx);
        }
    }

    fn supervision() -> Supervision {
        Supervision {
            strategy: Strategy::RestForOne,
            intensity: Intensity { restarts: 5, within: Duration::from_secs(30) },
            overflow: Overflow::Escalate,
        }
    }
}
