//! The HTTP edge: the lease API for crawlers and the admin endpoint for people and machines that watch us.
//!
//! It owns the listeners, the wire format and the status codes, and nothing else: leases live in the registry's book,
//! views in shared cells. The lease API makes the only *calls* of the system (edge to actor, each with a timeout); the
//! admin endpoint reads cells and never asks an actor, so that it answers while all of them are busy. Nothing here
//! touches a backend, and nothing here writes down what a client said.
//!
//! ```text
//! listener --> serve      connections: their number, header and write limits, TLS, graceful end
//!   router --> auth       who is it: a token, or a client of this machine
//!   leases --> line, dto  one line or JSON --> an Ask;  LeasesHandle;  a Lease --> JSON or a URL (handover)
//!   admin, health         the tree, providers, readiness, metrics
//!   body                  how large one may be, and JSON as a line
//!   error                 the only place that picks a status code
//! ```
//!
//! # Not in this version
//! Sessions (refused: a client that asks for one relies on it), `Idempotency-Key` and `Prefer: wait` (ignored, as HTTP
//! asks of unknown headers and preferences), scopes and quotas of tokens, draining through the API, `/openapi.json`.

pub mod serve;
pub mod tls;

pub mod auth;
pub mod error;

pub mod leases;

mod body;
mod breakdown;
mod dto;
mod handover;
mod line;
mod negotiate;

pub mod admin;
pub mod health;

pub use admin::{Admin, Controls, ManifestProblem};
pub use auth::Tokens;
pub use health::{Check, checks_of, waiting};
pub use leases::LeaseApi;
pub use serve::{Limits, serve};
pub use tls::{Tls, TlsError};

#[cfg(test)]
mod tests;
