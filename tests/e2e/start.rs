//! What keeps an operator from starting: told in one line, with exit code 2, before anything is touched.

use std::fs;
use std::net::TcpListener;

use super::manifest::managed;
use super::operator::Launch;
use super::site::Site;

/// One line at level error that has all these words, as the last one, and nobody else's complaints.
async fn refuses(claim: &str, launch: Launch<'_>, words: &[&str]) {
    let ended = launch.spawn().ended().await;
    assert_eq!(ended.code, Some(2), "{claim}: {}", ended.log.tail());
    let errors: Vec<_> = ended.log.entries().into_iter().filter(|entry| entry["level"] == "error").collect();
    assert_eq!(errors.len(), 1, "{claim}: {}", ended.log.tail());
    assert_eq!(errors[0]["msg"], "cannot start", "{claim}");
    let text = errors[0]["error"].as_str().unwrap();
    for word in words {
        assert!(text.contains(word), "{claim}: `{word}` is not in `{text}`");
    }
}

#[tokio::test]
async fn whatever_keeps_an_operator_from_starting_is_said_in_one_line_with_exit_code_2() {
    let Some(site) = Site::new() else { return };
    for (flag, address) in
        [("--admin-addr", site.admin), ("--discovery-addr", site.discovery), ("--echo-addr", site.echo)]
    {
        let _taken = TcpListener::bind(address).unwrap();
        let launch = site.operator().args(&["--echo-addr", &site.echo.to_string()]);
        refuses("a taken port", launch, &[flag, &address.to_string(), "free the port or choose another"]).await;
    }

    for (argument, words) in [
        ("--list-interval=15", &["'--list-interval <DURATION>': not a duration; write it like 15s"][..]),
        ("--state-dirs=x", &["unexpected argument '--state-dirs'", "a similar argument exists: '--state-dir'"]),
    ] {
        refuses("a bad flag", site.operator().arg(argument), words).await;
    }

    let missing = site.path("missing.yaml").display().to_string();
    let launch = site.operator().args(&["--providers-config", &missing]);
    refuses("no providers config", launch, &[&missing, "cannot be read"]).await;

    let bad = site.path("bad.yaml");
    fs::write(&bad, site.entry("local", "colour: blue,")).unwrap();
    let launch = site.operator().arg("--providers-config").arg(&bad);
    refuses("a bad providers config", launch, &["bad.yaml:2:", "colour"]).await;

    // A mode would not keep root out.
    let file = site.path("a-file");
    fs::write(&file, "not a directory").unwrap();
    let launch = site.operator().arg("--state-dir").arg(&file);
    refuses("a file as state dir", launch, &["--state-dir", "a-file: is not a directory"]).await;
    let below = file.join("state");
    let launch = site.operator().arg("--state-dir").arg(&below);
    refuses("a state dir below a file", launch, &["--state-dir", "a-file/state"]).await;

    let corrupt = site.path("corrupt");
    fs::create_dir(&corrupt).unwrap();
    fs::write(corrupt.join("standalone.redb"), "garbage ".repeat(1000)).unwrap();
    let launch = site.operator().arg("--state-dir").arg(&corrupt);
    refuses("a corrupt store", launch, &["standalone.redb", "cannot be read"]).await;
    assert!(fs::read(corrupt.join("standalone.redb")).unwrap().starts_with(b"garbage"), "the evidence is gone");
}

#[tokio::test]
async fn a_second_operator_on_one_state_directory_is_refused_and_the_first_goes_on() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().start().await;
    operator.api.all_ready(1).await;
    let pids = site.squids();
    let ports = super::ports::free(2);
    let address = |port: &u16| format!("127.0.0.1:{port}");
    let launch =
        site.operator().args(&["--discovery-addr", &address(ports.start()), "--admin-addr", &address(ports.end())]);
    let pid = format!("process {}", operator.pid());
    refuses("a second operator", launch, &["in use by another operator", &pid, "--state-dir"]).await;
    operator.api.all_ready(1).await;
    assert_eq!(site.squids(), pids);
}
