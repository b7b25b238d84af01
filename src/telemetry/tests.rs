use std::io::{self, Read};
use std::sync::mpsc;
use std::time::Instant;

use egress_actors::names::{self, Kind};
use metrics::{counter, gauge, histogram};
use serde_json::{Value, json};
use tracing::{debug, error, info, info_span, warn};

use super::*;

/// Never a measure, only the difference between slow and stuck.
const STUCK: Duration = Duration::from_secs(30);

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `log` writes under this filter, as text.
fn logged(format: LogFormat, filter: &str, log: impl FnOnce(&LogLevel)) -> String {
    let kept = Kept::default();
    let (writer, guard) = LogWriter::start(kept.clone(), STUCK, json::lines_dropped).expect("started");
    let (subscriber, level) = subscriber(writer, format, false, &filter.parse().expect("a filter"));
    tracing::subscriber::with_default(subscriber, || log(&level));
    drop(guard);
    let bytes = std::mem::take(&mut *kept.0.lock().unwrap());
    String::from_utf8(bytes).expect("log lines are UTF-8")
}

/// The lines as JSON, each without its time, which must be one.
fn lines(log: impl FnOnce(&LogLevel)) -> Vec<Value> {
    parsed(&logged(LogFormat::Json, "trace", log))
}

fn parsed(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let ts = value.as_object_mut().and_then(|o| o.remove("ts")).expect("a ts");
            let ts = ts.as_str().expect("text");
            assert!(ts.ends_with('Z') && ts.parse::<jiff::Timestamp>().is_ok(), "{ts} is not RFC 3339");
            value
        })
        .collect()
}

#[test]
fn a_line_is_one_flat_object_with_fixed_names() {
    let seen = lines(|_| {
        info!(target: "t", proxy = %"crawl/px-1", op = "create", elapsed = ?Duration::from_millis(12), tries = 3_u64, ok = true, ratio = 0.5, delta = -1_i64, "operation done");
        warn!(target: "t", r#type = "kvm", "raw names lose their mark");
        error!(target: "t", lost = f64::NAN);
    });
    assert_eq!(
        seen,
        [
            json!({"level": "info", "msg": "operation done", "target": "t", "proxy": "crawl/px-1", "op": "create", "elapsed": "12ms", "tries": 3, "ok": true, "ratio": 0.5, "delta": -1}),
            json!({"level": "warn", "msg": "raw names lose their mark", "target": "t", "type": "kvm"}),
            json!({"level": "error", "msg": "", "target": "t", "lost": "NaN"}),
        ]
    );
    let text = logged(LogFormat::Json, "info", |_| info!(target: "t", "first"));
    assert!(
        text.starts_with("{\"ts\":\"2") && text.contains("\",\"level\":\"info\",\"msg\":\"first\",\"target\":\"t\""),
        "{text}"
    );
}

#[test]
fn no_text_can_break_a_line() {
    use std::os::unix::ffi::OsStrExt;
    let hostile = "a\nb\r\n{\"level\":\"error\"}\u{1b}[31m\u{2028}\0\u{7f}\"\\";
    let not_utf8 = std::ffi::OsStr::from_bytes(b"dir/\xff\xfe");
    let seen = lines(|_| {
        info!(target: "t", value = hostile, path = ?not_utf8, shown = %not_utf8.display(), "{hostile}");
    });
    let expected = json!({"level": "info", "target": "t", "msg": hostile, "value": hostile, "path": "\"dir/\\xFF\\xFE\"", "shown": "dir/\u{fffd}\u{fffd}"});
    assert_eq!(seen, [expected]);
}

#[test]
fn long_values_are_cut_and_too_many_are_left_out() {
    let long = "ä".repeat(json::LONGEST_VALUE);
    let seen = lines(|_| {
        info!(target: "t", a = %long, "{long}");
        info!(target: "t", a = %long, b = %long, c = %long, d = %long, e = %long, f = %long, g = %long, "many");
    });
    let cut = format!("{}... ({} bytes)", "ä".repeat(json::LONGEST_VALUE / 2), long.len());
    assert_eq!(seen[0], json!({"level": "info", "target": "t", "msg": cut, "a": cut}));
    assert_eq!(seen[1]["truncated"], json!(true));
    assert_eq!((&seen[1]["msg"], &seen[1]["a"]), (&json!("many"), &json!(cut)));
}

#[test]
fn spans_give_their_fields_and_no_key_comes_twice() {
    let text = logged(LogFormat::Json, "info", |_| {
        let outer = info_span!("outer", host = "kvm-1", op = "outer", late = tracing::field::Empty);
        let _outer = outer.enter();
        let _inner = info_span!("inner", op = "inner", proxy = "px").entered();
        outer.record("late", 7);
        info!(target: "t", proxy = "own", target = "https://a/", level = 5, msg = "m", ts = 1, "x");
    });
    let expected = json!({"level": "info", "msg": "x", "target": "t", "proxy": "own", "op": "inner", "host": "kvm-1", "late": 7, "target_": "https://a/", "level_": 5, "msg_": "m", "ts_": 1});
    assert_eq!(parsed(&text), [expected]);
    for key in ["ts", "level", "msg", "target", "proxy", "op"] {
        assert_eq!(text.matches(&format!("\"{key}\":")).count(), 1, "{key} in {text}");
    }
}

#[test]
fn an_error_is_told_with_its_causes() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] io::Error);
    let outer = Outer(io::Error::other("inner"));
    let seen = lines(|_| info!(target: "t", error = &outer as &dyn std::error::Error, "x"));
    assert_eq!(seen[0]["error"], json!("outer: inner"));
}

#[test]
fn the_life_spans_of_ractor_are_in_no_line_whatever_the_filter() {
    for filter in ["info", "trace", "info,ractor=trace", "ractor::actor=trace,info"] {
        let text = logged(LogFormat::Json, filter, |_| {
            let _life = info_span!(target: "ractor::actor", "Actor", id = "0.1").entered();
            info!(target: "ractor::actor", "chatter");
            warn!(target: "ractor::actor", "worth telling");
            info!(target: "ractor_like", "ours");
        });
        let told = [
            json!({"level": "warn", "msg": "worth telling", "target": "ractor::actor"}),
            json!({"level": "info", "msg": "ours", "target": "ractor_like"}),
        ];
        assert_eq!(parsed(&text), told, "{filter}");
    }
}

#[test]
fn the_level_changes_while_it_runs() {
    let seen = logged(LogFormat::Json, "warn", |level| {
        info!(target: "t", "hidden");
        level.set("egress_actors=debug".parse().expect("a filter")).expect("reloaded");
        assert_eq!(level.current().as_str(), "egress_actors=debug");
        debug!(target: "egress_actors::t", "shown");
        warn!(target: "u", "hidden");
        level.set("off".parse().expect("a filter")).expect("reloaded");
        error!(target: "t", "hidden");
    });
    assert_eq!(parsed(&seen), [json!({"level": "debug", "msg": "shown", "target": "egress_actors::t"})]);
}

#[test]
fn text_is_for_people_and_bounded_too() {
    let seen = logged(LogFormat::Text, "info", |_| {
        info!(target: "t", proxy = "px", "done");
        info!(target: "t", "{}", "ä".repeat(writer::LONGEST_LINE));
        info!(target: "t", "next");
    });
    let lines: Vec<_> = seen.lines().collect();
    assert!(lines[0].ends_with(" INFO t: done proxy=\"px\""), "{}", lines[0]);
    assert!(lines[1].len() <= writer::LONGEST_LINE + 8 && lines[1].ends_with("..."), "{}", lines[1].len());
    assert!(lines[2].ends_with(" INFO t: next"), "{}", lines[2]);
}

#[test]
fn a_reader_that_never_reads_costs_lines_and_nobody_waits() {
    const LINES: u64 = 100_000;
    let (mut reader, stalled) = io::pipe().expect("a pipe");
    let (writer, guard) = LogWriter::start(stalled, Duration::from_millis(50), json::lines_dropped).expect("started");
    let (subscriber, _level) = subscriber(writer.clone(), LogFormat::Json, false, &"info".parse().expect("a filter"));
    let since = Instant::now();
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..LINES {
            info!(number, "a line that is long enough to fill what there is between us and the reader, and then some");
        }
    });
    assert!(writer.dropped() > 0);
    let kept = LINES - writer.dropped();
    // A line here has about 190 bytes. What is kept: the queue, the batch being written, the pipe.
    assert!(kept < 2 * (writer::QUEUE_BYTES as u64) / 150 + 1000, "{kept} lines kept");
    assert!(since.elapsed() < STUCK, "somebody waited for the reader");
    let (ended, hear) = mpsc::channel();
    std::thread::spawn(move || {
        drop(guard);
        ended.send(())
    });
    hear.recv_timeout(STUCK).expect("the end does not wait for the reader");

    // The reader comes back: all that was kept comes out, and the gap is told.
    let (told, hear) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = reader.read_to_string(&mut text);
        told.send(text)
    });
    let text = hear.recv_timeout(STUCK).expect("the writer ends and closes the pipe");
    let values = parsed(&text);
    let numbers: Vec<u64> = values.iter().filter_map(|v| v["number"].as_u64()).collect();
    let gaps: u64 = values.iter().filter_map(|v| v["dropped"].as_u64()).sum();
    assert!(numbers.is_sorted_by(|a, b| a < b), "out of order or twice");
    assert_eq!((numbers.len() as u64, gaps), (kept, LINES - kept));
}

#[test]
fn a_reader_that_is_gone_is_counted() {
    let (reader, gone) = io::pipe().expect("a pipe");
    drop(reader);
    let (writer, guard) = LogWriter::start(gone, STUCK, |_| Vec::new()).expect("started");
    for _ in 0..10 {
        writer.push(b"a line\n");
    }
    drop(guard);
    writer.push(b"after the end\n");
    assert_eq!(writer.dropped(), 11);
}

#[test]
fn a_reader_that_is_slow_and_takes_bytes_one_by_one_gets_all() {
    /// Would block every other time, is interrupted every third, takes a byte at most.
    struct Slow(Kept, u32);
    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 += 1;
            match self.1 % 6 {
                1 => Err(io::ErrorKind::WouldBlock.into()),
                2 => Err(io::ErrorKind::Interrupted.into()),
                _ => self.0.write(&bytes[..1]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let kept = Kept::default();
    let (writer, guard) = LogWriter::start(Slow(kept.clone(), 0), STUCK, |_| Vec::new()).expect("started");
    writer.push(b"one\n");
    writer.push(b"two\n");
    drop(guard);
    assert_eq!(*kept.0.lock().unwrap(), b"one\ntwo\n");
    assert_eq!(writer.dropped(), 0);
}

/// What `/metrics` shows after `measure`.
fn rendered(measure: impl FnOnce(&LogWriter)) -> String {
    let (writer, _guard) = LogWriter::start(Kept::default(), STUCK, |_| Vec::new()).expect("started");
    let recorder = exporter::recorder();
    let exporter = Exporter::new(&recorder, writer.clone());
    metrics::with_local_recorder(&recorder, || {
        exporter.describe();
        measure(&writer);
        exporter.render()
    })
}

#[test]
fn every_declared_metric_is_shown_with_its_help_kind_and_buckets() {
    let text = rendered(|_| {
        for metric in names::ALL {
            let labels: Vec<(&str, &str)> = metric.labels.iter().map(|label| (*label, "x")).collect();
            match metric.kind {
                Kind::Counter => counter!(metric.name, &labels).increment(1),
                Kind::Gauge => gauge!(metric.name, &labels).set(1.0),
                Kind::Histogram(_) => histogram!(metric.name, &labels).record(0.003),
            }
        }
    });
    for metric in names::ALL {
        let (name, help) = (metric.name, metric.help);
        assert_eq!(text.matches(&format!("# HELP {name} {help}\n")).count(), 1, "{name}");
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(buckets) => {
                let shown = text.lines().filter(|line| line.starts_with(&format!("{name}_bucket{{"))).count();
                assert_eq!(shown, buckets.len() + 1, "{name}");
                "histogram"
            }
        };
        assert_eq!(text.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name}");
    }
}

#[test]
fn what_has_no_labels_is_there_from_the_start_and_the_process_too() {
    let text = rendered(|_| {});
    for line in ["egress_log_lines_dropped_total 0", "egress_config_reload_failed 0", "egress_lease_waiters 0"] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
    }
    for name in ["process_open_fds", "process_resident_memory_bytes", "process_threads", "process_cpu_seconds_total"] {
        assert!(text.lines().any(|l| l.starts_with(&format!("{name} "))), "no {name} in\n{text}");
    }
}

#[test]
fn cpu_time_is_a_counter_with_a_fraction() {
    let began = Instant::now();
    loop {
        let text = rendered(|_| {});
        assert!(text.contains("# TYPE process_cpu_seconds_total counter\n"), "{text}");
        let told = text.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total ")).expect("it is there");
        // Once in a hundred looks the clock stands at a whole second.
        if told.parse::<f64>().expect("a number").fract() > 0.0 {
            return;
        }
        assert!(began.elapsed() < STUCK, "only whole seconds are told: {told}");
    }
}

#[test]
fn dropped_lines_show_in_the_metrics() {
    let text = rendered(|writer| writer.push(&vec![b'\n'; writer::QUEUE_BYTES + 1]));
    assert!(text.lines().any(|line| line == "egress_log_lines_dropped_total 1"), "{text}");
}

#[test]
fn a_gauge_whose_subject_is_gone_is_left_out_until_it_is_set_again() {
    let gauge = |provider: &'static str| gauge!(names::PROVIDER_TARGET_UP, "provider" => provider, "target" => "NaN");
    let text = rendered(|_| {
        for provider in ["stays", "gone", "back"] {
            gauge(provider).set(1.0);
        }
        gauge("gone").set(names::RETIRED);
        gauge("back").set(names::RETIRED);
        gauge("back").set(0.0);
    });
    let shown: Vec<_> = text.lines().filter(|line| line.starts_with(names::PROVIDER_TARGET_UP)).collect();
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(shown.iter().any(|l| l.contains("\"stays\"") && l.ends_with(" 1")), "{shown:?}");
    assert!(shown.iter().any(|l| l.contains("\"back\"") && l.ends_with(" 0")), "{shown:?}");
}
