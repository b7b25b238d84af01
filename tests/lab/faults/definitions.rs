//! Domains as libvirt defines them, and what is missing on the host for one.

use egress_actors::domain::error::Class;
use egress_actors::domain::id::ProxyKey;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_operator::config::providers::{Firmware, VirtType};

use crate::kit::backend::{Bench, domain, files, mark, spec, volumes};
use crate::kit::{Host, Lab};

/// What libvirt keeps beside definitions, of our domains.
fn beside(host: &Host) -> Vec<String> {
    let places = ["nvram", "save", "snapshot", "checkpoint"].map(|place| host.dir().join("lib/qemu").join(place));
    let all = places.iter().filter(|place| place.is_dir()).flat_map(|place| files(place));
    all.filter(|file| file.starts_with("px-")).collect()
}

/// (41, 44)
#[test]
fn a_domain_with_uefi_a_saved_state_snapshots_and_checkpoints_is_removed_with_all_of_them() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    bench.entry.images.get_mut("blank").unwrap().firmware = Firmware::Uefi;
    let backend = bench.open();
    let name = domain(&mark());
    bench.creates(&backend, &spec("p", 1, "blank"));
    let definition = host.virsh(&["dumpxml", &name]);
    assert!(definition.contains("/OVMF_CODE_4M.fd<") && !definition.contains("OVMF_CODE_4M.ms.fd"), "{definition}");
    assert_eq!(beside(host).len(), 1, "UEFI's variables: {:?}", beside(host));
    host.virsh(&["managedsave", &name]);
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Stopped);
    assert_eq!(beside(host).len(), 2, "{:?}", beside(host));
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(beside(host), [""; 0]);

    bench.entry.images.get_mut("blank").unwrap().firmware = Firmware::Bios;
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.virsh(&["snapshot-create-as", &name, "before"]);
    host.virsh(&["checkpoint-create-as", &name, "c", "--diskspec", "vda", "--diskspec", "sda,checkpoint=no"]);
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Running);
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(beside(host), [""; 0]);
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}

/// (42)
#[test]
fn a_running_domain_that_somebody_undefined_is_still_seen_and_removed() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.virsh(&["undefine", &domain(&mark())]);
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Running);
    assert_eq!(bench.list(&backend).unwrap().len(), 1);
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(bench.get(&backend, &mark()).unwrap_err().class, Class::NotFound);
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}

/// Tries twice, and says what there is of it then.
fn refused(bench: &Bench, reason: Reason) -> usize {
    let backend = bench.open();
    for _ in 0..2 {
        let error = bench.create(&backend, &spec("p", 1, "blank")).unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Transient, reason), "{error:?}");
        assert!(!error.detail.contains('\n') && error.detail.len() < 600, "{error:?}");
    }
    bench.list(&backend).unwrap().len()
}

/// (45)
#[test]
fn a_host_without_uefi_or_kvm_is_told_and_leaves_nothing_more_with_each_try() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    bench.entry.images.get_mut("blank").unwrap().firmware = Firmware::Uefi;
    host.inside(&["mount", "-t", "tmpfs", "none", "/usr/share/qemu/firmware"]);
    let there = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| refused(&bench, Reason::FirmwareMissing)));
    host.inside(&["umount", "/usr/share/qemu/firmware"]);
    assert!(there.unwrap() <= 1);
    let backend = bench.open();
    assert_eq!(bench.creates(&backend, &spec("p", 1, "blank")).state, InstanceState::Running);
    bench.delete(&backend, &mark()).unwrap();

    bench.entry.virt_type = VirtType::Kvm;
    assert!(refused(&bench, Reason::KVMUnavailable) <= 1);
    bench.delete(&bench.open(), &mark()).unwrap();
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}

/// (46)
#[test]
fn a_network_that_is_stopped_or_unknown_is_told_and_the_same_domain_starts_once_it_is_there() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("q", 2, "blank"));
    let (_, beside) = (mark(), spec("q", 2, "blank").mark);
    host.virsh(&["net-destroy", &host.network]);
    let error = bench.check(&backend).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::NetworkNotFound), "{error:?}");
    assert_eq!(refused(&bench, Reason::NetworkNotFound), 2, "one that runs, and one definition of what cannot");
    // Of what runs the address cannot be read: that is no end of it.
    match bench.get(&backend, &beside) {
        Ok(seen) => assert_eq!(seen.state, InstanceState::Running),
        Err(error) => assert_eq!(error.class, Class::Transient, "{error:?}"),
    }
    assert!(bench.list(&backend).unwrap().iter().any(|row| row.instance.state == InstanceState::Running));
    let uuid = host.virsh(&["domuuid", &domain(&mark())]);
    host.virsh(&["net-start", &host.network]);
    let made = bench.create(&backend, &spec("p", 1, "blank")).unwrap();
    assert!(made.provider_id.ends_with(uuid.trim()), "{made:?} {uuid}");
    bench.delete(&backend, &mark()).unwrap();
    bench.delete(&backend, &beside).unwrap();

    bench.entry.hosts[0].network = "nowhere".to_owned();
    assert_eq!(bench.check(&bench.open()).unwrap_err().reason, Reason::NetworkNotFound);
    assert!(refused(&bench, Reason::NetworkNotFound) <= 1);
    bench.delete(&bench.open(), &mark()).unwrap();
}

/// (53)
#[test]
fn what_a_hand_removed_is_absent_and_what_it_renamed_is_still_ours() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    let name = domain(&mark());
    let first = bench.creates(&backend, &spec("p", 1, "blank"));
    host.virsh(&["destroy", &name]);
    host.virsh(&["undefine", &name]);
    assert_eq!(bench.get(&backend, &mark()).unwrap_err().class, Class::NotFound);
    assert!(bench.list(&backend).unwrap().is_empty());
    let second = bench.creates(&backend, &spec("p", 1, "blank"));
    assert_ne!(first.provider_id, second.provider_id);
    assert_eq!(volumes(host).len(), 4, "what was left is used again: {:?}", volumes(host));

    host.virsh(&["destroy", &name]);
    host.virsh(&["domrename", &name, "by-hand"]);
    let seen = bench.get(&backend, &mark()).unwrap();
    assert_eq!((seen.state, &seen.provider_id), (InstanceState::Stopped, &second.provider_id));
    assert_eq!(bench.list(&backend).unwrap().len(), 1);
    assert_eq!(bench.creates(&backend, &spec("p", 1, "blank")).provider_id, second.provider_id);
    assert!(!host.virsh(&["list", "--all", "--name"]).contains(&name), "there is no second one");
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(host.virsh(&["list", "--all", "--name"]).trim(), "");
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);

    // Volumes whose domain a hand has undefined go with a delete.
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.virsh(&["destroy", &name]);
    host.virsh(&["undefine", &name]);
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}

/// (35, 39)
#[test]
fn the_longest_names_make_a_machine_and_its_disk_says_what_it_stands_on() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    let label = "p".repeat(63);
    let longest = [&label[..], &label, &label, &label[..61]].join(".");
    for (namespace, name) in [("n".repeat(63), longest), ("a".to_owned(), "b.c-d.e".to_owned())] {
        let mut wanted = spec("p", 1, "blank");
        wanted.mark.key = ProxyKey::new(&namespace, &name).unwrap();
        assert_eq!(bench.creates(&backend, &wanted).state, InstanceState::Running, "{name}");
        assert_eq!(bench.list(&backend).unwrap()[0].mark, wanted.mark);
        let disk = host.pool_files.join(format!("{}.qcow2", domain(&wanted.mark)));
        let told = host.inside(&["qemu-img", "info", "-U", "--output=json", &format!("{}", disk.display())]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["backing-filename-format"], "raw", "{told}");
        assert_eq!(told["backing-filename"], "/var/lib/libvirt/images/base-blank.raw", "{told}");
        bench.delete(&backend, &wanted.mark).unwrap();
    }
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}
