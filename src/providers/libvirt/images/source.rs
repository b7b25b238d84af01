//! One URL as a stream of pieces with a known length.
//!
//! Owns the TLS trust and the way to names. Spoken to by the fetch. Uses no proxy of the environment, verifies TLS, and
//! follows redirects by hand: each hop is checked against the policy, its host looked up once, and the connection pinned
//! to the addresses that passed, so that a name that changes its mind leads nowhere (S6).
//!
//! | the source | is |
//! |---|---|
//! | 404, 410, other 4xx, an HTML page, no `Content-Length`, an empty body | permanent `ImageNotFound` |
//! | 408, 425, 429, 5xx, refused, reset, TLS, a name without an answer, a body that is too short | transient `Unreachable` |
//! | silent for the idle deadline, slower than the total one | transient `Timeout` |
//! | a URL, redirect or address that the policy refuses | permanent `Forbidden` |
//!
//! Without a `Content-Length` an image is refused, not spooled: libvirt wants the length before the first byte, and the
//! pod has no disk for images.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use reqwest::{Client, Response, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};
use url::{Host, Url};

use super::format::HEAD;
use super::marker::origin;
use super::policy::{Policy, not_public};
use crate::causes::told;

/// Longest piece of a stream, in bytes: what libvirt sends as one packet.
pub const PIECE: usize = 256 * 1024;
/// As browsers and curl do it, but fewer: mirrors redirect once or twice.
const REDIRECTS: usize = 5;
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
const LOOK_UP_WITHIN: Duration = Duration::from_secs(10);
const USER_AGENT: &str = concat!("egress-proxies-operator/", env!("CARGO_PKG_VERSION"));

/// Names to addresses. `Err` is a sentence for people; it is transient.
#[async_trait]
pub trait Resolve: Send + Sync {
    async fn look_up(&self, host: &str, limit: Duration) -> Result<Vec<IpAddr>, String>;
}

/// Deadlines of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Longest silence: for the answer's head, and between bytes.
    pub idle: Duration,
    /// The end of everything.
    pub until: Instant,
}

impl Deadlines {
    fn next(&self) -> Instant {
        self.until.min(Instant::now() + self.idle)
    }
}

/// Where a fetch gets its bytes from: [`Source`], or a scripted one in tests.
#[async_trait]
pub trait Open: Send + Sync {
    /// As [`Source::open`].
    async fn open(
        &self,
        url: &Url,
        policy: &Policy,
        verified: bool,
        limits: Deadlines,
    ) -> Result<Box<dyn Body>, OpError>;
}

/// The bytes of one image.
#[async_trait]
pub trait Body: Send {
    /// Bytes of the whole.
    fn size(&self) -> u64;
    /// The first bytes, before any piece was taken: [`HEAD`] of them or the whole, and perhaps more.
    fn head(&self) -> &[u8];
    /// The next bytes, at most [`PIECE`]; `None` behind the last. Only the last piece is shorter.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, OpError>;
}

#[async_trait]
impl Open for Source {
    async fn open(
        &self,
        url: &Url,
        policy: &Policy,
        verified: bool,
        limits: Deadlines,
    ) -> Result<Box<dyn Body>, OpError> {
        Ok(Box::new(Self::open(self, url, policy, verified, limits).await?))
    }
}

/// Where images come from; clones share it.
#[derive(Clone)]
pub struct Source {
    resolver: Arc<dyn Resolve>,
    tls: Arc<ClientConfig>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
}

impl Source {
    /// Trusts the system's roots (the built-in ones where the system has none) and `extra_roots`; one that is no
    /// certificate is left out with a warning. Reads files: call it while starting.
    pub fn new(resolver: Arc<dyn Resolve>, extra_roots: &[CertificateDer<'static>]) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        for root in extra_roots {
            if let Err(error) = roots.add(root.clone()) {
                warn!(%error, "an extra root certificate for image sources cannot be used");
            }
        }
        let mut tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has the suites of the default versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { resolver, tls: Arc::new(tls) }
    }

    /// Asks, follows, and reads the head. `verified`: a digest is known, so that a redirect away from TLS does no harm.
    pub async fn open(&self, url: &Url, policy: &Policy, verified: bool, limits: Deadlines) -> Result<Stream, OpError> {
        let mut reach = policy.first(url)?;
        let mut hop = url.clone();
        for _ in 0..=REDIRECTS {
            let client = self.client(&hop, reach, limits).await?;
            let asked = client.get(hop.clone()).header(ACCEPT_ENCODING, "identity").send();
            let response = match timeout_at(limits.next(), asked).await {
                Err(_) => return Err(silent(&hop, limits)),
                Ok(Err(error)) => return Err(broken(&hop, error)),
                Ok(Ok(response)) => response,
            };
            // What a proxy or a patched resolver could do between the check and the connection.
            if let Some(peer) = response.remote_addr().filter(|peer| !reach.allows(peer.ip())) {
                return Err(not_public(&hop, peer.ip()));
            }
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return Stream::open(hop, response, limits).await;
            }
            let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).and_then(|to| hop.join(to).ok());
            let Some(to) = to else {
                return Err(not_there(&hop, &format!("answers {} without saying where to", status.as_u16())));
            };
            reach = policy.redirect(url, &hop, &to, verified)?;
            debug!(from = origin(&hop), to = origin(&to), "the source of an image redirects");
            hop = to;
        }
        Err(not_there(url, &format!("redirects more than {REDIRECTS} times")))
    }

    /// A client that reaches the addresses of this hop's host that passed, and nothing else.
    async fn client(&self, hop: &Url, reach: super::policy::Reach, limits: Deadlines) -> Result<Client, OpError> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .http1_only()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_WITHIN.min(limits.idle))
            .pool_max_idle_per_host(0)
            .tls_backend_preconfigured((*self.tls).clone());
        match hop.host() {
            Some(Host::Ipv4(ip)) if !reach.allows(ip.into()) => return Err(not_public(hop, ip.into())),
            Some(Host::Ipv6(ip)) if !reach.allows(ip.into()) => return Err(not_public(hop, ip.into())),
            Some(Host::Ipv4(_) | Host::Ipv6(_)) | None => {}
            Some(Host::Domain(name)) => {
                let limit = LOOK_UP_WITHIN.min(limits.idle);
                let looked = timeout_at(limits.next(), self.resolver.look_up(name, limit)).await;
                let found = looked.map_err(|_| silent(hop, limits))?.map_err(|why| unreachable(hop, &why))?;
                let (good, bad): (Vec<IpAddr>, Vec<IpAddr>) = found.iter().partition(|ip| reach.allows(**ip));
                if good.is_empty() {
                    return Err(match bad.first() {
                        Some(ip) => not_public(hop, *ip),
                        None => unreachable(hop, "its name has no address"),
                    });
                }
                let pinned: Vec<SocketAddr> = good.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
                builder = builder.resolve_to_addrs(name, &pinned);
            }
        }
        builder
            .build()
            .map_err(|error| OpError::transient(Reason::Internal, format!("no HTTP client: {}", told(&error))))
    }
}

/// The body of an answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    from: Url,
    response: Response,
    limits: Deadlines,
    size: u64,
    received: u64,
    /// The next piece, as far as it is there. Never larger than one: pieces wait in queues, with all the room that they have.
    held: Vec<u8>,
    /// Received behind it.
    behind: Bytes,
}

impl Stream {
    async fn open(from: Url, response: Response, limits: Deadlines) -> Result<Self, OpError> {
        let status = response.status();
        match status.as_u16() {
            200 => {}
            code @ (408 | 425 | 429 | 500..) => return Err(unreachable(&from, &format!("it answers {code}"))),
            code => return Err(not_there(&from, &format!("answers {code}"))),
        }
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = header(CONTENT_TYPE).to_ascii_lowercase();
        if kind.starts_with("text/html") || kind.starts_with("application/xhtml") {
            return Err(not_there(&from, "gives a web page, not an image"));
        }
        if !matches!(header(CONTENT_ENCODING), "" | "identity") {
            return Err(not_there(&from, "gives the image in a content encoding, though asked for none"));
        }
        let size = match header(CONTENT_LENGTH).parse::<u64>() {
            Ok(0) => return Err(not_there(&from, "gives an empty file")),
            Ok(size) => size,
            Err(_) => return Err(not_there(&from, "does not say how long the image is (no Content-Length)")),
        };
        let held = Vec::with_capacity(PIECE);
        let mut stream = Self { from, response, limits, size, received: 0, held, behind: Bytes::new() };
        while stream.held.len() < HEAD && stream.goes_on() {
            stream.more().await?;
        }
        Ok(stream)
    }

    /// There is more than what is held.
    fn goes_on(&self) -> bool {
        self.received < self.size || !self.behind.is_empty()
    }

    /// Holds more, at most a piece.
    async fn more(&mut self) -> Result<(), OpError> {
        if self.behind.is_empty() {
            self.receive().await?;
        }
        let room = PIECE.saturating_sub(self.held.len()).min(self.behind.len());
        self.held.extend_from_slice(&self.behind.split_to(room));
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), OpError> {
        match timeout_at(self.limits.next(), self.response.chunk()).await {
            Err(_) => Err(silent(&self.from, self.limits)),
            Ok(Err(error)) => {
                // Without the place where it ended: the words are to be the same each time.
                let how = format!("it ended before its {} bytes: {}", self.size, told(&error.without_url()));
                Err(unreachable(&self.from, &how))
            }
            Ok(Ok(None)) => Err(unreachable(&self.from, &format!("it ended before its {} bytes", self.size))),
            Ok(Ok(Some(chunk))) => {
                self.received += chunk.len() as u64;
                self.behind = chunk;
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Body for Stream {
    fn size(&self) -> u64 {
        self.size
    }

    fn head(&self) -> &[u8] {
        &self.held
    }

    async fn next(&mut self) -> Result<Option<Vec<u8>>, OpError> {
        while self.held.len() < PIECE && self.goes_on() {
            self.more().await?;
        }
        if self.held.is_empty() {
            return Ok(None);
        }
        let next = if self.goes_on() { Vec::with_capacity(PIECE) } else { Vec::new() };
        Ok(Some(std::mem::replace(&mut self.held, next)))
    }
}

fn not_there(url: &Url, what: &str) -> OpError {
    OpError::permanent(Reason::ImageNotFound, format!("{} {what}", origin(url)))
}

fn unreachable(url: &Url, why: &str) -> OpError {
    OpError::transient(Reason::Unreachable, format!("no image from {}: {why}", origin(url)))
}

fn broken(url: &Url, error: reqwest::Error) -> OpError {
    let timed_out = error.is_timeout();
    let why = told(&error.without_url());
    if timed_out {
        OpError::transient(Reason::Timeout, format!("no connection with {}: {why}", origin(url)))
    } else {
        unreachable(url, &why)
    }
}

fn silent(url: &Url, limits: Deadlines) -> OpError {
    let how = if Instant::now() >= limits.until {
        "the image takes longer than the entry allows".to_owned()
    } else {
        format!("it sent nothing for {:?}", limits.idle)
    };
    OpError::transient(Reason::Timeout, format!("no image from {}: {how}", origin(url)))
}
