//! Which cryptography TLS uses: `ring`, for everything in this process.

/// For libraries that ask for the process's default and have none of their own. To be called before the first of them is
/// used; again does nothing.
pub fn install() {
    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
