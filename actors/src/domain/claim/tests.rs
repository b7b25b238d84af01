//! The election, row by row.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Seconds of one candidate's clock.
struct Clock(Instant, SystemTime);

impl Clock {
    fn new() -> Self {
        Self(Instant::now(), SystemTime::UNIX_EPOCH + 1_000_000 * SECOND)
    }

    fn at(&self, seconds: f64) -> Now {
        let passed = Duration::from_secs_f64(seconds);
        Now { mono: self.0 + passed, wall: self.1 + passed }
    }

    fn record(&self, holder: &str, renewed: f64, transitions: u32) -> ClaimRecord {
        ClaimRecord {
            holder: holder.into(),
            lease: 15 * SECOND,
            acquired_at: self.1,
            renewed_at: self.at(renewed).wall,
            transitions,
        }
    }
}

fn stored(record: ClaimRecord, version: &str) -> Stored {
    Stored { record, version: version.into() }
}

fn candidate(clock: &Clock) -> Candidate {
    Candidate::new("a".into(), ClaimSettings::default(), ClaimState::Standby, clock.0)
}

/// Records by the second at which they are seen; none: there is none.
type Looks<'a> = &'a [(f64, Option<ClaimRecord>)];

/// What `a` writes after it saw, at each of these seconds, this record.
fn after(looks: Looks<'_>, clock: &Clock) -> Next {
    let mut a = candidate(clock);
    let mut next = Next::Read;
    for (version, (at, record)) in looks.iter().enumerate() {
        a.on_read(record.clone().map(|record| stored(record, &version.to_string())), clock.at(*at).mono);
        next = a.next(clock.at(*at));
    }
    next
}

fn takes(next: &Next) -> Option<u32> {
    match next {
        Next::Write(ClaimWrite::Create(record) | ClaimWrite::Replace(record, _)) if *record.holder == *"a" => {
            Some(record.transitions)
        }
        Next::Write(_) | Next::Read | Next::Wait(_) => None,
    }
}

/// A leader whose latest renewal was sent at second 0 and acknowledged at once.
fn leader(clock: &Clock, transitions: u32) -> Candidate {
    let mut a = candidate(clock);
    a.on_written(stored(clock.record("a", 0.0, transitions), "1"), clock.0, clock.0);
    a
}

#[test]
fn what_may_be_taken_and_with_which_epoch() {
    let clock = Clock::new();
    let b = |renewed| Some(clock.record("b", renewed, 7));
    let free = |holder: &str, lease| Some(ClaimRecord { lease, ..clock.record(holder, 0.0, 7) });
    let rows: &[(&str, Looks<'_>, Option<u32>)] = &[
        ("nothing is there", &[(0.0, None)], Some(0)),
        ("just seen", &[(0.0, b(0.0))], None),
        ("just seen, and long expired by its own words", &[(5000.0, b(0.0))], None),
        ("unchanged, almost long enough", &[(0.0, b(0.0)), (14.9, b(0.0))], None),
        ("unchanged for the lease", &[(0.0, b(0.0)), (15.0, b(0.0))], Some(8)),
        ("renewed meanwhile", &[(0.0, b(0.0)), (14.0, b(2.0)), (28.0, b(2.0))], None),
        ("renewed meanwhile, then not", &[(0.0, b(0.0)), (14.0, b(2.0)), (29.0, b(2.0))], Some(8)),
        ("let go by its holder", &[(0.0, free("b", LET_GO))], Some(8)),
        ("without a holder", &[(0.0, free("", 15 * SECOND))], Some(8)),
        ("its holder asks for longer", &[(0.0, free("b", 60 * SECOND)), (59.0, free("b", 60 * SECOND))], None),
        ("removed under its holder", &[(0.0, b(0.0)), (20.0, None)], None),
        ("removed, and the holder's claim is over", &[(0.0, b(0.0)), (20.0, None), (35.0, None)], Some(8)),
        ("our own, of an earlier process", &[(0.0, Some(clock.record("a", 0.0, 7)))], Some(8)),
    ];
    for (what, looks, expected) in rows {
        assert_eq!(takes(&after(looks, &clock)), *expected, "{what}");
    }
}

#[test]
fn who_has_just_started_leaves_what_was_let_go_to_those_who_stand() {
    let clock = Clock::new();
    let settings = ClaimSettings { hand_over: Some(5 * SECOND), ..ClaimSettings::default() };
    let let_go = |holder: &str| ClaimRecord { lease: LET_GO, ..clock.record(holder, 0.0, 3) };
    for (second, found, taken) in [
        (1.0, Some(let_go("b")), None),
        // Nobody did: somebody must.
        (5.0, Some(let_go("b")), Some(4)),
        (1.0, Some(let_go("a")), Some(4)),
        (1.0, None, Some(0)),
    ] {
        let mut a = Candidate::new("a".into(), settings, ClaimState::Standby, clock.0);
        a.on_read(found.clone().map(|record| stored(record, "1")), clock.at(second).mono);
        let next = a.next(clock.at(second));
        assert_eq!(takes(&next), taken, "{second} {found:?}");
        if taken.is_none() {
            assert_eq!(next, Next::Wait(clock.at(second + 2.0).mono), "it looks again, and no later than it may");
        }
    }
    let mut a = Candidate::new("a".into(), settings, ClaimState::Standby, clock.0);
    a.on_read(Some(stored(let_go("b"), "1")), clock.at(4.0).mono);
    assert_eq!(a.next(clock.at(4.0)), Next::Wait(clock.at(5.0).mono));
}

#[test]
fn a_take_is_against_the_version_that_was_read() {
    let clock = Clock::new();
    let looks = [(0.0, Some(clock.record("b", 0.0, 7))), (15.0, Some(clock.record("b", 0.0, 7)))];
    let Next::Write(ClaimWrite::Replace(record, version)) = after(&looks, &clock) else { panic!("not taken") };
    assert_eq!((&*version, record.acquired_at, record.lease), ("1", clock.at(15.0).wall, 15 * SECOND));
}

#[test]
fn who_remembers_takes_its_own_record_back_under_the_same_epoch() {
    let clock = Clock::new();
    for lease in [15 * SECOND, LET_GO] {
        let settings = ClaimSettings { remembers: true, ..ClaimSettings::default() };
        let mut a = Candidate::new("a".into(), settings, ClaimState::Standby, clock.0);
        a.on_read(Some(stored(ClaimRecord { lease, ..clock.record("a", 0.0, 7) }, "1")), clock.0);
        assert_eq!(takes(&a.next(clock.at(0.0))), Some(7), "{lease:?}");
    }
}

#[test]
fn an_outage_does_not_depose_a_living_holder() {
    let clock = Clock::new();
    let mut a = candidate(&clock);
    let record = clock.record("b", 0.0, 7);
    let look = |at: f64, a: &mut Candidate| {
        a.on_read(Some(stored(record.clone(), "1")), clock.at(at).mono);
        takes(&a.next(clock.at(at)))
    };
    assert_eq!(look(0.0, &mut a), None);
    a.on_failed(clock.at(2.0).mono);
    a.on_failed(clock.at(50.0).mono);
    assert_eq!(look(60.0, &mut a), None, "the holder could not renew either");
    assert_eq!(look(74.9, &mut a), None);
    assert_eq!(look(75.0, &mut a), Some(8), "it had its time");
    a.on_failed(clock.at(75.1).mono);
    assert_eq!(look(77.1, &mut a), None, "who cannot write does not know whether the holder can");
}

#[test]
fn a_claim_counts_from_before_its_write_was_sent() {
    let clock = Clock::new();
    let mut a = candidate(&clock);
    a.on_written(stored(clock.record("a", 0.0, 3), "1"), clock.at(0.0).mono, clock.at(4.0).mono);
    assert!(a.state(clock.at(9.9).mono).leads(clock.at(9.9).mono));
    assert_eq!(a.state(clock.at(10.0).mono), ClaimState::Suspended { epoch: 3 });
    // Renewed at the rhythm, also counted from the sending.
    assert_eq!(a.next(clock.at(4.0)), Next::Write(ClaimWrite::Replace(clock.record("a", 4.0, 3), "1".into())));
}

#[test]
fn a_leader_renews_without_reading_and_reads_after_any_trouble() {
    let clock = Clock::new();
    let mut a = leader(&clock, 3);
    assert_eq!(a.next(clock.at(1.9)), Next::Wait(clock.at(2.0).mono));
    assert_eq!(takes(&a.next(clock.at(2.0))), Some(3));
    a.on_failed(clock.at(2.0).mono);
    assert_eq!(a.next(clock.at(3.9)), Next::Wait(clock.at(4.0).mono));
    assert_eq!(a.next(clock.at(4.0)), Next::Read);
    // The lost write had its effect after all.
    a.on_read(Some(stored(clock.record("a", 2.0, 3), "2")), clock.at(4.0).mono);
    assert_eq!(a.next(clock.at(4.0)), Next::Write(ClaimWrite::Replace(clock.record("a", 4.0, 3), "2".into())));
    let reading_proves_nothing = a.state(clock.at(10.0).mono);
    assert_eq!(reading_proves_nothing, ClaimState::Suspended { epoch: 3 });
}

#[test]
fn a_leader_that_slept_past_its_claim_looks_before_it_writes() {
    let clock = Clock::new();
    let mut a = leader(&clock, 3);
    assert_eq!(a.next(clock.at(60.0)), Next::Read);
    a.on_read(Some(stored(clock.record("b", 20.0, 4), "9")), clock.at(60.0).mono);
    assert_eq!(a.state(clock.at(60.0).mono), ClaimState::Standby);
    assert_eq!(a.holder().map(|holder| &**holder), Some("b"));
}

#[test]
fn a_suspended_leader_that_finds_its_record_resumes_its_epoch() {
    let clock = Clock::new();
    let mut a = leader(&clock, 3);
    a.on_failed(clock.at(2.0).mono);
    assert_eq!(a.state(clock.at(60.0).mono), ClaimState::Suspended { epoch: 3 });
    a.on_read(Some(stored(clock.record("a", 0.0, 3), "1")), clock.at(60.0).mono);
    assert_eq!(takes(&a.next(clock.at(60.0))), Some(3));
    a.on_written(stored(clock.record("a", 60.0, 3), "2"), clock.at(60.0).mono, clock.at(60.1).mono);
    assert_eq!(a.state(clock.at(61.0).mono), ClaimState::Leading { epoch: 3, until: Some(clock.at(70.0).mono) });
}

#[test]
fn a_restarted_election_goes_on_with_what_was_published() {
    let clock = Clock::new();
    let before = ClaimState::Leading { epoch: 3, until: Some(clock.at(8.0).mono) };
    let mut a = Candidate::new("a".into(), ClaimSettings::default(), before, clock.0);
    assert_eq!(a.state(clock.at(1.0).mono), before);
    a.on_read(Some(stored(clock.record("a", 0.0, 3), "1")), clock.at(1.0).mono);
    assert_eq!(takes(&a.next(clock.at(1.0))), Some(3));
}

#[test]
fn a_take_that_is_acknowledged_too_late_begins_nothing() {
    let clock = Clock::new();
    let mut a = candidate(&clock);
    a.on_written(stored(clock.record("a", 0.0, 3), "1"), clock.at(0.0).mono, clock.at(11.0).mono);
    assert_eq!(a.state(clock.at(11.0).mono), ClaimState::Standby);
    assert_eq!(a.next(clock.at(11.0)), Next::Read);
}

#[test]
fn who_is_overtaken_looks_at_once_and_then_waits() {
    let clock = Clock::new();
    let mut a = candidate(&clock);
    a.on_overtaken(clock.0);
    assert_eq!(a.next(clock.at(0.0)), Next::Read);
    a.on_read(None, clock.0);
    a.on_overtaken(clock.0);
    assert_eq!(
        a.next(clock.at(0.0)),
        Next::Wait(clock.at(2.0).mono),
        "a store that always says no is not asked in a loop"
    );
}

#[test]
fn a_renewal_changes_the_record_though_the_wall_clock_went_back() {
    let clock = Clock::new();
    let a = leader(&clock, 3);
    let Next::Write(ClaimWrite::Replace(record, _)) = a.next(Now { wall: SystemTime::UNIX_EPOCH, ..clock.at(2.0) })
    else {
        panic!("not renewed")
    };
    assert!(record.renewed_at > clock.record("a", 0.0, 3).renewed_at);
}

#[test]
fn only_the_holder_lets_go_and_once() {
    let clock = Clock::new();
    let found = |holder: &str, lease| stored(ClaimRecord { lease, ..clock.record(holder, 0.0, 3) }, "1");
    let Some(ClaimWrite::Replace(record, version)) = let_go("a", &found("a", 15 * SECOND), clock.at(1.0).wall) else {
        panic!("kept")
    };
    assert_eq!((&*record.holder, record.transitions, &*version, record.is_free()), ("a", 3, "1", true));
    assert_eq!(let_go("a", &found("a", LET_GO), clock.1), None);
    assert_eq!(let_go("a", &found("b", 15 * SECOND), clock.1), None);
}
