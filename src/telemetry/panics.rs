//! A panic as one log line, through the same writer as all others.
//!
//! Not through `tracing`: the panic may come out of a field that is being formatted, and no filter may hide it. What
//! becomes of the actor or task that panicked is its supervisor's business.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

use tracing::Level;

use super::json::Line;
use super::writer::LogWriter;
use crate::args::LogFormat;

/// Replaces the hook that prints to stderr.
pub(super) fn install(writer: LogWriter, format: LogFormat) {
    let lines: fn(&PanicHookInfo<'_>) -> String = match format {
        LogFormat::Json => as_json,
        LogFormat::Text => as_text,
    };
    std::panic::set_hook(Box::new(move |info| writer.push(lines(info).as_bytes())));
}

struct Facts {
    message: String,
    location: String,
    thread: String,
    /// Only if `RUST_BACKTRACE` asks for it.
    backtrace: Option<String>,
}

fn facts(info: &PanicHookInfo<'_>) -> Facts {
    let backtrace = Backtrace::capture();
    Facts {
        message: info.payload_as_str().unwrap_or("a value that is no text").to_owned(),
        location: info.location().map_or_else(|| "unknown".to_owned(), ToString::to_string),
        thread: std::thread::current().name().unwrap_or("unnamed").to_owned(),
        backtrace: (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string()),
    }
}

fn as_json(info: &PanicHookInfo<'_>) -> String {
    let facts = facts(info);
    let mut line = Line::new(Level::ERROR, "panic");
    line.text("target", "panic");
    line.text("panic", &facts.message);
    line.text("location", &facts.location);
    line.text("thread", &facts.thread);
    if let Some(backtrace) = &facts.backtrace {
        line.text("backtrace", backtrace);
    }
    line.end()
}

fn as_text(info: &PanicHookInfo<'_>) -> String {
    let Facts { message, location, thread, backtrace } = facts(info);
    let backtrace = backtrace.map(|b| format!("\n{b}")).unwrap_or_default();
    format!("{:.6} ERROR panic: {message} location={location} thread={thread}{backtrace}\n", jiff::Timestamp::now())
}
