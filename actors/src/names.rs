//! Every metric's name, kind, unit, labels and help text, each declared once (contract.md 7).
//!
//! Whoever measures uses a constant from here with the `metrics` macros: `counter!(names::PROBES_TOTAL, "result" => ..)`.
//! The exporter in the root package describes [`ALL`] at its start and takes the histogram buckets from it.
//!
//! - **Labels** are closed sets or names from the configuration (provider entries, hosts), never names of Proxies,
//!   leases or clients: those have no bound.
//! - **Gauges** keep the last value that was set. Whoever owns one whose subject goes away (an entry removed from the
//!   config) sets it to [`RETIRED`]; the exporter leaves it out from then on.

use metrics::Unit;

/// The value of a gauge whose subject is gone. Setting a real value brings the gauge back.
pub const RETIRED: f64 = f64::NAN;

/// What a metric does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// One metric as the exporter describes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// In-memory decisions: a microsecond is usual, a millisecond is a surprise.
const DECISION: &[f64] = &[1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1.0];
/// A question to the lease API, which may wait for the registry's queue.
const REQUEST: &[f64] = &[2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0, 5.0];
/// A request through a proxy: 10 s is the usual deadline.
const PROBE: &[f64] = &[2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Waiting for a slot: nothing at all in a healthy system.
const WAIT: &[f64] = &[1e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// A call to a backend: from a local question to an upload of an image.
const CALL: &[f64] = &[1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0];

macro_rules! kind {
    (Counter) => {
        Kind::Counter
    };
    (Gauge) => {
        Kind::Gauge
    };
    (Histogram $buckets:ident) => {
        Kind::Histogram($buckets)
    };
}

/// The constant and the row of [`ALL`] come from one place, so that neither can be without the other.
macro_rules! declare {
    ($($(#[$doc:meta])* $ident:ident = $name:literal: $kind:ident $(($buckets:ident))?, $unit:ident, [$($label:literal),*], $help:literal;)*) => {
        $(
            #[doc = $help]
            #[doc = ""]
            $(#[$doc])*
            pub const $ident: &str = $name;
        )*

        /// Every metric of the operator, in the order of contract.md 7, then those of standalone mode, of the election, of cluster mode
        /// and of virtual machines (those of the process itself come on top).
        pub const ALL: &[Metric] = &[
            $(Metric {
                name: $ident,
                kind: kind!($kind $($buckets)?),
                unit: Unit::$unit,
                labels: &[$($label),*],
                help: $help,
            },)*
        ];
    };
}

declare! {
    /// `target`: a host of the entry.
    PROVIDER_TARGET_UP = "proxy_operator_provider_target_up": Gauge, Count, ["provider", "target"],
        "1 if the latest check of this host of a provider entry succeeded, else 0.";
    PROVIDER_TARGET_CHECK_DURATION_SECONDS = "proxy_operator_provider_target_check_duration_seconds": Gauge, Seconds, ["provider", "target"],
        "How long the latest check of this host took.";
    PROVIDER_TARGET_CHECK_TIMESTAMP_SECONDS = "proxy_operator_provider_target_check_timestamp_seconds": Gauge, Seconds, ["provider", "target"],
        "When the latest check of this host ended, in seconds since the Unix epoch.";
    /// `phase`: the phases of a Proxy. `provider`: an entry, `external`, or `unconfigured` for all that the config has not.
    PROXIES = "egress_proxies": Gauge, Count, ["phase", "provider"],
        "Proxies by phase and provider entry.";
    /// `state`: `active`, `draining`.
    LEASES = "egress_leases": Gauge, Count, ["state"],
        "Leases that are out.";
    /// `outcome`: `granted`, or the code of the problem answer.
    LEASE_GRANTS_TOTAL = "egress_lease_grants_total": Counter, Count, ["outcome"],
        "Requests for leases, by how they ended.";
    LEASE_GRANT_SECONDS = "egress_lease_grant_seconds": Histogram(REQUEST), Seconds, [],
        "From a request for a lease to its answer, without time that the client asked to wait.";
    LEASE_WAITERS = "egress_lease_waiters": Gauge, Count, [],
        "Requests that wait for a lease to become free.";
    /// `outcome`: the outcomes that clients may report.
    REPORTS_TOTAL = "egress_reports_total": Counter, Count, ["outcome"],
        "Reports on leases, by what they said.";
    /// `scope`: `target` (a pair of proxy and target), `proxy` (the whole proxy).
    COOLDOWNS = "egress_cooldowns": Gauge, Count, ["scope"],
        "Cooldowns that keep proxies from being granted.";
    /// `result`: `ok`, or the reason of the verdict.
    PROBES_TOTAL = "egress_probes_total": Counter, Count, ["result"],
        "Probes through proxies, by result.";
    PROBE_SECONDS = "egress_probe_seconds": Histogram(PROBE), Seconds, [],
        "How long a probe took, from the connect to its verdict.";
    PROBE_LAG_SECONDS = "egress_probe_lag_seconds": Histogram(WAIT), Seconds, [],
        "How late a probe started, for want of a slot.";
    /// `target`: a probe target that is configured; bounded by the prober.
    PROBE_TARGET_SUSPECT = "egress_probe_target_suspect": Gauge, Count, ["target"],
        "1 while failures point at this probe target and not at the proxies: verdicts on it are frozen.";
    /// `call`: `create`, `get`, `list`, `delete`, `check`. `outcome`: `ok`, or the reason of the error, which is
    /// one of a closed list (`domain::reason`).
    HOST_CALL_SECONDS = "egress_host_call_seconds": Histogram(CALL), Seconds, ["provider", "host", "call", "outcome"],
        "How long a call to a provider's host took.";
    HOST_QUEUE_WAIT_SECONDS = "egress_host_queue_wait_seconds": Histogram(WAIT), Seconds, ["provider", "host"],
        "How long an operation waited for a slot of its host.";
    HOST_LINK_UP = "egress_host_link_up": Gauge, Count, ["provider", "host"],
        "1 while the connection to this host is up, else 0.";
    HOST_LINK_TEARDOWNS_TOTAL = "egress_host_link_teardowns_total": Counter, Count, [],
        "Connections to hosts that were cut because a deadline had passed.";
    HOST_THREADS_ABANDONED = "egress_host_threads_abandoned": Gauge, Count, [],
        "Threads left behind in calls that have not returned after their connection was cut.";
    PLAN_STEP_SECONDS = "egress_plan_step_seconds": Histogram(DECISION), Seconds, [],
        "How long it took to decide the next step of a Proxy.";
    /// `kind`: what was written: `finalizer`, `status`, `provider_health`, `event`, `claim`.
    API_WRITES_TOTAL = "egress_api_writes_total": Counter, Count, ["kind"],
        "Writes to the API server or the state store.";
    /// `kind`: the kind of actor.
    ACTOR_RESTARTS_TOTAL = "egress_actor_restarts_total": Counter, Count, ["kind"],
        "Actors started again after they had failed.";
    /// `kind`: the kind of actor.
    ACTOR_LAST_PROGRESS_SECONDS = "egress_actor_last_progress_seconds": Gauge, Seconds, ["kind"],
        "For how long the slowest busy actor of this kind has been in its current message.";
    /// `kind`: the kind of actor.
    MAILBOX_REJECTED_TOTAL = "egress_mailbox_rejected_total": Counter, Count, ["kind"],
        "Messages that a full mailbox refused.";
    LOG_LINES_DROPPED_TOTAL = "egress_log_lines_dropped_total": Counter, Count, [],
        "Log lines dropped because nobody read them fast enough.";
    CONFIG_RELOAD_FAILED = "egress_config_reload_failed": Gauge, Count, [],
        "1 while the providers config on disk is refused and an older one is in use, else 0.";
    GC_ORPHANS = "egress_gc_orphans": Gauge, Count, ["provider"],
        "Instances of ours without a Proxy, at the latest sweep.";
    GC_DELETED_TOTAL = "egress_gc_deleted_total": Counter, Count, ["provider"],
        "Instances of ours without a Proxy that were deleted.";
    GC_SWEEP_SECONDS = "egress_gc_sweep_seconds": Histogram(CALL), Seconds, ["provider"],
        "How long a sweep of one host for instances without a Proxy took, with its deletions.";
    GC_SWEEP_ERRORS_TOTAL = "egress_gc_sweep_errors_total": Counter, Count, ["provider"],
        "Sweeps of a host that could not be done; nothing is deleted then.";
    STANDALONE_REMOVALS_HELD_BACK = "egress_standalone_removals_held_back": Gauge, Count, [],
        "Removals that are held back because too many manifests are gone at once.";
    STANDALONE_LOOK_AGE_SECONDS = "egress_standalone_look_age_seconds": Gauge, Seconds, [],
        "For how long the directory of manifests has not been looked at to the end: it grows while the directory hangs.";
    STANDALONE_MANIFEST_PROBLEMS = "egress_standalone_manifest_problems": Gauge, Count, [],
        "What is wrong in the manifests just now, a problem each; /admin/problems names them.";
    LEADING = "egress_leading": Gauge, Count, [],
        "1 while this replica holds the claim, or is the only one, else 0.";
    EVENTS_DROPPED_TOTAL = "egress_events_dropped_total": Counter, Count, [],
        "Kubernetes events that were not written: too many at once, or the API server refused them.";
    IMAGE_TRANSFER_BYTES_TOTAL = "egress_image_transfer_bytes_total": Counter, Bytes, ["provider", "host"],
        "Bytes of base images that were handed to this host's pool.";
    IMAGE_TRANSFERS = "egress_image_transfers": Gauge, Count, ["provider", "host"],
        "Transfers of base images into this host's pool that are under way.";
    HOST_CALLS_OUTSTANDING = "egress_host_calls_outstanding": Gauge, Count, ["provider", "host"],
        "Calls to this host that were given up and may still run there; at 4 it is left alone until it answers.";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of contract.md 7, with its labels, as it is written there.
    const CONTRACT: &[&str] = &[
        "proxy_operator_provider_target_up{provider,target}",
        "proxy_operator_provider_target_check_duration_seconds{provider,target}",
        "proxy_operator_provider_target_check_timestamp_seconds{provider,target}",
        "egress_proxies{phase,provider}",
        "egress_leases{state}",
        "egress_lease_grants_total{outcome}",
        "egress_lease_grant_seconds",
        "egress_lease_waiters",
        "egress_reports_total{outcome}",
        "egress_cooldowns{scope}",
        "egress_probes_total{result}",
        "egress_probe_seconds",
        "egress_probe_lag_seconds",
        "egress_probe_target_suspect{target}",
        "egress_host_call_seconds{provider,host,call,outcome}",
        "egress_host_queue_wait_seconds{provider,host}",
        "egress_host_link_up{provider,host}",
        "egress_host_link_teardowns_total",
        "egress_host_threads_abandoned",
        "egress_plan_step_seconds",
        "egress_api_writes_total{kind}",
        "egress_actor_restarts_total{kind}",
        "egress_actor_last_progress_seconds{kind}",
        "egress_mailbox_rejected_total{kind}",
        "egress_log_lines_dropped_total",
        "egress_config_reload_failed",
        "egress_gc_orphans{provider}",
        "egress_gc_deleted_total{provider}",
        "egress_gc_sweep_seconds{provider}",
        "egress_gc_sweep_errors_total{provider}",
    ];

    /// What the election adds to it.
    const ELECTION: &[&str] = &["egress_leading"];

    /// What cluster mode adds to it.
    const CLUSTER: &[&str] = &["egress_events_dropped_total"];

    /// What virtual machines add to it.
    const MACHINES: &[&str] = &[
        "egress_image_transfer_bytes_total{provider,host}",
        "egress_image_transfers{provider,host}",
        "egress_host_calls_outstanding{provider,host}",
    ];

    /// What standalone mode adds to it.
    const STANDALONE: &[&str] = &[
        "egress_standalone_removals_held_back",
        "egress_standalone_look_age_seconds",
        "egress_standalone_manifest_problems",
    ];

    #[test]
    fn the_declared_metrics_are_those_of_the_contract_and_of_standalone_mode() {
        let declared: Vec<String> = ALL
            .iter()
            .map(|m| match m.labels {
                [] => m.name.to_owned(),
                labels => format!("{}{{{}}}", m.name, labels.join(",")),
            })
            .collect();
        assert_eq!(declared, [CONTRACT, STANDALONE, ELECTION, CLUSTER, MACHINES].concat());
    }

    #[test]
    fn no_metric_is_declared_twice() {
        let mut names: Vec<_> = ALL.iter().map(|m| m.name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }

    #[test]
    fn names_say_kind_and_unit_as_prometheus_asks() {
        for m in ALL {
            let counts = m.name.ends_with("_total");
            assert_eq!(counts, m.kind == Kind::Counter, "{}: `_total` is the mark of a counter", m.name);
            assert_eq!(m.name.ends_with("_seconds"), m.unit == Unit::Seconds, "{}: name and unit differ", m.name);
            assert!(m.help.ends_with('.') && m.help.len() > 10, "{}: the help is no sentence", m.name);
            assert!(m.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", m.name);
            if let Kind::Histogram(buckets) = m.kind {
                assert!(buckets.is_sorted_by(|a, b| a < b), "{}: buckets out of order", m.name);
                assert!(m.unit == Unit::Seconds, "{}: our histograms measure seconds", m.name);
            }
        }
    }
}
