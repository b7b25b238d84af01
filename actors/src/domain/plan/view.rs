//! The questions that several parts of a decision ask of the same facts.

use std::time::Instant;

use super::facts::Sight;
use super::observed::lives;
use super::{Observed, ProviderSeen, Route, Settings, Task, Wake};
use crate::domain::clock::Now;
use crate::domain::desired::{CloudInit, Desired, Endpoint, Flavor, Managed};
use crate::domain::health::Verdict;
use crate::domain::id::HostName;
use crate::domain::instance::{Instance, InstanceState};
use crate::domain::lease_book::Cordon;
use crate::domain::reason::Reason;

#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) desired: &'a Desired,
    pub(super) seen: &'a Observed,
    pub(super) settings: &'a Settings,
    pub(super) now: Now,
}

/// Whether there is somebody to ask for the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backing {
    Unknown,
    NoProvider,
    NoHost,
    /// The host of that name is in another backend than the one in which the instance was made: what is said there is
    /// not about it.
    Moved,
    There,
}

/// What the probes say of the endpoint in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing<'a> {
    Unknown,
    /// Recorded Ready before a restart, with this very endpoint.
    Presumed,
    Healthy,
    Unhealthy {
        reason: Reason,
        detail: &'a str,
    },
}

/// Why the instance is to be made anew, and since when.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replacement {
    pub(super) reason: Reason,
    pub(super) since: Instant,
}

impl<'a> View<'a> {
    pub(super) fn managed(&self) -> Option<&'a Managed> {
        match &self.desired.flavor {
            Flavor::Managed(managed) => Some(managed),
            Flavor::External(_) => None,
        }
    }

    pub(super) fn backing(&self) -> Backing {
        match (&self.seen.provider, &self.seen.host) {
            (ProviderSeen::Unknown, _) => Backing::Unknown,
            (ProviderSeen::NotConfigured, _) => Backing::NoProvider,
            (ProviderSeen::Configured(facts), Some(host)) => match facts.host(host) {
                None => Backing::NoHost,
                Some(host) if self.seen.place().is_some_and(|place| !place.starts_with(&*host.ids)) => Backing::Moved,
                Some(_) => Backing::There,
            },
            (ProviderSeen::Configured(_), None) => Backing::There,
        }
    }

    /// True if the task may be tried now; else asks to be woken when it may.
    pub(super) fn may_try(&self, task: Task, wake: &mut Wake) -> bool {
        self.is_past(self.seen.tries.not_before(task), wake)
    }

    /// True if there is nothing to wait for, or it is over; else asks to be woken then.
    pub(super) fn is_past(&self, at: Option<Instant>, wake: &mut Wake) -> bool {
        match at {
            Some(at) if at > self.now.mono => {
                wake.at(at);
                false
            }
            Some(_) | None => true,
        }
    }

    /// True once no lease is left, or enough was waited for them.
    pub(super) fn is_drained(&self, since: Instant, wake: &mut Wake) -> bool {
        if self.settings.drain_timeout.is_zero() || self.has_no_leases() || self.is_dead() {
            return true;
        }
        self.is_past(Some(since + self.settings.drain_timeout), wake)
    }

    /// When holders lose the instance that is waited for since then; `None` if nobody waits for them.
    pub(super) fn drain_by(&self, since: Instant) -> Option<Instant> {
        (!self.settings.drain_timeout.is_zero()).then(|| since + self.settings.drain_timeout)
    }

    /// What holders are told.
    pub(super) fn cordon(&self, drain_by: Option<Instant>) -> Option<Cordon> {
        (drain_by.is_some() || self.desired.annotations.drain).then_some(Cordon { drain_by })
    }

    /// The count is worth something only after the withdrawal: before, a lease may be granted at any moment.
    pub(super) fn has_no_leases(&self) -> bool {
        !self.seen.offered && self.seen.leases_left == Some(0)
    }

    /// The instance is known to be of no use to anybody any more.
    fn is_dead(&self) -> bool {
        match &self.seen.sight {
            Sight::Unseen => false,
            Sight::Absent => self.managed().is_some(),
            Sight::Present(instance) => !lives(instance.state),
        }
    }

    /// The instance exists and lives as far as is known, and nobody is removing it.
    pub(super) fn is_up(&self) -> bool {
        match &self.desired.flavor {
            Flavor::External(_) => true,
            Flavor::Managed(_) => self.seen.has_instance(),
        }
    }

    pub(super) fn endpoint(&self) -> Option<&'a Endpoint> {
        match (&self.desired.flavor, &self.seen.sight) {
            (Flavor::External(external), _) => Some(&external.endpoint),
            (Flavor::Managed(_), Sight::Unseen) => self.seen.remembered.as_ref(),
            (Flavor::Managed(_), Sight::Absent) => None,
            (Flavor::Managed(_), Sight::Present(instance)) => instance.endpoint.as_ref(),
        }
    }

    /// Something has failed and not been put right.
    pub(super) fn is_in_trouble(&self) -> bool {
        self.backing() != Backing::There && self.managed().is_some() && self.backing() != Backing::Unknown
            || self.seen.latch.is_some()
            || self.seen.tries.any_told()
    }

    /// How the proxy is reached; none while the address or the credentials are not known.
    pub(super) fn route(&self) -> Option<Route> {
        let endpoint = self.endpoint()?.clone();
        let credentials = if self.desired.credentials().is_some() {
            Some(self.seen.credentials.clone()?)
        } else {
            match (&self.desired.flavor, &self.seen.sight) {
                (Flavor::External(_), _) => None,
                (Flavor::Managed(_), Sight::Present(instance)) => instance.generated.clone(),
                (Flavor::Managed(_), Sight::Unseen | Sight::Absent) => match &self.seen.provider {
                    ProviderSeen::Configured(facts) if !facts.may_generate_credentials => None,
                    // Only a look tells whether there are any.
                    ProviderSeen::Configured(_) | ProviderSeen::Unknown | ProviderSeen::NotConfigured => return None,
                },
            }
        };
        Some(Route { endpoint, credentials })
    }

    /// The Secret behind the route is to be read, for the first time or again.
    pub(super) fn wants_credentials(&self) -> bool {
        self.desired.credentials().is_some() && (self.seen.credentials.is_none() || self.seen.secrets_stale)
    }

    /// Credentials of a Secret were read, and not taken back.
    pub(super) fn has_credentials(&self) -> bool {
        self.seen.credentials.is_some()
    }

    /// Everything that a create needs is read.
    pub(super) fn has_all_for_create(&self) -> bool {
        let in_secret =
            self.managed().is_some_and(|managed| matches!(managed.cloud_init, Some(CloudInit::Secret { .. })));
        !self.wants_credentials() && (!in_secret || self.seen.user_data.is_some())
    }

    pub(super) fn standing(&self) -> Standing<'a> {
        let Some(endpoint) = self.endpoint() else { return Standing::Unknown };
        match &self.seen.judged {
            Some((judged, Verdict::Healthy)) if judged == endpoint => Standing::Healthy,
            Some((judged, Verdict::Unhealthy { reason, detail })) if judged == endpoint => {
                Standing::Unhealthy { reason: *reason, detail }
            }
            Some(_) | None if self.seen.presumed.as_ref() == Some(endpoint) => Standing::Presumed,
            Some(_) | None => Standing::Unknown,
        }
    }

    /// A living instance that is to be made anew. Never while paused.
    pub(super) fn replacement(&self, wake: &mut Wake) -> Option<Replacement> {
        // Without anybody to ask for a new one, the old one goes on.
        if self.desired.paused || !self.is_up() || self.managed().is_none() || self.backing() != Backing::There {
            return None;
        }
        if let Some(since) = self.seen.recreate_since {
            return Some(Replacement { reason: Reason::RecreateRequested, since });
        }
        let due = self.seen.unhealthy_since? + self.desired.recreate_after?;
        self.is_past(Some(due), wake).then_some(Replacement { reason: Reason::RecreateAfterUnhealthy, since: due })
    }

    /// When an instance without an address is overdue.
    pub(super) fn address_timeout_at(&self) -> Option<Instant> {
        match &self.seen.provider {
            ProviderSeen::Configured(facts) => self.seen.addressless_since.map(|since| since + facts.address_timeout),
            ProviderSeen::Unknown | ProviderSeen::NotConfigured => None,
        }
    }

    /// The instance whose removal the backend accepted long ago, and which is still on its way out.
    pub(super) fn late_to_go(&self) -> Option<&'a Instance> {
        let Sight::Present(instance) = &self.seen.sight else { return None };
        let accepted_at = self.seen.removal.as_ref()?.accepted_at?;
        let late = self.now.mono >= accepted_at + self.settings.removed_within;
        (late && instance.state == InstanceState::Deleting).then_some(instance)
    }

    /// The host as the object shows it, once it shows the finalizer too.
    pub(super) fn adopted_host(&self) -> Option<&'a HostName> {
        self.desired.host.as_ref().filter(|host| self.desired.finalizer && self.seen.host.as_ref() == Some(*host))
    }
}
