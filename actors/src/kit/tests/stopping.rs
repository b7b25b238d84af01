//! Ends in order: reverse, with limits, nobody forgotten.

use std::time::Duration;

use super::super::Restart;
use super::*;

const NEVER: Duration = Duration::from_secs(1_000_000);

#[tokio::test(start_paused = true)]
async fn a_stop_goes_from_the_last_to_the_first_and_dynamic_ones_first_together() {
    let log = Log::default();
    let second = Duration::from_secs(1);
    let slow = |name: &str| Script::of(&log, name).lingering(second).spec::<ONE>(&Ref::new(name));
    let scene = Scene::of::<ONE>(&log, [slow("a"), slow("b")]).await;
    let (x, y) = (slow("x"), slow("y").restart(Restart::Temporary));
    scene.have(move |ctx| assert!(ctx.start(x) && ctx.start(y))).await;
    scene.events();
    let before = tokio::time::Instant::now();
    assert!(scene.root.stop_within(Duration::from_mins(1)).await);
    assert_eq!(before.elapsed().as_secs(), 3, "x and y share one second");
    assert_eq!(
        log.take().join(", "),
        "stop top, stop x, stop y, lingered x, lingered y, stop b, lingered b, stop a, lingered a"
    );
    assert!(scene.env.registry.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_parent_lingers_before_its_children_are_stopped() {
    let log = Log::default();
    let (_a, a_spec) = leaf(&log, "a");
    let mid = Script::of(&log, "mid").lingering(Duration::from_secs(1)).with([a_spec]).spec::<ONE>(&Ref::new("mid"));
    let scene = Scene::of::<ONE>(&log, [mid]).await;
    scene.events();
    scene.have(|ctx| ctx.stop_child(&"mid".into())).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(scene.events(), "stop mid, lingered mid, stop a, top hears: mid asked");
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_stopping_is_stuck_is_killed_at_its_limit() {
    let log = Log::default();
    let stuck = |name: &str| {
        let spec = Script::of(&log, name).lingering(NEVER).spec::<ONE>(&Ref::new(name));
        spec.stop_within(Duration::from_secs(3))
    };
    let scene = Scene::of::<ONE>(&log, [stuck("a"), stuck("b")]).await;
    scene.have(|ctx| ctx.stop_child(&"a".into())).await;
    let before = tokio::time::Instant::now();
    while scene.env.registry.get("/top/a").is_some() {
        settle().await;
    }
    assert_eq!(before.elapsed().as_secs(), 3);
    assert!(scene.root.stop_within(Duration::from_millis(3_500)).await, "b is cut at its own limit");
    assert!(scene.env.registry.is_empty());
    assert_eq!(scene.env.registry.counters("puppet").abandoned.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_parent_killed_while_it_stops_its_children_leaves_nothing_behind() {
    let log = Log::default();
    let slow = |name: &str| {
        let spec = Script::of(&log, name).lingering(NEVER).spec::<ONE>(&Ref::new(name));
        spec.stop_within(NEVER)
    };
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mid = Script::of(&log, "mid").with([slow("a"), slow("b")]).spec::<ONE>(&Ref::new("mid"));
    let scene = Scene::of::<ONE>(&log, [mid.stop_within(Duration::from_secs(1))]).await;
    let extra = slow("x");
    scene.have(|ctx| ctx.stop_child(&"mid".into())).await;
    scene.have(move |ctx| assert!(ctx.start(extra))).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(scene.paths(), ["/top", "/top/x"]);
    let before = tokio::time::Instant::now();
    assert!(!scene.root.stop_within(Duration::from_secs(9)).await, "x never ends, and its limit is far away");
    assert_eq!(before.elapsed().as_secs(), 9);
    settle().await;
    assert_eq!(paths(&scene.env), Vec::<String>::new());
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), tasks);
}

#[tokio::test(start_paused = true)]
async fn a_child_stopped_before_it_had_started_still_ends() {
    type Act = fn(&mut Ctx<Msg>);
    let rows: [(Act, &str); 2] = [
        (|ctx| ctx.stop_child(&"a".into()), "start a, stop a, top hears: a asked"),
        (|ctx| ctx.kill_child(&"a".into()), "top hears: a asked"),
    ];
    for (act, expected) in rows {
        let log = Log::default();
        let scene = Scene::of::<ONE>(&log, []).await;
        scene.events();
        let (a, spec) = leaf(&log, "a");
        scene
            .have(move |ctx| {
                assert!(ctx.start(spec));
                act(ctx);
            })
            .await;
        assert_eq!(scene.events(), expected);
        assert_eq!(scene.paths(), ["/top"]);
        assert!(!a.is_up());
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_gives_no_time_and_overtakes_a_stop() {
    let log = Log::default();
    let spec = |name: &str| Script::of(&log, name).lingering(NEVER).spec::<ONE>(&Ref::new(name)).stop_within(NEVER);
    let scene = Scene::of::<ONE>(&log, [spec("a"), spec("b")]).await;
    scene.events();
    scene.have(|ctx| ctx.kill_child(&"a".into())).await;
    assert_eq!(scene.events(), "top hears: a asked");
    scene.have(|ctx| ctx.stop_child(&"b".into())).await;
    assert_eq!(scene.events(), "stop b");
    scene.have(|ctx| ctx.kill_child(&"b".into())).await;
    assert_eq!(scene.events(), "top hears: b asked");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_tree_is_classified() {
    type Act = fn(&Scene);
    let rows: [(Act, Exit); 4] = [
        (|s| assert!(s.top.cast(Msg::run(super::super::actor::Ctx::stop)).is_ok()), Exit::Normal),
        (|s| assert!(s.top.cast(Msg::panic()).is_ok()), Exit::Failed("boom".into())),
        (|s| assert!(s.top.cast(Msg::run(|ctx| ctx.fail("ill"))).is_ok()), Exit::Failed("ill".into())),
        (|s| s.top.kill(), Exit::Killed),
    ];
    for (act, expected) in rows {
        let log = Log::default();
        let (_a, spec) = leaf(&log, "a");
        let mut scene = Scene::of::<ONE>(&log, [spec]).await;
        act(&scene);
        assert_eq!(scene.root.ended().await, expected);
        settle().await;
        assert!(scene.env.registry.is_empty());
        assert!(scene.root.stop_within(Duration::from_secs(1)).await, "stopping what has ended is fine");
    }
}
