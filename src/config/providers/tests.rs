use super::*;

fn parsed(text: &str) -> Result<Loaded, String> {
    parse(Path::new("p.yaml"), text.as_bytes()).map_err(|error| error.to_string())
}

/// An entry of type `process` with these fields beside name and type, from line 2 on.
fn entry(fields: &str) -> String {
    format!("providers:\n- name: a\n  type: process\n{fields}")
}

fn only(text: &str) -> ProcessEntry {
    match parsed(text).expect("valid").entries.as_slice() {
        [Entry::Process(entry)] => entry.clone(),
        other => panic!("{other:?}"),
    }
}

const PORTS: &str = "  ports: 31280-31290\n";
const NO_PROVIDERS: &str =
    "providers: no `providers`; write `providers:` and a list of entries below it (`providers: []` for none)";
const FORM: &str =
    "write an address or CIDR, with or without a port: 127.0.0.1, 127.0.0.1:8092, 10.1.0.0/16, fd00::/8, [::1]:80";
const LIST: &str = "expected a list (`[..]`, or lines that start with `- `)";

#[test]
fn each_bad_file_is_refused_with_line_path_and_reason() {
    let allow = |item: &str| entry(&format!("{PORTS}  allowDestinations: [127.0.0.1, \"{item}\"]\n"));
    let ports = |range: &str| entry(&format!("  ports: {range}\n"));
    let rows: Vec<(String, String)> = vec![
        // The file as a whole.
        (String::new(), format!("1:1: {NO_PROVIDERS}")),
        ("# nothing\n".into(), format!("2:1: {NO_PROVIDERS}")),
        ("provider: []\n".into(), format!("1:1: {NO_PROVIDERS}")),
        ("providers:\n".into(), format!("1:1: {NO_PROVIDERS}")),
        ("---\n".into(), "1:4: yaml: expected fields (`name: value`)".into()),
        ("- name: a\n".into(), "1:1: yaml: expected fields (`name: value`)".into()),
        ("providers: {}\n".into(), format!("1:12: providers: {LIST}")),
        ("providers: 5\n".into(), format!("1:12: providers: {LIST}")),
        ("providers:\n- words\n".into(), "2:3: providers[0]: expected fields (`name: value`)".into()),
        ("providers: []\nextra: 1\n".into(), "2:1: yaml: unknown field `extra`, expected one of providers".into()),
        ("providers: []\n---\n{}\n".into(), "3:1: yaml: only single YAML document expected but multiple found".into()),
        ("providers: *x\n".into(), "1:12: yaml: reference to unknown value".into()),
        ("providers:\n- {name: a,\n".into(), "2:3: providers: unclosed bracket '{'".into()),
        ("providers:\n- name: a\n\t type: b\n".into(), "2:9: providers[0]: while scanning a plain scalar, found a tab".into()),
        // Fields.
        (entry(&format!("{PORTS}  port: 4\n")), "5:3: providers[0].port: unknown field `port`, expected one of name, type, binary, listen, ports, allowDestinations, auth".into()),
        (entry(&format!("{PORTS}{PORTS}")), "5:3: providers[0]: duplicate mapping key `ports` is not allowed here".into()),
        (entry(""), "3:3: providers[0]: missing field `ports`".into()),
        (format!("providers:\n- name: a\n{PORTS}"), "3:3: providers[0]: missing field `type`".into()),
        (format!("providers:\n- type: process\n{PORTS}"), "3:3: providers[0]: missing field `name`".into()),
        // Names.
        ("providers:\n- name: A\n  type: process\n  ports: 3128\n".into(), "2:9: providers[0].name: provider `A` must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`".into()),
        ("providers:\n- name: ../etc\n  type: process\n  ports: 3128\n".into(), "2:9: providers[0].name: provider `../etc` must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`".into()),
        ("providers:\n- name: a..b\n  type: process\n  ports: 3128\n".into(), "2:9: providers[0].name: provider `a..b` must be at most 63 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends and on both sides of each `.`".into()),
        (format!("{}\n- {{name: a, type: process, ports: 3128}}\n", entry(PORTS)), "6:10: providers[1].name: the name `a` is taken by the entry in line 2; names are unique".into()),
        // Types.
        ("providers:\n- name: a\n  type: gcp\n  project: p\n".into(), "3:9: providers[0].type: type `gcp` is not available in this version; this version has `process`, `kubernetes`, `kvm` and `kvm2`".into()),
        ("providers:\n- {type: proxmox}\n".into(), "2:10: providers[0].type: type `proxmox` is not available in this version; this version has `process`, `kubernetes`, `kvm` and `kvm2`".into()),
        ("providers:\n- {name: a, type: squid}\n".into(), "2:19: providers[0].type: unknown type `squid`; the types are process, kubernetes, kvm and kvm2 (known, but not in this version: gcp, proxmox)".into()),
        // Ports.
        (ports("[1]"), "4:10: providers[0].ports: expected a single value, not a list and not fields".into()),
        (ports("~"), "4:10: providers[0].ports: null is not allowed here".into()),
        (ports("31290-31280"), "4:10: providers[0].ports: `31290-31280` ends before it starts; write 31280-31290".into()),
        (ports("80-90"), "4:10: providers[0].ports: `80-90` has ports below 1024, which only root may use; choose higher ones".into()),
        (ports("31280-"), "4:10: providers[0].ports: `31280-` is not a range of ports up to 65535; write a range like 31280-31379, or one port".into()),
        (ports("65000-70000"), "4:10: providers[0].ports: `65000-70000` is not a range of ports up to 65535; write a range like 31280-31379, or one port".into()),
        (ports("+3128"), "4:10: providers[0].ports: `+3128` is not a range of ports up to 65535; write a range like 31280-31379, or one port".into()),
        // The rest of a process entry.
        (entry(&format!("{PORTS}  binary: squid\n")), "5:11: providers[0].binary: `squid` is not an absolute path; write it like /usr/sbin/squid".into()),
        (entry(&format!("{PORTS}  listen: localhost\n")), "5:11: providers[0].listen: `localhost` is not an IP address; write it like 127.0.0.1".into()),
        (entry(&format!("{PORTS}  listen: 0.0.0.0\n")), "5:11: providers[0].listen: `0.0.0.0` is no address that a client could connect to; write one of this machine".into()),
        (entry(&format!("{PORTS}  auth: basic\n")), "5:9: providers[0].auth: `basic` is neither `none` nor `generated`".into()),
        // Destinations.
        (entry(&format!("{PORTS}  allowDestinations: 127.0.0.1\n")), format!("5:22: providers[0].allowDestinations: {LIST}")),
        (allow("shop.example:80"), format!("5:34: providers[0].allowDestinations[1]: `shop.example:80` is not a destination (names are not looked up); {FORM}")),
        (allow("[::1"), format!("5:34: providers[0].allowDestinations[1]: `[::1` is not a destination; {FORM}")),
        (allow("[::1]80"), format!("5:34: providers[0].allowDestinations[1]: `[::1]80` is not a destination; {FORM}")),
        (allow("10.0.0.0/33"), format!("5:34: providers[0].allowDestinations[1]: `10.0.0.0/33` is not a destination (names are not looked up); {FORM}")),
        (allow("10.0.0.1:0"), "5:34: providers[0].allowDestinations[1]: `10.0.0.1:0` has no port from 1 to 65535 behind its last `:`".into()),
        (allow("10.0.0.1:"), "5:34: providers[0].allowDestinations[1]: `10.0.0.1:` has no port from 1 to 65535 behind its last `:`".into()),
        (allow("10.0.0.1:+80"), "5:34: providers[0].allowDestinations[1]: `10.0.0.1:+80` has no port from 1 to 65535 behind its last `:`".into()),
        (allow("10.0.0.5/8"), "5:34: providers[0].allowDestinations[1]: `10.0.0.5/8` has bits set behind its prefix; write 10.0.0.0/8".into()),
        (allow("::ffff:10.0.0.1"), "5:34: providers[0].allowDestinations[1]: `::ffff:10.0.0.1` is an IPv4 address in IPv6 clothes; write 10.0.0.1".into()),
    ];
    for (text, expected) in rows {
        assert_eq!(parsed(&text), Err(format!("providers config p.yaml:{expected}")), "{text}");
    }
}

#[test]
fn a_file_that_is_no_text_and_one_without_end_are_refused() {
    let error = parse(Path::new("p.yaml"), b"providers: []\n# \xff").expect_err("not UTF-8");
    assert_eq!(error.to_string(), "providers config p.yaml: is not UTF-8 text");
    let error = parse(Path::new("p.yaml"), b"providers: [{name: \"a\0b\"}]").expect_err("a NUL");
    assert!(error.to_string().starts_with("providers config p.yaml:1:"), "{error}");
    let error = load(Path::new("/dev/zero")).expect_err("endless");
    assert_eq!(error.to_string(), "providers config /dev/zero: is larger than 1 MiB");
    let error = load(Path::new("/nowhere/p.yaml")).expect_err("absent");
    assert_eq!(
        error.to_string(),
        "providers config /nowhere/p.yaml: cannot be read (No such file or directory (os error 2)); correct --providers-config, or make the file: \
         `providers: []` will do where all Proxies are external, and config/samples has examples of entries"
    );
}

#[test]
fn the_sample_of_the_contract_is_read_as_written() {
    let text = r#"
providers:
  - {name: local, type: process, binary: /usr/sbin/squid, listen: 127.0.0.1, ports: 31280-31379, allowDestinations: ["127.0.0.1:8092"], auth: generated}
"#;
    let entry = only(text);
    assert_eq!(entry.name.as_str(), "local");
    assert_eq!(entry.ports, 31280..=31379);
    assert_eq!(entry.allow_destinations, ["127.0.0.1:8092".parse().expect("valid")]);
    assert_eq!(entry.auth, Auth::Generated);
    assert_eq!(parsed(text).expect("valid").warnings, Vec::<String>::new());
}

#[test]
fn what_is_left_out_has_a_safe_default() {
    let entry = only(&entry("  ports: 31280\n"));
    assert_eq!(entry.binary, Path::new("/usr/sbin/squid"));
    assert_eq!(entry.listen, IpAddr::from([127, 0, 0, 1]));
    assert_eq!(entry.ports, 31280..=31280);
    assert_eq!(entry.auth, Auth::Generated);
    assert!(entry.allow_destinations.is_empty());
    assert_eq!(parsed("providers: []\n"), Ok(Loaded { entries: vec![], warnings: vec![] }));
}

#[test]
fn destinations_are_addresses_or_networks_with_or_without_a_port() {
    let rows = [
        ("127.0.0.1", "127.0.0.1/32", None),
        ("127.0.0.1:8092", "127.0.0.1/32", Some(8092)),
        ("10.1.0.0/16", "10.1.0.0/16", None),
        ("10.1.0.0/16:443", "10.1.0.0/16", Some(443)),
        ("::1", "::1/128", None),
        ("[::1]", "::1/128", None),
        ("[::1]:80", "::1/128", Some(80)),
        ("fd00::/8", "fd00::/8", None),
        ("fd00::/8:443", "fd00::/8", Some(443)),
        ("[fd00::/8]:443", "fd00::/8", Some(443)),
    ];
    for (text, net, port) in rows {
        let read: AllowedDestination = text.parse().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((read.net.to_string().as_str(), read.port), (net, port), "{text}");
        assert_eq!(read.to_string().parse(), Ok(read), "{text} does not survive being written as {read}");
    }
}

#[test]
fn what_is_risky_is_allowed_with_a_warning() {
    let warned = |fields: &str| parsed(&entry(fields)).expect("valid").warnings;
    let rows = [
        (
            "  ports: 32000-33000\n",
            "provider `a`: ports 32000-33000 lie in the range for outgoing connections (32768-60999), which may take them; choose ports below 32768",
        ),
        (
            "  ports: 3128\n  auth: none\n  listen: 10.0.0.1\n",
            "provider `a`: with auth none on 10.0.0.1 whoever reaches that address can use its proxies, leased or not",
        ),
        (
            "  ports: 3128\n  allowDestinations: [0.0.0.0/0]\n",
            "provider `a`: allowDestinations 0.0.0.0/0 lets every client into private networks and this machine",
        ),
    ];
    for (fields, warning) in rows {
        assert_eq!(warned(fields), [warning]);
    }
    let two = format!("{}- {{name: b, type: process, ports: 31290-31300}}\n", entry(PORTS));
    assert_eq!(
        parsed(&two).expect("valid").warnings,
        ["providers `a` and `b` share ports on 127.0.0.1; give each a range of its own"]
    );
    let apart = format!("{}- {{name: b, type: process, ports: 31291-31300}}\n", entry(PORTS));
    assert_eq!(parsed(&apart).expect("valid").warnings, Vec::<String>::new());
}

#[test]
fn a_revision_changes_with_the_meaning_only() {
    let revision = |text: &str| parsed(text).expect("valid").entries[0].revision();
    let base = revision(&entry("  ports: 31280-31290\n  allowDestinations: [10.0.0.1, 10.0.0.2]\n"));
    for same in [
        "  # a comment\n  allowDestinations: [10.0.0.2, 10.0.0.1, 10.0.0.1]\n  ports: \"31280-31290\"\n",
        "  ports: 31280-31290\n  allowDestinations: [10.0.0.1/32, 10.0.0.2]\n  auth: generated\n",
    ] {
        assert_eq!(revision(&entry(same)), base, "{same}");
    }
    for other in [
        "  ports: 31280-31291\n  allowDestinations: [10.0.0.1, 10.0.0.2]\n",
        "  ports: 31280-31290\n  allowDestinations: [10.0.0.1, 10.0.0.2:80]\n",
        "  ports: 31280-31290\n  allowDestinations: [10.0.0.1, 10.0.0.2]\n  auth: none\n",
        "  ports: 31280-31290\n  allowDestinations: [10.0.0.1, 10.0.0.2]\n  listen: 127.0.0.2\n",
        "  ports: 31280-31290\n  allowDestinations: [10.0.0.1, 10.0.0.2]\n  binary: /opt/squid\n",
    ] {
        assert_ne!(revision(&entry(other)), base, "{other}");
    }
}

#[test]
fn every_sample_loads_without_a_warning() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/samples");
    let mut seen = 0;
    for file in std::fs::read_dir(&samples).expect("config/samples is there") {
        let path = file.expect("listed").path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.starts_with("providers") && path.extension().is_some_and(|e| e == "yaml") {
            let loaded = load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(loaded.warnings, Vec::<String>::new(), "{name}");
            assert!(!loaded.entries.is_empty(), "{name} shows nothing");
            seen += 1;
        }
    }
    assert!(seen > 0, "no samples in {}", samples.display());
}
