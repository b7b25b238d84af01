//! A command line that cannot be read, told as one line: where logs are JSON, whoever collects them must find it there.

use std::ffi::OsString;
use std::fmt;

use clap::ValueEnum;

use super::LogFormat;

/// What is wrong with the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(String);

impl Refused {
    /// clap's message without its usage lines, as one line.
    pub(super) fn new(error: &clap::Error) -> Self {
        let text = error.to_string();
        let parts = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let told: Vec<_> = parts.filter(|part| !part.is_empty() && !part.starts_with("Usage:")).collect();
        Self(told.join("; ").trim_start_matches("error: ").trim_end_matches('.').to_owned())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// The format of a line that clap has given up on: the last one given counts, and one that is none is as not given.
pub(super) fn wished_format(line: impl IntoIterator<Item = OsString>, variable: Option<OsString>) -> Option<LogFormat> {
    let mut wished = variable;
    let mut line = line.into_iter();
    while let Some(argument) = line.next() {
        if argument == "--log-format" {
            wished = line.next();
        } else if let Some(value) = argument.to_str().and_then(|text| text.strip_prefix("--log-format=")) {
            wished = Some(value.into());
        }
    }
    LogFormat::from_str(wished?.to_str()?, false).ok()
}

#[cfg(test)]
mod tests {
    use super::super::Args;
    use super::*;

    #[test]
    fn a_refused_command_line_is_one_line_with_the_way_out() {
        const HELP: &str = "For more information, try '--help'";
        for (line, told) in [
            (
                &["--list-interval", "15"][..],
                format!(
                    "invalid value '15' for '--list-interval <DURATION>': not a duration; write it like 15s, 10m, 1h30m or 500ms; {HELP}"
                ),
            ),
            (
                &["--on-exit", "maybe"],
                format!("invalid value 'maybe' for '--on-exit <keep|delete>' [possible values: keep, delete]; {HELP}"),
            ),
            (
                &["--state-dirs", "x"],
                format!(
                    "unexpected argument '--state-dirs' found; tip: a similar argument exists: '--state-dir'; {HELP}"
                ),
            ),
            (
                &["--health-workers", "-1"],
                format!("invalid value '-1' for '--health-workers <N>': -1 is not in 1..=10000; {HELP}"),
            ),
            (&["--tls-cert"], format!("a value is required for '--tls-cert <FILE>' but none was supplied; {HELP}")),
        ] {
            let error = Args::try_read([&["x"], line].concat()).expect_err("refused");
            assert_eq!(Refused::new(&error).to_string(), told, "{line:?}");
        }
    }

    #[test]
    fn the_wished_format_is_found_in_a_line_that_cannot_be_read() {
        use LogFormat::{Json, Text};
        for (line, variable, wished) in [
            (&["x", "--bad"][..], None, None),
            (&["x", "--bad", "--log-format", "json"], None, Some(Json)),
            (&["x", "--log-format=text", "--bad"], Some("json"), Some(Text)),
            (&["x", "--log-format=text", "--log-format", "json"], None, Some(Json)),
            (&["x", "--bad"], Some("text"), Some(Text)),
            (&["x", "--log-format", "xml"], None, None),
            (&["x", "--log-format"], None, None),
        ] {
            let line = line.iter().map(OsString::from);
            assert_eq!(wished_format(line.clone(), variable.map(OsString::from)), wished, "{line:?} {variable:?}");
        }
    }
}
