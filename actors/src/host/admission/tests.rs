use proptest::prelude::*;

use super::*;

const SLOTS: usize = 3;
const QUEUE: usize = 5;

fn uid(n: u8) -> Uid {
    Uid::parse(&format!("uid-{n}")).expect("a valid uid")
}

fn kind(n: u8) -> CallKind {
    [CallKind::Get, CallKind::Create, CallKind::Delete][usize::from(n) % 3]
}

const fn seconds(n: u8) -> Duration {
    Duration::from_secs(n as u64)
}

/// The jobs of these effects, in words.
fn told(effects: Vec<Effect<&'static str>>) -> Vec<String> {
    effects
        .into_iter()
        .map(|effect| match effect {
            Effect::Start(_, job) => format!("start {job}"),
            Effect::Busy(job) => format!("busy {job}"),
            Effect::Expired(job) => format!("expired {job}"),
            Effect::Cancelled(job) => format!("cancelled {job}"),
            Effect::Kill(number) => format!("kill {number}"),
        })
        .collect()
}

#[test]
fn deletes_come_before_creates_before_looks_and_one_mutation_of_a_uid_at_a_time() {
    let now = Instant::now();
    let (later, mut admission) = (now + seconds(100), Admission::new(1, 10));
    assert_eq!(told(admission.submit(uid(1), CallKind::Create, later, "create 1", now)), ["start create 1"]);
    for (n, kind, job) in [
        (2, CallKind::Get, "get 2"),
        (3, CallKind::Create, "create 3"),
        (1, CallKind::Delete, "delete 1"),
        (4, CallKind::Delete, "delete 4"),
    ] {
        assert!(admission.submit(uid(n), kind, later, job, now).is_empty());
    }
    assert_eq!(told(admission.ended(1, now)), ["start delete 1"]);
    assert_eq!(told(admission.ended(4, now)), ["start delete 4"]);
    assert_eq!(told(admission.ended(5, now)), ["start create 3"]);
    assert_eq!(told(admission.ended(3, now)), ["start get 2"]);

    let mut admission = Admission::new(3, 10);
    admission.submit(uid(1), CallKind::Create, later, "create 1", now);
    assert_eq!(told(admission.submit(uid(1), CallKind::Delete, later, "delete 1", now)), [""; 0]);
    assert_eq!(told(admission.submit(uid(1), CallKind::Get, later, "get 1", now)), ["start get 1"]);
    assert_eq!(told(admission.ended(1, now)), ["start delete 1"]);
}

#[test]
fn what_waited_for_most_of_its_time_is_not_begun_any_more() {
    let now = Instant::now();
    let mut admission = Admission::new(1, 10);
    admission.submit(uid(1), CallKind::Get, now + seconds(100), "first", now);
    admission.submit(uid(2), CallKind::Delete, now + seconds(20), "waited", now);
    admission.submit(uid(3), CallKind::Get, now + seconds(100), "fresh", now);
    assert_eq!(told(admission.ended(1, now + seconds(16))), ["start fresh"]);
    assert_eq!(told(admission.expire(now + seconds(19))), [""; 0]);
    assert_eq!(told(admission.expire(now + seconds(20))), ["expired waited"]);
}

#[test]
fn a_full_queue_refuses_what_would_be_let_in_last() {
    let now = Instant::now();
    let (later, mut admission) = (now + seconds(100), Admission::new(1, 1));
    admission.submit(uid(1), CallKind::Get, later, "running", now);
    admission.submit(uid(2), CallKind::Get, later, "waiting", now);
    assert_eq!(told(admission.submit(uid(3), CallKind::Get, later, "late", now)), ["busy late"]);
    assert_eq!(told(admission.submit(uid(4), CallKind::Delete, later, "delete", now)), ["busy waiting"]);
}

proptest! {
    /// Whatever happens, each job ends in one way, slots and queue keep their bounds, and nobody waits who could run.
    #[test]
    fn every_job_is_answered_once(ops in prop::collection::vec((0..4_u8, any::<u8>(), 0..30_u8), 1..200)) {
        let mut now = Instant::now();
        let mut admission = Admission::new(SLOTS, QUEUE);
        let mut open = std::collections::HashSet::new();
        let mut running: Vec<(OpNumber, usize)> = Vec::new();
        let mut next = 0;
        for (what, n, time) in ops {
            let effects = match what {
                0 => {
                    next += 1;
                    open.insert(next);
                    admission.submit(uid(n % 6), kind(n), now + seconds(time), next, now)
                }
                1 if !running.is_empty() => {
                    let (number, job) = running.swap_remove(usize::from(n) % running.len());
                    prop_assert!(open.remove(&job));
                    admission.ended(number, now)
                }
                2 => admission.cancel(&uid(n % 6)),
                _ => {
                    now += seconds(time % 7);
                    admission.expire(now)
                }
            };
            for effect in effects {
                match effect {
                    Effect::Start(number, job) => {
                        prop_assert!(open.contains(&job));
                        running.push((number, job));
                    }
                    Effect::Busy(job) | Effect::Expired(job) | Effect::Cancelled(job) => prop_assert!(open.remove(&job)),
                    // Its end comes as one of the `ended` above.
                    Effect::Kill(number) => prop_assert!(running.iter().any(|(running, _)| *running == number)),
                }
            }
            prop_assert!(running.len() <= SLOTS && admission.waiting.len() <= QUEUE);
            prop_assert_eq!(open.len(), running.len() + admission.waiting.len());
        }
    }
}
