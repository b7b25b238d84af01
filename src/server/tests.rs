//! Both servers over real connections of this machine, with a real lease registry behind them.

mod admin;
mod bad_input;
mod connections;
pub(super) mod entries;
mod grants;
mod held;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use egress_actors::board::{Board, ProxyView};
use egress_actors::domain::desired::{Attributes, Endpoint, Scheme};
use egress_actors::domain::id::{ProxyKey, Uid};
use egress_actors::domain::instance::Credentials;
use egress_actors::domain::lease_book::{Offer, Terms};
use egress_actors::domain::reason::Reason;
use egress_actors::domain::status::{Condition, ConditionType, LastProbe, Phase, Status, Truth};
use egress_actors::election::{Claim, ClaimState};
use egress_actors::kit::clock::Clock;
use egress_actors::kit::stat::Stat;
use egress_actors::kit::task::{StopSignal, StopTrigger};
use egress_actors::kit::{Env, Root, Tell};
use egress_actors::leases::{LeasesArgs, LeasesHandle};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::auth::Tokens;
use super::leases::LeaseApi;
use super::serve::{Limits, serve};

/// Every test's passwords contain it: what must not show is looked for by it.
const SECRET: &str = "p@ss/w0rd";

/// A server that ends with its test.
struct Served {
    address: SocketAddr,
    stop: StopTrigger,
    done: tokio::task::JoinHandle<Result<(), String>>,
}

async fn serve_here(router: Router, limits: Limits) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, signal) = StopSignal::new();
    let done = tokio::spawn(serve(listener, router, None, signal, limits));
    Served { address, stop, done }
}

impl Served {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// Keeps the registry in the middle of a message for as long as it is shut.
#[derive(Clone, Default)]
struct Gate {
    state: Arc<(Mutex<bool>, Condvar)>,
    /// Somebody stands before the shut gate.
    holds: Arc<AtomicBool>,
    /// Keep the runtime's worker as well, and with it whatever that worker would have run next.
    keeps_worker: bool,
}

impl Gate {
    fn shut(&self) {
        *self.state.0.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.state.0.lock().unwrap() = false;
        self.state.1.notify_all();
    }

    fn pass(&self) {
        // With a limit: a test that fails while it is shut must still end.
        let wait = || {
            let shut = self.state.0.lock().unwrap();
            self.holds.store(*shut, Ordering::SeqCst);
            drop(self.state.1.wait_timeout_while(shut, Duration::from_secs(30), |shut| *shut).unwrap());
        };
        if self.keeps_worker { wait() } else { tokio::task::block_in_place(wait) }
    }
}

/// How a test wants its world.
struct Wish {
    token: Option<&'static str>,
    claim: ClaimState,
    is_fleet_known: bool,
    is_registry_up: bool,
    /// A busy registry keeps its worker busy too.
    keeps_worker: bool,
    limits: Limits,
}

impl Default for Wish {
    fn default() -> Self {
        let claim = ClaimState::Leading { epoch: 7, until: None };
        Self {
            token: None,
            claim,
            is_fleet_known: true,
            is_registry_up: true,
            keeps_worker: false,
            limits: Limits::default(),
        }
    }
}

struct World {
    env: Arc<Env>,
    leases: LeasesHandle,
    board: Board,
    gate: Gate,
    served: Served,
    client: Client,
    _root: Option<Root>,
}

impl World {
    async fn new() -> Self {
        Self::wished(Wish::default()).await
    }

    async fn wished(wish: Wish) -> Self {
        let claim = Claim::new(wish.claim).1.held_by("pod-b");
        Self::under(claim, wish).await
    }

    async fn under(claim: Claim, wish: Wish) -> Self {
        let env = Env::new(Clock::System);
        let leases = LeasesHandle::new(&env);
        let gate = Gate { keeps_worker: wish.keeps_worker, ..Gate::default() };
        let passing = gate.clone();
        let args = LeasesArgs {
            terms: Terms::new(7, Duration::from_secs(3600), Duration::from_secs(300)),
            claim: claim.clone(),
            serve_without_claim: false,
            look_now: Tell::new(move |_| passing.pass()),
        };
        let root = wish.is_registry_up.then(|| Root::start(&env, leases.spec(args)));
        let board = Board::default();
        let api = LeaseApi {
            env: env.clone(),
            leases: leases.clone(),
            board: board.clone(),
            claim: claim.clone(),
            tokens: Tokens::one(wish.token.map(Into::into).as_ref()),
            max_ttl: Duration::from_secs(3600),
            is_fleet_known: Arc::new(move || wish.is_fleet_known),
        };
        let served = serve_here(api.router(), wish.limits).await;
        // An idle connection in the client's pool would take one of the server's places.
        crate::crypto::install();
        let client = Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(Duration::from_secs(20));
        let client = client.build().unwrap();
        if root.is_some() {
            // A standby answers nothing, and is up all the same.
            let is_standby = claim.state() == ClaimState::Standby;
            eventually("the registry is up", async || is_standby || leases.proxies().await.is_ok()).await;
        }
        Self { env, leases, board, gate, served, client, _root: root }
    }

    fn send(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.served.url(path))
    }

    async fn get(&self, path: &str) -> Response {
        self.send(Method::GET, path).send().await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Response {
        self.send(Method::POST, path).json(&body).send().await.unwrap()
    }

    /// A lease as a client gets it, of the Proxies with this tier.
    async fn lease(&self, tier: &str) -> Value {
        let response = self.send(Method::POST, &format!("/v1/leases?tier={tier}")).send().await.unwrap();
        assert_eq!(response.status(), 201, "{tier}");
        response.json::<Value>().await.unwrap()["leases"][0].take()
    }

    /// Puts Proxies on offer, each with so many places; names are `crawl/<tier>-<n>`.
    fn offer(&self, tier: &str, proxies: usize, capacity: u32) {
        for at in 0..proxies {
            let offer = offer(tier, at, capacity);
            self.board.put(row(&offer));
            self.leases.offer(offer);
        }
    }

    /// What the registry is doing.
    fn registry(&self) -> Arc<Stat> {
        self.env.registry.all().into_iter().find(|stat| stat.kind() == "leases").unwrap()
    }

    async fn out(&self) -> usize {
        self.leases.list("default".into(), None).await.unwrap().len()
    }

    /// Occupies the registry until the gate opens.
    async fn occupy(&self) {
        self.begin_to_occupy().await;
        self.is_occupied().await;
    }

    async fn begin_to_occupy(&self) {
        self.offer("busy", 1, 1);
        let id = self.lease("busy").await["id"].as_str().unwrap().to_owned();
        self.gate.shut();
        let report = self.send(Method::POST, &format!("/v1/leases/{id}/report"));
        tokio::spawn(report.json(&serde_json::json!({"outcome": "timeout", "release": true})).send());
    }

    async fn is_occupied(&self) {
        eventually("the registry is busy", async || self.gate.holds.load(Ordering::SeqCst)).await;
    }
}

fn key(tier: &str, at: usize) -> ProxyKey {
    ProxyKey::new("crawl", &format!("{tier}-{at}")).unwrap()
}

fn offer(tier: &str, at: usize, capacity: u32) -> Offer {
    let host = format!("10.0.0.{}", at + 1);
    Offer {
        key: key(tier, at),
        uid: Uid::parse(&format!("uid-{tier}-{at}")).unwrap(),
        endpoint: Endpoint { scheme: Scheme::Http, host: host.as_str().into(), port: 3128 },
        credentials: Some(Credentials { username: "u:1".into(), password: Arc::new(SECRET.into()) }),
        attributes: Arc::new(Attributes::from_iter([("tier".into(), tier.into())])),
        capacity,
        domain: host.into(),
        exit_ip: Some("203.0.113.9".into()),
    }
}

fn row(offer: &Offer) -> ProxyView {
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_796_083_200);
    let status = Status {
        address: Some(offer.endpoint.host.clone()),
        endpoint: Some(offer.endpoint.to_string().into()),
        exit_ip: offer.exit_ip.clone(),
        conditions: vec![Condition {
            kind: ConditionType::Ready,
            truth: Truth::True,
            reason: Reason::Healthy,
            message: "the latest probe went through".into(),
            since: at,
        }],
        ..Status::blank(Phase::Ready, 1)
    };
    ProxyView {
        key: offer.key.clone(),
        uid: offer.uid.clone(),
        provider: None,
        host: None,
        attributes: offer.attributes.clone(),
        max_leases: offer.capacity,
        status: Arc::new(status),
        last_probe: Some(LastProbe { at, ok: true, latency: Duration::from_millis(12), reason: None }),
        exit_ip: offer.exit_ip.clone(),
    }
}

/// Status, code and detail of a problem; everything else of its shape is checked here.
async fn problem(response: Response) -> (u16, String, String) {
    let status = response.status().as_u16();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let retry = response.headers().get("retry-after").map(|after| after.to_str().unwrap().parse::<u64>().unwrap());
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["status"], status, "{body}");
    assert!(body["type"].is_string() && body["title"].is_string(), "{body}");
    let may_help = matches!(status, 409 | 503) && !body["detail"].as_str().unwrap().contains("waiting cannot help");
    assert_eq!(retry.is_some(), may_help, "Retry-After of {body}");
    let text = |name: &str| body[name].as_str().unwrap().to_owned();
    (status, text("code"), text("detail"))
}

/// Waits for what happens in its own time, with a limit.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < limit, "it never came true: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads to the end of the connection; `None` if it stays open.
async fn read_to_close(stream: &mut TcpStream, within: Duration) -> Option<String> {
    let mut text = Vec::new();
    match tokio::time::timeout(within, stream.read_to_end(&mut text)).await {
        Ok(_closed_or_reset) => Some(String::from_utf8_lossy(&text).into_owned()),
        Err(_) => None,
    }
}

async fn write(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}
