//! libvirtd: how many it lets in, how many it serves, and what it does not come back from.

use std::fs;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::Limits;

use crate::kit::backend::{AMPLE, Bench, LIMIT, SOON, count, domain, mark, short, spec, volumes, works};
use crate::kit::operator::Site;
use crate::kit::{Flavor, Host, Lab, entry, eventually};

/// With these lines of libvirtd.conf, and a new libvirtd.
fn configured(host: &Host, lines: &str) {
    let file = host.dir().join("etc/libvirtd.conf");
    let own = fs::read_to_string(&file).unwrap();
    let kept = own.lines().filter(|line| !lines.lines().any(|new| new.split(' ').next() == line.split(' ').next()));
    fs::write(&file, kept.collect::<Vec<_>>().join("\n") + "\n" + lines + "\n").unwrap();
    host.breaks("restart-libvirtd", &[]);
}

/// The clients that libvirtd has.
fn clients(host: &Host) -> usize {
    let all = host.inside(&["sh", "-c", "grep -c ' 03 .*/run/libvirt/libvirt-sock$' /proc/net/unix || true"]);
    all.trim().parse().unwrap()
}

/// (11, 16, 19)
#[test]
#[ignore = "half a minute; run by `make lab-long`"]
fn what_libvirtd_may_be_set_to_is_told_or_does_not_matter() {
    let Some(shared) = Lab::up(1) else { return };
    // Others count the threads of this process.
    let _alone = shared.alone();
    let Some(lab) = Lab::own(1) else { return };
    let host = lab.host(0);
    let bench = Bench::new(&[host]);

    // Polkit without a D-Bus refuses everybody.
    configured(host, "auth_unix_rw = \"polkit\"");
    let error = bench.check(&bench.open()).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::Transient, Reason::LibvirtAuthFailed), "{error:?}");
    assert!(error.detail.contains("group libvirt") && error.detail.contains("operator"), "{error:?}");

    // The daemon's own keepalive is for clients that can answer: a quiet one stays.
    configured(
        host,
        "auth_unix_rw = \"none\"\nkeepalive_interval = 1\nkeepalive_count = 1\nmax_clients = 8\nmax_anonymous_clients = 8",
    );
    let backend = bench.open();
    works(&bench.runtime, &backend);
    let before = sockets(host);
    assert!(!before.is_empty(), "{before:?}");
    bench.runtime.block_on(async { tokio::time::sleep(Duration::from_secs(5)).await });
    assert_eq!(sockets(host), before, "a quiet connection stays");

    // Objects that are forgotten keep their connection: there are none.
    for round in 0..40 {
        if round % 8 == 7 {
            host.breaks("kill-sessions", &[]);
        }
        let _ = bench.list(&backend);
        let _ = bench.check(&backend);
        works(&bench.runtime, &backend);
    }
    bench.creates(&backend, &spec("p", 1, "blank"));
    bench.delete(&backend, &mark()).unwrap();
    eventually(AMPLE, "libvirtd has the three connections of the link", || (clients(host) <= 3).then_some(()));

    // Others take all places: an open is not answered.
    let others: Vec<_> = (0..12).map(|_| UnixStream::connect(&host.local_socket).unwrap()).collect();
    let late = bench.open_with(short());
    let error = bench.check(&late).unwrap_err();
    assert_eq!(error.class, Class::Transient, "{error:?}");
    assert!(matches!(error.reason, Reason::Timeout | Reason::Unreachable), "{error:?}");
    works(&bench.runtime, &backend);
    drop(others);
    eventually(AMPLE, "the check passes", || bench.check(&late).ok());
}

/// By their inodes.
fn sockets(host: &Host) -> Vec<String> {
    let all = host.inside(&["grep", "-E", " 03 +[0-9]+ /run/libvirt/libvirt-sock$", "/proc/net/unix"]);
    all.lines().filter_map(|line| line.split_whitespace().nth(6)).map(str::to_owned).collect()
}

/// (21)
#[test]
fn sixty_operations_at_once_stay_below_what_libvirtd_takes_of_one_client() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    let log = host.log.join("libvirtd.log");
    let before = fs::read_to_string(&log).unwrap().len();
    let specs: Vec<_> = (0..6).map(|n| spec(&format!("p{n}"), n, "blank")).collect();
    for spec in &specs {
        bench.creates(&backend, spec);
    }
    bench.runtime.block_on(async {
        let gets = (0..54).map(|n| backend.get(&specs[n % 6].mark));
        let lists = (0..6).map(|_| async {
            let all = backend.list(&mark().operator, None).await;
            assert_eq!(all.unwrap().len(), 6);
        });
        let (got, _) = tokio::join!(futures::future::join_all(gets), futures::future::join_all(lists));
        for answer in got {
            assert_eq!(answer.unwrap().state, InstanceState::Running);
        }
    });
    bench.runtime.block_on(async {
        for gone in futures::future::join_all(specs.iter().map(|spec| backend.delete(&spec.mark))).await {
            gone.unwrap();
        }
    });
    let said = fs::read_to_string(&log).unwrap().split_off(before);
    assert!(!said.contains("max requests") && !said.contains("keepalive"), "{said}");
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}

/// (18)
#[test]
fn dropping_a_backend_beside_a_stopped_libvirtd_waits_for_nothing_and_leaves_no_thread() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let threads = count("/proc/self/task");
    for _ in 0..5 {
        let backend = bench.open_with(short());
        works(&bench.runtime, &backend);
        host.breaks("stop-libvirtd", &[]);
        let begun = Instant::now();
        drop(backend);
        assert!(begun.elapsed() < LIMIT / 10, "{:?}", begun.elapsed());
        host.breaks("cont-libvirtd", &[]);
    }
    eventually(AMPLE, "its threads are gone", || (count("/proc/self/task") <= threads + 2).then_some(()));
}

/// (18, 25, 26)
#[test]
fn an_operator_ends_beside_a_stopped_libvirtd_and_its_log_is_json_though_connections_broke() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let image = crate::conforms::blank(bench.dir.path());
    bench.files.answers("/blank.qcow2", crate::kit::Behavior::File(image.path.clone()));
    let entry = entry("quick", Flavor::Kvm, &[host], &[&image], &bench.files.url())
        .replace("format: qcow2}", "format: qcow2, proxy: true, firmware: bios}")
        .replace("memory: 256Mi, disk: 2Gi", "memory: 64Mi, disk: 64Mi");
    let site = Site::new(&entry);
    let operator = site.start(host);
    site.apply("p", "provider: quick");
    eventually(AMPLE, "it has a machine", || host.virsh(&["list", "--name"]).contains("px-crawl-p-").then_some(()));
    // SIGPIPE is ignored: a peer that goes while something is written is an error.
    assert!(operator.ignores(13));
    for verb in ["kill-sessions", "restart-libvirtd", "kill-sessions", "stop-libvirtd"] {
        host.breaks(verb, &[]);
        eventually(AMPLE, "it is still there", || operator.proxy("p"));
    }
    let (status, took) = operator.ends(AMPLE);
    assert!(status.success(), "{status}");
    println!("ended after {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    host.breaks("cont-libvirtd", &[]);
    let log = fs::read_to_string(site.path("log")).unwrap();
    for line in log.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    assert!(log.lines().count() > 10);
}

/// (22, E3)
#[test]
#[ignore = "half a minute; run by `make lab-long`"]
fn a_change_whose_end_is_not_seen_says_so_and_the_next_call_finds_what_came_of_it() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open();
    bench.creates(&backend, &spec("p", 1, "blank"));
    let name = domain(&mark());

    // A QEMU that is stopped takes ten seconds to be ended.
    host.breaks("stop-guest", &[&name]);
    let hasty = bench.open_with(Limits { destroy: LIMIT, ..Limits::default() });
    let begun = Instant::now();
    let error = bench.delete(&hasty, &mark()).unwrap_err();
    assert_eq!((error.class, error.reason), (Class::EffectUnknown, Reason::Timeout), "{error:?}");
    assert!(begun.elapsed() < SOON && error.detail.contains("virDomainDestroy"), "{:?} {error:?}", begun.elapsed());
    // Whoever asks meanwhile hears what libvirtd knows.
    let seen = bench.get(&backend, &mark());
    assert!(!seen.as_ref().is_err_and(|error| error.class == Class::NotFound), "{seen:?}");
    bench.deletes(&backend, &mark());
    assert_eq!(bench.get(&backend, &mark()).unwrap_err().class, Class::NotFound);

    // The connection goes under it.
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.breaks("stop-guest", &[&name]);
    let of = mark();
    let error = bench.runtime.block_on(async {
        let breaks = async {
            tokio::time::sleep(LIMIT).await;
            host.breaks("kill-sessions", &[]);
        };
        tokio::join!(backend.delete(&of), breaks).0.unwrap_err()
    });
    assert_eq!((error.class, error.reason), (Class::EffectUnknown, Reason::Unreachable), "{error:?}");
    bench.deletes(&backend, &mark());

    // A start that is cut.
    let hasty = bench.open_with(Limits { start: Duration::from_millis(60), ..Limits::default() });
    works(&bench.runtime, &hasty);
    if let Err(error) = bench.create(&hasty, &spec("p", 1, "blank")) {
        println!("cut: {error}");
        assert!(matches!(error.class, Class::EffectUnknown | Class::Transient), "{error:?}");
        assert_eq!(error.reason, Reason::Timeout, "{error:?}");
        assert_ne!(bench.get(&backend, &mark()).map_err(|error| error.class).err(), Some(Class::NotFound));
    }
    // The one that was cut may still be at it.
    bench.creates(&backend, &spec("p", 1, "blank"));
    eventually(AMPLE, "it runs", || (bench.state(&backend, &mark()) == InstanceState::Running).then_some(()));
    bench.delete(&backend, &mark()).unwrap();
    assert_eq!(volumes(host), ["base-blank.raw", "base-blank.raw.ok"]);
}
