//! What is asked of the model: each answered by reading everything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;

use super::*;

impl Model {
    pub(super) fn current(&mut self, who: &Who) -> Option<&mut ModelProxy> {
        self.proxies.get_mut(&who.name).filter(|proxy| proxy.uid == uid(who))
    }

    /// Any lease that was ever granted.
    pub(super) fn nth(&self, index: Index) -> Option<usize> {
        (!self.leases.is_empty()).then(|| index.index(self.leases.len()))
    }

    pub(super) fn live(&self, name: usize) -> impl Iterator<Item = &ModelLease> {
        self.leases.iter().filter(move |lease| lease.name == name && lease.gone.is_none())
    }

    pub(super) fn past(&self, at: usize) -> Option<NotHeld> {
        let gone = self.leases[at].gone?;
        let is_remembered = self.now.mono < gone.when + self.terms.remember;
        Some(if is_remembered { NotHeld::Gone(gone) } else { NotHeld::Unknown })
    }

    pub(super) fn rest(&self, name: usize, target: Option<usize>) -> Option<&Rest> {
        self.proxies[&name].rests.get(&target?).filter(|rest| self.now.mono < rest.until)
    }

    /// Who could be granted now, and how many times.
    pub(super) fn candidates(&self, selector: &Attributes, wanted: &Wanted) -> BTreeMap<usize, usize> {
        self.proxies
            .iter()
            .filter(|(_, proxy)| selector.iter().all(|(name, value)| proxy.attributes.get(name) == Some(value)))
            .filter(|(name, proxy)| {
                proxy.absence.is_none()
                    && !proxy.cordoned
                    && !wanted.exclude.contains(name)
                    && self.rest(**name, wanted.target).is_none()
            })
            .map(|(&name, proxy)| (name, proxy.capacity.saturating_sub(self.live(name).count())))
            .filter(|(_, spare)| *spare > 0)
            .collect()
    }

    pub(super) fn breakdown(&self, selectors: &[Attributes], wanted: &Wanted) -> Breakdown {
        let mut counts = Breakdown::default();
        let mut next_free: Option<Instant> = None;
        for (&name, proxy) in &self.proxies {
            let matches = |selector: &Attributes| selector.iter().all(|(n, v)| proxy.attributes.get(n) == Some(v));
            if !selectors.iter().any(matches) {
                continue;
            }
            counts.matching += 1;
            if wanted.exclude.contains(&name) {
                counts.excluded += 1;
                continue;
            }
            match proxy.absence {
                Some(Absence::Provisioning) => counts.provisioning += 1,
                Some(Absence::Unhealthy) => counts.unhealthy += 1,
                None => counts.healthy += 1,
            }
            if proxy.absence.is_some() {
                continue;
            }
            let is_full = self.live(name).count() >= proxy.capacity;
            let rest = self.rest(name, wanted.target);
            match rest {
                _ if proxy.cordoned => counts.draining += 1,
                Some(rest) if rest.is_ban => counts.banned_for_target += 1,
                Some(_) => counts.cooling_down += 1,
                None if is_full => counts.leased_out += 1,
                None => counts.available += 1,
            }
            let emptied = if is_full { self.live(name).map(|lease| lease.expires).min() } else { None };
            let free_at = rest.map(|rest| rest.until).max(emptied);
            if !proxy.cordoned {
                next_free = [next_free, free_at].into_iter().flatten().min();
            }
        }
        counts.next_free_in = next_free.map(|at| at - self.now.mono);
        counts
    }

    /// The book and the model tell the same story.
    pub(super) fn compare(&mut self) -> TestCaseResult {
        let now = self.now;
        let live = self.leases.iter().filter(|lease| lease.gone.is_none());
        if let Some(first) = live.clone().map(|lease| lease.expires).min() {
            prop_assert!(self.book.next_deadline().is_some_and(|at| at <= first), "an expiry would be slept through");
        }
        let draining = live.clone().filter(|lease| self.proxies[&lease.name].cordoned).count();
        let remembered = (0..self.leases.len()).filter(|&at| matches!(self.past(at), Some(NotHeld::Gone(_)))).count();
        let rests = self.proxies.values().flat_map(|proxy| proxy.rests.values());
        let totals = Totals {
            leases_active: live.clone().count() - draining,
            leases_draining: draining,
            known: self.proxies.len(),
            offered: self.proxies.values().filter(|proxy| proxy.absence.is_none()).count(),
            cooldowns: rests.filter(|rest| now.mono < rest.until).count(),
            remembered,
        };
        let listed: BTreeSet<LeaseId> = live.map(|lease| lease.id.clone()).collect();
        prop_assert_eq!(self.book.totals(now), totals);
        let list = self.book.list("main", None, now);
        prop_assert_eq!(list.iter().map(|lease| lease.id.clone()).collect::<BTreeSet<_>>(), listed);
        let views: BTreeMap<ProxyKey, ProxyView> = self.book.proxies(now).into_iter().collect();
        prop_assert_eq!(views.len(), self.proxies.len());
        for (&name, proxy) in &self.proxies {
            let cooling_targets = proxy.rests.values().filter(|rest| now.mono < rest.until).count();
            let rests = proxy.rests.values().map(|rest| rest.until).filter(|until| now.mono < *until);
            let expected = ProxyView {
                uid: proxy.uid.clone(),
                offered: proxy.absence.is_none(),
                cordoned: proxy.cordoned,
                leases: self.live(name).count(),
                capacity: u32::try_from(proxy.capacity).unwrap(),
                cooling_targets,
                cooldown_until: rests.max(),
            };
            prop_assert_eq!(views.get(&key(name)), Some(&expected));
        }
        for at in 0..self.leases.len() {
            let (told, lease) = (self.book.get(&self.leases[at].id, now), &self.leases[at]);
            if let Some(past) = self.past(at) {
                prop_assert_eq!(told, Err(past));
            } else {
                let told = told.expect("it is out");
                prop_assert_eq!((told.expires, told.generation), (lease.expires, lease.generation));
                prop_assert!(now.mono < told.expires, "a lease outlived its time");
            }
        }
        Ok(())
    }
}
