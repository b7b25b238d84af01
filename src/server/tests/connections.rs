//! Connections that are slow, broken, too many, or not allowed; panics; the end; TLS.

use std::path::Path;
use std::sync::atomic::AtomicUsize;

use axum::body::to_bytes;
use axum::response::IntoResponse;
use axum::routing::get;
use egress_actors::domain::lease_book::Ask;
use reqwest::Method;
use rustls::pki_types::ServerName;
use serde_json::json;

use super::*;
use crate::server::handover;
use crate::server::tls::Tls;

const HEAD: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

/// A request whose headers never end.
const DRIP: &str = "POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\n{HEAD}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_before_its_answer_holds_nothing() {
    // With a single place, the next client is served only when the connection before has ended, and its handler with it.
    let limits = Limits { connections: 2, ..Limits::default() };
    let world = World::wished(Wish { limits, ..Wish::default() }).await;
    world.offer("dc", 20, 1);
    // It takes one of the two places, with the report that waits.
    world.occupy().await;
    for _ in 0..10 {
        let mut stream = world.served.connect().await;
        write(&mut stream, &post("/v1/leases", r#"{"selectors":[{"tier":"dc"}]}"#)).await;
        drop(stream);
        let mut probe = world.served.connect().await;
        write(&mut probe, "GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
        let answer = read_to_close(&mut probe, Duration::from_secs(5)).await.expect("it is served");
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    let handled = world.registry().handled();
    world.gate.open();
    eventually("nobody holds anything", async || {
        // The ten asks come before this question.
        let out = world.out().await;
        let asked = world.registry().handled() >= handled + 20;
        asked && out == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_never_read_gives_its_leases_back() {
    let world = World::new().await;
    world.offer("dc", 4, 1);
    let ask = || Ask {
        selectors: Vec::new(),
        target: None,
        ttl: Duration::from_secs(60),
        owner: None,
        token: "default".into(),
        exclude: Vec::new(),
        count: 2,
        partial: false,
    };
    let answer = async || {
        let (_, undelivered) = handover::acquire(&world.leases, ask()).await.unwrap().unwrap();
        handover::answer(().into_response(), "text".to_owned(), undelivered)
    };
    let read = answer().await;
    assert_eq!(read.headers()["content-length"], "4");
    assert_eq!(to_bytes(read.into_body(), 10).await.unwrap(), "text");
    let unread = answer().await;
    assert_eq!(world.out().await, 4);
    drop(unread);
    eventually("the second answer's leases are back", async || world.out().await == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_drips_headers_is_cut_off_while_others_are_served() {
    let limits = Limits { headers: Duration::from_millis(400), ..Limits::default() };
    let world = World::wished(Wish { limits, ..Wish::default() }).await;
    world.offer("dc", 1, 1);
    let began = Instant::now();
    let mut slow = world.served.connect().await;
    write(&mut slow, DRIP).await;
    let mut silent = world.served.connect().await;
    let served = world.lease("dc").await;
    assert_eq!(served["state"], "active");
    assert!(began.elapsed() < Duration::from_millis(400), "others waited for the slow one");
    let (mut reading, mut writing) = slow.into_split();
    let drip = tokio::spawn(async move {
        while writing.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(5), reading.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "a dripping client keeps its connection");
    assert!(began.elapsed() >= Duration::from_millis(400));
    drip.abort();
    assert!(read_to_close(&mut silent, Duration::from_secs(5)).await.is_some(), "so does a silent one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_comes_ends_at_the_limit() {
    let limits = Limits { request: Duration::from_millis(300), ..Limits::default() };
    let world = World::wished(Wish { limits, ..Wish::default() }).await;
    let mut stream = world.served.connect().await;
    write(&mut stream, &format!("POST /v1/leases HTTP/1.1\r\n{HEAD}Content-Length: 100\r\n\r\n{{")).await;
    let answer = read_to_close(&mut stream, Duration::from_secs(5)).await.expect("it is closed");
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("\"request_timeout\""), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_announced_too_large_is_refused_before_it_is_asked_for() {
    let world = World::new().await;
    for (length, answers) in [("65537", "413"), ("99999999999999999999", "4"), ("65536", "100")] {
        let mut stream = world.served.connect().await;
        let ask = format!("POST /v1/leases HTTP/1.1\r\n{HEAD}Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n");
        write(&mut stream, &ask).await;
        let mut first = [0; 1024];
        let count = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut first)).await.unwrap().unwrap();
        let first = String::from_utf8_lossy(&first[..count]).into_owned();
        assert!(first.starts_with(&format!("HTTP/1.1 {answers}")), "{length}: {first}");
        if answers == "413" {
            assert!(first.contains("\"body_too_large\"") && first.contains("65536 bytes"), "{first}");
            assert!(read_to_close(&mut stream, Duration::from_secs(5)).await.is_some(), "nobody waits for the body");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_json_answer_is_a_line() {
    let world = World::new().await;
    world.offer("dc", 2, 1);
    let lease = world.lease("dc").await;
    let one = format!("/v1/leases/{}", lease["id"].as_str().unwrap());
    for (method, path) in [
        (Method::POST, "/v1/leases"),
        (Method::POST, "/v1/leases?tier=none"),
        (Method::GET, "/v1/leases"),
        (Method::GET, one.as_str()),
        (Method::GET, "/v1/proxies"),
        (Method::GET, "/v1/explain"),
        (Method::GET, "/nothing"),
    ] {
        let response = world.send(method, path).send().await.unwrap();
        let length = response.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
        let text = response.text().await.unwrap();
        assert!(text.ends_with("}\n") && text.lines().count() == 1, "{path}: {text:?}");
        assert_eq!(length, text.len(), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_nothing_gives_its_place_free() {
    let big = Router::new().route("/big", get(|| async { "x".repeat(64 * 1024 * 1024) })).route("/", get(|| async {}));
    let limits = Limits { connections: 1, write: Duration::from_millis(300), ..Limits::default() };
    let served = serve_here(big, limits).await;
    let mut hog = served.connect().await;
    write(&mut hog, "GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let mut next = served.connect().await;
    write(&mut next, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    let answer = read_to_close(&mut next, Duration::from_secs(10)).await.expect("its turn came");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(hog);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_the_cap_connections_wait_for_their_turn() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let served = serve_here(Router::new().route("/", get(|| async {})), limits).await;
    let first = served.connect().await;
    let mut second = served.connect().await;
    write(&mut second, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await;
    assert_eq!(read_to_close(&mut second, Duration::from_millis(200)).await, None);
    drop(first);
    assert!(read_to_close(&mut second, Duration::from_secs(5)).await.unwrap().starts_with("HTTP/1.1 200"));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_one_connection() {
    let world = World::new().await;
    let mut stream = world.served.connect().await;
    for _ in 0..3 {
        write(&mut stream, "GET /v1/leases HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let mut answer = String::new();
        while !answer.ends_with("{\"leases\":[]}\n") {
            let mut part = [0; 1024];
            let count = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut part)).await.unwrap().unwrap();
            assert!(count > 0, "{answer}");
            answer += std::str::from_utf8(&part[..count]).unwrap();
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_lets_what_is_being_answered_finish_within_its_limit() {
    let begun = Arc::new(AtomicUsize::new(0));
    let routes = |begun: &Arc<AtomicUsize>| {
        let (slow, never) = (begun.clone(), begun.clone());
        Router::new()
            .route(
                "/slow",
                get(async move || {
                    slow.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    "done"
                }),
            )
            .route(
                "/never",
                get(async move || {
                    never.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                }),
            )
    };
    let limits = Limits { finish: Duration::from_secs(1), ..Limits::default() };
    let served = serve_here(routes(&begun), limits).await;
    let mut idle = served.connect().await;
    let mut streams = Vec::new();
    for path in ["/slow", "/never"] {
        let mut stream = served.connect().await;
        write(&mut stream, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        streams.push(stream);
    }
    eventually("both are being answered", async || begun.load(Ordering::SeqCst) == 2).await;
    let stopped = Instant::now();
    served.stop.set();
    let answer = read_to_close(&mut streams[0], Duration::from_secs(5)).await.unwrap();
    assert!(answer.ends_with("done"), "{answer}");
    assert!(read_to_close(&mut idle, Duration::from_secs(5)).await.is_some(), "an idle connection is closed");
    served.done.await.unwrap().unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(3), "{:?}", stopped.elapsed());
    assert_eq!(read_to_close(&mut streams[1], Duration::from_secs(1)).await.as_deref(), Some(""));
    assert!(TcpStream::connect(served.address).await.is_err(), "nobody listens any more");
}

async fn broken() -> &'static str {
    panic!("with {SECRET} in its text")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_handler_is_a_problem_and_the_next_request_is_served() {
    let routes = Router::new().route("/bad", get(broken)).route("/good", get(|| async { "fine" }));
    let served = serve_here(routes, Limits::default()).await;
    crate::crypto::install();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let (status, code, detail) = problem(client.get(served.url("/bad")).send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (500, "internal"));
    assert!(!detail.contains(SECRET), "{detail}");
    assert_eq!(client.get(served.url("/good")).send().await.unwrap().status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_token_opens_the_lease_api() {
    let world = World::wished(Wish { token: Some("s3cret"), ..Wish::default() }).await;
    world.offer("dc", 5, 1);
    let lease = |token: &str| world.send(Method::POST, "/v1/leases").header("authorization", token.to_owned()).send();
    assert_eq!(lease("Bearer s3cret").await.unwrap().status(), 201);
    // With a token, names and origins say nothing.
    let elsewhere = world.send(Method::POST, "/v1/leases").header("host", "leases.example").header("origin", "null");
    assert_eq!(elsewhere.bearer_auth("s3cret").send().await.unwrap().status(), 201);
    for (method, path) in [
        (Method::POST, "/v1/leases"),
        (Method::GET, "/v1/leases"),
        (Method::GET, "/v1/leases/ls_1"),
        (Method::DELETE, "/v1/leases/ls_1"),
        (Method::POST, "/v1/leases/ls_1/renew"),
        (Method::POST, "/v1/leases/ls_1/report"),
        (Method::GET, "/v1/proxies"),
        (Method::GET, "/v1/explain"),
        (Method::GET, "/nothing"),
        (Method::PUT, "/v1/leases"),
    ] {
        for token in [None, Some("wrong")] {
            let mut request = world.send(method.clone(), path);
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            assert_eq!(problem(response).await.1, "unauthenticated", "{method} {path} {token:?}");
        }
    }
    assert_eq!(world.out().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_web_pages_and_foreign_names_are_refused() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    for (name, value) in [("origin", "http://localhost"), ("host", "rebound.example")] {
        let response = world.send(Method::POST, "/v1/leases").header(name, value).send().await.unwrap();
        let (status, code, detail) = problem(response).await;
        assert_eq!((status, code.as_str()), (403, "out_of_scope"), "{name}");
        assert!(detail.contains("token"), "{detail}");
    }
    assert_eq!(world.out().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_and_what_is_not_taken_are_problems() {
    let world = World::new().await;
    for path in ["/", "/v1", "/v2/leases", "/v1/leases/", "/v1/leases/ls_1/nothing", "/openapi.json"] {
        let (status, code, detail) = problem(world.get(path).await).await;
        assert_eq!((status, code.as_str()), (404, "no_such_route"), "{path}");
        assert!(detail.contains(path), "{detail}");
    }
    for (method, path, allowed) in [
        (Method::PUT, "/v1/leases", "GET,HEAD,POST"),
        (Method::POST, "/v1/leases/ls_1", "DELETE,GET,HEAD"),
        (Method::GET, "/v1/leases/ls_1/renew", "POST"),
        (Method::DELETE, "/v1/proxies", "GET,HEAD"),
    ] {
        let response = world.send(method.clone(), path).send().await.unwrap();
        let mut allow: Vec<_> = response.headers()["allow"].to_str().unwrap().split(',').map(str::to_owned).collect();
        allow.sort();
        assert_eq!(allow.join(","), allowed, "{method} {path}");
        assert_eq!(problem(response).await.1, "method_not_allowed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_headers_are_ignored_as_http_asks() {
    let world = World::new().await;
    world.offer("dc", 1, 1);
    let request = world.send(Method::POST, "/v1/leases").header("idempotency-key", "k").header("prefer", "wait=30");
    let response = request.json(&json!({})).send().await.unwrap();
    assert_eq!(response.status(), 201);
    assert!(!response.headers().contains_key("preference-applied"), "waiting was not promised");
}

// --- TLS -------------------------------------------------------------------------------------------------------------

/// Writes a new self-signed pair and returns what a client must trust.
fn certify(dir: &Path) -> rustls::RootCertStore {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    roots
}

async fn handshake(address: SocketAddr, roots: &rustls::RootCertStore) -> std::io::Result<String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots.clone()).with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_certificate_is_used_and_an_unusable_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
    assert!(Tls::load(&cert, &key).await.unwrap_err().to_string().contains("tls.crt"));
    let old = certify(dir.path());
    let tls = Tls::load(&cert, &key).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_stop, signal) = StopSignal::new();
    let limits = Limits { handshake: Duration::from_millis(300), ..Limits::default() };
    let routes = Router::new().route("/", get(|| async { "over TLS" }));
    tokio::spawn(serve(listener, routes, Some(tls.clone()), signal, limits));
    assert!(handshake(address, &old).await.unwrap().ends_with("over TLS"));

    assert!(!tls.reload().await.unwrap(), "nothing is new");
    let former = std::fs::read(&cert).unwrap();
    let new = certify(dir.path());
    let good = std::fs::read(&cert).unwrap();
    for (text, why) in
        [(&former[..], "cannot be used together"), (b"", "no usable certificate"), (b"junk", "no usable")]
    {
        std::fs::write(&cert, text).unwrap();
        let error = tls.reload().await.unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("tls.crt"), "{error}");
        assert!(handshake(address, &old).await.is_ok(), "the old one stays in use");
    }
    std::fs::write(&cert, good).unwrap();
    assert!(tls.reload().await.unwrap());
    assert!(handshake(address, &new).await.unwrap().ends_with("over TLS"));
    assert!(handshake(address, &old).await.is_err(), "the old one is out of use");

    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(read_to_close(&mut silent, Duration::from_secs(5)).await.is_some(), "a handshake has a limit");
}
