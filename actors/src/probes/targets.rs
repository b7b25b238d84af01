//! The targets of probes: which are in use, which are suspect, and when to look at one ourselves.
//!
//! Owns the guard against correlated failure, and publishes the suspects. Spoken to by the pool only, which makes the looks
//! that are asked for here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use url::Url;

use crate::domain::health::{FailureDomain, Probe, Sample, Suspicion, TargetGuard};
use crate::domain::id::Uid;
use crate::domain::reason::Reason;
use crate::kit::Tell;
use crate::names;
use crate::standing::{Standing, Suspect, shown};

/// Longer than most intervals between probes, so that slow Proxies have a voice.
const VOTES_COUNT_FOR: Duration = Duration::from_secs(600);

/// Our own looks under way at once, over all targets.
const LOOKS_AT_ONCE: usize = 4;

struct Target {
    /// How the latest Proxy that came is probed. A look of ours is that, without the proxy.
    probe: Probe,
    users: usize,
    look: Look,
    /// A failure at the target was seen since the latest look began.
    doubted: bool,
    /// Why it is suspect, as it was when it became so.
    suspect: Option<Suspicion>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Never,
    UnderWay,
    Ended,
}

pub struct Targets {
    guard: TargetGuard,
    known: HashMap<Arc<Url>, Target>,
    published: Standing,
    changed: Tell<()>,
}

impl Targets {
    /// `changed` hears that what is published is not what it was.
    pub fn new(published: Standing, changed: Tell<()>) -> Self {
        let targets = Self { guard: TargetGuard::new(VOTES_COUNT_FOR), known: HashMap::new(), published, changed };
        // One that crashed may have left some.
        if !targets.published.suspects().is_empty() {
            targets.publish();
        }
        targets
    }

    fn publish(&self) {
        let suspects = self.known.iter().filter_map(|(url, target)| Some(Suspect::new(url, target.suspect?)));
        self.published.set_suspects(suspects.collect());
        self.changed.send(());
    }

    /// One more Proxy is probed with this target.
    pub fn join(&mut self, probe: Probe) {
        let known = self.known.entry(probe.target.clone());
        let new = || Target { probe: probe.clone(), users: 0, look: Look::Never, doubted: false, suspect: None };
        let target = known.or_insert_with(new);
        target.users += 1;
        target.probe = probe;
    }

    /// One less is. A target that nobody uses is forgotten, and not suspect either.
    pub fn leave(&mut self, url: &Arc<Url>) {
        let Some(target) = self.known.get_mut(url) else { return };
        target.users -= 1;
        if target.users == 0 {
            let changed = target.tell(None);
            self.known.remove(url);
            self.guard.keep_only(|other| *other != **url);
            if changed {
                self.publish();
            }
        }
    }

    /// What its probes said of this target does not count any more.
    pub fn forget(&mut self, url: &Url, uid: &Uid) {
        self.guard.forget(url, uid);
    }

    /// Counts a probe. True if its target is suspect, this probe included.
    pub fn on_probe(
        &mut self,
        url: &Arc<Url>,
        domain: &FailureDomain,
        uid: &Uid,
        sample: Sample,
        now: Instant,
    ) -> bool {
        let Some(target) = self.known.get_mut(url) else { return false };
        self.guard.on_probe(url, domain, uid, sample, now);
        target.doubted |= sample == Sample::TargetFault;
        let changed = target.tell(self.guard.suspicion(url));
        let is_suspect = target.suspect.is_some();
        if changed {
            self.publish();
        }
        is_suspect
    }

    /// Counts a look of our own.
    pub fn on_look(&mut self, url: &Arc<Url>, succeeded: bool) {
        let Some(target) = self.known.get_mut(url) else { return };
        target.look = Look::Ended;
        self.guard.on_direct(url, succeeded);
        if target.tell(self.guard.suspicion(url)) {
            self.publish();
        }
    }

    /// The looks to make now: once to prove that we can, then while somebody doubts.
    pub fn looks(&mut self) -> Vec<Probe> {
        let under_way = self.known.values().filter(|target| target.look == Look::UnderWay).count();
        let wanted = self.known.values_mut().filter(|target| match target.look {
            Look::Never => true,
            Look::UnderWay => false,
            Look::Ended => target.doubted || target.suspect.is_some(),
        });
        wanted
            .take(LOOKS_AT_ONCE.saturating_sub(under_way))
            .map(|target| {
                (target.look, target.doubted) = (Look::UnderWay, false);
                Probe { credentials: None, ..target.probe.clone() }
            })
            .collect()
    }
}

impl Target {
    /// Says so, once, when the guard changes its mind: true if it did.
    fn tell(&mut self, suspicion: Option<Suspicion>) -> bool {
        let url = &self.probe.target;
        match (self.suspect, suspicion) {
            (None, Some(why)) => {
                tracing::warn!(target = shown(url), ?why, reason = %Reason::ProbeTargetSuspect, "probe target is suspect: its faults do not count against proxies");
            }
            (Some(_), None) => {
                tracing::info!(target = shown(url), reason = %Reason::ProbeTargetTrusted, "probe target is trusted again");
            }
            (Some(_), Some(_)) | (None, None) => return false,
        }
        self.suspect = suspicion;
        let name = url.host_str().unwrap_or("unknown").to_owned();
        metrics::gauge!(names::PROBE_TARGET_SUSPECT, "target" => name).set(if suspicion.is_some() { 1.0 } else { 0.0 });
        true
    }
}
