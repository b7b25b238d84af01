//! What one idle Proxy takes: a whole operator with 10,000 of them, beside bare actors. Each in a process of its own.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use egress_actors::domain::desired::{Endpoint, HealthCheck, Scheme};
use egress_actors::domain::health::{Probe, ProbeOutcome};
use egress_actors::domain::status::Phase;
use egress_actors::kit::actor::InitError;
use egress_actors::kit::clock::Clock;
use egress_actors::kit::{Behavior, ChildSpec, Ctx, Env, Ref, Root};
use egress_actors::operator::{Handles, Operator, Ports};
use egress_actors::ports::Prober;
use egress_operator::standalone::{Options, Standalone};
use egress_operator::telemetry;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::ROLE;
use crate::fleet;
use crate::measure::{Section, Trouble, resident, row, say};

const COUNT: usize = 10_000;

/// jemalloc gives pages back ten seconds after they were last used.
const DECAY: Duration = Duration::from_secs(12);
const SETTLED_WITHIN: Duration = Duration::from_secs(180);

const CASES: [(&str, &str, &str); 4] = [
    ("ractor", "an idle ractor actor", "actor_ractor"),
    ("kit", "an idle actor of ours", "actor_kit"),
    ("operator", "a Proxy in an operator", "proxy_operator"),
    ("standalone", "a Proxy in standalone mode, its manifest and its record included", "proxy_standalone"),
];

pub fn weigh_all(section: &mut Section) -> Result<(), Trouble> {
    section.paragraph(&format!(
        "Memory: what {COUNT} of a kind add to the process, in RAM, when all is quiet and the allocator has given back \
         what it does not need; each kind in a process of its own. The Proxies are external ones, each on its own host, \
         all Ready and on offer, probed every 30 s by a prober that answers at once."
    ));
    let mut rows = vec![row([&"idle", &"KiB each"])];
    for (role, title, case) in CASES {
        let out = Command::new(std::env::current_exe()?).env(ROLE, role).output()?;
        let words = String::from_utf8_lossy(&out.stderr);
        let told = String::from_utf8_lossy(&out.stdout);
        let bytes = told.lines().last().and_then(|line| line.trim().parse::<f64>().ok());
        let kibibytes = bytes.ok_or_else(|| format!("{title} was not weighed: {words}"))? / 1024.0;
        say(&format!("  {title}: {kibibytes:.2} KiB"));
        rows.push(row([&title, &format!("{kibibytes:.1}")]));
        let key = if case.starts_with("proxy") { "rss_per_proxy_kib" } else { "rss_per_actor_kib" };
        section.result("probes", case, &[(key, kibibytes), ("count", super::count(COUNT))]);
    }
    section.table(&rows);
    Ok(())
}

/// In the child: prints the bytes that one takes.
pub fn weigh(kind: &str) -> Result<(), Trouble> {
    let _telemetry = telemetry::install(None, &"error".parse()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let grown = runtime.block_on(async {
        match kind {
            "ractor" => ractor_actors().await,
            "kit" => kit_actors().await,
            "operator" => operator().await,
            "standalone" => standalone().await,
            other => Err(format!("no such role: {other}").into()),
        }
    })?;
    writeln!(std::io::stdout(), "{}", grown / u64::try_from(COUNT)?)?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

/// What the process has grown to since `before`, once it has given back what it does not need.
async fn grown_since(before: u64) -> Result<u64, Trouble> {
    tokio::time::sleep(DECAY).await;
    let mut least = resident()?;
    // The least of some looks: a burst of probes is not what an idle Proxy takes.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        least = least.min(resident()?);
    }
    least.checked_sub(before).ok_or_else(|| "the process did not grow".into())
}

async fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Trouble> {
    let limit = tokio::time::Instant::now() + SETTLED_WITHIN;
    while !holds() {
        if tokio::time::Instant::now() > limit {
            return Err(format!("not within {SETTLED_WITHIN:?}: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

// --- actors that do nothing

type Msg = ();

struct Idle;

impl Behavior for Idle {
    const KIND: &'static str = "idle";
    type Msg = Msg;
    type Args = ();

    fn init((): (), _: &mut Ctx<Msg>) -> Result<Self, InitError> {
        Ok(Self)
    }

    fn handle(&mut self, (): Msg, _: &mut Ctx<Msg>) {}
}

struct Many;

impl Behavior for Many {
    const KIND: &'static str = "many";
    type Msg = ();
    type Args = ();

    fn init((): (), ctx: &mut Ctx<()>) -> Result<Self, InitError> {
        for n in 0..COUNT {
            ctx.start(ChildSpec::of::<Idle>(format!("proxy/crawl/px-{n}"), &Ref::new("p"), || ()));
        }
        Ok(Self)
    }

    fn handle(&mut self, (): (), _: &mut Ctx<()>) {}
}

async fn kit_actors() -> Result<u64, Trouble> {
    let before = resident()?;
    let env = Env::new(Clock::System);
    let _root = Root::start(&env, ChildSpec::of::<Many>("many", &Ref::new("many"), || ()));
    until("all actors run", || env.registry.len() > COUNT).await?;
    grown_since(before).await
}

struct Bare;

impl Actor for Bare {
    type Msg = Msg;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Msg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

struct BareMany;

impl Actor for BareMany {
    type Msg = ();
    type State = Vec<ActorRef<Msg>>;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<()>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        let mut all = Vec::new();
        for _ in 0..COUNT {
            all.push(Actor::spawn_linked(None, Bare, (), myself.get_cell()).await?.0);
        }
        Ok(all)
    }
}

async fn ractor_actors() -> Result<u64, Trouble> {
    let before = resident()?;
    let _many = Actor::spawn(None, BareMany, ()).await?;
    grown_since(before).await
}

// --- operators

/// Every proxy is well.
struct Well;

#[async_trait]
impl Prober for Well {
    async fn probe(&self, _: &Probe) -> ProbeOutcome {
        ProbeOutcome { latency: Duration::from_millis(1), exit_ip: None, fault: None }
    }

    async fn direct(&self, probe: &Probe) -> ProbeOutcome {
        self.probe(probe).await
    }
}

fn address(n: usize) -> String {
    format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255)
}

async fn operator() -> Result<u64, Trouble> {
    let nth = |n| {
        let endpoint = Endpoint { scheme: Scheme::Http, host: address(n).into(), port: 3128 };
        (n < COUNT).then(|| fleet::external(n, endpoint, HealthCheck::default()).ok()).flatten()
    };
    grown_by(&fleet::ports(nth, Arc::new(Well)), resident()?).await
}

async fn standalone() -> Result<u64, Trouble> {
    let (manifests, state) = (tempfile::tempdir()?, tempfile::tempdir()?);
    for file in 0..COUNT / 100 {
        let text: String = (file * 100..(file + 1) * 100)
            .map(|n| {
                format!(
                    "---\napiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: px-{n}, namespace: \
                     crawl}}\nspec: {{external: {{url: 'http://{}:3128'}}, attributes: {{tier: dc, region: eu}}}}\n",
                    address(n)
                )
            })
            .collect();
        std::fs::write(manifests.path().join(format!("{file}.yaml")), text)?;
    }
    let before = resident()?;
    let standalone = Standalone::open(manifests.path(), state.path(), Options::default())?;
    let ports = Ports {
        source: standalone.source(),
        records: standalone.records(),
        events: standalone.event_sink(),
        secrets: standalone.secrets(),
        prober: Arc::new(Well),
        candidacy: None,
    };
    grown_by(&ports, before).await
}

async fn grown_by(ports: &Ports, before: u64) -> Result<u64, Trouble> {
    let env = Env::new(Clock::System);
    let target = Arc::new("https://target.example/generate_204".parse()?);
    let operator = Operator::wire(&env, ports, Vec::new(), &fleet::settings(64, target)?);
    let handles = operator.handles.clone();
    let root = operator.start(Vec::new(), Vec::new());
    until("all Proxies are Ready", || ready(&handles) == COUNT).await?;
    let grown = grown_since(before).await?;
    if ready(&handles) != COUNT {
        return Err("Proxies did not stay Ready".into());
    }
    root.stop_within(Duration::from_secs(60)).await;
    Ok(grown)
}

fn ready(handles: &Handles) -> usize {
    handles.board.all().iter().filter(|view| view.status.phase == Phase::Ready).count()
}
