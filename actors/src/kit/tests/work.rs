//! Operations: exactly one outcome, whatever races.

use std::future::pending;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::Reply;
use super::super::work::{Done, work};
use super::*;

/// A reply and where it arrives; the channel closes once it was used up.
fn owed() -> (Reply<Done<u8>>, UnboundedReceiver<Done<u8>>) {
    let (told, heard) = unbounded_channel();
    (Reply::new(move |done| drop(told.send(done)), || Done::Lost), heard)
}

fn in_secs(seconds: u64) -> Instant {
    tokio::time::Instant::now().into_std() + Duration::from_secs(seconds)
}

/// Tells when it is dropped.
struct Mark(Log);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.note("dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_ends_as_finished_late_panicked_or_lost() {
    type Act = fn(&mut Ctx<Msg>);
    type Body = fn() -> futures::future::BoxFuture<'static, u8>;
    let never: Body = || Box::pin(pending());
    let rows: [(Body, Act, Done<u8>, &str); 6] = [
        (|| Box::pin(async { 7 }), |_| {}, Done::Finished(7), "normal"),
        (|| Box::pin(async { panic!("bad") }), |_| {}, Done::Panicked("bad".into()), "normal"),
        (never, |_| {}, Done::Deadline, "normal"),
        (never, |ctx| ctx.kill_child(&"op".into()), Done::Lost, "asked"),
        (never, |ctx| ctx.stop_child(&"op".into()), Done::Lost, "asked"),
        (never, |_| panic!("the parent"), Done::Lost, ""),
    ];
    for (row, (body, act, expected, end)) in rows.into_iter().enumerate() {
        let log = Log::default();
        let mid = Ref::new("mid");
        let scene = Scene::of::<ONE>(&log, [Script::of(&log, "mid").spec::<ONE>(&mid)]).await;
        let (reply, mut heard) = owed();
        let mark = Mark(log.clone());
        let op = work(
            "op",
            in_secs(30),
            async move {
                let _mark = mark;
                body().await
            },
            reply,
        );
        tell(&mid, Msg::run(move |ctx| assert!(ctx.start(op)))).await;
        tell(&mid, Msg::run(act)).await;
        assert_eq!(heard.recv().await.as_ref(), Some(&expected), "row {row}");
        settle().await;
        assert_eq!(heard.recv().await, None, "row {row}: exactly one");
        let events = scene.events();
        assert!(events.contains("dropped"), "row {row}: the future is gone, {events}");
        assert!(end.is_empty() || events.contains(&format!("mid hears: op {end}")), "row {row}: {events}");
        assert_eq!(scene.paths(), ["/top", "/top/mid"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_never_began_answers_lost() {
    let log = Log::default();
    let scene = Scene::of::<ONE>(&log, []).await;
    // Its id is taken.
    let (first, mut first_heard) = owed();
    let (second, mut second_heard) = owed();
    let (a, b) = (work("op", in_secs(30), pending(), first), work("op", in_secs(30), pending(), second));
    scene.have(move |ctx| assert!(ctx.start(a) && !ctx.start(b))).await;
    assert_eq!(second_heard.recv().await, Some(Done::Lost));
    scene.have(|ctx| ctx.kill_child(&"op".into())).await;
    assert_eq!(first_heard.recv().await, Some(Done::Lost));
    // It is killed before it runs.
    let (reply, mut heard) = owed();
    let op = work("op", in_secs(30), async { unreachable!("it must not run") }, reply);
    scene
        .have(move |ctx| {
            assert!(ctx.start(op));
            ctx.kill_child(&"op".into());
        })
        .await;
    assert_eq!((heard.recv().await, heard.recv().await), (Some(Done::Lost), None));
    // Nobody starts it.
    let (reply, mut heard) = owed();
    drop(work("op", in_secs(30), pending(), reply));
    assert_eq!((heard.recv().await, heard.recv().await), (Some(Done::Lost), None));
}

#[tokio::test(start_paused = true)]
async fn a_passed_deadline_ends_it_at_once() {
    let log = Log::default();
    let scene = Scene::of::<ONE>(&log, []).await;
    let (reply, mut heard) = owed();
    let before = tokio::time::Instant::now();
    let op = work("op", before.into_std(), pending(), reply);
    scene.have(move |ctx| assert!(ctx.start(op))).await;
    assert_eq!(heard.recv().await, Some(Done::Deadline));
    assert!(before.elapsed() < Duration::from_millis(10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_races_there_is_exactly_one_outcome() {
    let log = Log::default();
    let handle = tokio::runtime::Handle::current();
    let tasks = handle.metrics().num_alive_tasks();
    let mid = Ref::new("mid");
    let scene =
        Scene::up::<ONE>(&log, [Script::of(&log, "mid").spec::<PARK>(&mid).restart(super::super::Restart::Temporary)])
            .await;
    let mut seen = std::collections::BTreeMap::<String, u32>::new();
    for round in 0..400_u32 {
        eventually("mid is up", || mid.is_up()).await;
        let (end, killer, parent_dies) = {
            let mut rng = rand::rng();
            (rng.random_range(0..300), rng.random_range(0..600_u64), rng.random_ratio(1, 8))
        };
        let (reply, mut heard) = owed();
        let begun = tokio::time::Instant::now();
        let body = async move {
            tokio::time::sleep(Duration::from_micros(end)).await;
            assert!(!round.is_multiple_of(5), "bad luck");
            1
        };
        let op = work("op", begun.into_std() + Duration::from_millis(1), body, reply);
        assert!(mid.cast(Msg::run(move |ctx| assert!(ctx.start(op)))).is_ok());
        let target = mid.clone();
        let killing = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_micros(killer)).await;
            let message = if parent_dies { Msg::panic() } else { Msg::run(|ctx| ctx.kill_child(&"op".into())) };
            assert!(target.cast(message).is_ok());
        });
        let first = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.expect("one outcome").unwrap();
        killing.await.unwrap();
        assert_eq!(
            tokio::time::timeout(Duration::from_secs(10), heard.recv()).await,
            Ok(None),
            "round {round}: only one"
        );
        *seen.entry(format!("{first:?}")).or_default() += 1;
        if parent_dies {
            eventually("mid has ended", || scene.env.registry.get("/top/mid").is_none()).await;
            let again = Script::of(&log, "mid").spec::<PARK>(&mid).restart(super::super::Restart::Temporary);
            assert!(scene.top.cast(Msg::run(move |ctx| assert!(ctx.start(again)))).is_ok());
        } else {
            eventually("the place is free", || scene.env.registry.get("/top/mid/op").is_none()).await;
        }
    }
    assert!(seen.contains_key("Finished(1)") && seen.contains_key("Lost"), "the races were races: {seen:?}");
    assert!(scene.root.stop_within(Duration::from_secs(10)).await);
    eventually("no task is left", || handle.metrics().num_alive_tasks() == tasks).await;
}
