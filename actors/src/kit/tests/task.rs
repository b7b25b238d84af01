//! Plain futures as children.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::super::Restart;
use super::super::task::{StopSignal, task};
use super::*;

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_is_restarted_and_one_that_is_done_ends_normally() {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    let body = move |_stop| {
        let run = count.fetch_add(1, SeqCst);
        async move {
            match run {
                0 => Err("no".to_owned()),
                1 => panic!("bad"),
                _ => Ok(()),
            }
        }
    };
    let log = Log::default();
    let scene = Scene::of::<ONE>(&log, [task("job", body).restart(Restart::Transient)]).await;
    assert_eq!(scene.events(), "start top, top hears: job normal");
    assert_eq!(runs.load(SeqCst), 3);
    assert_eq!(scene.env.registry.counters("task").restarts.load(SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_says_why() {
    let log = Log::default();
    let rows = [
        task("err", |_| async { Err("no".to_owned()) }),
        task("panic", |_| async { panic!("bad") }),
        task("early", |_| -> std::future::Ready<Result<(), String>> { panic!("worse") }),
    ];
    let scene = Scene::of::<ONE>(&log, rows.map(|spec| spec.restart(Restart::Temporary))).await;
    let mut events = log.take();
    events.sort();
    assert_eq!(
        events,
        [
            "start top",
            "top hears: early failed: worse",
            "top hears: err failed: no",
            "top hears: panic failed: panicked: bad"
        ]
    );
    drop(scene);
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_signalled_first_and_forced_at_the_limit() {
    let log = Log::default();
    let body = |log: &Log, heeds: bool| {
        let log = log.clone();
        move |stop: StopSignal| {
            let log = log.clone();
            async move {
                let _gone = Gone(log.clone());
                stop.wait().await;
                log.note("signalled");
                assert!(stop.is_set());
                if !heeds {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
                log.note("cleaned up");
                Ok(())
            }
        }
    };
    let limit = Duration::from_secs(3);
    let heeds = task("heeds", body(&log, true)).stop_within(limit);
    let ignores = task("ignores", body(&log, false)).stop_within(limit);
    let scene = Scene::of::<ONE>(&log, [heeds, ignores]).await;
    scene.events();
    let before = tokio::time::Instant::now();
    assert!(scene.root.stop_within(Duration::from_mins(1)).await);
    assert_eq!(before.elapsed().as_secs(), 4);
    settle().await;
    assert_eq!(log.take().join(", "), "stop top, signalled, gone, signalled, cleaned up, gone");
}

struct Gone(Log);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.note("gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_task_and_one_of_a_dead_parent_are_aborted() {
    let log = Log::default();
    let body = |log: &Log| {
        let log = log.clone();
        move |_| {
            let gone = Gone(log.clone());
            async move {
                std::future::pending::<()>().await;
                drop(gone);
                Ok(())
            }
        }
    };
    let scene = Scene::of::<ONE>(&log, [task("one", body(&log)), task("two", body(&log))]).await;
    scene.events();
    scene.have(|ctx| ctx.kill_child(&"one".into())).await;
    let mut events = log.take();
    events.sort();
    assert_eq!(events, ["gone", "top hears: one asked"]);
    scene.top.kill();
    settle().await;
    assert_eq!(log.take(), ["gone"]);
}
