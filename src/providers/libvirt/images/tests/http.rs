//! The source against real sockets, with each behaviour of fault 28.

use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use egress_actors::domain::error::Class;
use egress_actors::domain::reason::Reason;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use url::Url;

use super::super::policy::Policy;
use super::super::scripted::ScriptedSource;
use super::super::source::{Body, Deadlines, PIECE, Resolve, Source};
use super::*;

/// What a server does with a connection behind the request.
#[derive(Clone)]
enum Act {
    Send(Vec<u8>),
    /// Keeps the connection and says nothing more.
    Silent,
    Reset,
}

/// Answers every connection in the same way; ends with the test's runtime. Says what it was asked.
async fn serve(acts: Vec<Act>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, acts.clone(), log.clone()));
        }
    });
    (address, asked)
}

async fn answer(mut stream: TcpStream, acts: Vec<Act>, log: Arc<Mutex<Vec<String>>>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            return;
        }
        request.push(byte[0]);
    }
    log.lock().unwrap().push(String::from_utf8(request).unwrap());
    for act in acts {
        match act {
            Act::Send(bytes) => _ = stream.write_all(&bytes).await,
            Act::Silent => std::future::pending().await,
            Act::Reset => {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                return;
            }
        }
    }
}

fn head(status: &str, headers: &str) -> Act {
    Act::Send(format!("HTTP/1.1 {status}\r\n{headers}\r\n").into_bytes())
}

/// Every name is this address.
struct Fixed(Vec<IpAddr>, AtomicU32);

#[async_trait]
impl Resolve for Fixed {
    async fn look_up(&self, _: &str, _: Duration) -> Result<Vec<IpAddr>, String> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Ok(self.0.clone())
    }
}

fn resolver(address: &str) -> Arc<Fixed> {
    Arc::new(Fixed(vec![address.parse().unwrap()], AtomicU32::new(0)))
}

fn limits() -> Deadlines {
    Deadlines { idle: Duration::from_millis(400), until: Instant::now() + Duration::from_secs(20) }
}

/// The whole of it.
async fn read(url: &str, policy: &Policy) -> Result<Vec<u8>, OpError> {
    let source = Source::new(resolver("127.0.0.1"), &[]);
    let mut stream = source.open(&url.parse().unwrap(), policy, false, limits()).await?;
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await? {
        assert!(piece.len() <= PIECE);
        all.extend(piece);
    }
    Ok(all)
}

#[tokio::test]
async fn each_bad_answer_has_its_class_and_reason() {
    let check = async |acts: Vec<Act>, class: Class, reason: Reason, words: &str| {
        let (address, _) = serve(acts).await;
        let error = read(&format!("http://{address}/x?token=secret"), &Policy::Configured).await.unwrap_err();
        assert_eq!((error.class, error.reason), (class, reason), "{error}");
        assert!(error.detail.contains(words), "{error} has no `{words}`");
        assert!(!error.detail.contains("secret"), "{error}");
    };
    let (t, p) = (Class::Transient, Class::Permanent);
    let gone = Reason::ImageNotFound;
    let page = "Content-Type: text/html; charset=utf-8\r\nContent-Length: 6\r\n";
    check(vec![head("404 Not Found", "Content-Length: 0\r\n")], p, gone, "404").await;
    check(vec![head("410 Gone", "Content-Length: 0\r\n")], p, gone, "410").await;
    check(vec![head("403 Forbidden", "Content-Length: 0\r\n")], p, gone, "403").await;
    check(vec![head("204 No Content", "")], p, gone, "204").await;
    check(vec![head("200 OK", page), Act::Send(b"<html>".to_vec())], p, gone, "web page").await;
    check(vec![head("200 OK", "Content-Length: 0\r\n")], p, gone, "empty").await;
    let chunked = vec![head("200 OK", "Transfer-Encoding: chunked\r\n"), Act::Send(b"1\r\nx\r\n0\r\n\r\n".to_vec())];
    check(chunked, p, gone, "Content-Length").await;
    check(vec![head("200 OK", "Content-Length: 5\r\nContent-Encoding: gzip\r\n")], p, gone, "encoding").await;
    check(vec![head("302 Found", "Content-Length: 0\r\n")], p, gone, "without saying where").await;
    check(vec![head("302 Found", "Location: /x\r\nContent-Length: 0\r\n")], p, gone, "more than 5").await;
    for status in ["500 Oops", "503 Busy", "429 Slow Down"] {
        check(vec![head(status, "Content-Length: 0\r\n")], t, Reason::Unreachable, &status[..3]).await;
    }
    check(vec![Act::Reset], t, Reason::Unreachable, "no image from").await;
    check(vec![Act::Silent], t, Reason::Timeout, "sent nothing").await;
    let half = || vec![head("200 OK", "Content-Length: 100000\r\n"), Act::Send(vec![0; 70_000])];
    check(half(), t, Reason::Unreachable, "before its 100000 bytes").await;
    check([half(), vec![Act::Reset]].concat(), t, Reason::Unreachable, "no image from").await;
    check([half(), vec![Act::Silent]].concat(), t, Reason::Timeout, "sent nothing").await;
}

#[tokio::test]
async fn nobody_listening_is_transient() {
    let address = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = read(&format!("http://{address}/x"), &Policy::Configured).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::Unreachable), "{error}");
}

#[tokio::test]
async fn a_good_answer_comes_whole_over_one_look_up_and_the_addresses_that_it_gave() {
    let body: Vec<u8> = (0..700_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (address, asked) = serve(vec![head("200 OK", "Content-Length: 700000\r\n"), Act::Send(body.clone())]).await;
    let names = resolver("127.0.0.1");
    let source = Source::new(names.clone(), &[]);
    let url: Url = format!("http://images.test:{}/x", address.port()).parse().unwrap();
    let mut stream = source.open(&url, &Policy::Configured, false, limits()).await.unwrap();
    assert_eq!((stream.size(), &stream.head()[..1000]), (700_000, &body[..1000]));
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        all.extend(piece);
    }
    assert_eq!(all, body);
    assert_eq!(names.1.load(Ordering::SeqCst), 1);
    let asked = asked.lock().unwrap().join("").to_ascii_lowercase();
    assert!(asked.contains("accept-encoding: identity") && asked.contains("host: images.test"), "{asked}");
}

#[tokio::test]
async fn a_redirect_may_lead_to_its_own_host_and_not_into_the_network() {
    let (inside, asked) = serve(vec![head("200 OK", "Content-Length: 1\r\n"), Act::Send(vec![1])]).await;
    let (outside, _) =
        serve(vec![head("302 Found", &format!("Location: http://{inside}/\r\nContent-Length: 0\r\n"))]).await;
    let url = format!("http://{outside}/x");
    let refused = async |policy: Policy| {
        let error = read(&url, &policy).await.unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Permanent, Reason::Forbidden), "{error}");
    };
    let prefix = |address: SocketAddr| Url::parse(&format!("http://{address}/")).unwrap();
    refused(Policy::Configured).await;
    refused(Policy::Placement(vec![prefix(outside)])).await;
    refused(Policy::Placement(vec![prefix(inside)])).await;
    assert!(asked.lock().unwrap().is_empty());
    // Both literally allowed: it may.
    assert_eq!(read(&url, &Policy::Placement(vec![prefix(outside), prefix(inside)])).await, Ok(vec![1]));
}

#[tokio::test]
async fn a_name_under_a_prefix_that_is_a_private_address_is_refused_before_a_connection() {
    let (address, asked) = serve(vec![head("200 OK", "Content-Length: 1\r\n"), Act::Send(vec![1])]).await;
    let url = format!("http://images.test:{}/", address.port());
    let error = read(&url, &Policy::Placement(vec![url.parse().unwrap()])).await.unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::Forbidden));
    assert!(error.detail.contains("127.0.0.1"), "{error}");
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_whole_way_works_over_real_sockets() {
    let disk = ScriptedSource::disk(600_000).content();
    let (address, _) = serve(vec![head("200 OK", "Content-Length: 600000\r\n"), Act::Send(disk.clone())]).await;
    let images = super::super::Images::new(Source::new(resolver("127.0.0.1"), &[]), flights());
    let store = super::super::scripted::ScriptedStore::new();
    let mut want = wanted(Some(digest(&disk)));
    want.url = format!("http://{address}/disk").parse().unwrap();
    let base = images.base(site("hv1"), store.clone(), want, LIMITS, Duration::from_secs(30)).await.unwrap();
    assert_eq!((base.name.as_str(), store.whole(NAME)), (NAME, Some(disk)));
}
