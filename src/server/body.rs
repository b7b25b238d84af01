//! Bodies of both servers: how large one may be that comes in, and how a JSON one goes out.

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::error::Problem;

/// Takes bodies of at most so many bytes. One that is announced to be larger is refused before any of it is asked for:
/// a client that waits for `100 Continue` would otherwise hear that it may send what is then refused.
pub(super) fn limited<S: Clone + Send + Sync + 'static>(router: Router<S>, most: usize) -> Router<S> {
    router.layer(DefaultBodyLimit::max(most)).layer(middleware::from_fn(
        move |request: Request, next: Next| async move {
            if is_announced_over(most, request.headers()) {
                return Problem::body_too_large(most).into_response();
            }
            next.run(request).await
        },
    ))
}

fn is_announced_over(most: usize, headers: &HeaderMap) -> bool {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    announced.is_some_and(|length| usize::try_from(length).map_or(true, |length| length > most))
}

/// An answer in JSON. It is about this moment and may hold credentials: nobody keeps it.
pub(super) fn json(body: &impl Serialize) -> Response {
    let mut response = json_text(body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// As a line: a shell's prompt stands below it, and several answers are lines to `jq`.
pub(super) fn json_text(body: &impl Serialize) -> String {
    let mut text = serde_json::to_string(body).expect("our bodies have text as keys, which is always JSON");
    text.push('\n');
    text
}
