//! What an operator writes to stdout and stderr, line by line.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::Value;

/// All lines so far, from both streams.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Takes in a stream until its end.
    pub(crate) fn follow(&self, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = self.0.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        })
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Each line as the JSON object that it has to be.
    pub(crate) fn entries(&self) -> Vec<Value> {
        let read = |line: String| serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
        self.lines().into_iter().map(read).collect()
    }

    /// The entries with this message about this Proxy, oldest first.
    pub(crate) fn about(&self, message: &str, proxy: &str) -> Vec<Value> {
        let proxy = format!("crawl/{proxy}");
        let mut entries = self.entries();
        entries.retain(|entry| entry["msg"] == message && entry["proxy"] == proxy.as_str());
        entries
    }

    /// The text of the last lines, for whoever looks into a failure.
    pub(crate) fn tail(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}
