//! Logs and metrics: the subscriber, the lossy writer behind it, the panic hook, the Prometheus exporter.
//!
//! [`install`] is called once, by `main`, right after the flags are read. Every line goes through [`writer::LogWriter`]:
//! nobody who logs ever waits for whoever reads the logs. With `--log-format json` nothing else goes to stdout, and
//! nothing at all to stderr. Knows nothing of what is logged or measured but the names in `egress_actors::names`.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::args::{LogFilter, LogFormat};

mod exporter;
mod json;
mod panics;
mod writer;

pub use exporter::{Exporter, UPKEEP_EVERY};
pub use writer::{LogGuard, LogWriter};

/// How long the end of the process waits for the reader of its logs.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// What `main` keeps. Dropping it writes out the last lines, for at most a second.
#[derive(Debug)]
pub struct Telemetry {
    pub log_level: LogLevel,
    pub exporter: Exporter,
    /// Last, so that nothing else of this struct is dropped after the writer has ended.
    pub logs: LogGuard,
}

/// Why logs or metrics cannot be set up: somebody in this process has done it before.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("cannot start the log writer: {0}")]
    Writer(#[from] std::io::Error),
    #[error("a log subscriber is installed already; call telemetry::install once")]
    Subscriber,
    #[error("a metrics recorder is installed already; call telemetry::install once")]
    Recorder,
    #[error("cannot change the log filter: its subscriber is gone")]
    FilterGone,
}

/// Sets up logs and metrics for the whole process. Without a format: text if stdout is a terminal, else JSON.
pub fn install(format: Option<LogFormat>, filter: &LogFilter) -> Result<Telemetry, TelemetryError> {
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let format = LogFormat::chosen(format, terminal);
    let colours = terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    // Our own descriptor: a write that hangs would otherwise hold the lock that std has around stdout.
    let out = File::from(stdout.as_fd().try_clone_to_owned()?);
    install_to(out, format, colours, filter)
}

/// As [`install`], into `out`.
pub fn install_to(
    out: impl Write + Send + 'static,
    format: LogFormat,
    colours: bool,
    filter: &LogFilter,
) -> Result<Telemetry, TelemetryError> {
    let (writer, logs) = LogWriter::start(
        out,
        FLUSH_WITHIN,
        match format {
            LogFormat::Json => json::lines_dropped,
            LogFormat::Text => {
                |count| format!("WARN {count} log lines dropped, as nobody read them fast enough\n").into_bytes()
            }
        },
    )?;
    let (subscriber, log_level) = subscriber(writer.clone(), format, colours, filter);
    subscriber.try_init().map_err(|_| TelemetryError::Subscriber)?;
    panics::install(writer.clone(), format);
    let exporter = Exporter::install(writer)?;
    Ok(Telemetry { log_level, exporter, logs })
}

/// ractor opens an INFO span for each actor's whole life, which would be on every line (design.md 6).
fn not_chatter(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let ractor = target == "ractor" || target.starts_with("ractor::");
    !ractor || *metadata.level() <= Level::WARN
}

fn subscriber(
    writer: LogWriter,
    format: LogFormat,
    colours: bool,
    filter: &LogFilter,
) -> (impl tracing::Subscriber + Send + Sync + for<'a> tracing_subscriber::registry::LookupSpan<'a>, LogLevel) {
    let (env_filter, handle) = reload::Layer::<EnvFilter, Registry>::new(env_filter(filter));
    let lines = match format {
        LogFormat::Json => json::JsonLines::new(writer).boxed(),
        LogFormat::Text => fmt::layer().with_ansi(colours).with_writer(writer).boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(env_filter).with(FilterFn::new(not_chatter)).with(lines);
    (subscriber, LogLevel(Arc::new(Changeable { handle, current: Mutex::new(filter.clone()) })))
}

fn env_filter(filter: &LogFilter) -> EnvFilter {
    // A `LogFilter` parses, and strictly: the lossy form only saves an error path that cannot be taken.
    EnvFilter::builder().parse_lossy(filter.as_str())
}

/// Changes what is logged while the operator runs (`PUT /admin/log-level`).
#[derive(Debug, Clone)]
pub struct LogLevel(Arc<Changeable>);

#[derive(Debug)]
struct Changeable {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Mutex<LogFilter>,
}

impl LogLevel {
    pub fn current(&self) -> LogFilter {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records of the `log` crate (rustls) follow: the subscriber's bridge sets that crate's level too.
    pub fn set(&self, filter: LogFilter) -> Result<(), TelemetryError> {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.handle.reload(env_filter(&filter)).map_err(|_| TelemetryError::FilterGone)?;
        *current = filter;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
