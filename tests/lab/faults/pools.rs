//! Pools that are full, stopped, unknown, closed to QEMU, or full of other things.

use std::path::PathBuf;
use std::time::Instant;

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_operator::config::providers::VmSize;

use crate::kit::backend::{AMPLE, Bench, boot_sector, domain, files, mark, mark_of, spec};
use crate::kit::{Host, Lab, eventually};

/// A pool of its own, in memory; gone with the value.
struct Small<'a> {
    host: &'a Host,
    name: String,
}

impl<'a> Small<'a> {
    fn of(host: &'a Host, name: &str, megabytes: u32) -> Self {
        let dir = format!("/var/lib/libvirt/{name}");
        let mount = format!("mkdir -p {dir} && mount -t tmpfs -o mode=711,size={megabytes}m {name} {dir}");
        host.inside(&["sh", "-c", &mount]);
        host.virsh(&["pool-define-as", name, "dir", "--target", &dir]);
        host.virsh(&["pool-start", name]);
        Self { host, name: name.to_owned() }
    }

    fn sh(&self, command: &str) {
        self.host.inside(&["sh", "-c", &format!("cd /var/lib/libvirt/{} && {command}", self.name)]);
    }

    /// Its folder as the host sees it.
    fn files(&self) -> Vec<String> {
        let all = self.host.inside(&["ls", &format!("/var/lib/libvirt/{}", self.name)]);
        all.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let socket = format!("qemu:///system?socket={}", self.host.socket);
        let name = &self.name;
        let ends = format!(
            "virsh -c '{socket}' pool-destroy {name}; virsh -c '{socket}' pool-undefine {name}; \
             umount -l /var/lib/libvirt/{name}"
        );
        self.host.tries(&["sh", "-c", &ends]);
    }
}

/// (29)
#[test]
fn a_pool_that_is_full_passes_and_keeps_no_part_of_what_did_not_fit() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let pool = Small::of(host, "narrow", 8);
    let mut bench = Bench::new(&[host]);
    let large = boot_sector(bench.dir.path(), "large.img", &[0xf4, 0xeb, 0xfd], 512);
    std::fs::write(&large.path, [std::fs::read(&large.path).unwrap(), vec![7; 16 << 20]].concat()).unwrap();
    bench.serves(&large);
    bench.entry.hosts[0].pool = "narrow".to_owned();
    let backend = bench.open();
    bench.creates(&backend, &spec("a", 1, "blank"));
    for _ in 0..2 {
        let error = eventually(AMPLE, "it is told", || {
            let error = bench.create(&backend, &spec("b", 2, "large")).unwrap_err();
            (error.reason != Reason::ImageFetching).then_some(error)
        });
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::StorageFull), "{error:?}");
        assert!(error.detail.contains("narrow") && !pool.files().iter().any(|file| file.starts_with("base-large")));
    }
    // What runs there goes on, and can be removed where there is no room at all.
    pool.sh("dd if=/dev/zero of=fill bs=64k 2>/dev/null || true");
    assert_eq!(bench.state(&backend, &mark_of("a", 1)), InstanceState::Running);
    let error = bench.create(&backend, &spec("c", 3, "blank")).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::StorageFull), "{error:?}");
    bench.delete(&backend, &mark_of("c", 3)).unwrap();
    bench.delete(&backend, &mark_of("a", 1)).unwrap();
    pool.sh("rm fill");
    assert_eq!(pool.files(), ["base-blank.raw", "base-blank.raw.ok"]);
}

/// Writes its disk from one end to the other.
const WRITER: [u8; 43] = [
    0x31, 0xc0, 0x8e, 0xd8, 0xbe, 0x1b, 0x7c, // ds = 0, si = the packet
    0xb8, 0x00, 0x43, 0xb2, 0x80, 0xcd, 0x13, // int 13h, extended write, to the first disk
    0x83, 0x06, 0x23, 0x7c, 0x40, 0x73, 0xf2, // 64 sectors on
    0xff, 0x06, 0x25, 0x7c, 0xeb, 0xec, //
    0x10, 0x00, 0x40, 0x00, 0x00, 0x00, 0xc0, 0x07, // 64 sectors, of our own memory
    0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // from sector 64 on
];

/// (29, 52)
#[test]
fn a_guest_that_fills_the_pool_is_paused_and_says_why_and_is_neither_stopped_nor_removed() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let pool = Small::of(host, "filled", 8);
    let mut bench = Bench::new(&[host]);
    let writer = boot_sector(bench.dir.path(), "writer.img", &WRITER, 1 << 20);
    bench.serves(&writer);
    bench.entry.hosts[0].pool = "filled".to_owned();
    bench.entry.sizes.insert("small".to_owned(), VmSize { cpus: 1, memory: 64 << 20, disk: 64 << 20 });
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "writer"));
    let paused = eventually(AMPLE, "it is paused", || {
        let seen = bench.get(&backend, &mark()).unwrap();
        (seen.state != InstanceState::Running).then_some(seen)
    });
    assert_eq!(paused.state, InstanceState::Paused, "{paused:?}");
    assert_eq!(paused.complaint.unwrap().reason, Reason::StorageFull);
    assert_eq!(bench.list(&backend).unwrap()[0].instance.state, InstanceState::Paused);
    // A create of what is there changes nothing.
    assert_eq!(bench.create(&backend, &spec("p", 1, "writer")).unwrap().state, InstanceState::Paused);
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(pool.files(), ["base-writer.raw", "base-writer.raw.ok"]);
}

/// (32)
#[test]
fn a_pool_that_is_stopped_or_unknown_is_told_and_holds_up_no_look_and_loses_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.virsh(&["pool-destroy", &host.pool]);
    // What was seen of the base a moment ago counts for ten seconds: another Proxy asks the pool as well.
    for error in [bench.check(&backend).unwrap_err(), bench.create(&bench.open(), &spec("q", 2, "blank")).unwrap_err()]
    {
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::PoolInactive), "{error:?}");
        assert!(error.detail.contains("pool-start"), "{error:?}");
    }
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Running);
    assert_eq!(bench.list(&backend).unwrap().len(), 1);
    bench.delete(&backend, &mark_of("never", 9)).unwrap();
    let error = bench.delete(&backend, &mark()).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::PoolInactive), "{error:?}");
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Stopped, "it is told for as long as its disk is there");
    host.virsh(&["pool-start", &host.pool]);
    bench.check(&backend).unwrap();
    bench.delete(&backend, &mark()).unwrap();
    assert!(files(&host.pool_files).iter().all(|file| file.starts_with("base-")));

    bench.entry.hosts[0].pool = "nowhere".to_owned();
    let backend = bench.open();
    for error in [bench.check(&backend).unwrap_err(), bench.create(&backend, &spec("q", 2, "blank")).unwrap_err()] {
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::PoolNotFound), "{error:?}");
        assert!(error.detail.contains("nowhere"), "{error:?}");
    }
    assert!(bench.list(&backend).unwrap().is_empty());
    bench.delete(&backend, &mark_of("q", 2)).unwrap();
}

/// (38)
#[test]
fn a_pool_that_qemus_user_may_not_enter_is_told_and_the_same_domain_starts_once_it_may() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let pool = Small::of(host, "closed", 16);
    let mut bench = Bench::new(&[host]);
    bench.entry.hosts[0].pool = "closed".to_owned();
    let backend = bench.open();
    pool.sh("chmod 700 .");
    for _ in 0..2 {
        let error = bench.create(&backend, &spec("p", 1, "blank")).unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::DiskPermissionDenied), "{error:?}");
        assert!(error.detail.contains("closed"), "{error:?}");
        assert_eq!(pool.files().iter().filter(|file| file.starts_with("px-")).count(), 2);
    }
    let uuid = host.virsh(&["domuuid", &domain(&mark())]);
    pool.sh("chmod 711 .");
    let made = bench.create(&backend, &spec("p", 1, "blank")).unwrap();
    assert!(made.provider_id.ends_with(uuid.trim()), "{made:?} {uuid}");
    bench.delete(&backend, &mark()).unwrap();
}

/// (40)
#[test]
fn three_thousand_other_files_in_the_pool_cost_a_create_no_more_than_one_list() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let pool = Small::of(host, "crowded", 64);
    let mut bench = Bench::new(&[host]);
    bench.entry.hosts[0].pool = "crowded".to_owned();
    let backend = bench.open();
    pool.sh("seq -f 'volume-%05g.raw' 3000 | xargs -n 500 touch");
    let begun = Instant::now();
    bench.create(&backend, &spec("p", 1, "blank")).unwrap();
    let made = begun.elapsed();
    bench.delete(&backend, &mark()).unwrap();
    println!("made in {made:?}, removed after {:?}", begun.elapsed());
    assert!(begun.elapsed() < AMPLE, "{:?}", begun.elapsed());
}

/// (37)
#[test]
fn apparmors_helper_would_give_a_guest_its_disk_its_base_and_its_seed() {
    let helper = PathBuf::from("/usr/lib/libvirt/virt-aa-helper");
    let Some(lab) = Lab::up(1).filter(|_| helper.exists()) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    bench.creates(&bench.open(), &spec("p", 1, "blank"));
    let name = domain(&mark());
    let asks = format!(
        "virsh -c 'qemu:///system?socket={}' dumpxml {name} | {} --create --dryrun --uuid \"libvirt-$(virsh -c \
         'qemu:///system?socket={}' domuuid {name} | head -n1)\"",
        host.socket,
        helper.display(),
        host.socket
    );
    let rules = host.inside(&["sh", "-c", &format!("({asks}) 2>&1")]);
    for (file, rights) in
        [(format!("{name}.qcow2"), "rw"), (format!("{name}-seed.iso"), "r"), ("base-blank.raw".into(), "r")]
    {
        let rule = rules.lines().find(|line| line.contains(&format!("/{file}\"")) && !line.contains("deny"));
        let rule = rule.unwrap_or_else(|| panic!("nothing of {file} in {rules}"));
        assert!(rule.split_whitespace().last().unwrap().starts_with(rights), "{rule}");
    }
    bench.delete(&bench.open(), &mark()).unwrap();
}
