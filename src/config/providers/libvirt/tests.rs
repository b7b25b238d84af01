use std::path::Path;

use super::*;
use crate::config::providers::{Entry, Loaded, parse};

const IMAGES: &str = "  images: {debian-13: {url: \"https://images.example.com/d.qcow2\", sha256: 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F}}\n";
const HOSTS: &str = "  hosts: [{name: a, address: 10.0.0.5}]\n";

fn parsed(text: &str) -> Result<Loaded, String> {
    parse(Path::new("p.yaml"), text.as_bytes()).map_err(|error| error.to_string())
}

/// An entry that can be reached; the fields begin in line 5.
fn entry(fields: &str) -> String {
    entry_of("vms", "kvm2", fields)
}

fn entry_of(name: &str, kind: &str, fields: &str) -> String {
    format!(
        "providers:\n- name: {name}\n  type: {kind}\n  ssh: {{user: op, keyFile: /k/id, knownHostsFile: /k/known}}\n{fields}"
    )
}

fn only(text: &str) -> LibvirtEntry {
    match parsed(text).unwrap_or_else(|error| panic!("{error}")).entries.as_slice() {
        [Entry::Libvirt(entry)] => (**entry).clone(),
        other => panic!("{other:?}"),
    }
}

fn warned(text: &str) -> Vec<String> {
    parsed(text).unwrap_or_else(|error| panic!("{error}")).warnings
}

#[test]
fn what_is_left_out_has_a_default() {
    let text = entry(&format!("{HOSTS}{IMAGES}"));
    let read = only(&text);
    assert_eq!((read.name.as_str(), read.flavor, read.virt_type), ("vms", Flavor::Kvm2, VirtType::Kvm));
    let [host] = read.hosts.as_slice() else { panic!("{:?}", read.hosts) };
    assert_eq!((host.name.as_str(), host.address.as_str(), host.port), ("a", "10.0.0.5", 22));
    assert_eq!((host.pool.as_str(), host.network.as_str()), ("default", "default"));
    assert_eq!((&host.socket, host.capacity), (&None, None));
    let image = &read.images["debian-13"];
    assert_eq!((image.format, image.firmware, image.proxy), (None, Firmware::Uefi, false));
    let every_byte: [u8; 32] = std::array::from_fn(|at| u8::try_from(at).expect("below 32"));
    assert_eq!(image.sha256, Some(every_byte));
    assert_eq!((read.install_guest_agent, read.vendor_data), (true, None));
    assert!(read.allow_image_urls.is_empty() && read.sizes.is_empty());
    let times = [read.address_timeout, read.image_idle_timeout, read.image_timeout];
    assert_eq!(times, [600, 60, 7200].map(Duration::from_secs));
    assert_eq!(warned(&text), Vec::<String>::new());
}

#[test]
fn every_field_is_read_as_written() {
    let text = entry_of(
        "shared",
        "kvm",
        r#"  virtType: qemu
  hosts:
    - {name: a, address: "KVM-1.example:2222", pool: fast, network: br-egress, socket: /run/libvirt/virtqemud-sock, capacity: 40}
    - {name: b, address: "[fd00:0::5]:22"}
  images:
    squid: {url: "http://10.0.0.1/squid.raw?v=2#here", sha256: "ABcd000000000000000000000000000000000000000000000000000000000000", format: raw, firmware: bios, proxy: true}
    d12: {url: "https://images.example.com/d12.img", sha256: "0000000000000000000000000000000000000000000000000000000000000000", format: qcow2, firmware: uefi}
  allowImageURLs: ["https://images.example.com/", "https://images.example.com/debian/"]
  sizes:
    small: {cpus: 1, memory: 512Mi, disk: 10G}
    large: {cpus: 256, memory: 1Gi, disk: 68719476736}
  installGuestAgent: false
  vendorData: |
    #cloud-config
    {}
  addressTimeout: 5m
  imageIdleTimeout: 30s
  imageTimeout: 1h30m
"#,
    );
    let read = only(&text);
    assert_eq!(
        (read.flavor, read.virt_type, parsed(&text).expect("valid").entries[0].kind()),
        (Flavor::Kvm, VirtType::Qemu, "kvm")
    );
    assert_eq!(read.ssh.user, "op");
    assert_eq!(
        (read.ssh.key_file.as_path(), read.ssh.known_hosts_file.as_path()),
        (Path::new("/k/id"), Path::new("/k/known"))
    );
    let a = &read.hosts[0];
    assert_eq!(
        (a.address.as_str(), a.port, a.pool.as_str(), a.network.as_str()),
        ("kvm-1.example", 2222, "fast", "br-egress")
    );
    assert_eq!((a.socket.as_deref(), a.capacity), (Some("/run/libvirt/virtqemud-sock"), Some(40)));
    assert_eq!((read.hosts[1].address.as_str(), read.hosts[1].port), ("fd00::5", 22));
    let squid = &read.images["squid"];
    assert_eq!((squid.format, squid.firmware, squid.proxy), (Some(ImageFormat::Raw), Firmware::Bios, true));
    assert_eq!(squid.url.as_str(), "http://10.0.0.1/squid.raw?v=2");
    assert_eq!(squid.sha256.expect("given")[..2], [0xab, 0xcd]);
    assert_eq!(read.images["d12"].format, Some(ImageFormat::Qcow2));
    let prefixes: Vec<&str> = read.allow_image_urls.iter().map(Url::as_str).collect();
    assert_eq!(prefixes, ["https://images.example.com/", "https://images.example.com/debian/"]);
    assert_eq!(read.sizes["small"], VmSize { cpus: 1, memory: 512 << 20, disk: 10_000_000_000 });
    assert_eq!(read.sizes["large"], VmSize { cpus: 256, memory: 1 << 30, disk: 64 << 30 });
    assert!(!read.install_guest_agent);
    assert_eq!(read.vendor_data.as_deref(), Some("#cloud-config\n{}\n"));
    let times = [read.address_timeout, read.image_idle_timeout, read.image_timeout];
    assert_eq!(times, [300, 30, 5400].map(Duration::from_secs));
    assert_eq!(warned(&text), Vec::<String>::new());
}

#[test]
fn an_address_of_a_host_is_a_name_or_an_ip_address_with_or_without_a_port() {
    let rows = [
        ("10.0.0.5", Some(("10.0.0.5", 22))),
        ("10.0.0.5:2222", Some(("10.0.0.5", 2222))),
        ("Beelink", Some(("beelink", 22))),
        ("kvm_1.example:22", Some(("kvm_1.example", 22))),
        ("fd00::5", Some(("fd00::5", 22))),
        ("[fd00::5]", Some(("fd00::5", 22))),
        ("[FD00::5]:23", Some(("fd00::5", 23))),
        ("", None),
        (":22", None),
        ("host:", None),
        ("host:0", None),
        ("host:+22", None),
        ("host:65536", None),
        ("host:22:22", None),
        ("10.0.0", None),
        ("10.0.0.256", None),
        ("op@host", None),
        ("ssh://host", None),
        ("host/a", None),
        ("a..b", None),
        ("-oProxyCommand", None),
        ("a b", None),
        ("[fd00::5]22", None),
        ("[host]:22", None),
        ("fe80::1%eth0", None),
    ];
    for (text, expected) in rows {
        let expected = expected.map(|(host, port): (&str, u16)| (host.to_owned(), port));
        assert_eq!(values::address(text), expected, "{text:?}");
    }
}

#[test]
fn amounts_are_whole_numbers_with_or_without_a_unit() {
    for (text, expected) in [
        ("1024", Some(1024)),
        ("64Ki", Some(64 << 10)),
        ("1k", Some(1000)),
        ("512Mi", Some(512 << 20)),
        ("512M", Some(512_000_000)),
        ("2Gi", Some(2 << 30)),
        ("1Ti", Some(1 << 40)),
        ("", None),
        ("Gi", None),
        ("1.5Gi", None),
        ("1 Gi", None),
        ("1GB", None),
        ("-1Gi", None),
        ("+1Gi", None),
        ("99999999Ti", None),
        ("99999999999999999999", None),
    ] {
        assert_eq!(values::bytes(text), expected, "{text:?}");
    }
}

#[test]
fn each_bad_field_is_refused_with_line_path_and_reason() {
    let fields = "name, type, ssh, hosts, virtType, images, allowImageURLs, sizes, installGuestAgent, vendorData, addressTimeout, imageIdleTimeout, imageTimeout";
    let key = "must match ^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$";
    let rows: Vec<(&str, String)> = vec![
        ("pool: default", format!("providers[0].pool: unknown field `pool`, expected one of {fields}")),
        ("virtType: xen", "providers[0].virtType: unknown variant `xen`, expected one of kvm, qemu".into()),
        ("sizes: {Big: {cpus: 1, memory: 1Gi, disk: 1Gi}}", format!("providers[0].sizes.Big: the key `Big` {key}")),
        ("sizes: {s: {cpus: 0, memory: 1Gi, disk: 1Gi}}", "providers[0].sizes.s.cpus: 0 is no number of CPUs; write 1 to 256".into()),
        ("sizes: {s: {cpus: 257, memory: 1Gi, disk: 1Gi}}", "providers[0].sizes.s.cpus: 257 is no number of CPUs; write 1 to 256".into()),
        ("sizes: {s: {cpus: 1, memory: 512, disk: 1Gi}}", "providers[0].sizes.s.memory: `512` is less than 64Mi; is the unit missing?".into()),
        ("sizes: {s: {cpus: 1, memory: 1Gi, disk: 10GB}}", "providers[0].sizes.s.disk: `10GB` is not an amount; write it like 512Mi, 1Gi, 10G or a number of bytes".into()),
        ("sizes: {s: {cpus: 1, memory: 1Gi}}", "providers[0].sizes.s: missing field `disk`".into()),
        ("allowImageURLs: [\"https://images.example.com\"]", "providers[0].allowImageURLs[0]: `https://images.example.com` does not end in `/`; write a folder, like https://images.example.com/debian/".into()),
        ("allowImageURLs: [\"https://a.example/?x=/\"]", "providers[0].allowImageURLs[0]: `https://a.example/?x=/` does not end in `/`; write a folder, like https://images.example.com/debian/".into()),
        ("allowImageURLs: [\"file:///srv/\"]", "providers[0].allowImageURLs[0]: not an http or https URL; write it like https://images.example.com/debian-13.qcow2".into()),
        ("vendorData: \"packages: [a]\"", "providers[0].vendorData: cloud-init would not know what it is; begin it with `#cloud-config`, `#!` or another header of cloud-init".into()),
        ("addressTimeout: 10", "providers[0].addressTimeout: `10`: not a duration; write it like 15s, 10m, 1h30m or 500ms".into()),
        ("imageIdleTimeout: 0s", "providers[0].imageIdleTimeout: `0s` is too short; write at least 1s".into()),
        ("imageTimeout: -1m", "providers[0].imageTimeout: `-1m`: a duration cannot be negative".into()),
        ("installGuestAgent: often", "providers[0].installGuestAgent: invalid boolean".into()),
    ];
    for (field, expected) in rows {
        let error = parsed(&entry(&format!("  {field}\n{HOSTS}{IMAGES}"))).expect_err(field);
        let told = error.strip_prefix("providers config p.yaml:5:").unwrap_or_else(|| panic!("line 5: {error}"));
        let told = told.split_once(": ").expect("a column").1;
        assert!(told.starts_with(&expected), "{field}: {told}");
    }
}

#[test]
fn each_bad_host_is_refused_with_its_place() {
    let socket = format!("socket: /{}", "a".repeat(107));
    let rows: Vec<(&str, &str)> = vec![
        ("", "providers[0].hosts: no host; write at least one, like {name: beelink, address: \"10.0.0.5:22\"}"),
        (
            "{name: A, address: h}",
            "providers[0].hosts[0].name: host `A` must match ^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$",
        ),
        ("{name: a}", "providers[0].hosts[0]: missing field `address`"),
        (
            "{name: a, address: op@h}",
            "providers[0].hosts[0].address: `op@h` is not the address of a host; write a name or an IP address, with or without a port: kvm-1.example, 10.0.0.5:22, [fd00::5]:22",
        ),
        ("{name: a, address: h, pool: a/b}", "providers[0].hosts[0].pool: `a/b` is not the name of a pool of libvirt"),
        (
            "{name: a, address: h, network: \"\"}",
            "providers[0].hosts[0].network: `` is not the name of a network of libvirt",
        ),
        (
            "{name: a, address: h, socket: libvirt-sock}",
            "providers[0].hosts[0].socket: `libvirt-sock` is not an absolute path of at most 107 bytes; write it like /run/libvirt/libvirt-sock",
        ),
        (
            "{name: a, address: h}, {name: a, address: g}",
            "providers[0].hosts[1].name: the name `a` is taken by another host of this entry; names are unique",
        ),
        (
            "{name: a, address: h, port: 22}",
            "providers[0].hosts[0].port: unknown field `port`, expected one of name, address, pool, network, socket, capacity",
        ),
    ];
    for (hosts, expected) in rows {
        let error = parsed(&entry(&format!("  hosts: [{hosts}]\n{IMAGES}"))).expect_err(hosts);
        assert!(error.ends_with(expected), "{hosts}: {error}");
    }
    let long = format!("  hosts: [{{name: a, address: h, {socket}}}]\n{IMAGES}");
    assert!(parsed(&entry(&long)).expect_err("too long").contains("of at most 107 bytes"));
    let none = parsed(&entry(IMAGES)).expect_err("no hosts");
    assert!(none.ends_with("providers[0]: missing field `hosts`"), "{none}");
}

#[test]
fn the_way_in_needs_a_user_and_two_absolute_paths() {
    for (ssh, expected) in [
        (
            "user: \"\", keyFile: /k, knownHostsFile: /h",
            "providers[0].ssh.user: the name of a user of the hosts is needed, without blanks; write it like operator",
        ),
        (
            "user: a b, keyFile: /k, knownHostsFile: /h",
            "providers[0].ssh.user: the name of a user of the hosts is needed, without blanks; write it like operator",
        ),
        (
            "user: op, keyFile: id_ed25519, knownHostsFile: /h",
            "providers[0].ssh.keyFile: `id_ed25519` is not an absolute path; write it like /etc/proxy-operator/kvm/id_ed25519",
        ),
        (
            "user: op, keyFile: /k, knownHostsFile: ~/.ssh/known_hosts",
            "providers[0].ssh.knownHostsFile: `~/.ssh/known_hosts` is not an absolute path; write it like /etc/proxy-operator/kvm/known_hosts",
        ),
        ("user: op, keyFile: /k", "providers[0].ssh: missing field `knownHostsFile`"),
        (
            "user: op, password: p, keyFile: /k, knownHostsFile: /h",
            "providers[0].ssh.password: unknown field `password`, expected one of user, keyFile, knownHostsFile",
        ),
    ] {
        let text = format!("providers:\n- name: a\n  type: kvm\n  ssh: {{{ssh}}}\n{HOSTS}{IMAGES}");
        let error = parsed(&text).expect_err(ssh);
        assert!(error.ends_with(expected), "{ssh}: {error}");
    }
}

#[test]
fn an_image_is_a_url_without_secrets_and_the_digest_of_its_file() {
    let rows = [
        (
            "{url: /srv/d.qcow2}",
            "providers[0].images.d.url: not an http or https URL; write it like https://images.example.com/debian-13.qcow2",
        ),
        (
            "{url: \"ftp://a.example/d\"}",
            "providers[0].images.d.url: not an http or https URL; write it like https://images.example.com/debian-13.qcow2",
        ),
        (
            "{url: \"https://me:hunter2@a.example/d\"}",
            "providers[0].images.d.url: a user or password in a URL would be shown; images are fetched without, so put it where none is needed",
        ),
        (
            "{url: \"https://a.example/d\", sha256: abc}",
            "providers[0].images.d.sha256: `abc` is not a SHA-256; write the 64 hex digits that sha256sum prints",
        ),
        (
            "{url: \"https://a.example/d\", format: vmdk}",
            "providers[0].images.d.format: unknown variant `vmdk`, expected one of qcow2, raw",
        ),
        (
            "{url: \"https://a.example/d\", firmware: efi}",
            "providers[0].images.d.firmware: unknown variant `efi`, expected one of uefi, bios",
        ),
    ];
    for (image, expected) in rows {
        let error = parsed(&entry(&format!("{HOSTS}  images: {{d: {image}}}\n"))).expect_err(image);
        assert!(error.ends_with(expected), "{image}: {error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    let none = parsed(&entry(HOSTS)).expect_err("no image");
    assert!(
        none.starts_with("providers config p.yaml:2:9: providers[0].images: no image that a machine could be made of"),
        "{none}"
    );
    let own = only(&entry(&format!("{HOSTS}  allowImageURLs: [\"https://a.example/\"]\n")));
    assert!(own.images.is_empty());
}

#[test]
fn vendor_data_is_what_cloud_init_knows_and_short() {
    let with = |text: &str| parsed(&entry(&format!("{HOSTS}{IMAGES}  vendorData: {text:?}\n")));
    for good in [
        "",
        "#cloud-config\n{}\n",
        "#!/bin/sh\ntrue\n",
        "#include\nhttps://a.example/\n",
        "## template: jinja\n#cloud-config\n",
        "Content-Type: multipart/mixed\n",
    ] {
        assert!(with(good).is_ok(), "{good:?}");
    }
    for bad in ["packages: []", " #cloud-config\n", "\n#!/bin/sh\n"] {
        assert!(with(bad).is_err_and(|error| error.contains("cloud-init would not know what it is")), "{bad:?}");
    }
    assert!(with(&format!("#!{}", "a".repeat(16_382))).is_ok());
    let long = with(&format!("#!{}", "a".repeat(16_383))).expect_err("too long");
    assert!(long.contains("longer than 16 KiB"), "{long}");
}

#[test]
fn what_is_risky_is_allowed_with_a_warning() {
    let hash = "sha256: 0000000000000000000000000000000000000000000000000000000000000000";
    let images = format!(
        "  images: {{a: {{url: \"http://i.example/a\"}}, b: {{url: \"https://i.example/b\"}}, c: {{url: \"https://i.example/c\"}}, d: {{url: \"http://i.example/d\", {hash}}}}}\n"
    );
    assert_eq!(
        warned(&entry(&format!("{HOSTS}{images}"))),
        [
            "provider `vms`: images `a` come over http and without sha256: whoever is on the way can replace them",
            "provider `vms`: images `b`, `c` have no sha256: what their source gives at the first use is what stays",
        ]
    );
    let twice = "  hosts: [{name: a, address: h}, {name: b, address: \"H:22\"}, {name: c, address: h, pool: fast}]\n";
    assert_eq!(
        warned(&entry(&format!("{twice}{IMAGES}"))),
        ["provider `vms`: hosts `a` and `b` are the same pool `default` of h:22; one of them is enough"]
    );
    let plain = format!("{HOSTS}{IMAGES}  allowImageURLs: [\"http://i.example/\"]\n");
    assert_eq!(
        warned(&entry(&plain)),
        [
            "provider `vms`: allowImageURLs http://i.example/ is plain http: whoever is on the way can replace what a Proxy asks for"
        ]
    );
}

#[test]
fn entries_that_keep_different_images_under_one_name_in_one_pool_are_told() {
    let hash = |digit: &str| digit.repeat(64);
    let two = |a: (&str, &str, &str), b: (&str, &str, &str), address: &str| {
        let one = |(name, kind, images): (&str, &str, &str), address: &str| {
            entry_of(name, kind, &format!("  hosts: [{{name: h, address: \"{address}\"}}]\n  images: {{{images}}}\n"))
        };
        let second = one(b, address).replace("providers:\n", "");
        warned(&format!("{}{second}", one(a, "[fd00::5]:22")))
    };
    let image =
        |key: &str, digit: &str| format!("{key}: {{url: \"https://i.example/d\", sha256: \"{}\"}}", hash(digit));
    let (zero, one) = (image("d", "0"), image("d", "1"));
    let told = |name: &str| {
        vec![format!(
            "providers `a` and `b` keep different images as `base-{name}` in the pool `default` of [fd00::5]:22; give one of them another key"
        )]
    };
    assert_eq!(two(("a", "kvm", &zero), ("b", "kvm", &one), "fd00::5"), told("d"));
    assert_eq!(two(("a", "kvm", &zero), ("b", "kvm", &zero), "fd00::5"), Vec::<String>::new());
    assert_eq!(two(("a", "kvm", &zero), ("b", "kvm", &one), "fd00::6"), Vec::<String>::new());
    assert_eq!(two(("a", "kvm2", &zero), ("b", "kvm2", &one), "fd00::5"), Vec::<String>::new());
    // Names that only look like an entry's own.
    assert_eq!(two(("a", "kvm", &image("b-d", "0")), ("b", "kvm2", &one), "fd00::5"), told("b-d"));
    let apart = |format: &str, digit: &str| {
        format!("d: {{url: \"https://i.example/d\", sha256: \"{}\", format: {format}}}", hash(digit))
    };
    assert_eq!(
        two(("a", "kvm", &apart("raw", "0")), ("b", "kvm", &apart("qcow2", "1")), "fd00::5"),
        Vec::<String>::new()
    );
}

#[test]
fn a_revision_changes_with_the_meaning_only() {
    let revision = |text: &str| parsed(text).unwrap_or_else(|error| panic!("{error}")).entries[0].revision();
    let fields = "  allowImageURLs: [\"https://a.example/\", \"https://b.example/\"]\n";
    let base = revision(&entry(&format!("{HOSTS}{IMAGES}{fields}")));
    let same = "  allowImageURLs: [\"https://b.example/\", \"https://a.example/\", \"https://a.example/\"]\n  addressTimeout: 600s\n  virtType: kvm\n";
    assert_eq!(revision(&entry(&format!("{IMAGES}{HOSTS}{same}"))), base);
    for other in [
        "  virtType: qemu\n",
        "  installGuestAgent: false\n",
        "  vendorData: \"#!/bin/true\"\n",
        "  addressTimeout: 11m\n",
    ] {
        assert_ne!(revision(&entry(&format!("{HOSTS}{IMAGES}{fields}{other}"))), base, "{other}");
    }
    assert_ne!(revision(&entry_of("vms", "kvm", &format!("{HOSTS}{IMAGES}{fields}"))), base);
}
