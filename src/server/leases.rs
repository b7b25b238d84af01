//! The lease API: the routes of contract.md 5 over the registry's verbs.
//!
//! Spoken to by crawlers. It parses, asks the registry once, and writes the answer; it keeps nothing between requests
//! and takes no decision about a lease. A grant does no I/O and shares no lock with anything that waits.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use egress_actors::board::Board;
use egress_actors::domain::id::LeaseId;
use egress_actors::domain::lease_book::{Breakdown, Refusal, Verdict};
use egress_actors::election::{Claim, ClaimState};
use egress_actors::kit::Env;
use egress_actors::leases::{LeasesHandle, NotGranted};
use egress_actors::names;
use egress_actors::operator::Handles;
use serde::Serialize;

use super::auth::{Caller, Tokens, lease_caller};
use super::body::{json, json_text, limited};
use super::breakdown::{Counts, Situation};
use super::dto::{self, Asked, Credentials, GrantBody, GrantRequest, LeaseBody, LeaseList, ProxyBody, ProxyList};
use super::error::{BadField, Code, Problem, with_fallbacks};
use super::handover;
use super::line;
use super::negotiate::{Form, is_json, preferred};

/// The largest body: a thousand excluded names fit, and 4096 connections cannot hold much.
const MAX_BODY: usize = 64 * 1024;

const LEASE_ID: HeaderName = HeaderName::from_static("lease-id");
const LEASE_EXPIRES: HeaderName = HeaderName::from_static("lease-expires");

/// What the lease API needs.
#[derive(Clone)]
pub struct LeaseApi {
    pub env: Arc<Env>,
    pub leases: LeasesHandle,
    pub board: Board,
    pub claim: Claim,
    pub tokens: Tokens,
    pub max_ttl: Duration,
    /// Whether the fleet has been read: before that, "there is none" would be a lie.
    pub is_fleet_known: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for LeaseApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseApi").field("tokens", &self.tokens).field("max_ttl", &self.max_ttl).finish_non_exhaustive()
    }
}

impl LeaseApi {
    pub fn of(handles: &Handles, tokens: Tokens, max_ttl: Duration) -> Self {
        let (watch, proxies) = (handles.watch.clone(), handles.proxies.clone());
        Self {
            env: handles.env.clone(),
            leases: handles.leases.clone(),
            board: handles.board.clone(),
            claim: handles.claim.clone(),
            tokens,
            max_ttl,
            is_fleet_known: Arc::new(move || watch.state().synced && proxies.are_announced()),
        }
    }

    pub fn router(self) -> Router {
        let api = Arc::new(self);
        let routes = Router::new()
            .route("/v1/leases", post(grant).get(list))
            .route("/v1/leases/{id}", get(show).delete(release))
            .route("/v1/leases/{id}/renew", post(renew))
            .route("/v1/leases/{id}/report", post(report))
            .route("/v1/proxies", get(proxies))
            .route("/v1/explain", get(explain));
        limited(with_fallbacks(routes), MAX_BODY)
            .layer(middleware::from_fn_with_state(api.clone(), authenticate))
            .with_state(api)
    }
}

type Api = State<Arc<LeaseApi>>;
type Body = Result<Bytes, BytesRejection>;

/// Before the body is read, and for routes that do not exist too.
async fn authenticate(State(api): Api, mut request: Request, next: Next) -> Response {
    match lease_caller(&api.tokens, request.headers(), request.uri()) {
        // It has no book: what it said of a lease would be wrong. Over the same connection the next request would come
        // here again, whoever leads by then.
        Ok(_) if api.claim.state() == ClaimState::Standby => {
            let sent_on = Problem::standby(api.claim.holder().as_deref());
            ([(header::CONNECTION, HeaderValue::from_static("close"))], sent_on).into_response()
        }
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

// --- grants ----------------------------------------------------------------------------------------------------------

async fn grant(
    State(api): Api,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let began = Instant::now();
    let answer = granted(&api, caller, &uri, &headers, body).await;
    metrics::histogram!(names::LEASE_GRANT_SECONDS).record(began.elapsed());
    answer
}

async fn granted(
    api: &LeaseApi,
    caller: Caller,
    uri: &Uri,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let body = json_body(headers, body)?;
    let query = uri.query().unwrap_or_default();
    let (request, asked) = match (query.is_empty(), body.is_empty()) {
        (true, _) => (dto::read(&body)?, Asked::InJson),
        (false, true) => (line::read(query)?, Asked::InQuery),
        (false, false) => {
            return Err(BadField::bare("query", "given together with a body: say it in one of them").into());
        }
    };
    let ask = request.into_ask(asked, caller.token, api.max_ttl)?;
    let (granted, undelivered) = match handover::acquire(&api.leases, ask.clone()).await? {
        Ok(granted) => granted,
        Err(NotGranted::NotLeading) => {
            return Err(Problem::not_ready("this replica does not lead, or cannot prove that it does"));
        }
        Err(NotGranted::Refused(_)) if !(api.is_fleet_known)() => {
            return Err(Problem::not_ready("the proxies have not all been read yet"));
        }
        Err(NotGranted::Refused(Refusal::NoSuchSelector)) => {
            return Err(Problem::no_such_selector(&Situation::new(&ask, Breakdown::default())));
        }
        Err(NotGranted::Refused(Refusal::NoneAvailable(breakdown))) => {
            return Err(Problem::none_available(&Situation::new(&ask, breakdown)));
        }
    };
    let now = api.env.clock.now();
    let leases: Vec<_> = granted.leases.iter().map(|lease| LeaseBody::new(lease, Credentials::Shown, now)).collect();
    let mut response = StatusCode::CREATED.into_response();
    let told = response.headers_mut();
    if let Some(first) = leases.first() {
        told.insert(header::LOCATION, header_value(&format!("/v1/leases/{}", first.id)));
    }
    for lease in &leases {
        lease_headers(told, lease);
    }
    let (kind, text) = match preferred(headers) {
        Form::Text => {
            let urls = leases.iter().map(|lease| format!("{}\n", lease.proxy.url));
            ("text/plain; charset=utf-8", urls.collect())
        }
        Form::Json => {
            let body = GrantBody { leases, selector_index: granted.selector };
            ("application/json", json_text(&body))
        }
    };
    told.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    told.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(handover::answer(response, text, undelivered))
}

/// In every form of an answer; once for each lease, in the order of the body: the n-th of each is the n-th lease's.
fn lease_headers(headers: &mut HeaderMap, lease: &LeaseBody) {
    headers.append(LEASE_ID, header_value(&lease.id));
    headers.append(LEASE_EXPIRES, header_value(&lease.expires_at));
}

fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("ids and times are printable ASCII")
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExplainBody {
    would_grant: bool,
    /// Which selector would be met.
    selector_index: Option<usize>,
    /// What a grant would be refused with.
    code: Option<&'static str>,
    detail: String,
    #[serde(flatten)]
    counts: Counts,
}

async fn explain(State(api): Api, Extension(caller): Extension<Caller>, uri: Uri) -> Result<Response, Problem> {
    let request: GrantRequest = line::read(uri.query().unwrap_or_default())?;
    let ask = request.into_ask(Asked::InQuery, caller.token, api.max_ttl)?;
    let explained = api.leases.explain(ask.clone()).await?;
    let situation = Situation::new(&ask, explained.breakdown);
    let (selector_index, code) = match explained.verdict {
        Verdict::WouldGrant { selector } => (Some(selector), None),
        Verdict::NoneAvailable | Verdict::NoSuchSelector if !(api.is_fleet_known)() => (None, Some(Code::NotReady)),
        Verdict::NoneAvailable => (None, Some(Code::NoneAvailable)),
        Verdict::NoSuchSelector => (None, Some(Code::NoSuchSelector)),
    };
    Ok(json(&ExplainBody {
        would_grant: selector_index.is_some(),
        selector_index,
        code: code.map(Code::as_str),
        detail: situation.sentence(),
        counts: situation.counts(),
    }))
}

// --- leases that are out ---------------------------------------------------------------------------------------------

async fn renew(State(api): Api, LeaseOf(id): LeaseOf, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let request: dto::RenewRequest = dto::read(&json_body(&headers, body)?)?;
    let ttl = request.ttl(api.max_ttl)?;
    let renewed = api.leases.renew(id.clone(), ttl, request.generation).await?;
    let now = api.env.clock.now();
    let lease = renewed.map_err(|why| Problem::not_held(&id, why, now))?;
    Ok(one_lease(&LeaseBody::new(&lease, Credentials::Shown, now)))
}

async fn report(State(api): Api, LeaseOf(id): LeaseOf, headers: HeaderMap, body: Body) -> Result<StatusCode, Problem> {
    let request: dto::ReportRequest = dto::read(&json_body(&headers, body)?)?;
    let reported = api.leases.report(id.clone(), request.into_report()?).await?;
    reported.map_err(|why| Problem::not_held(&id, why, api.env.clock.now()))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Always done: what is gone already, or never was, needs no release.
async fn release(State(api): Api, id: Result<LeaseOf, Problem>) -> Result<StatusCode, Problem> {
    if let Ok(LeaseOf(id)) = id {
        api.leases.release(id).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// With credentials: whoever has the token and the id, as a holder after its restart, may go on using the lease.
async fn show(
    State(api): Api,
    Extension(caller): Extension<Caller>,
    LeaseOf(id): LeaseOf,
) -> Result<Response, Problem> {
    let found = api.leases.get(id.clone()).await?;
    let now = api.env.clock.now();
    let lease = found.map_err(|why| Problem::not_held(&id, why, now))?;
    if lease.token != caller.token {
        return Err(Problem::no_such_lease(id.as_str()));
    }
    Ok(one_lease(&LeaseBody::new(&lease, Credentials::Shown, now)))
}

async fn list(State(api): Api, Extension(caller): Extension<Caller>, uri: Uri) -> Result<Response, Problem> {
    let mut owner = None;
    for (key, value) in line::pairs(uri.query().unwrap_or_default())? {
        if key != "owner" {
            return Err(BadField::new("query", key, "as a key, only owner is known here").into());
        }
        if owner.replace(dto::owner(&value)?).is_some() {
            return Err(BadField::bare("owner", "given twice, must be given once").into());
        }
    }
    let leases = api.leases.list(caller.token, owner).await?;
    let now = api.env.clock.now();
    let leases = leases.iter().map(|lease| LeaseBody::new(lease, Credentials::Hidden, now)).collect();
    Ok(json(&LeaseList { leases }))
}

async fn proxies(State(api): Api) -> Result<Response, Problem> {
    let book = api.leases.proxies().await?;
    let now = api.env.clock.now();
    let proxies = api.board.all().iter().map(|row| ProxyBody::new(row, book.get(&row.key), now)).collect();
    Ok(json(&ProxyList { proxies }))
}

// --- parts -----------------------------------------------------------------------------------------------------------

/// The lease that a path names. What cannot be an id is no lease of ours.
struct LeaseOf(LeaseId);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for LeaseOf {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        let Path(text) = path.map_err(|_| BadField::bare("id", "must be text in UTF-8"))?;
        LeaseId::parse(&text).map(Self).map_err(|_| Problem::no_such_lease(&text))
    }
}

/// The body, empty or said to be JSON. What tools send along with an empty body does not matter.
fn json_body(headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let body = body.map_err(|rejection| Problem::body(&rejection, MAX_BODY))?;
    if body.is_empty() || is_json(headers) {
        return Ok(body);
    }
    let given = headers.get(header::CONTENT_TYPE).map_or("none", |value| value.to_str().unwrap_or("unreadable"));
    let detail = format!(
        "content-type: `{}` given, must be application/json in UTF-8 (curl: -H 'content-type: application/json')",
        given.escape_debug()
    );
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

fn one_lease(lease: &LeaseBody) -> Response {
    let mut response = json(lease);
    lease_headers(response.headers_mut(), lease);
    response
}
