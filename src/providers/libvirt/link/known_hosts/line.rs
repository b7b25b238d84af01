//! One line of a `known_hosts` file.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{Algorithm, PublicKey};

use super::hmac_sha1::{self, Digest};

/// Longest word of a file that is repeated in a problem, in characters.
const WORD_MAX: usize = 40;

#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) hosts: Hosts,
    pub(super) says: Says,
}

#[derive(Debug)]
pub(super) enum Says {
    Key(KeyData),
    Revoked(KeyData),
    /// Of no use, with the reason.
    Nothing(String),
}

impl Line {
    /// None for an empty line and a comment.
    pub(super) fn parse(number: usize, text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace().peekable();
        if words.peek().is_none_or(|word| word.starts_with('#')) {
            return None;
        }
        let marker = words.next_if(|word| word.starts_with('@'));
        let hosts = Hosts::parse(words.next().unwrap_or_default());
        let key = read_key(words.next(), words.next());
        let says = match (marker, key) {
            (None, Ok(key)) => Says::Key(key),
            (Some("@revoked"), Ok(key)) => Says::Revoked(key),
            (Some("@cert-authority"), _) => {
                Says::Nothing("@cert-authority is not supported: list the keys of the hosts themselves".to_owned())
            }
            (Some(other), Ok(_)) => Says::Nothing(format!("the marker `{}` is not known", short(other))),
            (_, Err(problem)) => Says::Nothing(problem),
        };
        Some(Self { number, hosts, says })
    }

    pub(super) fn problem(&self) -> Option<String> {
        match &self.says {
            Says::Key(_) | Says::Revoked(_) => None,
            Says::Nothing(why) => Some(format!("line {}: {why}", self.number)),
        }
    }

    pub(super) fn is_plain_key(&self) -> bool {
        matches!(self.says, Says::Key(_))
    }
}

fn read_key(kind: Option<&str>, key: Option<&str>) -> Result<KeyData, String> {
    let kind = kind.ok_or("it ends after the host")?;
    let key = key.ok_or("it ends after the type of the key")?;
    if kind.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a key of SSH protocol 1".to_owned());
    }
    let told = |why: &str| format!("the key of type `{}` {why}", short(kind));
    let bytes = STANDARD.decode(key).or_else(|_| STANDARD_NO_PAD.decode(key)).map_err(|_| told("is not base64"))?;
    let read = PublicKey::from_bytes(&bytes).map_err(|_| told("cannot be read, or its type is not supported"))?;
    let algorithm = read.algorithm();
    let usable = matches!(algorithm, Algorithm::Ed25519 | Algorithm::Ecdsa { .. } | Algorithm::Rsa { .. });
    if algorithm.to_string() != kind {
        return Err(told(&format!("is one of type `{}`", short(algorithm.as_ref()))));
    }
    if !usable {
        return Err(told("is not of a supported type"));
    }
    Ok(read.key_data().clone())
}

/// A word of the file, fit for an error.
fn short(word: &str) -> String {
    word.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORD_MAX).collect()
}

/// The first field: patterns with commas in between.
#[derive(Debug)]
pub(super) struct Hosts(Vec<Item>);

#[derive(Debug)]
enum Item {
    /// Lower case; `*` and `?` stand for any characters and for one.
    Pattern { text: String, negated: bool },
    /// `|1|salt|hash`: the name is not to be read back from the file.
    Hashed { salt: Vec<u8>, hash: Digest },
}

impl Hosts {
    fn parse(field: &str) -> Self {
        let items = field.split(',').filter(|item| !item.is_empty());
        Self(items.filter_map(Item::parse).collect())
    }

    /// `name` is in lower case, `[name]:port` for another port than 22. One negated match outweighs all others.
    pub(super) fn include(&self, name: &str) -> bool {
        let mut included = false;
        for item in &self.0 {
            match item {
                Item::Pattern { text, negated } if matches(text.as_bytes(), name.as_bytes()) => {
                    if *negated {
                        return false;
                    }
                    included = true;
                }
                Item::Hashed { salt, hash } if hmac_sha1::hmac(salt, name.as_bytes()) == *hash => included = true,
                Item::Pattern { .. } | Item::Hashed { .. } => {}
            }
        }
        included
    }
}

impl Item {
    fn parse(item: &str) -> Option<Self> {
        if let Some(rest) = item.strip_prefix("|1|") {
            let (salt, hash) = rest.split_once('|')?;
            let hash = STANDARD.decode(hash).ok()?.try_into().ok()?;
            return Some(Self::Hashed { salt: STANDARD.decode(salt).ok()?, hash });
        }
        let (text, negated) = item.strip_prefix('!').map_or((item, false), |rest| (rest, true));
        let text = text.to_ascii_lowercase();
        // Port 22 has no brackets in the name that is looked for.
        let plain = text.strip_suffix(":22").unwrap_or(&text).strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let text = plain.map(str::to_owned).unwrap_or(text);
        Some(Self::Pattern { text, negated })
    }
}

/// `*` and `?` as in sshd(8). Goes back to the last star only, so it takes no more than `pattern` times `name` steps.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[of] => {
                at += 1;
                of += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                at = star_at + 1;
                of = taken + 1;
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}
