use std::time::{Duration, UNIX_EPOCH};

use super::*;

fn mark() -> Mark {
    Mark {
        owner: OwnerMark {
            operator: OperatorId::parse("5d2f/egress/<&'operator>").expect("valid"),
            entry: ProviderName::parse("kvm2-home").expect("valid"),
            key: ProxyKey::new("crawl", "px-1.a").expect("valid"),
            uid: Uid::parse("0b9f6a2e-6b1f-4a8e-9d3c-1a2b3c4d5e6f").expect("valid"),
        },
        incarnation: "k3j9".to_owned(),
        created_at: UNIX_EPOCH + Duration::new(1_796_274_000, 123_456_789),
        port: 3128,
        host: HostName::parse("beelink").expect("valid"),
        pool: "default".to_owned(),
    }
}

fn domain(metadata: &str) -> String {
    ["<domain type='kvm' id='3'><name>a</name>", metadata, "<devices/></domain>"].concat()
}

fn in_metadata(element: &str) -> String {
    domain(&["<metadata>", element, "</metadata>"].concat())
}

#[test]
fn a_mark_reads_back_whole() {
    let written = write(&mark()).expect("written");
    assert!(written.starts_with("<egress:proxy xmlns:egress=\"https://crawl.example.com/egress/1\" "), "{written}");
    assert!(written.contains("created=\"2026-12-03T") && written.contains("&lt;&amp;"), "{written}");
    assert_eq!(read(&in_metadata(&written)), Ok(Some(mark())));
    assert_eq!(read(&written), Ok(Some(mark())));
}

#[test]
fn a_mark_is_found_by_its_local_name_where_libvirt_lost_prefix_and_namespace() {
    let written = write(&mark()).expect("written");
    let bare =
        written.replace("egress:proxy", "proxy").replace(" xmlns:egress=\"https://crawl.example.com/egress/1\"", "");
    assert!(bare.starts_with("<proxy operator="), "{bare}");
    let undeclared = written.replace(" xmlns:egress=\"https://crawl.example.com/egress/1\"", "");
    let other_prefix = written.replace("egress:proxy", "p:proxy").replace("xmlns:egress", "xmlns:p");
    let default = written.replace("egress:proxy", "proxy").replace("xmlns:egress", "xmlns");
    for text in [bare, undeclared, other_prefix, default] {
        assert_eq!(read(&text), Ok(Some(mark())), "{text}");
        assert_eq!(read(&in_metadata(&text)), Ok(Some(mark())), "{text}");
    }
}

#[test]
fn a_domain_without_a_mark_is_a_foreign_one() {
    for metadata in [
        "",
        "<metadata/>",
        "<metadata></metadata>",
        "<metadata><x:os xmlns:x='http://libosinfo.org/'><x:proxy uid='1'/></x:os></metadata>",
        "<metadata><x:proxy xmlns:x='https://example.com/other' uid='1'/></metadata>",
        "<description>&lt;proxy uid='1'/&gt;</description><title><proxy/></title>",
    ] {
        assert_eq!(read(&domain(metadata)), Ok(None), "{metadata}");
    }
}

#[test]
fn a_mark_that_cannot_be_read_is_an_error_and_never_absent() {
    let good = write(&mark()).expect("written");
    for attribute in ["operator", "entry", "namespace", "name", "uid", "incarnation", "created"] {
        let without = good.replace(&[" ", attribute, "="].concat(), &[" no-", attribute, "="].concat());
        let error = read(&in_metadata(&without)).expect_err(attribute);
        assert_eq!(error, XmlError::Missing { document: "owner mark", what: attribute });
    }
    for (from, to) in [
        ("entry=\"kvm2-home\"", "entry=\"KVM\""),
        ("uid=\"0b9f", "uid=\"/\u{e9}"),
        ("name=\"px-1.a\"", "name=\"a/b\""),
        ("created=\"2026", "created=\"last year"),
        ("operator=\"5d2f", "operator=\"5 d2f"),
    ] {
        let broken = good.replace(from, to);
        assert_ne!(broken, good);
        assert!(matches!(read(&in_metadata(&broken)), Err(XmlError::Invalid { .. })), "{broken}");
    }
    for text in [in_metadata(&[good.as_str(), &good].concat()), in_metadata("<proxy/>"), "<proxy/>".to_owned()] {
        assert!(read(&text).is_err(), "{text}");
    }
}

#[test]
fn what_is_no_domain_at_all_is_an_error() {
    for text in
        ["", " ", "<volume/>", "<domain>", "<domain></domain", "no XML", "<a/><b/>", "\0", "<domain>&nbsp;</domain>"]
    {
        assert!(read(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_mark_that_xml_cannot_hold_is_refused() {
    for incarnation in ["a\0b", "a\nb", "\u{1b}", "\u{ffff}"] {
        let refused = write(&Mark { incarnation: incarnation.to_owned(), ..mark() }).expect_err("refused");
        assert_eq!(refused, XmlError::Forbidden { what: "incarnation".to_owned() });
    }
}
