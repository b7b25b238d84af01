//! Secrets that are missing, appear, and change.

use egress_actors::domain::desired::{CloudInit, Flavor};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{Path, World, external, managed, with_secret};
use secrecy::ExposeSecret;

use crate::{MINUTE, SECOND, is_on_offer, lease, pass, ready_of, release};

fn asks(world: &World, password: &str) {
    world.prober.set("seller.example", Path::Asks("user".to_owned(), password.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_external_proxy_waits_for_its_secret_says_which_and_goes_on_when_it_appears() {
    let world = World::start();
    asks(&world, "right");
    world.store.apply(with_secret(external("bought", "seller.example"), "seller-1"));
    world.eventually("it is told", MINUTE, |world| world.store.status("bought").is_some()).await;
    pass(10 * MINUTE).await;
    let (reason, message) = ready_of(&world, "bought");
    assert_eq!(reason, Reason::SecretNotFound);
    assert!(message.contains("seller-1"), "{message}");
    assert!(!is_on_offer(&world, "bought").await);
    assert_eq!(world.prober.looks("seller.example"), [], "without credentials there is nothing to probe");

    world.secrets.put("seller-1", "user", "right");
    world.store.secret_changed("seller-1");
    world.eventually("Ready", 5 * SECOND, |world| world.store.phase("bought") == Some(Phase::Ready)).await;
    let held = lease(&world, "bought").await;
    assert_eq!(held.proxy.credentials.as_ref().unwrap().password.expose_secret(), "right");
    release(&world, &held).await;
}

#[tokio::test(start_paused = true)]
async fn changed_credentials_are_probed_at_once_and_leased() {
    let world = World::start();
    world.secrets.put("seller-1", "user", "old");
    asks(&world, "old");
    world.store.apply(with_secret(external("bought", "seller.example"), "seller-1"));
    world.ready("bought").await;
    pass(MINUTE).await;

    asks(&world, "new");
    world.secrets.put("seller-1", "user", "new");
    let probes = world.prober.probes();
    world.store.secret_changed("seller-1");
    pass(2 * SECOND).await;
    assert!(world.prober.probes() > probes, "probed at once");
    let held = lease(&world, "bought").await;
    assert_eq!(held.proxy.credentials.as_ref().unwrap().password.expose_secret(), "new");
    pass(10 * MINUTE).await;
    assert_eq!(world.store.phase("bought"), Some(Phase::Ready));
}

#[tokio::test(start_paused = true)]
async fn wrong_new_credentials_are_withdrawn_by_the_first_probe_and_told_and_right_ones_come_back() {
    let world = World::start();
    world.secrets.put("seller-1", "user", "right");
    asks(&world, "right");
    world.store.apply(with_secret(external("bought", "seller.example"), "seller-1"));
    world.ready("bought").await;
    world.secrets.put("seller-1", "user", "wrong");
    world.store.secret_changed("seller-1");
    pass(2 * SECOND).await;
    assert!(!is_on_offer(&world, "bought").await);
    world.eventually("told", 3 * MINUTE, |world| ready_of(world, "bought").1.contains("ProxyAuthRequired")).await;
    world.secrets.put("seller-1", "user", "right");
    world.store.secret_changed("seller-1");
    world.eventually("Ready", 5 * SECOND, |world| world.store.phase("bought") == Some(Phase::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_goes_keeps_what_works_and_says_so() {
    let world = World::start();
    world.secrets.put("seller-1", "user", "right");
    asks(&world, "right");
    world.store.apply(with_secret(external("bought", "seller.example"), "seller-1"));
    world.ready("bought").await;
    world.secrets.remove("seller-1");
    world.store.secret_changed("seller-1");
    pass(10 * MINUTE).await;
    assert_eq!(world.store.phase("bought"), Some(Phase::Ready));
    assert!(is_on_offer(&world, "bought").await);
    let (reason, message) = ready_of(&world, "bought");
    assert_eq!(reason, Reason::Healthy);
    assert!(message.contains("seller-1") && message.contains("credentials read before"), "{message}");
    let warned = world.sink.events().into_iter().filter(|event| event.reason == Reason::SecretNotFound).count();
    assert_eq!(warned, 1, "{:?}", world.sink.events());
}

#[tokio::test(start_paused = true)]
async fn a_serving_proxy_stays_on_offer_when_only_its_cloud_init_secret_loses_the_label() {
    let world = World::start();
    let mut desired = with_secret(managed("px-1", "lab"), "auth");
    if let Flavor::Managed(managed) = &mut desired.flavor {
        managed.cloud_init = Some(CloudInit::Secret { name: "init".into(), key: "user-data".into() });
    }
    world.secrets.put("auth", "user", "right");
    world.secrets.put("init", "", "#cloud-config");
    world.store.apply(desired);
    world.ready("px-1").await;
    world.secrets.unlabel("init");
    world.store.secret_changed("init");
    pass(10 * MINUTE).await;
    assert_eq!(ready_of(&world, "px-1").0, Reason::Healthy);
    assert!(is_on_offer(&world, "px-1").await);

    world.secrets.unlabel("auth");
    world.store.secret_changed("auth");
    pass(MINUTE).await;
    assert_eq!(ready_of(&world, "px-1").0, Reason::SecretNotLabelled, "the other one is another matter");
    assert!(!is_on_offer(&world, "px-1").await);
}

#[tokio::test(start_paused = true)]
async fn a_managed_proxy_is_not_made_before_its_secret_is_there() {
    let world = World::start();
    world.store.apply(with_secret(managed("px-1", "lab"), "auth"));
    pass(5 * MINUTE).await;
    assert_eq!(world.host("hv1").all_calls("create"), 0);
    assert_eq!(ready_of(&world, "px-1").0, Reason::SecretNotFound);
    world.secrets.put("auth", "user", "right");
    world.store.secret_changed("auth");
    world.eventually("Ready", 10 * SECOND, |world| world.store.phase("px-1") == Some(Phase::Ready)).await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_of_another_name_wakes_nobody() {
    let world = World::start();
    world.secrets.put("seller-1", "user", "right");
    world.store.apply(with_secret(external("bought", "seller.example"), "seller-1"));
    world.ready("bought").await;
    let handled =
        |world: &World| world.handles.env.registry.get("/operator/fleet/proxies/proxy/crawl/bought").unwrap().handled();
    let before = handled(&world);
    world.store.secret_changed("another");
    pass(SECOND).await;
    assert_eq!(handled(&world), before);
}
