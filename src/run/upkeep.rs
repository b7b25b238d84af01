//! Small chores beside the actors: gauges that are counted from shared cells, and the exporter's own upkeep.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use egress_actors::board::ProxyView;
use egress_actors::domain::id::ProviderName;
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

/// `provider` of Proxies whose entry is not in the providers config: the name is whatever somebody wrote, and there may be
/// any number of them.
const UNCONFIGURED: &str = "unconfigured";

type Series = (&'static str, String);

/// How many Proxies are in each series of `egress_proxies`.
fn counted(views: &[Arc<ProxyView>], is_configured: impl Fn(&ProviderName) -> bool) -> HashMap<Series, usize> {
    let mut proxies: HashMap<Series, usize> = HashMap::new();
    for view in views {
        let provider = match &view.provider {
            None => "external".to_owned(),
            Some(entry) if is_configured(entry) => entry.to_string(),
            Some(_) => UNCONFIGURED.to_owned(),
        };
        *proxies.entry((view.status.phase.as_str(), provider)).or_default() += 1;
    }
    proxies
}

/// What the gauges are set to. `shown`: the series that have a value; one that nobody is in any more is taken back, so that
/// names that were used once do not stay for ever.
#[expect(clippy::cast_precision_loss, reason = "counts of Proxies are far below 2^52")]
fn gauges(shown: &mut HashSet<Series>, proxies: HashMap<Series, usize>) -> Vec<(Series, f64)> {
    let gone = shown.iter().filter(|series| !proxies.contains_key(*series)).map(|gone| (gone.clone(), names::RETIRED));
    let set: Vec<_> = gone.chain(proxies.iter().map(|(series, count)| (series.clone(), *count as f64))).collect();
    *shown = proxies.into_keys().collect();
    set
}

fn measure(handles: &Handles, shown: &mut HashSet<Series>) {
    let directory = &handles.directory;
    // Before the entries are opened nothing is known of them.
    let is_configured = |entry: &ProviderName| !directory.is_known() || directory.entry(entry).is_some();
    for ((phase, provider), value) in gauges(shown, counted(&handles.board.all(), is_configured)) {
        gauge!(names::PROXIES, "phase" => phase, "provider" => provider).set(value);
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

#[cfg(test)]
mod tests {
    use egress_actors::domain::desired::Attributes;
    use egress_actors::domain::id::{ProxyKey, Uid};
    use egress_actors::domain::status::{Phase, Status};

    use super::*;

    fn view(name: &str, provider: Option<&str>, phase: Phase) -> Arc<ProxyView> {
        Arc::new(ProxyView {
            key: ProxyKey::new("crawl", name).unwrap(),
            uid: Uid::parse("u-1").unwrap(),
            provider: provider.map(|entry| ProviderName::parse(entry).unwrap()),
            host: None,
            attributes: Arc::new(Attributes::default()),
            max_leases: 1,
            status: Arc::new(Status::blank(phase, 1)),
            last_probe: None,
            exit_ip: None,
        })
    }

    #[test]
    fn names_of_entries_that_are_not_configured_make_one_series() {
        let views = [
            view("a", Some("home"), Phase::Ready),
            view("b", Some("typo-1"), Phase::Failed),
            view("c", Some("typo-2"), Phase::Failed),
            view("d", None, Phase::Ready),
        ];
        let mut series: Vec<_> = counted(&views, |entry| entry.as_str() == "home").into_iter().collect();
        series.sort();
        let expected = [("Failed", "unconfigured", 2), ("Ready", "external", 1), ("Ready", "home", 1)];
        assert_eq!(series, expected.map(|(phase, entry, count)| ((phase, entry.to_owned()), count)));
    }

    #[test]
    fn a_series_that_nobody_is_in_any_more_is_taken_back_once() {
        let mut shown = HashSet::new();
        let ready = || ("Ready", "home".to_owned());
        assert_eq!(gauges(&mut shown, HashMap::from([(ready(), 2)])), [(ready(), 2.0)]);
        let retired = gauges(&mut shown, HashMap::new());
        assert!(matches!(&retired[..], [(series, value)] if *series == ready() && value.is_nan()), "{retired:?}");
        assert_eq!(gauges(&mut shown, HashMap::new()), []);
    }
}
