//! A stalled host stalls only itself: what the neighbours feel of it, and what it leaves behind.
//!
//! `cargo bench --bench isolation`. A whole operator on scripted ports and the real clock. Good rounds and bad rounds take
//! turns, each in a world of its own; the bound is the median of the good rounds.

mod flat;
mod neighbours;

#[path = "../measure.rs"]
mod measure;

use std::process::ExitCode;

use measure::Section;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    measure::run("isolation", || {
        let _telemetry = egress_operator::telemetry::install(None, &"off".parse()?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let mut section = Section::new("Isolation: a host that never answers, and proxies that swallow probes");
        runtime.block_on(async {
            neighbours::measure(&mut section).await?;
            flat::measure(&mut section).await
        })?;
        Ok(section)
    })
}
