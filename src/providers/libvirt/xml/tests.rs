use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use egress_actors::domain::id::{HostName, OperatorId, ProviderName, ProxyKey, Uid};
use egress_actors::domain::instance::OwnerMark;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::config::providers::{Firmware, ImageFormat, VirtType};
use crate::providers::libvirt::addresses::Mac;
use crate::providers::libvirt::metadata::Mark;

const ID: Uuid = Uuid::from_u128(0x0b9f_6a2e_6b1f_4a8e_9d3c_1a2b_3c4d_5e6f);

fn mark() -> Mark {
    Mark {
        owner: OwnerMark {
            operator: OperatorId::parse("5d2f/egress/<&'operator>").expect("valid"),
            entry: ProviderName::parse("kvm2-home").expect("valid"),
            key: ProxyKey::new("crawl", "px-1").expect("valid"),
            uid: Uid::parse("uid-1").expect("valid"),
        },
        incarnation: "k3j9".to_owned(),
        created_at: UNIX_EPOCH + Duration::from_secs(1_796_274_000),
        port: 3128,
        host: HostName::parse("beelink").expect("valid"),
        pool: "default".to_owned(),
    }
}

fn spec(mark: &Mark) -> DomainSpec<'_> {
    DomainSpec {
        name: "px-crawl-px-1-000000000000",
        uuid: ID,
        mark,
        virt_type: VirtType::Kvm,
        firmware: Firmware::Uefi,
        cpus: 2,
        memory_bytes: 512 * 1024 * 1024,
        disk_path: "/var/lib/libvirt/images/a & <b>.qcow2",
        seed_path: "/var/lib/libvirt/images/it's-\"seed\".iso",
        network: "default",
        mac: Mac([0x52, 0x54, 0, 0xab, 0xcd, 0xef]),
    }
}

/// libvirt's own schemas (packages libvirt-clients and libxml2-utils); without them a line says so.
fn validate(xml: &str, schema: &str) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(xml.as_bytes()).expect("written");
    match Command::new("virt-xml-validate").arg(file.path()).arg(schema).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            if said.contains("xmllint: not found") {
                return println!("not checked: virt-xml-validate: no xmllint");
            }
            assert!(output.status.success(), "{said}\n{xml}");
        }
        Err(error) => println!("not checked: virt-xml-validate: {error}"),
    }
}

#[test]
fn every_kind_of_domain_is_one_that_libvirt_takes() {
    let mark = mark();
    for virt_type in [VirtType::Kvm, VirtType::Qemu] {
        for firmware in [Firmware::Uefi, Firmware::Bios] {
            let xml = domain(&DomainSpec { virt_type, firmware, ..spec(&mark) }).expect("written");
            validate(&xml, "domain");
        }
    }
}

#[test]
fn a_domain_reads_back_as_it_was_written() {
    let mark = mark();
    let spec = spec(&mark);
    let facts = domain_facts(&domain(&spec).expect("written")).expect("read");
    let expected = DomainFacts {
        name: spec.name.to_owned(),
        uuid: ID,
        interfaces: vec![Interface { mac: spec.mac, network: Some("default".to_owned()) }],
        disks: vec![spec.disk_path.to_owned(), spec.seed_path.to_owned()],
        nvram: None,
        mark: Ok(Some(mark.clone())),
    };
    assert_eq!(facts, expected);
}

#[test]
fn a_domain_has_what_the_faults_taught_us() {
    let mark = mark();
    let kvm = domain(&spec(&mark)).expect("written");
    let root = Element::parse("domain", &kvm).expect("read");
    let at = |path: &[&str], key: &str| root.at(path).and_then(|element| element.attribute(key)).map(str::to_owned);
    let is =
        |path: &[&str], key: &str, value: &str| assert_eq!(at(path, key).as_deref(), Some(value), "{path:?} {kvm}");
    is(&["os"], "firmware", "efi");
    is(&["os", "firmware", "feature"], "name", "secure-boot");
    is(&["os", "firmware", "feature"], "enabled", "no");
    is(&["os", "type"], "machine", "q35");
    is(&["cpu"], "mode", "host-passthrough");
    is(&["cpu"], "check", "none");
    is(&["clock"], "offset", "utc");
    is(&["devices", "channel", "target"], "name", "org.qemu.guest_agent.0");
    is(&["devices", "controller"], "model", "virtio-scsi");
    is(&["devices", "interface", "mac"], "address", "52:54:00:ab:cd:ef");
    assert_eq!(root.child("memory").map(|memory| memory.text.as_str()), Some("524288"));
    for (end, what) in [("on_poweroff", "destroy"), ("on_reboot", "restart"), ("on_crash", "destroy")] {
        assert_eq!(root.child(end).map(|end| end.text.as_str()), Some(what));
    }
    let devices = root.child("devices").expect("devices");
    assert!(devices.child("graphics").is_none() && devices.child("video").is_none(), "no port is opened on the host");
    let disks: Vec<_> = devices.all("disk").collect();
    assert!(disks.iter().all(|disk| disk.attribute("type") == Some("file")), "AppArmor knows files only");
    assert!(disks[1].child("readonly").is_some());
    assert_eq!(disks[1].at(&["target"]).and_then(|target| target.attribute("bus")), Some("scsi"));
    assert!(root.at(&["features", "tcg"]).is_none());
}

#[test]
fn an_emulated_domain_bounds_its_cache_and_takes_the_default_cpu() {
    let mark = mark();
    let xml =
        domain(&DomainSpec { virt_type: VirtType::Qemu, firmware: Firmware::Bios, ..spec(&mark) }).expect("written");
    let root = Element::parse("domain", &xml).expect("read");
    assert_eq!(root.attribute("type"), Some("qemu"));
    let cache = root.at(&["features", "tcg", "tb-cache"]).expect("a bound");
    assert_eq!((cache.text.as_str(), cache.attribute("unit")), ("128", Some("MiB")));
    assert!(root.child("cpu").is_none());
    let os = root.child("os").expect("os");
    assert!(os.attribute("firmware").is_none() && os.child("firmware").is_none(), "BIOS");
}

#[test]
fn texts_that_xml_cannot_hold_are_errors_and_no_panics() {
    let mark = mark();
    for bad in ["a\0b", "a\nb", "\u{7}", "\u{7f}", "\u{fffe}"] {
        let forbidden = |what: &str| Err(XmlError::Forbidden { what: what.to_owned() });
        assert_eq!(domain(&DomainSpec { name: bad, ..spec(&mark) }), forbidden("name"));
        assert_eq!(domain(&DomainSpec { disk_path: bad, ..spec(&mark) }), forbidden("file"));
        assert_eq!(domain(&DomainSpec { network: bad, ..spec(&mark) }), forbidden("network"));
        assert_eq!(overlay_volume("a", 1, bad, ImageFormat::Raw), forbidden("path"));
        assert_eq!(volume(bad, ImageFormat::Raw, 1, 0), forbidden("name"));
    }
}

#[test]
fn an_overlay_names_the_format_of_its_base() {
    let xml = overlay_volume("a&b.qcow2", 4096, "/pool/base-<x>.raw", ImageFormat::Raw).expect("written");
    validate(&xml, "storagevol");
    let root = Element::parse("volume", &xml).expect("read");
    assert_eq!(root.at(&["backingStore", "format"]).and_then(|format| format.attribute("type")), Some("raw"));
    assert_eq!(root.at(&["backingStore", "path"]).map(|path| path.text.as_str()), Some("/pool/base-<x>.raw"));
    assert_eq!(root.at(&["target", "format"]).and_then(|format| format.attribute("type")), Some("qcow2"));
    assert_eq!(root.at(&["target", "compat"]).map(|compat| compat.text.as_str()), Some("1.1"));
    assert_eq!(root.child("capacity").map(|capacity| capacity.text.as_str()), Some("4096"));
}

#[test]
fn a_volume_has_the_size_that_is_asked_for() {
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        let xml = volume("a-seed.iso", format, u64::MAX, 7).expect("written");
        validate(&xml, "storagevol");
        let root = Element::parse("volume", &xml).expect("read");
        assert_eq!(root.child("capacity").map(|size| size.text.as_str()), Some("18446744073709551615"));
        assert_eq!(root.child("allocation").map(|size| size.text.as_str()), Some("7"));
        assert_eq!(root.at(&["target", "compat"]).is_some(), format == ImageFormat::Qcow2);
    }
}

const VOLUME: &str = "<?xml version='1.0'?>
<volume type='file'>
  <name>a &amp; b.qcow2</name>
  <key>/pool/a &amp; b.qcow2</key>
  <capacity unit='bytes'>4294967296</capacity>
  <allocation unit='bytes'>200704</allocation>
  <physical unit='bytes'>196 </physical>
  <target>
    <path>/pool/a &#38; b.qcow2</path>
    <format type='qcow2'/>
    <permissions><mode>0600</mode><owner>0</owner></permissions>
    <timestamps><atime>1.5</atime></timestamps>
    <compat>1.1</compat><features/>
  </target>
  <backingStore><path>/pool/base.qcow2</path><format type='qcow2'/><unknown/></backingStore>
</volume>";

#[test]
fn a_volume_is_read_with_what_it_lies_over() {
    let expected = VolumeInfo {
        name: "a & b.qcow2".to_owned(),
        path: "/pool/a & b.qcow2".to_owned(),
        format: Some("qcow2".to_owned()),
        capacity: 4_294_967_296,
        allocation: 200_704,
        physical: Some(196),
        backing: Some(Backing { path: "/pool/base.qcow2".to_owned(), format: Some("qcow2".to_owned()) }),
    };
    assert_eq!(volume_info(VOLUME), Ok(expected));
    let other = VOLUME.replace("200704", "2").replace("<allocation unit='bytes'", "<allocation unit='KiB'");
    assert_eq!(volume_info(&other).map(|info| info.allocation), Ok(2048));
    for none in ["<backingStore/>", "<backingStore><path></path></backingStore>", ""] {
        let start = VOLUME.find("<backingStore>").expect("there");
        let text = [&VOLUME[..start], none, "</volume>"].concat();
        assert_eq!(volume_info(&text).map(|info| info.backing), Ok(None), "{none}");
    }
}

#[test]
fn what_is_missing_in_a_volume_is_named() {
    for (from, what) in [
        ("<name>a &amp; b.qcow2</name>", "name"),
        ("<path>/pool/a &#38; b.qcow2</path>", "target/path"),
        ("<capacity unit='bytes'>4294967296</capacity>", "capacity"),
        ("<allocation unit='bytes'>200704</allocation>", "allocation"),
    ] {
        let error = volume_info(&VOLUME.replace(from, "")).expect_err(what);
        assert_eq!(error, XmlError::Missing { document: "volume", what });
        assert_eq!(error.to_string(), ["the XML of the volume has no `", what, "`"].concat());
    }
    for bad in ["-1", "1.5", "", "x", "99999999999999999999"] {
        let error = volume_info(&VOLUME.replace("4294967296", bad)).expect_err(bad);
        assert!(matches!(error, XmlError::Invalid { what: "capacity", .. }), "{error}");
    }
    let huge = VOLUME.replace("unit='bytes'>4294967296", "unit='TiB'>4294967296");
    assert!(volume_info(&huge).is_err(), "it does not fit 64 bits");
}

#[test]
fn a_pools_path_is_read_or_missed_by_name() {
    let pool = "<pool type='dir'><name>default</name><source></source><target><path>/var/lib/libvirt/images</path></target></pool>";
    assert_eq!(pool_target_path(pool).as_deref(), Ok("/var/lib/libvirt/images"));
    let error = pool_target_path("<pool type='rbd'><name>r</name></pool>").expect_err("no path");
    assert_eq!(error.to_string(), "the XML of the pool has no `target/path`");
    assert!(matches!(pool_target_path("<volume/>"), Err(XmlError::Invalid { what: "root element", .. })));
}

/// Cut down from what libvirt 9.0 says of a machine that runs.
const RUNNING: &str = "<domain type='qemu' id='2' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>foreign</name>
  <uuid>0b9f6a2e-6b1f-4a8e-9d3c-1a2b3c4d5e6f</uuid>
  <metadata><x:info xmlns:x='https://example.com/x'><x:proxy/></x:info></metadata>
  <os firmware='efi'><type arch='x86_64' machine='pc-q35-7.2'>hvm</type>
    <loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE_4M.fd</loader>
    <nvram template='/usr/share/OVMF/OVMF_VARS_4M.fd'>/var/lib/libvirt/qemu/nvram/foreign_VARS.fd</nvram></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'><source file='/pool/a.qcow2' index='2'/>
      <backingStore type='file' index='3'><format type='qcow2'/><source file='/pool/base.qcow2'/><backingStore/></backingStore></disk>
    <disk type='file' device='cdrom'><target dev='sda' bus='scsi'/></disk>
    <disk type='block' device='disk'><source dev='/dev/vg/a'/></disk>
    <disk type='volume' device='disk'><source pool='p' volume='v'/></disk>
    <interface type='network'><mac address='52:54:00:00:00:01'/><source network='default' portid='x' bridge='virbr0'/></interface>
    <interface type='bridge'><mac address='52:54:00:00:00:02'/><source bridge='br0'/></interface>
    <interface type='user'/>
    <hostdev/><unknown><name>not this one</name></unknown>
  </devices>
  <qemu:commandline><qemu:arg value='-x'/></qemu:commandline>
</domain>";

#[test]
fn a_foreign_domain_is_read_past_all_that_is_unknown() {
    let facts = domain_facts(RUNNING).expect("read");
    assert_eq!((facts.name.as_str(), facts.uuid), ("foreign", ID));
    assert_eq!(facts.disks, ["/pool/a.qcow2", "/dev/vg/a"]);
    assert_eq!(facts.nvram.as_deref(), Some("/var/lib/libvirt/qemu/nvram/foreign_VARS.fd"));
    let networks: Vec<_> = facts.interfaces.iter().map(|interface| interface.network.as_deref()).collect();
    assert_eq!(networks, [Some("default"), None]);
    assert_eq!(facts.mark, Ok(None));
}

#[test]
fn a_mark_that_cannot_be_read_leaves_the_other_facts_readable() {
    let facts = domain_facts(&RUNNING.replace("<metadata>", "<metadata><proxy uid='1'/>")).expect("read");
    assert!(facts.mark.is_err());
    assert_eq!(facts.disks.len(), 2);
}

#[test]
fn what_is_missing_in_a_domain_is_named() {
    for (from, to, what) in [
        ("<name>foreign</name>", "", "name"),
        ("0b9f6a2e-6b1f-4a8e-9d3c-1a2b3c4d5e6f", "", "uuid"),
        ("0b9f6a2e-", "no-", "uuid"),
        ("52:54:00:00:00:01", "52:54", "interface/mac"),
    ] {
        let error = domain_facts(&RUNNING.replace(from, to)).expect_err(what).to_string();
        assert!(error.contains(&["`", what, "`"].concat()), "{error}");
    }
}

#[test]
fn a_document_that_is_nested_without_end_is_refused_and_not_followed() {
    let deep = "<domain>".repeat(100_000);
    assert!(matches!(domain_facts(&deep), Err(XmlError::Malformed { .. })));
}

proptest! {
    #[test]
    fn no_text_makes_a_reader_panic(text in any::<String>(), cut in 0..RUNNING.len(), put in "[<>/&;'\"a-z!\\[\\]-]{0,4}") {
        let damaged = [&RUNNING[..cut], &put, &RUNNING[cut..]].concat();
        for text in [text.as_str(), &damaged, &RUNNING[..cut]] {
            let _ = (domain_facts(text), volume_info(text), pool_target_path(text));
        }
    }

    #[test]
    fn any_path_reads_back_or_is_refused(path in any::<String>()) {
        let mark = mark();
        let Ok(xml) = domain(&DomainSpec { disk_path: &path, ..spec(&mark) }) else { return Ok(()) };
        prop_assert_eq!(&domain_facts(&xml).expect("read").disks[0], &path);
    }
}
