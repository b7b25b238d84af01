//! The correlated-failure guard: is it the target that fails, and not the proxies?
//!
//! A target is suspect while *target-fault* failures span at least [`DOMAINS`] failure domains and [`PERCENT`] % of the
//! Proxies that were probed with it within the window, or while our own direct look at it fails, which counts only once
//! such a look has succeeded before (an operator without a way out of its own must not doubt every target).
//!
//! Each Proxy has one vote, its latest probe: a share of *probes* over a window of several intervals would rise so slowly
//! that most Proxies had reached their failure threshold before the target was suspect. The proxies' own faults are votes
//! for the target: sixty proxies that die with their host are no reason to doubt it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use url::Url;

use super::{Blame, FailureDomain, ProbeOutcome};
use crate::domain::id::Uid;

/// One host with a broken way out, or one seller, is not yet the target's fault; two may share an uplink.
const DOMAINS: usize = 3;
/// So many of its probes, in percent.
const PERCENT: usize = 80;

/// What one probe says about its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// It answered, or the probe never came as far as the target.
    NotTarget,
    TargetFault,
}

impl From<&ProbeOutcome> for Sample {
    fn from(outcome: &ProbeOutcome) -> Self {
        match &outcome.fault {
            Some(fault) if fault.blame == Blame::Target => Self::TargetFault,
            Some(_) | None => Self::NotTarget,
        }
    }
}

/// Why a target is suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspicion {
    /// So many of the Proxies probed with it fail at it, in so many failure domains.
    Fleet { failing: usize, probed: usize, domains: usize },
    /// Our own look at it fails, and did not before.
    Direct,
}

/// All targets in use, with what was lately seen of each.
#[derive(Debug)]
pub struct TargetGuard {
    window: Duration,
    targets: HashMap<Arc<Url>, Target>,
}

#[derive(Debug, Default)]
struct Target {
    votes: HashMap<Uid, Vote>,
    /// Failing Proxies by failure domain; no zeros.
    failing: HashMap<FailureDomain, usize>,
    failing_total: usize,
    direct: Direct,
    swept_at: Option<Instant>,
}

#[derive(Debug)]
struct Vote {
    at: Instant,
    domain: FailureDomain,
    sample: Sample,
}

/// Our own looks at a target.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Direct {
    /// None has ever succeeded: failures say nothing.
    #[default]
    Unproven,
    Succeeds,
    Fails,
}

impl TargetGuard {
    /// A vote is forgotten after `window`: longer than the longest probe interval in use, or slow Proxies have no voice.
    pub fn new(window: Duration) -> Self {
        Self { window, targets: HashMap::new() }
    }

    /// Counts a probe of the Proxy `uid` with `target`. Ask [`Self::suspicion`] *after* this and before the streak.
    pub fn on_probe(&mut self, target: &Arc<Url>, domain: &FailureDomain, uid: &Uid, sample: Sample, now: Instant) {
        let seen = self.targets.entry(target.clone()).or_default();
        seen.sweep(now, self.window);
        seen.forget(uid);
        if sample == Sample::TargetFault {
            *seen.failing.entry(domain.clone()).or_default() += 1;
            seen.failing_total += 1;
        }
        seen.votes.insert(uid.clone(), Vote { at: now, domain: domain.clone(), sample });
    }

    /// Counts a look of our own.
    pub fn on_direct(&mut self, target: &Arc<Url>, succeeded: bool) {
        let direct = &mut self.targets.entry(target.clone()).or_default().direct;
        *direct = match (*direct, succeeded) {
            (_, true) => Direct::Succeeds,
            (Direct::Unproven, false) => Direct::Unproven,
            (Direct::Succeeds | Direct::Fails, false) => Direct::Fails,
        };
    }

    /// The Proxy is gone, or is probed with another target now.
    pub fn forget(&mut self, target: &Url, uid: &Uid) {
        if let Some(seen) = self.targets.get_mut(target) {
            seen.forget(uid);
        }
    }

    /// Drops the targets that are not in use any more.
    pub fn keep_only(&mut self, in_use: impl Fn(&Url) -> bool) {
        self.targets.retain(|target, _| in_use(target));
    }

    /// Why the target is suspect, if it is.
    pub fn suspicion(&self, target: &Url) -> Option<Suspicion> {
        let seen = self.targets.get(target)?;
        if seen.direct == Direct::Fails {
            return Some(Suspicion::Direct);
        }
        let (failing, probed, domains) = (seen.failing_total, seen.votes.len(), seen.failing.len());
        (domains >= DOMAINS && failing * 100 >= probed * PERCENT).then_some(Suspicion::Fleet {
            failing,
            probed,
            domains,
        })
    }

    /// Every suspect target.
    pub fn suspects(&self) -> impl Iterator<Item = (&Arc<Url>, Suspicion)> {
        self.targets.keys().filter_map(|target| Some((target, self.suspicion(target)?)))
    }
}

impl Target {
    fn forget(&mut self, uid: &Uid) {
        if let Some(vote) = self.votes.remove(uid) {
            self.uncount(&vote);
        }
    }

    fn uncount(&mut self, vote: &Vote) {
        if vote.sample == Sample::TargetFault {
            self.failing_total -= 1;
            if let Some(count) = self.failing.get_mut(&vote.domain) {
                *count -= 1;
                if *count == 0 {
                    self.failing.remove(&vote.domain);
                }
            }
        }
    }

    /// Drops old votes, a few times per window: a probe costs the same however many Proxies there are.
    fn sweep(&mut self, now: Instant, window: Duration) {
        if self.swept_at.is_some_and(|at| now.saturating_duration_since(at) < window / 8) {
            return;
        }
        self.swept_at = Some(now);
        let old: Vec<_> = self
            .votes
            .iter()
            .filter(|(_, vote)| now.saturating_duration_since(vote.at) >= window)
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in old {
            self.forget(&uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::id::{HostName, ProviderName};

    const WINDOW: Duration = Duration::from_mins(2);

    fn target() -> Arc<Url> {
        Arc::new(Url::parse("https://target.example/204").expect("valid"))
    }

    fn uid(n: usize) -> Uid {
        Uid::parse(&format!("uid-{n}")).expect("valid")
    }

    fn domain(n: usize) -> FailureDomain {
        FailureDomain::Host(
            ProviderName::parse("kvm").expect("valid"),
            HostName::parse(&format!("h{n}")).expect("valid"),
        )
    }

    /// One word per failure domain, one letter per Proxy: `.` fine or the proxy's own fault, `t` the target's fault.
    fn fleet(guard: &mut TargetGuard, words: &str, now: Instant) -> Option<Suspicion> {
        let mut n = 0;
        for (host, word) in words.split(' ').enumerate() {
            for letter in word.chars() {
                let sample = if letter == 't' { Sample::TargetFault } else { Sample::NotTarget };
                guard.on_probe(&target(), &domain(host), &uid(n), sample, now);
                n += 1;
            }
        }
        guard.suspicion(&target())
    }

    #[test]
    fn a_target_is_suspect_over_three_domains_and_four_fifths_of_its_probes() {
        let rows = [
            ("t t t", true),
            ("tttttttt tttttttt", false),
            ("tttttttttt t t", true),
            ("tt. tt ttt.", false),
            ("tt. tt tttt", true),
            ("tttt tttt tttt ...", true),
            ("tttt tttt tttt ....", false),
            ("............ t t t", false),
            ("... ... ...", false),
        ];
        for (words, suspect) in rows {
            let seen = fleet(&mut TargetGuard::new(WINDOW), words, Instant::now());
            assert_eq!(seen.is_some(), suspect, "{words}: {seen:?}");
        }
    }

    #[test]
    fn sixty_proxies_that_die_with_their_host_are_no_reason_to_doubt_the_target() {
        // The proxies' own faults are letters `.`, however many; the three that fail at the target are not enough.
        assert_eq!(fleet(&mut TargetGuard::new(WINDOW), &format!("{} t t t", ".".repeat(60)), Instant::now()), None);
    }

    #[test]
    fn a_suspect_target_is_trusted_again_when_probes_succeed() {
        let (mut guard, now) = (TargetGuard::new(WINDOW), Instant::now());
        assert!(fleet(&mut guard, "tt tt tt", now).is_some());
        assert_eq!(fleet(&mut guard, ".. tt tt", now + Duration::from_secs(30)), None);
    }

    #[test]
    fn old_votes_and_gone_proxies_do_not_count() {
        let (mut guard, now) = (TargetGuard::new(WINDOW), Instant::now());
        assert!(fleet(&mut guard, "t t t", now).is_some());
        guard.forget(&target(), &uid(2));
        assert_eq!(guard.suspicion(&target()), None);
        assert!(fleet(&mut guard, "t t t", now).is_some());
        guard.on_probe(&target(), &domain(0), &uid(0), Sample::TargetFault, now + WINDOW);
        assert_eq!(guard.suspicion(&target()), None, "votes of two minutes ago still counted");
    }

    #[test]
    fn our_own_look_counts_only_once_it_has_succeeded() {
        // `+` succeeds, `-` fails; the last one decides, if any succeeded before.
        for (looks, suspect) in
            [("-", false), ("---", false), ("+", false), ("+-", true), ("-+-", true), ("+-+", false)]
        {
            let mut guard = TargetGuard::new(WINDOW);
            looks.chars().for_each(|look| guard.on_direct(&target(), look == '+'));
            assert_eq!(guard.suspicion(&target()) == Some(Suspicion::Direct), suspect, "{looks}");
        }
    }

    #[test]
    fn targets_are_judged_apart() {
        let (mut guard, now) = (TargetGuard::new(WINDOW), Instant::now());
        assert!(fleet(&mut guard, "t t t", now).is_some());
        let other = Arc::new(Url::parse("https://other.example/").expect("valid"));
        guard.on_probe(&other, &domain(0), &uid(9), Sample::TargetFault, now);
        assert_eq!(guard.suspicion(&other), None);
        assert_eq!(guard.suspects().count(), 1);
        guard.keep_only(|url| *url == *other);
        assert_eq!(guard.suspects().count(), 0);
    }

    proptest! {
        /// The counters that make a question cheap always equal a count over the votes.
        #[test]
        fn the_counters_equal_a_fresh_count(
            steps in prop::collection::vec((0_usize..12, 0_usize..5, any::<bool>(), any::<bool>(), 0_u64..40), 0..200),
        ) {
            let (mut guard, mut now) = (TargetGuard::new(WINDOW), Instant::now());
            for (who, host, fault, leave, wait) in steps {
                now += Duration::from_secs(wait);
                if leave {
                    guard.forget(&target(), &uid(who));
                } else {
                    let sample = if fault { Sample::TargetFault } else { Sample::NotTarget };
                    guard.on_probe(&target(), &domain(host), &uid(who), sample, now);
                }
                if let Some(seen) = guard.targets.get(&target()) {
                    let mut fresh: HashMap<FailureDomain, usize> = HashMap::new();
                    for vote in seen.votes.values().filter(|vote| vote.sample == Sample::TargetFault) {
                        *fresh.entry(vote.domain.clone()).or_default() += 1;
                    }
                    prop_assert_eq!(seen.failing_total, fresh.values().sum::<usize>());
                    prop_assert_eq!(&seen.failing, &fresh);
                }
            }
        }
    }
}
