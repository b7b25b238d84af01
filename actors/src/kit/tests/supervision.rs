//! Restarts: who comes back, who hears of what.

use std::time::Duration;

use super::super::Restart;
use super::*;

#[tokio::test(start_paused = true)]
async fn a_reference_is_refilled_after_a_panic_and_says_down_after_the_end() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    assert!(a.cast(Msg::panic()).is_err(), "not started yet");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    tell(&a, Msg::panic()).await;
    assert!(a.is_up());
    tell(&a, Msg::run(super::super::actor::Ctx::stop)).await;
    assert!(a.is_up(), "permanent");
    assert_eq!(scene.events(), "start top, start a, start a, stop a, start a");
    scene.have(|ctx| ctx.stop_child(&"a".into())).await;
    assert!(!a.is_up());
    let super::super::reference::Down(message) = a.cast(Msg::Arm("kept", Duration::ZERO)).expect_err("it is down");
    assert!(matches!(message, Msg::Arm("kept", _)), "the message comes back");
    assert_eq!(scene.events(), "stop a, top hears: a asked");
}

#[tokio::test(start_paused = true)]
async fn each_restart_type_answers_each_kind_of_end() {
    type How = fn() -> Option<Msg>;
    let rows: [(Restart, How, &str); 12] = [
        (Restart::Permanent, || Some(Msg::run(super::super::actor::Ctx::stop)), "stop a, start a"),
        (Restart::Permanent, || Some(Msg::panic()), "start a"),
        (Restart::Permanent, || Some(Msg::run(|ctx| ctx.fail("ill"))), "start a"),
        (Restart::Permanent, || None, "start a"),
        (Restart::Transient, || Some(Msg::run(super::super::actor::Ctx::stop)), "stop a, top hears: a normal"),
        (Restart::Transient, || Some(Msg::panic()), "start a"),
        (Restart::Transient, || Some(Msg::run(|ctx| ctx.fail("ill"))), "start a"),
        (Restart::Transient, || None, "start a"),
        (Restart::Temporary, || Some(Msg::run(super::super::actor::Ctx::stop)), "stop a, top hears: a normal"),
        (Restart::Temporary, || Some(Msg::panic()), "top hears: a failed: boom"),
        (Restart::Temporary, || Some(Msg::run(|ctx| ctx.fail("ill"))), "top hears: a failed: ill"),
        (Restart::Temporary, || None, "top hears: a killed"),
    ];
    for (row, (restart, how, expected)) in rows.into_iter().enumerate() {
        let log = Log::default();
        let (a, spec) = leaf(&log, "a");
        let scene = Scene::of::<ONE>(&log, [spec.restart(restart)]).await;
        scene.events();
        if let Some(message) = how() {
            assert!(a.cast(message).is_ok());
        } else {
            a.kill();
        }
        settle().await;
        assert_eq!(scene.events(), expected, "row {row}");
    }
}

#[tokio::test(start_paused = true)]
async fn rest_for_one_restarts_those_behind_in_order() {
    let log = Log::default();
    let (_a, a_spec) = leaf(&log, "a");
    let (b, b_spec) = leaf(&log, "b");
    let (c, c_spec) = leaf(&log, "c");
    let (_t, t_spec) = leaf(&log, "t");
    let scene = Scene::of::<REST>(&log, [a_spec, b_spec, c_spec]).await;
    scene.have(move |ctx| assert!(ctx.start(t_spec.restart(Restart::Temporary)))).await;
    scene.events();
    tell(&b, Msg::panic()).await;
    assert_eq!(scene.events(), "stop t, top hears: t asked, stop c, start b, start c");
    tell(&c, Msg::panic()).await;
    assert_eq!(scene.events(), "start c");
    assert_eq!(scene.paths(), ["/top", "/top/a", "/top/b", "/top/c"]);
}

#[tokio::test(start_paused = true)]
async fn a_start_that_keeps_failing_gives_up_and_the_giving_up_climbs() {
    let log = Log::default();
    let mut script = Script::of(&log, "a");
    script.unable = Some("no luck");
    let (b, b_spec) = leaf(&log, "b");
    let mid = Script::of(&log, "mid").with([b_spec, script.spec::<ONE>(&Ref::new("a"))]).spec::<ONE>(&Ref::new("mid"));
    let mut scene = Scene::of::<ONE>(&log, [mid]).await;
    // Each of the three lives of `mid` sees three of `a`; then `top` gives up too. Siblings are stopped, not killed.
    let life = "start mid, start b, start a, start a, start a, stop b";
    assert_eq!(scene.events(), format!("start top, {life}, {life}, {life}"));
    let Exit::Failed(why) = scene.root.ended().await else { panic!("a failure") };
    assert_eq!(
        why,
        "mid ended more than 2 times within 60 s, lastly: a ended more than 2 times within 60 s, lastly: no luck"
    );
    assert!(!b.is_up());
    assert_eq!(scene.paths(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_parked_child_is_told_stays_visible_and_can_be_woken_or_forgotten() {
    let log = Log::default();
    let (a, a_spec) = leaf(&log, "a");
    let (b, b_spec) = leaf(&log, "b");
    let scene = Scene::of::<PARK>(&log, [a_spec.clone(), b_spec]).await;
    for _ in 0..3 {
        tell(&a, Msg::panic()).await;
    }
    assert_eq!(scene.events(), "start top, start a, start b, start a, start a, top hears: a gave up");
    assert!(!a.is_up() && b.is_up());
    let parked = scene.env.registry.get("/top/a").expect("it stays in the tree");
    assert_eq!((parked.status().as_str(), parked.restarts(), parked.current()), ("parked", 2, None));
    scene.have(|ctx| assert!(!ctx.has_child(&"a".into()) && ctx.child_count() == 1)).await;
    let again = a_spec.clone();
    scene.have(move |ctx| assert!(ctx.start(again))).await;
    assert!(a.is_up());
    let woken = scene.env.registry.get("/top/a").expect("listed");
    assert_eq!((woken.status().as_str(), woken.restarts()), ("running", 3));
    for _ in 0..3 {
        tell(&a, Msg::panic()).await;
    }
    scene.have(|ctx| ctx.stop_child(&"a".into())).await;
    assert_eq!(scene.paths(), ["/top", "/top/b"]);
    assert_eq!(scene.events(), "start a, start a, start a, top hears: a gave up", "its end is told once");
}

#[tokio::test(start_paused = true)]
async fn a_place_can_be_marked_as_parked_where_nobody_runs() {
    let log = Log::default();
    let (a, a_spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [a_spec]).await;
    let status = |path: &str| scene.env.registry.get(path).map(|stat| stat.status().as_str());
    scene
        .have(|ctx| {
            ctx.mark_parked(&"a".into(), "puppet");
            ctx.mark_parked(&"b".into(), "puppet");
            ctx.mark_parked(&"c".into(), "puppet");
        })
        .await;
    assert_eq!((status("/top/a"), status("/top/b")), (Some("running"), Some("parked")), "a runs and is no mark");
    assert!(a.is_up());
    let (b, b_spec) = leaf(&log, "b");
    scene.have(move |ctx| assert!(ctx.start(b_spec))).await;
    let seen = Arc::new(Mutex::new(None));
    let (out, env) = (seen.clone(), scene.env.clone());
    tell(&b, Msg::run(move |_| *out.lock().unwrap() = env.registry.get("/top/b").unwrap().current())).await;
    assert_eq!(seen.lock().unwrap().map(|(message, _)| message), Some("Do"), "it shows what it does");
    scene.have(|ctx| ctx.stop_child(&"c".into())).await;
    assert_eq!(scene.paths(), ["/top", "/top/a", "/top/b"]);
    scene.have(|ctx| ctx.mark_parked(&"d".into(), "puppet")).await;
    scene.top.kill();
    settle().await;
    assert_eq!(scene.paths(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_id_is_taken_until_its_child_has_ended() {
    let log = Log::default();
    let (_a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec.clone()]).await;
    scene
        .have(move |ctx| {
            assert!(!ctx.start(spec.clone()));
            ctx.stop_child(&"a".into());
            assert!(!ctx.start(spec));
        })
        .await;
    assert_eq!(scene.events(), "start top, start a, stop a, top hears: a asked");
}

#[tokio::test(start_paused = true)]
async fn a_failed_parent_comes_back_with_all_its_children_and_their_references() {
    for how in [Msg::panic as fn() -> Msg, || Msg::run(|ctx| ctx.fail("ill"))] {
        let log = Log::default();
        let (a, a_spec) = leaf(&log, "a");
        let mid = Ref::new("mid");
        let scene = Scene::of::<ONE>(&log, [Script::of(&log, "mid").with([a_spec]).spec::<ONE>(&mid)]).await;
        let (_t, t_spec) = leaf(&log, "t");
        tell(&mid, Msg::run(move |ctx| assert!(ctx.start(t_spec)))).await;
        assert_eq!(scene.paths(), ["/top", "/top/mid", "/top/mid/a", "/top/mid/t"]);
        tell(&mid, how()).await;
        assert!(a.is_up());
        tell(&a, Msg::run(|_| {})).await;
        assert_eq!(scene.paths(), ["/top", "/top/mid", "/top/mid/a"], "what it had started on the way is gone");
    }
}

/// Takes its time to be dropped, so that a successor that did not wait would meet it.
struct LetsGoSlowly(#[expect(dead_code, reason = "counted")] Arc<()>);

impl Drop for LetsGoSlowly {
    fn drop(&mut self) {
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_an_incarnation_held_is_free_before_its_successor_begins() {
    let log = Log::default();
    let held = Arc::new(());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let a = Ref::new("a");
    let (count, starts) = (held.clone(), seen.clone());
    let spec = ChildSpec::of::<Puppet<ONE>>("a", &a, {
        let script = Script::of(&log, "a");
        move || {
            starts.lock().unwrap().push(Arc::strong_count(&count));
            script.clone()
        }
    });
    // On a runtime of its own: on one, the thread that drops would be the one to wake the parent, after that.
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let scene = Scene::up::<ONE>(&log, [spec.on(other.handle())]).await;
    for (round, end) in [Msg::panic as fn() -> Msg, || Msg::run(super::super::actor::Ctx::stop)].into_iter().enumerate()
    {
        eventually("a is up", || seen.lock().unwrap().len() == round + 1 && a.is_up()).await;
        let slow = LetsGoSlowly(held.clone());
        assert!(a.cast(Msg::Keep(Box::new(slow))).is_ok() && a.cast(end()).is_ok());
    }
    eventually("a is back", || seen.lock().unwrap().len() == 3).await;
    other.shutdown_background();
    assert_eq!(*seen.lock().unwrap(), [2, 2, 2], "held by this test and by the spec only");
    drop(scene);
}

#[tokio::test(start_paused = true)]
async fn a_late_farewell_of_a_dead_parent_does_not_empty_a_refilled_reference() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    let old = a.cell().expect("up");
    tell(&a, Msg::panic()).await;
    a.clear(&old);
    assert!(a.is_up());
    drop(scene);
}

#[test]
fn a_child_runs_on_the_runtime_that_its_spec_names() {
    let build = |name: &str| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).thread_name(name).enable_all().build().unwrap()
    };
    let (main, other) = (build("main"), build("other"));
    let log = Log::default();
    let (a, a_spec) = leaf(&log, "a");
    let (b, b_spec) = leaf(&log, "b");
    let home = Script::of(&log, "home").with([b_spec]).spec::<ONE>(&Ref::new("home")).on(other.handle());
    let top = Ref::<Msg>::new("top");
    let spec = Script::of(&log, "top").with([a_spec, home]).spec::<ONE>(&top);
    let (told, heard) = std::sync::mpsc::channel();
    main.block_on(async {
        let env = Env::new(Clock::System);
        let root = Root::start(&env, spec);
        eventually("all are up", || a.is_up() && b.is_up()).await;
        for round in 0..2 {
            for to in [&a, &b] {
                let told = told.clone();
                let thread = move |_: &mut Ctx<Msg>| {
                    told.send(std::thread::current().name().map(str::to_owned)).unwrap();
                };
                assert!(to.cast(Msg::run(thread)).is_ok());
                let name = heard.recv_timeout(Duration::from_secs(10)).unwrap().unwrap();
                assert_eq!(name, if to.label() == a.label() { "main" } else { "other" }, "round {round}");
            }
            // Its successor runs there too.
            let old = b.cell().unwrap();
            assert!(b.cast(Msg::panic()).is_ok());
            eventually("b is back", || b.is_up() && b.cell() != Some(old.clone())).await;
        }
        assert!(root.stop_within(Duration::from_secs(5)).await);
        assert!(env.registry.is_empty());
    });
    main.shutdown_background();
    other.shutdown_background();
}
