//! What a user of the book sees, claim by claim. The model test beside it looks for what nobody thought of.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::domain::desired::{Endpoint, Scheme};

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

fn target(text: &str) -> Option<Target> {
    Some(Target::parse(text).unwrap())
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
    let lease = desk.lease(&Ask { owner: Some("spider".into()), target: target("shop.example"), ..ask() });
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
    desk.wait(MINUTE - Duration::from_nanos(1));
    desk.refused(&ask());
    desk.wait(Duration::from_nanos(1));
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
fn reports_cool_the_pair_or_ask_for_a_look_or_count_for_nobody() {
    let shop = target("shop.example");
    for (outcome, cools, looks) in [
        (Outcome::Ok, None, false),
        (Outcome::TargetError, None, false),
        (Outcome::ProxyError, None, true),
        (Outcome::Timeout, None, true),
        (Outcome::Banned, Some("banned"), false),
        (Outcome::Captcha, Some("banned"), false),
        (Outcome::RateLimited, Some("limited"), false),
    ] {
        let mut desk = desk();
        desk.offer(Offer { capacity: 2, ..offer("a") });
        let ask = Ask { target: shop.clone(), ..ask() };
        let lease = desk.lease(&ask);
        let reported = desk.report(&lease, outcome).unwrap();
        assert_eq!(reported.look_now, looks.then(|| LookNow { key: key("a"), uid: uid("1") }), "{outcome:?}");
        assert_eq!(reported.cooled.is_some(), cools.is_some(), "{outcome:?}");
        if let Some(cause) = cools {
            let breakdown = desk.refused(&ask);
            assert_eq!(breakdown.next_free_in, Some(COOLDOWN));
            assert_eq!(
                (breakdown.banned_for_target, breakdown.cooling_down).max((0, 0)),
                match cause {
                    "banned" => (1, 0),
                    _ => (0, 1),
                }
            );
            assert_eq!(desk.book.proxy(&key("a"), desk.now).unwrap().cooldown_until, Some(desk.now.mono + COOLDOWN));
        }
        desk.lease(&Ask { target: target("other.example"), ..ask });
    }
}

#[test]
fn cooldowns_double_while_they_are_remembered_and_a_repeated_report_is_one_incident() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let ask = Ask { target: target("shop.example"), ttl: Duration::from_secs(1), ..ask() };
    let mut lengths = Vec::new();
    for _ in 0..7 {
        let lease = desk.lease(&ask);
        let cooled = desk.report(&lease, Outcome::Banned).unwrap().cooled.unwrap();
        lengths.push((cooled.until - desk.now.mono).as_secs() / 60);
        desk.wait(MINUTE);
        let again = desk.report(&lease, Outcome::RateLimited).unwrap().cooled.unwrap();
        assert_eq!(again, cooled, "a report during the rest changes nothing");
        desk.now = desk.now.after(cooled.until - desk.now.mono);
    }
    assert_eq!(lengths, [5, 10, 20, 40, 80, 80, 80]);
    desk.wait(Duration::from_mins(80));
    let lease = desk.lease(&ask);
    let cooled = desk.report(&lease, Outcome::Banned).unwrap().cooled.unwrap();
    assert_eq!(cooled.strikes, 1, "after as long again without a ban it is forgotten");
}

#[test]
fn a_report_is_taken_until_ten_minutes_after_the_end_and_never_for_another_incarnation() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let ask = Ask { target: target("shop.example"), ..ask() };
    let lease = desk.lease(&ask);
    desk.release(&lease);
    desk.wait(Duration::from_mins(9));
    let wrong = desk.book.report(&lease.id, &Report { generation: Some(1), ..report(Outcome::Banned) }, desk.now);
    assert_eq!(wrong, Err(NotHeld::GenerationMismatch { held: lease.generation }));
    assert!(desk.report(&lease, Outcome::Banned).unwrap().cooled.is_some());
    desk.wait(MINUTE);
    assert_eq!(desk.report(&lease, Outcome::Banned), Err(NotHeld::Unknown));

    desk.wait(COOLDOWN);
    let lease = desk.lease(&ask);
    desk.offer(Offer { endpoint: Endpoint { port: 3129, ..offer("a").endpoint }, ..offer("a") });
    assert_eq!(desk.report(&lease, Outcome::Banned), Ok(Reported::default()), "the new address did nothing");
    assert_eq!(desk.report(&lease, Outcome::Timeout), Ok(Reported::default()));
    desk.book.remove(&key("a"), &uid("1"), desk.now);
    assert_eq!(desk.report(&lease, Outcome::Banned), Ok(Reported::default()));
}

#[test]
fn a_report_can_release_in_the_same_call() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let lease = desk.lease(&ask());
    let both = Report { release: true, target: target("shop.example"), ..report(Outcome::Banned) };
    let reported = desk.book.report(&lease.id, &both, desk.now).unwrap();
    assert_eq!(reported.ended.map(|ended| ended.gone.how), Some(EndedBy::Released));
    assert_eq!(reported.cooled.map(|cooled| cooled.target), target("shop.example"));
    assert_eq!(desk.book.report(&lease.id, &both, desk.now).unwrap().ended, None);
    desk.lease(&Ask { target: target("other.example"), ..ask() });
}

#[test]
fn the_prober_is_asked_at_most_once_in_five_seconds_a_proxy() {
    let mut desk = desk();
    desk.offer(offer("a"));
    desk.offer(offer("b"));
    let (a, b) = (desk.lease(&ask()), desk.lease(&ask()));
    let mut asked = |lease: &Lease, after: u64| {
        desk.wait(Duration::from_secs(after));
        desk.report(lease, Outcome::Timeout).unwrap().look_now.is_some()
    };
    assert_eq!(
        [asked(&a, 0), asked(&a, 4), asked(&b, 0), asked(&a, 1), asked(&a, 1)],
        [true, false, true, true, false]
    );
}

#[test]
fn withdrawn_means_no_new_lease_and_the_old_one_goes_on() {
    let mut desk = desk();
    desk.offer(Offer { capacity: 2, ..offer("a") });
    let lease = desk.lease(&ask());
    assert!(!desk.book.withdraw(&key("a"), &uid("other"), Absence::Unhealthy, desk.now));
    desk.lease(&ask());
    assert!(desk.book.withdraw(&key("a"), &uid("1"), Absence::Unhealthy, desk.now));
    let expected = Breakdown { matching: 1, unhealthy: 1, ..Breakdown::default() };
    assert_eq!(desk.refused(&ask()), expected, "its leases' ends free nothing");
    assert!(desk.renew(&lease).is_ok());
    assert!(desk.report(&lease, Outcome::Timeout).unwrap().look_now.is_some());
    desk.release(&lease);
    desk.refused(&ask());
    desk.offer(Offer { capacity: 2, ..offer("a") });
    assert!(desk.lease(&ask()).generation > lease.generation);
}

#[test]
fn a_cordoned_proxy_is_never_granted_and_its_holders_are_told() {
    let mut desk = desk();
    desk.offer(Offer { capacity: 2, ..offer("a") });
    let lease = desk.lease(&ask());
    let by = Some(desk.now.mono + MINUTE);
    assert!(!desk.book.cordon(&key("a"), &uid("other"), Some(Cordon { drain_by: None }), desk.now));
    assert!(desk.book.cordon(&key("a"), &uid("1"), Some(Cordon { drain_by: by }), desk.now));
    desk.offer(Offer { capacity: 3, ..offer("a") });
    let expected = Breakdown { matching: 1, healthy: 1, draining: 1, ..Breakdown::default() };
    assert_eq!(desk.refused(&ask()), expected);
    assert_eq!(desk.renew(&lease).unwrap().state, LeaseState::Draining { by });
    let totals = desk.book.totals(desk.now);
    assert_eq!((totals.leases_active, totals.leases_draining), (0, 1));
    desk.book.cordon(&key("a"), &uid("1"), None, desk.now);
    assert_eq!(desk.renew(&lease).unwrap().state, LeaseState::Active);
    assert_eq!(desk.book.totals(desk.now).leases_draining, 0);
    desk.lease(&ask());
}

#[test]
fn removal_ends_the_leases_and_a_recreated_name_inherits_nothing() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let ask = Ask { target: target("shop.example"), ..ask() };
    let lease = desk.lease(&ask);
    desk.report(&lease, Outcome::Banned).unwrap();
    desk.book.cordon(&key("a"), &uid("1"), Some(Cordon { drain_by: None }), desk.now);
    assert_eq!(desk.book.remove(&key("a"), &uid("2"), desk.now), [], "another uid changes nothing");
    let ended = desk.offer(Offer { uid: uid("2"), ..offer("a") });
    let gone = Gone { how: EndedBy::ProxyRemoved, when: desk.now.mono };
    assert_eq!(ended.iter().map(|e| (&e.id, e.gone)).collect::<Vec<_>>(), [(&lease.id, gone)]);
    assert_eq!(desk.renew(&lease), Err(NotHeld::Gone(gone)));
    let fresh = desk.lease(&ask);
    assert_eq!((fresh.generation & 0xffff_ffff, fresh.state), (1, LeaseState::Active));
    assert_eq!(desk.report(&lease, Outcome::Banned), Ok(Reported::default()), "it tells of another Proxy");
    assert_eq!(desk.offer(offer("a")), [], "late news of the old object");
    assert!(desk.renew(&fresh).is_ok());
}

#[test]
fn the_same_object_that_comes_back_goes_on_counting() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let before = desk.lease(&ask());
    assert_eq!(desk.book.remove(&key("a"), &uid("1"), desk.now).len(), 1);
    desk.offer(offer("a"));
    assert!(desk.lease(&ask()).generation > before.generation);
}

#[test]
fn a_complete_list_removes_what_it_does_not_name() {
    let mut desk = desk();
    for name in ["a", "b", "c"] {
        desk.offer(offer(name));
        desk.lease(&ask());
    }
    let ended = desk.book.retain(|key, _| key.name() == "b", desk.now);
    assert_eq!(ended.len(), 2);
    assert_eq!(
        desk.book.totals(desk.now),
        Totals { leases_active: 1, known: 1, offered: 1, remembered: 2, ..Totals::default() }
    );
}

#[test]
fn a_new_address_is_told_to_new_holders_only_and_ends_its_bans() {
    let shop = Ask { target: target("shop.example"), ..ask() };
    for (exit_before, exit_after, is_still_banned) in
        [(None, None, false), (Some("x"), Some("x"), true), (Some("x"), Some("y"), false), (Some("x"), None, false)]
    {
        let mut desk = desk();
        let old = Offer { capacity: 2, exit_ip: exit_before.map(Into::into), ..offer("a") };
        desk.offer(old.clone());
        let lease = desk.lease(&shop);
        desk.report(&lease, Outcome::Banned).unwrap();
        let endpoint = Endpoint { port: 4000, ..old.endpoint.clone() };
        desk.offer(Offer { endpoint, exit_ip: exit_after.map(Into::into), ..old });
        assert_eq!(desk.renew(&lease).unwrap().proxy.endpoint.port, 3128);
        assert_eq!(desk.lease(&ask()).proxy.endpoint.port, 4000);
        desk.release(&lease);
        assert_eq!(desk.book.grant(&shop, desk.now).is_err(), is_still_banned, "{exit_before:?} {exit_after:?}");
    }
}

#[test]
fn the_emptiest_comes_first_and_among_equals_the_one_that_rested_longest() {
    let mut desk = desk();
    for name in ["a", "b", "c"] {
        desk.offer(Offer { capacity: 2, ..offer(name) });
    }
    let ask = Ask { target: target("shop.example"), ..ask() };
    let turns: Vec<String> = (0..6).map(|_| desk.turn(&ask)).collect();
    assert_eq!(turns, ["a", "b", "c", "a", "b", "c"]);
    let held = desk.lease(&ask);
    let turns: Vec<String> = (0..4).map(|_| desk.turn(&ask)).collect();
    assert_eq!((held.proxy.key.name(), turns), ("a", ["b", "c", "b", "c"].map(str::to_owned).to_vec()));
}

#[test]
fn asks_for_other_things_do_not_disturb_the_order() {
    let mut desk = desk();
    for name in ["a", "b"] {
        desk.offer(offer(name));
        desk.offer(Offer { attributes: Arc::new(attributes("tier=home")), ..offer(&format!("{name}-home")) });
    }
    let dc = Ask { selectors: vec![attributes("tier=dc")], ..ask() };
    let home = Ask { selectors: vec![attributes("tier=home")], ..ask() };
    let turns: Vec<String> = (0..2).flat_map(|_| [desk.turn(&dc), desk.turn(&home)]).collect();
    assert_eq!(turns, ["a", "a-home", "b", "b-home"]);
}

#[test]
fn leases_are_spread_over_failure_domains() {
    let mut desk = desk();
    for at in 0..30 {
        let host = ["kvm/one", "kvm/two", "kvm/three"][at / 10];
        desk.offer(Offer { domain: host.into(), ..offer(&format!("p{at}")) });
    }
    let domains = |leases: &[Lease]| {
        let mut counts = std::collections::BTreeMap::new();
        leases.iter().for_each(|lease| *counts.entry(lease.proxy.domain.to_string()).or_insert(0) += 1);
        counts.into_values().collect::<Vec<usize>>()
    };
    let granted = desk.book.grant(&Ask { count: 6, ..ask() }, desk.now).unwrap();
    assert_eq!(domains(&granted.leases), [2, 2, 2], "within one answer");
    let mut leases: Vec<Lease> = (0..12).map(|_| desk.lease(&ask())).collect();
    leases.extend(granted.leases);
    assert_eq!(domains(&leases), [6, 6, 6], "and from one answer to the next");
}

#[test]
fn a_count_is_all_or_nothing_unless_partial_and_prefers_different_proxies() {
    let mut desk = desk();
    desk.offer(Offer { capacity: 3, ..offer("a") });
    desk.offer(offer("b"));
    let some = |count, partial| Ask { count, partial, ..ask() };
    assert_eq!(desk.refused(&some(5, false)).available, 2);
    assert_eq!(desk.book.totals(desk.now).leases_active, 0, "a refusal takes nothing");
    let mut four = desk.names(&some(4, false));
    four.sort();
    assert_eq!(four, ["a", "a", "a", "b"]);
    desk.refused(&some(1, true));
    desk.book.remove(&key("a"), &uid("1"), desk.now);
    desk.offer(Offer { capacity: 2, ..offer("a") });
    assert_eq!(desk.names(&some(5, true)), ["a", "a"]);
}

#[test]
fn the_excluded_are_not_granted_and_are_counted_apart() {
    let mut desk = desk();
    desk.offer(offer("a"));
    desk.offer(offer("b"));
    let ask = Ask { exclude: vec![key("a"), key("nobody")], ..ask() };
    assert_eq!(desk.names(&ask), ["b"]);
    let breakdown = desk.refused(&ask);
    assert_eq!((breakdown.matching, breakdown.healthy, breakdown.excluded, breakdown.leased_out), (2, 1, 1, 1));
}

#[test]
fn explaining_takes_no_lease_and_no_turn() {
    let mut desk = desk();
    desk.offer(offer("a"));
    desk.offer(offer("b"));
    for _ in 0..3 {
        let explained = desk.book.explain(&ask(), desk.now);
        assert_eq!(explained.verdict, Verdict::WouldGrant { selector: 0 });
        assert_eq!((explained.breakdown.available, explained.breakdown.next_free_in), (2, None));
    }
    assert_eq!(desk.names(&ask()), ["a"]);
}

#[test]
fn the_next_free_moment_is_the_first_that_helps() {
    let mut desk = desk();
    desk.offer(offer("banned"));
    desk.offer(Offer { attributes: Arc::new(attributes("tier=home")), ..offer("other") });
    let shop = Ask { target: target("shop.example"), selectors: vec![attributes("tier=dc")], ..ask() };
    let lease = desk.lease(&Ask { ttl: MINUTE * 2, ..shop.clone() });
    desk.lease(&Ask { selectors: vec![attributes("tier=home")], ..ask() });
    assert_eq!(desk.refused(&shop).next_free_in, Some(MINUTE * 2), "not the end of what does not match");
    desk.report(&lease, Outcome::Banned).unwrap();
    assert_eq!(desk.refused(&shop).next_free_in, Some(COOLDOWN), "the end of the lease alone does not help");
    desk.book.renew(&lease.id, MINUTE * 9, None, desk.now).unwrap();
    assert_eq!(desk.refused(&shop).next_free_in, Some(MINUTE * 9));
}

#[test]
fn the_next_free_moment_is_found_behind_many_ends_that_do_not_help() {
    let mut desk = desk();
    for at in 0..100 {
        desk.offer(Offer { attributes: Arc::new(attributes("tier=home")), ..offer(&format!("p{at}")) });
        desk.lease(&Ask { ttl: Duration::from_secs(at + 1), ..ask() });
    }
    desk.offer(offer("a"));
    let dc = Ask { selectors: vec![attributes("tier=dc")], ttl: MINUTE * 20, ..ask() };
    desk.lease(&dc);
    assert_eq!(desk.refused(&dc).next_free_in, Some(MINUTE * 20));
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
            let about = Report { target: target(&format!("s{site}.example")), ..report(Outcome::Banned) };
            desk.book.report(&lease.id, &about, desk.now).unwrap();
        }
    }
    assert_eq!(desk.book.totals(desk.now).cooldowns, 4);
    let breakdown = desk.book.explain(&Ask { target: target("s9.example"), ..ask() }, desk.now).breakdown;
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
