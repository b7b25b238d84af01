//! The legs: who probes, on the same runtime, through the same Squid, to the same target.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use egress_actors::domain::desired::{Endpoint, HealthCheck, Scheme};
use egress_actors::domain::health::{FailureDomain, Probe, ProbeOutcome};
use egress_actors::kit::actor::InitError;
use egress_actors::kit::clock::Clock;
use egress_actors::kit::{Behavior, ChildSpec, Ctx, Env, Named, Ref, Root, Tell};
use egress_actors::operator::Operator;
use egress_actors::ports::Prober;
use egress_actors::probes::{ProbesArgs, ProbesHandle, Track};
use egress_actors::standing::Standing;
use egress_operator::dns::Dns;
use egress_operator::probe::TunnelProber;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use url::Url;

use crate::fleet;
use crate::lab::Lab;
use crate::measure::{Trouble, cpu_time, cpu_time_of, quantile, sorted};

/// Probes at once of one failure domain: an eighth of the workers.
const SLOTS: usize = 50;
const WORKERS: usize = SLOTS * 8;

/// Proxies that are probed, all at the one Squid.
const PROXIES: usize = 2_000;

/// Far below what a turn through all of them takes, so that every slot is always taken.
const INTERVAL: Duration = Duration::from_millis(50);

const TIMEOUT: Duration = Duration::from_secs(10);

/// Before the window, each leg runs so long.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// Between two legs, for what the one before left on its way.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    Bare,
    Pool,
    Operator,
}

/// What is probed, and through what.
pub struct Site {
    proxy: u16,
    target: Arc<Url>,
    prober: TunnelProber,
}

impl Site {
    pub fn plain(lab: &Lab) -> Result<Self, Trouble> {
        let target = Arc::new(format!("http://127.0.0.1:{}/echo", lab.target.port).parse()?);
        Ok(Self { proxy: lab.squid.port, target, prober: TunnelProber::new(Dns::system(), &[])? })
    }

    pub fn tls(lab: &Lab) -> Result<Self, Trouble> {
        let target = Arc::new(format!("https://127.0.0.1:{}/echo", lab.tls_target.port).parse()?);
        let roots: Vec<_> = lab.tls_target.certificate.iter().cloned().collect();
        Ok(Self { proxy: lab.squid.port, target, prober: TunnelProber::new(Dns::system(), &roots)? })
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint { scheme: Scheme::Http, host: "127.0.0.1".into(), port: self.proxy }
    }

    fn check(&self) -> HealthCheck {
        let target = Some(self.target.clone());
        HealthCheck { target, interval: INTERVAL, timeout: TIMEOUT, ..HealthCheck::default() }
    }
}

/// One leg for one window.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    pub rate: f64,
    pub cpu_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub squid_cores: f64,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, cpu_ms, p50_ms, p99_ms, squid_cores } = self;
        write!(f, "{rate:.0}/s, {cpu_ms:.3} ms CPU, p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, squid {squid_cores:.2}")
    }
}

/// What the probes of a leg come to.
#[derive(Debug, Default)]
struct Tally {
    latencies_ms: Mutex<Vec<f64>>,
    failures: AtomicU64,
    failure: Mutex<Option<String>>,
}

impl Tally {
    fn well(&self, latency: Duration) {
        self.latencies_ms.lock().unwrap_or_else(PoisonError::into_inner).push(latency.as_secs_f64() * 1e3);
    }

    fn failed(&self, why: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    fn take(&self) -> Vec<f64> {
        std::mem::take(&mut *self.latencies_ms.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Leg {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Pool => "pool",
            Self::Operator => "operator",
        }
    }

    /// Runs the leg; any probe that fails is the end of the measurement.
    pub async fn round(self, site: &Site, window: Duration, lab: &Lab) -> Result<Round, Trouble> {
        let tally = Arc::new(Tally::default());
        let running = match self {
            Self::Bare => Running::Tasks(bare(site, &tally)),
            Self::Pool => Running::Tree(pool(site, &tally)?),
            Self::Operator => Running::Tree(operator(site, &tally)?),
        };
        tokio::time::sleep(WARM_UP).await;
        let (cpu, squid, began) = (cpu_time(), cpu_time_of(lab.squid.pid())?, Instant::now());
        drop(tally.take());
        tokio::time::sleep(window).await;
        let latencies = tally.take();
        let elapsed = began.elapsed().as_secs_f64();
        let (cpu, squid) = (cpu_time() - cpu, cpu_time_of(lab.squid.pid())? - squid);
        let failures = tally.failures.load(Ordering::Relaxed);
        running.stop().await?;
        tokio::time::sleep(PAUSE).await;

        if let Some(failure) = tally.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
            && failures > 0
        {
            return Err(format!("{failures} probes of leg {} failed, the first one: {failure}", self.name()).into());
        }
        let probes = super::count(latencies.len());
        if latencies.is_empty() {
            return Err(format!("no probe of leg {} came through", self.name()).into());
        }
        let latencies = sorted(latencies);
        Ok(Round {
            rate: probes / elapsed,
            cpu_ms: cpu.as_secs_f64() * 1e3 / probes,
            p50_ms: quantile(&latencies, 0.5),
            p99_ms: quantile(&latencies, 0.99),
            squid_cores: squid.as_secs_f64() / elapsed,
        })
    }
}

enum Running {
    Tasks(JoinSet<()>),
    Tree(Root),
}

impl Running {
    async fn stop(self) -> Result<(), Trouble> {
        match self {
            Self::Tasks(mut tasks) => tasks.shutdown().await,
            Self::Tree(root) => {
                if !root.stop_within(Duration::from_secs(60)).await {
                    return Err("the tree did not stop in order".into());
                }
            }
        }
        Ok(())
    }
}

// --- ours

/// The real prober, with every outcome counted.
struct Counted(TunnelProber, Arc<Tally>);

#[async_trait]
impl Prober for Counted {
    async fn probe(&self, probe: &Probe) -> ProbeOutcome {
        let outcome = self.0.probe(probe).await;
        match &outcome.fault {
            None => self.1.well(outcome.latency),
            Some(fault) => self.1.failed(format!("{}: {}", fault.reason, fault.detail)),
        }
        outcome
    }

    async fn direct(&self, probe: &Probe) -> ProbeOutcome {
        self.0.direct(probe).await
    }
}

fn pool(site: &Site, tally: &Arc<Tally>) -> Result<Root, Trouble> {
    let prober = Arc::new(Counted(site.prober.clone(), tally.clone()));
    let handle = ProbesHandle::new();
    let env = Env::new(Clock::System);
    let args = ProbesArgs {
        prober,
        workers: WORKERS,
        default_target: site.target.clone(),
        standing: Standing::default(),
        suspects_changed: Tell::nowhere(),
    };
    let (endpoint, check) = (site.endpoint(), site.check());
    let tracks: Result<Vec<_>, Trouble> = (0..PROXIES)
        .map(|n| {
            let desired = fleet::external(n, endpoint.clone(), check.clone())?;
            Ok(Track {
                key: desired.key,
                uid: desired.uid,
                domain: FailureDomain::External(endpoint.host.clone()),
                endpoint: endpoint.clone(),
                credentials: None,
                check: check.clone(),
                trusted: false,
                tell: Tell::nowhere(),
            })
        })
        .collect();
    let begin = (handle, args, tracks?);
    Ok(Root::start(&env, ChildSpec::of::<Parent>("parent", &Ref::new("parent"), move || begin.clone())))
}

/// Starts the pool, and gives it its work once it is there.
struct Parent(ProbesHandle, Vec<Track>);

struct Begin;

impl Named for Begin {
    const NAMES: &'static [&'static str] = &["Begin"];

    fn index(&self) -> u8 {
        0
    }
}

impl Behavior for Parent {
    const KIND: &'static str = "parent";
    type Msg = Begin;
    type Args = (ProbesHandle, ProbesArgs, Vec<Track>);

    fn init((handle, args, tracks): Self::Args, ctx: &mut Ctx<Begin>) -> Result<Self, InitError> {
        ctx.start(handle.spec(args));
        ctx.cast_self(Begin);
        Ok(Self(handle, tracks))
    }

    fn handle(&mut self, Begin: Begin, _: &mut Ctx<Begin>) {
        for track in self.1.drain(..) {
            self.0.track(track);
        }
    }
}

fn operator(site: &Site, tally: &Arc<Tally>) -> Result<Root, Trouble> {
    let prober = Arc::new(Counted(site.prober.clone(), tally.clone()));
    let (endpoint, check) = (site.endpoint(), site.check());
    let nth = move |n| (n < PROXIES).then(|| fleet::external(n, endpoint.clone(), check.clone()).ok()).flatten();
    let env = Env::new(Clock::System);
    let settings = fleet::settings(WORKERS, site.target.clone())?;
    Ok(Operator::wire(&env, &fleet::ports(nth, prober), Vec::new(), &settings).start(Vec::new(), Vec::new()))
}

// --- the bound

fn bare(site: &Site, tally: &Arc<Tally>) -> JoinSet<()> {
    let proxy = SocketAddr::from(([127, 0, 0, 1], site.proxy));
    let target = format!("127.0.0.1:{}", site.target.port().unwrap_or(80));
    let connect: Arc<str> = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").into();
    let head: Arc<str> = format!("HEAD /echo HTTP/1.1\r\nHost: {target}\r\n\r\n").into();
    let mut tasks = JoinSet::new();
    for _ in 0..SLOTS {
        let (connect, head, tally) = (connect.clone(), head.clone(), tally.clone());
        tasks.spawn(async move {
            loop {
                let began = Instant::now();
                match bare_probe(proxy, &connect, &head).await {
                    Ok(()) => tally.well(began.elapsed()),
                    Err(error) => tally.failed(error.to_string()),
                }
            }
        });
    }
    tasks
}

async fn bare_probe(proxy: SocketAddr, connect: &str, head: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(proxy).await?;
    stream.set_nodelay(true)?;
    say_and_hear(&mut stream, connect, b"HTTP/1.1 200").await?;
    say_and_hear(&mut stream, head, b"HTTP/1.1 204").await
}

async fn say_and_hear(stream: &mut TcpStream, request: &str, status: &[u8]) -> std::io::Result<()> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 1024];
    let mut length = 0;
    while !answer[..length].ends_with(b"\r\n\r\n") {
        match stream.read(&mut answer[length..]).await? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            more => length += more,
        }
    }
    if answer.starts_with(status) { Ok(()) } else { Err(std::io::Error::other("another status")) }
}
