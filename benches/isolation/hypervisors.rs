//! What nine hosts and their Proxies feel while the tenth is bad in each of the ways in which hypervisors are, with the
//! product's own links: SSH, libvirt's protocol, lanes and their threads.
//!
//! Two hosts have a real libvirtd and QEMU; the others a daemon by script behind a real sshd, in a network namespace each.
//! The operator is whole; its objects and probes are those of the testkit.

mod round;
mod site;

use std::sync::Arc;

use egress_operator::telemetry::Exporter;
use tokio::runtime::Runtime;

use self::round::{RESIDENTS, STUCK, Seen, UNWANTED, WANTED, WINDOW};
use self::site::{Site, Way};
use crate::measure::{Section, Spread, Trouble, cpu_time, plain, row, say};

/// What is watched. All in milliseconds.
const KINDS: [(&str, &str); 7] = [
    ("create", "create to Ready"),
    ("delete", "delete to gone"),
    ("grant", "grant"),
    ("probe", "probe after its earliest due time"),
    ("sweep", "orphan to swept"),
    ("real_create", "create to Ready, real hosts"),
    ("real_delete", "delete to gone, real hosts"),
];

pub fn measure(section: &mut Section, main: &Runtime, exporter: &Exporter) -> Result<(), Trouble> {
    let Some(site) = Site::up()? else {
        say("  hypervisors: not measured, as there can be no lab here");
        return Ok(());
    };
    let site = Arc::new(site);
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let begun = std::time::Instant::now();
    for cycle in 0..round::cycles() {
        for (turn, way) in only().into_iter().enumerate() {
            // Each bad round has a good one beside it, before it or after it.
            for way in if (cycle + turn) % 2 == 0 { [None, Some(way)] } else { [Some(way), None] } {
                let spent = cpu_time();
                let seen = main.block_on(round::round(&site, way, exporter)).map_err(|error| {
                    site.heal();
                    format!("{}: {error}", way.map_or("a good round", Way::title))
                })?;
                tell(way, &seen, cpu_time() - spent, begun);
                match way {
                    Some(way) => bad.push((way, seen)),
                    None => good.push(seen),
                }
            }
        }
    }
    report(section, &good, &bad);
    Ok(())
}

/// Only one way was asked for.
pub fn is_part() -> bool {
    only().len() < Way::ALL.len()
}

/// All ways, or the one that `--way=` names.
fn only() -> Vec<Way> {
    let asked = std::env::args().find_map(|argument| argument.strip_prefix("--way=").map(str::to_owned));
    Way::ALL.into_iter().filter(|way| asked.as_deref().is_none_or(|asked| asked == way.name())).collect()
}

fn tell(way: Option<Way>, seen: &Seen, spent: std::time::Duration, begun: std::time::Instant) {
    let told = KINDS.iter().map(|(kind, _)| {
        let (_, p99, count) = seen.kinds.get(kind).copied().unwrap_or_default();
        format!("{kind} {p99:.1} ({count})")
    });
    let told: Vec<_> = told.collect();
    let bad = seen.bad.map(|bad| format!("; {bad:.1?}")).unwrap_or_default();
    say(&format!(
        "  {:>4.0?} {}: p99 ms: {}; queue below {} ms; {spent:.2?} of CPU{bad}",
        begun.elapsed(),
        way.map_or("good", Way::name),
        told.join(", "),
        plain(seen.queue_bound),
    ));
}

fn report(section: &mut Section, good: &[Seen], bad: &[(Way, Seen)]) {
    section.paragraph(&format!(
        "Ten hosts of `kvm`, two with libvirtd and QEMU, eight with a daemon by script behind \
         a real sshd. On seven of these are {RESIDENTS} Proxies each and one more that is made and removed all the time, as \
         on the real two; an instance of nobody is made again and again for the sweep; a grant is asked for every \
         millisecond. The eighth has {STUCK} Proxies. In a bad round it goes bad at the beginning of the window of {} s, \
         and {WANTED} more are wanted there and {UNWANTED} unwanted. {} good rounds and {} bad ones of each way take turns. \
         A ratio is the median of the p99 of a way's rounds over that of the good ones, and beside it is where the good \
         ones lie around their median.",
        WINDOW.as_secs(),
        good.len(),
        bad.len() / only().len().max(1),
    ));
    let p99 = |seen: &Seen, kind: &str| seen.kinds.get(kind).map(|figures| figures.1);
    let p50 = |seen: &Seen, kind: &str| seen.kinds.get(kind).map(|figures| figures.0);
    let mut head = vec!["p99, ms".to_owned(), "good".to_owned(), "good rounds lie within".to_owned()];
    head.extend(only().iter().map(|way| way.title().to_owned()));
    let mut rows = vec![head];
    for (kind, title) in KINDS {
        let spread = Spread::of(good.iter().filter_map(|seen| p99(seen, kind)));
        let least = good.iter().filter_map(|seen| p99(seen, kind)).fold(f64::INFINITY, f64::min);
        let (low, high) = (least / spread.median, spread.worst / spread.median);
        let mut cells = vec![title.to_owned(), format!("{:.2}", spread.median), format!("{low:.2} to {high:.2}")];
        for way in only() {
            let of_way = || bad.iter().filter(|(bad, _)| *bad == way).map(|(_, seen)| seen);
            let bad_p99 = Spread::of(of_way().filter_map(|seen| p99(seen, kind))).median;
            let ratio = bad_p99 / spread.median;
            cells.push(format!("{ratio:.2}"));
            let good_p50 = Spread::of(good.iter().filter_map(|seen| p50(seen, kind))).median;
            let bad_p50 = Spread::of(of_way().filter_map(|seen| p50(seen, kind))).median;
            section.result(
                "isolation",
                &format!("hypervisors_{}_{kind}", way.name()),
                &[
                    ("p99_ratio", ratio),
                    ("good_low_ratio", low),
                    ("good_high_ratio", high),
                    ("good_p99_ms", spread.median),
                    ("bad_p99_ms", bad_p99),
                    ("p50_ratio", bad_p50 / good_p50),
                ],
            );
        }
        rows.push(cells);
    }
    let queue = Spread::of(good.iter().map(|seen| seen.queue_bound));
    let mut cells = vec![
        "longest wait for a slot, below ms".to_owned(),
        plain(queue.median),
        format!("up to {}", plain(queue.worst)),
    ];
    for way in only() {
        let waits = bad.iter().filter(|(bad, _)| *bad == way).map(|(_, seen)| seen.queue_bound);
        cells.push(plain(Spread::of(waits).median));
    }
    rows.push(cells);
    section.table(&rows);
    of_the_bad(section, bad);
}

fn of_the_bad(section: &mut Section, bad: &[(Way, Seen)]) {
    let mut rows = vec![row([
        &"of the bad host itself",
        &"after its deadline, ms",
        &"deletion there, ms",
        &"calls held",
        &"all done after it is well, s",
    ])];
    for way in only() {
        let all: Vec<_> = bad.iter().filter(|(bad, _)| *bad == way).filter_map(|(_, seen)| seen.bad).collect();
        let over = Spread::of(all.iter().map(|bad| bad.over_deadline)).worst;
        let deletion = Spread::of(all.iter().filter_map(|bad| bad.deletion)).worst;
        let held = all.iter().map(|bad| bad.held).max().unwrap_or(0);
        let told = if deletion.is_nan() { "-".to_owned() } else { format!("{deletion:.0}") };
        let recovered = Spread::of(all.iter().map(|bad| bad.recovered)).worst;
        rows.push(row([&way.title(), &format!("{over:.0}"), &told, &held, &format!("{:.1}", recovered / 1e3)]));
        let mut numbers = vec![("over_deadline_ms", over), ("recovered_ms", recovered)];
        numbers.extend((!deletion.is_nan()).then_some(("deletion_ms", deletion)));
        section.result("isolation", &format!("hypervisors_{}_host", way.name()), &numbers);
    }
    section.paragraph("The worst of all rounds: how long after its deadline the first call that hangs was answered for and its lane cut (a call to the pool is not cut); how long a deletion of another Proxy took there, where the host can do one; and the calls that the daemon held at once.");
    section.table(&rows);
}
