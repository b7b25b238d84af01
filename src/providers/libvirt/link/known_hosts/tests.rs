use std::process::Command;

use super::*;

const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJtVZLVnfVHkbFFRuWm6dUVTOQkBcPWQnZUFIBiIMnxT";
const ED_OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILIG2T/B0l0gaqj3puu510tu9N1OkQ4znY3LYuEm5zCF";
const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBJXSCUADKtqcJZa2yq+hOURiygtUZ2C+Z0fzwHkhYJTmX3uKvPKgjxdO+ozCa3WB9nRBHlZ5BdS/2eIXgzsGYQI=";

fn key(text: &str) -> PublicKey {
    PublicKey::from_openssh(text).unwrap()
}

fn verdict(file: &str, host: &str, port: u16, shown: &str) -> Verdict {
    KnownHosts::parse(file).0.lookup(host, port).verdict(&key(shown))
}

fn unknown(types: &[&str]) -> Verdict {
    Verdict::Unknown { known: types.iter().map(|name| (*name).to_owned()).collect() }
}

#[test]
fn a_line_is_about_the_hosts_that_its_patterns_name() {
    let rows = [
        ("kvm-1", "kvm-1", 22, true),
        ("kvm-1", "KVM-1", 22, true),
        ("KVM-1", "kvm-1", 22, true),
        ("kvm-1", "kvm-10", 22, false),
        ("a,kvm-1,b", "kvm-1", 22, true),
        (",kvm-1,", "kvm-1", 22, true),
        ("kvm-*", "kvm-1", 22, true),
        ("*", "kvm-1", 22, true),
        ("*", "kvm-1", 2222, true),
        ("kvm-?", "kvm-1", 22, true),
        ("kvm-?", "kvm-12", 22, false),
        ("*.lab,!bad.lab", "good.lab", 22, true),
        ("*.lab,!bad.lab", "bad.lab", 22, false),
        ("!bad.lab,*.lab", "bad.lab", 22, false),
        ("!bad.lab", "good.lab", 22, false),
        ("*a*b*c", "xxaxxbxxbxxc", 22, true),
        ("*a*b*c", "xxaxxbxxbxxd", 22, false),
        ("[kvm-1]:2222", "kvm-1", 2222, true),
        ("[kvm-*]:2222", "kvm-1", 2222, true),
        ("[kvm-1]:2222", "kvm-1", 22, false),
        ("[kvm-1]:2222", "kvm-1", 2223, false),
        ("kvm-1", "kvm-1", 2222, false),
        ("[kvm-1]:22", "kvm-1", 22, true),
        ("[kvm-1]", "kvm-1", 22, true),
        ("fe80::1", "[fe80::1]", 22, true),
        ("[fe80::1]:2222", "fe80::1", 2222, true),
        ("[fe80::1]:2222", "[fe80::1]", 2222, true),
        ("10.0.0.1", "10.0.0.1", 22, true),
    ];
    for (patterns, host, port, known) in rows {
        let wanted = if known { Verdict::Known } else { unknown(&[]) };
        assert_eq!(verdict(&format!("{patterns} {ED}\n"), host, port, ED), wanted, "{patterns} for {host}:{port}");
    }
}

#[test]
fn a_pattern_of_many_stars_takes_no_time() {
    let patterns = format!("{}b", "*a".repeat(2000));
    assert_eq!(verdict(&format!("{patterns} {ED}"), &"a".repeat(20_000), 22, ED), unknown(&[]));
}

#[test]
fn each_way_to_write_a_line_is_read() {
    let rows = [
        format!("kvm-1\t{}\n", ED.replace(' ', "\t")),
        format!("  kvm-1   {}   root@kvm-1 with words\r\n", ED.replace(' ', "  ")),
        format!("\u{feff}kvm-1 {ED}"),
        format!("# a comment\n\n   # another\nkvm-1 {ED}\n"),
        format!("kvm-1 {}", ED.trim_end_matches('=')),
        format!("bad line\nkvm-1 ssh-ed25519 !!!\n@what kvm-1 {ED}\nkvm-1 {ED}\n"),
    ];
    for file in rows {
        assert_eq!(verdict(&file, "kvm-1", 22, ED), Verdict::Known, "{file:?}");
    }
}

#[test]
fn hashed_names_are_found_with_and_without_a_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("known_hosts");
    std::fs::write(&path, format!("kvm-1 {ED}\n[kvm-1]:2222 {ECDSA}\n")).unwrap();
    let made = Command::new("ssh-keygen").args(["-q", "-H", "-f"]).arg(&path).output();
    assert!(made.expect("install openssh-client for ssh-keygen").status.success());
    let file = std::fs::read_to_string(&path).unwrap();
    assert!(file.starts_with("|1|") && !file.contains("kvm-1"), "{file}");
    assert_eq!(verdict(&file, "kvm-1", 22, ED), Verdict::Known);
    assert_eq!(verdict(&file, "kvm-1", 2222, ECDSA), Verdict::Known);
    assert_eq!(verdict(&file, "kvm-1", 2222, ED), unknown(&["ecdsa-sha2-nistp256"]));
    assert_eq!(verdict(&file, "kvm-2", 22, ED), unknown(&[]));
}

#[test]
fn a_key_is_known_new_changed_or_revoked() {
    let both = format!("h {ED}\nh {ECDSA}\n");
    let rows = [
        (both.as_str(), ED, Verdict::Known),
        (both.as_str(), ECDSA, Verdict::Known),
        (both.as_str(), ED_OTHER, Verdict::Mismatch { line: 1 }),
        (&format!("h {ECDSA}\n"), ED, unknown(&["ecdsa-sha2-nistp256"])),
        // In a rotation both count.
        (&format!("h {ED_OTHER}\nh {ED}\n"), ED, Verdict::Known),
        (&format!("h {ED}\n@revoked * {ED}\n"), ED, Verdict::Revoked { line: 2 }),
        (&format!("@revoked * {ED}\nh {ED}\n"), ED, Verdict::Revoked { line: 1 }),
        (&format!("@revoked other {ED}\nh {ED}\n"), ED, Verdict::Known),
        (&format!("@revoked h {ED_OTHER}\nh {ED}\n"), ED, Verdict::Known),
        // An authority is no key of a host.
        (&format!("@cert-authority * {ED}\n"), ED, unknown(&[])),
        ("", ED, unknown(&[])),
    ];
    for (file, shown, wanted) in rows {
        assert_eq!(verdict(file, "h", 22, shown), wanted, "{file}");
    }
}

#[test]
fn a_line_of_no_use_is_told_and_harms_no_other() {
    let other_type = ED.replace("ssh-ed25519", "ssh-rsa");
    let rows = [
        ("h".to_owned(), "it ends after the host"),
        ("h ssh-ed25519".to_owned(), "it ends after the type"),
        ("h ssh-ed25519 ????".to_owned(), "is not base64"),
        ("h ssh-ed25519 AAAA".to_owned(), "cannot be read"),
        (format!("h {}", &ED[..60]), "cannot be read"),
        (format!("h {other_type}"), "is one of type `ssh-ed25519`"),
        ("h 1024 35 1234567".to_owned(), "SSH protocol 1"),
        (format!("@cert-authority *.lab {ED}"), "@cert-authority is not supported"),
        (format!("@other h {ED}"), "the marker `@other`"),
        ("@revoked h ssh-ed25519 ????".to_owned(), "is not base64"),
    ];
    for (line, says) in rows {
        let (known, problems) = KnownHosts::parse(&format!("g {ED}\n{line}\nlast {ED}\n"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("line 2: ") && problems[0].contains(says), "{problems:?}");
        for host in ["g", "last"] {
            assert_eq!(known.lookup(host, 22).verdict(&key(ED)), Verdict::Known, "{line}");
            assert!(known.lookup(host, 22).problems().is_empty());
        }
    }
    let (known, problems) = KnownHosts::parse(&format!("@cert-authority *.lab {ED}\n"));
    assert_eq!(known.lookup("a.lab", 22).problems(), problems);
    assert!(known.lookup("a.other", 22).problems().is_empty());
}

#[test]
fn a_host_that_is_listed_for_port_22_alone_is_told_so() {
    let (known, _) = KnownHosts::parse(&format!("h {ED}\n"));
    let found = known.lookup("H", 2222);
    assert_eq!((found.name(), found.only_without_port()), ("[h]:2222", true));
    assert!(!known.lookup("h", 22).only_without_port());
}

#[test]
fn the_types_that_are_known_are_asked_for_first_and_rsa_never_with_sha_1() {
    let first = |file: &str| KnownHosts::parse(file).0.lookup("h", 22).algorithms()[0].to_string();
    assert_eq!(first(""), "ssh-ed25519");
    assert_eq!(first(&format!("h {ECDSA}\n")), "ecdsa-sha2-nistp256");
    assert_eq!(first(&format!("h {ED}\n@revoked h {ED}\nh {ECDSA}\n")), "ecdsa-sha2-nistp256");
    let all: Vec<_> = KnownHosts::default().lookup("h", 22).algorithms().iter().map(ToString::to_string).collect();
    assert_eq!(all.len(), 6);
    assert!(!all.contains(&"ssh-rsa".to_owned()), "{all:?}");
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_stumble(text in "[ \t\n@!*?,|\\[\\]:a-z0-9=/+]{0,200}", host in "[a-z.:\\[\\]]{0,12}") {
        let (known, _) = KnownHosts::parse(&text);
        let found = known.lookup(&host, 22);
        proptest::prop_assert_ne!(found.verdict(&key(ED)), Verdict::Known);
    }
}
