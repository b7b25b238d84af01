//! What reports do.

use super::*;

#[test]
fn reports_cool_the_pair_or_ask_for_a_look_or_count_for_nobody() {
    let shop = Some(target("shop.example"));
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
            let expected = if cause == "banned" { (1, 0) } else { (0, 1) };
            assert_eq!((breakdown.banned_for_target, breakdown.cooling_down), expected, "{outcome:?}");
            assert_eq!(desk.book.proxy(&key("a"), desk.now).unwrap().cooldown_until, Some(desk.now.mono + COOLDOWN));
        }
        desk.lease(&Ask { target: Some(target("other.example")), ..ask });
    }
}

#[test]
fn cooldowns_double_while_they_are_remembered_and_a_repeated_report_is_one_incident() {
    let mut desk = desk();
    desk.offer(offer("a"));
    let ask = Ask { target: Some(target("shop.example")), ttl: Duration::from_secs(1), ..ask() };
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
    let ask = Ask { target: Some(target("shop.example")), ..ask() };
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
    let both = Report { release: true, target: Some(target("shop.example")), ..report(Outcome::Banned) };
    let reported = desk.book.report(&lease.id, &both, desk.now).unwrap();
    assert_eq!(reported.ended.map(|ended| ended.gone.how), Some(EndedBy::Released));
    assert_eq!(reported.cooled.map(|cooled| cooled.target), Some(target("shop.example")));
    assert_eq!(desk.book.report(&lease.id, &both, desk.now).unwrap().ended, None);
    desk.lease(&Ask { target: Some(target("other.example")), ..ask() });
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
