//! Our own probe target (`--echo-addr`): tells a caller the address that it comes from.
//!
//! Owns its connections only. Spoken to by probes, through the proxies. Anybody may connect, so it never keeps a
//! connection: one request each, within a limit, and a bounded number at once.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use axum::http::{Request, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;
use tracing::{debug, warn};

/// The header with the caller's address.
pub const EXIT_ADDRESS: &str = "x-egress-address";

/// A probe sends its head in one piece; who needs longer than this is no probe.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// For a whole connection, its one request and answer included.
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// Further callers wait in the listener's backlog.
const CONNECTIONS: usize = 1024;
/// For requests in flight when the shutdown comes.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Out of descriptors: accepting again at once would spin.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Serves until `shutdown` completes.
pub async fn serve(listener: TcpListener, shutdown: impl Future<Output = ()>) {
    serve_within(listener, shutdown, HEAD_WITHIN, CONNECTION_WITHIN).await;
}

async fn serve_within(listener: TcpListener, shutdown: impl Future<Output = ()>, head: Duration, whole: Duration) {
    let mut server = Builder::new(TokioExecutor::new()).http1_only();
    server.http1().keep_alive(false).timer(TokioTimer::new()).header_read_timeout(head).max_buf_size(16 * 1024);
    let app = Router::new().route("/echo", get(echo));
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let accept = async {
            let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
            (place, accept(&listener).await)
        };
        let (place, (stream, peer)) = tokio::select! {
            accepted = accept => accepted,
            () = &mut shutdown => break,
        };
        let caller = Caller(peer.ip().to_canonical());
        let service = TowerToHyperService::new(app.clone().map_request(move |mut request: Request<_>| {
            request.extensions_mut().insert(caller);
            request
        }));
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        // The task needs no owner: it ends by itself at its limit, and the graceful shutdown waits for it.
        tokio::spawn(async move {
            match timeout(whole, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!(%peer, %error, "echo connection ended early"),
                Err(_) => debug!(%peer, "echo connection cut at its limit"),
            }
            drop(place);
        });
    }
    drop(listener);
    if timeout(END_WITHIN, graceful.shutdown()).await.is_err() {
        debug!("echo connections are still open at the end; each ends at its own limit");
    }
}

/// The next connection; troubles of accepting are waited out.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn!(%error, "echo target cannot accept connections, trying again");
                sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Caller(IpAddr);

async fn echo(Extension(Caller(ip)): Extension<Caller>) -> impl IntoResponse {
    let headers = [(EXIT_ADDRESS, ip.to_string()), (header::CACHE_CONTROL.as_str(), "no-store".to_owned())];
    (StatusCode::NO_CONTENT, headers)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    struct Echo {
        addr: SocketAddr,
        stop: Option<oneshot::Sender<()>>,
        task: JoinHandle<()>,
    }

    async fn start(head: Duration, whole: Duration) -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(serve_within(listener, shutdown, head, whole));
        Echo { addr, stop: Some(stop), task }
    }

    /// What comes back until the server closes.
    async fn say(addr: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.expect("kept open");
        answer.to_lowercase()
    }

    #[tokio::test]
    async fn each_request_gets_its_answer_and_the_connection_ends() {
        let echo = start(HEAD_WITHIN, CONNECTION_WITHIN).await;
        let rows = [
            ("GET /echo HTTP/1.1\r\nHost: e\r\n\r\n", "http/1.1 204", Some("x-egress-address: 127.0.0.1\r\n")),
            ("HEAD /echo HTTP/1.1\r\nHost: e\r\n\r\n", "http/1.1 204", Some("x-egress-address: 127.0.0.1\r\n")),
            ("GET /echo?x=1 HTTP/1.1\r\nHost: e\r\n\r\n", "http/1.1 204", Some("cache-control: no-store")),
            ("GET / HTTP/1.1\r\nHost: e\r\n\r\n", "http/1.1 404", None),
            ("POST /echo HTTP/1.1\r\nHost: e\r\nContent-Length: 0\r\n\r\n", "http/1.1 405", None),
            ("nonsense\r\n\r\n", "http/1.1 400", None),
        ];
        for (request, status, header) in rows {
            let answer = say(echo.addr, request).await;
            assert!(answer.starts_with(status), "{request:?} was answered {answer:?}");
            assert!(header.is_none_or(|header| answer.contains(header)), "{request:?} was answered {answer:?}");
        }
        let both = "GET /echo HTTP/1.1\r\nHost: e\r\n\r\nGET /echo HTTP/1.1\r\nHost: e\r\n\r\n";
        assert_eq!(say(echo.addr, both).await.matches("http/1.1 204").count(), 1, "the connection was kept");
    }

    #[tokio::test]
    async fn who_sends_no_whole_request_is_cut_off() {
        let short = Duration::from_millis(200);
        for (head, whole) in [(short, Duration::from_mins(1)), (Duration::from_mins(1), short)] {
            let echo = start(head, whole).await;
            for beginning in ["", "GET /echo HTTP/1.1\r\nHost: e\r\n"] {
                let began = Instant::now();
                say(echo.addr, beginning).await;
                assert!(began.elapsed() < Duration::from_secs(5), "{beginning:?} held its connection");
            }
        }
    }

    #[tokio::test]
    async fn a_shutdown_frees_the_port_and_ends_in_time_with_a_caller_hanging() {
        let mut echo = start(HEAD_WITHIN, CONNECTION_WITHIN).await;
        let mut hanging = TcpStream::connect(echo.addr).await.unwrap();
        hanging.write_all(b"GET /ec").await.unwrap();
        say(echo.addr, "GET /echo HTTP/1.1\r\nHost: e\r\n\r\n").await;
        echo.stop.take().unwrap().send(()).unwrap();
        timeout(END_WITHIN * 4, echo.task).await.expect("did not end").unwrap();
        TcpListener::bind(echo.addr).await.expect("the port is still taken");
    }
}
