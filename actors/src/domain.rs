//! What the system decides, as values and functions from values to values.
//!
//! Knows nothing of actors, runtimes, clocks or I/O: time comes in as [`clock::Now`], the outside comes in as what was
//! observed, and what to do goes out as an intent. Everything here is tested by tables and by proptest against models.

pub mod backoff;
pub mod claim;
pub mod clock;
pub mod desired;
pub mod error;
pub mod health;
pub mod id;
pub mod instance;
pub mod lease_book;
pub mod placement;
pub mod plan;
pub mod reason;
pub mod status;
pub mod sweep;
pub mod target;
pub mod words;
