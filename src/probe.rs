//! Looks through a proxy at a target: the real path of a crawler, tried to its end.
//!
//! Owns the TLS trust and a clone of the resolver. Spoken to by the probe pool, through the port `Prober`. Each probe is
//! a connection of its own: dial, CONNECT (also for `http` targets), TLS where the target is `https`, one GET, the
//! status. It knows no HTTP client, so the environment's proxies cannot come between (fault 131), and it reads heads
//! only, so a peer that keeps its connection open does not keep us (fault 130).
//!
//! ```text
//! Resolve -> Dial -> ProxyTls? -> Connect  | the proxy's fault, unless its answer tells of the target
//!                                -> TargetTls? -> Answer  | the target's fault, unless an interceptor shows
//! ```
//!
//! Never falls back to another way, never follows a redirect, never keeps a connection, never quotes a credential.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use egress_actors::domain::desired::Scheme;
use egress_actors::domain::health::{Probe, ProbeFault, ProbeOutcome};
use egress_actors::ports::Prober;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::dns::Dns;
use crate::echo::EXIT_ADDRESS;

mod ahead;
mod dial;
mod head;
mod request;
mod trust;
mod verdict;

use ahead::Ahead;
use head::Head;
pub use trust::BadRoot;
use verdict::{Phase, Verdict};

/// The port `Prober` on real sockets. Clones share their TLS sessions.
#[derive(Clone)]
pub struct TunnelProber {
    dns: Dns,
    tls: TlsConnector,
}

impl std::fmt::Debug for TunnelProber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TunnelProber").field("dns", &self.dns).finish_non_exhaustive()
    }
}

impl TunnelProber {
    /// Trusts the system's roots (the built-in ones where the system has none) and `extra_roots`. Reads files: call it
    /// while starting.
    pub fn new(dns: Dns, extra_roots: &[CertificateDer<'static>]) -> Result<Self, BadRoot> {
        Ok(Self { dns, tls: TlsConnector::from(trust::client_config(extra_roots)?) })
    }

    async fn run(&self, probe: &Probe, route: Route) -> ProbeOutcome {
        let began = Instant::now();
        let verdict = Verdict { probe, route };
        let mut phase = Phase::Resolve;
        let look = Look { prober: self, probe, verdict, phase: &mut phase };
        let looked = match tokio::time::timeout(probe.timeout, look.run()).await {
            Ok(looked) => looked,
            Err(_) => Err(verdict.overdue(phase)),
        };
        let (exit_ip, fault) = match looked {
            Ok(exit_ip) => (exit_ip, None),
            Err(fault) => (None, Some(fault)),
        };
        ProbeOutcome { latency: began.elapsed(), exit_ip, fault }
    }
}

#[async_trait]
impl Prober for TunnelProber {
    async fn probe(&self, probe: &Probe) -> ProbeOutcome {
        self.run(probe, Route::Tunnel).await
    }

    async fn direct(&self, probe: &Probe) -> ProbeOutcome {
        self.run(probe, Route::Direct).await
    }
}

/// Which way a look takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Tunnel,
    Direct,
}

/// What the target tells of the caller's address, if it does.
type ExitIp = Option<Arc<str>>;

/// One look, under the deadline of its caller.
struct Look<'a> {
    prober: &'a TunnelProber,
    probe: &'a Probe,
    verdict: Verdict<'a>,
    /// Where the look is, for the verdict when the deadline cuts it.
    phase: &'a mut Phase,
}

impl Look<'_> {
    async fn run(mut self) -> Result<ExitIp, ProbeFault> {
        let Some((host, port)) = request::authority(&self.probe.target) else {
            return Err(verdict::no_target());
        };
        if self.verdict.route == Route::Direct {
            let stream = self.dial(host.trim_matches(['[', ']']), port).await?;
            return self.ask(stream, Vec::with_capacity(head::FIRST_READ)).await;
        }
        let endpoint = &self.probe.endpoint;
        let stream = self.dial(&endpoint.host, endpoint.port).await?;
        match endpoint.scheme {
            Scheme::Http => self.tunnel(stream, host, port).await,
            // Boxed: the states of TLS in TLS would make each plain probe carry their size.
            Scheme::Https => Box::pin(self.tunnel_in_tls(stream, host, port)).await,
        }
    }

    async fn dial(&mut self, host: &str, port: u16) -> Result<TcpStream, ProbeFault> {
        let (literal, found);
        let addresses: &[IpAddr] = if let Ok(ip) = host.parse() {
            literal = [ip];
            &literal
        } else {
            *self.phase = Phase::Resolve;
            let looked_up = self.prober.dns.look_up(host, self.probe.timeout).await;
            found = looked_up.map_err(|error| self.verdict.not_resolved(&error))?;
            &found
        };
        *self.phase = Phase::Dial;
        dial::dial(addresses, port).await.map_err(|error| self.verdict.not_dialled(&error))
    }

    async fn tunnel_in_tls(self, stream: TcpStream, host: &str, port: u16) -> Result<ExitIp, ProbeFault> {
        *self.phase = Phase::ProxyTls;
        let name = trust::server_name(&self.probe.endpoint.host);
        let name = name.ok_or_else(|| self.verdict.no_server_name(Phase::ProxyTls))?;
        let stream = self.prober.tls.connect(name, stream).await;
        let stream = stream.map_err(|error| self.verdict.lost(Phase::ProxyTls, &error))?;
        self.tunnel(stream, host, port).await
    }

    /// CONNECT, then the target.
    async fn tunnel<S>(self, mut stream: S, host: &str, port: u16) -> Result<ExitIp, ProbeFault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        *self.phase = Phase::Connect;
        let request = request::connect(host, port, self.probe.credentials.as_ref());
        let mut buffer = Vec::with_capacity(head::FIRST_READ);
        let head = exchange(&mut stream, request.as_bytes(), &mut buffer).await;
        let head = head.map_err(|error| self.verdict.no_head(Phase::Connect, &error))?;
        if !(200..300).contains(&head.status) {
            return Err(self.verdict.refused(head, &buffer));
        }
        // What came behind the head is the tunnel's already. An answer to CONNECT has no body, whatever it says.
        buffer.drain(..head.length);
        self.ask(stream, buffer).await
    }

    /// The request and its answer, over an open way to the target of which `ahead` was read already.
    async fn ask<S>(mut self, mut stream: S, mut ahead: Vec<u8>) -> Result<ExitIp, ProbeFault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        if self.probe.target.scheme() == "https" {
            *self.phase = Phase::TargetTls;
            let name = self.probe.target.host_str().and_then(trust::server_name);
            let name = name.ok_or_else(|| self.verdict.no_server_name(Phase::TargetTls))?;
            let stream = self.prober.tls.connect(name, Ahead::new(ahead, stream)).await;
            let mut stream = stream.map_err(|error| self.verdict.lost(Phase::TargetTls, &error))?;
            return self.answer(&mut stream, &mut Vec::with_capacity(head::FIRST_READ)).await;
        }
        self.answer(&mut stream, &mut ahead).await
    }

    async fn answer<S>(&mut self, stream: &mut S, buffer: &mut Vec<u8>) -> Result<ExitIp, ProbeFault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        *self.phase = Phase::Answer;
        let head = exchange(stream, request::get(&self.probe.target).as_bytes(), buffer).await;
        let head = head.map_err(|error| self.verdict.no_head(Phase::Answer, &error))?;
        if !self.probe.expect_status.contains(&head.status) {
            return Err(self.verdict.unexpected(head, buffer));
        }
        Ok(exit_ip(head, buffer))
    }
}

/// Sends a request and reads the head of its answer.
async fn exchange<S>(stream: &mut S, request: &[u8], buffer: &mut Vec<u8>) -> Result<Head, head::HeadError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let sent = async {
        stream.write_all(request).await?;
        stream.flush().await
    };
    match sent.await {
        Ok(()) => {}
        // A peer may have said why before it closed: its answer is still to be read.
        Err(error) if head::is_closed(&error) => {}
        Err(error) => return Err(head::HeadError::Io(error)),
    }
    head::read(stream, buffer).await
}

/// The caller's address as the target tells it; anything that is no address is not taken over.
fn exit_ip(head: Head, buffer: &[u8]) -> ExitIp {
    let told = std::str::from_utf8(head.field(buffer, EXIT_ADDRESS)?).ok()?;
    let ip: IpAddr = told.trim().parse().ok()?;
    Some(ip.to_string().into())
}
