//! A stalled host stalls only itself: what the neighbours feel of it, and what it leaves behind.
//!
//! `cargo bench --bench isolation`. A whole operator on scripted ports and the real clock. Good rounds and bad rounds take
//! turns, each in a world of its own; the bound is the median of the good rounds.
//!
//! `-- --only=CASE` measures one of `neighbours`, `flat` and `hypervisors`. The last is measured only when it is asked for:
//! it does not come to its end yet where guest agents never answer.

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

use measure::Section;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    measure::run("isolation", || {
        let telemetry = egress_operator::telemetry::install(None, &"off".parse()?)?;
        let main = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut section = Section::new("Isolation: a host that never answers, and proxies that swallow probes");
        let only = std::env::args().find_map(|argument| argument.strip_prefix("--only=").map(str::to_owned));
        let is_wanted = |case: &str| only.as_deref().map_or(case != "hypervisors", |only| only == case);
        if is_wanted("neighbours") {
            main.block_on(neighbours::measure(&mut section))?;
        }
        if is_wanted("flat") {
            main.block_on(flat::measure(&mut section))?;
        }
        if is_wanted("hypervisors") {
            hypervisors::measure(&mut section, &main, &telemetry.exporter)?;
        }
        Ok(section)
    })
}
