//! One listener and its connections: how many, how long each may dawdle, TLS, and an end that lets requests finish.
//!
//! Used by both servers. It knows nothing of routes. Every connection is a task of this future's own, so that dropping
//! it ends all of them; a stop first lets what is being answered finish.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use egress_actors::kit::task::StopSignal;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::Layer;
use tower_http::catch_panic::CatchPanicLayer;

use super::error::{Problem, panicked};
use super::tls::Tls;

/// Headers of one request, and what is read ahead of its body: enough for a query of a thousand names.
const BUFFER: usize = 64 * 1024;

/// After a failed `accept` (no descriptors left): others end meanwhile.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How patient a server is.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; more wait in the listener's queue.
    pub connections: usize,
    /// For the headers of a request, from the end of the one before: also how long an idle connection is kept.
    pub headers: Duration,
    pub handshake: Duration,
    /// For the body of a request and its answer's first byte.
    pub request: Duration,
    /// For a client to take some more of an answer.
    pub write: Duration,
    /// For what is being answered when the server shall end.
    pub finish: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            headers: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            request: Duration::from_secs(15),
            write: Duration::from_secs(15),
            finish: Duration::from_secs(10),
        }
    }
}

/// A listener, or why there is none.
pub async fn bind(flag: &str, address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("{flag}: cannot listen on {address}: {error}; free the port or choose another"))
}

/// Serves until `stop`. An error is for the supervisor: today there is none that a new start would repair.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<Arc<Tls>>,
    stop: StopSignal,
    limits: Limits,
) -> Result<(), String> {
    let router = router
        .layer(middleware::from_fn(move |request: Request, next: Next| answered_within(limits.request, request, next)))
        .layer(CatchPanicLayer::custom(panicked));
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let place = tokio::select! {
            () = stop.wait() => break,
            place = places.clone().acquire_owned() => place.map_err(|_| "the semaphore was closed")?,
        };
        let (stream, peer) = tokio::select! {
            () = stop.wait() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            },
        };
        while connections.try_join_next().is_some() {}
        let (router, tls, stop) = (router.clone(), tls.clone(), stop.clone());
        connections.spawn(async move {
            let _place = place;
            connection(stream, peer, router, tls, stop, limits).await;
        });
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.finish, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests were cut off at the end");
    }
    Ok(())
}

async fn answered_within(limit: Duration, request: Request, next: Next) -> Response {
    timeout(limit, next.run(request)).await.unwrap_or_else(|_| Problem::request_timeout(limit).into_response())
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    tls: Option<Arc<Tls>>,
    stop: StopSignal,
    limits: Limits,
) {
    // Answers are small: waiting to fill a segment only delays them. A socket that cannot do it still works.
    let _works_without = stream.set_nodelay(true);
    let stream = Prompt::new(stream, limits.write);
    match tls {
        None => http(stream, peer, router, stop, limits).await,
        Some(tls) => match timeout(limits.handshake, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => http(stream, peer, router, stop, limits).await,
            Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake took too long"),
        },
    }
}

async fn http<S>(stream: S, peer: SocketAddr, router: Router, stop: StopSignal, limits: Limits)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = Extension(ConnectInfo(peer)).layer(router);
    // HTTP/1 only: guessing the version would wait for the first bytes without a limit.
    let mut server = auto::Builder::new(TokioExecutor::new()).http1_only();
    server.http1().timer(TokioTimer::new()).header_read_timeout(limits.headers).max_buf_size(BUFFER);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.wait() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended early");
    }
}

/// A stream whose writes fail when the other side takes nothing for a while (it would hold its place for ever), and whose
/// end is seen as soon as the kernel knows of it.
struct Prompt {
    stream: TcpStream,
    limit: Duration,
    /// Set while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Prompt {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        Self { stream, limit, waiting: None }
    }

    fn within<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let done = write(Pin::new(&mut self.stream), cx);
        if done.is_ready() {
            self.waiting = None;
            return done;
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + limit)));
        match waiting.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Prompt {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() && has_hung_up(&self.stream) {
            return Poll::Ready(Ok(()));
        }
        read
    }
}

/// Asks the kernel and not the runtime, which hears of it only when it has time: a busy one answered clients that had gone
/// before it read their requests, and they held their leases to the end.
fn has_hung_up(stream: &TcpStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    let looked = recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(looked, Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET))
}

impl AsyncWrite for Prompt {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.within(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.within(cx, |stream, cx| stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.within(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.within(cx, AsyncWrite::poll_shutdown)
    }
}
