//! Whom a probe trusts over TLS: one configuration for all, with its own provider, never the process's.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tracing::{debug, warn};

/// Sessions kept for resumption; probes see few targets.
const SESSIONS: usize = 64;

/// An extra root is not a certificate.
#[derive(Debug, thiserror::Error)]
#[error("extra root certificate {index} cannot be used: {cause}")]
pub struct BadRoot {
    pub index: usize,
    cause: rustls::Error,
}

/// The system's roots; the built-in ones where the system has none (a bare container); the extra ones always.
pub(super) fn client_config(extra: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, BadRoot> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        warn!(%error, "some of the system's root certificates cannot be read");
    }
    let (used, ignored) = roots.add_parsable_certificates(system.certs);
    debug!(used, ignored, "root certificates of the system");
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for (index, root) in extra.iter().enumerate() {
        roots.add(root.clone()).map_err(|cause| BadRoot { index, cause })?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the suites of the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(Arc::new(config))
}

/// The name that a certificate must be for. IPv6 addresses may be in brackets.
pub(super) fn server_name(host: &str) -> Option<ServerName<'static>> {
    let host = host.trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(ip) => Some(ServerName::IpAddress(ip.into())),
        // A name may be written with the dot of the root; certificates never have it.
        Err(_) => ServerName::try_from(host.strip_suffix('.').unwrap_or(host).to_owned()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_root_that_is_no_certificate_is_refused_by_its_place() {
        let error = client_config(&[CertificateDer::from(vec![1, 2, 3])]).unwrap_err();
        assert!(error.to_string().starts_with("extra root certificate 0 cannot be used: "), "{error}");
    }
}
