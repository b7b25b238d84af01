//! Handlers that never return: these tests block a real thread, so they run on a real clock.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use super::super::work::{Done, work};
use super::super::{Reply, Restart};
use super::*;

/// A thread that is stuck in a handler until it is let go.
#[derive(Clone, Default)]
struct Block {
    entered: Arc<AtomicBool>,
    free: Arc<AtomicBool>,
}

impl Block {
    fn message(&self, then: impl FnOnce(&mut Ctx<Msg>) + Send + 'static) -> Msg {
        let block = self.clone();
        Msg::run(move |ctx| {
            block.entered.store(true, SeqCst);
            while !block.free.load(SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
            then(ctx);
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_child_stuck_in_a_handler_is_left_behind_counted_and_replaced_with_all_it_had() {
    let log = Log::default();
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (first, first_spec) = leaf(&log, "first");
    let (below, below_spec) = leaf(&log, "below");
    let stuck = Ref::new("stuck");
    let spec = Script::of(&log, "stuck").with([below_spec]).spec::<ONE>(&stuck).stop_within(Duration::from_millis(20));
    let scene = Scene::of::<REST>(&log, [first_spec, spec]).await;
    eventually("all are up", || first.is_up() && stuck.is_up() && below.is_up()).await;

    // Below the one that gets stuck runs an operation; somebody waits for its outcome.
    let outcomes = Log::default();
    let told = outcomes.clone();
    let reply = Reply::new(move |done: Done<()>| told.note(format!("{done:?}")), || Done::Lost);
    let far = std::time::Instant::now() + Duration::from_secs(600);
    let op = work("op", far, std::future::pending(), reply);
    assert!(stuck.cast(Msg::run(move |ctx| assert!(ctx.start(op)))).is_ok());

    let block = Block::default();
    let (extra, extra_spec) = leaf(&log, "extra");
    let refill = leaf(&log, "below").1;
    let note = log.clone();
    let handler = block.message(move |ctx| {
        note.note("woke");
        // What it does now must not disturb its successor.
        note.note(format!("started: {} {}", ctx.start(extra_spec), ctx.start(refill)));
    });
    assert!(stuck.cast(handler).is_ok());
    eventually("it is stuck", || block.entered.load(SeqCst)).await;
    let old = (stuck.cell(), below.cell());
    assert!(first.cast(Msg::panic()).is_ok());
    // The restart of `first` needs `stuck` gone: asked, killed, waited for, left behind.
    eventually("it is replaced", || stuck.is_up() && stuck.cell() != old.0 && below.is_up() && below.cell() != old.1)
        .await;
    let abandoned = scene.env.registry.totals().iter().map(|(_, totals)| totals.abandoned).sum::<u64>();
    assert_eq!(abandoned, 1);
    eventually("the outcome is told although the parent is stuck", || outcomes.0.lock().unwrap().len() == 1).await;
    assert_eq!(outcomes.take(), ["Lost"]);
    assert_eq!(scene.paths(), ["/top", "/top/first", "/top/stuck", "/top/stuck/below"]);
    assert_eq!(scene.env.registry.get("/top/stuck").unwrap().current(), None, "the successor is idle");

    let now = (stuck.cell(), below.cell());
    block.free.store(true, SeqCst);
    eventually("it wakes", || log.0.lock().unwrap().iter().any(|line| line.starts_with("started"))).await;
    assert!(log.take().contains(&"started: false false".to_owned()));
    assert!(!extra.is_up());
    assert!(stuck.cast(Msg::run(|_| {})).is_ok() && below.cast(Msg::run(|_| {})).is_ok());
    assert_eq!((stuck.cell(), below.cell()), now);
    assert_eq!(scene.paths(), ["/top", "/top/first", "/top/stuck", "/top/stuck/below"]);
    assert!(scene.root.stop_within(Duration::from_secs(10)).await);
    assert!(scene.env.registry.is_empty());
    let handle = tokio::runtime::Handle::current();
    eventually("no task is left", || handle.metrics().num_alive_tasks() == tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_stop_of_all_leaves_the_stuck_behind_and_counts_them() {
    let log = Log::default();
    let limit = Duration::from_millis(10);
    let (fixed, spec) = leaf(&log, "fixed");
    let scene = Scene::of::<ONE>(&log, [spec.stop_within(limit)]).await;
    let (dynamic, spec) = leaf(&log, "dynamic");
    assert!(
        scene
            .top
            .cast(Msg::run(move |ctx| assert!(ctx.start(spec.stop_within(limit).restart(Restart::Temporary)))))
            .is_ok()
    );
    eventually("both are up", || fixed.is_up() && dynamic.is_up()).await;
    let (one, two) = (Block::default(), Block::default());
    assert!(fixed.cast(one.message(|_| {})).is_ok() && dynamic.cast(two.message(|_| {})).is_ok());
    eventually("both are stuck", || one.entered.load(SeqCst) && two.entered.load(SeqCst)).await;
    assert!(scene.top.cast(Msg::run(|ctx| ctx.stop())).is_ok());
    let (env, mut root) = (scene.env, scene.root);
    assert_eq!(root.ended().await, Exit::Normal);
    assert_eq!(env.registry.counters("puppet").abandoned.load(SeqCst), 2);
    assert!(env.registry.is_empty());
    one.free.store(true, SeqCst);
    two.free.store(true, SeqCst);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_frees_although_the_future_never_yields() {
    let log = Log::default();
    let scene = Scene::of::<ONE>(&log, []).await;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let reply = Reply::new(move |done| drop(told.send(done)), || Done::Lost);
    let block = Block::default();
    let spinning = {
        let block = block.clone();
        async move {
            block.entered.store(true, SeqCst);
            while !block.free.load(SeqCst) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    };
    let deadline = std::time::Instant::now() + Duration::from_millis(50);
    let op = work("op", deadline, spinning, reply);
    assert!(scene.top.cast(Msg::run(move |ctx| assert!(ctx.start(op)))).is_ok());
    let done = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.expect("freed while it spins");
    assert_eq!(done, Some(Done::Deadline));
    assert!(block.entered.load(SeqCst) && !block.free.load(SeqCst));
    eventually("the operation left the tree", || scene.paths() == ["/top"]).await;
    block.free.store(true, SeqCst);
    assert_eq!(heard.recv().await, None, "and nothing more is told");
}
