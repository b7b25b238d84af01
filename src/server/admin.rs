//! The admin endpoint: health, metrics, the running tree, the providers, and a few levers (contract.md 6).
//!
//! Runs on a small runtime of its own and reads shared cells only: it answers while every actor, and every worker of the
//! main runtime, is busy. It never calls an actor. `/livez`, `/readyz` and `/metrics` are open; `/admin` is not.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use egress_actors::kit::Env;
use egress_actors::kit::tree::{self, TreeNode};
use egress_actors::providers::Directory;
use futures::future::BoxFuture;
use serde::Serialize;

use super::auth::{Tokens, admin_caller};
use super::body::{json, limited};
use super::error::{BadField, Code, Problem, with_fallbacks};
use super::health::{Check, readiness};
use super::line;
use super::negotiate::{Form, preferred};

mod index;
mod providers;
mod sweep;

use index::index;
use providers::providers;

/// A log filter is the only body there is.
const MAX_BODY: usize = 8 * 1024;

/// A manifest that cannot be read or accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManifestProblem {
    pub file: PathBuf,
    pub line: Option<u64>,
    pub message: String,
}

/// Takes a log filter, or says why it cannot be used.
pub type SetLogLevel = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// What the wiring lends: the endpoint knows none of the parts behind it.
#[derive(Clone)]
pub struct Controls {
    /// The metrics as Prometheus reads them.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Reads the providers config (and certificates) anew; says what came of it.
    pub reload: Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>,
    /// Whether the providers config on disk is the one in use.
    pub config: Arc<dyn Fn() -> Result<String, String> + Send + Sync>,
    /// The log filter in use.
    pub log_level: Arc<dyn Fn() -> String + Send + Sync>,
    pub set_log_level: Arc<SetLogLevel>,
    /// Manifests that cannot be used just now.
    pub problems: Arc<dyn Fn() -> Vec<ManifestProblem> + Send + Sync>,
}

impl fmt::Debug for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Controls")
    }
}

/// What the admin endpoint needs.
#[derive(Debug, Clone)]
pub struct Admin {
    pub env: Arc<Env>,
    pub directory: Directory,
    /// `--gc-dry-run`: orphans are told and not deleted.
    pub sweep_dry_run: bool,
    pub tokens: Tokens,
    pub checks: Vec<Check>,
    pub controls: Controls,
}

impl Admin {
    pub fn router(self) -> Router {
        let admin = Arc::new(self);
        let guarded = Router::new()
            .route("/admin", get(index))
            .route("/admin/", get(index))
            .route("/admin/actors", get(actors))
            .route("/admin/providers", get(providers))
            .route("/admin/problems", get(problems))
            .route("/admin/reload", post(reload))
            .route("/admin/log-level", get(log_level).put(set_log_level));
        let open = Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics));
        limited(with_fallbacks(open.merge(guarded)), MAX_BODY)
            .layer(middleware::from_fn_with_state(admin.clone(), guard))
            .with_state(admin)
    }
}

type Adm = State<Arc<Admin>>;

/// Everything below `/admin`, also what does not exist there.
async fn guard(State(admin): Adm, request: Request, next: Next) -> Response {
    if request.uri().path().starts_with("/admin") {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
        let allowed = match peer {
            Some(peer) => admin_caller(&admin.tokens, request.headers(), request.uri(), peer),
            // `serve` always tells the peer: without one nobody can say where this comes from.
            None => Err(Problem::new(Code::Internal, "the peer of this connection is not known")),
        };
        if let Err(problem) = allowed {
            return problem.into_response();
        }
    }
    next.run(request).await
}

// --- open ------------------------------------------------------------------------------------------------------------

async fn readyz(State(admin): Adm, uri: Uri) -> Response {
    let told = readiness(&admin.checks);
    let is_verbose =
        uri.query().is_some_and(|query| query.split('&').any(|key| key == "verbose" || key.starts_with("verbose=")));
    match (told.is_ready, is_verbose) {
        (true, true) => told.lines.into_response(),
        (true, false) => "ok\n".into_response(),
        // Why not is always told: whoever asks wants to know next.
        (false, _) => (Code::NotReady.status(), told.lines).into_response(),
    }
}

async fn metrics(State(admin): Adm) -> Response {
    let mut response = (admin.controls.metrics)().into_response();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

// --- the tree --------------------------------------------------------------------------------------------------------

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeBody {
    path: Arc<str>,
    kind: &'static str,
    status: &'static str,
    mailbox: Mailbox,
    handled: u64,
    restarts: u32,
    current: Option<Current>,
    last_progress_ms: u64,
    children: Vec<NodeBody>,
}

#[derive(Debug, Default, Serialize)]
struct Mailbox {
    depth: usize,
    /// Null where results and timers come in only.
    capacity: Option<usize>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Current {
    message: &'static str,
    for_ms: u64,
}

impl From<TreeNode> for NodeBody {
    fn from(node: TreeNode) -> Self {
        let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            path: node.path,
            kind: node.kind,
            status: node.status,
            mailbox: Mailbox { depth: node.depth, capacity: node.capacity },
            handled: node.handled,
            restarts: node.restarts,
            current: node.current.map(|(message, since)| Current { message, for_ms: millis(since) }),
            last_progress_ms: millis(node.last_progress),
            children: node.children.into_iter().map(Self::from).collect(),
        }
    }
}

async fn actors(State(admin): Adm, headers: HeaderMap) -> Response {
    let mut roots = tree::snapshot(&admin.env.registry);
    if preferred(&headers) == Form::Text {
        return tree::draw(&roots).into_response();
    }
    let whole = if roots.len() == 1
        && let Some(root) = roots.pop()
    {
        NodeBody::from(root)
    } else {
        // At the start and the end there may be none, or parts whose parent has gone.
        NodeBody {
            path: "".into(),
            kind: "none",
            status: "stopped",
            mailbox: Mailbox::default(),
            handled: 0,
            restarts: 0,
            current: None,
            last_progress_ms: 0,
            children: roots.into_iter().map(NodeBody::from).collect(),
        }
    };
    json(&whole)
}

// --- manifests -------------------------------------------------------------------------------------------------------

#[derive(Debug, Serialize)]
struct ProblemsBody {
    problems: Vec<ManifestProblem>,
}

async fn problems(State(admin): Adm) -> Response {
    json(&ProblemsBody { problems: (admin.controls.problems)() })
}

// --- levers ----------------------------------------------------------------------------------------------------------

#[derive(Debug, Serialize)]
struct ReloadBody {
    message: String,
}

async fn reload(State(admin): Adm) -> Result<Response, Problem> {
    match (admin.controls.reload)().await {
        Ok(message) => Ok(json(&ReloadBody { message })),
        Err(why) => Err(Problem::new(Code::ReloadRefused, why)),
    }
}

#[derive(Debug, Serialize)]
struct LogLevelBody {
    filter: String,
}

/// The text form is what a PUT takes.
async fn log_level(State(admin): Adm, headers: HeaderMap) -> Response {
    let filter = (admin.controls.log_level)();
    match preferred(&headers) {
        Form::Text => format!("{filter}\n").into_response(),
        Form::Json => json(&LogLevelBody { filter }),
    }
}

async fn set_log_level(
    State(admin): Adm,
    uri: Uri,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    if let Some((key, _)) = line::pairs(uri.query().unwrap_or_default())?.into_iter().next() {
        return Err(BadField::new("query", key, "as a key, but the filter goes into the body").into());
    }
    let body = body.map_err(|rejection| Problem::body(&rejection, MAX_BODY))?;
    let filter = std::str::from_utf8(&body).map_err(|_| BadField::bare("body", "must be UTF-8"))?.trim();
    if filter.is_empty() {
        return Err(BadField::bare("body", "is empty: send a filter such as info or info,egress_actors=debug").into());
    }
    (admin.controls.set_log_level)(filter).map_err(|why| BadField::new("body", filter, why))?;
    Ok(StatusCode::NO_CONTENT)
}
