//! What the benchmarks share: numbers of this process, statistics of rounds, and the page that people read.
//!
//! A benchmark prints its tables, puts them into its own section of `docs/performance.md` with the date and the size of
//! the machine, and ends with `RESULT` lines for machines. What could not be measured is an error, never a number.

#![allow(dead_code, reason = "each benchmark uses the part that it needs")]

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Why there is no number.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// The page, from the root of the package, in which cargo runs its benches.
const PAGE: &str = "docs/performance.md";

// --- running

/// Runs a benchmark, writes its section if it is a `whole` one, prints its lines.
pub fn run(name: &str, whole: bool, measure: impl FnOnce() -> Result<Section, Trouble>) -> ExitCode {
    // `cargo test --all-targets` starts benches too, and means a check that they build.
    if !std::env::args().any(|argument| argument == "--bench") {
        say(&format!("{name}: not measured; run it with `cargo bench --bench {name}`"));
        return ExitCode::SUCCESS;
    }
    let written = measure().and_then(|section| {
        let text = section.text();
        say(&text);
        if is_quick() || !whole {
            say(&format!("{name}: a quick look, or a part; {PAGE} stays as it is"));
        } else {
            write_section(Path::new(PAGE), name, &text)?;
        }
        for line in section.results {
            say(&line);
        }
        Ok(())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "{name}: could not measure: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Asked by `-- --quick`: a look that all works, in a fraction of the time, that goes onto no page.
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// A line for whoever watches.
pub fn say(line: &str) {
    let _nobody_reads = writeln!(std::io::stdout(), "{line}");
}

// --- numbers of this process

/// CPU time of this process so far, all threads.
pub fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// CPU time of another process so far.
pub fn cpu_time_of(pid: u32) -> Result<Duration, Trouble> {
    let stat = procfs::process::Process::new(i32::try_from(pid)?)?.stat()?;
    Ok(Duration::from_secs(stat.utime + stat.stime) / u32::try_from(procfs::ticks_per_second())?)
}

/// Memory of this process that is in RAM, in bytes.
pub fn resident() -> Result<u64, Trouble> {
    Ok(procfs::process::Process::myself()?.statm()?.resident * procfs::page_size())
}

/// Threads of this process, and its open descriptors.
pub fn threads_and_descriptors() -> Result<(usize, usize), Trouble> {
    let this = procfs::process::Process::myself()?;
    Ok((this.tasks()?.count(), this.fd_count()?))
}

// --- statistics

/// The value below which a share of the sorted samples lies. `NaN` of none.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

pub fn sorted(mut samples: Vec<f64>) -> Vec<f64> {
    samples.sort_by(f64::total_cmp);
    samples
}

/// Of the rounds of a run: the median, and the quarter and three quarter marks. They do not move for one bad round.
#[derive(Debug, Clone, Copy)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub high: f64,
    pub worst: f64,
}

impl Spread {
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Self {
        let all = sorted(rounds.into_iter().collect());
        Self {
            low: quantile(&all, 0.25),
            median: quantile(&all, 0.5),
            high: quantile(&all, 0.75),
            worst: quantile(&all, 1.0),
        }
    }
}

// --- the page

/// What one benchmark has to say.
#[derive(Debug, Default)]
pub struct Section {
    title: String,
    body: String,
    results: Vec<String>,
}

impl Section {
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), ..Self::default() }
    }

    pub fn paragraph(&mut self, text: &str) {
        self.body.push_str(text);
        self.body.push_str("\n\n");
    }

    /// A table: first row is its head; the first column is text, the others are numbers.
    pub fn table(&mut self, rows: &[Vec<String>]) {
        let Some(head) = rows.first() else { return };
        let widths: Vec<usize> = (0..head.len())
            .map(|column| rows.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count())).max())
            .map(|width| width.unwrap_or(0).max(4))
            .collect();
        for (at, row) in rows.iter().enumerate() {
            for (column, width) in widths.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                if column == 0 {
                    _ = write!(self.body, "| {cell:<width$} ");
                } else {
                    _ = write!(self.body, "| {cell:>width$} ");
                }
            }
            self.body.push_str("|\n");
            if at == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let line = "-".repeat(*width);
                    let cell = if column == 0 { format!("|:{line}-") } else { format!("|-{line}:") };
                    self.body.push_str(&cell);
                }
                self.body.push_str("|\n");
            }
        }
        self.body.push('\n');
    }

    /// A line for machines: `RESULT <bench> case=<name> <key>=<number> ...`
    pub fn result(&mut self, bench: &str, case: &str, numbers: &[(&str, f64)]) {
        let mut line = format!("RESULT {bench} case={case}");
        for (key, number) in numbers {
            _ = write!(line, " {key}={}", plain(*number));
        }
        self.results.push(line);
    }

    fn text(&self) -> String {
        let lines = self.results.join("\n");
        format!(
            "## {}\n\nMeasured {}, on {}.\n\n{}```text\n{lines}\n```\n",
            self.title,
            jiff::Timestamp::now().strftime("%Y-%m-%d"),
            machine(),
            self.body
        )
    }
}

/// A plain decimal: no exponent, no sign of nothing, as few digits as tell it.
pub fn plain(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') {
        let short = text.trim_end_matches('0').trim_end_matches('.');
        return if short == "-0" { "0".to_owned() } else { short.to_owned() };
    }
    text
}

/// A row of cells.
pub fn row<const N: usize>(cells: [&dyn Display; N]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes =
        memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
    // The kernel keeps a part of what the machine has.
    let gibibytes = kibibytes.map_or(0, |kibibytes: u64| kibibytes.div_ceil(1024 * 1024));
    format!("a machine of {cores} cores and {gibibytes} GiB")
}

/// Puts the text between the marks of this section; a page without them gets them at its end.
fn write_section(page: &Path, name: &str, text: &str) -> Result<(), Trouble> {
    let old = match std::fs::read_to_string(page) {
        Ok(old) => old,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "# Performance\n".to_owned(),
        Err(error) => return Err(format!("{}: {error}", page.display()).into()),
    };
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
    let section = format!("{begin}{text}{end}");
    let new = match (old.find(&begin), old.find(&end)) {
        (Some(from), Some(to)) if from < to => format!("{}{section}{}", &old[..from], &old[to + end.len()..]),
        _ => format!("{}\n\n{section}", old.trim_end()),
    };
    std::fs::write(page, new).map_err(|error| format!("{}: {error}", page.display()).into())
}
