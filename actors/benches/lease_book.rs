//! What a grant and its release cost, and that it does not grow with the fleet.
//!
//! `cargo bench -p egress-actors --bench lease_book`

#![expect(clippy::print_stdout, reason = "a bench reports")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use criterion::{BenchmarkId, Criterion, criterion_group};
use egress_actors::domain::clock::Now;
use egress_actors::domain::desired::{Attributes, Endpoint, Scheme};
use egress_actors::domain::id::{ProxyKey, Uid};
use egress_actors::domain::lease_book::{Ask, LeaseBook, Offer, Outcome, Report, Target, Terms};

const FLEETS: [usize; 3] = [100, 10_000, 100_000];
const CLASSES: usize = 20;
const HOSTS: usize = 50;

/// What is out or rests at the start of a bench stays so: the clock of the rounds runs faster than ours.
const LONG: Duration = Duration::from_hours(24);

fn attributes(class: usize) -> Attributes {
    [("tier", ["dc", "home", "mobile", "isp"][class % 4]), ("region", ["eu", "us", "ap", "sa", "af"][class / 4])]
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn ask(class: usize, target: Option<Target>) -> Ask {
    Ask {
        selectors: vec![attributes(class)],
        target,
        ttl: Duration::from_mins(5),
        owner: Some("spider".into()),
        token: "main".into(),
        exclude: Vec::new(),
        count: 1,
        partial: false,
    }
}

/// A full fleet: 20 classes of attributes, mixed, on 50 hosts.
fn fleet(size: usize, now: Now) -> LeaseBook {
    let mut state: u128 = 1;
    let random = move || {
        state = state.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
        state
    };
    let mut book = LeaseBook::new(Terms::new(1, LONG, LONG), now, random);
    let classes: Vec<Arc<Attributes>> = (0..CLASSES).map(|class| Arc::new(attributes(class))).collect();
    for at in 0..size {
        let offer = Offer {
            key: ProxyKey::new("crawl", &format!("px-{at}")).expect("valid"),
            uid: Uid::parse(&format!("u{at}")).expect("valid"),
            endpoint: Endpoint { scheme: Scheme::Http, host: "10.0.0.9".into(), port: 3128 },
            credentials: None,
            attributes: Arc::clone(&classes[at % CLASSES]),
            capacity: 1,
            domain: format!("kvm/host-{}", at / CLASSES % HOSTS).into(),
            exit_ip: None,
        };
        book.offer(offer, now);
    }
    book
}

fn now() -> Now {
    Now { mono: Instant::now(), wall: SystemTime::now() }
}

/// One round: a grant for each class in turn, released at once. A second passes each 1,000 rounds.
fn rounds(book: &mut LeaseBook, asks: &[Ask], rounds: u64, clock: &mut Now) -> Duration {
    let start = Instant::now();
    for round in 0..rounds {
        if round % 1000 == 0 {
            *clock = clock.after(Duration::from_secs(1));
        }
        let at = usize::try_from(round).expect("64 bits") % asks.len();
        let granted = book.grant(&asks[at], *clock).expect("there is always one");
        black_box(book.release(&granted.leases[0].id, *clock));
    }
    start.elapsed()
}

fn grant_and_release(c: &mut Criterion) {
    let mut group = c.benchmark_group("grant_and_release");
    for size in FLEETS {
        let mut clock = now();
        let mut book = fleet(size, clock);
        let asks: Vec<Ask> = (0..CLASSES).map(|class| ask(class, None)).collect();
        group.bench_function(BenchmarkId::new("idle", size), |b| {
            b.iter_custom(|n| rounds(&mut book, &asks, n, &mut clock));
        });
    }
    for size in FLEETS {
        let mut clock = now();
        let mut book = fleet(size, clock);
        let asks: Vec<Ask> = (0..CLASSES).map(|class| ask(class, None)).collect();
        // Half of the fleet is out for longer than the bench runs.
        for class in 0..CLASSES {
            let held = Ask { ttl: LONG, count: size / CLASSES / 2, ..ask(class, None) };
            book.grant(&held, clock).expect("half of them");
        }
        group.bench_function(BenchmarkId::new("half_leased", size), |b| {
            b.iter_custom(|n| rounds(&mut book, &asks, n, &mut clock));
        });
    }
    for size in FLEETS {
        let mut clock = now();
        let mut book = fleet(size, clock);
        let shop = Some(Target::parse("shop.example").expect("valid"));
        let banned = Report { outcome: Outcome::Banned, target: shop.clone(), release: false, generation: None };
        // The cooled half is one block in each class, which is the worst place for it.
        for class in 0..CLASSES {
            let held = Ask { count: size / CLASSES / 2, ..ask(class, None) };
            for lease in book.grant(&held, clock).expect("half of them").leases {
                book.report(&lease.id, &banned, clock).expect("known");
                book.release(&lease.id, clock);
            }
        }
        assert_eq!(book.totals(clock).cooldowns, size / CLASSES / 2 * CLASSES);
        let asks: Vec<Ask> = (0..CLASSES).map(|class| ask(class, shop.clone())).collect();
        group.bench_function(BenchmarkId::new("half_cooled", size), |b| {
            b.iter_custom(|n| rounds(&mut book, &asks, n, &mut clock));
        });
    }
    group.finish();
}

/// A refusal counts the whole pool by bits: it grows, slowly. In blocks the ends of this class come after those of others,
/// so that the next free moment is not among the first.
fn refusal(c: &mut Criterion) {
    let mut group = c.benchmark_group("refusal");
    for (name, turns) in [("all_leased_mixed", FLEETS.map(|size| size / CLASSES)), ("all_leased_in_blocks", [1; 3])] {
        for (size, turns) in FLEETS.into_iter().zip(turns) {
            let clock = now();
            let mut book = fleet(size, clock);
            for class in (0..turns).flat_map(|_| 0..CLASSES) {
                book.grant(&Ask { count: size / CLASSES / turns, ..ask(class, None) }, clock).expect("all of them");
            }
            let ask = ask(7, None);
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| black_box(book.grant(&ask, clock)).is_err());
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(2));
    targets = grant_and_release, refusal
}

/// Sizes take turns in one run, so that the ratio does not hang on what else the machine does.
fn growth() {
    const ROUNDS: u32 = 2_000;
    let asks: Vec<Ask> = (0..CLASSES).map(|class| ask(class, None)).collect();
    let mut clock = now();
    let mut books = FLEETS.map(|size| (fleet(size, clock), Vec::new()));
    for _ in 0..41 {
        for (book, seen) in &mut books {
            seen.push(rounds(book, &asks, ROUNDS.into(), &mut clock) / ROUNDS);
        }
    }
    let medians = books.map(|(_, mut seen)| {
        seen.sort_unstable();
        seen[seen.len() / 2].as_secs_f64() * 1e9
    });
    println!("| grant and release, among |    ns | of that among {} |", FLEETS[0]);
    println!("|:-------------------------|------:|------------------:|");
    for (size, ns) in FLEETS.iter().zip(medians) {
        println!("| {:<24} | {ns:>5.0} | {:>17.2} |", format!("{size} Proxies"), ns / medians[0]);
    }
    for (size, ns) in FLEETS.iter().zip(medians) {
        println!("RESULT lease_book_grant_and_release proxies={size} ns={ns:.0} ratio={:.2}", ns / medians[0]);
    }
}

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    growth();
}
