//! What `known_hosts` says about a host: its keys, the refused ones, and the lines that are of no use.
//!
//! Pure: text in, verdict out. The file itself is read by [`super::material`].
//! The rules are those of sshd(8) "`SSH_KNOWN_HOSTS` FILE FORMAT", with two differences, both to the strict side. A line for
//! `host` alone is of no use for another port than 22 (OpenSSH tries it too), and `@cert-authority` is told as not supported.
//! russh's own reader is not used: it takes an unreadable file for an empty one, knows no markers, wildcards or
//! tabs, and fails as a whole at one bad line (faults 5 and 6).

mod hmac_sha1;
mod line;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, HashAlg, PublicKey};

use line::Line;

/// A parsed file. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct KnownHosts {
    lines: Arc<[Line]>,
}

impl KnownHosts {
    /// Reads the whole text. A line that is of no use is told and does no harm to the others (fault 6).
    pub fn parse(text: &str) -> (Self, Vec<String>) {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines: Arc<[Line]> = text.lines().zip(1..).filter_map(|(text, number)| Line::parse(number, text)).collect();
        let problems = lines.iter().filter_map(Line::problem).collect();
        (Self { lines }, problems)
    }

    /// What is said about one host. `host` is the configured address: a name or an IP, with or without brackets.
    pub fn lookup(&self, host: &str, port: u16) -> HostKeys {
        let host = bare(host).to_ascii_lowercase();
        let name = if port == 22 { host.clone() } else { format!("[{host}]:{port}") };
        let mut found = HostKeys { name: name.clone(), ..HostKeys::default() };
        for line in self.lines.iter() {
            if !line.hosts.include(&name) {
                found.only_without_port |= port != 22 && line.is_plain_key() && line.hosts.include(&host);
                continue;
            }
            match &line.says {
                line::Says::Key(key) => found.known.push((line.number, key.clone())),
                line::Says::Revoked(key) => found.revoked.push((line.number, key.clone())),
                line::Says::Nothing(_) => found.problems.extend(line.problem()),
            }
        }
        found
    }
}

/// What a file says about one host.
#[derive(Debug, Clone, Default)]
pub struct HostKeys {
    name: String,
    known: Vec<(usize, KeyData)>,
    revoked: Vec<(usize, KeyData)>,
    /// Of the lines for this host that are of no use.
    problems: Vec<String>,
    only_without_port: bool,
}

/// What to do with a key that a host shows. All but `Known` refuse it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Known,
    /// No key of this type is known; `known` names the types that are, which may be none.
    Unknown {
        known: Vec<String>,
    },
    /// Another key of the same type is known, from this line on.
    Mismatch {
        line: usize,
    },
    /// Marked `@revoked` in this line.
    Revoked {
        line: usize,
    },
}

impl HostKeys {
    /// The name that a line must have to be about this host: `kvm-1`, or `[kvm-1]:2222`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why lines about this host are of no use, each with its number.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The file has this host for port 22 only.
    pub fn only_without_port(&self) -> bool {
        self.only_without_port
    }

    /// A revoked key is refused even if another line knows it.
    pub fn verdict(&self, key: &PublicKey) -> Verdict {
        let key = key.key_data();
        if let Some((line, _)) = self.revoked.iter().find(|(_, revoked)| revoked == key) {
            return Verdict::Revoked { line: *line };
        }
        if self.known.iter().any(|(_, known)| known == key) {
            return Verdict::Known;
        }
        match self.known.iter().find(|(_, known)| known.algorithm() == key.algorithm()) {
            Some((line, _)) => Verdict::Mismatch { line: *line },
            None => Verdict::Unknown { known: self.types() },
        }
    }

    /// The types of the known keys, each once, in the file's order: `ssh-ed25519`, `ecdsa-sha2-nistp256`, `ssh-rsa`.
    pub fn types(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let names = self.known.iter().map(|(_, key)| key.algorithm().to_string());
        names.filter(|name| seen.insert(name.clone())).collect()
    }

    /// The host key algorithms to ask for: those of the known keys first (fault 5), then the others, so that a host which has
    /// none of these shows what it has and can be told by its fingerprint. RSA only with SHA-2.
    pub fn algorithms(&self) -> Vec<Algorithm> {
        let usable = |(_, key): &&(usize, KeyData)| !self.revoked.iter().any(|(_, revoked)| revoked == key);
        let known: Vec<Algorithm> = self.known.iter().filter(usable).map(|(_, key)| key.algorithm()).collect();
        let rank = |offer: &Algorithm| !known.iter().any(|known| same_type(known, offer));
        let mut offers: Vec<Algorithm> = OFFERS.into();
        offers.sort_by_key(rank);
        offers
    }
}

/// All that we can check, the better first.
const OFFERS: [Algorithm; 6] = {
    use russh::keys::EcdsaCurve::{NistP256, NistP384, NistP521};
    [
        Algorithm::Ed25519,
        Algorithm::Ecdsa { curve: NistP256 },
        Algorithm::Ecdsa { curve: NistP384 },
        Algorithm::Ecdsa { curve: NistP521 },
        Algorithm::Rsa { hash: Some(HashAlg::Sha512) },
        Algorithm::Rsa { hash: Some(HashAlg::Sha256) },
    ]
};

fn same_type(one: &Algorithm, other: &Algorithm) -> bool {
    matches!((one, other), (Algorithm::Rsa { .. }, Algorithm::Rsa { .. })) || one == other
}

/// `[fe80::1]` without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}
