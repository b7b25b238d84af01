//! From single outcomes to a verdict.

use super::{Blame, ProbeFault, ProbeOutcome, Verdict};
use crate::domain::desired::HealthCheck;

/// So many in a row decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thresholds {
    pub failure: u32,
    pub success: u32,
}

impl From<&HealthCheck> for Thresholds {
    fn from(check: &HealthCheck) -> Self {
        Self { failure: check.failure_threshold, success: check.success_threshold }
    }
}

/// The running series of one Proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Streak {
    verdict: Verdict,
    failures: u32,
    successes: u32,
    /// Recorded Ready before a restart and not probed since: its first failure is enough (contract.md 1, Life).
    presumed: bool,
}

impl Default for Streak {
    fn default() -> Self {
        Self::new()
    }
}

impl Streak {
    /// Of a Proxy that nobody has probed yet.
    pub const fn new() -> Self {
        Self { verdict: Verdict::Unknown, failures: 0, successes: 0, presumed: false }
    }

    /// Of a Proxy that was recorded Ready before a restart: it is offered on that word, until its first failure.
    pub const fn presumed_healthy() -> Self {
        Self { verdict: Verdict::Unknown, failures: 0, successes: 0, presumed: true }
    }

    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// True while the series is empty or contradicts the verdict: worth a probe out of turn.
    pub const fn is_undecided(&self) -> bool {
        matches!(self.verdict, Verdict::Unknown) || self.failures > 0
    }

    /// Counts one outcome. While the target is suspect its faults neither count nor break a series; successes and the
    /// proxy's own faults always count.
    pub fn count(&mut self, outcome: &ProbeOutcome, thresholds: Thresholds, target_is_suspect: bool) -> &Verdict {
        match &outcome.fault {
            None => self.succeeded(thresholds),
            Some(fault) if fault.blame == Blame::Target && target_is_suspect => {}
            Some(fault) => self.failed(fault, thresholds),
        }
        &self.verdict
    }

    fn succeeded(&mut self, thresholds: Thresholds) {
        self.failures = 0;
        self.successes = self.successes.saturating_add(1);
        if self.presumed || self.successes >= thresholds.success {
            self.presumed = false;
            self.verdict = Verdict::Healthy;
        }
    }

    fn failed(&mut self, fault: &ProbeFault, thresholds: Thresholds) {
        self.successes = 0;
        self.failures = self.failures.saturating_add(1);
        if self.presumed || self.failures >= thresholds.failure {
            self.presumed = false;
            // The first failure over the threshold is kept: a verdict whose words change with each probe would be
            // written to the object with each probe. Another reason is news.
            if !matches!(&self.verdict, Verdict::Unhealthy { reason, .. } if *reason == fault.reason) {
                self.verdict = Verdict::Unhealthy { reason: fault.reason, detail: fault.detail.as_str().into() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::reason::Reason;

    /// `.` success, `p` the proxy's fault, `t` the target's fault, `T` the same while the target is suspect.
    fn run(mut streak: Streak, failure: u32, success: u32, probes: &str) -> String {
        let thresholds = Thresholds { failure, success };
        probes
            .chars()
            .map(|probe| {
                let fault = |blame| Some(ProbeFault { blame, reason: Reason::ProxyTimeout, detail: "late".to_owned() });
                let fault = match probe {
                    'p' => fault(Blame::Proxy),
                    't' | 'T' => fault(Blame::Target),
                    _ => None,
                };
                let outcome = ProbeOutcome { latency: Duration::ZERO, exit_ip: None, fault };
                match streak.count(&outcome, thresholds, probe == 'T') {
                    Verdict::Unknown => '?',
                    Verdict::Healthy => 'H',
                    Verdict::Unhealthy { .. } => 'U',
                }
            })
            .collect()
    }

    #[test]
    fn verdicts_follow_the_thresholds() {
        let rows = [
            ((3, 1), ".pp.ppp..", "HHHHHHUHH"),
            ((3, 1), "ppp.", "??UH"),
            ((3, 2), "..", "?H"),
            ((3, 2), ".p..", "???H"),
            ((1, 2), "p.p..", "UUUUH"),
            ((3, 1), ".ttt", "HHHU"),
            ((3, 1), ".tpt", "HHHU"),
            ((3, 1), ".TTTTTT", "HHHHHHH"),
            ((3, 1), ".ppTTTp", "HHHHHHU"),
            ((3, 1), "TTT", "???"),
            ((3, 1), "pppTT.", "??UUUH"),
            ((3, 2), "ppp.T.", "??UUUH"),
        ];
        for ((failure, success), probes, verdicts) in rows {
            assert_eq!(run(Streak::new(), failure, success, probes), verdicts, "{probes} at {failure}/{success}");
        }
    }

    #[test]
    fn a_recorded_ready_one_is_confirmed_by_one_success_and_withdrawn_by_the_first_failure() {
        let rows = [("p", "U"), ("t", "U"), (".pp", "HHH"), (".ppp", "HHHU"), ("Tp", "?U"), ("T.", "?H"), ("p.", "UU")];
        for (probes, verdicts) in rows {
            assert_eq!(run(Streak::presumed_healthy(), 3, 2, probes), verdicts, "{probes}");
        }
    }

    #[test]
    fn the_words_of_a_verdict_change_only_with_its_reason() {
        let mut streak = Streak::new();
        let thresholds = Thresholds { failure: 1, success: 1 };
        let mut fail = |reason, detail: &str| {
            let fault = ProbeFault { blame: Blame::Proxy, reason, detail: detail.to_owned() };
            let outcome = ProbeOutcome { latency: Duration::ZERO, exit_ip: None, fault: Some(fault) };
            match streak.count(&outcome, thresholds, false) {
                Verdict::Unhealthy { detail, .. } => detail.to_string(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(fail(Reason::ProxyTimeout, "after 10.001 s"), "after 10.001 s");
        assert_eq!(fail(Reason::ProxyTimeout, "after 10.002 s"), "after 10.001 s");
        assert_eq!(fail(Reason::ProxyDenied, "403"), "403");
    }
}
