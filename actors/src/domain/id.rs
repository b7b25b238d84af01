//! Names and identities, parsed once at the edge.
//!
//! All are cheap to clone (shared strings), as they travel in every message.

use std::fmt;
use std::sync::Arc;

/// Why a name was refused: says what was given and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} `{given}` {why}")]
pub struct InvalidName {
    pub what: &'static str,
    pub given: String,
    pub why: &'static str,
}

/// `namespace/name` of a Proxy. Names can be reused; the identity of an object is its [`Uid`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProxyKey {
    whole: Arc<str>,
    slash: u16,
}

impl ProxyKey {
    /// Both parts must be DNS-1123 subdomains of at most 253 (name) and 63 (namespace) bytes, as Kubernetes asks.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        if namespace.len() > 63 || !is_dns_subdomain(namespace) {
            return Err(InvalidName {
                what: "namespace",
                given: namespace.to_owned(),
                why: "must be lower-case letters, digits and `-`, start and end with a letter or digit, at most 63 bytes",
            });
        }
        if name.len() > 253 || !is_dns_subdomain(name) {
            return Err(InvalidName {
                what: "name",
                given: name.to_owned(),
                why: "must be lower-case letters, digits, `-` and `.`, start and end with a letter or digit, at most 253 bytes",
            });
        }
        let slash = u16::try_from(namespace.len()).expect("a namespace is at most 63 bytes");
        Ok(Self { whole: format!("{namespace}/{name}").into(), slash })
    }

    /// Reads `namespace/name`.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Err(InvalidName { what: "proxy", given: text.to_owned(), why: "must be written `namespace/name`" }),
        }
    }

    pub fn namespace(&self) -> &str {
        &self.whole[..usize::from(self.slash)]
    }

    pub fn name(&self) -> &str {
        &self.whole[usize::from(self.slash) + 1..]
    }

    pub fn as_str(&self) -> &str {
        &self.whole
    }
}

impl fmt::Display for ProxyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whole)
    }
}

impl fmt::Debug for ProxyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.whole)
    }
}

fn is_dns_subdomain(text: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !text.is_empty()
        && text.split('.').all(|label| {
            let bytes = label.as_bytes();
            !bytes.is_empty()
                && bytes.len() <= 63
                && edge(bytes[0])
                && edge(bytes[bytes.len() - 1])
                && bytes.iter().all(|&b| edge(b) || b == b'-')
        })
}

/// At most 63 of `[a-z0-9.-]` (contract.md 3): such names become part of ids and file names (fault 39).
fn is_host_like(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    !bytes.is_empty()
        && bytes.len() <= 63
        && edge(bytes[0])
        && edge(bytes[bytes.len() - 1])
        && bytes.iter().all(|&b| edge(b) || b == b'-' || b == b'.')
}

/// The same, and the name of an object: its ProviderHealth is called so.
fn is_entry_like(text: &str) -> bool {
    is_host_like(text) && text.split('.').all(is_host_like)
}

macro_rules! shared_string {
    ($(#[$doc:meta])* $name:ident, $what:literal, $valid:expr, $why:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses the text, or says what is wrong with it.
            pub fn parse(text: &str) -> Result<Self, InvalidName> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidName { what: $what, given: text.to_owned(), why: $why })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

shared_string!(
    /// The identity of one object for its whole life; a recreated name has another one.
    Uid, "uid",
    |t| !t.is_empty() && t.len() <= 64 && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
    "must be 1 to 64 letters, digits and `-`"
);
shared_string!(
    /// The name of an entry of the providers config.
    ProviderName, "provider",
    is_entry_like,
    "must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`"
);
shared_string!(
    /// The name of one host of an entry; an entry without hosts has one, named like itself.
    HostName, "host",
    is_host_like,
    "must match ^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
);
shared_string!(
    /// Who this operator is, in the owner marks that it leaves in backends.
    OperatorId, "operator id",
    |t| !t.is_empty() && t.len() <= 253 && t.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\'),
    "must be 1 to 253 printable characters without spaces and quotes"
);
shared_string!(
    /// `ls_` and random characters: hard to guess, as knowing it is enough to release.
    LeaseId, "lease id",
    |t| t.len() > 3 && t.len() <= 64 && t.starts_with("ls_") && t[3..].bytes().all(|b| b.is_ascii_alphanumeric()),
    "must be `ls_` and letters and digits"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_its_parts() {
        let key = ProxyKey::parse("crawl/px-1.a").expect("valid");
        assert_eq!((key.namespace(), key.name(), key.as_str()), ("crawl", "px-1.a", "crawl/px-1.a"));
    }

    #[test]
    fn names_that_would_break_paths_or_ids_are_refused() {
        for bad in ["", "a", "/a", "a/", "a/b/c", "A/b", "a/b_c", "a/-b", "a/b.", "a/b..c", "a/\0"] {
            assert!(ProxyKey::parse(bad).is_err(), "{bad:?} was accepted");
        }
        for bad in ["", "-a", "a/b", "a_b", "A", &"a".repeat(64)] {
            assert!(ProviderName::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_name_of_an_entry_can_be_the_name_of_its_provider_health() {
        for good in ["a", "1", "a.b", "kvm-1.dc--2", &"a".repeat(63)] {
            assert!(ProviderName::parse(good).is_ok(), "{good:?} was refused");
        }
        for bad in ["a..b", "a.-b", "a-.b", ".a", "a."] {
            let refused = ProviderName::parse(bad).map_err(|refused| refused.to_string());
            assert!(refused.is_err_and(|text| text.contains("on both sides of each `.`")), "{bad:?}");
        }
    }
}
