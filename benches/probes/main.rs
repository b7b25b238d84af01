//! Probes a second, their cost, and the memory of a Proxy: ours beside a bare loop, in one run.
//!
//! `cargo bench --bench probes`. Needs Squid. The proxy (a real Squid) and the target (our echo) are processes of their
//! own, so that the CPU time of this one is that of probing alone. Legs take turns, in an order that rotates.
//!
//! ```text
//!   bare       50 tasks: connect, CONNECT, HEAD                      the bound
//!   pool       the probe pool and the prober, at 50 slots            judged against the bound
//!   operator   the whole tree, with an actor for each probed Proxy   what a probe costs in the end
//! ```

mod fleet;
mod lab;
mod legs;
mod memory;

#[path = "../measure.rs"]
mod measure;
#[path = "../squid.rs"]
mod squid;

use std::process::ExitCode;
use std::time::Duration;

use egress_operator::telemetry;

use lab::Lab;
use legs::{Leg, Round, Site};
use measure::{Section, Spread, Trouble, is_quick, plain, row};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Says to a child of this benchmark what it is.
const ROLE: &str = "EGRESS_BENCH_ROLE";

const ROUNDS: usize = 15;
const TLS_ROUNDS: usize = 10;
const QUICK_ROUNDS: usize = 2;
const WINDOW: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return lab::play(&role);
    }
    measure::run("probes", true, || {
        let _telemetry = telemetry::install(None, &"error".parse()?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut section = Section::new("Probes through one Squid, at 50 slots");
        runtime.block_on(throughput(&mut section))?;
        runtime.shutdown_timeout(Duration::from_secs(5));
        if !is_quick() {
            memory::weigh_all(&mut section)?;
        }
        Ok(section)
    })
}

async fn throughput(section: &mut Section) -> Result<(), Trouble> {
    let lab = Lab::start()?;
    section.paragraph(
        "One host is one failure domain, so 50 slots are `--health-workers 400`. `bare` is a loop of 50 tasks on the \
         same runtime: connect, CONNECT, HEAD, nothing else. `pool` is the probe pool with its prober; `operator` is \
         the whole tree with an actor for each of 2,000 Proxies, which are probed one after the other without a \
         pause. Squid and the target are other processes and share the cores. A ratio is that of the two legs of one \
         round; the median of the rounds is shown with the quarters around it. CPU is that of our process, a probe.",
    );
    let plain_site = Site::plain(&lab)?;
    let legs = [Leg::Bare, Leg::Pool, Leg::Operator];
    judge(section, "http target", "http", &plain_site, &legs, ROUNDS, &lab).await?;
    let tls_site = Site::tls(&lab)?;
    let legs = [Leg::Pool, Leg::Operator];
    judge(section, "https target", "https", &tls_site, &legs, TLS_ROUNDS, &lab).await
}

/// Runs the rounds of one site and tells what they came to.
async fn judge(
    section: &mut Section,
    title: &str,
    case: &str,
    site: &Site,
    legs: &[Leg],
    rounds: usize,
    lab: &Lab,
) -> Result<(), Trouble> {
    let rounds = if is_quick() { QUICK_ROUNDS } else { rounds };
    let mut seen: Vec<Vec<Round>> = vec![Vec::new(); legs.len()];
    for number in 0..rounds {
        // The order turns around and rotates, so that no leg always follows the same one.
        let mut order: Vec<usize> = (0..legs.len()).collect();
        order.rotate_left(number / 2 % legs.len());
        if number % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let round = legs[at].round(site, WINDOW, lab).await?;
            measure::say(&format!("  round {} {case} {:?}: {round}", number + 1, legs[at]));
            seen[at].push(round);
        }
    }
    let mut rows = vec![row([
        &format!("{title}, {rounds} rounds of {} s", WINDOW.as_secs()),
        &"probes/s",
        &"of bare",
        &"quarters",
        &"CPU ms",
        &"p50 ms",
        &"p99 ms",
        &"Squid's core",
    ])];
    let bare = legs.iter().position(|leg| *leg == Leg::Bare);
    for (leg, rounds) in legs.iter().zip(&seen) {
        let of = |take: fn(&Round) -> f64| Spread::of(rounds.iter().map(take));
        let (rate, cpu) = (of(|round| round.rate), of(|round| round.cpu_ms));
        let (p50, p99, squid) = (of(|round| round.p50_ms), of(|round| round.p99_ms), of(|round| round.squid_cores));
        let ratio = bare
            .filter(|_| *leg != Leg::Bare)
            .map(|bare| Spread::of(rounds.iter().zip(&seen[bare]).map(|(ours, bound)| ours.rate / bound.rate)));
        rows.push(row([
            &leg.name(),
            &plain(rate.median.round()),
            &ratio.map_or("1".to_owned(), |ratio| plain_2(ratio.median)),
            &ratio.map_or(String::new(), |ratio| format!("{} to {}", plain_2(ratio.low), plain_2(ratio.high))),
            &format!("{:.3}", cpu.median),
            &format!("{:.1}", p50.median),
            &format!("{:.1}", p99.median),
            &plain_2(squid.median),
        ]));
        let mut numbers = vec![("rounds", count(rounds.len()))];
        if let Some(ratio) = ratio {
            numbers.extend([
                ("throughput_ratio", ratio.median),
                ("throughput_ratio_low", ratio.low),
                ("throughput_ratio_high", ratio.high),
            ]);
        }
        numbers.extend([
            ("probes_per_second", rate.median),
            ("cpu_ms_per_probe", cpu.median),
            ("p50_ms", p50.median),
            ("p99_ms", p99.median),
        ]);
        section.result("probes", &format!("{case}_{}", leg.name()), &numbers);
    }
    if bare.is_none() {
        for row in &mut rows {
            row.drain(2..4);
        }
    }
    section.table(&rows);
    Ok(())
}

fn plain_2(number: f64) -> String {
    format!("{number:.2}")
}

#[expect(clippy::cast_precision_loss, reason = "counts here are small")]
fn count(number: usize) -> f64 {
    number as f64
}
