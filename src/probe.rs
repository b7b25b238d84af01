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
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use egress_actors::domain::desired::Scheme;
use egress_actors::domain::health::{Probe, ProbeFault, ProbeOutcome};
use egress_actors::domain::instance::Credentials;
use egress_actors::ports::Prober;
use rustls::pki_types::{CertificateDer, ServerName};
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use crate::dns::Dns;
use crate::echo::EXIT_ADDRESS;

mod ahead;
mod dial;
mod head;
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
        let Some((host, port)) = authority(&self.probe.target) else {
            return Err(self.verdict.no_target());
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
        let name = server_name(&self.probe.endpoint.host);
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
        let request = connect_request(host, port, self.probe.credentials.as_ref());
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
            let name = self.probe.target.host_str().and_then(server_name);
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
        let head = exchange(stream, get_request(&self.probe.target).as_bytes(), buffer).await;
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

/// Host (an IPv6 address in brackets) and port of a target.
fn authority(target: &Url) -> Option<(&str, u16)> {
    Some((target.host_str()?, target.port_or_known_default()?))
}

/// The name that a certificate must be for. IPv6 addresses may be in brackets.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let host = host.trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(ip) => Some(ServerName::IpAddress(ip.into())),
        // A name may be written with the dot of the root; certificates never have it.
        Err(_) => ServerName::try_from(host.strip_suffix('.').unwrap_or(host).to_owned()).ok(),
    }
}

fn connect_request(host: &str, port: u16, credentials: Option<&Credentials>) -> String {
    use std::fmt::Write;
    let mut request = String::with_capacity(256);
    let _ = write!(request, "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: egress-probe\r\n");
    if let Some(credentials) = credentials {
        request.push_str("Proxy-Authorization: Basic ");
        request.push_str(&basic(credentials));
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    request
}

/// The token of `Basic` (RFC 7617).
fn basic(credentials: &Credentials) -> String {
    STANDARD.encode(format!("{}:{}", credentials.username, credentials.password.expose_secret()))
}

fn get_request(target: &Url) -> String {
    let mut request = String::with_capacity(256);
    request.push_str("GET ");
    request.push_str(target.path());
    if let Some(query) = target.query() {
        request.push('?');
        request.push_str(query);
    }
    request.push_str(" HTTP/1.1\r\nHost: ");
    match target.host() {
        Some(Host::Domain(name)) => request.push_str(name),
        Some(Host::Ipv4(ip)) => request.push_str(&ip.to_string()),
        Some(Host::Ipv6(ip)) => request.push_str(&format!("[{ip}]")),
        None => {}
    }
    if let Some(port) = target.port() {
        request.push_str(&format!(":{port}"));
    }
    request.push_str("\r\nUser-Agent: egress-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n");
    request
}

/// The caller's address as the target tells it; anything that is no address is not taken over.
fn exit_ip(head: Head, buffer: &[u8]) -> ExitIp {
    let told = std::str::from_utf8(head.field(buffer, EXIT_ADDRESS)?).ok()?;
    let ip: IpAddr = told.trim().parse().ok()?;
    Some(ip.to_string().into())
}
