//! The certificate of both servers, read anew when its files change.
//!
//! Owns what is in use. A pair of files that cannot be used (half replaced, expired in shape, not PEM) never replaces
//! one that can: the old one stays, with a warning.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use egress_actors::kit::task::StopSignal;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

/// Files are looked at so often. Certificates are replaced hours before their end.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// A file system that does not answer must not hold up who waits for this.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Why a certificate cannot be used: names the file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{file}`: {why}")]
    Unreadable { file: PathBuf, why: String },
    #[error("`{file}` has no usable {what} in PEM: {why}")]
    NotPem { file: PathBuf, what: &'static str, why: String },
    #[error("certificate `{cert}` and key `{key}` cannot be used together: {why}")]
    Unusable { cert: PathBuf, key: PathBuf, why: String },
}

struct Loaded {
    config: Arc<ServerConfig>,
    /// Of both files. Mounted secrets are replaced as a whole directory: times of files say little.
    content: [u8; 32],
}

/// A certificate with its key, as files.
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    loaded: watch::Sender<Arc<Loaded>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads both files; at the start an unusable pair is an error.
    pub async fn load(cert: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let loaded = watch::Sender::new(Arc::new(load(cert, key).await?));
        Ok(Arc::new(Self { cert: cert.to_owned(), key: key.to_owned(), loaded }))
    }

    /// Reads both files anew. True if there is something new in them.
    pub async fn reload(&self) -> Result<bool, TlsError> {
        let new = load(&self.cert, &self.key).await?;
        let is_new = new.content != self.loaded.borrow().content;
        if is_new {
            self.loaded.send_replace(Arc::new(new));
            tracing::info!(cert = %self.cert.display(), "certificate replaced");
        }
        Ok(is_new)
    }

    /// Follows the files until `stop`: for a task of its own.
    pub async fn follow(&self, stop: StopSignal) -> Result<(), String> {
        let mut told = None;
        loop {
            tokio::select! {
                () = stop.wait() => return Ok(()),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let error = self.reload().await.err().map(|error| error.to_string());
            // Told once, not every minute.
            if error != told
                && let Some(error) = &error
            {
                tracing::warn!(%error, "the new certificate is refused, the old one stays in use");
            }
            told = error;
        }
    }

    /// For one handshake.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.loaded.borrow().config.clone().into()
    }
}

async fn load(cert: &Path, key: &Path) -> Result<Loaded, TlsError> {
    let (cert_text, key_text) = (read(cert).await?, read(key).await?);
    let bad = |file: &Path, what, why: String| TlsError::NotPem { file: file.to_owned(), what, why };
    let chain = CertificateDer::pem_slice_iter(&cert_text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bad(cert, "certificate", error.to_string()))?;
    if chain.is_empty() {
        return Err(bad(cert, "certificate", "there is none".to_owned()));
    }
    // The error of the parser does not quote what it read.
    let private =
        PrivateKeyDer::from_pem_slice(&key_text).map_err(|error| bad(key, "private key", error.to_string()))?;
    let unusable =
        |why: rustls::Error| TlsError::Unusable { cert: cert.to_owned(), key: key.to_owned(), why: why.to_string() };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let content = Sha256::new().chain_update(&cert_text).chain_update([0]).chain_update(&key_text).finalize().into();
    Ok(Loaded { config: Arc::new(config), content })
}

async fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let unreadable = |why: String| TlsError::Unreadable { file: file.to_owned(), why };
    match timeout(READ_WITHIN, tokio::fs::read(file)).await {
        Ok(read) => read.map_err(|error| unreadable(error.to_string())),
        Err(_) => Err(unreadable("no answer in time".to_owned())),
    }
}
