//! The rules of the sweep as rows, and as a model under random histories.

use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use crate::domain::id::{OperatorId, ProviderName, ProxyKey};
use crate::domain::instance::{Instance, InstanceState};

const MINUTE: Duration = Duration::from_secs(60);

fn now() -> Now {
    Now { mono: Instant::now(), wall: SystemTime::now() }
}

fn terms() -> Terms {
    Terms { min_age: 15 * MINUTE, max_deletes: 10, dry_run: false, namespace: None }
}

fn uid(name: &str) -> Uid {
    Uid::parse(&format!("uid-{name}")).expect("a valid uid")
}

fn row(name: &str, created_at: Option<SystemTime>) -> Listed {
    let mark = OwnerMark {
        operator: OperatorId::parse("test").expect("valid"),
        entry: ProviderName::parse("lab").expect("valid"),
        key: ProxyKey::new("crawl", name).expect("valid"),
        uid: uid(name),
    };
    let instance = Instance {
        provider_id: format!("scripted://lab/hv1/{name}").into(),
        state: InstanceState::Running,
        endpoint: None,
        generated: None,
        outdated: None,
        created_at,
        complaint: None,
    };
    Listed { mark, instance }
}

fn roll(living: &[&str]) -> Roll {
    Roll { epoch: 1, uids: living.iter().map(|name| uid(name)).collect() }
}

fn verdicts(orphans: &[Orphan]) -> Vec<(&str, Verdict)> {
    orphans.iter().map(|orphan| (orphan.mark.key.name(), orphan.verdict)).collect()
}

struct Desk {
    suspects: Suspects,
    now: Now,
    terms: Terms,
}

impl Desk {
    fn new() -> Self {
        Self { suspects: Suspects::default(), now: now(), terms: terms() }
    }

    fn sweep(&mut self, listed: &[Listed], roll: &Roll) -> Vec<Orphan> {
        self.sweep_while(listed, roll, &[])
    }

    /// Ten minutes after the one before.
    fn sweep_while(&mut self, listed: &[Listed], roll: &Roll, busy: &[&str]) -> Vec<Orphan> {
        self.now = self.now.after(10 * MINUTE);
        let busy = busy.iter().map(|name| uid(name)).collect();
        self.suspects.judge(listed, roll, &busy, &self.terms, self.now)
    }
}

#[test]
fn an_old_orphan_is_ripe_at_the_second_sweep_in_a_row() {
    let mut desk = Desk::new();
    let old = Some(desk.now.wall - 100 * MINUTE);
    let listed = [row("gone", old), row("there", old)];
    assert_eq!(verdicts(&desk.sweep(&listed, &roll(&["there"]))), [("gone", Verdict::SeenOnce)]);
    assert_eq!(verdicts(&desk.sweep(&listed, &roll(&["there"]))), [("gone", Verdict::Ripe)]);
}

#[test]
fn a_young_orphan_waits_until_it_is_old_enough_by_the_backends_word() {
    let mut desk = Desk::new();
    let listed = [row("a", Some(desk.now.wall + 7 * MINUTE))];
    let told: Vec<_> = (0..3).map(|_| desk.sweep(&listed, &roll(&[]))[0].verdict).collect();
    assert_eq!(told, [Verdict::SeenOnce, Verdict::Young, Verdict::Ripe]);
}

#[test]
fn without_the_backends_word_the_age_is_counted_from_the_first_sight() {
    let mut desk = Desk::new();
    let told: Vec<_> = (0..3).map(|_| desk.sweep(&[row("a", None)], &roll(&[]))[0].verdict).collect();
    assert_eq!(told, [Verdict::SeenOnce, Verdict::Young, Verdict::Ripe], "10 minutes, then 20");
}

#[test]
fn an_instance_from_the_future_is_as_old_as_it_is_known_to_be() {
    let mut desk = Desk::new();
    let listed = [row("a", Some(desk.now.wall + 1000 * MINUTE))];
    let told: Vec<_> = (0..3).map(|_| desk.sweep(&listed, &roll(&[]))[0].verdict).collect();
    assert_eq!(told, [Verdict::SeenOnce, Verdict::Young, Verdict::Ripe], "and not never");
}

/// Something that happens, and who lives afterwards.
type Between<'a> = (&'a str, Box<dyn Fn(&mut Desk) -> Roll + 'a>);

#[test]
fn what_interrupts_the_row_makes_it_begin_anew() {
    let old = Some(SystemTime::now() - 100 * MINUTE);
    let orphan = || vec![row("a", old)];
    let anew = |roll: &Roll| Roll { epoch: roll.epoch + 1, ..roll.clone() };
    let none = roll(&[]);
    let rows: Vec<Between<'_>> = vec![
        ("a list without it", Box::new(|desk| (desk.sweep(&[], &none), none.clone()).1)),
        ("its Proxy was there", Box::new(|desk| (desk.sweep(&orphan(), &roll(&["a"])), none.clone()).1)),
        ("an operation ran for it", Box::new(|desk| (desk.sweep_while(&orphan(), &none, &["a"]), none.clone()).1)),
        ("the live look found its Proxy", Box::new(|desk| (desk.suspects.forget(&row("a", old).mark), none.clone()).1)),
        ("the fleet began anew", Box::new(|_| anew(&none))),
    ];
    for (what, between) in rows {
        let mut desk = Desk::new();
        desk.sweep(&orphan(), &none);
        let after = between(&mut desk);
        assert_eq!(verdicts(&desk.sweep(&orphan(), &after)), [("a", Verdict::SeenOnce)], "{what}");
        assert_eq!(verdicts(&desk.sweep(&orphan(), &after)), [("a", Verdict::Ripe)], "{what}, and the next one");
    }
}

#[test]
fn a_row_that_is_listed_twice_counts_once() {
    let mut desk = Desk::new();
    let old = Some(desk.now.wall - 100 * MINUTE);
    let listed = [row("a", old), row("a", old)];
    assert_eq!(verdicts(&desk.sweep(&listed, &roll(&[]))), [("a", Verdict::SeenOnce)]);
}

#[test]
fn nothing_is_said_about_a_namespace_that_is_not_watched() {
    let mut desk = Desk::new();
    desk.terms.namespace = Some("crawl".into());
    let mut other = row("b", None);
    other.mark.key = ProxyKey::new("elsewhere", "b").expect("valid");
    assert_eq!(verdicts(&desk.sweep(&[other, row("a", None)], &roll(&[]))), [("a", Verdict::SeenOnce)]);
}

#[test]
fn another_owner_of_the_same_uid_is_another_suspect() {
    // A mark that was changed by hand between two sweeps is not the instance that was seen before.
    let mut desk = Desk::new();
    let old = Some(desk.now.wall - 100 * MINUTE);
    desk.sweep(&[row("a", old)], &roll(&[]));
    let mut changed = row("a", old);
    changed.mark.key = ProxyKey::new("crawl", "changed").expect("valid");
    assert_eq!(verdicts(&desk.sweep(&[changed], &roll(&[]))), [("changed", Verdict::SeenOnce)]);
}

#[test]
fn the_oldest_come_first() {
    let mut desk = Desk::new();
    let ago = |minutes: u32| Some(desk.now.wall - minutes * MINUTE);
    let listed = [row("b", ago(30)), row("a", ago(30)), row("oldest", ago(90)), row("new", ago(0))];
    let orphans = desk.sweep(&listed, &roll(&[]));
    let names: Vec<_> = orphans.iter().map(|orphan| orphan.mark.key.name()).collect();
    assert_eq!(names, ["oldest", "a", "b", "new"]);
}

#[test]
fn what_could_not_be_deleted_comes_after_what_was_not_tried() {
    let mut desk = Desk::new();
    let ago = |minutes: u32| Some(desk.now.wall - minutes * MINUTE);
    let listed = [row("stuck", ago(90)), row("a", ago(30)), row("b", ago(20))];
    desk.sweep(&listed, &roll(&[]));
    desk.suspects.failed(&listed[0].mark);
    let names =
        |orphans: Vec<Orphan>| orphans.into_iter().map(|orphan| orphan.mark.key.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(desk.sweep(&listed, &roll(&[]))), ["a", "b", "stuck"]);
    desk.suspects.failed(&listed[1].mark);
    assert_eq!(names(desk.sweep(&listed, &roll(&[]))), ["b", "stuck", "a"]);
}

#[test]
fn the_cap_counts_what_was_spent_within_one_interval() {
    let (mut spent, start) = (Spent::default(), Instant::now());
    assert_eq!(spent.left(2, 10 * MINUTE, start), 2);
    spent.spend(start);
    spent.spend(start + MINUTE);
    assert_eq!(spent.left(2, 10 * MINUTE, start + 9 * MINUTE), 0);
    assert_eq!(spent.left(2, 10 * MINUTE, start + 10 * MINUTE), 1);
    assert_eq!(spent.left(2, 10 * MINUTE, start + 11 * MINUTE), 2);
    assert_eq!(spent.left(0, 10 * MINUTE, start + 60 * MINUTE), 0);
}

/// What happens between two sweeps in a random history.
#[derive(Debug, Clone)]
struct Round {
    listed: Vec<usize>,
    living: Vec<usize>,
    busy: Vec<usize>,
    begins_anew: bool,
    minutes: u32,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let some = || prop::collection::vec(0..4_usize, 0..4);
    let round = (some(), some(), prop::collection::vec(0..4_usize, 0..2), prop::bool::weighted(0.1), 1..20_u32);
    let round = round.prop_map(|(listed, living, busy, begins_anew, minutes)| Round {
        listed,
        living,
        busy,
        begins_anew,
        minutes,
    });
    prop::collection::vec(round, 1..12)
}

proptest! {
    /// Whatever happens: ripe is only what the latest two sweeps, of one fleet, both listed without an owner and without
    /// an operation, and what is old enough.
    #[test]
    fn ripe_is_only_what_two_sweeps_in_a_row_agree_on(history in rounds()) {
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        let start = now();
        let created = |n: usize| n.is_multiple_of(2).then(|| start.wall - 5 * MINUTE * u32::try_from(n).unwrap());
        let (mut suspects, mut at, mut epoch) = (Suspects::default(), start, 1);
        let mut before: HashSet<usize> = HashSet::new();
        for round in history {
            at = at.after(MINUTE * round.minutes);
            if round.begins_anew {
                epoch += 1;
                before.clear();
            }
            let listed: Vec<_> = round.listed.iter().map(|&n| row(NAMES[n], created(n))).collect();
            let roll = Roll { epoch, uids: round.living.iter().map(|&n| uid(NAMES[n])).collect() };
            let busy = round.busy.iter().map(|&n| uid(NAMES[n])).collect();
            let orphans = suspects.judge(&listed, &roll, &busy, &terms(), at);
            let unowned: HashSet<usize> = round.listed.iter().copied()
                .filter(|n| !round.living.contains(n) && !round.busy.contains(n)).collect();
            let found: HashSet<usize> = orphans.iter()
                .map(|orphan| NAMES.iter().position(|name| *name == orphan.mark.key.name()).unwrap()).collect();
            prop_assert_eq!(&found, &unowned);
            for orphan in &orphans {
                let n = NAMES.iter().position(|name| *name == orphan.mark.key.name()).unwrap();
                prop_assert_eq!(orphan.verdict == Verdict::SeenOnce, !before.contains(&n), "{}", orphan.mark.key);
                prop_assert!(orphan.verdict != Verdict::Ripe || orphan.age >= terms().min_age);
                prop_assert!(orphan.verdict != Verdict::Young || orphan.age < terms().min_age);
            }
            before = unowned;
        }
    }
}
