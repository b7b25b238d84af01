//! Flags and files, parsed once into what the rest may rely on.
//!
//! [`Config::from_args`] is the only way in: it takes the flags one by one ([`crate::args`]), checks what they mean
//! together, reads the providers config, and gives values that need no second look. An error names the flag, the value
//! and the way out. Nothing here starts, binds or writes anything.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::id::OperatorId;
use secrecy::SecretString;
use url::Url;

use crate::args::{Args, BadToken, LeaseJournal, ListenAddr, OnExit, Tokens};

pub mod providers;
pub mod watch;

/// What the operator was asked to be. `Debug` shows no secret.
#[derive(Debug, Clone)]
pub struct Config {
    pub mode: Mode,
    /// The file that `providers` came from; watch it with [`watch::ProvidersFile`].
    pub providers_config: PathBuf,
    pub providers: providers::Loaded,
    /// Look at this namespace only.
    pub proxy_namespace: Option<Arc<str>>,
    /// As given; `None` means the default of the mode.
    pub operator_id: Option<OperatorId>,
    pub lease_api: LeaseApi,
    pub admin: Admin,
    /// For both servers.
    pub tls: Option<TlsFiles>,
    /// Where our own probe target listens.
    pub echo_addr: Option<SocketAddr>,
    pub health: Health,
    pub leases: Leases,
    pub gc: Gc,
    /// What is allowed and still worth a line at the start, the providers config's warnings among it.
    pub warnings: Vec<String>,
}

/// Where Proxies come from, and what only then makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    Standalone(Standalone),
    Cluster(Cluster),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standalone {
    pub manifests: PathBuf,
    pub state_dir: PathBuf,
    pub allow_mass_removal: bool,
    pub on_exit: OnExit,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// `None` means a fresh temporary directory.
    pub state_dir: Option<PathBuf>,
    /// `None` means on inside a pod.
    pub leader_elect: Option<bool>,
    pub serve_without_claim: bool,
}

/// The lease API. Without a token it is on loopback.
#[derive(Debug, Clone)]
pub struct LeaseApi {
    pub addr: SocketAddr,
    /// True if `addr` is less than what was asked for, as there is no token. Worth telling.
    pub narrowed: bool,
    pub token: Option<SecretString>,
}

#[derive(Debug, Clone)]
pub struct Admin {
    pub addr: SocketAddr,
    /// Without it `/admin` answers to loopback only.
    pub token: Option<SecretString>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// 1 to 10,000.
    pub workers: usize,
    /// http or https, with a host, without userinfo.
    pub target: Arc<Url>,
    pub list_every: Duration,
    pub check_every: Duration,
    /// At most `check_every`.
    pub check_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    /// Zero is no cooldown.
    pub cooldown: Duration,
    /// At least 1 s.
    pub max_ttl: Duration,
    pub drain_timeout: Duration,
    /// `None` means the default: a file in the state directory.
    pub journal: Option<LeaseJournal>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gc {
    pub every: Duration,
    pub min_age: Duration,
    pub max_deletes: u32,
    pub dry_run: bool,
    /// Sweep although only one namespace is watched.
    pub allow_namespaced: bool,
}

/// Why the operator does not start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Flag(#[from] BadFlag),
    #[error(transparent)]
    Token(#[from] BadToken),
    #[error(transparent)]
    Providers(#[from] providers::ProvidersError),
}

/// A flag that cannot be used: names it, its value where that is no secret, what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadFlag {
    pub flag: &'static str,
    pub value: Option<String>,
    pub why: String,
    pub way_out: &'static str,
}

impl std::error::Error for BadFlag {}

impl fmt::Display for BadFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.flag)?;
        if let Some(value) = &self.value {
            write!(f, " {value}")?;
        }
        write!(f, ": {}; {}", self.why, self.way_out)
    }
}

fn bad(flag: &'static str, value: impl fmt::Display, why: impl Into<String>, way_out: &'static str) -> BadFlag {
    BadFlag { flag, value: Some(value.to_string()), why: why.into(), way_out }
}

fn missing(flag: &'static str, why: &str, way_out: &'static str) -> BadFlag {
    BadFlag { flag, value: None, why: why.to_owned(), way_out }
}

impl Config {
    /// Checks everything and reads the providers config.
    pub fn from_args(args: Args, tokens: Tokens) -> Result<Self, ConfigError> {
        let mode = mode(&args)?;
        not_in_this_version(&args)?;
        let Some(providers_config) = args.providers_config else {
            return Err(missing(
                "--providers-config",
                "is needed",
                "pass the path of a providers config (config/samples/ has some)",
            )
            .into());
        };
        let mut warnings = Vec::new();

        let (addr, narrowed) = match &tokens.discovery {
            Some(_) => (args.discovery_addr.wished(), false),
            None => args.discovery_addr.on_loopback(),
        };
        if narrowed {
            warnings.push(format!(
                "without DISCOVERY_TOKEN the lease API listens on {addr} only, not on {}",
                args.discovery_addr
            ));
        }
        let lease_api = LeaseApi { addr, narrowed, token: tokens.discovery };
        let admin = Admin { addr: args.admin_addr.wished(), token: tokens.admin };
        let echo_addr = args.echo_addr.map(ListenAddr::wished);
        distinct_addresses(&[
            ("--discovery-addr", Some(lease_api.addr)),
            ("--admin-addr", Some(admin.addr)),
            ("--echo-addr", echo_addr),
        ])?;
        let tls = tls(args.tls_cert, args.tls_key)?;

        for (flag, value) in [
            ("--list-interval", args.list_interval),
            ("--provider-check-interval", args.provider_check_interval),
            ("--gc-interval", args.gc_interval),
        ] {
            not_zero(flag, value, "give an interval such as 15s")?;
        }
        if let Some(timeout) = args.provider_check_timeout {
            not_zero("--provider-check-timeout", timeout, "give a time such as 15s, or leave it out")?;
        }
        let health = Health {
            workers: args.health_workers.into(),
            target: Arc::new(probe_target(&args.probe_target.0)?),
            list_every: args.list_interval,
            check_every: args.provider_check_interval,
            check_timeout: check_timeout(args.provider_check_timeout, args.provider_check_interval)?,
        };

        if args.max_lease_ttl < Duration::from_secs(1) {
            let given = shown(args.max_lease_ttl);
            return Err(bad("--max-lease-ttl", given, "is less than 1s", "give a time such as 1h").into());
        }
        if let Some(LeaseJournal::File(file)) = &args.lease_journal {
            warnings
                .push(format!("--lease-journal {}: leases are not yet written down by this version", file.display()));
        }
        if args.gc_allow_namespaced && args.proxy_namespace.is_none() {
            warnings.push("--gc-allow-namespaced has no meaning without --proxy-namespace".to_owned());
        }

        let providers = providers::load(&providers_config)?;
        warnings.extend(providers.warnings.iter().cloned());
        Ok(Self {
            mode,
            providers_config,
            providers,
            proxy_namespace: args.proxy_namespace.map(Into::into),
            operator_id: args.operator_id,
            lease_api,
            admin,
            tls,
            echo_addr,
            health,
            leases: Leases {
                cooldown: args.lease_cooldown,
                max_ttl: args.max_lease_ttl,
                drain_timeout: args.drain_timeout,
                journal: args.lease_journal,
            },
            gc: Gc {
                every: args.gc_interval,
                min_age: args.gc_min_age,
                max_deletes: args.gc_max_deletes,
                dry_run: args.gc_dry_run,
                allow_namespaced: args.gc_allow_namespaced,
            },
            warnings,
        })
    }
}

/// What is parsed already and built later.
fn not_in_this_version(args: &Args) -> Result<(), BadFlag> {
    // Taken and not used, it would leave the lease API open where somebody thinks that it is closed.
    if let Some(file) = &args.tokens_file {
        return Err(bad(
            "--tokens-file",
            file.display(),
            "is not read by this version yet",
            "leave it out and set DISCOVERY_TOKEN",
        ));
    }
    Ok(())
}

fn mode(args: &Args) -> Result<Mode, BadFlag> {
    const CLUSTER: &str = "leave it out, or add --standalone";
    const ALONE: &str = "leave it out: one operator at a time can use a state directory";
    let Some(manifests) = args.standalone.clone() else {
        if args.allow_mass_removal {
            return Err(missing("--allow-mass-removal", "has no meaning without --standalone", CLUSTER));
        }
        if args.on_exit.is_some() {
            return Err(missing("--on-exit", "has no meaning without --standalone", CLUSTER));
        }
        return Ok(Mode::Cluster(Cluster {
            state_dir: args.state_dir.clone(),
            leader_elect: args.leader_elect,
            serve_without_claim: args.serve_without_claim,
        }));
    };

    if args.leader_elect == Some(true) {
        return Err(missing("--leader-elect", "has no meaning with --standalone", ALONE));
    }
    if args.serve_without_claim {
        return Err(missing("--serve-without-claim", "has no meaning with --standalone", ALONE));
    }
    let Some(state_dir) = args.state_dir.clone() else {
        return Err(missing(
            "--state-dir",
            "is needed with --standalone",
            "pass a directory that outlives the operator, such as /var/lib/egress",
        ));
    };
    // An absent directory is not an empty one: with a typo here every recorded Proxy would look removed.
    if let Err(error) = std::fs::read_dir(&manifests) {
        let why = format!("cannot be listed ({error})");
        return Err(bad("--standalone", manifests.display(), why, "pass an existing directory of manifests"));
    }
    if state_dir.exists() && !state_dir.is_dir() {
        return Err(bad("--state-dir", state_dir.display(), "is not a directory", "pass a directory, new or our own"));
    }
    if let (Ok(one), Ok(other)) = (manifests.canonicalize(), state_dir.canonicalize())
        && one == other
    {
        return Err(bad(
            "--state-dir",
            state_dir.display(),
            "is the directory of the manifests, which is only ever read",
            "pass another directory",
        ));
    }
    Ok(Mode::Standalone(Standalone {
        manifests,
        state_dir,
        allow_mass_removal: args.allow_mass_removal,
        on_exit: args.on_exit.unwrap_or(OnExit::Keep),
    }))
}

fn tls(cert: Option<PathBuf>, key: Option<PathBuf>) -> Result<Option<TlsFiles>, BadFlag> {
    const BOTH: &str = "pass both, or neither for plain HTTP";
    let readable = |flag, file: &Path| match std::fs::File::open(file) {
        Ok(_) => Ok(()),
        Err(error) => Err(bad(flag, file.display(), format!("cannot be read ({error})"), "pass a readable PEM file")),
    };
    match (cert, key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => {
            readable("--tls-cert", &cert)?;
            readable("--tls-key", &key)?;
            Ok(Some(TlsFiles { cert, key }))
        }
        (Some(cert), None) => Err(bad("--tls-cert", cert.display(), "comes without --tls-key", BOTH)),
        (None, Some(key)) => Err(bad("--tls-key", key.display(), "comes without --tls-cert", BOTH)),
    }
}

/// Two servers on one port would fail at the second bind, with less to go by.
fn distinct_addresses(all: &[(&'static str, Option<SocketAddr>)]) -> Result<(), BadFlag> {
    let given: Vec<_> = all.iter().filter_map(|&(flag, addr)| addr.map(|a| (flag, a))).collect();
    for (at, (flag, addr)) in given.iter().enumerate() {
        for (earlier, taken) in &given[..at] {
            let overlap = addr.ip() == taken.ip() || addr.ip().is_unspecified() || taken.ip().is_unspecified();
            if addr.port() != 0 && addr.port() == taken.port() && overlap {
                return Err(bad(
                    flag,
                    addr,
                    format!("is taken by {earlier} ({taken})"),
                    "give each server a port of its own",
                ));
            }
        }
    }
    Ok(())
}

fn not_zero(flag: &'static str, given: Duration, way_out: &'static str) -> Result<(), BadFlag> {
    if given.is_zero() { Err(bad(flag, "0s", "must be more than nothing", way_out)) } else { Ok(()) }
}

fn check_timeout(given: Option<Duration>, interval: Duration) -> Result<Duration, BadFlag> {
    /// A host that needs longer than this for a look is not well, whatever the interval.
    const LONGEST_BY_DEFAULT: Duration = Duration::from_secs(15);
    match given {
        None => Ok(interval.min(LONGEST_BY_DEFAULT)),
        Some(timeout) if timeout > interval => Err(bad(
            "--provider-check-timeout",
            shown(timeout),
            format!("is longer than --provider-check-interval {}", shown(interval)),
            "give at most the interval",
        )),
        Some(timeout) => Ok(timeout),
    }
}

/// Reads a probe target: http or https, with a host, without userinfo and fragment.
fn probe_target(text: &str) -> Result<Url, BadFlag> {
    const FLAG: &str = "--probe-target";
    // The value is shown only where it cannot hold a password.
    let refuse = |why: String, way_out| BadFlag {
        flag: FLAG,
        value: (!text.contains('@')).then(|| text.to_owned()),
        why,
        way_out,
    };
    let url = Url::parse(text).map_err(|error| {
        refuse(format!("is not a URL ({error})"), "write it like https://www.gstatic.com/generate_204")
    })?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse("holds a user name or password".to_owned(), "leave the part before @ out"));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refuse(format!("has the scheme {}", url.scheme()), "use http or https"));
    }
    if url.fragment().is_some() {
        return Err(refuse("has a fragment, which is never sent".to_owned(), "leave the part from # on out"));
    }
    Ok(url)
}

/// `90s` as `1m 30s`: as people write durations.
fn shown(duration: Duration) -> String {
    match jiff::SignedDuration::try_from(duration) {
        Ok(signed) => format!("{signed:#}"),
        Err(_) => format!("{}s", duration.as_secs()),
    }
}

#[cfg(test)]
mod tests;
