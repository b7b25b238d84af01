//! A deletion can finish from every state, and what is given up is told before the finalizer goes.

use std::time::Duration;

use egress_actors::domain::error::OpError;
use egress_actors::domain::lease_book::{EndedBy, Gone, LeaseState, NotHeld};
use egress_actors::domain::plan::Settings;
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::proxy::Deadlines;
use egress_actors::testkit::world::{Mood, Plan, World, managed, on, with_secret};

use crate::{HOUR, MINUTE, SECOND, fleet, is_on_offer, lease, pass, ready_of, release, renew};

async fn gone(world: &World, name: &str, within: Duration) {
    let what = format!("{name} is gone");
    world.eventually(&what, within, |world| !world.store.exists(name)).await;
    world.eventually("the board forgot it", MINUTE, |world| world.handles.board.is_empty()).await;
}

/// The Warning that says what may be left was acknowledged.
fn given_up(world: &World, name: &str, reason: Reason, names: &[&str]) {
    let acked = world.sink.acked_about(name);
    assert_eq!(acked.len(), 1, "{acked:?}");
    assert_eq!(acked[0].reason, reason);
    for part in names {
        assert!(acked[0].note.contains(part), "`{part}` is not in `{}`", acked[0].note);
    }
}

#[tokio::test(start_paused = true)]
async fn with_its_provider_removed_from_the_config() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    let id = world.host("hv1").instance_id("px-1").unwrap();
    world.unconfigure("lab");
    world
        .eventually("it is told", MINUTE, |world| {
            ready_of(world, "px-1").0 != Reason::Healthy || world.store.phase("px-1") == Some(Phase::Ready)
        })
        .await;
    world.store.delete("px-1");
    gone(&world, "px-1", MINUTE).await;
    given_up(&world, "px-1", Reason::ProviderNotConfigured, &[&id, "hv1", "lab"]);
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
}

#[tokio::test(start_paused = true)]
async fn with_its_provider_removed_while_the_deletion_hangs() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    world.host("hv1").set_for("delete", Mood::Hangs);
    world.store.delete("px-1");
    world.eventually("it is being deleted", MINUTE, |world| world.host("hv1").all_calls("delete") == 1).await;
    world.unconfigure("lab");
    gone(&world, "px-1", MINUTE).await;
    given_up(&world, "px-1", Reason::ProviderNotConfigured, &["hv1"]);
}

#[tokio::test(start_paused = true)]
async fn with_its_host_removed_from_the_entry() {
    let mut world =
        World::start_with(&Plan { entries: vec![("lab", vec![("hv1", None), ("hv2", None)])], ..Plan::default() });
    world.store.apply(on(managed("px-1", "lab"), "hv1"));
    world.ready("px-1").await;
    world.reconfigure("lab", |entry| entry.hosts.retain(|host| host.name.as_str() == "hv2"));
    world.store.delete("px-1");
    gone(&world, "px-1", MINUTE).await;
    given_up(&world, "px-1", Reason::HostNotConfigured, &["hv1"]);
}

#[tokio::test(start_paused = true)]
async fn with_its_entry_led_to_another_backend() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    let id = world.host("hv1").instance_id("px-1").unwrap();
    // Whoever answers there now does not know it.
    world.reconfigure("lab", |entry| entry.hosts[0].ids = "scripted://lab/hv1/elsewhere/".into());
    world.host("hv1").set(Mood::Fails(OpError::not_found("no such instance")));
    world.eventually("it is told", MINUTE, |world| ready_of(world, "px-1").1.contains("another backend")).await;
    pass(HOUR).await;
    assert_eq!(world.store.phase("px-1"), Some(Phase::Ready), "it serves on");
    assert_eq!((world.host("hv1").all_calls("create"), world.host("hv1").all_calls("delete")), (1, 0));
    world.store.delete("px-1");
    gone(&world, "px-1", MINUTE).await;
    given_up(&world, "px-1", Reason::HostNotConfigured, &[&id, "another backend"]);
}

#[tokio::test(start_paused = true)]
async fn before_the_first_check_of_its_host_which_never_answers() {
    let world = World::start();
    world.host("hv1").set(Mood::Hangs);
    world.store.apply(managed("px-1", "lab"));
    pass(5 * SECOND).await;
    let desired = world.store.desired("px-1").unwrap();
    assert_eq!((desired.host, desired.finalizer), (None, false), "nobody knows yet whether that host can be had");
    world.eventually("it is told", MINUTE, |world| ready_of(world, "px-1").0 == Reason::Timeout).await;
    world.store.delete("px-1");
    gone(&world, "px-1", SECOND).await;
    assert_eq!(world.host("hv1").all_calls("create"), 0);
}

#[tokio::test(start_paused = true)]
async fn with_a_create_in_flight() {
    let world = World::start();
    world.host("hv1").set_for("create", Mood::Late(20 * SECOND));
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it is being made", MINUTE, |world| world.host("hv1").all_calls("create") == 1).await;
    world.store.delete("px-1");
    pass(2 * SECOND).await;
    world.host("hv1").set_for("create", Mood::Works(SECOND));
    gone(&world, "px-1", 5 * MINUTE).await;
    pass(MINUTE).await;
    assert!(world.sink.acked_about("px-1").is_empty());
    assert_eq!(world.host("hv1").all_calls("create"), 1);
}

#[tokio::test(start_paused = true)]
async fn with_a_create_that_lands_within_the_time_that_the_provider_states() {
    let mut world = World::start();
    // The provider says how late an effect may be; a deletion waits that long before it believes its eyes.
    world.reconfigure("lab", |entry| entry.settle = 30 * SECOND);
    world.host("hv1").set_for("create", Mood::Late(20 * SECOND));
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it is being made", MINUTE, |world| world.host("hv1").all_calls("create") == 1).await;
    world.store.delete("px-1");
    gone(&world, "px-1", 5 * MINUTE).await;
    pass(MINUTE).await;
    assert!(world.host("hv1").instances().is_empty(), "nothing came late and stayed");
}

#[tokio::test(start_paused = true)]
async fn with_a_permanent_error_of_every_look() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.host("hv1").set_for("get", Mood::Fails(OpError::permanent(Reason::APIError, "no")));
    world.store.delete("px-1");
    pass(MINUTE).await;
    let (reason, message) = ready_of(&world, "px-1");
    assert_eq!(reason, Reason::DeletionBlocked);
    assert!(message.contains("skip-cleanup"), "{message}");
    assert!(world.host("hv1").all_calls("delete") >= 1, "the delete is called though no look can answer");
    assert!(world.host("hv1").instances().is_empty());
    gone(&world, "px-1", 5 * MINUTE).await;
    given_up(&world, "px-1", Reason::EffectUnknown, &["hv1", "APIError"]);
}

#[tokio::test(start_paused = true)]
async fn with_a_permanent_error_of_the_create() {
    let world = World::start();
    world.host("hv1").set_for("create", Mood::Fails(OpError::permanent(Reason::QuotaExceeded, "no more")));
    world.store.apply(managed("px-1", "lab"));
    world.eventually("it failed", MINUTE, |world| world.store.phase("px-1") == Some(Phase::Failed)).await;
    world.store.delete("px-1");
    gone(&world, "px-1", MINUTE).await;
    assert!(world.sink.acked_about("px-1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn while_paused() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.store.respec("px-1", |desired| desired.paused = true);
    pass(MINUTE).await;
    world.store.delete("px-1");
    gone(&world, "px-1", MINUTE).await;
    assert!(world.host("hv1").instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn with_its_secret_missing() {
    let world = World::start();
    world.store.apply(with_secret(managed("px-1", "lab"), "nowhere"));
    world
        .eventually("it is told", MINUTE, |world| {
            world.store.status("px-1").is_some() && ready_of(world, "px-1").0 == Reason::SecretNotFound
        })
        .await;
    world.store.delete("px-1");
    gone(&world, "px-1", MINUTE).await;
}

#[tokio::test(start_paused = true)]
async fn with_skip_cleanup_set_before() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let id = world.host("hv1").instance_id("px-1").unwrap();
    world.host("hv1").set(Mood::Hangs);
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    pass(MINUTE).await;
    world.store.delete("px-1");
    gone(&world, "px-1", 10 * SECOND).await;
    given_up(&world, "px-1", Reason::CleanupSkipped, &[&id, "hv1"]);
}

#[tokio::test(start_paused = true)]
async fn with_skip_cleanup_set_while_the_delete_hangs() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    world.host("hv1").set(Mood::Hangs);
    world.store.delete("px-1");
    pass(10 * MINUTE).await;
    assert!(world.store.exists("px-1"));
    assert_eq!(ready_of(&world, "px-1").0, Reason::DeletionBlocked);
    world.store.edit("px-1", |desired| desired.annotations.skip_cleanup = true);
    gone(&world, "px-1", 10 * SECOND).await;
    given_up(&world, "px-1", Reason::CleanupSkipped, &["hv1"]);
}

#[tokio::test(start_paused = true)]
async fn with_an_event_sink_that_refuses_the_warning() {
    let mut world = World::start();
    fleet(&world, &["px-1"]).await;
    world.sink.refuse(Some(OpError::transient(Reason::APIError, "no events today")));
    world.unconfigure("lab");
    world.store.delete("px-1");
    gone(&world, "px-1", 5 * MINUTE).await;
    assert!(world.sink.acked_about("px-1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn with_a_host_that_hangs_and_comes_back() {
    let deadlines = Deadlines { get: 2 * SECOND, create: 10 * SECOND, delete: 5 * SECOND };
    let world = World::start_with(&Plan { deadlines, ..Plan::default() });
    fleet(&world, &["px-1"]).await;
    world.host("hv1").set(Mood::Hangs);
    world.store.delete("px-1");
    pass(HOUR).await;
    world.host("hv1").set(Mood::Works(SECOND));
    gone(&world, "px-1", 5 * MINUTE).await;
    assert!(world.host("hv1").instances().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waits_for_leases_for_the_drain_timeout_and_no_longer() {
    let life = Settings { drain_timeout: 2 * MINUTE, ..Settings::default() };
    let world = World::start_with(&Plan { life, ..Plan::default() });
    fleet(&world, &["px-1", "px-2", "px-3"]).await;
    let (first, second) = (lease(&world, "px-1").await, lease(&world, "px-2").await);
    for name in ["px-1", "px-2", "px-3"] {
        world.store.delete(name);
    }
    world.eventually("nobody holds it", 10 * SECOND, |world| !world.store.exists("px-3")).await;
    assert!(!is_on_offer(&world, "px-1").await, "no new grant");
    pass(MINUTE).await;
    assert!(world.store.exists("px-1") && world.store.exists("px-2"));
    let told = renew(&world, &second).await.expect("it is waited for").state;
    assert!(matches!(told, LeaseState::Draining { by: Some(_) }), "{told:?}");
    release(&world, &first).await;
    world.eventually("its lease has ended", 10 * SECOND, |world| !world.store.exists("px-1")).await;
    assert!(world.store.exists("px-2"));
    world.eventually("it waited long enough", 80 * SECOND, |world| !world.store.exists("px-2")).await;
    assert!(!release(&world, &second).await, "it went with its Proxy");
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_not_renewed_once_the_deletion_of_its_proxy_has_begun_though_the_host_hangs() {
    let world = World::start();
    fleet(&world, &["px-1"]).await;
    let held = lease(&world, "px-1").await;
    world.host("hv1").set(Mood::Hangs);
    world.store.delete("px-1");
    pass(SECOND).await;
    assert!(world.store.exists("px-1"));
    let gone = renew(&world, &held).await;
    assert!(matches!(gone, Err(NotHeld::Gone(Gone { how: EndedBy::ProxyRemoved, .. }))), "{gone:?}");
}
