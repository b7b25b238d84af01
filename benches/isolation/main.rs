//! A stalled host stalls only itself: what the neighbours feel of it, and what it leaves behind.
//!
//! `cargo bench --bench isolation`. A whole operator on scripted ports and the real clock. Good rounds and bad rounds take
//! turns, each in a world of its own; the bound is the median of the good rounds.
//!
//! `-- --only=CASE` measures one of `neighbours`, `flat` and `hypervisors`. The last has a section of its own on the page;
//! of the other two, one alone is a look that goes onto no page.

mod flat;
mod hypervisors;
mod neighbours;

#[path = "../measure.rs"]
mod measure;

/// The lab of the tests.
#[path = "../../tests/lab"]
#[allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code")]
mod lab {
    pub(crate) mod kit;
}
use lab::kit;

use std::process::ExitCode;

use measure::{Section, Trouble};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> Result<ExitCode, Trouble> {
    let telemetry = egress_operator::telemetry::install(None, &"off".parse()?)?;
    let only = std::env::args().find_map(|argument| argument.strip_prefix("--only=").map(str::to_owned));
    let is_wanted = |case: &str| only.as_deref().is_none_or(|only| only == case);
    let mut done = ExitCode::SUCCESS;
    if is_wanted("neighbours") || is_wanted("flat") {
        done = measure::run("isolation", only.is_none(), || {
            let main = runtime()?;
            let mut section = Section::new("Isolation: a host that never answers, and proxies that swallow probes");
            if is_wanted("neighbours") {
                main.block_on(neighbours::measure(&mut section))?;
            }
            if is_wanted("flat") {
                main.block_on(flat::measure(&mut section))?;
            }
            Ok(section)
        });
    }
    if is_wanted("hypervisors") && done == ExitCode::SUCCESS {
        done = measure::run("hypervisors", !hypervisors::is_part(), || {
            let mut section = Section::new("Isolation: a hypervisor that goes bad, each way, with real links");
            hypervisors::measure(&mut section, &runtime()?, &telemetry.exporter)?;
            Ok(section)
        });
    }
    Ok(done)
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}
