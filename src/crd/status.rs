//! The status, from the domain to what is written and back.
//!
//! Reading back is lenient: an older or newer operator may have written it, and a part that is not understood is left
//! out. What is read only spares flapping at a start; nothing is decided by it alone.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{Condition, ConditionType, LastProbe, Phase, Status, Truth};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as WireCondition, Time};
use k8s_openapi::jiff::Timestamp;

use super::proxy::{LastProbeStatus, ProxyStatus};

/// The status as it is written.
pub fn written(status: &Status) -> ProxyStatus {
    let text = |value: &Option<Arc<str>>| value.as_deref().map(str::to_owned);
    ProxyStatus {
        phase: Some(status.phase.as_str().to_owned()),
        observed_generation: Some(status.observed_generation),
        provider_id: text(&status.provider_id),
        address: text(&status.address),
        endpoint: text(&status.endpoint),
        exit_ip: text(&status.exit_ip),
        last_probe: status.last_probe.as_ref().map(|probe| LastProbeStatus {
            time: time(probe.at),
            ok: probe.ok,
            latency_milliseconds: i64::try_from(probe.latency.as_millis()).unwrap_or(i64::MAX),
            reason: probe.reason.map(|reason| reason.as_str().to_owned()),
        }),
        recreated: text(&status.recreated),
        conditions: status
            .conditions
            .iter()
            .map(|condition| condition_written(condition, Some(status.observed_generation)))
            .collect(),
    }
}

pub(super) fn condition_written(condition: &Condition, generation: Option<i64>) -> WireCondition {
    WireCondition {
        type_: condition.kind.as_str().to_owned(),
        status: condition.truth.as_str().to_owned(),
        reason: condition.reason.as_str().to_owned(),
        message: cut(&condition.message),
        last_transition_time: time(condition.since),
        observed_generation: generation,
    }
}

/// The API server takes no longer message, and nobody reads one.
fn cut(message: &str) -> String {
    const MOST: usize = 32_768;
    if message.chars().count() <= MOST {
        return message.to_owned();
    }
    let mut kept: String = message.chars().take(MOST - 1).collect();
    kept.push('…');
    kept
}

/// The status as it was recorded; `None` if it has no phase that we know.
pub fn recorded(status: &ProxyStatus) -> Option<Status> {
    let text = |value: &Option<String>| value.as_deref().map(Arc::from);
    Some(Status {
        phase: Phase::parse(status.phase.as_deref()?)?,
        observed_generation: status.observed_generation.unwrap_or_default(),
        provider_id: text(&status.provider_id),
        address: text(&status.address),
        endpoint: text(&status.endpoint),
        exit_ip: text(&status.exit_ip),
        last_probe: status.last_probe.as_ref().map(|probe| LastProbe {
            at: probe.time.0.into(),
            ok: probe.ok,
            latency: Duration::from_millis(u64::try_from(probe.latency_milliseconds).unwrap_or_default()),
            reason: probe.reason.as_deref().and_then(Reason::parse),
        }),
        recreated: text(&status.recreated),
        conditions: status.conditions.iter().filter_map(condition).collect(),
    })
}

fn condition(written: &WireCondition) -> Option<Condition> {
    Some(Condition {
        kind: ConditionType::parse(&written.type_)?,
        truth: Truth::parse(&written.status)?,
        reason: Reason::parse(&written.reason)?,
        message: written.message.as_str().into(),
        since: written.last_transition_time.0.into(),
    })
}

/// Instants outside of jiff's years are not worth an error here: the clock is broken, and the epoch says so.
pub(super) fn time(at: SystemTime) -> Time {
    Time(Timestamp::try_from(at).unwrap_or(Timestamp::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_reads_back_from_json() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let status = Status {
            phase: Phase::Unhealthy,
            observed_generation: 3,
            provider_id: Some("process://local/local/1".into()),
            address: Some("127.0.0.1".into()),
            endpoint: Some("http://127.0.0.1:31280".into()),
            exit_ip: Some("203.0.113.9".into()),
            last_probe: Some(LastProbe {
                at,
                ok: false,
                latency: Duration::from_millis(17),
                reason: Some(Reason::ProxyTimeout),
            }),
            recreated: Some("2026-12-01".into()),
            conditions: vec![Condition {
                kind: ConditionType::Ready,
                truth: Truth::False,
                reason: Reason::Unhealthy,
                message: "3 probes failed".into(),
                since: at,
            }],
        };
        let text = serde_json::to_string(&written(&status)).unwrap();
        assert!(text.contains("\"providerID\":") && text.contains("\"exitIP\":"), "{text}");
        let read: ProxyStatus = serde_json::from_str(&text).unwrap();
        assert_eq!(recorded(&read), Some(status));
    }

    #[test]
    fn what_another_version_wrote_is_left_out() {
        let read: ProxyStatus = serde_json::from_value(serde_json::json!({
            "phase": "Ready", "news": 1,
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Healthy", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "reason": "FromTheFuture", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            ]
        }))
        .unwrap();
        assert_eq!(recorded(&read).unwrap().conditions.len(), 1);
        assert_eq!(recorded(&ProxyStatus::default()), None);
    }
}
