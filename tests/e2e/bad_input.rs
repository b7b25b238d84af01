//! What people get wrong, in manifests and over HTTP: each is told clearly, nothing is lost, nothing panics.

use std::fs;
use std::os::unix::fs::symlink;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::eventually;
use super::manifest::{external, managed};
use super::operator::{Operator, TOKEN};
use super::site::Site;

/// Passwords that people put where they do not belong. Nobody may show them.
const PASSWORD: &str = "hunter2hunter2";

/// A Proxy named `bad` of namespace `crawl` with this spec, from its fifth line on.
fn spec(text: &str) -> Vec<u8> {
    let head = "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {name: bad, namespace: crawl}\nspec:\n";
    format!("{head}{text}\n").into_bytes()
}

fn url(url: &str) -> Vec<u8> {
    spec(&format!("  external: {{url: '{url}'}}"))
}

fn check(text: &str) -> Vec<u8> {
    spec(&format!("  external: {{url: 'http://203.0.113.7:3128'}}\n  healthCheck: {{{text}}}"))
}

fn bomb() -> Vec<u8> {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        text += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 8].join(", "));
    }
    text.into_bytes()
}

/// What is in a file; the line that is told, if it is one; and words of what is told.
fn manifests() -> Vec<(Vec<u8>, Option<u64>, &'static [&'static str])> {
    vec![
        (b"spec: {a: b".into(), Some(1), &["not valid YAML", "unclosed bracket"]),
        (b"kind: Proxy\nmetadata:\n\tname: a".into(), Some(3), &["not valid YAML", "tabs"]),
        (b"- a\n- b\n".into(), Some(1), &["must be a map"]),
        (b"a: 1".into(), Some(1), &["has no `kind`"]),
        (b"kind: ConfigMap\nmetadata: {name: a}".into(), Some(1), &["`ConfigMap` is not read"]),
        (b"kind: List\nitems: []".into(), Some(1), &["a document of its own"]),
        (b"kind: Proxy\nmetadata: {}".into(), Some(1), &["without `metadata.name`"]),
        (b"kind: Proxy\nmetadata: {name: A_b}".into(), Some(1), &["metadata.name", "A_b", "lower-case"]),
        (b"kind: Proxy\nmetadata: {name: a, namespace: ../x}".into(), Some(1), &["metadata.namespace"]),
        (b"apiVersion: v1\nkind: Proxy\nmetadata: {name: a}".into(), Some(1), &["apiVersion", "v1alpha1"]),
        (b"kind: Proxy\n# \xff\xfe".into(), Some(2), &["not UTF-8"]),
        (b"kind: Proxy\nmetadata: {name: 'a\0'}".into(), Some(2), &["NUL"]),
        (bomb(), None, &["too large or too deep"]),
        (vec![b'#'; 4 * 1024 * 1024 + 1], None, &["4194305 bytes", "split it"]),
        (spec("  external: {url: 'http://a:1'}\n  maxLease: 1"), Some(6), &["spec.maxLease", "not a known field"]),
        (spec("  managed: {provider: local, placement: {host: b}}"), Some(5), &["spec.managed.placement.host"]),
        (spec("  external: {url: 'http://a:1'}\nspce: 1"), Some(6), &["spce", "not a known field"]),
        (spec("  paused: true\n  paused: false"), Some(6), &["`paused` is given twice"]),
        (spec("  maxLeases: many"), Some(5), &["spec.maxLeases: must be a whole number"]),
        (spec("  paused: maybe"), Some(5), &["spec.paused: must be true or false"]),
        (spec("  managed: local"), Some(5), &["spec.managed: must be a map"]),
        (spec("  healthCheck: {expectStatus: 204}"), Some(5), &["spec.healthCheck.expectStatus", "must be a list"]),
        (spec("  paused: true"), None, &["neither `managed` nor `external`"]),
        (
            spec("  managed: {provider: local}\n  external: {url: 'http://a:1'}"),
            None,
            &["both `managed` and `external`"],
        ),
        (spec("  managed: {provider: local, port: 0}"), None, &["spec.managed.port", "1 to 65535"]),
        (spec("  managed: {provider: local, port: 65536}"), None, &["spec.managed.port: 65536"]),
        (spec("  managed: {provider: Local_1}"), None, &["spec.managed.provider", "providers config"]),
        (url("http://203.0.113.7:70000"), None, &["spec.external.url", "invalid port"]),
        (url("http://203.0.113.7:0"), None, &["spec.external.url", "port 0"]),
        (url("socks5://203.0.113.7:1080"), None, &["must begin with http:// or https://"]),
        (url("203.0.113.7:3128"), None, &["is not a URL"]),
        (
            url(&format!("http://user:{PASSWORD}@203.0.113.7:3128")),
            None,
            &["must not hold user and password", "Secret"],
        ),
        (url("http://203.0.113.7:3128/path"), None, &["must end after the port"]),
        (check(&format!("target: 'https://user:{PASSWORD}@a/'")), None, &["healthCheck.target", "must not hold user"]),
        (check("interval: '30'"), None, &["healthCheck.interval", "is not a duration"]),
        (check("interval: 10s, timeout: 11s"), None, &["healthCheck.timeout", "at most `interval`"]),
        (check("expectStatus: [99]"), None, &["expectStatus[0]: 99", "100 to 599"]),
        (spec("  external: {url: 'http://a:1'}\n  maxLeases: 0"), None, &["spec.maxLeases: 0", "1 to 10000"]),
        (spec("  external: {url: 'http://a:1'}\n  attributes: {ttl: '5'}"), None, &["parameter of the lease API"]),
        (
            spec(&format!("  managed: {{provider: local, cloudInit: {{inline: '{}'}}}}", "x".repeat(70_000))),
            None,
            &["cloudInit.inline", "at most 65536"],
        ),
        (
            format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\ndata: {{password: {PASSWORD}!}}")
                .into_bytes(),
            Some(1),
            &["not base64"],
        ),
    ]
}

async fn nothing_broke(operator: &Operator) {
    let api = &operator.api;
    assert!(api.metric("egress_actor_restarts_total{kind=\"proxy\"}").await.unwrap_or(0.0) < 0.5);
    assert_eq!(api.admin("/readyz").await.unwrap().0, 200);
    let log = operator.log.lines().join("\n");
    assert!(!log.contains("panicked"), "something panicked");
    assert!(!log.contains(PASSWORD), "a password is in the log");
}

#[tokio::test]
async fn each_bad_manifest_is_told_with_its_file_and_the_good_ones_go_on() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["good"], managed);
    site.apply("other.yaml", &external("other", 1).yaml());
    let operator = site.operator().start().await;
    let api = &operator.api;
    api.becomes("good", "Ready").await;
    let pids = site.squids();

    let rows = manifests();
    for (n, (text, ..)) in rows.iter().enumerate() {
        // Each has a name of its own, so that it is told for its own fault.
        let text = String::from_utf8(text.clone())
            .map_or(text.clone(), |t| t.replace("name: bad", &format!("name: bad-{n}")).into());
        fs::write(site.manifests().join(format!("bad-{n}.yaml")), text).unwrap();
    }
    // Names that are taken, by another file and within one; an edit of what cannot be edited; files that are none.
    site.apply("twin.yaml", &managed("good").yaml());
    site.apply("twins.yaml", &(external("twin", 1).yaml() + &external("twin", 2).yaml()));
    site.apply("other.yaml", &external("other", 2).flavor("managed: {provider: local}").yaml());
    symlink("/nonexistent", site.manifests().join("link.yaml")).unwrap();
    let more: [(&str, &[&str]); 4] = [
        ("twin.yaml", &["good.yaml"]),
        ("twins.yaml", &["twins.yaml"]),
        ("other.yaml", &["immutable", "delete and recreate"]),
        ("link.yaml", &["symbolic link"]),
    ];
    let mut expected: Vec<(String, Option<u64>, &[&str])> =
        rows.iter().enumerate().map(|(n, (_, line, words))| (format!("bad-{n}.yaml"), *line, *words)).collect();
    expected.extend(more.map(|(file, words)| (file.to_owned(), None, words)));
    assert!(expected.len() >= 30);

    let problems = eventually("each file is told", async || {
        let problems = api.problems().await;
        expected.iter().all(|(file, ..)| problems.iter().any(|told| told["file"] == file.as_str())).then_some(problems)
    })
    .await;
    let mut wrong = Vec::new();
    for (file, line, words) in &expected {
        let told: Vec<_> = problems.iter().filter(|told| told["file"] == file.as_str()).collect();
        let right = |told: &Value| {
            let message = told["message"].as_str().unwrap();
            line.is_none_or(|line| told["line"] == line) && words.iter().all(|word| message.contains(word))
        };
        if told.len() != 1 || !right(told[0]) {
            wrong.push(format!("{file}: told {told:?}, not once with {words:?} at {line:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!problems.iter().any(|told| told.to_string().contains(PASSWORD)), "a password is shown");
    let other = problems.iter().find(|told| told["file"] == "other.yaml").unwrap();
    assert!(other["message"].as_str().unwrap().starts_with("Proxy `crawl/other`: "), "{other}");
    #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
    let told = problems.len() as f64;
    assert_eq!(api.metric("egress_standalone_manifest_problems").await, Some(told));
    let line = api.check("manifest-problems").await;
    assert!(line.starts_with("[!]") && line.contains(&format!("and {} more", problems.len() - 1)), "{line}");
    assert_eq!(api.admin("/readyz").await.unwrap().0, 200, "which is no reason not to be ready");

    // Nothing came of them, and nothing was lost.
    // The good half of `twins.yaml` was told to the fleet in the same moment as what is wrong with the other.
    let names = async || {
        let rows = api.proxies().await;
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    eventually("the good ones are there", async || names().await.contains(&"crawl/twin".to_owned()).then_some(()))
        .await;
    assert_eq!(names().await, ["crawl/good", "crawl/other", "crawl/twin"]);
    assert_eq!(site.squids(), pids);
    api.release(&api.lease("good").await).await;
    nothing_broke(&operator).await;
    for (file, ..) in &expected {
        site.remove(file);
    }
    site.apply("other.yaml", &external("other", 1).yaml());
    eventually("nothing is wrong any more", async || api.problems().await.is_empty().then_some(())).await;
    api.becomes("good", "Ready").await;
    assert_eq!(site.squids(), pids);
    assert_eq!(operator.terminate().await.code, Some(0));
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn each_bad_request_gets_its_code_and_a_sentence_and_leases_nothing() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], managed);
    let operator = site.operator().args(&["--max-lease-ttl", "10m"]).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let held = api.lease("a").await;
    let of_held = |verb: &str| format!("/v1/leases/{}{verb}", held["id"].as_str().unwrap());
    let bearer = format!("Bearer {TOKEN}");

    let guessed = "Bearer guessed".to_owned();
    let almost = bearer[..bearer.len() - 1].to_owned();
    let basic = format!("Basic {TOKEN}");
    for token in [None, Some(guessed), Some(almost), Some(basic), Some(bearer.to_lowercase() + "x")] {
        let headers: Vec<_> = token.iter().map(|token| ("authorization", token.as_str())).chain([JSON]).collect();
        let (status, told) = api.raw(Method::POST, "/v1/leases", &headers, b"{}").await;
        assert_eq!((status, &told["code"]), (401, &"unauthenticated".into()), "{token:?}: {told}");
    }

    let huge = format!("{{\"owner\":\"{}\"}}", "x".repeat(70 * 1024));
    let (renew, report) = (of_held("/renew"), of_held("/report"));
    // The path, the body, the status, the code, and words of the sentence.
    let rows: Vec<(&str, &[u8], u16, &str, &str)> = vec![
        ("/v1/leases", br#"{"ttlSeconds":0}"#, 400, "bad_request", "ttlSeconds: `0` given, must be 1 to 600"),
        ("/v1/leases", br#"{"ttlSeconds":601}"#, 400, "bad_request", "ttlSeconds: `601` given, must be 1 to 600"),
        ("/v1/leases", br#"{"ttlSeconds":"60"}"#, 400, "bad_request", "ttlSeconds: invalid type"),
        ("/v1/leases", br#"{"ttl":60}"#, 400, "bad_request", "unknown field `ttl`"),
        ("/v1/leases", br#"{"selectors":{"n":"a"}}"#, 400, "bad_request", "selectors: invalid type"),
        ("/v1/leases", br#"{"selectors":[{"n":1}]}"#, 400, "bad_request", "selectors[0].n"),
        ("/v1/leases", br#"{"selectors":[{"n":"nobody"}]}"#, 404, "no_such_selector", ""),
        ("/v1/leases", br#"{"selectors":[{"colour":"blue"}]}"#, 404, "no_such_selector", ""),
        ("/v1/leases", br#"{"selectors":[{"n":"a"}]}"#, 409, "none_available", ""),
        ("/v1/leases", br#"{"count":0}"#, 400, "bad_request", "count"),
        ("/v1/leases", br#"{"target":"https://shop.example/"}"#, 400, "bad_request", "target"),
        ("/v1/leases", br#"{"exclude":["px-3"]}"#, 400, "bad_request", "exclude[0]"),
        ("/v1/leases", b"{\"owner\":\"a\0b\"}", 400, "bad_request", "owner: control character"),
        ("/v1/leases", b"{\"owner\":\"\xff\"}", 400, "bad_request", "owner: invalid unicode"),
        ("/v1/leases", b"{\"owner\":", 400, "bad_request", "EOF while parsing"),
        ("/v1/leases", b"[]", 400, "bad_request", "must be a JSON object"),
        ("/v1/leases", huge.as_bytes(), 413, "body_too_large", "65536"),
        ("/v1/leases?n=a", b"{}", 400, "bad_request", "query: given together with a body"),
        ("/v1/leases?ttl=0", b"", 400, "bad_request", "ttl: `0` given"),
        ("/v1/leases?ttl=1h", b"", 400, "bad_request", "ttl: `1h` given"),
        ("/v1/leases?n=%FF", b"", 400, "bad_request", "must be UTF-8"),
        ("/v1/leases?n=a&n=b", b"", 400, "bad_request", "n: given twice"),
        (&renew, br#"{"ttlSeconds":601}"#, 400, "bad_request", "must be 1 to 600"),
        (&renew, br#"{"generation":1}"#, 412, "generation_mismatch", ""),
        (&report, br#"{"outcome":"dead"}"#, 400, "bad_request", "must be one of ok, banned"),
        (&report, b"{}", 400, "bad_request", "missing field `outcome`"),
        ("/v1/leases/ls_unknown/renew", b"{}", 404, "no_such_lease", ""),
        ("/v1/nothing", b"{}", 404, "no_such_route", "/v1/nothing"),
        ("/v1/proxies", b"{}", 405, "method_not_allowed", ""),
    ];
    assert!(rows.len() >= 25);
    let mut wrong = Vec::new();
    for (path, body, expected, code, words) in rows {
        let kind = Some(JSON).filter(|_| !body.is_empty());
        let headers: Vec<_> = [("authorization", bearer.as_str())].into_iter().chain(kind).collect();
        let (status, told) = api.raw(Method::POST, path, &headers, body).await;
        let detail = told["detail"].as_str().unwrap_or_default();
        if status != expected || told["code"] != code || detail.is_empty() || !detail.contains(words) {
            wrong.push(format!("{path} {}: {status} {told}", String::from_utf8_lossy(&body[..body.len().min(60)])));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let form = [("authorization", bearer.as_str()), ("content-type", "application/x-www-form-urlencoded")];
    let (status, told) = api.raw(Method::POST, "/v1/leases", &form, b"ttl=60").await;
    assert_eq!((status, &told["code"]), (415, &"unsupported_media_type".into()), "{told}");

    // What is no HTTP at all.
    for bytes in
        [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"GET /\0 HTTP/1.1\r\n\r\n", b"\r\n\r\n\xff\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(site.discovery).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }

    let out = api.get("/v1/leases").await;
    assert_eq!(out["leases"].as_array().unwrap().len(), 1, "{out}");
    let renewed = api.call(Method::POST, &renew, Some(&json!({"ttlSeconds": 600}))).await;
    assert_eq!(renewed.0, 200, "the lease is untouched: {}", renewed.1);
    nothing_broke(&operator).await;
}

#[tokio::test]
async fn a_directory_that_is_missing_at_the_start_ends_it_with_code_2_and_the_way_out() {
    let Some(site) = Site::new() else { return };
    fs::remove_dir(site.manifests()).unwrap();
    let ended = site.operator().spawn().ended().await;
    assert_eq!(ended.code, Some(2));
    let said = ended.log.entries().pop().unwrap();
    let error = said["error"].as_str().unwrap();
    assert!(error.contains("--standalone") && error.contains(&site.manifests().display().to_string()), "{said}");
    assert!(!site.state().join("standalone.redb").exists(), "the state was touched");
}

#[tokio::test]
async fn crawlers_that_hang_up_before_their_answer_hold_no_lease() {
    let Some(site) = Site::new() else { return };
    site.apply_each(["a"], |name| managed(name).max_leases(100));
    let operator = site.operator().args(&["--log-level", "debug"]).start().await;
    let api = &operator.api;
    api.all_ready(1).await;
    let body = r#"{"selectors":[{"n":"a"}],"ttlSeconds":600}"#;
    let request = format!(
        "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: \
         application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // While it stands still the kernel takes the requests in, and the hanging up behind them.
    operator.signal(Signal::STOP);
    let stands_still = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("status")).is_ok_and(|status| status.contains("State:\tT"))
    };
    let tasks = format!("/proc/{}/task", operator.pid());
    eventually("it stands still", async || fs::read_dir(&tasks).unwrap().flatten().all(stands_still).then_some(()))
        .await;
    for _ in 0..50 {
        let mut stream = TcpStream::connect(site.discovery).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
    }
    operator.signal(Signal::CONT);
    eventually("all of them are noticed", async || {
        let early = operator.log.lines().iter().filter(|line| line.contains("connection ended early")).count();
        (early >= 50).then_some(())
    })
    .await;
    eventually("nobody holds a lease", async || {
        api.get("/v1/leases").await["leases"].as_array().unwrap().is_empty().then_some(())
    })
    .await;
    api.release(&api.lease("a").await).await;
}
