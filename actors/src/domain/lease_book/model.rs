//! The book against a model that is too simple to be wrong: plain lists, read from end to end for every question.

mod ops;
mod questions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::TestCaseResult;

use self::ops::{Op, Wanted, Who, ops};
use super::*;
use crate::domain::desired::{Endpoint, Scheme};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const KINDS: [&[(&str, &str)]; 3] = [&[("tier", "dc"), ("region", "eu")], &[("tier", "dc")], &[("tier", "home")]];
const SELECTORS: [&[(&str, &str)]; 6] = [
    &[],
    &[("tier", "dc")],
    &[("tier", "dc"), ("region", "eu")],
    &[("tier", "home")],
    &[("region", "eu")],
    &[("x", "y")],
];
const TARGETS: [&str; 2] = ["shop.example", "news.example"];
const EPOCH: u32 = 3;

struct ModelProxy {
    uid: Uid,
    attributes: Attributes,
    capacity: usize,
    absence: Option<Absence>,
    cordoned: bool,
    exit: Option<(u16, Option<u8>)>,
    rests: BTreeMap<usize, Rest>,
    looked_at: Option<Instant>,
}

struct Rest {
    strikes: u32,
    is_ban: bool,
    until: Instant,
    length: Duration,
}

struct ModelLease {
    id: LeaseId,
    name: usize,
    uid: Uid,
    generation: u64,
    exit: (u16, Option<u8>),
    target: Option<usize>,
    expires: Instant,
    gone: Option<Gone>,
}

struct Model {
    book: LeaseBook,
    now: Now,
    terms: Terms,
    proxies: BTreeMap<usize, ModelProxy>,
    leases: Vec<ModelLease>,
    retired: BTreeSet<Uid>,
    /// By name.
    counters: BTreeMap<usize, u64>,
    untold: usize,
}

fn key(name: usize) -> ProxyKey {
    ProxyKey::new("ns", NAMES[name]).unwrap()
}

fn uid(who: &Who) -> Uid {
    Uid::parse(&format!("{}-{}", NAMES[who.name], who.uid)).unwrap()
}

fn name_of(key: &ProxyKey) -> Option<usize> {
    NAMES.iter().position(|name| *name == key.name())
}

fn target(target: Option<usize>) -> Option<Target> {
    target.map(|at| Target::parse(TARGETS[at]).unwrap())
}

fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
}

fn is_same_exit(a: (u16, Option<u8>), b: (u16, Option<u8>)) -> bool {
    a.0 == b.0 || (a.1.is_some() && a.1 == b.1)
}

impl Model {
    fn new() -> Self {
        let now = Now { mono: Instant::now(), wall: SystemTime::UNIX_EPOCH };
        let terms = Terms {
            remember: Duration::from_mins(2),
            ..Terms::new(EPOCH, Duration::from_secs(80), Duration::from_secs(30))
        };
        let mut next = 0;
        let random = move || {
            next += 1;
            next
        };
        Self {
            book: LeaseBook::new(terms.clone(), now, random),
            now,
            terms,
            proxies: BTreeMap::new(),
            leases: Vec::new(),
            retired: BTreeSet::new(),
            counters: BTreeMap::new(),
            untold: 0,
        }
    }

    fn apply(&mut self, op: &Op) -> TestCaseResult {
        let now = self.now;
        match op {
            Op::Offer { who, kind, capacity, port, exit, domain } => {
                let ended = self.book.offer(
                    Offer {
                        key: key(who.name),
                        uid: uid(who),
                        endpoint: Endpoint { scheme: Scheme::Http, host: NAMES[who.name].into(), port: *port },
                        credentials: None,
                        attributes: Arc::new(attributes(KINDS[*kind])),
                        capacity: *capacity,
                        domain: format!("host-{domain}").into(),
                        exit_ip: exit.map(|exit| exit.to_string().into()),
                    },
                    now,
                );
                let is_stale = self.is_stale(who);
                let mut expected = self.appears(who, *kind, *capacity, None);
                let moved = |proxy: &ModelProxy| proxy.exit.is_some_and(|(before, _)| before != *port);
                if !is_stale && self.current(who).is_some_and(|proxy| moved(proxy)) {
                    expected.extend(self.end_all(who.name, EndedBy::ProxyReplaced));
                }
                prop_assert_eq!(ids(&ended), expected);
                if let Some(proxy) = self.current(who) {
                    let exit = (*port, *exit);
                    if proxy.exit.is_some_and(|before| !is_same_exit(before, exit)) {
                        proxy.rests.clear();
                    }
                    proxy.exit = Some(exit);
                }
            }
            Op::Announce { who, kind, absence } => {
                let ended = self.book.announce(
                    Announcement {
                        key: key(who.name),
                        uid: uid(who),
                        attributes: Arc::new(attributes(KINDS[*kind])),
                        capacity: 2,
                        absence: *absence,
                    },
                    now,
                );
                prop_assert_eq!(ids(&ended), self.appears(who, *kind, 2, Some(*absence)));
            }
            Op::Withdraw(who, absence) => {
                let found = self.book.withdraw(&key(who.name), &uid(who), *absence, now);
                prop_assert_eq!(found, self.current(who).is_some());
                if let Some(proxy) = self.current(who) {
                    proxy.absence = Some(*absence);
                }
            }
            Op::Cordon(who, on) => {
                let cordon = on.then_some(Cordon { drain_by: None });
                let found = self.book.cordon(&key(who.name), &uid(who), cordon, now);
                prop_assert_eq!(found, self.current(who).is_some());
                if let Some(proxy) = self.current(who) {
                    proxy.cordoned = *on;
                }
            }
            Op::EndLeases(who) => {
                let ended = self.book.end_leases(&key(who.name), &uid(who), EndedBy::ProxyReplaced, now);
                let is_current = self.current(who).is_some();
                let expected =
                    if is_current { self.end_all(who.name, EndedBy::ProxyReplaced) } else { BTreeSet::new() };
                prop_assert_eq!(ids(&ended), expected);
            }
            Op::Remove(who) => {
                let ended = self.book.remove(&key(who.name), &uid(who), now);
                let is_current = self.current(who).is_some();
                let expected = if is_current { self.disappears(who.name) } else { BTreeSet::new() };
                prop_assert_eq!(ids(&ended), expected);
            }
            Op::Retain(names) => {
                let living: BTreeSet<ProxyKey> = names.iter().map(|&name| key(name)).collect();
                let ended = self.book.retain(|key, _| living.contains(key), now);
                let gone: Vec<usize> = self.proxies.keys().copied().filter(|name| !names.contains(name)).collect();
                let expected: BTreeSet<LeaseId> = gone.into_iter().flat_map(|name| self.disappears(name)).collect();
                prop_assert_eq!(ids(&ended), expected);
            }
            Op::Grant(wanted) => self.grant(wanted)?,
            Op::Renew { lease, ttl, generation } => self.renew(*lease, *ttl, *generation)?,
            Op::Report { lease, outcome, target, release } => self.report(*lease, *outcome, *target, *release)?,
            Op::Release(lease) => {
                let Some(at) = self.nth(*lease) else { return Ok(()) };
                let answer = self.book.release(&self.leases[at].id, now);
                match (self.past(at), answer) {
                    (None, Release::Released(ended)) => {
                        prop_assert_eq!(&ended.id, &self.leases[at].id);
                        self.leases[at].gone = Some(Gone { how: EndedBy::Released, when: now.mono });
                    }
                    (Some(NotHeld::Gone(gone)), Release::AlreadyGone(told)) => prop_assert_eq!(gone, told),
                    (Some(NotHeld::Unknown), Release::Unknown) => {}
                    (model, book) => prop_assert!(false, "model {:?}, book {:?}", model, book),
                }
            }
            Op::Wait(seconds) => {
                self.now = now.after(Duration::from_secs(*seconds));
                for lease in self.leases.iter_mut().filter(|l| l.gone.is_none() && l.expires <= self.now.mono) {
                    lease.gone = Some(Gone { how: EndedBy::Expired, when: lease.expires });
                    self.untold += 1;
                }
            }
            Op::Expire => {
                let ended = self.book.expire(now);
                prop_assert!(ended.windows(2).all(|pair| pair[0].gone.when <= pair[1].gone.when));
                prop_assert_eq!(ended.len(), std::mem::take(&mut self.untold));
            }
        }
        Ok(())
    }

    /// The leases that end because another object had the name.
    fn appears(&mut self, who: &Who, kind: usize, capacity: u32, absence: Option<Absence>) -> BTreeSet<LeaseId> {
        if self.is_stale(who) {
            return BTreeSet::new();
        }
        let is_taken = self.proxies.get(&who.name).is_some_and(|proxy| proxy.uid != uid(who));
        let ended = if is_taken { self.disappears(who.name) } else { BTreeSet::new() };
        let proxy = self.proxies.entry(who.name).or_insert_with(|| ModelProxy {
            uid: uid(who),
            attributes: Attributes::new(),
            capacity: 0,
            absence: None,
            cordoned: false,
            exit: None,
            rests: BTreeMap::new(),
            looked_at: None,
        });
        proxy.attributes = attributes(KINDS[kind]);
        proxy.capacity = capacity as usize;
        proxy.absence = absence;
        ended
    }

    /// News of an object whose name belongs to another one by now.
    fn is_stale(&self, who: &Who) -> bool {
        let is_taken = self.proxies.get(&who.name).is_some_and(|proxy| proxy.uid != uid(who));
        is_taken && self.retired.contains(&uid(who))
    }

    /// Forgets the Proxy and ends its leases.
    fn disappears(&mut self, name: usize) -> BTreeSet<LeaseId> {
        self.retired.extend(self.proxies.remove(&name).map(|proxy| proxy.uid));
        self.end_all(name, EndedBy::ProxyRemoved)
    }

    fn end_all(&mut self, name: usize, how: EndedBy) -> BTreeSet<LeaseId> {
        let gone = Gone { how, when: self.now.mono };
        let ended = self.leases.iter_mut().filter(|lease| lease.name == name && lease.gone.is_none());
        ended
            .map(|lease| {
                lease.gone = Some(gone);
                lease.id.clone()
            })
            .collect()
    }

    fn grant(&mut self, wanted: &Wanted) -> TestCaseResult {
        let ask = Ask {
            selectors: wanted.selectors.iter().map(|&at| attributes(SELECTORS[at])).collect(),
            target: target(wanted.target),
            ttl: Duration::from_secs(wanted.ttl),
            owner: None,
            token: "main".into(),
            exclude: wanted.exclude.iter().map(|&name| key(name)).collect(),
            count: wanted.count,
            partial: wanted.partial,
        };
        let selectors = if ask.selectors.is_empty() { vec![Attributes::new()] } else { ask.selectors.clone() };
        let breakdown = self.breakdown(&selectors, wanted);
        let met = selectors.iter().position(|selector| {
            let spare: usize = self.candidates(selector, wanted).values().sum();
            spare >= if wanted.partial { 1 } else { wanted.count }
        });
        let verdict = match met {
            Some(selector) => Verdict::WouldGrant { selector },
            None if breakdown.matching > 0 => Verdict::NoneAvailable,
            None => Verdict::NoSuchSelector,
        };
        prop_assert_eq!(self.book.explain(&ask, self.now), Explanation { verdict, breakdown });
        let granted = match (self.book.grant(&ask, self.now), verdict) {
            (Ok(granted), Verdict::WouldGrant { .. }) => granted,
            (Err(Refusal::NoneAvailable(told)), Verdict::NoneAvailable) => {
                prop_assert_eq!(told, breakdown);
                return Ok(());
            }
            (Err(Refusal::NoSuchSelector), Verdict::NoSuchSelector) => return Ok(()),
            (answer, verdict) => {
                prop_assert!(false, "{:?} was explained, {:?} was given", verdict, answer);
                return Ok(());
            }
        };
        prop_assert_eq!(Some(granted.selector), met);
        self.take(&granted, &selectors[granted.selector], wanted)
    }

    fn take(&mut self, granted: &Granted, selector: &Attributes, wanted: &Wanted) -> TestCaseResult {
        let candidates = self.candidates(selector, wanted);
        prop_assert_eq!(granted.leases.len(), wanted.count.min(candidates.values().sum()));
        let different: BTreeSet<&ProxyKey> = granted.leases.iter().map(|lease| &lease.proxy.key).collect();
        prop_assert_eq!(different.len(), wanted.count.min(candidates.len()), "as many different ones as there are");
        let fewest = candidates.keys().map(|&name| self.live(name).count()).min();
        let first = granted.leases.first().and_then(|lease| name_of(&lease.proxy.key));
        prop_assert_eq!(first.map(|name| self.live(name).count()), fewest, "fewest leases first");
        for lease in &granted.leases {
            let name = name_of(&lease.proxy.key).expect("one of ours");
            let proxy = &self.proxies[&name];
            prop_assert!(candidates.contains_key(&name), "{} was not to be had", lease.proxy.key);
            prop_assert!(self.live(name).count() < proxy.capacity, "too many holders of {}", lease.proxy.key);
            prop_assert!(self.leases.iter().all(|other| other.id != lease.id), "the id was used before");
            prop_assert_eq!(&lease.proxy.uid, &proxy.uid);
            let counter = self.counters.entry(name).or_insert(0);
            *counter += 1;
            prop_assert_eq!(lease.generation, (u64::from(EPOCH) << 32) + *counter, "it counts the grants of this name");
            let ttl = Duration::from_secs(wanted.ttl).min(self.terms.max_ttl);
            prop_assert_eq!(lease.expires, self.now.mono + ttl);
            let exit = proxy.exit.expect("it was offered");
            prop_assert_eq!(lease.proxy.endpoint.port, exit.0);
            self.leases.push(ModelLease {
                id: lease.id.clone(),
                name,
                uid: proxy.uid.clone(),
                generation: lease.generation,
                exit,
                target: wanted.target,
                expires: lease.expires,
                gone: None,
            });
        }
        Ok(())
    }

    fn renew(&mut self, lease: Index, ttl: u64, generation: Option<bool>) -> TestCaseResult {
        let Some(at) = self.nth(lease) else { return Ok(()) };
        let held = self.leases[at].generation;
        let given = generation.map(|is_right| if is_right { held } else { held + 1 });
        let ttl = Duration::from_secs(ttl);
        let answer = self.book.renew(&self.leases[at].id, ttl, given, self.now);
        let expected = match (self.past(at), generation) {
            (Some(past), _) => Err(past),
            (None, Some(false)) => Err(NotHeld::GenerationMismatch { held }),
            (None, _) => Ok(self.now.mono + ttl.min(self.terms.max_ttl)),
        };
        prop_assert_eq!(answer.map(|lease| lease.expires), expected);
        if let Ok(expires) = expected {
            self.leases[at].expires = expires;
        }
        Ok(())
    }

    fn report(&mut self, lease: Index, outcome: Outcome, about: Option<usize>, release: bool) -> TestCaseResult {
        let Some(at) = self.nth(lease) else { return Ok(()) };
        let report = Report { outcome, target: target(about), release, generation: None };
        let answer = self.book.report(&self.leases[at].id, &report, self.now);
        let past = self.past(at);
        if past == Some(NotHeld::Unknown) {
            prop_assert_eq!(answer, Err(NotHeld::Unknown));
            return Ok(());
        }
        let reported = answer.expect("a lease that is known can be reported on");
        prop_assert_eq!(reported.ended.is_some(), release && past.is_none());
        if reported.ended.is_some() {
            self.leases[at].gone = Some(Gone { how: EndedBy::Released, when: self.now.mono });
        }
        let (now, lease) = (self.now.mono, &self.leases[at]);
        let about = about.or(lease.target);
        let proxy = self
            .proxies
            .get_mut(&lease.name)
            .filter(|p| p.uid == lease.uid && p.exit.is_some_and(|exit| is_same_exit(exit, lease.exit)));
        let (mut cooled, mut looks) = (None, false);
        match (outcome, proxy, about) {
            (Outcome::Banned | Outcome::Captcha | Outcome::RateLimited, Some(proxy), Some(about)) => {
                let before = proxy.rests.remove(&about).filter(|rest| now < rest.until + rest.length);
                let rest = match before {
                    Some(rest) if now < rest.until => rest,
                    before => {
                        let strikes = before.map_or(0, |rest| rest.strikes) + 1;
                        let length = (self.terms.cooldown * 2_u32.pow(strikes - 1)).min(self.terms.cooldown_cap);
                        Rest { strikes, is_ban: outcome != Outcome::RateLimited, until: now + length, length }
                    }
                };
                cooled = Some((rest.until, rest.strikes));
                proxy.rests.insert(about, rest);
            }
            (Outcome::ProxyError | Outcome::Timeout, Some(proxy), _) => {
                looks = proxy.looked_at.is_none_or(|at| now - at >= Duration::from_secs(5));
                if looks {
                    proxy.looked_at = Some(now);
                }
            }
            _ => {}
        }
        prop_assert_eq!(reported.look_now.is_some(), looks);
        prop_assert_eq!(reported.cooled.map(|cooled| (cooled.until, cooled.strikes)), cooled);
        Ok(())
    }
}

fn ids(ended: &[Ended]) -> BTreeSet<LeaseId> {
    ended.iter().map(|ended| ended.id.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_book_does_what_the_model_does(ops in ops()) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op)?;
            model.compare()?;
        }
    }
}
