use std::collections::BTreeSet;

use egress_actors::domain::id::{OperatorId, ProviderName, ProxyKey, Uid};
use proptest::prelude::*;

use super::*;

fn mark(namespace: &str, name: &str, uid: &str) -> OwnerMark {
    OwnerMark {
        operator: OperatorId::parse("5d2f/egress/operator").expect("valid"),
        entry: ProviderName::parse("kvm2-home").expect("valid"),
        key: ProxyKey::new(namespace, name).expect("valid"),
        uid: Uid::parse(uid).expect("valid"),
    }
}

#[test]
fn a_domains_name_shows_the_proxy_and_stays_the_same() {
    // Instances are found again by it after a restart: it must not change with a new version.
    assert_eq!(domain_name(&mark("crawl", "px-1.a", "uid-1")), "px-crawl-px-1.a-7b47caa550e7");
}

#[test]
fn the_names_of_a_domains_volumes_begin_with_its_name() {
    assert_eq!(overlay("px-a-b-0"), "px-a-b-0.qcow2");
    assert_eq!(seed("px-a-b-0"), "px-a-b-0-seed.iso");
}

#[test]
fn proxies_that_look_alike_have_names_of_their_own() {
    let long = "n".repeat(60);
    let mut other = mark("a", "b", "u1");
    other.operator = OperatorId::parse("another").expect("valid");
    let marks = [
        mark("a", "b-c", "u1"),
        mark("a-b", "c", "u2"),
        mark("a", "b", "u1"),
        mark("a", "b", "u2"),
        mark(&long, "x", "u3"),
        mark(&long, "y", "u4"),
        other,
    ];
    let names: BTreeSet<_> = marks.iter().map(domain_name).collect();
    assert_eq!(names.len(), marks.len());
}

#[test]
fn bases_are_called_as_the_contract_says() {
    assert_eq!(base(Flavor::Kvm, "kvm-a", "debian-12", ImageFormat::Qcow2), "base-debian-12.qcow2");
    assert_eq!(base(Flavor::Kvm2, "home", "debian-12", ImageFormat::Raw), "base-home-debian-12.raw");
    assert_eq!(marker("base-debian-12.qcow2"), "base-debian-12.qcow2.ok");
}

#[test]
fn bases_that_share_a_name_are_told_apart_by_their_markers() {
    let same = [(Flavor::Kvm2, "a-b", "c"), (Flavor::Kvm2, "a", "b-c"), (Flavor::Kvm, "x", "a-b-c")];
    let names: BTreeSet<_> = same.iter().map(|(f, entry, key)| base(*f, entry, key, ImageFormat::Qcow2)).collect();
    assert_eq!(names.len(), 1, "or this test is about nothing");
    let lines: BTreeSet<_> = same.iter().map(|(f, entry, key)| base_identity(*f, entry, key)).collect();
    assert_eq!(lines, ["kvm key=a-b-c", "kvm2 entry=a key=b-c", "kvm2 entry=a-b key=c"].map(str::to_owned).into());
    // Entries of flavor kvm share a pool's bases on purpose.
    assert_eq!(base_identity(Flavor::Kvm, "x", "k"), base_identity(Flavor::Kvm, "y", "k"));
}

#[test]
fn a_url_has_a_key_that_is_one() {
    let key = key_of_url("https://example.com/debian.qcow2?a=1&b=2");
    assert_eq!(key, "url-87a2b36cbcfeac61");
    assert_ne!(key, key_of_url("https://example.com/debian.qcow2?a=1&b=3"));
}

#[test]
fn each_incarnation_has_a_mac_of_its_own_that_is_local_and_for_one_machine() {
    let mark = mark("a", "b", "u1");
    let first = mac(&mark, "1");
    assert_eq!(first, mac(&mark, "1"));
    assert_ne!(first, mac(&mark, "2"));
    assert_eq!(first.0[0] & 0b11, 0b10, "{first}");
}

#[test]
fn a_domain_that_we_did_not_name_is_none_of_ours() {
    for name in [
        "px",
        "px-",
        "web-1",
        "px-crawl-p",
        "px-crawl-p-0123456789aB",
        "px-crawl-p-0123456789abc",
        "vm-px-0123456789ab",
    ] {
        assert_eq!(stem(name), None, "{name}");
    }
}

fn any_word() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
}

proptest! {
    #[test]
    fn names_are_bounded_and_plain_whatever_the_proxy_is_called(
        namespace in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
        name in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?){0,5}",
        uid in "[a-zA-Z0-9-]{1,64}",
    ) {
        prop_assume!(name.len() <= 253);
        let domain = domain_name(&mark(&namespace, &name, &uid));
        prop_assert!(domain.len() <= 60, "{domain}");
        prop_assert!(domain.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-".contains(&b)), "{domain}");
        prop_assert!(stem(&domain).is_some_and(|stem| domain.starts_with(stem)), "{domain}");
        prop_assert!(!domain.contains("..") && !domain.contains(".-") && domain.starts_with("px-"), "{domain}");
    }

    #[test]
    fn bases_and_markers_fit_a_file_name_and_one_marker_is_of_one_base(
        (entry, key) in (any_word(), any_word()),
        (other_entry, other_key) in (any_word(), any_word()),
    ) {
        for flavor in [Flavor::Kvm, Flavor::Kvm2] {
            prop_assert!(marker(&base(flavor, &entry, &key, ImageFormat::Qcow2)).len() <= 255);
        }
        let (one, another) = ((&entry, &key), (&other_entry, &other_key));
        let line = |(entry, key): (&String, &String)| base_identity(Flavor::Kvm2, entry, key);
        prop_assert_eq!(one == another, line(one) == line(another));
        prop_assert_ne!(line(one), base_identity(Flavor::Kvm, &other_entry, &other_key));
    }
}
