//! Telemetry as a whole process has it: the global subscriber, the panic hook, stdout and stderr.
//!
//! Each test starts this same binary again with the name of a scene in its environment; [`scene`] plays it there.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use egress_operator::args::{LogFilter, LogFormat};
use egress_operator::telemetry::{self, Telemetry};
use serde_json::Value;
use tracing::info;

const SCENE: &str = "TELEMETRY_TEST_SCENE";
/// Never a measure, only the difference between slow and stuck.
const STUCK: Duration = Duration::from_mins(1);

fn filter(text: &str) -> LogFilter {
    text.parse().expect("a filter")
}

fn install(format: Option<LogFormat>) -> Telemetry {
    telemetry::install(format, &filter("info")).expect("installed")
}

/// The other side of the tests; passes at once when nobody asked for a scene.
#[test]
fn scene() {
    let Ok(scene) = std::env::var(SCENE) else { return };
    match scene.as_str() {
        "panics" => {
            let _telemetry = install(Some(LogFormat::Json));
            let thread = std::thread::Builder::new().name("poor-thread".to_owned());
            let ended = thread.spawn(|| panic!("two\nlines of {}", "trouble")).expect("spawned").join();
            assert!(ended.is_err());
            let ended = std::thread::spawn(|| std::panic::panic_any(7_u8)).join();
            assert!(ended.is_err());
        }
        "text panic" => {
            let _telemetry = install(Some(LogFormat::Text));
            assert!(std::thread::spawn(|| panic!("trouble")).join().is_err());
        }
        "log crate" => {
            // Not a terminal here, so JSON.
            let telemetry = install(None);
            log::info!(target: "rustls::conn", "from the log crate");
            log::debug!(target: "rustls::conn", "hidden");
            telemetry.log_level.set(filter("debug")).expect("reloaded");
            log::debug!(target: "rustls::conn", "shown");
            telemetry.log_level.set(filter("off")).expect("reloaded");
            log::error!("hidden");
        }
        "twice" => {
            let _telemetry = install(Some(LogFormat::Json));
            let again = telemetry::install(Some(LogFormat::Json), &filter("info"));
            info!(error = %again.expect_err("refused"), "second time");
        }
        "stalled" => {
            let telemetry = install(Some(LogFormat::Json));
            for number in 0..100_000 {
                info!(
                    number,
                    "a line for a reader that does not read, which is long enough to fill a pipe and a queue"
                );
            }
            let metrics = telemetry.exporter.render();
            drop(telemetry);
            let dropped = metrics.lines().find_map(|l| l.strip_prefix("egress_log_lines_dropped_total "));
            let dropped: u64 = dropped.and_then(|n| n.parse().ok()).expect("in the metrics");
            // Not through libtest, which would print to the stalled stdout.
            std::process::exit(if dropped > 0 { 42 } else { 1 });
        }
        other => panic!("no scene {other}"),
    }
}

fn start(scene: &str) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "scene", "--nocapture", "--test-threads=1"])
        .env(SCENE, scene)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started")
}

/// The exit code, if the process ends before it counts as stuck.
fn exit_code(child: &mut Child) -> Option<i32> {
    let since = Instant::now();
    while since.elapsed() < STUCK {
        if let Some(status) = child.try_wait().expect("our child") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("our child");
    child.wait().expect("our child");
    None
}

/// What a scene writes to stdout, without what libtest writes around it; nothing may go to stderr.
fn played(scene: &str) -> Vec<String> {
    let output = start(scene).wait_with_output().expect("ended");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{scene}: something went to stderr");
    let libtest = |l: &str| l.is_empty() || l.starts_with("running ") || l.starts_with("test ");
    // libtest writes `test scene ... ` without a newline, and our first line behind it.
    text.lines()
        .map(|l| l.trim_start_matches("test scene ... ").to_owned())
        .filter(|l| !libtest(l) && l != "ok")
        .collect()
}

fn values(scene: &str) -> Vec<Value> {
    played(scene).iter().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

#[test]
fn a_panic_is_one_json_line_and_nothing_goes_to_stderr() {
    let values = values("panics");
    assert_eq!(values.len(), 2, "{values:?}");
    assert_eq!(values[0]["level"], "error");
    assert_eq!(values[0]["msg"], "panic");
    assert_eq!(values[0]["panic"], "two\nlines of trouble");
    assert_eq!(values[0]["thread"], "poor-thread");
    assert!(values[0]["location"].as_str().is_some_and(|l| l.starts_with("tests/telemetry.rs:")), "{values:?}");
    assert_eq!(values[0].get("backtrace"), None);
    assert_eq!((&values[1]["panic"], &values[1]["thread"]), (&"a value that is no text".into(), &"unnamed".into()));
}

#[test]
fn a_panic_in_text_is_one_line_too() {
    let lines = played("text panic");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(" ERROR panic: trouble location=tests/telemetry.rs:"), "{lines:?}");
}

#[test]
fn records_of_the_log_crate_come_in_under_their_own_target_and_follow_the_level() {
    let values = values("log crate");
    let told: Vec<_> = values.iter().map(|v| (v["msg"].as_str(), v["level"].as_str(), v["target"].as_str())).collect();
    let target = Some("rustls::conn");
    assert_eq!(told, [(Some("from the log crate"), Some("info"), target), (Some("shown"), Some("debug"), target)]);
    assert_eq!(values[0].as_object().map(serde_json::Map::len), Some(4), "only ts, level, msg, target: {values:?}");
}

#[test]
fn a_second_set_up_is_refused() {
    let values = values("twice");
    assert_eq!(values[0]["error"], "a log subscriber is installed already; call telemetry::install once");
}

#[test]
fn a_process_whose_stdout_nobody_reads_works_and_ends() {
    let mut child = start("stalled");
    let code = exit_code(&mut child);
    assert_eq!(code, Some(42), "None: it hung; 1: no line was dropped, so that nothing was shown");
    // It wrote as much as the pipe holds, and whole lines up to its end.
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("UTF-8");
    assert!(text.len() > 10_000, "{} bytes", text.len());
}
