//! The Prometheus exporter: describes what `egress_actors::names` declares, and writes it as text for `/metrics`.
//!
//! No listener of its own: the admin server asks [`Exporter::render`]. It shares nothing with who measures but the
//! recorder's own registry.

use std::fmt;
use std::time::Duration;

use egress_actors::names::{self, Kind, Metric};
use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio::time::{MissedTickBehavior, interval};

use super::TelemetryError;
use super::writer::LogWriter;

/// Samples of histograms pile up until they are sorted into their buckets, by this or by a scrape.
pub const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// What `/metrics` shows. Cheap to clone.
#[derive(Clone)]
pub struct Exporter {
    handle: PrometheusHandle,
    process: metrics_process::Collector,
    logs: LogWriter,
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter")
    }
}

impl Exporter {
    /// Makes the recorder that all metrics of this process go to.
    pub(super) fn install(logs: LogWriter) -> Result<Self, TelemetryError> {
        let recorder = recorder();
        let exporter = Self::new(&recorder, logs);
        metrics::set_global_recorder(recorder).map_err(|_| TelemetryError::Recorder)?;
        exporter.describe();
        Ok(exporter)
    }

    pub(super) fn new(recorder: &PrometheusRecorder, logs: LogWriter) -> Self {
        Self { handle: recorder.handle(), process: metrics_process::Collector::default(), logs }
    }

    /// Tells the current recorder what is declared.
    pub(super) fn describe(&self) {
        for Metric { name, kind, unit, labels, help } in names::ALL.iter().copied() {
            match kind {
                Kind::Counter => describe_counter!(name, unit, help),
                Kind::Gauge => describe_gauge!(name, unit, help),
                Kind::Histogram(_) => describe_histogram!(name, unit, help),
            }
            // There from the start: "0" and "nobody measures this" must not look the same to an alert.
            match (kind, labels.is_empty()) {
                (Kind::Counter, true) => counter!(name).absolute(0),
                (Kind::Gauge, true) => gauge!(name).set(0.0),
                (Kind::Histogram(_), _) | (_, false) => {}
            }
        }
        self.process.describe();
    }

    /// The metrics now, in Prometheus' text format (`text/plain; version=0.0.4`).
    pub fn render(&self) -> String {
        self.process.collect();
        counter!(names::LOG_LINES_DROPPED_TOTAL).absolute(self.logs.dropped());
        without_retired(with_counted_cpu(self.handle.render()))
    }

    /// Keeps the exporter's memory bounded while nobody scrapes. Never ends by itself; dropping it is harmless.
    pub async fn upkeep(self) {
        let mut ticks = interval(UPKEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.handle.run_upkeep();
        }
    }
}

/// The counters of the `metrics` crate are whole numbers, and a second of CPU is long: the value comes as a gauge and is
/// shown as the counter that it is.
fn with_counted_cpu(text: String) -> String {
    text.replacen("# TYPE process_cpu_seconds_total gauge\n", "# TYPE process_cpu_seconds_total counter\n", 1)
}

/// Leaves out the gauges whose subject is gone ([`names::RETIRED`]).
fn without_retired(text: String) -> String {
    let retired = |line: &str| !line.starts_with('#') && line.ends_with(" NaN");
    if !text.lines().any(retired) {
        return text;
    }
    text.lines().filter(|line| !retired(line)).flat_map(|line| [line, "\n"]).collect()
}

/// A recorder with the buckets of `names`.
pub(super) fn recorder() -> PrometheusRecorder {
    let mut builder = PrometheusBuilder::new();
    for metric in names::ALL {
        if let Kind::Histogram(buckets) = metric.kind {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
                .expect("only an empty list of buckets is refused, and ours have some");
        }
    }
    builder.build_recorder()
}
