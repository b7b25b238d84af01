//! Handlers that never return: these tests block a real thread, so they run on a real clock.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::super::work::{Done, work};
use super::super::{Reply, Restart};
use super::*;

/// A thread that is stuck until it is let go: at the latest when this is dropped, or a failed test would hang.
#[derive(Default)]
struct Block(Gate);

#[derive(Clone, Default)]
struct Gate {
    entered: Arc<AtomicBool>,
    free: Arc<AtomicBool>,
}

impl Gate {
    fn wait(&self) {
        self.entered.store(true, SeqCst);
        while !self.free.load(SeqCst) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Block {
    /// A handler that is stuck, and what it does when it is let go.
    fn message(&self, then: impl FnOnce(&mut Ctx<Msg>) + Send + 'static) -> Msg {
        let gate = self.0.clone();
        Msg::run(move |ctx| {
            gate.wait();
            then(ctx);
        })
    }

    /// A future that is stuck without ever yielding.
    fn future(&self) -> impl Future<Output = ()> + Send + use<> {
        let gate = self.0.clone();
        async move { gate.wait() }
    }

    /// An operation `op` of `top` that is stuck so; what is told of its end.
    fn start_spinning(&self, scene: &Scene, within: Duration) -> UnboundedReceiver<Done<()>> {
        let (told, heard) = unbounded_channel();
        let reply = Reply::new(move |done| drop(told.send(done)), || Done::Lost);
        let op = work("op", std::time::Instant::now() + within, self.future(), reply);
        assert!(scene.top.cast(Msg::run(move |ctx| assert!(ctx.start(op)))).is_ok());
        heard
    }

    fn holds(&self) -> bool {
        self.0.entered.load(SeqCst) && !self.0.free.load(SeqCst)
    }

    fn let_go(&self) {
        self.0.free.store(true, SeqCst);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.let_go();
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
    let scene = Scene::up::<REST>(&log, [first_spec, spec]).await;
    eventually("all are up", || first.is_up() && stuck.is_up() && below.is_up()).await;

    // Below the one that gets stuck runs an operation; somebody waits for its outcome.
    let outcomes = Log::default();
    let told = outcomes.clone();
    let reply = Reply::new(move |done: Done<()>| told.note(format!("{done:?}")), || Done::Lost);
    let far = std::time::Instant::now() + Duration::from_mins(10);
    let begun = Arc::new(AtomicBool::new(false));
    let mark = begun.clone();
    let body = async move {
        mark.store(true, SeqCst);
        std::future::pending::<()>().await;
    };
    let op = work("op", far, body, reply);
    assert!(stuck.cast(Msg::run(move |ctx| assert!(ctx.start(op)))).is_ok());
    // A thread that gets stuck keeps the task that it woke last.
    eventually("it has begun", || begun.load(SeqCst)).await;

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
    eventually("it is stuck", || block.holds()).await;
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
    block.let_go();
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
    let scene = Scene::up::<ONE>(&log, [spec.stop_within(limit)]).await;
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
    eventually("both are stuck", || one.holds() && two.holds()).await;
    assert!(scene.top.cast(Msg::run(super::super::actor::Ctx::stop)).is_ok());
    let (env, mut root) = (scene.env, scene.root);
    assert_eq!(root.ended().await, Exit::Normal);
    assert_eq!(env.registry.counters("puppet").abandoned.load(SeqCst), 2);
    assert!(env.registry.is_empty());
    one.let_go();
    two.let_go();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_frees_although_the_future_never_yields() {
    let log = Log::default();
    let scene = Scene::up::<ONE>(&log, []).await;
    let block = Block::default();
    let mut heard = block.start_spinning(&scene, Duration::from_millis(50));
    let done = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.expect("freed while it spins");
    assert_eq!(done, Some(Done::Deadline));
    assert!(block.holds());
    eventually("the operation left the tree", || scene.paths() == ["/top"]).await;
    block.let_go();
    assert_eq!(heard.recv().await, None, "and nothing more is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_killed_operation_answers_lost_although_its_future_never_yields() {
    let log = Log::default();
    let scene = Scene::up::<ONE>(&log, []).await;
    let block = Block::default();
    let mut heard = block.start_spinning(&scene, Duration::from_mins(10));
    eventually("it spins", || block.holds()).await;
    assert!(scene.top.cast(Msg::run(|ctx| ctx.kill_child(&"op".into()))).is_ok());
    let done = tokio::time::timeout(Duration::from_secs(10), heard.recv()).await.expect("told while it spins");
    assert_eq!(done, Some(Done::Lost));
    block.let_go();
    assert_eq!(heard.recv().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_an_ended_actor_held_is_let_go_although_its_parent_is_busy() {
    let log = Log::default();
    let (ends, ends_spec) = leaf(&log, "ends");
    let (fails, fails_spec) = leaf(&log, "fails");
    let scene = Scene::up::<ONE>(&log, [ends_spec, fails_spec]).await;
    eventually("both are up", || ends.is_up() && fails.is_up()).await;
    let held = Arc::new(());
    for to in [&ends, &fails] {
        assert!(to.cast(Msg::Keep(Box::new(held.clone()))).is_ok());
    }
    let block = Block::default();
    assert!(scene.top.cast(block.message(|_| {})).is_ok());
    eventually("the parent is busy", || block.holds()).await;
    assert!(ends.cast(Msg::run(super::super::actor::Ctx::stop)).is_ok() && fails.cast(Msg::panic()).is_ok());
    eventually("all is let go", || Arc::strong_count(&held) == 1).await;
    block.let_go();
}
