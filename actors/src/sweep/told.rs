//! What the sweep tells: the events on the ProviderHealth, and the cell that the admin endpoint reads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use crate::domain::error::OpError;
use crate::domain::id::{HostName, ProviderName};
use crate::domain::instance::OwnerMark;
use crate::domain::reason::Reason;
use crate::domain::sweep::{Orphan, Terms, Verdict};
use crate::ports::{Event, Severity, Subject};

/// Orphans that are named in one event or answer; the rest is a number.
const NAMED: usize = 5;
const SHOWN: usize = 100;

/// What the sweeps of one entry found.
#[derive(Debug, Clone, Default)]
pub struct Swept {
    pub hosts: BTreeMap<HostName, HostSwept>,
    /// Since this entry's sweep began to run.
    pub deleted: u64,
}

/// The latest sweep of one host.
#[derive(Debug, Clone, Default)]
pub struct HostSwept {
    /// When it ended, and how long it took; none while the first one runs.
    pub ended: Option<(SystemTime, Duration)>,
    /// Why it could not be done; what is below is then what an earlier one found.
    pub trouble: Option<OpError>,
    /// When the list below was made.
    pub listed_at: Option<SystemTime>,
    /// All that were found and are not yet deleted.
    pub orphans: usize,
    /// The oldest of them.
    pub shown: Vec<Orphan>,
}

impl Swept {
    /// On all hosts that were listed; none if none was.
    pub(super) fn orphans(&self) -> Option<usize> {
        self.hosts
            .values()
            .filter(|host| host.listed_at.is_some())
            .map(|host| host.orphans)
            .reduce(|all, one| all + one)
    }

    pub(super) fn found(&mut self, host: &HostName, mut orphans: Vec<Orphan>, at: SystemTime) {
        let host = self.hosts.entry(host.clone()).or_default();
        (host.orphans, host.listed_at, host.trouble) = (orphans.len(), Some(at), None);
        orphans.truncate(SHOWN);
        host.shown = orphans;
    }

    pub(super) fn ended(&mut self, host: &HostName, result: Result<(), OpError>, took: Duration, at: SystemTime) {
        let host = self.hosts.entry(host.clone()).or_default();
        (host.ended, host.trouble) = (Some((at, took)), result.err());
    }

    pub(super) fn waits(&mut self, host: &HostName) {
        let detail = "nothing is swept before all Proxies have been listed";
        self.hosts.entry(host.clone()).or_default().trouble = Some(OpError::transient(Reason::Pending, detail));
    }

    pub(super) fn deleted(&mut self, host: &HostName, mark: &OwnerMark) {
        self.deleted += 1;
        if let Some(host) = self.hosts.get_mut(host) {
            host.orphans = host.orphans.saturating_sub(1);
            host.shown.retain(|orphan| orphan.mark != *mark);
        }
    }
}

fn event(provider: &ProviderName, severity: Severity, reason: Reason, note: String) -> Event {
    Event { about: Subject::Provider(provider.clone()), severity, reason, note }
}

fn name(orphan: &Orphan) -> String {
    format!("{} of {} (uid {})", orphan.provider_id, orphan.mark.key, orphan.mark.uid)
}

/// A sweep found some that were not told of before. `now`: how many of them it is about to delete.
pub(super) fn found(provider: &ProviderName, host: &HostName, orphans: &[Orphan], now: usize, terms: &Terms) -> Event {
    let count = |verdict| orphans.iter().filter(|orphan| orphan.verdict == verdict).count();
    let mut note = match orphans.len() {
        1 => format!("host `{host}`: 1 instance without a Proxy: "),
        many => format!("host `{host}`: {many} instances without a Proxy: "),
    };
    let named: Vec<_> = orphans.iter().take(NAMED).map(name).collect();
    note += &named.join(", ");
    if orphans.len() > NAMED {
        let _ = write!(note, " and {} more (see /admin/providers)", orphans.len() - NAMED);
    }
    let (once, young, ripe) = (count(Verdict::SeenOnce), count(Verdict::Young), count(Verdict::Ripe));
    if once > 0 {
        let _ = write!(note, "; {once} seen for the first time");
    }
    if young > 0 {
        let _ = write!(note, "; {young} younger than {} s", terms.min_age.as_secs());
    }
    if ripe > 0 && terms.dry_run {
        let _ = write!(note, "; {ripe} would be deleted (--gc-dry-run)");
    } else if ripe > 0 {
        let _ = write!(note, "; {now} to be deleted now");
        if ripe > now {
            let _ = write!(note, ", {} later (--gc-max-deletes {})", ripe - now, terms.max_deletes);
        }
    }
    event(provider, Severity::Warning, Reason::OrphanFound, note)
}

pub(super) fn deleted(provider: &ProviderName, host: &HostName, orphan: &Orphan) -> Event {
    let note = format!("host `{host}`: deleted {}: no Proxy with this uid exists", name(orphan));
    event(provider, Severity::Normal, Reason::OrphanDeleted, note)
}

pub(super) fn not_deleted(provider: &ProviderName, host: &HostName, orphan: &Orphan, error: &OpError) -> Event {
    let note = format!("host `{host}`: {}, which has no Proxy, was not deleted: {error}", name(orphan));
    event(provider, Severity::Warning, Reason::OrphanNotDeleted, note)
}
