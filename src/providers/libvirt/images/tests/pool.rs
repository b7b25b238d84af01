//! One fetch against one pool, with the faults of source and pool.

use egress_actors::domain::error::Class;
use egress_actors::domain::reason::Reason;
use tokio::time::Instant;

use super::super::fetch::PIECES;
use super::super::scripted::{Fault, ScriptedSource, ScriptedStore, Volume, Wrong};
use super::super::source::PIECE;
use super::*;

const MIB: u64 = 1 << 20;

#[tokio::test(start_paused = true)]
async fn an_image_is_fetched_once_and_found_marked_after_that() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    let want = wanted(Some(digest(&source.content())));
    let base = fetch(store.clone(), source.clone(), want.clone()).await.unwrap();
    assert_eq!((base.name.as_str(), base.path.as_str(), base.virtual_size), (NAME, "/pool/base-debian.raw", 3 * MIB));
    assert_eq!(store.whole(NAME), Some(source.content()));
    assert_eq!(fetch(store.clone(), source.clone(), want).await.unwrap(), base);
    assert_eq!((store.pool().creates, *source.opened.lock().unwrap()), (1, 1));
    let marker = String::from_utf8(store.pool().volumes[MARKER].bytes.clone()).unwrap();
    assert!(!marker.contains("secret"), "{marker}");
    assert!(marker.contains(r#""url":"https://images.example.com/debian.raw""#), "{marker}");
}

#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_stays_small_whatever_the_size() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(48 * MIB));
    store.pool().keep_bytes = false;
    // A slow pool: the source fills whatever room there is.
    store.pool().piece_takes = Duration::from_millis(10);
    store.pool().given = source.given.clone();
    fetch(store.clone(), source, wanted(None)).await.unwrap();
    let most = store.pool().most_outstanding;
    // The channel, and one piece on each side of it.
    assert!(most >= MIB && most <= ((PIECES + 2) * PIECE) as u64, "{most} bytes on their way");
}

#[tokio::test(start_paused = true)]
async fn a_source_or_pool_that_fails_leaves_no_part_behind() {
    let check = async |wrong: Option<Wrong>, fault: Option<Fault>, reason: Reason| {
        let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
        source.wrongs.lock().unwrap().push_back(wrong);
        store.pool().faults.extend(fault);
        let error = fetch(store.clone(), source, wanted(None)).await.unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Transient, reason), "{error}");
        let pool = store.pool();
        assert_eq!(pool.creates, 1);
        assert!(pool.volumes.is_empty(), "{wrong:?} {fault:?} left {:?}", pool.volumes.keys());
    };
    check(Some(Wrong::EndsAt(MIB)), None, Reason::Unreachable).await;
    check(Some(Wrong::SilentAt(MIB)), None, Reason::Timeout).await;
    check(None, Some(Fault::FailAt(MIB)), Reason::APIError).await;
    check(None, Some(Fault::FullAt(MIB)), Reason::StorageFull).await;
    check(None, Some(Fault::StallAt(MIB)), Reason::Timeout).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_with_another_digest_is_refused_and_nothing_stays() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    let error = fetch(store.clone(), source, wanted(Some([1; 32]))).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::ImageDigestMismatch));
    assert!(error.detail.contains(&"01".repeat(32)) && !error.detail.contains("secret"), "{error}");
    assert!(store.pool().volumes.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_whole_base_with_another_digest_is_refused_and_never_deleted() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    fetch(store.clone(), source.clone(), wanted(None)).await.unwrap();
    let mut elsewhere = wanted(None);
    elsewhere.url = "https://other.example.com/debian.raw".parse().unwrap();
    for want in [wanted(Some([1; 32])), elsewhere.clone()] {
        let error = fetch(store.clone(), source.clone(), want).await.unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Permanent, Reason::ImageDigestMismatch));
        assert!(error.detail.contains("another key"), "{error}");
    }
    // From a mirror, with the same digest, it is the same image.
    elsewhere.sha256 = Some(digest(&source.content()));
    fetch(store.clone(), source.clone(), elsewhere).await.unwrap();
    assert_eq!((store.whole(NAME), *source.opened.lock().unwrap()), (Some(source.content()), 1));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_nobody_goes_on_with_is_deleted_after_the_idle_deadline_and_fetched_anew() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    store.pool().volumes.insert(NAME.to_owned(), Volume { written: 5, bytes: vec![1; 5], ..Volume::default() });
    let began = Instant::now();
    fetch(store.clone(), source.clone(), wanted(None)).await.unwrap();
    assert!(began.elapsed() >= LIMITS.idle && began.elapsed() < LIMITS.idle * 2, "{:?}", began.elapsed());
    assert_eq!(store.whole(NAME), Some(source.content()));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_overlays_stand_on_is_neither_used_nor_deleted() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    store.pool().volumes.insert(NAME.to_owned(), Volume::default());
    store.pool().overlays.push(ScriptedStore::path(NAME));
    let error = fetch(store.clone(), source, wanted(None)).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::NameConflict));
    assert!(store.pool().volumes.contains_key(NAME));
}

#[tokio::test(start_paused = true)]
async fn a_marker_without_its_base_makes_no_later_part_whole() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    fetch(store.clone(), source.clone(), wanted(None)).await.unwrap();
    store.pool().volumes.remove(NAME);
    source.wrongs.lock().unwrap().push_back(Some(Wrong::EndsAt(MIB)));
    fetch(store.clone(), source.clone(), wanted(None)).await.unwrap_err();
    assert!(store.pool().volumes.is_empty());
    fetch(store.clone(), source.clone(), wanted(None)).await.unwrap();
    assert_eq!(store.whole(NAME), Some(source.content()));
}

#[tokio::test(start_paused = true)]
async fn trouble_with_the_marker_alone_does_not_cost_another_download() {
    for fault in [Fault::MarkerBroken, Fault::MarkerLost] {
        let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
        store.pool().faults.push_back(fault);
        fetch(store.clone(), source.clone(), wanted(None)).await.unwrap();
        assert_eq!((store.whole(NAME), *source.opened.lock().unwrap()), (Some(source.content()), 1), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_transfer_deletes_its_part() {
    let (store, source) = (ScriptedStore::new(), ScriptedSource::disk(3 * MIB));
    store.pool().faults.push_back(Fault::StallAt(MIB));
    let flights = flights();
    let (pool, from) = (store.clone(), source);
    let begin = move |wanted, cabin| Fetch { store: pool, source: from, wanted, limits: LIMITS, cabin }.run();
    let told = flights.base(site("hv1"), wanted(None), Duration::from_secs(5), begin).await.unwrap_err();
    assert!(told.detail.starts_with("image debian: ") && told.detail.contains("% of 3 MiB"), "{told}");
    assert!(store.pool().volumes.contains_key(NAME));
    flights.stop(Duration::from_secs(60)).await;
    assert!(store.pool().volumes.is_empty());
}
