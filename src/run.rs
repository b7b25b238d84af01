//! From a validated configuration to a running tree, and back down in order.
//!
//! Owns the runtimes and the order of starting: state, adapters, actors, listeners. Everything that runs afterwards is a
//! child in the tree. There are two runtimes, `main` and `edge`: `edge` has the election, the admin endpoint and the
//! health answers, which read shared cells only, so that they answer while every worker of the main one is busy.

mod open;
mod reload;
mod shutdown;
mod upkeep;
mod waiting;
mod world;

use std::fmt::Display;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use egress_actors::domain::plan::Settings;
use egress_actors::domain::sweep::Terms;
use egress_actors::kit::clock::Clock;
use egress_actors::kit::supervisor::ChildSpec;
use egress_actors::kit::task::{StopSignal, task};
use egress_actors::kit::{Env, Exit};
use egress_actors::operator::{Handles, Operator, OperatorSettings};
use egress_actors::proxy::Deadlines;
use egress_actors::sweep::SweepSettings;

use self::world::World;
use crate::args::LogFilter;
use crate::config::{Config, ConfigError, Mode};
use crate::dns::Dns;
use crate::echo;
use crate::k8s::ClusterError;
use crate::probe::TunnelProber;
use crate::providers::libvirt::Means;
use crate::providers::squid_conf::Opening;
use crate::server::{Admin, Check, Controls, LeaseApi, Limits, Tls, Tokens, checks_of, serve};
use crate::standalone::StandaloneError;
use crate::telemetry::Telemetry;

/// How long the whole tree may take to end in order. A person who waits longer sends a second signal.
const STOP_WITHIN: Duration = Duration::from_secs(45);
/// Beside it, for transfers of images: a partial volume that stays is found and deleted by the next one.
const IMAGES_STOP_WITHIN: Duration = Duration::from_secs(5);

/// Why the operator did not start. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    CommandLine(#[from] crate::args::Refused),
    #[error(transparent)]
    Config(#[from] Box<ConfigError>),
    #[error(transparent)]
    Standalone(#[from] StandaloneError),
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("{flag} {address}: cannot listen: {why}; free the port or choose another")]
    Listen { flag: &'static str, address: SocketAddr, why: std::io::Error },
    #[error("--state-dir {}: cannot be made: {why}; pass a directory that the operator may write", dir.display())]
    StateDir { dir: std::path::PathBuf, why: std::io::Error },
    #[error("cannot start a runtime: {0}")]
    Runtime(std::io::Error),
    #[error(transparent)]
    Tls(#[from] crate::server::TlsError),
    #[error(transparent)]
    Roots(#[from] crate::probe::BadRoot),
}

/// Before there is a log there is only stderr.
#[expect(clippy::print_stderr, reason = "the log could not be set up")]
pub fn refuse_to_start(error: &dyn Display) -> ExitCode {
    eprintln!("egress-proxies-operator: {error}");
    ExitCode::from(2)
}

/// Runs until a signal or the end of the tree. The code says whether the end was asked for.
pub fn run(config: Config, telemetry: &Telemetry) -> Result<ExitCode, StartError> {
    raise_descriptor_limit();
    let edge = runtime("edge", Some(1))?;
    let main = runtime("main", None)?;
    // Transfers of images: what they encrypt and hash takes a core, and nobody else waits for it.
    let bulk = runtime("bulk", Some(1))?;
    let handles = (edge.handle().clone(), bulk.handle().clone());
    let code = main.block_on(supervise(config, telemetry, handles));
    // What still blocks a thread now is left behind: the tree has ended.
    for ended in [main, edge, bulk] {
        ended.shutdown_timeout(Duration::from_secs(1));
    }
    code
}

fn runtime(name: &str, workers: Option<usize>) -> Result<tokio::runtime::Runtime, StartError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name(name);
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    builder.build().map_err(StartError::Runtime)
}

/// Ten thousand probes and leases need more than the usual 1024 descriptors; what the hard limit allows is ours to take.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current < now.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum })
    {
        tracing::warn!(%error, soft = now.current, hard = now.maximum, "the limit of open files stays as it is");
    }
}

async fn supervise(
    config: Config,
    telemetry: &Telemetry,
    (edge, bulk): (tokio::runtime::Handle, tokio::runtime::Handle),
) -> Result<ExitCode, StartError> {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let signals = shutdown::Signals::listen().map_err(StartError::Runtime)?;
    let world = tokio::select! {
        opened = World::open(&config, &edge) => opened?,
        signal = signals.first() => {
            tracing::info!(signal, "the operator ends before it has begun");
            return Ok(ExitCode::SUCCESS);
        }
    };
    let env = Env::new(Clock::System);
    let dns = Dns::system();
    let ports = world.ports(Arc::new(TunnelProber::new(dns.clone(), &[])?));
    let openings: Vec<_> =
        Opening::probe_target(&config.health.target).into_iter().chain(config.echo_addr.map(Opening::echo)).collect();
    let images = Arc::new(open::images(&dns, &bulk));
    let opener = open::Opener {
        state_dir: world::state_dir(&config.mode)?,
        openings,
        cluster: world.pods()?,
        machines: Means { dns, images: images.clone(), main: tokio::runtime::Handle::current(), bulk },
    };
    let entries = opener.open(&config.providers.entries);
    let settings = settings(&config, &world, edge.clone());
    if settings.sweep.is_none() {
        tracing::info!(
            "no sweep for orphans: with --proxy-namespace their Proxies may be elsewhere; --gc-allow-namespaced allows it"
        );
    }
    let operator = Operator::wire(&env, &ports, entries, &settings);
    let handles = operator.handles.clone();

    let ending = Arc::new(AtomicBool::new(false));
    let (servers, chores) = children(&config, &handles, &world, opener, telemetry, &edge, &ending).await?;
    world.tell_start(&config);
    // Who hands over is asked until another one leads, and is asked first while none does: a standby has its answer.
    let (first, last) =
        if world.hands_over() { (servers, chores) } else { (Vec::new(), servers.into_iter().chain(chores).collect()) };
    let mut root = operator.start(first, last);
    let (asked, in_vain) = tokio::select! {
        exit = root.ended() => {
            let why = match exit {
                Exit::Failed(why) | Exit::GaveUp(why) => why,
                other => format!("{other:?}"),
            };
            tracing::error!(error = %why, "the operator ended, and nobody asked for it");
            return Ok(ExitCode::FAILURE);
        }
        // Not only unready: nobody could store a finalizer, a host or a status any more, so nothing could be made or
        // deleted until somebody looks. The next start reads the store anew, and adopts what runs.
        () = world.ended() => {
            tracing::error!(
                "the keeper of standalone mode ended, and nobody asked for it: nothing is stored any more, so the \
                 operator ends; the instances run on, and the next start adopts them"
            );
            ("the end of the keeper", true)
        }
        signal = signals.first() => (signal, false),
    };
    ending.store(world.hands_over(), Ordering::SeqCst);
    let ended = async {
        let in_order = shutdown::end(asked, in_vain, root, &handles, &world, STOP_WITHIN).await;
        // Transfers that nobody waits for any more take their partial volumes away.
        images.stop(IMAGES_STOP_WITHIN).await;
        in_order
    };
    tokio::select! {
        in_order = ended => Ok(if in_order && !in_vain { ExitCode::SUCCESS } else { ExitCode::FAILURE }),
        again = signals.second() => {
            tracing::warn!(signal = again, "a second signal: ending at once");
            Ok(ExitCode::from(130))
        }
    }
}

fn settings(config: &Config, world: &World, edge: tokio::runtime::Handle) -> OperatorSettings {
    OperatorSettings {
        operator: world.operator_id(config.operator_id.as_ref()),
        epoch: world.epoch(),
        life: Settings {
            drain_timeout: config.leases.drain_timeout,
            list_interval: config.health.list_every,
            ..Settings::default()
        },
        deadlines: Deadlines::default(),
        check_interval: config.health.check_every,
        check_timeout: config.health.check_timeout,
        health_workers: config.health.workers,
        probe_target: config.health.target.clone(),
        max_lease_ttl: config.leases.max_ttl,
        lease_cooldown: config.leases.cooldown,
        sweep: sweep(config),
        serve_without_claim: matches!(&config.mode, Mode::Cluster(mode) if mode.serve_without_claim),
        edge: Some(edge),
    }
}

/// None if what is watched is too little to tell an orphan by.
fn sweep(config: &Config) -> Option<SweepSettings> {
    let gc = &config.gc;
    if config.proxy_namespace.is_some() && !gc.allow_namespaced {
        return None;
    }
    let deadlines = Deadlines::default();
    Some(SweepSettings {
        every: gc.every,
        terms: Terms {
            min_age: gc.min_age,
            max_deletes: usize::try_from(gc.max_deletes).unwrap_or(usize::MAX),
            dry_run: gc.dry_run,
            namespace: config.proxy_namespace.clone(),
        },
        delete_within: deadlines.delete,
        get_within: deadlines.get,
    })
}

/// The two servers, and the small chores.
async fn children(
    config: &Config,
    handles: &Handles,
    world: &World,
    opener: open::Opener,
    telemetry: &Telemetry,
    edge: &tokio::runtime::Handle,
    ending: &Arc<AtomicBool>,
) -> Result<(Vec<ChildSpec>, Vec<ChildSpec>), StartError> {
    let tls = match &config.tls {
        Some(files) => Some(Tls::load(&files.cert, &files.key).await?),
        None => None,
    };
    let reload = reload::Reload::new(config, opener, handles.providers.clone(), tls.clone());
    let tokens = Tokens::one(config.lease_api.token.as_ref());
    let lease_api = LeaseApi::of(handles, tokens, config.leases.max_ttl);
    let (level, shown_level) = (telemetry.log_level.clone(), telemetry.log_level.clone());
    let (exporter, watched, asked) = (telemetry.exporter.clone(), world.clone(), reload.clone());
    let config_on_disk = reload.clone();
    let admin = Admin {
        env: handles.env.clone(),
        directory: handles.directory.clone(),
        sweep_dry_run: config.gc.dry_run,
        tokens: Tokens::one(config.admin.token.as_ref()),
        checks: checks(handles, config, world, &reload).into_iter().map(|check| check.until(ending)).collect(),
        controls: Controls {
            metrics: Arc::new(move || exporter.render()),
            reload: Arc::new(move || Box::pin(asked.clone().now())),
            config: Arc::new(move || config_on_disk.state()),
            log_level: Arc::new(move || shown_level.current().to_string()),
            set_log_level: Arc::new(move |text| {
                let filter = text.parse::<LogFilter>()?;
                level.set(filter).map_err(|error| error.to_string())
            }),
            problems: Arc::new(move || watched.problems()),
        },
    };
    let servers = vec![
        listening("--admin-addr", "server/admin", config.admin.addr, tls.clone(), move || admin.clone().router())?
            .on(edge),
        listening("--discovery-addr", "server/leases", config.lease_api.addr, tls.clone(), move || {
            lease_api.clone().router()
        })?,
    ];
    let mut chores = vec![
        task("upkeep", {
            let (handles, world, exporter) = (handles.clone(), world.clone(), telemetry.exporter.clone());
            move |stop| upkeep::run(handles.clone(), world.clone(), exporter.clone(), stop)
        }),
        task("reload", move |stop| reload.clone().follow(stop)),
    ];
    if let Some(address) = config.echo_addr {
        let listener = Listener::bind("--echo-addr", address)?;
        chores.push(task("server/echo", move |stop| {
            let listener = listener.again();
            async move {
                let listener = listener?;
                echo::serve(listener, async move { stop.wait().await }).await;
                Ok(())
            }
        }));
    }
    chores.extend(world.children());
    if let Some(tls) = tls {
        chores.push(task("tls", move |stop| {
            let tls = tls.clone();
            async move { tls.follow(stop).await }
        }));
    }
    Ok((servers, chores))
}

fn checks(handles: &Handles, config: &Config, world: &World, reload: &reload::Reload) -> Vec<Check> {
    let token_missing = world.needs_a_token() && config.lease_api.token.is_none();
    let refused = reload.clone();
    let mut checks = checks_of(handles, token_missing);
    checks.extend(world.checks());
    checks.push(Check::informative("providers-config", move || refused.state()));
    checks
}

/// A server on a listener that outlives its restarts.
fn listening(
    flag: &'static str,
    id: &'static str,
    address: SocketAddr,
    tls: Option<Arc<Tls>>,
    router: impl Fn() -> axum::Router + Send + Sync + 'static,
) -> Result<ChildSpec, StartError> {
    let listener = Listener::bind(flag, address)?;
    let spec = task(id, move |stop: StopSignal| {
        let (listener, router, tls) = (listener.again(), router(), tls.clone());
        async move { serve(listener?, router, tls, stop, Limits::default()).await }
    });
    Ok(spec.stop_within(Limits::default().finish + Duration::from_secs(2)))
}

/// Bound before anything is started, so that a taken port is an error at the start and not a crash loop.
struct Listener(std::net::TcpListener);

impl Listener {
    fn bind(flag: &'static str, address: SocketAddr) -> Result<Self, StartError> {
        let bound = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        bound.map(Self).map_err(|why| StartError::Listen { flag, address, why })
    }

    /// The same socket for one more incarnation, on the runtime that asks.
    fn again(&self) -> Result<tokio::net::TcpListener, String> {
        let listener = self.0.try_clone().and_then(tokio::net::TcpListener::from_std);
        listener.map_err(|error| format!("cannot take the listener over: {error}"))
    }
}
