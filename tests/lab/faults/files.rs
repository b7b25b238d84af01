//! What a source of images may answer, and what hands may do to the files in a pool.

use std::fs;
use std::process::Command;
use std::time::Duration;

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::Limits;

use crate::kit::backend::{
    AMPLE, Bench, boot_sector, domain, mark, mark_of, means, opened, runtime, sha256, spec, volumes,
};
use crate::kit::operator::Site;
use crate::kit::{Behavior, Flavor, Image, Lab, Server, entry, eventually};

/// (28)
#[test]
fn each_bad_answer_of_a_source_is_told_leaves_no_volume_and_is_forgotten_with_the_next_good_one() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let large = boot_sector(bench.dir.path(), "large.img", &[0xf4, 0xeb, 0xfd], 4 << 20);
    let away = Server::start();
    let file = |most: Option<u64>, stalls: bool| match most {
        None => Behavior::File(large.path.clone()),
        Some(most) if stalls => Behavior::Stall(large.path.clone(), most),
        Some(most) => Behavior::Short(large.path.clone(), most),
    };
    let answers = [
        ("gone", Behavior::Status(404), Class::Permanent, Reason::ImageNotFound),
        ("down", Behavior::Status(503), Class::Transient, Reason::Unreachable),
        ("page", Behavior::Html, Class::Permanent, Reason::ImageNotFound),
        (
            "zipped",
            Behavior::Text("PK\u{3}\u{4}".to_owned() + &"x".repeat(70_000)),
            Class::Permanent,
            Reason::ImageFormatUnsupported,
        ),
        ("short", file(Some(1 << 20), false), Class::Transient, Reason::Unreachable),
        ("still", file(Some(1 << 20), true), Class::Transient, Reason::Timeout),
        ("silent", file(Some(0), true), Class::Transient, Reason::Timeout),
        ("away", Behavior::Redirect(format!("{}/x", away.url())), Class::Permanent, Reason::Forbidden),
        ("other", file(None, false), Class::Permanent, Reason::ImageDigestMismatch),
    ];
    for (key, ..) in &answers {
        let image = Image { key, ..large.clone() };
        bench.serves(&image);
    }
    bench.entry.images.get_mut("other").unwrap().sha256 = Some([7; 32]);
    let backend = bench.open();
    for (key, behavior, class, reason) in &answers {
        bench.files.answers(&format!("/{key}"), behavior.clone());
        let error = bench.create(&backend, &spec("p", 1, key)).unwrap_err();
        assert_eq!((error.class, error.reason), (*class, *reason), "{key}: {error:?}");
        assert!(error.detail.len() < 600 && !volumes(host).iter().any(|name| name.starts_with(&format!("base-{key}"))));
    }
    // Nothing was defined for what cannot be made.
    assert!(!host.virsh(&["list", "--all"]).contains("px-"));
    for key in ["gone", "short", "still"] {
        bench.files.answers(&format!("/{key}"), file(None, false));
        let made = eventually(AMPLE, key, || bench.create(&backend, &spec("p", 1, key)).ok());
        assert_eq!(made.state, InstanceState::Running);
        assert_eq!(sha256(&host.pool_files.join(format!("base-{key}.raw"))), large.sha256);
        bench.delete(&backend, &mark()).unwrap();
    }
}

/// (30)
#[test]
fn two_operators_that_fetch_one_base_at_once_and_slowly_get_one_that_is_whole() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let large = boot_sector(bench.dir.path(), "large.img", &[0xf4, 0xeb, 0xfd], 8 << 20);
    bench.serves(&large);
    bench.files.answers("/large", Behavior::Stall(large.path.clone(), 3 << 20));
    bench.entry.image_idle_timeout = Duration::from_secs(15);
    let another = runtime();
    let limits = Limits { image_wait: Duration::from_millis(300), ..Limits::default() };
    let one = bench.open_with(limits.clone());
    let two = opened(&another, &bench.entry, 0, &means(&another), limits);
    let specs: Vec<_> = (0..5).map(|n| spec(&format!("p{n}"), n, "large")).collect();
    let all = || {
        bench.runtime.block_on(futures::future::join_all(
            specs.iter().enumerate().map(|(n, spec)| if n % 2 == 0 { one.create(spec) } else { two.create(spec) }),
        ))
    };
    for _ in 0..3 {
        for answer in all() {
            let error = answer.unwrap_err();
            assert_eq!(error.reason, Reason::ImageFetching, "{error:?}");
        }
    }
    assert!(volumes(host).iter().any(|name| name == "base-large.raw"), "a part is there");
    bench.files.answers("/large", Behavior::File(large.path.clone()));
    eventually(AMPLE, "all are made", || all().iter().all(Result::is_ok).then_some(()));
    // Both may have asked for it; one wrote it.
    assert!(bench.files.asked("/large").len() <= 2);
    assert_eq!(sha256(&host.pool_files.join("base-large.raw")), large.sha256);
    for spec in &specs {
        bench.delete(&two, &spec.mark).unwrap();
    }
}

/// (31)
#[test]
fn an_operator_killed_in_the_middle_of_an_upload_makes_the_base_anew() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let large = boot_sector(bench.dir.path(), "large.qcow2", &[0xf4, 0xeb, 0xfd], 8 << 20);
    let large = Image { key: "large", ..large };
    bench.files.answers("/large.qcow2", Behavior::Stall(large.path.clone(), 3 << 20));
    let text = entry("quick", Flavor::Kvm, &[host], &[&large], &bench.files.url())
        .replace("format: qcow2}", "proxy: true, firmware: bios}")
        .replace("memory: 256Mi, disk: 2Gi", "memory: 64Mi, disk: 64Mi");
    let site = Site::new(&(text + "    imageIdleTimeout: 2s\n"));
    let operator = site.start(host);
    site.apply("p", "provider: quick");
    eventually(AMPLE, "half of it is in the pool", || {
        (fs::metadata(host.pool_files.join("base-large.raw")).ok()?.len() > 0).then_some(())
    });
    operator.kill();
    assert!(!volumes(host).iter().any(|name| name == "base-large.raw.ok"));
    bench.files.answers("/large.qcow2", Behavior::File(large.path.clone()));
    let _operator = site.start(host);
    eventually(AMPLE * 2, "it has a machine", || host.virsh(&["list", "--name"]).contains("px-crawl-p-").then_some(()));
    assert_eq!(sha256(&host.pool_files.join("base-large.raw")), large.sha256);
}

/// (33)
#[test]
fn files_that_a_hand_removed_are_made_anew_or_are_gone_already() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    let name = domain(&mark());
    // Through the mount, as that keeps for a second what it has seen.
    let remove = |ending: &str| drop(host.inside(&["rm", &format!("/var/lib/libvirt/images/{name}{ending}")]));
    for endings in [&[".qcow2", "-seed.iso"][..], &[".qcow2"], &["-seed.iso"]] {
        host.virsh(&["destroy", &name]);
        for ending in endings {
            remove(ending);
        }
        let made = bench.create(&backend, &spec("p", 1, "blank"));
        assert_eq!(made.map(|made| made.state), Ok(InstanceState::Running), "{endings:?}");
    }
    remove(".qcow2");
    remove("-seed.iso");
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(bench.get(&backend, &mark()).unwrap_err().class, Class::NotFound);
    // The base itself: what it is kept as whole for is not there any more.
    fs::remove_file(host.pool_files.join("base-blank.raw")).unwrap();
    // That it was seen counts for ten seconds.
    bench.means = means(&bench.runtime);
    let fresh = bench.open();
    bench.creates(&fresh, &spec("p", 1, "blank"));
    assert_eq!(volumes(host).len(), 4);
    bench.delete(&backend, &mark()).unwrap();
}

/// (33, 43)
#[test]
fn files_of_somebody_else_in_our_place_are_a_conflict_and_stay_as_they_are() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    let name = domain(&mark());
    for (ending, theirs) in [(".qcow2", &b"not a disk of ours"[..]), (".qcow2", b"QFI\xfb"), ("-seed.iso", b"QFI\xfb")]
    {
        let file = host.pool_files.join(format!("{name}{ending}"));
        let mut words = theirs.to_vec();
        words.resize(4096, 0);
        if theirs.starts_with(b"QFI") {
            let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&file).arg("1M").status();
            assert!(made.unwrap().success());
            words = fs::read(&file).unwrap();
        }
        fs::write(&file, &words).unwrap();
        for _ in 0..2 {
            let error = bench.create(&backend, &spec("p", 1, "blank")).unwrap_err();
            assert_eq!((error.class, error.reason), (Class::Permanent, Reason::NameConflict), "{ending}: {error:?}");
            assert!(error.detail.contains(ending), "{error:?}");
        }
        let error = bench.delete(&backend, &mark()).unwrap_err();
        assert_eq!(error.reason, Reason::NameConflict, "{ending}: {error:?}");
        assert_eq!(fs::read(&file).unwrap(), words, "{ending}");
        fs::remove_file(&file).unwrap();
        bench.delete(&backend, &mark()).unwrap();
        assert_eq!(bench.get(&backend, &mark()).unwrap_err().class, Class::NotFound, "{ending}");
    }
}

/// What a file system keeps of a disk that was just made when its host loses power.
#[test]
fn a_disk_of_ours_that_is_empty_after_its_host_lost_power_is_made_anew_and_removed() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    let file = host.pool_files.join(format!("{}.qcow2", domain(&mark())));
    for is_wanted in [true, false] {
        fs::write(&file, b"").unwrap();
        if is_wanted {
            bench.creates(&backend, &spec("p", 1, "blank"));
            assert!(fs::metadata(&file).unwrap().len() > 0);
            host.virsh(&["destroy", &domain(&mark())]);
        } else {
            bench.delete(&backend, &mark()).unwrap();
            assert!(!file.exists());
        }
    }
}

/// (36)
#[test]
fn a_base_on_which_disks_stand_is_never_deleted_whatever_becomes_of_its_marker_or_its_entry() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    bench.creates(&bench.open(), &spec("p", 1, "blank"));
    let base = sha256(&host.pool_files.join("base-blank.raw"));
    let stands = |bench: &Bench| {
        assert_eq!(sha256(&host.pool_files.join("base-blank.raw")), base);
        assert_eq!(bench.state(&bench.open(), &mark()), InstanceState::Running);
    };
    // The marker is lost: nobody knows whether the base is whole.
    let marker = host.pool_files.join("base-blank.raw.ok");
    let words = fs::read(&marker).unwrap();
    fs::remove_file(&marker).unwrap();
    bench.means = means(&bench.runtime);
    let fresh = bench.open();
    let error = eventually(AMPLE, "it is told", || {
        let error = bench.create(&fresh, &spec("q", 2, "blank")).unwrap_err();
        (error.reason != Reason::ImageFetching).then_some(error)
    });
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::NameConflict), "{error:?}");
    stands(&bench);
    fs::write(&marker, words).unwrap();
    bench.creates(&bench.open(), &spec("q", 2, "blank"));
    bench.delete(&bench.open(), &mark_of("q", 2)).unwrap();

    // The entry wants other bytes under the same key.
    let good = bench.entry.images["blank"].clone();
    bench.entry.images.get_mut("blank").unwrap().sha256 = Some([7; 32]);
    bench.means = means(&bench.runtime);
    let error = bench.create(&bench.open(), &spec("q", 2, "blank")).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::ImageDigestMismatch), "{error:?}");
    stands(&bench);

    // The entry has no such image any more.
    bench.entry.images.clear();
    bench.entry.images.insert("else".to_owned(), good);
    let error = bench.create(&bench.open(), &spec("q", 2, "blank")).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Permanent, Reason::SpecInvalid), "{error:?}");
    stands(&bench);
    assert_eq!(bench.list(&bench.open()).unwrap().len(), 1);
    bench.delete(&bench.open(), &mark()).unwrap();
    assert_eq!(sha256(&host.pool_files.join("base-blank.raw")), base);
}
