//! What a user of the book sees, claim by claim. The model test beside it looks for what nobody thought of.

mod choosing;
mod fleet;
mod reports;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::domain::desired::{Endpoint, Scheme};
use crate::domain::instance::Credentials;

const MINUTE: Duration = Duration::from_mins(1);
const COOLDOWN: Duration = Duration::from_mins(5);

/// A book and its clock.
struct Desk {
    book: LeaseBook,
    now: Now,
}

fn desk() -> Desk {
    desk_with(|_| {})
}

fn desk_with(change: impl FnOnce(&mut Terms)) -> Desk {
    let now = Now { mono: Instant::now(), wall: SystemTime::UNIX_EPOCH };
    let mut terms = Terms::new(7, Duration::from_hours(1), COOLDOWN);
    change(&mut terms);
    let mut next = 0;
    let random = move || {
        next += 1;
        next
    };
    Desk { book: LeaseBook::new(terms, now, random), now }
}

fn key(name: &str) -> ProxyKey {
    ProxyKey::new("crawl", name).unwrap()
}

fn uid(text: &str) -> Uid {
    Uid::parse(text).unwrap()
}

fn target(text: &str) -> Target {
    Target::parse(text).unwrap()
}

fn attributes(text: &str) -> Attributes {
    text.split(',').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

fn offer(name: &str) -> Offer {
    Offer {
        key: key(name),
        uid: uid("1"),
        endpoint: Endpoint { scheme: Scheme::Http, host: name.into(), port: 3128 },
        credentials: None,
        attributes: Arc::new(attributes("tier=dc")),
        capacity: 1,
        domain: name.into(),
        exit_ip: None,
    }
}

fn ask() -> Ask {
    Ask {
        selectors: Vec::new(),
        target: None,
        ttl: MINUTE,
        owner: None,
        token: "main".into(),
        exclude: Vec::new(),
        count: 1,
        partial: false,
    }
}

fn report(outcome: Outcome) -> Report {
    Report { outcome, target: None, release: false, generation: None }
}

impl Desk {
    fn wait(&mut self, by: Duration) {
        self.now = self.now.after(by);
    }

    fn offer(&mut self, offer: Offer) -> Vec<Ended> {
        self.book.offer(offer, self.now)
    }

    fn announce(&mut self, name: &str, absence: Absence) {
        let Offer { key, uid, attributes, capacity, .. } = offer(name);
        self.book.announce(Announcement { key, uid, attributes, capacity, absence }, self.now);
    }

    fn lease(&mut self, ask: &Ask) -> Lease {
        let mut granted = self.book.grant(ask, self.now).expect("there is one");
        assert_eq!(granted.leases.len(), 1);
        granted.leases.remove(0)
    }

    fn names(&mut self, ask: &Ask) -> Vec<String> {
        let granted = self.book.grant(ask, self.now).expect("there are some");
        granted.leases.iter().map(|lease| lease.proxy.key.name().to_owned()).collect()
    }

    /// Leases one, gives it back, and says which it was.
    fn turn(&mut self, ask: &Ask) -> String {
        let lease = self.lease(ask);
        assert!(matches!(self.release(&lease), Release::Released(_)));
        lease.proxy.key.name().to_owned()
    }

    fn refused(&mut self, ask: &Ask) -> Breakdown {
        match self.book.grant(ask, self.now).expect_err("there is none") {
            Refusal::NoneAvailable(breakdown) => breakdown,
            Refusal::NoSuchSelector => panic!("nothing matches"),
        }
    }

    fn release(&mut self, lease: &Lease) -> Release {
        self.book.release(&lease.id, self.now)
    }

    fn renew(&mut self, lease: &Lease) -> Result<Lease, NotHeld> {
        self.book.renew(&lease.id, MINUTE, None, self.now)
    }

    fn report(&mut self, lease: &Lease, outcome: Outcome) -> Result<Reported, NotHeld> {
        self.book.report(&lease.id, &report(outcome), self.now)
    }
}

#[test]
fn a_lease_tells_all_that_its_holder_needs() {
    let mut desk = desk();
    desk.offer(Offer { exit_ip: Some("203.0.113.9".into()), ..offer("a") });
    let lease = desk.lease(&Ask { owner: Some("spider".into()), target: Some(target("shop.example")), ..ask() });
    assert_eq!(lease.generation, (7 << 32) + 1);
    assert_eq!(lease.proxy.endpoint.to_string(), "http://a:3128");
    assert_eq!((lease.issued, lease.expires), (desk.now.mono, desk.now.mono + MINUTE));
    assert_eq!((lease.renew_after, lease.state), (MINUTE / 2, LeaseState::Active));
    assert!(LeaseId::parse(lease.id.as_str()).is_ok());
    assert_eq!(desk.book.get(&lease.id, desk.now), Ok(lease));
}

#[test]
fn nobody_gets_more_than_the_capacity() {
    let mut desk = desk();
    desk.offer(Offer { capacity: 2, ..offer("a") });
    let first = desk.lease(&ask());
    let second = desk.lease(&ask());
    assert!(second.generation > first.generation);
    let breakdown = desk.refused(&ask());
    let expected =
        Breakdown { matching: 1, healthy: 1, leased_out: 1, next_free_in: Some(MINUTE), ..Breakdown::default() };
    assert_eq!(breakdown, expected);
    desk.release(&first);
    assert!(desk.lease(&ask()).generation > second.generation);
}

#[test]
fn a_smaller_capacity_ends_no_lease_and_grants_none() {
    let mut desk = desk();
    desk.offer(Offer { capacity: 3, ..offer("a") });
    let leases: Vec<Lease> = (0..2).map(|_| desk.lease(&ask())).collect();
    desk.offer(offer("a"));
    desk.refused(&ask());
    desk.release(&leases[0]);
    desk.refused(&ask());
    assert!(desk.renew(&leases[1]).is_ok());
    desk.release(&leases[1]);
    desk.lease(&ask());
}

#[test]
fn the_first_selector_that_can_be_met_wins() {
    let mut desk = desk();
    desk.offer(Offer { attributes: Arc::new(attributes("tier=dc,region=eu")), ..offer("a") });
    desk.offer(Offer { attributes: Arc::new(attributes("tier=home,region=eu")), ..offer("b") });
    desk.offer(Offer { attributes: Arc::new(attributes("tier=home,region=us")), ..offer("c") });
    let ask = Ask { selectors: vec![attributes("tier=dc,region=us"), attributes("tier=home,region=eu")], ..ask() };
    let granted = desk.book.grant(&ask, desk.now).unwrap();
    assert_eq!((granted.selector, granted.leases[0].selector), (1, 1));
    assert_eq!(granted.leases[0].proxy.key, key("b"));
    let breakdown = desk.refused(&ask);
    assert_eq!((breakdown.matching, breakdown.leased_out), (1, 1), "the union of the selectors is counted");
}

#[test]
fn what_nobody_could_ever_have_is_told_from_what_nobody_has_now() {
    let mut desk = desk();
    let ask_for = |text| Ask { selectors: vec![attributes(text)], ..ask() };
    assert_eq!(desk.book.grant(&ask(), desk.now), Err(Refusal::NoSuchSelector), "an empty fleet has nothing");
    desk.announce("a", Absence::Provisioning);
    desk.announce("b", Absence::Unhealthy);
    let expected = Breakdown { matching: 2, provisioning: 1, unhealthy: 1, ..Breakdown::default() };
    assert_eq!(desk.refused(&ask_for("tier=dc")), expected);
    for nonsense in ["tier=gold", "colour=red", "tier=dc,colour=red"] {
        assert_eq!(desk.book.grant(&ask_for(nonsense), desk.now), Err(Refusal::NoSuchSelector), "{nonsense}");
        let explained = desk.book.explain(&ask_for(nonsense), desk.now);
        assert_eq!(explained.verdict, Verdict::NoSuchSelector);
    }
    desk.book.remove(&key("a"), &uid("1"), desk.now);
    desk.book.remove(&key("b"), &uid("1"), desk.now);
    assert_eq!(desk.book.grant(&ask_for("tier=dc"), desk.now), Err(Refusal::NoSuchSelector), "they are forgotten");
}

#[test]
fn a_lease_is_over_at_its_expiry_even_if_nobody_swept() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let lease = desk.lease(&ask());
    desk.wait(Duration::from_secs(59));
    assert_eq!(desk.refused(&ask()).next_free_in, Some(Duration::from_secs(1)));
    desk.wait(Duration::from_secs(1));
    let gone = Gone { how: EndedBy::Expired, when: lease.expires };
    assert_eq!(desk.renew(&lease), Err(NotHeld::Gone(gone)));
    assert_eq!(desk.release(&lease), Release::AlreadyGone(gone));
    let next = desk.lease(&ask());
    assert!(next.generation > lease.generation);
    assert_eq!(desk.book.next_deadline(), Some(lease.expires), "there is news for whoever sweeps");
    let ended = desk.book.expire(desk.now);
    assert_eq!(ended.iter().map(|e| (&e.id, e.gone)).collect::<Vec<_>>(), [(&lease.id, gone)]);
    assert_eq!(desk.book.expire(desk.now), []);
    assert_eq!(desk.book.next_deadline(), Some(next.expires));
}

#[test]
fn a_renewed_lease_lives_on_and_a_released_one_never_comes_back() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let lease = desk.lease(&ask());
    desk.wait(MINUTE / 2);
    let renewed = desk.book.renew(&lease.id, MINUTE * 2, Some(lease.generation), desk.now).unwrap();
    assert_eq!((renewed.expires, renewed.renew_after), (desk.now.mono + MINUTE * 2, MINUTE));
    let wrong = desk.book.renew(&lease.id, MINUTE, Some(1), desk.now);
    assert_eq!(wrong, Err(NotHeld::GenerationMismatch { held: lease.generation }));
    desk.wait(MINUTE);
    assert!(matches!(desk.release(&lease), Release::Released(ended) if ended.id == lease.id));
    let gone = Gone { how: EndedBy::Released, when: desk.now.mono };
    desk.wait(Duration::from_secs(1));
    assert_eq!(desk.renew(&lease), Err(NotHeld::Gone(gone)));
    assert_eq!(desk.release(&lease), Release::AlreadyGone(gone));
    assert_eq!(desk.book.get(&lease.id, desk.now), Err(NotHeld::Gone(gone)));
    assert_eq!(desk.book.expire(desk.now), [], "a release is told once, to the one who released");
    desk.wait(Duration::from_mins(10));
    assert_eq!(desk.release(&lease), Release::Unknown, "it is forgotten in the end");
}

#[test]
fn a_ttl_out_of_range_is_clamped() {
    let mut desk = desk();
    desk.offer(Offer { capacity: 2, ..offer("a") });
    let long = desk.lease(&Ask { ttl: Duration::MAX, ..ask() });
    assert_eq!(long.expires, desk.now.mono + Duration::from_hours(1));
    let short = desk.lease(&Ask { ttl: Duration::ZERO, ..ask() });
    assert!(short.expires > desk.now.mono);
    assert_eq!(desk.book.renew(&long.id, Duration::MAX, None, desk.now).unwrap().expires, long.expires);
}

#[test]
fn a_wall_clock_or_a_caller_that_runs_backwards_changes_nothing() {
    let mut desk = desk();
    desk.offer(offer("a"));
    desk.lease(&ask());
    let early = desk.now;
    desk.wait(MINUTE * 2);
    desk.now.wall = SystemTime::UNIX_EPOCH;
    assert_eq!(desk.book.expire(desk.now).len(), 1);
    desk.now = early;
    let lease = desk.lease(&ask());
    assert_eq!(lease.issued, early.mono + MINUTE * 2);
}

#[test]
fn lists_are_of_one_token_or_one_owner() {
    let mut desk = desk();
    for at in 0..4 {
        desk.offer(offer(&format!("p{at}")));
    }
    let by = |token: &str, owner: Option<&str>| Ask { token: token.into(), owner: owner.map(Into::into), ..ask() };
    let first = desk.lease(&by("one", Some("x")));
    desk.lease(&by("one", Some("y")));
    desk.lease(&by("one", None));
    desk.lease(&by("two", Some("x")));
    let mut count = |token: &str, owner| desk.book.list(token, owner, desk.now).len();
    let counts = [count("one", None), count("one", Some("x")), count("two", None), count("two", Some("y"))];
    assert_eq!((counts, count("none", None)), ([3, 1, 1, 0], 0));
    assert_eq!(desk.book.held_by("one", desk.now), 3);
    desk.release(&first);
    assert_eq!((desk.book.list("one", Some("x"), desk.now), desk.book.held_by("one", desk.now)), (Vec::new(), 2));
    desk.wait(MINUTE);
    assert_eq!((desk.book.list("two", None, desk.now), desk.book.held_by("one", desk.now)), (Vec::new(), 0));
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut desk = desk_with(|terms| {
        terms.max_remembered = 3;
        terms.max_cooldowns = 4;
        terms.max_cooldowns_per_proxy = 2;
    });
    for name in ["a", "b", "c"] {
        desk.offer(offer(name));
    }
    let ended: Vec<Lease> = (0..5)
        .map(|_| {
            let lease = desk.lease(&ask());
            desk.release(&lease);
            lease
        })
        .collect();
    let known: Vec<bool> = ended.iter().map(|lease| desk.release(lease) != Release::Unknown).collect();
    assert_eq!(known, [false, false, true, true, true]);

    for _ in 0..3 {
        let lease = desk.lease(&ask());
        for site in 0..10 {
            desk.wait(Duration::from_millis(1));
            let about = Report { target: Some(target(&format!("s{site}.example"))), ..report(Outcome::Banned) };
            desk.book.report(&lease.id, &about, desk.now).unwrap();
        }
    }
    assert_eq!(desk.book.totals(desk.now).cooldowns, 4);
    let breakdown = desk.book.explain(&Ask { target: Some(target("s9.example")), ..ask() }, desk.now).breakdown;
    assert_eq!(breakdown.banned_for_target, 2, "the latest stay");
    desk.wait(COOLDOWN * 2);
    assert_eq!(desk.book.totals(desk.now), Totals { known: 3, offered: 3, remembered: 3, ..Totals::default() });
    desk.wait(Duration::from_mins(10));
    assert_eq!(desk.book.totals(desk.now), Totals { known: 3, offered: 3, ..Totals::default() });
    assert_eq!(desk.book.expire(desk.now).len(), 3);
    assert_eq!(desk.book.next_deadline(), None);
}

#[test]
fn a_source_of_ids_that_repeats_itself_makes_no_two_equal() {
    let now = Now { mono: Instant::now(), wall: SystemTime::UNIX_EPOCH };
    let mut book = LeaseBook::new(Terms::new(0, MINUTE, COOLDOWN), now, || u128::MAX);
    book.offer(Offer { capacity: 9, ..offer("a") }, now);
    let leases = book.grant(&Ask { count: 9, ..ask() }, now).unwrap().leases;
    let ids: std::collections::BTreeSet<&LeaseId> = leases.iter().map(|lease| &lease.id).collect();
    assert_eq!(ids.len(), 9);
}
