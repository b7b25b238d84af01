//! Bounded entries, calls, replies and what becomes of messages to the dead.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use super::super::{CallError, Entry, Refused, Reply};
use super::*;

#[tokio::test(start_paused = true)]
async fn an_entry_is_full_at_its_bound_and_a_place_comes_back_with_its_message() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    let entry = Entry::new(&scene.env, "puppet", &a, 2);
    assert_eq!(scene.env.registry.get("/top/a").unwrap().capacity(), Some(2), "the tree shows the bound");
    let keep = |permit| Msg::Keep(Box::new(permit));
    assert_eq!(
        (entry.try_cast(keep), entry.try_cast(keep), entry.clone().try_cast(keep)),
        (Ok(()), Ok(()), Err(Refused::Full))
    );
    settle().await;
    assert_eq!(entry.free(), 0, "the state keeps them");
    tell(&a, Msg::run(|_| {})).await;
    tell(&a, Msg::panic()).await;
    assert_eq!(entry.free(), 2, "they died with the state");
    assert_eq!(entry.try_cast(|permit| Msg::run(move |_| drop(permit))), Ok(()));
    settle().await;
    assert_eq!(entry.free(), 2);
    let totals = scene.env.registry.totals();
    assert_eq!(totals.iter().map(|(kind, t)| (*kind, t.rejected, t.restarts)).collect::<Vec<_>>(), [("puppet", 1, 1)]);
    scene.have(|ctx| ctx.stop_child(&"a".into())).await;
    assert_eq!((entry.try_cast(keep), entry.free()), (Err(Refused::Down), 2));
    assert_eq!(
        entry
            .call(Duration::from_secs(1), |answer: super::super::Answer<()>, permit| Msg::Keep(Box::new((
                answer, permit
            ))))
            .await,
        Err(CallError::Down)
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_incarnation_had_queued_is_dropped_and_not_handled_by_the_next() {
    for killed in [false, true] {
        let log = Log::default();
        let (a, spec) = leaf(&log, "a");
        let scene = Scene::of::<ONE>(&log, [spec]).await;
        let entry = Entry::new(&scene.env, "puppet", &a, 8);
        scene.events();
        let note = log.clone();
        let (before, after) = (note.clone(), note.clone());
        if killed {
            assert!(a.cast(Msg::run(move |_| before.note("before"))).is_ok());
            a.kill();
        } else {
            assert!(a.cast(Msg::run(move |_| before.note("before"))).is_ok());
            assert!(a.cast(Msg::panic()).is_ok());
        }
        for _ in 0..3 {
            let after = after.clone();
            entry
                .try_cast(|permit| {
                    Msg::run(move |_| {
                        drop(permit);
                        after.note("after");
                    })
                })
                .unwrap();
        }
        let owed = note.clone();
        let reply = Reply::new(move |what: &str| owed.note(what), || "lost");
        assert!(a.cast(Msg::Keep(Box::new(reply))).is_ok());
        assert_eq!(entry.free(), 5);
        assert!(scene.env.registry.get("/top/a").unwrap().depth() >= 5);
        settle().await;
        assert_eq!(entry.free(), 8);
        // A kill overtakes what is queued; a panic comes in its turn.
        assert_eq!(scene.events(), if killed { "lost, start a" } else { "before, lost, start a" });
        assert_eq!(scene.env.registry.get("/top/a").unwrap().depth(), 0, "the successor begins with an empty queue");
        tell(&a, Msg::run(|_| {})).await;
        assert_eq!(scene.env.registry.get("/top/a").unwrap().depth(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_answered_times_out_or_hears_that_the_actor_died() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    let entry = Entry::new(&scene.env, "puppet", &a, 1);
    let second = Duration::from_secs(1);

    let answered = entry
        .call(second, |answer, permit| {
            Msg::run(move |_| {
                drop(permit);
                answer.send(7).unwrap();
            })
        })
        .await;
    assert_eq!(answered, Ok(7));
    let died = entry
        .call::<u8>(second, |answer, permit| {
            Msg::run(move |_| {
                let _held = (answer, permit);
                panic!("boom")
            })
        })
        .await;
    assert_eq!(died, Err(CallError::Down));
    settle().await;

    let note = log.clone();
    let late = entry.call::<u8>(second, |answer, permit| {
        Msg::run(move |ctx| {
            assert!(!answer.is_abandoned());
            ctx.cast_self(Msg::Keep(Box::new(())));
            let later = ctx.tell(Msg::Do);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                later.send(Box::new(move |_: &mut Ctx<Msg>| {
                    note.note(format!("abandoned: {}, taken: {}", answer.is_abandoned(), answer.send(9).is_ok()));
                    drop(permit);
                }));
            });
        })
    });
    assert_eq!(late.await, Err(CallError::Timeout));
    let full = entry.call::<u8>(second, |answer, permit| Msg::Keep(Box::new((answer, permit)))).await;
    assert_eq!(full, Err(CallError::Full), "the late one still holds its place");
    scene.events();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.events(), "abandoned: true, taken: false");
    assert_eq!(entry.free(), 1);
}

#[test]
fn a_reply_answers_once_and_lost_when_it_is_dropped() {
    static LOST: AtomicUsize = AtomicUsize::new(0);
    static SENT: AtomicUsize = AtomicUsize::new(0);
    let reply = || {
        let count = |sent: bool| {
            if sent { &SENT } else { &LOST }.fetch_add(1, SeqCst);
        };
        Reply::new(count, || false)
    };
    reply().send(true);
    assert_eq!((SENT.load(SeqCst), LOST.load(SeqCst)), (1, 0));
    drop(reply());
    assert_eq!((SENT.load(SeqCst), LOST.load(SeqCst)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_narrowed_reference_follows_restarts_and_an_own_one_does_not() {
    let log = Log::default();
    let (a, spec) = leaf(&log, "a");
    let scene = Scene::of::<ONE>(&log, [spec]).await;
    let narrow = a.tell(|line: &'static str| Msg::Arm(line, Duration::ZERO));
    let own = Arc::new(Mutex::new(None));
    let hand_out = own.clone();
    tell(&a, Msg::run(move |ctx| *hand_out.lock().unwrap() = Some(ctx.tell(|line| Msg::Arm(line, Duration::ZERO)))))
        .await;
    let own = own.lock().unwrap().take().expect("handed out");
    own.send("own");
    settle().await;
    tell(&a, Msg::panic()).await;
    scene.events();
    own.send("own");
    narrow.send("narrow");
    settle().await;
    settle().await;
    assert_eq!(scene.events(), "fired Some(\"narrow\")");
    super::super::Tell::<u8>::nowhere().send(1);
}
