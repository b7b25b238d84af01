//! `/admin/providers`: the entries of the providers config, the verdicts on their hosts, and what their sweeps found.

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use egress_actors::domain::status::Truth;
use egress_actors::domain::target::{TargetHealth, entry_health};
use egress_actors::providers::EntryCard;
use serde::Serialize;

use super::Adm;
use super::sweep::SweepBody;
use crate::server::body::json;
use crate::server::dto::timestamp;
use crate::server::negotiate::{Form, preferred};

#[derive(Debug, Serialize)]
struct ProvidersBody {
    config: ConfigBody,
    providers: Vec<ProviderBody>,
}

/// The providers config on disk.
#[derive(Debug, Serialize)]
struct ConfigBody {
    accepted: bool,
    message: String,
}

#[derive(Debug, Serialize)]
struct ProviderBody {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Null before the first verdict on every host.
    ready: Option<bool>,
    reason: Option<&'static str>,
    message: String,
    /// Why its ProviderHealth is not written; null if it is.
    #[serde(rename = "objectProblem")]
    untold: Option<String>,
    targets: Vec<TargetBody>,
    sweep: SweepBody,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TargetBody {
    name: String,
    ready: bool,
    reason: &'static str,
    message: String,
    latency_milliseconds: u64,
    checked_at: String,
}

impl ProviderBody {
    /// The same verdict as the ProviderHealth object tells.
    fn new(card: &EntryCard, dry_run: bool) -> Self {
        let targets: Vec<TargetHealth> = card.verdicts.load().to_vec();
        let health = entry_health(card.entry.hosts.len(), &targets);
        let ready = match health.ready {
            Truth::True => Some(true),
            Truth::False => Some(false),
            Truth::Unknown => None,
        };
        Self {
            name: card.entry.name.to_string(),
            kind: card.entry.kind,
            ready,
            reason: ready.map(|_| health.reason.as_str()),
            message: health.message,
            untold: card.untold.load().as_deref().cloned(),
            targets: targets
                .into_iter()
                .map(|target| TargetBody {
                    name: target.name.to_string(),
                    ready: target.is_ready(),
                    reason: target.reason().as_str(),
                    message: target.message().to_owned(),
                    latency_milliseconds: u64::try_from(target.latency.as_millis()).unwrap_or(u64::MAX),
                    checked_at: timestamp(target.checked_at),
                })
                .collect(),
            sweep: SweepBody::new(&card.swept.load(), dry_run),
        }
    }
}

/// One row of the text form.
const COLUMNS: [&str; 7] = ["NAME", "TYPE", "READY", "REASON", "TARGETS", "ORPHANS", "MESSAGE"];

impl ProviderBody {
    fn row(&self, hosts: usize) -> [String; COLUMNS.len()] {
        let ready = match self.ready {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let passed = self.targets.iter().filter(|target| target.ready).count();
        [
            self.name.clone(),
            self.kind.to_owned(),
            ready.to_owned(),
            self.reason.unwrap_or("Pending").to_owned(),
            format!("{passed}/{hosts}"),
            self.sweep.told_orphans(),
            // A row is a line, whatever an error says.
            self.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
        ]
    }
}

fn table(rows: &[[String; COLUMNS.len()]]) -> String {
    let header = COLUMNS.map(str::to_owned);
    let lines = || std::iter::once(&header).chain(rows);
    let width = |column: usize| lines().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    let mut text = String::new();
    for row in lines() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            write!(line, "{cell:width$}  ").expect("writing to a string cannot fail");
        }
        text.extend([line.trim_end(), "\n"]);
    }
    text
}

/// The text form has a table of the entries, and what concerns all of them.
pub(super) async fn providers(State(admin): Adm, headers: HeaderMap) -> Response {
    let cards = admin.directory.entries();
    let providers: Vec<_> = cards.iter().map(|card| ProviderBody::new(card, admin.sweep_dry_run)).collect();
    let (accepted, message) = match (admin.controls.config)() {
        Ok(message) => (true, message),
        Err(message) => (false, message),
    };
    if preferred(&headers) == Form::Json {
        return json(&ProvidersBody { config: ConfigBody { accepted, message }, providers });
    }
    let rows: Vec<_> = providers.iter().zip(&cards).map(|(body, card)| body.row(card.entry.hosts.len())).collect();
    let mut text = table(&rows);
    text.extend(["\nconfig: ", &message, "\n"]);
    if admin.sweep_dry_run {
        text.push_str("sweep: a dry run, no orphan is deleted\n");
    }
    text.into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::server::tests::entries::card;

    #[test]
    fn an_entry_is_as_well_as_its_worst_host_and_unknown_before_all_are_checked() {
        let told =
            |verdicts: &[(&str, bool)]| serde_json::to_value(ProviderBody::new(&card("home", verdicts), true)).unwrap();
        for (verdicts, ready, reason) in [
            (&[][..], json!(null), json!(null)),
            (&[("a", true)], json!(null), json!(null)),
            (&[("a", true), ("b", true)], json!(true), json!("Healthy")),
            (&[("a", true), ("b", false)], json!(false), json!("BinaryMissing")),
            (&[("b", false)], json!(false), json!("BinaryMissing")),
        ] {
            let told = told(verdicts);
            assert_eq!((&told["ready"], &told["reason"]), (&ready, &reason), "{verdicts:?}");
        }
        let expected = json!({"name": "home", "type": "process", "ready": false, "reason": "BinaryMissing",
            "message": "b: BinaryMissing (no such file)", "objectProblem": null,
            "targets": [{"name": "b", "ready": false, "reason": "BinaryMissing", "message": "no such file",
                "latencyMilliseconds": 7, "checkedAt": "2026-12-01T00:00:00.000Z"}],
            "sweep": {"dryRun": true, "orphans": 0, "deleted": 0, "hosts": []}});
        assert_eq!(told(&[("b", false)]), expected);
    }

    #[test]
    fn the_text_form_is_a_table_of_which_entry_is_sick_and_why() {
        let row = |verdicts: &[(&str, bool)]| ProviderBody::new(&card("home", verdicts), false).row(2);
        let rows = [row(&[("a", true), ("b", false)]), row(&[("a", true), ("b", true)]), row(&[])];
        let expected = "\
NAME  TYPE     READY    REASON         TARGETS  ORPHANS  MESSAGE
home  process  False    BinaryMissing  1/2      -        b: BinaryMissing (no such file)
home  process  True     Healthy        2/2      -        every target passed its latest check
home  process  Unknown  Pending        0/2      -        not every target has been checked yet
";
        assert_eq!(table(&rows), expected);
    }
}
