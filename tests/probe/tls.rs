//! TLS on either leg: with the target inside the tunnel, with an https proxy, and both.

use std::sync::Arc;

use egress_actors::domain::health::Blame::{Proxy as OfProxy, Target};
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Prober;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::peer::Act::{Hear, Hold, Say, Tls};
use super::peer::{Peer, open, say};
use super::squid::{allow, squid};
use super::*;

const HTTP: &str = "http://target.invalid/";

/// A private authority.
struct Authority {
    root: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Self { root, issuer: Issuer::new(params, key) }
    }

    /// The side of a server with a certificate for this name or address.
    fn server(&self, name: &str) -> TlsAcceptor {
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    fn trusting(&self) -> TunnelProber {
        TunnelProber::new(Dns::system(), std::slice::from_ref(&self.root)).unwrap()
    }
}

fn ok() -> super::peer::Act {
    say("HTTP/1.1 204 OK\r\nX-Egress-Address: 192.0.2.9\r\n\r\n")
}

#[tokio::test]
async fn a_tls_target_through_squid_is_verified() {
    let authority = Authority::new();
    let right = Peer::start(vec![Tls(authority.server("localhost")), Hear, ok()]).await;
    let wrong = Peer::start(vec![Tls(authority.server("other.example")), Hear, ok()]).await;
    let Some(squid) = squid(&allow(&[right.port, wrong.port])) else { return };
    let url = |port| format!("https://localhost:{port}/");
    let trusting = authority.trusting();

    for look in 1..=3 {
        // The later ones resume a session.
        let outcome = trusting.probe(&probe(squid.port, &url(right.port))).await;
        assert_well(&format!("look {look}"), &outcome, Some("192.0.2.9"));
    }
    let outcome = prober().probe(&probe(squid.port, &url(right.port))).await;
    assert_fault("an authority that is not trusted", &outcome, Target, Reason::TargetTLSFailed, "UnknownIssuer");
    let outcome = trusting.probe(&probe(squid.port, &url(wrong.port))).await;
    assert_fault("another name", &outcome, Target, Reason::TargetTLSFailed, "certificate of its own");
    assert!(wrong.heard().is_empty(), "the request went to a server that was not verified");

    assert_well("directly", &trusting.direct(&probe(1, &url(right.port))).await, Some("192.0.2.9"));
    let outcome = prober().direct(&probe(1, &url(right.port))).await;
    assert_fault("directly, not trusted", &outcome, Target, Reason::TargetTLSFailed, "UnknownIssuer");
}

#[tokio::test]
async fn an_https_proxy_is_spoken_to_in_tls_and_verified() {
    let authority = Authority::new();
    let server = authority.server("127.0.0.1");
    let trusting = authority.trusting();
    let over_tls = |port, target| {
        let mut probe = Probe { credentials: Some(credentials("u", "p")), ..probe(port, target) };
        probe.endpoint.scheme = Scheme::Https;
        probe
    };
    let peer = Peer::start(vec![Tls(server.clone()), Hear, open(), Hear, ok()]).await;
    assert_well("an http target", &trusting.probe(&over_tls(peer.port, HTTP)).await, Some("192.0.2.9"));
    assert!(peer.heard()[0].starts_with("CONNECT target.invalid:80 "), "{:?}", peer.heard());

    let inner = authority.server("target.invalid");
    let peer = Peer::start(vec![Tls(server.clone()), Hear, open(), Tls(inner), Hear, ok()]).await;
    let both = over_tls(peer.port, "https://target.invalid/");
    assert_well("TLS in TLS", &trusting.probe(&both).await, Some("192.0.2.9"));

    let mut stranger = over_tls(peer.port, HTTP);
    let outcome = prober().probe(&stranger).await;
    assert_fault("not trusted", &outcome, OfProxy, Reason::ProxyTLSFailed, "UnknownIssuer");
    stranger.endpoint.host = "localhost".into();
    let outcome = trusting.probe(&stranger).await;
    assert_fault("another name", &outcome, OfProxy, Reason::ProxyTLSFailed, "certificate of its own");
    assert_eq!(peer.heard().len(), 2, "credentials went to a proxy that was not verified");

    let rows: Vec<(_, Vec<_>, _, _)> = vec![
        ("a plain proxy", vec![say("HTTP/1.1 400 Bad Request\r\n\r\n"), Hold], AMPLE, Reason::ProxyTLSFailed),
        ("a proxy that is silent", vec![Hold], SHORT, Reason::ProxyTimeout),
        ("a proxy that closes", vec![Say(Vec::new())], AMPLE, Reason::ProxyClosed),
        ("a proxy that closes after TLS", vec![Tls(server.clone())], AMPLE, Reason::ProxyClosed),
        ("garbage in TLS", vec![Tls(server.clone()), say("* OK IMAP4\r\n"), Hold], AMPLE, Reason::ProxyGarbage),
    ];
    for (claim, script, timeout, reason) in rows {
        let peer = Peer::start(script).await;
        let probe = Probe { timeout, ..over_tls(peer.port, HTTP) };
        let outcome = trusting.probe(&probe).await;
        assert_fault(claim, &outcome, OfProxy, reason, "proxy https://127.0.0.1");
        assert!(outcome.latency < SOON, "{claim}: took {:?}", outcome.latency);
    }
}
