//! The command line as it is given: one flag or `EGRESS_..` variable a field, each parsed by itself.
//!
//! What several flags mean together is decided in [`crate::config`]; nothing else reads these values. The two tokens are
//! not here: they come from the environment only ([`Tokens`]), as a command line is shown to every user of the machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, ValueEnum};
use egress_actors::domain::id::OperatorId;

mod refused;
mod values;

pub use refused::Refused;
pub(crate) use values::duration;
pub use values::{BadToken, LeaseJournal, ListenAddr, LogFilter, Tokens, UncheckedUrl};
use values::{namespace, operator_id};

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people, with colours on a terminal.
    Text,
}

impl LogFormat {
    /// What is used: as wished, else what fits who reads it.
    pub fn chosen(wished: Option<Self>, is_for_terminal: bool) -> Self {
        wished.unwrap_or(if is_for_terminal { Self::Text } else { Self::Json })
    }
}

/// What happens to the instances when a standalone operator ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnExit {
    /// They run on and are adopted at the next start.
    Keep,
    /// They are deleted, in order and within the shutdown limit.
    Delete,
}

const EXAMPLES: &str = "\
Examples:
  A first look, on this machine, without a cluster:
    egress-proxies-operator --standalone config/samples/standalone --state-dir /var/lib/egress \\
      --providers-config config/samples/providers-standalone.yaml

  With a probe target of our own, so that nothing leaves the machine:
    egress-proxies-operator --standalone DIR --state-dir DIR --providers-config FILE \\
      --echo-addr 127.0.0.1:8092 --probe-target http://127.0.0.1:8092/echo

  The lease API for other machines (without DISCOVERY_TOKEN it listens on loopback only):
    DISCOVERY_TOKEN=$(openssl rand -hex 32) egress-proxies-operator ... --discovery-addr :8090

  Everything about one provider, nothing else, as text:
    egress-proxies-operator ... --log-format text --log-level warn,egress_operator::providers=debug

Environment:
  Each flag can be given as EGRESS_ and its name in capitals, as shown with it; a flag wins over its variable.
  Of a flag that is given several times, the last one wins.
  DISCOVERY_TOKEN  bearer token of the lease API. Without it the API listens on loopback only.
  ADMIN_TOKEN      bearer token of /admin/.. on the admin address. Without it those answer to loopback only.
  KUBECONFIG       the cluster, without --standalone and outside of a pod (default: ~/.kube/config).
  HTTPS_PROXY      proxy on the way to the API server, but not in a pod; NO_PROXY names what needs none.
  RUST_BACKTRACE   1 adds backtraces to the log lines of panics.

Durations are written 15s, 10m, 1h30m or 500ms.";

/// Makes, keeps healthy and leases egress proxies for crawlers.
///
/// The operator reads Proxy objects, makes what they ask for through the providers of --providers-config, keeps
/// tunnelling through each proxy to know that it works, and leases the healthy ones over HTTP.
#[expect(clippy::doc_markdown, reason = "the comments are the help text, which has no markup")]
#[derive(Debug, Clone, Parser)]
#[command(name = "egress-proxies-operator", version, args_override_self = true, allow_negative_numbers = true, after_help = "Use --help for the reasons, units and examples.", after_long_help = EXAMPLES, max_term_width = 110)]
pub struct Args {
    /// Providers config, YAML
    ///
    /// One entry for each place where proxies can be made. The operator does not start without a readable and valid
    /// file. Later changes are picked up within seconds; a bad new file is refused and the old one stays in use.
    #[arg(long, env = "EGRESS_PROVIDERS_CONFIG", value_name = "FILE", help_heading = "What to run")]
    pub providers_config: Option<PathBuf>,

    /// Run without a cluster: read manifests from DIR
    ///
    /// Every *.yaml and *.yml in DIR is read as Proxy and Secret manifests, and read again when it changes. Needs --state-dir.
    #[arg(long, env = "EGRESS_STANDALONE", value_name = "DIR", help_heading = "What to run")]
    pub standalone: Option<PathBuf>,

    /// Where the operator keeps what must outlive it
    ///
    /// Needed with --standalone (it holds what a cluster would: who owns which instance). In a cluster a fresh temporary
    /// directory is used if none is given. One operator at a time can use a state directory.
    #[arg(long, env = "EGRESS_STATE_DIR", value_name = "DIR", help_heading = "What to run")]
    pub state_dir: Option<PathBuf>,

    /// Look at this namespace only
    ///
    /// All namespaces if not given. With it, rights in this one namespace are enough.
    #[arg(long, env = "EGRESS_PROXY_NAMESPACE", value_name = "NS", value_parser = namespace, help_heading = "What to run")]
    pub proxy_namespace: Option<String>,

    /// Who this operator is, in the owner marks that it leaves in backends
    ///
    /// Instances with another id are never touched, so two operators can share a backend, and a changed id orphans what
    /// was made under the old one. By default it is made from the cluster's id, the namespace and the Deployment's name
    /// (outside of a pod, of the kubeconfig's namespace, and of --proxy-namespace if that is given);
    /// with --standalone it is made once and kept in the state directory.
    #[arg(long, env = "EGRESS_OPERATOR_ID", value_name = "ID", value_parser = operator_id, help_heading = "What to run")]
    pub operator_id: Option<OperatorId>,

    /// Lead only while holding the cluster's Lease (default: on inside a pod)
    ///
    /// With several replicas one leads and the others stand by. Turn it off only for a single replica.
    #[arg(long, env = "EGRESS_LEADER_ELECT", value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = BoolishValueParser::new(), help_heading = "What to run")]
    pub leader_elect: Option<bool>,

    /// Go on granting leases while no replica can hold the claim
    ///
    /// Without it an outage of the API server stops new grants after the claim's end; renewing, reporting and releasing
    /// always go on. With it two replicas can, for a short time, grant the same proxy.
    #[arg(long, env = "EGRESS_SERVE_WITHOUT_CLAIM", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "What to run")]
    pub serve_without_claim: bool,

    /// Accept that more than half of the manifests are gone at once (with --standalone)
    ///
    /// Without it such a removal waits, as it is more often an unmounted directory than a wish.
    #[arg(long, env = "EGRESS_ALLOW_MASS_REMOVAL", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "What to run")]
    pub allow_mass_removal: bool,

    /// What happens to instances when the operator ends (with --standalone; default: keep)
    ///
    /// Kept instances run on and are adopted at the next start.
    #[arg(
        long,
        env = "EGRESS_ON_EXIT",
        value_name = "keep|delete",
        hide_possible_values = true,
        help_heading = "What to run"
    )]
    pub on_exit: Option<OnExit>,

    /// Address of the lease API
    ///
    /// `:PORT` listens on every IPv4 address (`[::]:PORT` on IPv6 too). Without DISCOVERY_TOKEN it is narrowed to
    /// loopback, whatever is written here.
    #[arg(
        long,
        env = "EGRESS_DISCOVERY_ADDR",
        value_name = "[HOST]:PORT",
        default_value = ":8090",
        help_heading = "Servers"
    )]
    pub discovery_addr: ListenAddr,

    /// Address of /livez, /readyz, /metrics and /admin
    ///
    /// It answers even while everything else is busy. /admin needs ADMIN_TOKEN, or a caller on loopback.
    #[arg(
        long,
        env = "EGRESS_ADMIN_ADDR",
        value_name = "[HOST]:PORT",
        default_value = ":8080",
        help_heading = "Servers"
    )]
    pub admin_addr: ListenAddr,

    /// Certificate chain for both servers, PEM; needs --tls-key
    ///
    /// Leases carry proxy passwords: without TLS they cross the network in the clear.
    #[arg(long, env = "EGRESS_TLS_CERT", value_name = "FILE", help_heading = "Servers")]
    pub tls_cert: Option<PathBuf>,

    /// Private key for --tls-cert, PEM
    #[arg(long, env = "EGRESS_TLS_KEY", value_name = "FILE", help_heading = "Servers")]
    pub tls_key: Option<PathBuf>,

    /// Serve a probe target of our own here (off if not given)
    ///
    /// GET /echo answers 204 and the caller's address in X-Egress-Address, so that a probe also tells the exit address.
    #[arg(long, env = "EGRESS_ECHO_ADDR", value_name = "[HOST]:PORT", help_heading = "Servers")]
    pub echo_addr: Option<ListenAddr>,

    /// What probes fetch through each proxy, unless a Proxy says otherwise
    ///
    /// http or https. Generated proxies may reach it even where it lies in a private network.
    #[arg(
        long,
        env = "EGRESS_PROBE_TARGET",
        value_name = "URL",
        default_value = "https://www.gstatic.com/generate_204",
        help_heading = "Health"
    )]
    pub probe_target: UncheckedUrl,

    /// Probes that run at once, 1 to 10000
    ///
    /// One failure domain (a provider's host) gets an eighth of them at most, so that a dead host starves nobody.
    #[arg(long, env = "EGRESS_HEALTH_WORKERS", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000), help_heading = "Health")]
    pub health_workers: u16,

    /// How often each provider host is asked for its instances
    ///
    /// One list tells the state of all of them. A shorter interval notices a stopped instance sooner.
    #[arg(long, env = "EGRESS_LIST_INTERVAL", value_name = "DURATION", default_value = "15s", value_parser = duration, help_heading = "Health")]
    pub list_interval: Duration,

    /// How often each provider host is checked as a whole
    #[arg(long, env = "EGRESS_PROVIDER_CHECK_INTERVAL", value_name = "DURATION", default_value = "1m", value_parser = duration, help_heading = "Health")]
    pub provider_check_interval: Duration,

    /// When such a check counts as failed (default: 15s, or the interval if that is shorter)
    #[arg(long, env = "EGRESS_PROVIDER_CHECK_TIMEOUT", value_name = "DURATION", value_parser = duration, help_heading = "Health")]
    pub provider_check_timeout: Option<Duration>,

    /// First rest of a proxy for a target that banned it; 0s is none
    ///
    /// Repeated bans of the same pair rest longer.
    #[arg(long, env = "EGRESS_LEASE_COOLDOWN", value_name = "DURATION", default_value = "5m", value_parser = duration, help_heading = "Leases")]
    pub lease_cooldown: Duration,

    /// Longest lease that a client may ask for
    ///
    /// A client that dies without releasing holds its proxy for at most this long.
    #[arg(long, env = "EGRESS_MAX_LEASE_TTL", value_name = "DURATION", default_value = "1h", value_parser = duration, help_heading = "Leases")]
    pub max_lease_ttl: Duration,

    /// How long a deletion waits for leases that are out
    #[arg(long, env = "EGRESS_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "0s", value_parser = duration, help_heading = "Leases")]
    pub drain_timeout: Duration,

    /// Many tokens for the lease API, each with a name and limits, YAML (not in this version)
    #[arg(long, env = "EGRESS_TOKENS_FILE", value_name = "FILE", help_heading = "Leases")]
    pub tokens_file: Option<PathBuf>,

    /// Where leases are written down, so that they outlive a restart (not in this version: they are in memory only)
    ///
    /// `none` keeps them in memory only.
    #[arg(long, env = "EGRESS_LEASE_JOURNAL", value_name = "FILE|none", help_heading = "Leases")]
    pub lease_journal: Option<LeaseJournal>,

    /// How often each provider host is searched for orphans: instances of this operator without a Proxy
    ///
    /// One is deleted only if two sweeps in a row found it, it is older than --gc-min-age, a live look finds no Proxy with
    /// its uid, and the owner mark on it still is this operator's. Each is told by an event on the ProviderHealth.
    #[arg(long, env = "EGRESS_GC_INTERVAL", value_name = "DURATION", default_value = "10m", value_parser = duration, help_heading = "Orphans")]
    pub gc_interval: Duration,

    /// How old an orphan must be before it is deleted
    ///
    /// By the backend's word; where it has none, since the operator first saw it.
    #[arg(long, env = "EGRESS_GC_MIN_AGE", value_name = "DURATION", default_value = "15m", value_parser = duration, help_heading = "Orphans")]
    pub gc_min_age: Duration,

    /// How many orphans of a provider entry are deleted in one --gc-interval at most; 0 is none
    ///
    /// The rest waits for the next sweeps; egress_gc_orphans and /admin/providers tell how many are left.
    #[arg(long, env = "EGRESS_GC_MAX_DELETES", value_name = "N", default_value_t = 10, help_heading = "Orphans")]
    pub gc_max_deletes: u32,

    /// Only tell which orphans would be deleted
    #[arg(long, env = "EGRESS_GC_DRY_RUN", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "Orphans")]
    pub gc_dry_run: bool,

    /// Sweep although only one namespace is watched
    ///
    /// With --proxy-namespace the operator cannot see the owners in other namespaces, so there is no sweep without this
    /// word. Give it only if no other namespace has Proxies of this operator id.
    #[arg(long, env = "EGRESS_GC_ALLOW_NAMESPACED", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "Orphans")]
    pub gc_allow_namespaced: bool,

    /// json or text (default: text on a terminal, else json)
    ///
    /// With json every line on stdout is one object with ts, level, msg and fields, and nothing goes to stderr.
    #[arg(
        long,
        env = "EGRESS_LOG_FORMAT",
        value_name = "json|text",
        hide_possible_values = true,
        help_heading = "Logs"
    )]
    pub log_format: Option<LogFormat>,

    /// error, warn, info, debug, trace, or a filter such as info,egress_operator=debug
    ///
    /// PUT /admin/log-level changes it while the operator runs.
    #[arg(long, env = "EGRESS_LOG_LEVEL", value_name = "FILTER", default_value = "info", help_heading = "Logs")]
    pub log_level: LogFilter,
}

impl Args {
    /// The command line as clap knows it. Help never shows what the environment holds.
    pub fn command_line() -> clap::Command {
        Self::command().mut_args(|arg| arg.hide_env_values(true))
    }

    /// Reads a command line, the program's name first, and the `EGRESS_..` variables of this process.
    pub fn try_read<I, T>(line: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let mut command = Self::command_line();
        let matches = command.try_get_matches_from_mut(line)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }

    /// Reads this process's command line. Ends the process with what it asks for (help, the version), or if it cannot
    /// be read and people read the log; otherwise the log tells what is wrong with it.
    pub fn read(is_for_terminal: bool) -> Result<Self, Refused> {
        Self::try_read(std::env::args_os()).map_err(|error| {
            let wished = refused::wished_format(std::env::args_os(), std::env::var_os("EGRESS_LOG_FORMAT"));
            let logs = LogFormat::chosen(wished, is_for_terminal);
            if !error.use_stderr() || logs == LogFormat::Text { error.exit() } else { Refused::new(&error) }
        })
    }
}

#[cfg(test)]
mod tests;
