//! What the tests of this package and of the adapters share. Never part of a release: feature `testkit`.

use std::fmt::Display;
use std::time::Duration;

pub mod conformance;
pub mod world;

pub mod wishes;

pub mod backend;
pub mod network;
pub mod replica;
pub mod store;
pub mod told;

/// Long enough for a busy machine: only a failing test waits for it.
pub const EVENTUALLY: Duration = Duration::from_secs(20);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Asks until the answer is `Ok`, for at most [`EVENTUALLY`]; then panics with `what` and the last answer.
///
/// Under tokio's paused clock it costs no time.
pub async fn eventually<T, E: Display, F: Future<Output = Result<T, E>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let until = tokio::time::Instant::now() + EVENTUALLY;
    loop {
        match ask().await {
            Ok(seen) => return seen,
            Err(last) if tokio::time::Instant::now() >= until => {
                panic!("not within {EVENTUALLY:?}: {what}; last seen: {last}")
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
