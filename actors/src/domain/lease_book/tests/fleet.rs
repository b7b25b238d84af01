//! Proxies come, change and go.

use super::*;

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
fn removal_ends_the_leases_and_a_recreated_name_inherits_nothing_but_its_count() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let ask = Ask { target: Some(target("shop.example")), ..ask() };
    let lease = desk.lease(&ask);
    desk.report(&lease, Outcome::Banned).unwrap();
    desk.book.cordon(&key("a"), &uid("1"), Some(Cordon { drain_by: None }), desk.now);
    assert_eq!(desk.book.remove(&key("a"), &uid("2"), desk.now), [], "another uid changes nothing");
    let ended = desk.offer(Offer { uid: uid("2"), ..offer("a") });
    let gone = Gone { how: EndedBy::ProxyRemoved, when: desk.now.mono };
    assert_eq!(ended.iter().map(|e| (&e.id, e.gone)).collect::<Vec<_>>(), [(&lease.id, gone)]);
    assert_eq!(desk.renew(&lease), Err(NotHeld::Gone(gone)));
    let fresh = desk.lease(&ask);
    assert_eq!((fresh.generation, fresh.state), (lease.generation + 1, LeaseState::Active));
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
fn other_credentials_end_the_leases_and_other_attributes_do_not() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let lease = desk.lease(&ask());
    assert_eq!(desk.offer(Offer { capacity: 5, exit_ip: Some("x".into()), ..offer("a") }), []);
    assert!(desk.renew(&lease).is_ok());
    let credentials = Some(Credentials { username: "crawler".into(), password: Arc::new("changed".to_owned().into()) });
    assert_eq!(desk.offer(Offer { credentials, ..offer("a") }).len(), 1);
    assert!(matches!(desk.renew(&lease), Err(NotHeld::Gone(Gone { how: EndedBy::ProxyReplaced, .. }))));
}

#[test]
fn leases_end_with_the_instance_and_the_proxy_stays_known() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let lease = desk.lease(&ask());
    assert_eq!(desk.book.end_leases(&key("a"), &uid("2"), EndedBy::ProxyRemoved, desk.now), [], "another uid");
    let ended = desk.book.end_leases(&key("a"), &uid("1"), EndedBy::ProxyRemoved, desk.now);
    assert_eq!(ended.iter().map(|e| (&e.id, e.gone.how)).collect::<Vec<_>>(), [(&lease.id, EndedBy::ProxyRemoved)]);
    assert!(matches!(desk.renew(&lease), Err(NotHeld::Gone(_))));
    assert_eq!(desk.book.proxy(&key("a"), desk.now).map(|proxy| proxy.leases), Some(0));
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
fn a_new_address_ends_the_leases_of_the_old_one_and_its_bans_if_targets_see_another_exit() {
    let shop = Ask { target: Some(target("shop.example")), ..ask() };
    for (exit_before, exit_after, is_still_banned) in
        [(None, None, false), (Some("x"), Some("x"), true), (Some("x"), Some("y"), false), (Some("x"), None, false)]
    {
        let mut desk = desk();
        let old = Offer { exit_ip: exit_before.map(Into::into), ..offer("a") };
        desk.offer(old.clone());
        let lease = desk.lease(&shop);
        desk.report(&lease, Outcome::Banned).unwrap();
        let endpoint = Endpoint { port: 4000, ..old.endpoint.clone() };
        let ended = desk.offer(Offer { endpoint, exit_ip: exit_after.map(Into::into), ..old });
        let gone = Gone { how: EndedBy::ProxyReplaced, when: desk.now.mono };
        assert_eq!(ended.iter().map(|e| (&e.id, e.gone)).collect::<Vec<_>>(), [(&lease.id, gone)]);
        assert_eq!(desk.renew(&lease), Err(NotHeld::Gone(gone)), "nobody holds an address that is no more");
        let fresh = desk.lease(&ask());
        assert_eq!(fresh.proxy.endpoint.port, 4000, "and its place is free at once");
        desk.release(&fresh);
        assert_eq!(desk.book.grant(&shop, desk.now).is_err(), is_still_banned, "{exit_before:?} {exit_after:?}");
    }
}
