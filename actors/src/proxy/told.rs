//! What others are told of a Proxy: its host, the lease registry, the probe pool, the writers and the board.
//!
//! Only news is told, so what was told last is kept here.

use std::sync::Arc;

use super::{Proxy, ProxyMsg};
use crate::board::ProxyView;
use crate::domain::desired::HealthCheck;
use crate::domain::health::FailureDomain;
use crate::domain::lease_book::{Absence, Announcement, Cordon, EndedBy, Offer};
use crate::domain::plan::{self, Notice, Plan, Serving};
use crate::domain::reason::Reason;
use crate::domain::status::{ConditionType, Phase, Status};
use crate::host::HostHandle;
use crate::kit::Ctx;
use crate::ports::{Event, Rejected, Severity, Subject};
use crate::probes::Track;

/// What this actor has told others, so that it tells only news.
#[derive(Default)]
pub(super) struct Out {
    pub(super) followed: Option<Box<HostHandle>>,
    pub(super) tracked: Option<(plan::Track, HealthCheck)>,
    pub(super) offered: Option<Arc<Offer>>,
    pub(super) announced: Option<Box<Announcement>>,
    pub(super) withdrawn: Option<Absence>,
    /// Nothing until something was told: a predecessor may have left a cordon.
    pub(super) cordon: Told,
    /// The leases were ended, and nothing was offered since.
    pub(super) ended: bool,
    /// Counts what the probe pool was told: verdicts on anything older are dropped. 0: nothing was told, and a
    /// predecessor may be tracked.
    pub(super) track: u64,
    /// The host that runs an operation for us.
    pub(super) working_on: Option<Box<HostHandle>>,
}

/// The cordon that the registry was told of.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing yet, and a predecessor may have told it something.
    #[default]
    Nothing,
    Cordon(Option<Cordon>),
}

impl Proxy {
    /// Hears of the list of the recorded host; a host that was configured anew is followed anew.
    pub(super) fn follow(&mut self, ctx: &Ctx<ProxyMsg>) {
        let wanted = self.desired.host.as_ref().and_then(|host| self.handle_of(host));
        if let Some(old) = &self.out.followed
            && wanted.as_ref().is_none_or(|new| !new.is(old))
        {
            old.unfollow(&self.desired.uid);
            self.out.followed = None;
        }
        if self.out.followed.is_none()
            && let Some(host) = wanted
        {
            host.follow(&self.desired.uid, ctx.tell(|sighting| ProxyMsg::Seen(Box::new(sighting))));
            self.out.followed = Some(Box::new(host));
        }
    }

    fn domain(&self) -> Option<FailureDomain> {
        FailureDomain::of(&self.desired)
    }

    pub(super) fn serve(&mut self, plan: &Plan, ctx: &Ctx<ProxyMsg>) {
        let (key, uid) = (self.desired.key.clone(), self.desired.uid.clone());
        match &plan.serving {
            Serving::AsBefore => {}
            Serving::Offer(route) => {
                let offer = Offer {
                    key: key.clone(),
                    uid: uid.clone(),
                    endpoint: route.endpoint.clone(),
                    credentials: route.credentials.clone(),
                    attributes: self.desired.attributes.clone(),
                    capacity: self.desired.max_leases,
                    domain: self.domain().map_or_else(|| key.as_str().into(), |domain| domain.to_string().into()),
                    exit_ip: plan.status.exit_ip.clone(),
                };
                if self.out.offered.as_deref() != Some(&offer) {
                    if plan.cordon.is_some() && self.out.offered.is_none() {
                        // The cordon stands before the offer does, or a lease could be granted in between.
                        self.wires.leases.announce(Announcement {
                            key: key.clone(),
                            uid: uid.clone(),
                            attributes: self.desired.attributes.clone(),
                            capacity: self.desired.max_leases,
                            absence: Absence::Provisioning,
                        });
                        self.cordon(plan.cordon, ctx);
                    }
                    // One value: the registry keeps it too.
                    let offer = Arc::new(offer);
                    self.wires.leases.offer(offer.clone());
                    self.out.offered = Some(offer);
                    self.out.withdrawn = None;
                    self.out.ended = false;
                }
            }
            Serving::Withdraw { reason, ends_leases } => {
                let absence = if self.desired.deleting {
                    Absence::Unhealthy
                } else {
                    match plan.status.phase {
                        Phase::Pending | Phase::Provisioning => Absence::Provisioning,
                        Phase::Ready | Phase::Unhealthy | Phase::Failed | Phase::Deleting => Absence::Unhealthy,
                    }
                };
                let news = Announcement {
                    key: key.clone(),
                    uid: uid.clone(),
                    attributes: self.desired.attributes.clone(),
                    capacity: self.desired.max_leases,
                    absence,
                };
                if self.out.announced.as_deref() != Some(&news) || self.out.offered.is_some() {
                    self.wires.leases.announce(news.clone());
                    self.out.announced = Some(Box::new(news));
                }
                if self.out.offered.take().is_some() || self.out.withdrawn != Some(absence) {
                    tracing::debug!(proxy = %key, %reason, "not on offer");
                    self.wires.leases.withdraw(&key, &uid, absence, ctx.tell(ProxyMsg::LeasesLeft));
                    self.out.withdrawn = Some(absence);
                }
                if *ends_leases && !self.out.ended {
                    let how = if self.desired.deleting { EndedBy::ProxyRemoved } else { EndedBy::ProxyReplaced };
                    self.wires.leases.end_leases(&key, &uid, how);
                }
                self.out.ended = *ends_leases;
            }
        }
        if self.out.cordon != Told::Cordon(plan.cordon) {
            self.cordon(plan.cordon, ctx);
        }
    }

    fn cordon(&mut self, cordon: Option<Cordon>, ctx: &Ctx<ProxyMsg>) {
        let left = ctx.tell(ProxyMsg::LeasesLeft);
        self.wires.leases.cordon(&self.desired.key, &self.desired.uid, cordon, left);
        self.out.cordon = Told::Cordon(cordon);
    }

    pub(super) fn track(&mut self, plan: &Plan, ctx: &Ctx<ProxyMsg>) {
        let wanted = plan.track.clone().map(|track| (track, self.desired.check.clone()));
        let same = match (&self.out.tracked, &wanted) {
            (None, None) => self.out.track > 0,
            // That it was presumed healthy mattered for the first probe only.
            (Some((old, check)), Some((new, wanted))) => old.route == new.route && check == wanted,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            return;
        }
        self.out.track += 1;
        let number = self.out.track;
        match (&wanted, self.domain()) {
            (Some((track, check)), Some(domain)) => self.wires.probes.track(Track {
                key: self.desired.key.clone(),
                uid: self.desired.uid.clone(),
                domain,
                endpoint: track.route.endpoint.clone(),
                credentials: track.route.credentials.clone(),
                check: check.clone(),
                trusted: track.presumed,
                tell: ctx.tell(move |probed| ProxyMsg::Probed(number, Box::new(probed))),
            }),
            (Some(_) | None, _) => self.wires.probes.untrack(&self.desired.uid),
        }
        self.out.tracked = wanted;
    }

    pub(super) fn tell(&mut self, plan: &Plan) {
        let status = match &self.rejected {
            None => plan.status.clone(),
            Some(rejected) => Arc::new(with_rejected((*plan.status).clone(), rejected)),
        };
        for notice in &plan.notices {
            self.wires.events.emit(self.noticed(notice));
        }
        let news = self.written.as_ref().is_none_or(|written| status.differs_from(written));
        if news {
            self.log(&status);
            self.wires.records.status(&self.desired.key, &self.desired.uid, status.clone());
        }
        // The live values come along with each probe, though they are not written: one value for all who keep it.
        self.written = Some(status.clone());
        self.wires.board.put(ProxyView::new(&self.desired, status));
    }

    fn log(&self, status: &Status) {
        let before = self.written.as_ref().map(|written| written.phase);
        if before != Some(status.phase) {
            let ready = status.condition(ConditionType::Ready);
            tracing::info!(
                proxy = %self.key(), phase = status.phase.as_str(), reason = ready.map_or("", |c| c.reason.as_str()),
                why = ready.map_or("", |c| &*c.message), "phase changed"
            );
        }
    }

    fn noticed(&self, notice: &Notice) -> Event {
        let severity = match notice.severity {
            plan::Severity::Normal => Severity::Normal,
            plan::Severity::Warning => Severity::Warning,
        };
        self.event(severity, notice.reason, notice.note.to_string())
    }

    pub(super) fn event(&self, severity: Severity, reason: Reason, note: String) -> Event {
        let about = Subject::Proxy(self.desired.key.clone(), self.desired.uid.clone());
        Event { about, severity, reason, note }
    }
}

/// A newer version of the object is not valid: that is told, and the last good version goes on, with the reason that it
/// has by itself.
fn with_rejected(mut status: Status, rejected: &Rejected) -> Status {
    status.observed_generation = rejected.generation;
    if let Some(ready) = status.conditions.iter_mut().find(|condition| condition.kind == ConditionType::Ready) {
        ready.message = format!("{}; the last valid version goes on ({})", rejected.message, ready.message).into();
    }
    status
}
