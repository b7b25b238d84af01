//! From the bytes of a key file to a private key, or to the reason why not (fault 8).
//!
//! Takes what ssh-keygen, openssl and `PuTTY` write, also with CRLF, spaces around the lines, a whole block indented by a YAML file, or
//! a byte order mark. russh compares whole lines, so the text is put in order before it sees it.

use std::path::Path;

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use russh::keys::{Algorithm, PrivateKey, decode_secret_key};
use secrecy::{ExposeSecret, SecretString};

const GENERATE: &str = "ssh-keygen -t ed25519 -N ''";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadKey {
    Encrypted,
    Invalid(&'static str),
}

impl BadKey {
    pub(super) fn told(&self, path: &Path) -> OpError {
        let path = path.display();
        match self {
            Self::Encrypted => {
                let way_out = "use one without a passphrase (`ssh-keygen -p` takes it off)";
                OpError::permanent(Reason::SSHKeyEncrypted, format!("the SSH key {path} is encrypted: {way_out}"))
            }
            Self::Invalid(why) => {
                let detail = format!("the SSH key {path} {why}; `{GENERATE}` makes one that is fine");
                OpError::permanent(Reason::SSHKeyInvalid, detail)
            }
        }
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<PrivateKey, BadKey> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadKey::Invalid("is not text"))?;
    let text = SecretString::from(in_order(text));
    let text = text.expose_secret();
    let first = text.lines().next().ok_or(BadKey::Invalid("is empty"))?;
    if first.starts_with("PuTTY-User-Key-File-") {
        if text.lines().any(|line| line.starts_with("Encryption:") && line != "Encryption: none") {
            return Err(BadKey::Encrypted);
        }
    } else {
        look_at_pem(text)?;
    }
    // The words of the error are left out: they could have some of the file in them.
    let key = decode_secret_key(text, None).map_err(|error| match error {
        russh::keys::Error::KeyIsEncrypted => BadKey::Encrypted,
        _ => BadKey::Invalid("cannot be decoded: it is damaged, or of a kind that is not supported"),
    })?;
    if key.is_encrypted() {
        return Err(BadKey::Encrypted);
    }
    match key.algorithm() {
        Algorithm::Ed25519 | Algorithm::Ecdsa { .. } | Algorithm::Rsa { .. } => Ok(key),
        Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256 => {
            Err(BadKey::Invalid("needs a hardware token, which is not supported"))
        }
        _ => Err(BadKey::Invalid("is of a type that is not supported")),
    }
}

/// The same lines without what a copy adds to them: spaces around, CR, empty lines, a byte order mark.
fn in_order(text: &str) -> String {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut ordered = String::with_capacity(text.len() + 1);
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        ordered.push_str(line);
        ordered.push('\n');
    }
    ordered
}

fn look_at_pem(text: &str) -> Result<(), BadKey> {
    let label = |line: &'static str| move |text: &str| text.lines().any(|found| found.starts_with(line));
    let has_begin = label("-----BEGIN ")(text);
    if !has_begin {
        let public = ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| text.starts_with(kind));
        let why = if public { "is a public key: the private one is needed" } else { "has no `-----BEGIN` line" };
        return Err(BadKey::Invalid(why));
    }
    let of_a_key = |line: &&str| line.starts_with("-----BEGIN ") && line.contains("PRIVATE KEY");
    let Some(begin) = text.lines().find(of_a_key) else {
        return Err(BadKey::Invalid("has no private key in it"));
    };
    // Any cipher: russh knows one of them by its header and takes the others for plain text.
    if begin.contains("ENCRYPTED")
        || text.lines().any(|line| line.starts_with("Proc-Type:") && line.contains("ENCRYPTED"))
    {
        return Err(BadKey::Encrypted);
    }
    let end = begin.replacen("BEGIN", "END", 1);
    if !text.lines().any(|line| line == end) {
        return Err(BadKey::Invalid("is cut off: its `-----END` line is missing"));
    }
    Ok(())
}
