//! The ProviderHealths: one for each entry of the config, whatever others do to them, and what they tell.

use std::time::{Duration, SystemTime};

use egress_actors::domain::error::OpError;
use egress_actors::domain::health::Blame;
use egress_actors::domain::id::ProviderName;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{Condition, ConditionType, Phase, Truth};
use egress_actors::ports::{Event, ProviderHealth, Severity, Subject};
use egress_actors::testkit::world::{Mood, Path, Plan, World, external};

use crate::{MINUTE, SECOND, pass};

fn two() -> Plan {
    Plan { entries: vec![("lab", vec![("hv1", None)]), ("other", vec![("hv2", None)])], ..Plan::default() }
}

fn condition(world: &World, entry: &str, kind: ConditionType) -> Option<Condition> {
    world.store.health(entry)?.conditions.into_iter().find(|condition| condition.kind == kind)
}

fn truth(world: &World, entry: &str, kind: ConditionType) -> Option<Truth> {
    condition(world, entry, kind).map(|condition| condition.truth)
}

/// With this reason about the entry itself.
fn events(world: &World, entry: &str, reason: Reason) -> Vec<Event> {
    let about = Subject::Provider(ProviderName::parse(entry).unwrap());
    world.sink.events().into_iter().filter(|event| event.about == about && event.reason == reason).collect()
}

async fn both_are_told(world: &World) {
    world
        .eventually("both are told", MINUTE, |world| {
            ["lab", "other"].iter().all(|entry| world.store.health(entry).is_some())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn one_that_somebody_deletes_comes_back_within_an_interval_as_it_was() {
    let world = World::start_with(&two());
    both_are_told(&world).await;
    pass(10 * SECOND).await;
    world.store.remove_health("lab");
    world.eventually("it is back", 65 * SECOND, |world| world.store.health("lab").is_some()).await;
    assert_eq!(truth(&world, "lab", ConditionType::Ready), Some(Truth::True));
    assert!(events(&world, "lab", Reason::NameConflict).is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_nothing_changes_but_the_times_of_the_checks() {
    let world = World::start_with(&two());
    both_are_told(&world).await;
    pass(10 * SECOND).await;
    let before = world.store.writes("health");
    pass(4 * MINUTE).await;
    assert_eq!(world.store.writes("health"), before);
    pass(10 * MINUTE).await;
    assert!(world.store.writes("health") - before <= 6, "{}", world.store.writes("health") - before);
}

#[tokio::test(start_paused = true)]
async fn that_of_an_entry_that_is_removed_goes_and_so_does_one_that_was_removed_while_no_operator_ran() {
    let mut world = World::start_with(&two());
    both_are_told(&world).await;
    let entry = world.unconfigure("other");
    world.eventually("it is gone", 2 * SECOND, |world| world.store.health("other").is_none()).await;
    world.configure(entry);
    both_are_told(&world).await;

    world.store.put_health(ProviderHealth {
        entry: ProviderName::parse("of-before").unwrap(),
        kind: "scripted",
        conditions: Vec::new(),
        targets: Vec::new(),
    });
    let world = world.restart().await;
    world.eventually("it is gone", 5 * SECOND, |world| world.store.health("of-before").is_none()).await;
    assert!(world.store.health("lab").is_some() && world.store.health("other").is_some());
}

#[tokio::test(start_paused = true)]
async fn none_is_removed_while_they_cannot_be_listed_or_another_replica_leads() {
    let world = World::start_with(&Plan { identity: Some("a"), ..two() });
    both_are_told(&world).await;
    let left_over = ProviderHealth {
        entry: ProviderName::parse("of-before").unwrap(),
        kind: "scripted",
        conditions: Vec::new(),
        targets: Vec::new(),
    };
    world.store.refuse("healths", Some(OpError::transient(Reason::Unreachable, "away")));
    world.store.put_health(left_over);
    pass(5 * MINUTE).await;
    assert!(world.store.health("of-before").is_some());
    // Another one leads, with another config: its objects are its own business.
    world.claims().usurp("b");
    pass(20 * SECOND).await;
    world.store.refuse("healths", None);
    world.store.remove_health("lab");
    for _ in 0..20 {
        world.claims().usurp("b");
        pass(5 * SECOND).await;
    }
    assert!(world.store.health("of-before").is_some());
    assert!(world.store.health("lab").is_none());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_somebody_elses_is_left_alone_and_told_once_until_it_is_free() {
    let mut world = World::start_with(&two());
    both_are_told(&world).await;
    world.store.put_foreign_health("lab");
    world.eventually("it is told", 65 * SECOND, |world| events(world, "lab", Reason::NameConflict).len() == 1).await;
    assert_eq!(events(&world, "lab", Reason::NameConflict)[0].severity, Severity::Warning);
    let card = world.handles.directory.entry(&ProviderName::parse("lab").unwrap()).unwrap();
    assert!(card.untold.load_full().is_some_and(|why| why.contains("rename the entry")));

    // Neither a verdict that changes nor one that is old is written over it, and nothing is tried all the time.
    let before = world.store.writes("health");
    world.host("hv1").set_for("check", Mood::Fails(OpError::permanent(Reason::PoolNotFound, "no pool")));
    pass(20 * MINUTE).await;
    assert!(world.store.has_foreign_health("lab"));
    assert!(world.store.writes("health") - before <= 6, "{}", world.store.writes("health") - before);
    world.reconfigure("lab", |_| ());
    pass(5 * MINUTE).await;
    assert!(world.store.has_foreign_health("lab"));
    let entry = world.unconfigure("lab");
    pass(5 * MINUTE).await;
    assert!(world.store.has_foreign_health("lab"), "that of an entry that goes is left alone, too");
    world.configure(entry);
    pass(5 * MINUTE).await;
    assert_eq!(events(&world, "lab", Reason::NameConflict).len(), 2, "once for each time it was configured");
    assert!(truth(&world, "other", ConditionType::Ready) == Some(Truth::True));

    world.store.remove_health("lab");
    world.eventually("it is written", 65 * SECOND, |world| world.store.health("lab").is_some()).await;
    assert_eq!(condition(&world, "lab", ConditionType::Ready).unwrap().reason, Reason::PoolNotFound);
}

#[tokio::test(start_paused = true)]
async fn since_when_it_is_so_outlives_a_changed_entry_and_a_restart_and_moves_with_a_flip() {
    let mut world = World::start_with(&two());
    both_are_told(&world).await;
    let since = |world: &World| condition(world, "lab", ConditionType::Ready).unwrap().since;
    let first = since(&world);
    pass(3 * MINUTE).await;
    world.reconfigure("lab", |_| ());
    pass(3 * MINUTE).await;
    let world = world.restart().await;
    let writes = world.store.writes("health");
    pass(3 * MINUTE).await;
    assert!(world.store.writes("health") > writes, "it was written anew");
    assert_eq!(since(&world), first);
    world.host("hv1").set_for("check", Mood::Fails(OpError::permanent(Reason::PoolNotFound, "no pool")));
    world
        .eventually("it flips", 2 * MINUTE, |world| truth(world, "lab", ConditionType::Ready) == Some(Truth::False))
        .await;
    assert!(since(&world) > first);
}

#[tokio::test(start_paused = true)]
async fn a_refused_config_shows_on_every_one_and_clears_with_one_event_each_way() {
    let world = World::start_with(&two());
    both_are_told(&world).await;
    let accepted = ConditionType::ConfigAccepted;
    assert_eq!(truth(&world, "lab", accepted), Some(Truth::True));
    let before = condition(&world, "lab", accepted).unwrap().since;
    pass(MINUTE).await;
    let why = "providers.yaml:2:5: unknown field `colour`";
    for _ in 0..2 {
        world.handles.providers.config_refused(Some(why.to_owned()));
        for entry in ["lab", "other"] {
            world.eventually("it shows", 2 * SECOND, |world| truth(world, entry, accepted) == Some(Truth::False)).await;
        }
    }
    for entry in ["lab", "other"] {
        let condition = condition(&world, entry, accepted).unwrap();
        assert_eq!(condition.reason, Reason::ConfigInvalid);
        assert!(condition.message.contains(why) && condition.message.contains("correct the file"));
        assert!(condition.since > before);
        let told = events(&world, entry, Reason::ConfigInvalid);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].severity == Severity::Warning && told[0].note.contains(why));
    }
    // It outlives a restart of an entry's actor.
    world.curse("/operator/providers/lab", 1);
    pass(2 * MINUTE).await;
    assert_eq!(truth(&world, "lab", accepted), Some(Truth::False));
    world.handles.providers.config_refused(None);
    for entry in ["lab", "other"] {
        world.eventually("it clears", 2 * SECOND, |world| truth(world, entry, accepted) == Some(Truth::True)).await;
        assert_eq!(events(&world, entry, Reason::ConfigInvalid).len(), 1);
        let told = events(&world, entry, Reason::ConfigAccepted);
        assert_eq!((told.len(), told[0].severity), (1, Severity::Normal));
    }
}

#[tokio::test(start_paused = true)]
async fn suspect_probe_targets_are_named_while_verdicts_are_frozen_and_no_longer() {
    let world = World::start_with(&two());
    for n in 0..6 {
        world.store.apply(external(&format!("px-{n}"), &format!("seller-{n}.example")));
    }
    world.eventually("all Ready", 2 * MINUTE, |world| world.store.count_in(Phase::Ready) == 6).await;
    both_are_told(&world).await;
    let suspect = ConditionType::ProbeTargetSuspect;
    assert_eq!(truth(&world, "lab", suspect), Some(Truth::False));
    assert_eq!(condition(&world, "lab", suspect).unwrap().reason, Reason::ProbeTargetTrusted);

    world.prober.set("", Path::Fails(Blame::Target, Reason::TargetTimeout));
    for entry in ["lab", "other"] {
        world.eventually("it shows", 2 * MINUTE, |world| truth(world, entry, suspect) == Some(Truth::True)).await;
        let told = condition(&world, entry, suspect).unwrap();
        assert_eq!(told.reason, Reason::ProbeTargetSuspect);
        assert!(told.message.contains("https://target.example/generate_204"), "{}", told.message);
        assert_eq!(truth(&world, entry, ConditionType::Ready), Some(Truth::True), "the hosts are well all the same");
        let told = events(&world, entry, Reason::ProbeTargetSuspect);
        assert!(told.len() == 1 && told[0].note.contains("https://target.example/generate_204"), "{told:?}");
    }
    let shows = |truth_now| move |world: &World| truth(world, "lab", suspect) == Some(truth_now);
    world.prober.set("", Path::Open);
    world.eventually("it clears", 3 * MINUTE, shows(Truth::False)).await;
    assert_eq!(events(&world, "lab", Reason::ProbeTargetTrusted).len(), 1);

    // The doubt of a pool that crashes goes with it.
    world.prober.set("", Path::Fails(Blame::Target, Reason::TargetTimeout));
    world.eventually("it shows again", 2 * MINUTE, shows(Truth::True)).await;
    world.prober.set("", Path::Open);
    world.curse("/operator/fleet/probes", 1);
    world.eventually("it clears", 3 * MINUTE, shows(Truth::False)).await;
}

/// The clock of the world begins when it does.
#[tokio::test(start_paused = true)]
async fn a_write_that_was_refused_as_anothers_is_not_tried_again_by_itself() {
    let world = World::start_with(&two());
    world.store.refuse("health", Some(OpError::permanent(Reason::NameConflict, "it is another's")));
    pass(2 * SECOND).await;
    let writes = world.store.writes("health");
    pass(50 * SECOND).await;
    assert_eq!(world.store.writes("health"), writes, "since {:?}", SystemTime::now());
    world.store.refuse("health", None);
    let limit = Duration::from_secs(150);
    world.eventually("the next look finds it missing", limit, |world| world.store.health("lab").is_some()).await;
}
