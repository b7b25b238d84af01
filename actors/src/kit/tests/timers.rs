//! Keyed timers: only the firing that is waited for counts.

use std::time::Duration;

use super::super::{Fired, Tell};
use super::*;

type Queue = Arc<Mutex<Vec<Fired<&'static str>>>>;

/// Timers whose firings pile up before anybody accepts them, as in a busy actor's mailbox.
fn timers() -> (Timers<&'static str>, Queue) {
    let fired = Arc::new(Mutex::new(Vec::new()));
    let queue = fired.clone();
    (Timers::new(Tell::new(move |f| queue.lock().unwrap().push(f))), fired)
}

fn accepted(timers: &mut Timers<&'static str>, fired: &Mutex<Vec<Fired<&'static str>>>) -> Vec<Option<&'static str>> {
    std::mem::take(&mut *fired.lock().unwrap()).into_iter().map(|f| timers.accept(f)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_overtaken_or_cancelled_firing_does_not_count() {
    let (mut timers, fired) = timers();
    let second = Duration::from_secs(1);
    timers.arm_in("a", second);
    timers.arm_in("b", second);
    timers.arm_in("c", second);
    assert!(timers.is_armed(&"a"));
    tokio::time::sleep(2 * second).await;
    // All three have fired and wait in the queue.
    assert_eq!(fired.lock().unwrap().len(), 3);
    timers.arm_in("a", second);
    timers.cancel(&"b");
    assert_eq!(accepted(&mut timers, &fired), [None, None, Some("c")]);
    assert!(timers.is_armed(&"a") && !timers.is_armed(&"b") && !timers.is_armed(&"c"));
    tokio::time::sleep(2 * second).await;
    assert_eq!(accepted(&mut timers, &fired), [Some("a")]);
    tokio::time::sleep(10 * second).await;
    assert!(fired.lock().unwrap().is_empty(), "each fires once");
}

#[tokio::test(start_paused = true)]
async fn a_firing_counts_once_and_on_time() {
    let (mut timers, fired) = timers();
    let now = tokio::time::Instant::now();
    timers.arm_at("later", now.into_std() + Duration::from_secs(5));
    timers.arm_at("passed", now.into_std());
    timers.arm_in("never", Duration::MAX);
    settle().await;
    let first = fired.lock().unwrap()[0].clone();
    assert_eq!(accepted(&mut timers, &fired), [Some("passed")]);
    assert_eq!(timers.accept(first), None);
    tokio::time::sleep(Duration::from_millis(4_990)).await;
    assert!(fired.lock().unwrap().is_empty());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(accepted(&mut timers, &fired), [Some("later")]);
    assert!(timers.is_armed(&"never"));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_timers_cancels_them_and_leaves_no_task() {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = alive();
    let (mut timers, fired) = timers();
    for _ in 0..100 {
        timers.arm_in("again", Duration::from_secs(1));
    }
    timers.arm_in("other", Duration::from_secs(1));
    settle().await;
    assert_eq!(alive(), before + 2, "an overtaken timer is no task any more");
    drop(timers);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(fired.lock().unwrap().is_empty());
    assert_eq!(alive(), before);
}

#[tokio::test(start_paused = true)]
async fn the_timers_of_an_actor_die_with_its_incarnation() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    tell(&a, Msg::Arm("old", Duration::from_secs(1))).await;
    tell(&a, Msg::panic()).await;
    tell(&a, Msg::Arm("new", Duration::from_secs(2))).await;
    scene.events();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.events(), "fired Some(\"new\")");
}
