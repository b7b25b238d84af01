//! Statistics and the picture of the tree.

use std::time::Duration;

use super::super::tree::{TreeNode, draw, snapshot};
use super::super::{Entry, Restart};
use super::*;

#[tokio::test(start_paused = true)]
async fn the_snapshot_has_the_shape_of_the_tree_and_the_numbers_of_its_actors() {
    let log = Log::default();
    let (a, a_spec) = leaf(&log, "a");
    let (b, b_spec) = leaf(&log, "b");
    let mid = Script::of(&log, "mid").with([b_spec]).spec::<ONE>(&Ref::new("mid"));
    let scene = Scene::of::<ONE>(&log, [mid, a_spec]).await;
    let _entry = Entry::new(&scene.env, "puppet", &b, 4);
    tell(&a, Msg::panic()).await;
    tell(&a, Msg::run(|_| {})).await;
    for _ in 0..3 {
        assert!(b.cast(Msg::run(|_| {})).is_ok());
    }
    let depth = |path: &str| scene.env.registry.get(path).unwrap().depth();
    assert_eq!(depth("/top/mid/b"), 3);
    let drawn = draw(&snapshot(&scene.env.registry));
    let expected = "\
/top                                                 running    handled       0
├─ a                                                 running    handled       1  restarts 1
└─ mid                                               running    handled       0
   └─ b                                              running    handled       0  queue 3/4
";
    assert_eq!(drawn, expected);
    settle().await;
    assert_eq!(depth("/top/mid/b"), 0);
    let [top] = &snapshot(&scene.env.registry)[..] else { panic!("one root") };
    assert_eq!((&*top.path, top.kind, top.children.len()), ("/top", "puppet", 2));
    let node = &top.children[1].children[0];
    assert_eq!((&*node.path, node.handled, node.capacity), ("/top/mid/b", 3, Some(4)));
}

#[test]
fn the_drawing_shows_what_an_actor_is_at() {
    let node = |path: &str, children| TreeNode {
        path: path.into(),
        kind: "x",
        status: "running",
        depth: 0,
        capacity: None,
        handled: 12,
        restarts: 0,
        current: None,
        last_progress: Duration::ZERO,
        children,
    };
    let busy = TreeNode {
        depth: 7,
        restarts: 3,
        current: Some(("Submit", Duration::from_millis(41))),
        ..node("/r/a/b/c", vec![])
    };
    let parked = TreeNode { status: "parked", capacity: Some(9), ..node("/r/a/b", vec![busy]) };
    let drawn = draw(&[node("/r", vec![node("/r/a", vec![parked]), node("/r/z", vec![])]), node("/s", vec![])]);
    let expected = "\
/r                                                   running    handled      12
├─ a                                                 running    handled      12
│  └─ b                                              parked     handled      12  queue 0/9
│     └─ c                                           running    handled      12  queue 7  restarts 3  in Submit for 41 ms
└─ z                                                 running    handled      12
/s                                                   running    handled      12
";
    assert_eq!(drawn, expected);
}

#[tokio::test(start_paused = true)]
async fn places_leave_the_tree_with_their_actors_also_below_a_killed_parent() {
    let log = Log::default();
    let branch = |name: &str| {
        let to = Ref::new(name);
        let below = Script::of(&log, "x").with([leaf(&log, "y").1]).spec::<ONE>(&Ref::new("x"));
        (to.clone(), Script::of(&log, name).with([below]).spec::<ONE>(&to).restart(Restart::Temporary))
    };
    let ends: [fn(&Scene, &Ref<Msg>); 4] = [
        |_, to| to.kill(),
        |_, to| assert!(to.cast(Msg::panic()).is_ok()),
        |_, to| assert!(to.cast(Msg::run(super::super::actor::Ctx::stop)).is_ok()),
        |scene, _| assert!(scene.top.cast(Msg::run(|ctx| ctx.kill_child(&"b".into()))).is_ok()),
    ];
    let (_similar, similar) = branch("b/c");
    let scene = Scene::of::<ONE>(&log, [similar]).await;
    let rest = ["/top", "/top/b/c", "/top/b/c/x", "/top/b/c/x/y"];
    for (row, end) in ends.into_iter().enumerate() {
        let (to, spec) = branch("b");
        scene.have(move |ctx| assert!(ctx.start(spec))).await;
        assert_eq!(scene.paths().len(), rest.len() + 3);
        end(&scene, &to);
        settle().await;
        assert_eq!(scene.paths(), rest, "row {row}: a sibling of a similar name stays");
        scene.have(|ctx| assert_eq!(ctx.child_count(), 1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_actor_is_told_from_an_idle_one() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    let stat = scene.env.registry.get("/top/a").unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(stat.stalled_for(), Duration::ZERO, "idle");
    assert!(stat.last_progress() >= Duration::from_secs(5));
    let (seen, look) = (Arc::new(Mutex::new(None)), stat.clone());
    let out = seen.clone();
    assert!(a.cast(Msg::run(move |_| *out.lock().unwrap() = look.current())).is_ok());
    assert!(stat.stalled_for() >= Duration::from_secs(5), "it has something to do and has not done it");
    settle().await;
    assert_eq!(seen.lock().unwrap().map(|(message, _)| message), Some("Do"));
    assert_eq!((stat.stalled_for(), stat.current(), stat.handled()), (Duration::ZERO, None, 1));
    assert!(stat.last_progress() < Duration::from_secs(1));
}
