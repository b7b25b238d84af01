//! The sweep for instances of ours without a Proxy: what it deletes, and all that it never does.

use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::id::{OperatorId, ProviderName};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::domain::sweep::{Terms, Verdict};
use egress_actors::domain::target::TargetHealth;
use egress_actors::ports::{Event, SourceEvent};
use egress_actors::sweep::SweepSettings;
use egress_actors::testkit::world::{Lists, Mood, Plan, World, key, managed};

use crate::{HOUR, MINUTE, SECOND, fleet, pass};

const EVERY: Duration = Duration::from_secs(600);

fn settings() -> SweepSettings {
    SweepSettings {
        every: EVERY,
        terms: Terms { min_age: 15 * MINUTE, max_deletes: 10, dry_run: false, namespace: None },
        delete_within: 2 * MINUTE,
        get_within: 20 * SECOND,
    }
}

fn plan() -> Plan {
    Plan { sweep: Some(settings()), ..Plan::default() }
}

fn with(change: impl FnOnce(&mut SweepSettings)) -> Plan {
    let mut settings = settings();
    change(&mut settings);
    Plan { sweep: Some(settings), ..Plan::default() }
}

fn events(world: &World, entry: &str, reason: Reason) -> Vec<Event> {
    world.sink.about_entry(entry).into_iter().filter(|event| event.reason == reason).collect()
}

fn has(world: &World, host: &str, name: &str) -> bool {
    world.host(host).instance_id(name).is_some()
}

#[tokio::test(start_paused = true)]
async fn an_orphan_goes_at_the_second_sweep_and_is_named_and_what_lives_stays() {
    let world = World::start_with(&plan());
    fleet(&world, &["px-1", "px-2"]).await;
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    pass(EVERY / 2).await;
    assert!(has(&world, "hv1", "lost"), "one sweep alone decides nothing");
    world.eventually("it is deleted", 3 * EVERY, |world| !has(world, "hv1", "lost")).await;
    world.eventually("it is told", MINUTE, |world| events(world, "lab", Reason::OrphanDeleted).len() == 1).await;
    let note = events(&world, "lab", Reason::OrphanDeleted).remove(0).note;
    assert!(note.contains("crawl/lost") && note.contains("scripted://lab/hv1/lost") && note.contains("hv1"), "{note}");
    let found = events(&world, "lab", Reason::OrphanFound);
    assert_eq!(found.len(), 2, "told when it is seen and when it is ripe, not at every sweep: {found:?}");
    assert!(found[0].note.contains("crawl/lost") && found[0].note.contains("first time"), "{}", found[0].note);
    assert!(found[1].note.contains("1 to be deleted now"), "{}", found[1].note);
    pass(2 * HOUR).await;
    assert_eq!(world.host("hv1").all_calls("delete"), 1);
    assert_eq!(world.host("hv1").instances().len(), 2);
    let swept = world.handles.directory.entries()[0].swept.load_full();
    assert_eq!((swept.deleted, swept.hosts.values().map(|host| host.orphans).sum::<usize>()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn lists_that_lag_or_are_empty_or_miss_their_half_delete_nothing_that_lives() {
    let world = World::start_with(&with(|sweep| {
        (sweep.every, sweep.terms.min_age) = (20 * SECOND, Duration::ZERO);
    }));
    let names: Vec<String> = (0..12).map(|n| format!("px-{n}")).collect();
    fleet(&world, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let before: Vec<_> = names.iter().map(|name| world.host("hv1").instance_id(name)).collect();
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    let bad = [
        Lists::Late(30 * SECOND),
        Lists::Nothing,
        Lists::Half,
        Lists::All,
        Lists::Nothing,
        Lists::Late(30 * SECOND),
        Lists::Half,
        Lists::Half,
        Lists::All,
    ];
    for (n, lists) in bad.into_iter().enumerate() {
        world.host("hv1").set_lists(lists);
        // Something is always being made, too.
        let name = format!("young-{n}");
        world.store.apply(managed(&name, "lab"));
        pass(45 * SECOND).await;
        assert_eq!(world.host("hv1").calls("delete", &name), 0, "{lists:?}");
        assert_eq!(world.host("hv1").calls("create", &name), 1, "{lists:?}");
    }
    let after: Vec<_> = names.iter().map(|name| world.host("hv1").instance_id(name)).collect();
    assert_eq!(before, after, "the very same instances");
    assert!(!has(&world, "hv1", "lost"), "the sweeps did run");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_deletes_nothing_and_is_told() {
    let world = World::start_with(&plan());
    fleet(&world, &["px-1"]).await;
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    world.host("hv1").set_for("list", Mood::Fails(OpError::transient(Reason::Unreachable, "no route")));
    pass(3 * HOUR).await;
    assert!(has(&world, "hv1", "lost"));
    let swept = world.handles.directory.entries()[0].swept.load_full();
    let trouble = swept.hosts.values().next().and_then(|host| host.trouble.clone());
    assert_eq!(trouble.map(|trouble| trouble.reason), Some(Reason::Unreachable));
}

/// Ten entries; the host of one never answers a list or a check. The others do not notice.
#[tokio::test(start_paused = true)]
async fn of_ten_providers_one_that_never_answers_delays_no_check_and_no_sweep_of_the_nine() {
    const ENTRIES: [(&str, &str); 10] = [
        ("e0", "h0"),
        ("e1", "h1"),
        ("e2", "h2"),
        ("e3", "h3"),
        ("e4", "h4"),
        ("e5", "h5"),
        ("e6", "h6"),
        ("e7", "h7"),
        ("e8", "h8"),
        ("dead", "h9"),
    ];
    /// Sweeps and checks of the nine in three hours, and when each of their orphans went.
    async fn run(hangs: bool) -> (usize, usize, Duration) {
        let entries = ENTRIES.iter().map(|(entry, host)| (*entry, vec![(*host, None)])).collect();
        let world = World::start_with(&Plan { entries, ..plan() });
        if hangs {
            for kind in ["list", "check"] {
                world.host("h9").set_for(kind, Mood::Hangs);
            }
        }
        let start = tokio::time::Instant::now();
        for (entry, host) in ENTRIES {
            world.host(host).plant(&format!("lost-{entry}"), "test", entry, HOUR);
        }
        let nine = || ENTRIES.iter().take(9);
        let mut gone = Duration::ZERO;
        for (entry, host) in nine() {
            world.eventually("its orphan is gone", HOUR, |world| !has(world, host, &format!("lost-{entry}"))).await;
            gone = gone.max(start.elapsed());
        }
        pass(3 * HOUR - start.elapsed()).await;
        let count = |kind| nine().map(|(_, host)| world.host(host).all_calls(kind)).sum::<usize>();
        if hangs {
            let dead = world.handles.directory.entry(&"dead".parse_name()).unwrap();
            let verdicts = dead.verdicts.load_full();
            assert_eq!(verdicts.iter().map(TargetHealth::reason).collect::<Vec<_>>(), [Reason::Timeout]);
            assert!(has(&world, "h9", "lost-dead"), "nothing of it is deleted");
            for (entry, _) in nine() {
                let card = world.handles.directory.entry(&entry.parse_name()).unwrap();
                assert!(card.verdicts.load().iter().all(TargetHealth::is_ready));
            }
        }
        (count("list"), count("check"), gone)
    }
    let (with, without) = (run(true).await, run(false).await);
    // The rhythm is jittered by a twentieth.
    let ratio = |a: usize, b: usize| f64::from(u32::try_from(a).unwrap()) / f64::from(u32::try_from(b).unwrap());
    let (lists, checks) = (ratio(with.0, without.0), ratio(with.1, without.1));
    let gone = with.2.as_secs_f64() / without.2.as_secs_f64();
    println!("with one of ten that hangs: lists x {lists:.3}, checks x {checks:.3}, orphans gone after x {gone:.3}");
    assert!((0.95..1.05).contains(&lists) && (0.95..1.05).contains(&checks), "{lists} {checks}");
    assert!(gone < 1.1, "{gone}");
}

trait ParseName {
    fn parse_name(&self) -> ProviderName;
}

impl ParseName for str {
    fn parse_name(&self) -> ProviderName {
        ProviderName::parse(self).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_orphans_go_under_the_cap_and_delay_nobody() {
    let world = World::start_with(&with(|sweep| sweep.every = MINUTE));
    for n in 0..1000 {
        world.host("hv1").plant(&format!("lost-{n}"), "test", "lab", HOUR);
    }
    let mut last = 1000;
    for _ in 0..5 {
        pass(MINUTE).await;
        let left = world.host("hv1").instances().len();
        // Ten a sweep; the rhythm is jittered by a twentieth, so two of them may fall into one minute.
        assert!(last - left <= 20, "{} in a minute", last - left);
        // The minute may end within a sweep, between a deletion and its answer.
        let told = |world: &World| {
            let swept = world.handles.directory.entries()[0].swept.load_full();
            swept.deleted == u64::try_from(1000 - world.host("hv1").instances().len()).unwrap()
        };
        world.eventually("the progress is told", 5 * SECOND, told).await;
        last = left;
    }
    assert!(1000 - last <= 60, "{} in five minutes", 1000 - last);
    // What somebody wants meanwhile is made as if nothing were.
    let start = tokio::time::Instant::now();
    fleet(&world, &["px-1"]).await;
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    world.eventually("all are gone", 3 * HOUR, |world| world.host("hv1").instances().len() == 1).await;
    let told = |world: &World| events(world, "lab", Reason::OrphanDeleted).len() == 1000;
    world.eventually("each is told", MINUTE, told).await;
    assert_eq!(world.host("hv1").all_calls("delete"), 1000, "each once");
    let found = events(&world, "lab", Reason::OrphanFound);
    assert_eq!(found.len(), 2);
    assert!(found[0].note.contains("1000 instances") && found[0].note.contains("995 more"), "{}", found[0].note);
    assert!(found[1].note.contains("10 to be deleted now, 990 later"), "{}", found[1].note);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_tells_and_deletes_nothing() {
    let world = World::start_with(&with(|sweep| sweep.terms.dry_run = true));
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    pass(2 * HOUR).await;
    assert!(has(&world, "hv1", "lost"));
    let told: Vec<_> = events(&world, "lab", Reason::OrphanFound).into_iter().map(|event| event.note).collect();
    assert!(told.len() == 2 && told[1].contains("1 would be deleted (--gc-dry-run)"), "{told:?}");
    let swept = world.handles.directory.entries()[0].swept.load_full();
    let shown: Vec<_> = swept.hosts.values().flat_map(|host| &host.shown).map(|orphan| orphan.verdict).collect();
    assert_eq!(shown, [Verdict::Ripe]);
}

#[tokio::test(start_paused = true)]
async fn another_operators_instances_are_not_even_seen() {
    let world = World::start_with(&plan());
    world.host("hv1").plant("theirs", "another", "lab", 10 * HOUR);
    pass(3 * HOUR).await;
    assert!(has(&world, "hv1", "theirs"));
    assert!(world.sink.about_entry("lab").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_mark_was_changed_by_hand_is_left_alone() {
    let world = World::start_with(&plan());
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    // The list says one thing, and by the time of the delete the mark says another.
    let owner = OperatorId::parse("somebody-else").unwrap();
    world.host("hv1").set_for("delete", Mood::Fails(OpError::permanent(Reason::NameConflict, "another owner's mark")));
    pass(3 * HOUR).await;
    assert!(has(&world, "hv1", "lost"));
    let told = events(&world, "lab", Reason::OrphanNotDeleted);
    assert!(told[0].note.contains("another owner's mark"), "{}", told[0].note);
    world.host("hv1").set(Mood::Works(SECOND));
    world.host("hv1").remark("lost", |mark| mark.operator = owner);
    let before = world.host("hv1").all_calls("delete");
    pass(3 * HOUR).await;
    assert!(has(&world, "hv1", "lost"));
    assert_eq!(world.host("hv1").all_calls("delete"), before);
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_the_fleet_does_not_know_is_found_by_the_live_look() {
    let world = World::start_with(&plan());
    fleet(&world, &["px-1"]).await;
    // A watch that lies: the object is there.
    let desired = managed("px-1", "lab");
    world.store.say(SourceEvent::Gone { key: key("px-1"), uid: desired.uid.clone() });
    pass(5 * HOUR).await;
    assert!(world.store.exists("px-1") && has(&world, "hv1", "px-1"));
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_does_not_answer_keeps_every_orphan() {
    let world = World::start_with(&plan());
    world.store.refuse("owner", Some(OpError::transient(Reason::Unreachable, "the API server is away")));
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    pass(3 * HOUR).await;
    assert!(has(&world, "hv1", "lost"));
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    world.store.refuse("owner", None);
    world.eventually("it goes then", HOUR, |world| !has(world, "hv1", "lost")).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_swept_before_all_proxies_are_known_and_a_fleet_that_begins_anew_counts_anew() {
    let world = World::start_with(&plan());
    fleet(&world, &["px-1"]).await;
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    pass(EVERY / 2).await;
    // From now on the fleet knows nobody.
    world.store.hold_lists();
    world.curse("/operator/fleet/leases", 1);
    let lists = world.host("hv1").all_calls("list");
    pass(5 * HOUR).await;
    let lists = world.host("hv1").all_calls("list") - lists;
    assert!(lists <= 5 * 3600 / 15 + 10, "{lists} lists: no more than the host's own");
    let swept = world.handles.providers.directory().entries()[0].swept.load_full();
    let waits = swept.hosts.values().next().and_then(|host| host.trouble.clone()).expect("it says what it waits for");
    assert!(waits.detail.contains("all Proxies"), "{waits}");
    assert!(has(&world, "hv1", "px-1") && has(&world, "hv1", "lost"));
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
    world.store.release_lists();
    pass(2 * MINUTE).await;
    assert!(has(&world, "hv1", "lost"), "the first sweep of this fleet decides nothing");
    world.eventually("the second does", 2 * EVERY, |world| !has(world, "hv1", "lost")).await;
    assert!(has(&world, "hv1", "px-1"));
}

#[tokio::test(start_paused = true)]
async fn an_entry_with_a_new_name_makes_no_orphans_and_inherits_those_that_are() {
    let mut world = World::start_with(&plan());
    fleet(&world, &["px-1"]).await;
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    let mut renamed = world.unconfigure("lab");
    renamed.name = "renamed".parse_name();
    renamed.revision += 1;
    world.configure(renamed);
    world.eventually("the orphan goes", 5 * EVERY, |world| !has(world, "hv1", "lost")).await;
    pass(HOUR).await;
    assert!(has(&world, "hv1", "px-1"), "its Proxy lives, and waits for its provider");
    assert_eq!(events(&world, "renamed", Reason::OrphanDeleted).len(), 1);
    // The Proxy goes without its provider; what it left is found.
    world.store.delete("px-1");
    world.eventually("the object goes", MINUTE, |world| !world.store.exists("px-1")).await;
    assert!(!world.sink.acked_about("px-1").is_empty(), "what may be left was told");
    world.eventually("nothing is left", 5 * EVERY, |world| !has(world, "hv1", "px-1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_hangs_or_fails_is_told_and_tried_again_and_the_next_one_has_its_turn() {
    let world = World::start_with(&plan());
    world.host("hv1").plant("lost-1", "test", "lab", 2 * HOUR);
    world.host("hv1").plant("lost-2", "test", "lab", HOUR);
    world.host("hv1").set_for("delete", Mood::Hangs);
    world
        .eventually("both are told", 3 * EVERY, |world| events(world, "lab", Reason::OrphanNotDeleted).len() == 2)
        .await;
    world.host("hv1").set(Mood::Works(SECOND));
    world.eventually("both go", 3 * EVERY, |world| world.host("hv1").instances().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn orphans_that_cannot_be_deleted_do_not_use_up_the_cap_for_those_that_can() {
    let world = World::start_with(&with(|sweep| sweep.terms.max_deletes = 2));
    for n in 0..4 {
        // The oldest ones cannot be deleted.
        world.host("hv1").plant(&format!("stuck-{n}"), "test", "lab", 10 * HOUR);
        world.host("hv1").plant(&format!("lost-{n}"), "test", "lab", HOUR);
    }
    world.host("hv1").keep("stuck");
    world.eventually("the others are gone", 12 * EVERY, |world| world.host("hv1").instances().len() == 4).await;
    assert!((0..4).all(|n| has(&world, "hv1", &format!("stuck-{n}"))));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_the_backend_does_in_parts_is_asked_for_until_nothing_is_left() {
    let world = World::start_with(&plan());
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    world.host("hv1").set(Mood::InParts(SECOND));
    world
        .eventually("it is told as deleted", 3 * EVERY, |world| !events(world, "lab", Reason::OrphanDeleted).is_empty())
        .await;
    assert_eq!((world.host("hv1").all_calls("delete"), world.host("hv1").instances().len()), (2, 0));
    assert!(events(&world, "lab", Reason::OrphanNotDeleted).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_keeps_crashing_is_parked_and_everything_else_goes_on() {
    let world = World::start_with(&plan());
    world.curse("/operator/providers/lab/sweep", u32::MAX);
    pass(HOUR).await;
    fleet(&world, &["px-1"]).await;
    assert_eq!(world.restarts("/operator/providers/lab/host/hv1"), Some(0));
    assert_eq!(world.store.phase("px-1"), Some(Phase::Ready));
    world.host("hv1").plant("lost", "test", "lab", HOUR);
    world.curse("/operator/providers/lab/sweep", 0);
    world.eventually("it is swept again", 4 * EVERY, |world| !has(world, "hv1", "lost")).await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_sweeps_nothing_and_the_next_leader_sweeps_anew() {
    let one = World::start_with(&Plan { identity: Some("one"), ..plan() });
    one.eventually("it leads", MINUTE, |world| world.handles.claim.epoch().is_some()).await;
    one.host("hv1").plant("lost", "test", "lab", HOUR);
    let two = one.beside("two");
    let lists = |world: &World| world.host("hv1").all_calls("list");
    pass(EVERY / 2).await;
    assert!(has(&one, "hv1", "lost"));
    one.kill().await;
    let before = lists(&two);
    two.eventually("it leads", MINUTE, |world| world.handles.claim.epoch().is_some()).await;
    pass(2 * MINUTE).await;
    assert!(lists(&two) > before && has(&two, "hv1", "lost"), "its own first sweep decides nothing");
    assert_eq!(events(&two, "lab", Reason::OrphanFound).len(), 1);
    two.eventually("its second does", 2 * EVERY, |world| !has(world, "hv1", "lost")).await;
}
