//! The real binary with real Squids, from outside: as processes, over loopback, through its flags, files and HTTP only.
//!
//! Every test has a [`site::Site`] of its own (directories, ports, a probe target that it can make fail), on which it
//! starts operators and kills them. Nothing here links to the operator's code: what these tests know of it is what an
//! administrator and a crawler know. A site ends every Squid that was started under it, also when its test fails.
//! Where a program is missing the test fails, unless `EGRESS_TESTS_ALLOW_MISSING=1`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "all of this is test code, also outside test functions")]

use std::time::{Duration, Instant};

mod api;
mod lanes;
mod log;
mod manifest;
mod operator;
mod ports;
mod site;
mod squids;
mod target;
mod tls_front;

mod bad_input;
mod children;
mod dns;
mod edits;
mod ending;
mod external;
mod grants;
mod hung_directory;
mod kills;
mod mass;
mod reload;
mod removals;
mod restart;
mod serving;
mod stalled_log;
mod start;
mod sweep;

/// Long enough that only a defect reaches it, also where many tests share two processors.
const AMPLE: Duration = Duration::from_mins(2);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// Looks until there is something to see, and fails with `claim` if that takes longer than [`AMPLE`].
async fn eventually<T>(claim: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(AMPLE, claim, look).await
}

/// As [`eventually`], with a limit that is part of the claim.
async fn within<T>(limit: Duration, claim: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(began.elapsed() < limit, "not within {limit:?}: {claim}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Looks for this long, and fails at the first look that does not see it.
async fn stays(span: Duration, claim: &str, mut look: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while began.elapsed() < span {
        assert!(look().await, "no longer after {:?}: {claim}", began.elapsed());
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether we may make a mount namespace; if not, it is said why a test does nothing.
fn may_unshare() -> bool {
    let may = program("unshare").is_some_and(|unshare| {
        let tried = std::process::Command::new(unshare).args(["-m", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    });
    if !may {
        eprintln!("skipped: a mount namespace cannot be made here");
    }
    may
}

/// Where a program is on this machine. `None` if it is missing and may be.
fn program(name: &str) -> Option<std::path::PathBuf> {
    // The system's directories are not on the path of everybody.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    if found.is_none() {
        assert!(
            std::env::var("EGRESS_TESTS_ALLOW_MISSING").is_ok_and(|allowed| allowed == "1"),
            "{name} is missing: install it (apt-get install {name}), or set EGRESS_TESTS_ALLOW_MISSING=1"
        );
        eprintln!("skipped: {name} is missing and EGRESS_TESTS_ALLOW_MISSING=1");
    }
    found
}
