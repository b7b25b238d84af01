//! Small chores beside the actors: gauges that are counted from shared cells, and the exporter's own upkeep.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use egress_actors::kit::task::StopSignal;
use egress_actors::names;
use egress_actors::operator::Handles;
use metrics::{counter, gauge};

use super::world::World;
use crate::telemetry::Exporter;

const EVERY: Duration = Duration::from_secs(5);

pub(super) async fn run(handles: Handles, world: World, exporter: Exporter, stop: StopSignal) -> Result<(), String> {
    let mut shown = HashSet::new();
    let upkeep = exporter.upkeep();
    tokio::pin!(upkeep);
    loop {
        tokio::select! {
            () = stop.wait() => return Ok(()),
            () = &mut upkeep => return Err("the exporter's upkeep ended".to_owned()),
            () = tokio::time::sleep(EVERY) => {
                measure(&handles, &mut shown);
                world.measure();
            }
        }
    }
}

/// `shown`: series of `egress_proxies` that were set before, and are set to zero when nobody is in them any more.
#[expect(clippy::cast_precision_loss, reason = "counts of Proxies are far below 2^52")]
fn measure(handles: &Handles, shown: &mut HashSet<(&'static str, String)>) {
    let mut proxies: HashMap<(&'static str, String), usize> = HashMap::new();
    for view in handles.board.all() {
        let provider = view.provider.as_ref().map_or_else(|| "external".to_owned(), ToString::to_string);
        *proxies.entry((view.status.phase.as_str(), provider)).or_default() += 1;
    }
    shown.extend(proxies.keys().cloned());
    for (phase, provider) in shown.iter() {
        let count = proxies.get(&(*phase, provider.clone())).copied().unwrap_or(0);
        gauge!(names::PROXIES, "phase" => *phase, "provider" => provider.clone()).set(count as f64);
    }
    let mut stalled: HashMap<&'static str, Duration> = HashMap::new();
    for stat in handles.env.registry.all() {
        let oldest = stalled.entry(stat.kind()).or_default();
        *oldest = (*oldest).max(stat.stalled_for());
    }
    for (kind, oldest) in stalled {
        gauge!(names::ACTOR_LAST_PROGRESS_SECONDS, "kind" => kind).set(oldest.as_secs_f64());
    }
    for (kind, totals) in handles.env.registry.totals() {
        counter!(names::ACTOR_RESTARTS_TOTAL, "kind" => kind).absolute(totals.restarts);
        counter!(names::MAILBOX_REJECTED_TOTAL, "kind" => kind).absolute(totals.rejected);
    }
}
