//! Who is handed out, and what is said when nobody is.

use super::*;

#[test]
fn the_emptiest_comes_first_and_among_equals_the_one_that_rested_longest() {
    let mut desk = desk();
    for name in ["a", "b", "c"] {
        desk.offer(Offer { capacity: 2, ..offer(name) });
    }
    let ask = Ask { target: Some(target("shop.example")), ..ask() };
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
        for lease in leases {
            *counts.entry(lease.proxy.domain.to_string()).or_insert(0) += 1;
        }
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
    let shop = Ask { target: Some(target("shop.example")), selectors: vec![attributes("tier=dc")], ..ask() };
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
