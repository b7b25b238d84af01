//! The name of an instance's objects, and the owner mark on them.
//!
//! Labels are for finding: short, hashed where a value may not be one. What counts is in the annotations, whole.

use std::collections::BTreeMap;

use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::OwnerMark;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "egress-proxies-operator");
pub(super) const APP: (&str, &str) = ("app.kubernetes.io/name", "egress-proxy");
const LABEL_OPERATOR: &str = "crawl.example.com/operator";
pub(super) const LABEL_PROVIDER: &str = "crawl.example.com/provider";
pub(super) const LABEL_INSTANCE: &str = "crawl.example.com/instance";

const OWNER_OPERATOR: &str = "crawl.example.com/owner-operator";
const OWNER_PROVIDER: &str = "crawl.example.com/owner-provider";
const OWNER_PROXY: &str = "crawl.example.com/owner-proxy";
const OWNER_UID: &str = "crawl.example.com/owner-uid";

/// So much of the Proxy's name is shown in the objects' name.
const SHOWN: usize = 40;

/// Of all objects of this instance. A person recognizes the Proxy; the hash of the uid tells it from every other one
/// (fault 110). At most 53 characters of a DNS label, so it is a label's value too.
pub(super) fn name(mark: &OwnerMark) -> String {
    let shown: String = mark.key.name().chars().take(SHOWN).map(|c| if c == '.' { '-' } else { c }).collect();
    format!("{}-{}", shown.trim_end_matches('-'), hash(mark.uid.as_str(), 6))
}

pub(super) fn labels(mark: &OwnerMark) -> BTreeMap<String, String> {
    let instance = name(mark);
    let operator = hash(mark.operator.as_str(), 8);
    [APP, MANAGED_BY, (LABEL_OPERATOR, &operator), (LABEL_PROVIDER, mark.entry.as_str()), (LABEL_INSTANCE, &instance)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

pub(super) fn annotations(mark: &OwnerMark) -> BTreeMap<String, String> {
    [
        (OWNER_OPERATOR, mark.operator.as_str()),
        (OWNER_PROVIDER, mark.entry.as_str()),
        (OWNER_PROXY, mark.key.as_str()),
        (OWNER_UID, mark.uid.as_str()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Finds everything that this operator made for this entry, or for whatever entry.
pub(super) fn selector(operator: &OperatorId, entry: Option<&ProviderName>) -> String {
    let (key, value) = MANAGED_BY;
    let all = format!("{key}={value},{LABEL_OPERATOR}={}", hash(operator.as_str(), 8));
    entry.map_or_else(|| all.clone(), |entry| format!("{all},{LABEL_PROVIDER}={entry}"))
}

/// The mark on an object, if it carries a whole one.
pub(super) fn owner(meta: &ObjectMeta) -> Option<OwnerMark> {
    let annotations = meta.annotations.as_ref()?;
    let read = |key: &str| annotations.get(key).map(String::as_str);
    Some(OwnerMark {
        operator: OperatorId::parse(read(OWNER_OPERATOR)?).ok()?,
        entry: ProviderName::parse(read(OWNER_PROVIDER)?).ok()?,
        key: ProxyKey::parse(read(OWNER_PROXY)?).ok()?,
        uid: Uid::parse(read(OWNER_UID)?).ok()?,
    })
}

/// Whether an object is ours; else whose it is, for people.
pub(super) fn ours(meta: &ObjectMeta, mark: &OwnerMark) -> Result<(), String> {
    match owner(meta) {
        Some(found) if found == *mark => Ok(()),
        Some(found) => Err(format!(
            "belongs to Proxy {} (uid {}) of operator `{}`, provider `{}`",
            found.key, found.uid, found.operator, found.entry
        )),
        None => Err("carries no owner mark".to_owned()),
    }
}

pub(super) fn hash(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(name: &str, uid: &str) -> OwnerMark {
        OwnerMark {
            operator: OperatorId::parse("5d2f/egress/operator").expect("valid"),
            entry: ProviderName::parse("pods").expect("valid"),
            key: ProxyKey::new("crawl", name).expect("valid"),
            uid: Uid::parse(uid).expect("valid"),
        }
    }

    #[test]
    fn a_name_shows_the_proxy_and_is_a_label_whatever_the_proxy_is_called() {
        assert_eq!(name(&mark("px-1", "uid-1")), "px-1-4a49acf8a6bd");
        let long = "a.b".repeat(80);
        for proxy in ["px.1", "9", &long, &format!("{}.-", "a".repeat(39)).replace(".-", ".b")] {
            let name = name(&mark(proxy, "uid-1"));
            assert!(name.len() <= 53 && name.ends_with("-4a49acf8a6bd") && !name.contains('.'), "{name}");
            assert!(!name.contains("--"), "{name}");
        }
    }

    #[test]
    fn proxies_that_look_alike_have_names_of_their_own() {
        let long = "a".repeat(60);
        let names = [mark("a.b", "u1"), mark("a-b", "u2"), mark(&long, "u3"), mark(&format!("{long}b"), "u4")];
        let distinct: std::collections::BTreeSet<_> = names.iter().map(name).collect();
        assert_eq!(distinct.len(), 4);
        assert_ne!(name(&mark("a", "u1")), name(&mark("a", "u2")), "a name that is used again");
    }

    #[test]
    fn the_mark_reads_back_and_every_part_of_it_counts() {
        let mine = mark("px-1", "uid-1");
        let meta = ObjectMeta { annotations: Some(annotations(&mine)), ..ObjectMeta::default() };
        assert_eq!(owner(&meta), Some(mine.clone()));
        assert_eq!(ours(&meta, &mine), Ok(()));
        let others = [
            OwnerMark { operator: OperatorId::parse("other").expect("valid"), ..mine.clone() },
            OwnerMark { entry: ProviderName::parse("other").expect("valid"), ..mine.clone() },
            mark("px-2", "uid-1"),
            mark("px-1", "uid-2"),
        ];
        for other in others {
            assert!(ours(&meta, &other).expect_err("foreign").contains("crawl/px-1"), "{other:?}");
        }
        for key in [OWNER_OPERATOR, OWNER_PROVIDER, OWNER_PROXY, OWNER_UID] {
            let mut less = meta.clone();
            less.annotations.as_mut().expect("set").remove(key);
            assert_eq!(ours(&less, &mine), Err("carries no owner mark".to_owned()), "{key}");
        }
    }

    #[test]
    fn labels_fit_whatever_the_operator_is_called() {
        let mut long = mark("px-1", "uid-1");
        long.operator = OperatorId::parse(&"x/".repeat(100)).expect("valid");
        for (key, value) in labels(&long) {
            assert!(
                value.len() <= 63 && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
                "{key}={value}"
            );
        }
        let selector = selector(&long.operator, Some(&long.entry));
        for part in selector.split(',') {
            let (key, value) = part.split_once('=').expect("key=value");
            assert_eq!(labels(&long).get(key).map(String::as_str), Some(value));
        }
    }
}
