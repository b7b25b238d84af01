//! The way of a grant from the registry to the client: what does not arrive is given back.
//!
//! A client may go away at any await between its request and the last byte of its answer, and then nobody knows the ids
//! of its leases. So they travel in a guard that releases them when it is dropped, and that lets go of them only when
//! the whole body was handed to the connection. Beyond that point a lost answer cannot be told from a slow one: such a
//! lease ends with its TTL (an `Idempotency-Key` gets it back, once there is one).

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use egress_actors::domain::id::LeaseId;
use egress_actors::domain::lease_book::{Ask, Granted};
use egress_actors::kit::CallError;
use egress_actors::leases::{LeasesHandle, NotGranted};
use futures::stream;

/// Leases whose holder does not know of them yet.
pub(super) struct Undelivered {
    leases: LeasesHandle,
    ids: Vec<LeaseId>,
}

impl Undelivered {
    pub(super) fn new(leases: &LeasesHandle, ids: Vec<LeaseId>) -> Self {
        Self { leases: leases.clone(), ids }
    }

    fn delivered(mut self) {
        self.ids.clear();
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        if ids.is_empty() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let leases = self.leases.clone();
        // A release that fails leaves the lease to its TTL.
        runtime.spawn(async move {
            for id in ids {
                match leases.release(id.clone()).await {
                    Ok(_) => tracing::debug!(lease = %id, "the client went away before its answer: lease given back"),
                    Err(error) => tracing::debug!(lease = %id, %error, "a lease that nobody holds runs until its end"),
                }
            }
        });
    }
}

/// What the registry says, with the guard of what it granted.
pub(super) type Acquired = Result<Result<(Granted, Undelivered), NotGranted>, CallError>;

/// Asks the registry. Its answer is waited for in a task of its own: dropping a call just when its answer has arrived
/// would lose the answer, and with it the ids. The call's own timeout bounds the task.
pub(super) async fn acquire(leases: &LeasesHandle, ask: Ask) -> Acquired {
    let leases = leases.clone();
    let asking = tokio::spawn(async move {
        let granted = leases.acquire(ask).await?;
        Ok(granted.map(|granted| {
            let ids = granted.leases.iter().map(|lease| lease.id.clone()).collect();
            (granted, Undelivered::new(&leases, ids))
        }))
    });
    asking.await.unwrap_or(Err(CallError::Down))
}

/// Makes `text` the body of the answer, and the guard part of it.
pub(super) fn answer(mut response: Response, text: String, undelivered: Undelivered) -> Response {
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
    *response.body_mut() = Body::from_stream(stream::once(async move {
        undelivered.delivered();
        Ok::<_, Infallible>(Bytes::from(text))
    }));
    response
}
