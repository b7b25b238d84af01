//! What goes wrong, as RFC 9457 problems with stable codes: the only place that picks a status code.
//!
//! Made by the handlers from what the registry or the parsers say. It never tells a secret, and never answers 407
//! (clients read that as "bad proxy password") or 200 with an error inside.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use egress_actors::domain::clock::Now;
use egress_actors::domain::id::{InvalidName, LeaseId};
use egress_actors::domain::lease_book::{EndedBy, NotHeld};
use egress_actors::kit::CallError;
use serde_json::{Map, Value, json};

use super::body::json_text;
use super::breakdown::Situation;
use super::dto::timestamp;

/// A client that hears "not now" and no better guess waits so long.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A full queue empties in milliseconds.
const OVERLOADED_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Given values are shown up to this length.
const SHOWN: usize = 64;

/// The stable names of what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    BadRequest,
    Unauthenticated,
    OutOfScope,
    NoSuchRoute,
    MethodNotAllowed,
    NoSuchSelector,
    NoSuchLease,
    NoneAvailable,
    LeaseGone,
    GenerationMismatch,
    RequestTimeout,
    BodyTooLarge,
    UnsupportedMediaType,
    /// A reload found something that cannot be used; the old one stays.
    ReloadRefused,
    NotReady,
    Overloaded,
    Internal,
}

impl Code {
    const fn row(self) -> (&'static str, StatusCode) {
        match self {
            Self::BadRequest => ("bad_request", StatusCode::BAD_REQUEST),
            Self::Unauthenticated => ("unauthenticated", StatusCode::UNAUTHORIZED),
            Self::OutOfScope => ("out_of_scope", StatusCode::FORBIDDEN),
            Self::NoSuchRoute => ("no_such_route", StatusCode::NOT_FOUND),
            Self::MethodNotAllowed => ("method_not_allowed", StatusCode::METHOD_NOT_ALLOWED),
            Self::NoSuchSelector => ("no_such_selector", StatusCode::NOT_FOUND),
            Self::NoSuchLease => ("no_such_lease", StatusCode::NOT_FOUND),
            Self::NoneAvailable => ("none_available", StatusCode::CONFLICT),
            Self::LeaseGone => ("lease_gone", StatusCode::GONE),
            Self::GenerationMismatch => ("generation_mismatch", StatusCode::PRECONDITION_FAILED),
            Self::RequestTimeout => ("request_timeout", StatusCode::REQUEST_TIMEOUT),
            Self::BodyTooLarge => ("body_too_large", StatusCode::PAYLOAD_TOO_LARGE),
            Self::UnsupportedMediaType => ("unsupported_media_type", StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Self::ReloadRefused => ("reload_refused", StatusCode::UNPROCESSABLE_ENTITY),
            Self::NotReady => ("not_ready", StatusCode::SERVICE_UNAVAILABLE),
            Self::Overloaded => ("overloaded", StatusCode::SERVICE_UNAVAILABLE),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    pub const fn status(self) -> StatusCode {
        self.row().1
    }
}

/// One field of a request that cannot be used: names it, what was given, and what would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadField {
    pub(super) field: String,
    given: Option<String>,
    why: String,
}

impl BadField {
    pub(super) fn new(field: impl Into<String>, given: impl fmt::Display, why: impl Into<String>) -> Self {
        // Escaped, as it may be anything: this goes to terminals and logs of clients.
        let given: String = given.to_string().chars().take(SHOWN).flat_map(char::escape_debug).collect();
        Self { field: field.into(), given: Some(given), why: why.into() }
    }

    /// Without the value: it is missing, or says nothing.
    pub(super) fn bare(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self { field: field.into(), given: None, why: why.into() }
    }

    pub(super) fn of_name(field: impl Into<String>, invalid: &InvalidName) -> Self {
        Self::new(field, &invalid.given, invalid.why)
    }
}

impl fmt::Display for BadField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.given {
            Some(given) => write!(f, "{}: `{given}` given, {}", self.field, self.why),
            None => write!(f, "{}: {}", self.field, self.why),
        }
    }
}

/// An answer that says what is wrong.
#[derive(Debug, Clone)]
pub struct Problem {
    code: Code,
    detail: String,
    more: Map<String, Value>,
    retry_after: Option<Duration>,
}

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), more: Map::new(), retry_after: None }
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    #[must_use]
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.insert(name.to_owned(), value.into());
        self
    }

    #[must_use]
    fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub fn unauthenticated(detail: &str) -> Self {
        Self::new(Code::Unauthenticated, detail)
    }

    pub(super) fn not_ready(detail: &str) -> Self {
        Self::new(Code::NotReady, detail).retry_after(RETRY_AFTER)
    }

    /// A standby: whoever asks is sent on, as soon as the Service knows better.
    pub(super) fn standby(leader: Option<&str>) -> Self {
        match leader {
            Some(leader) => Self::not_ready(&format!("this replica stands by: `{leader}` leads and has the leases"))
                .with("leader", leader),
            None => Self::not_ready("this replica stands by, and no leader is known yet"),
        }
    }

    pub(super) fn no_such_selector(situation: &Situation<'_>) -> Self {
        Self::new(Code::NoSuchSelector, situation.sentence())
    }

    pub(super) fn none_available(situation: &Situation<'_>) -> Self {
        let mut problem = Self::new(Code::NoneAvailable, situation.sentence());
        problem.retry_after = situation.retry_after(RETRY_AFTER);
        if let Ok(Value::Object(counts)) = serde_json::to_value(situation.counts()) {
            problem.more.extend(counts);
        }
        problem
    }

    pub(super) fn no_such_lease(id: &str) -> Self {
        let shown: String = id.chars().take(SHOWN).flat_map(char::escape_debug).collect();
        Self::new(
            Code::NoSuchLease,
            format!("lease `{shown}` is not known: it never was, or it ended more than ten minutes ago"),
        )
    }

    pub(super) fn not_held(id: &LeaseId, why: NotHeld, now: Now) -> Self {
        match why {
            NotHeld::Unknown => Self::no_such_lease(id.as_str()),
            NotHeld::Gone(gone) => {
                let when = timestamp(now.wall_at(gone.when));
                let how = match gone.how {
                    EndedBy::Expired => "expired",
                    EndedBy::Released => "was released",
                    EndedBy::ProxyRemoved => "ended with its proxy",
                    EndedBy::ProxyReplaced => "ended with the instance behind its proxy, which is reached anew",
                };
                Self::new(Code::LeaseGone, format!("lease `{id}` {how} at {when}: acquire a new one"))
                    .with("endedBy", gone.how.as_str())
                    .with("endedAt", when)
            }
            NotHeld::GenerationMismatch { held } => {
                Self::new(Code::GenerationMismatch, format!("generation: lease `{id}` has generation {held}"))
                    .with("generation", held)
            }
        }
    }

    /// The request's body could not be read.
    pub(super) fn body(rejection: &BytesRejection, limit: usize) -> Self {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            Self::body_too_large(limit)
        } else {
            Self::new(Code::BadRequest, "the body ended before all of it was sent")
        }
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        Self::new(Code::BodyTooLarge, format!("the body is larger than {limit} bytes"))
    }

    pub(super) fn request_timeout(limit: Duration) -> Self {
        Self::new(Code::RequestTimeout, format!("the request was not complete within {} s", limit.as_secs()))
    }
}

impl From<BadField> for Problem {
    fn from(bad: BadField) -> Self {
        Self::new(Code::BadRequest, bad.to_string()).with("field", bad.field)
    }
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Full => {
                Self::new(Code::Overloaded, "too many requests are waiting").retry_after(OVERLOADED_RETRY_AFTER)
            }
            CallError::Down => Self::not_ready("the lease registry is starting"),
            CallError::Timeout => Self::not_ready("the lease registry did not answer in time"),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let mut body = Map::new();
        body.insert("type".to_owned(), json!("about:blank"));
        body.insert("title".to_owned(), json!(status.canonical_reason().unwrap_or_default()));
        body.insert("status".to_owned(), json!(status.as_u16()));
        body.insert("detail".to_owned(), json!(self.detail));
        body.insert("code".to_owned(), json!(self.code.as_str()));
        body.extend(self.more);
        let mut response = (status, json_text(&body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, whole_seconds(wait).into());
        }
        if matches!(self.code, Code::BodyTooLarge | Code::RequestTimeout) {
            // The rest of the request is not read: a client that did not know would send its next one here (RFC 9110, 15.5.14).
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.code == Code::Unauthenticated {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Seconds, rounded up, at least one: a client that comes back earlier comes in vain.
pub(super) fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// Answers what no route takes. Methods that a route lacks get their `Allow` from axum.
pub(super) fn with_fallbacks<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router
        .fallback(async |uri: Uri| {
            Problem::new(Code::NoSuchRoute, format!("there is nothing at `{}`", uri.path().escape_debug()))
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let path = uri.path().escape_debug();
            Problem::new(Code::MethodNotAllowed, format!("`{path}` does not take {method}: see the Allow header"))
        })
}

/// What a panic in a handler looks like from outside. The panic hook has logged it.
pub(super) fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    Problem::new(Code::Internal, "something broke while this request was handled; the log has the details")
        .into_response()
}
