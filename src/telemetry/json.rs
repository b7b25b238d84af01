//! Log lines as JSON: `{"ts":..,"level":"info","msg":..,"target":.., fields of the event and of its spans}`.
//!
//! Own and not `tracing-subscriber`'s, whose names differ (`timestamp`, `INFO`, `message`) and whose spans are nested:
//! contract.md 4 has one flat object, which `jq` and log stores take as it is. A key comes once: the event's own field
//! wins over its spans', an inner span's over an outer's, and a field named like one of ours gets a `_` behind it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::writer::LogWriter;

/// A longer value is cut: it is somebody's answer or dump, and the other fields matter too.
pub(super) const LONGEST_VALUE: usize = 8 * 1024;
/// Fields beyond this are left out, which `truncated` tells.
const LONGEST_FIELDS: usize = 48 * 1024;

/// Writes each event as one line.
#[derive(Debug)]
pub(super) struct JsonLines {
    writer: LogWriter,
}

impl JsonLines {
    pub(super) fn new(writer: LogWriter) -> Self {
        Self { writer }
    }
}

impl<S> Layer<S> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<Fields>() {
                fields.add_missing(of_span);
            }
        }
        let mut line = Line::new(*event.metadata().level(), fields.msg.as_deref().unwrap_or_default());
        line.text("target", fields.log_target.as_deref().unwrap_or_else(|| event.metadata().target()));
        for (name, value) in &fields.rest {
            if !line.raw(name, value) {
                break;
            }
        }
        self.writer.push(line.end().as_bytes());
    }
}

/// The line in place of those that were dropped.
pub(super) fn lines_dropped(count: u64) -> Vec<u8> {
    let mut line = Line::new(Level::WARN, "log lines dropped, as nobody read them fast enough");
    line.raw("dropped", &count.to_string());
    line.end().into_bytes()
}

/// One line being written.
pub(super) struct Line {
    json: String,
}

impl Line {
    pub(super) fn new(level: Level, msg: &str) -> Self {
        let mut json = String::with_capacity(256);
        let level = match level {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        // Writing to a String cannot fail.
        let _ = write!(json, "{{\"ts\":\"{:.6}\",\"level\":\"{level}\",\"msg\":", jiff::Timestamp::now());
        json.push_str(&quoted(msg));
        Self { json }
    }

    /// Adds a field whose value is text.
    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.raw(name, &quoted(value));
    }

    /// Adds a field whose value is JSON already; false if there is no room.
    fn raw(&mut self, name: &str, value: &str) -> bool {
        let fits = self.json.len() + name.len() + value.len() <= LONGEST_FIELDS;
        if fits {
            self.json.push(',');
            self.json.push_str(&quoted(name));
            self.json.push(':');
            self.json.push_str(value);
        } else {
            self.json.push_str(",\"truncated\":true");
        }
        fits
    }

    pub(super) fn end(mut self) -> String {
        self.json.push_str("}\n");
        self.json
    }
}

/// The text as a JSON string: no raw newline or control character is left in it.
fn quoted(text: &str) -> String {
    let text = if text.len() > LONGEST_VALUE {
        let cut = text.floor_char_boundary(LONGEST_VALUE);
        Cow::Owned(format!("{}... ({} bytes)", &text[..cut], text.len()))
    } else {
        Cow::Borrowed(text)
    };
    serde_json::Value::from(text).to_string()
}

/// What was recorded of one event or span.
#[derive(Debug, Default)]
struct Fields {
    msg: Option<String>,
    /// The real target of a record that came through the `log` crate.
    log_target: Option<String>,
    /// Names and their values as JSON, in the order they came.
    rest: Vec<(Cow<'static, str>, String)>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: String) {
        let name = match field.name() {
            "ts" => Cow::Borrowed("ts_"),
            "level" => Cow::Borrowed("level_"),
            "msg" => Cow::Borrowed("msg_"),
            "target" => Cow::Borrowed("target_"),
            "truncated" => Cow::Borrowed("truncated_"),
            // The bridge of the `log` crate; the target is taken in `set_text`, and the others nobody asks for.
            "log.line" => return,
            name => Cow::Borrowed(name.strip_prefix("r#").unwrap_or(name)),
        };
        match self.rest.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.rest.push((name, value)),
        }
    }

    fn set_text(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.msg = Some(value.to_owned()),
            "log.target" => self.log_target = Some(value.to_owned()),
            "log.module_path" | "log.file" => {}
            _ => self.set(field, quoted(value)),
        }
    }

    fn add_missing(&mut self, outer: &Self) {
        for (name, value) in &outer.rest {
            if !self.rest.iter().any(|(known, _)| known == name) {
                self.rest.push((name.clone(), value.clone()));
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set_text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set_text(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.to_string());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.to_string());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.to_string());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no NaN and no infinity.
        self.set(field, serde_json::Number::from_f64(value).map_or_else(|| format!("\"{value}\""), |n| n.to_string()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            // Writing to a String cannot fail.
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        self.set_text(field, &text);
    }
}
