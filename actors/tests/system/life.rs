//! The usual life of a Proxy.

use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::Phase;
use egress_actors::testkit::world::{World, any, external, managed};

use crate::{MINUTE, pass};

#[tokio::test(start_paused = true)]
async fn a_managed_proxy_goes_from_manifest_to_lease_to_gone() {
    let world = World::start();
    world.store.apply(managed("px-1", "lab"));
    world.ready("px-1").await;
    assert_eq!(world.host("hv1").instances().len(), 1);
    assert!(world.store.desired("px-1").unwrap().finalizer);

    let granted = world.handles.leases.acquire(any()).await.unwrap().unwrap();
    assert_eq!(&*granted.leases[0].proxy.endpoint.host, "px-1.hv1");

    world.store.delete("px-1");
    world.eventually("the object is gone", MINUTE, |world| world.store.is_empty()).await;
    assert_eq!(world.host("hv1").instances(), []);
    world.eventually("the board is empty", MINUTE, |world| world.handles.board.is_empty()).await;
    assert!(world.stop().await);
}

#[tokio::test(start_paused = true)]
async fn an_external_proxy_is_probed_and_leased_and_never_made_or_deleted() {
    let world = World::start();
    world.store.apply(external("bought-1", "proxy.seller.example"));
    world.ready("bought-1").await;
    assert!(world.handles.leases.acquire(any()).await.unwrap().is_ok());
    assert_eq!(world.host("hv1").all_calls("create"), 0);
    world.store.delete("bought-1");
    world.eventually("the object is gone", MINUTE, |world| world.store.is_empty()).await;
    world.eventually("nothing is leased", MINUTE, |world| world.handles.board.is_empty()).await;
    assert_eq!(world.host("hv1").all_calls("delete"), 0);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_never_was_valid_gets_a_warning_once_and_a_status() {
    let world = World::start();
    world.store.reject("px-1", "spec.maxLeases: must be at least 1");
    world.eventually("it is told", MINUTE, |world| world.store.phase("px-1") == Some(Phase::Failed)).await;
    world.store.reject("px-1", "spec.maxLeases: must be at least 1");
    pass(MINUTE).await;
    let warned: Vec<_> = world.sink.about("px-1").into_iter().map(|event| (event.reason, event.note)).collect();
    assert_eq!(warned, [(Reason::SpecInvalid, "spec.maxLeases: must be at least 1".to_owned())]);
}
