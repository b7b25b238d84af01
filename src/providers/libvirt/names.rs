//! Names in a pool and on a host, all pure functions of what they are the names of.
//!
//! A name shows a person what it is for; what counts is the mark in the metadata (contract O7), and for a base what its
//! marker says ([`base_identity`]).

use egress_actors::domain::instance::OwnerMark;
use sha2::{Digest, Sha256};

use super::addresses::Mac;
use crate::config::providers::{Flavor, ImageFormat};

/// Of a domain's name. It is part of the path of the monitor's socket, which is bounded by 108 (fault 39).
const LONGEST_DOMAIN: usize = 60;
/// So much of the namespace is shown, to leave room for the Proxy's name.
const SHOWN_NAMESPACE: usize = 20;
/// Bytes of the hash at a domain's name's end.
const HASH: usize = 6;

/// `px-<namespace>-<name>-<hash>`: at most 60 of `[a-z0-9.-]`. The hash is of operator and uid, so a name that is used
/// again is another domain, and so is the same Proxy under another operator.
pub fn domain_name(mark: &OwnerMark) -> String {
    let hash = hash(&[mark.operator.as_str(), mark.uid.as_str()], HASH);
    let room = LONGEST_DOMAIN - "px-".len() - "-".len() - hash.len();
    let shown = [cut(mark.key.namespace(), SHOWN_NAMESPACE), mark.key.name()].join("-");
    ["px", cut(&shown, room), &hash].join("-")
}

/// What of a name that [`domain_name`] gave a person reads: `px-<namespace>-<name>`. `None` for any other name.
pub fn stem(domain_name: &str) -> Option<&str> {
    let (stem, hash) = domain_name.rsplit_once('-')?;
    let is_hash = hash.len() == 2 * HASH && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    (stem.starts_with("px-") && is_hash).then_some(stem)
}

/// The disk of a domain.
pub fn overlay(domain_name: &str) -> String {
    [domain_name, ".qcow2"].concat()
}

/// What the name of a `NoCloud` image ends with.
pub const SEED_END: &str = "-seed.iso";

/// The `NoCloud` image of a domain.
pub fn seed(domain_name: &str) -> String {
    [domain_name, SEED_END].concat()
}

/// `base-<key>.<format>` for kvm, `base-<entry>-<key>.<format>` for kvm2.
///
/// Two bases can have one name: entry `a-b` with key `c`, entry `a` with key `b-c`, and kvm's key `a-b-c`. The names are
/// promised to people, so they stay; the marker beside the base tells whose it is, see [`base_identity`].
pub fn base(flavor: Flavor, entry: &str, key: &str, format: ImageFormat) -> String {
    match flavor {
        Flavor::Kvm => ["base-", key, ".", format.as_str()].concat(),
        Flavor::Kvm2 => ["base-", entry, "-", key, ".", format.as_str()].concat(),
    }
}

/// The volume that says that a base is complete, and whose it is.
pub fn marker(base: &str) -> String {
    [base, ".ok"].concat()
}

/// Whose a base is, in one line for its marker: no two of them are equal, as neither entries nor keys hold a space.
/// A marker with another line is a conflict (another entry's base under the same name), never a base to use or delete.
pub fn base_identity(flavor: Flavor, entry: &str, key: &str) -> String {
    match flavor {
        Flavor::Kvm => ["kvm key=", key].concat(),
        Flavor::Kvm2 => ["kvm2 entry=", entry, " key=", key].concat(),
    }
}

/// What `placement.image` is called in names when it is a URL: `url-<16 hex digits>`.
pub fn key_of_url(url: &str) -> String {
    ["url-", &hash(&[url], 8)].concat()
}

/// The MAC of one incarnation. A fresh one each time, so that no lease of a predecessor is taken for ours (fault 49).
/// Locally administered, and not `fe:`, which is what libvirt gives the host's end.
pub fn mac(mark: &OwnerMark, incarnation: &str) -> Mac {
    let hash = digest(&[mark.operator.as_str(), mark.uid.as_str(), incarnation]);
    Mac([0x52, hash[0], hash[1], hash[2], hash[3], hash[4]])
}

/// The beginning of a name, without a `-` or `.` at its end.
fn cut(text: &str, most: usize) -> &str {
    let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
    text[..end].trim_end_matches(['-', '.'])
}

/// The first `bytes` bytes of the parts' hash, in hex.
fn hash(parts: &[&str], bytes: usize) -> String {
    digest(parts).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Parts with a zero byte between them; one part alone is hashed as it is.
fn digest(parts: &[&str]) -> [u8; 32] {
    Sha256::digest(parts.join("\0")).into()
}

#[cfg(test)]
mod tests;
