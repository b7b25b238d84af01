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
use egress_actors::domain::status::Truth;
use egress_actors::domain::target::{TargetHealth, entry_health};
use egress_actors::kit::Env;
use egress_actors::kit::tree::{self, TreeNode};
use egress_actors::providers::{Directory, EntryCard};
use futures::future::BoxFuture;
use serde::Serialize;

use super::auth::{Tokens, admin_caller};
use super::body::{json, limited};
use super::dto::timestamp;
use super::error::{BadField, Code, Problem, with_fallbacks};
use super::health::{Check, readiness};
use super::line;
use super::negotiate::{Form, preferred};

mod index;
mod sweep;

use index::index;
use sweep::SweepBody;

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

// --- providers and manifests -----------------------------------------------------------------------------------------

#[derive(Debug, Serialize)]
struct ProvidersBody {
    config: ConfigBody,
    providers: Vec<ProviderBody>,
}

/// The providers config on disk.
#[derive(Debug, Serialize)]
struct ConfigBody {
    accepted: bool,
    message: String,
}

#[derive(Debug, Serialize)]
struct ProviderBody {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Null before the first verdict on every host.
    ready: Option<bool>,
    reason: Option<&'static str>,
    message: String,
    /// Why its ProviderHealth is not written; null if it is.
    #[serde(rename = "objectProblem")]
    untold: Option<String>,
    targets: Vec<TargetBody>,
    sweep: SweepBody,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TargetBody {
    name: String,
    ready: bool,
    reason: &'static str,
    message: String,
    latency_milliseconds: u64,
    checked_at: String,
}

impl ProviderBody {
    /// The same verdict as the ProviderHealth object tells.
    fn new(card: &EntryCard) -> Self {
        let targets: Vec<TargetHealth> = card.verdicts.load().to_vec();
        let health = entry_health(card.entry.hosts.len(), &targets);
        let ready = match health.ready {
            Truth::True => Some(true),
            Truth::False => Some(false),
            Truth::Unknown => None,
        };
        Self {
            name: card.entry.name.to_string(),
            kind: card.entry.kind,
            ready,
            reason: ready.map(|_| health.reason.as_str()),
            message: health.message,
            untold: card.untold.load().as_deref().cloned(),
            targets: targets
                .into_iter()
                .map(|target| TargetBody {
                    name: target.name.to_string(),
                    ready: target.is_ready(),
                    reason: target.reason().as_str(),
                    message: target.message().to_owned(),
                    latency_milliseconds: u64::try_from(target.latency.as_millis()).unwrap_or(u64::MAX),
                    checked_at: timestamp(target.checked_at),
                })
                .collect(),
            sweep: SweepBody::new(&card.swept.load()),
        }
    }
}

async fn providers(State(admin): Adm) -> Response {
    let providers = admin.directory.entries().iter().map(|card| ProviderBody::new(card)).collect();
    let (accepted, message) = match (admin.controls.config)() {
        Ok(message) => (true, message),
        Err(message) => (false, message),
    };
    json(&ProvidersBody { config: ConfigBody { accepted, message }, providers })
}

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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use async_trait::async_trait;
    use egress_actors::domain::error::OpError;
    use egress_actors::domain::id::{HostName, OperatorId, ProviderName};
    use egress_actors::domain::instance::{Instance, InstanceSpec, Listed, OwnerMark};
    use egress_actors::domain::reason::Reason;
    use egress_actors::ports::{Backend, HostEntry, ProviderEntry};
    use egress_actors::provider::ProviderHandle;
    use serde_json::json;

    use super::*;

    /// Never asked: the endpoint reads verdicts only.
    struct Untouched;

    #[async_trait]
    impl Backend for Untouched {
        async fn create(&self, _: &InstanceSpec) -> Result<Instance, OpError> {
            panic!("asked to create")
        }
        async fn get(&self, _: &OwnerMark) -> Result<Instance, OpError> {
            panic!("asked to get")
        }
        async fn delete(&self, _: &OwnerMark) -> Result<(), OpError> {
            panic!("asked to delete")
        }
        async fn list(&self, _: &OperatorId, _: Option<&ProviderName>) -> Result<Vec<Listed>, OpError> {
            panic!("asked to list")
        }
        async fn check(&self) -> Result<(), OpError> {
            panic!("asked to check")
        }
    }

    fn card(verdicts: &[(&str, bool)]) -> EntryCard {
        let host = |name: &str| HostEntry {
            name: HostName::parse(name).unwrap(),
            ids: format!("process://home/{name}/").into(),
            capacity: None,
            slots: 1,
            backend: Arc::new(Untouched),
        };
        let name = ProviderName::parse("home").unwrap();
        let card = EntryCard {
            provider: ProviderHandle::new(&name),
            entry: ProviderEntry {
                name,
                kind: "process",
                revision: 1,
                backend: "process".into(),
                hosts: vec![host("a"), host("b")],
                settle: Duration::ZERO,
                address_timeout: Duration::ZERO,
                may_generate_credentials: false,
            },
            hosts: std::collections::HashMap::new(),
            verdicts: Arc::default(),
            untold: Arc::default(),
            swept: Arc::default(),
        };
        let verdict = |&(name, ready): &(&str, bool)| TargetHealth {
            name: HostName::parse(name).unwrap(),
            trouble: (!ready).then(|| OpError::permanent(Reason::BinaryMissing, "no such file")),
            latency: Duration::from_millis(7),
            checked_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_083_200),
        };
        card.verdicts.store(Arc::new(verdicts.iter().map(verdict).collect()));
        card
    }

    #[test]
    fn an_entry_is_as_well_as_its_worst_host_and_unknown_before_all_are_checked() {
        let told = |verdicts: &[(&str, bool)]| serde_json::to_value(ProviderBody::new(&card(verdicts))).unwrap();
        for (verdicts, ready, reason) in [
            (&[][..], json!(null), json!(null)),
            (&[("a", true)], json!(null), json!(null)),
            (&[("a", true), ("b", true)], json!(true), json!("Healthy")),
            (&[("a", true), ("b", false)], json!(false), json!("BinaryMissing")),
            (&[("b", false)], json!(false), json!("BinaryMissing")),
        ] {
            let told = told(verdicts);
            assert_eq!((&told["ready"], &told["reason"]), (&ready, &reason), "{verdicts:?}");
        }
        let expected = json!({"name": "home", "type": "process", "ready": false, "reason": "BinaryMissing",
            "message": "b: BinaryMissing (no such file)", "objectProblem": null,
            "targets": [{"name": "b", "ready": false, "reason": "BinaryMissing", "message": "no such file",
                "latencyMilliseconds": 7, "checkedAt": "2026-12-01T00:00:00.000Z"}],
            "sweep": {"orphans": 0, "deleted": 0, "hosts": []}});
        assert_eq!(told(&[("b", false)]), expected);
    }
}
