//! One flight for many callers.

use std::sync::atomic::{AtomicU32, Ordering};

use egress_actors::domain::reason::Reason;
use futures::future::join_all;
use tokio::time::sleep;

use super::super::flights::{Cabin, asked_to};
use super::*;
use crate::config::providers::ImageFormat;

const HOUR: Duration = Duration::from_hours(1);

fn base() -> Base {
    Base { name: NAME.to_owned(), path: "/pool/x".to_owned(), format: ImageFormat::Raw, virtual_size: 5 }
}

#[derive(Clone, Default)]
struct Count(Arc<AtomicU32>);

impl Count {
    fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// A fetch that is counted when it begins and takes a minute.
    fn taking(
        &self,
        outcome: Result<Base, OpError>,
    ) -> impl FnOnce(Wanted, Cabin) -> futures::future::BoxFuture<'static, Result<Base, OpError>> {
        let count = self.0.clone();
        move |_, _cabin| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                sleep(Duration::from_secs(60)).await;
                outcome
            })
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_callers_begin_one_fetch_and_all_have_its_base() {
    let (flights, count) = (flights(), Count::default());
    let ask = || flights.base(site("hv1"), wanted(None), HOUR, count.taking(Ok(base())));
    let all = join_all((0..100).map(|_| ask())).await;
    assert!(all.iter().all(|outcome| *outcome == Ok(base())));
    assert_eq!(count.get(), 1);
    assert!(flights.readings().is_empty());
    // Another host has a stream of its own.
    flights.base(site("hv2"), wanted(None), HOUR, count.taking(Ok(base()))).await.unwrap();
    assert_eq!(count.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_stops_waiting_hears_how_far_it_is_and_stops_nothing() {
    let (flights, count) = (flights(), Count::default());
    let ask = |wait| flights.base(site("hv1"), wanted(None), wait, count.taking(Ok(base())));
    let told = ask(Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(told.detail, "image debian: looking into the pool");
    assert_eq!(flights.readings().len(), 1);
    assert_eq!(ask(HOUR).await, Ok(base()));
    assert_eq!(count.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_kept_for_a_back_off_that_grows() {
    let (flights, count) = (flights(), Count::default());
    let failure = OpError::permanent(Reason::ImageNotFound, "it answers 404");
    let ask = || flights.base(site("hv1"), wanted(None), HOUR, count.taking(Err(failure.clone())));
    for _ in 0..50 {
        assert_eq!(ask().await, Err(failure.clone()));
    }
    assert_eq!(count.get(), 1);
    sleep(Duration::from_secs(6)).await;
    ask().await.unwrap_err();
    assert_eq!(count.get(), 2);
    sleep(Duration::from_secs(4)).await;
    ask().await.unwrap_err();
    assert_eq!(count.get(), 2);
    sleep(Duration::from_mins(5)).await;
    ask().await.unwrap_err();
    assert_eq!(count.get(), 3);
    // Another URL is another question.
    let mut other = wanted(None);
    other.url = "https://other.example.com/x".parse().unwrap();
    assert_eq!(flights.base(site("hv1"), other, HOUR, count.taking(Ok(base()))).await, Ok(base()));
}

/// Says over a channel that it was told to stop; says nothing if it is aborted.
fn until_stopped(
    told: tokio::sync::mpsc::UnboundedSender<&'static str>,
) -> impl FnOnce(Wanted, Cabin) -> futures::future::BoxFuture<'static, Result<Base, OpError>> {
    move |_, mut cabin| {
        Box::pin(async move {
            asked_to(&mut cabin.stop).await;
            told.send("stopped").unwrap();
            Err(OpError::transient(Reason::Busy, "stopped"))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_flight_that_nobody_asks_for_is_stopped_and_one_that_is_asked_for_is_not() {
    let flights = flights();
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    let ask = |wait| flights.base(site("hv1"), wanted(None), wait, until_stopped(told.clone()));
    for _ in 0..10 {
        ask(Duration::from_secs(1)).await.unwrap_err();
        sleep(Duration::from_mins(10)).await;
    }
    assert!(hears.try_recv().is_err());
    ask(HOUR).await.unwrap_err();
    assert!(hears.try_recv().is_err());
    sleep(Duration::from_mins(16)).await;
    assert_eq!(hears.try_recv(), Ok("stopped"));
}

#[tokio::test(start_paused = true)]
async fn another_image_under_the_same_name_stops_the_flight_first() {
    let (flights, count) = (flights(), Count::default());
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    flights.base(site("hv1"), wanted(None), Duration::ZERO, until_stopped(told)).await.unwrap_err();
    let ask = || flights.base(site("hv1"), wanted(Some([1; 32])), HOUR, count.taking(Ok(base())));
    assert!(ask().await.unwrap_err().detail.contains("older transfer"));
    assert_eq!(hears.recv().await, Some("stopped"));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(ask().await, Ok(base()));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_flights_ends_their_tasks() {
    struct Gone(Option<tokio::sync::oneshot::Sender<()>>);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }
    let flights = flights();
    let (gone, went) = tokio::sync::oneshot::channel();
    let gone = Gone(Some(gone));
    let begin = |_: Wanted, _: Cabin| async move {
        let _gone = gone;
        std::future::pending().await
    };
    flights.base(site("hv1"), wanted(None), Duration::from_secs(1), begin).await.unwrap_err();
    drop(flights);
    went.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_host_has_one_transfer_at_a_time_and_all_together_are_bounded() {
    let bounds = Bounds { transfers: 2, ..Bounds::default() };
    let flights = Flights::new(Handle::current(), bounds, Arc::new(NoMeter));
    let (at_once, most) = (Count::default(), Count::default());
    let ask = |host: &str, stem: String| {
        let (at_once, most) = (at_once.clone(), most.clone());
        let begin = move |_: Wanted, cabin: Cabin| async move {
            let _place = cabin.place().await;
            most.0.fetch_max(at_once.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            sleep(Duration::from_secs(1)).await;
            at_once.0.fetch_sub(1, Ordering::SeqCst);
            Ok(base())
        };
        flights.base(site(host), Wanted { stem, ..wanted(None) }, HOUR, begin)
    };
    join_all((0..5).map(|image| ask("hv1", format!("base-{image}")))).await;
    assert_eq!(most.get(), 1);
    join_all((0..5).map(|host| ask(&format!("hv{host}"), "base-x".to_owned()))).await;
    assert_eq!(most.get(), 2);
}
