//! Hosts that fall silent, refuse or go, under every operation.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use egress_actors::domain::error::{Class, OpError};
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::{LibvirtBackend, Limits};

use crate::kit::backend::{
    AMPLE, Bench, LIMIT, SOON, boot_sector, mark, mark_of, opened, sha256, short, spec, volumes, works,
};
use crate::kit::{Behavior, Host, Lab, Server, eventually};

/// What is done to a host, and undone.
const BREAKS: &[(&str, &str)] = &[
    ("stop-libvirtd", "cont-libvirtd"),
    ("stop-sshd", "cont-sshd"),
    ("drop", "undrop"),
    ("kill-libvirtd", "start-libvirtd"),
];

/// And others, as seen from here much the same.
const MORE: &[(&str, &str)] = &[("reject", "undrop"), ("link-down", "link-up"), ("kill-sshd", "start-sshd")];

fn brief() -> Limits {
    Limits { destroy: LIMIT, start: LIMIT, list: LIMIT, ..short() }
}

/// (1, 13, 15, 23, 24)
#[test]
fn whatever_silences_a_host_is_a_failure_that_passes_and_never_an_absence() {
    fails_and_passes(BREAKS);
}

/// (1, 13)
#[test]
#[ignore = "half a minute; run by `make lab-long`"]
fn whatever_refuses_at_a_host_is_a_failure_that_passes_and_never_an_absence() {
    fails_and_passes(MORE);
}

fn fails_and_passes(all: &[(&str, &str)]) {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let (host, other) = (lab.host(0), lab.host(1));
    let bench = Bench::new(&[host, other]);
    let beside = opened(&bench.runtime, &bench.entry, 1, &bench.means, brief());
    works(&bench.runtime, &beside);
    bench.creates(&bench.open(), &spec("p", 1, "blank"));
    for (breaks, mends) in all {
        // One that is up, and one that has to dial.
        let (up, fresh) = (bench.open_with(brief()), bench.open_with(brief()));
        bench.get(&up, &mark()).unwrap();
        host.breaks(breaks, &[]);
        if *breaks == "kill-sshd" {
            host.breaks("kill-sessions", &[]);
        }
        for backend in [&up, &fresh] {
            all_fail(&bench, backend, breaks);
        }
        let begun = Instant::now();
        let error = bench.get(&beside, &mark()).unwrap_err();
        assert!(error.class == Class::NotFound && begun.elapsed() < LIMIT, "{breaks}: the other host: {error:?}");
        host.breaks(mends, &[]);
        for backend in [&up, &fresh] {
            let seen = eventually(AMPLE, &format!("the host answers after {breaks}"), || {
                let answer = bench.get(backend, &mark());
                assert!(!answer.as_ref().is_err_and(|error| error.class == Class::NotFound), "{breaks}: {answer:?}");
                answer.ok()
            });
            assert_eq!(seen.state, InstanceState::Running, "{breaks}");
            assert_eq!(bench.list(backend).unwrap().len(), 1, "{breaks}");
        }
    }
    bench.delete(&bench.open(), &mark()).unwrap();
}

/// Each operation at once, each in its time.
fn all_fail(bench: &Bench, backend: &LibvirtBackend, breaks: &str) {
    let (of, gone, spec) = (mark(), mark_of("q", 2), spec("r", 3, "blank"));
    let begun = Instant::now();
    let (get, delete, create, check, list) = bench.runtime.block_on(async {
        let operator = mark().operator;
        let list = async { backend.list(&operator, None).await.map(|_| ()) };
        let get = async { backend.get(&of).await.map(|_| ()) };
        let create = async { backend.create(&spec).await.map(|_| ()) };
        tokio::join!(get, backend.delete(&gone), create, backend.check(), list)
    });
    let took = begun.elapsed();
    for (what, answer) in [("get", get), ("delete", delete), ("create", create), ("check", check), ("list", list)] {
        let error: OpError = answer.unwrap_err();
        assert_eq!(error.class, Class::Transient, "{what} beside {breaks}: {error:?}");
        let reasons = [Reason::Timeout, Reason::Unreachable, Reason::Wedged, Reason::LibvirtSocketUnavailable];
        assert!(reasons.contains(&error.reason), "{what} beside {breaks}: {error:?}");
    }
    assert!(took < SOON + LIMIT, "{breaks}: {took:?}");
}

/// (14)
#[test]
fn a_port_that_says_nothing_or_speaks_http_costs_its_own_host_a_deadline_and_no_other_one_anything() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let mut bench = Bench::new(&[host]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (nothing, pages) = (silent.local_addr().unwrap().port(), Server::start());
    for (at, port) in [(bench.also("mute"), nothing), (bench.also("pages"), pages.port())] {
        bench.entry.hosts[at].address = "127.0.0.1".to_owned();
        bench.entry.hosts[at].port = port;
    }
    let open = |at: usize| opened(&bench.runtime, &bench.entry, at, &bench.means, short());
    let (well, mute, page) = (open(0), open(1), open(2));
    works(&bench.runtime, &well);
    for _ in 0..3 {
        let of = mark();
        let begun = Instant::now();
        let (good, late, wrong) = bench.runtime.block_on(async {
            let good = async {
                let error = well.get(&of).await.unwrap_err();
                (error.class, begun.elapsed())
            };
            tokio::join!(good, mute.get(&of), page.get(&of))
        });
        assert!(good.0 == Class::NotFound && good.1 < LIMIT / 2, "{good:?}");
        let late = late.unwrap_err();
        assert_eq!((late.class, late.reason), (Class::Transient, Reason::Timeout), "{late:?}");
        // A server of pages answers our banner as it does a bad request: or not at all.
        let wrong = wrong.unwrap_err();
        assert_eq!(wrong.class, Class::Transient, "{wrong:?}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }
}

/// (1, 2)
#[test]
#[ignore = "half a minute; run by `make lab-long`"]
fn packets_that_vanish_in_an_upload_hang_nothing_and_the_half_volume_is_made_anew() {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let (host, other) = (lab.host(0), lab.host(1));
    let mut bench = Bench::new(&[host, other]);
    let large = boot_sector(bench.dir.path(), "large.img", &[0xf4, 0xeb, 0xfd], 48 << 20);
    bench.serves(&large);
    let half = Behavior::Stall(large.path.clone(), 8 << 20);
    bench.files.answers("/large", half);
    // Longer than it takes to find a connection dead.
    bench.entry.image_idle_timeout = Duration::from_secs(10);
    let limits = Limits { image_wait: Duration::from_millis(200), ..brief() };
    let backend = bench.open_with(limits.clone());
    let beside = opened(&bench.runtime, &bench.entry, 1, &bench.means, limits);
    works(&bench.runtime, &beside);
    let wanted = spec("p", 1, "large");
    let error = eventually(AMPLE, "a part is in the pool", || {
        let error = bench.create(&backend, &wanted).unwrap_err();
        assert_eq!(error.class, Class::Transient, "{error:?}");
        (part(host) > 4 << 20).then_some(error)
    });
    assert_eq!(error.reason, Reason::ImageFetching, "{error:?}");
    // An upload that stands still is on a connection of its own.
    for _ in 0..20 {
        let begun = Instant::now();
        assert_eq!(bench.get(&backend, &mark()).unwrap_err().class, Class::NotFound);
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    }
    host.breaks("drop", &[]);
    bench.files.answers("/large", Behavior::File(large.path.clone()));
    let dropped = Instant::now();
    eventually(AMPLE, "the transfer is given up", || {
        let begun = Instant::now();
        let error = bench.create(&backend, &wanted).unwrap_err();
        assert!(begun.elapsed() < SOON, "{:?} {error:?}", begun.elapsed());
        assert!(matches!(error.class, Class::Transient | Class::EffectUnknown), "{error:?}");
        let begun = Instant::now();
        assert_eq!(bench.get(&beside, &mark()).unwrap_err().class, Class::NotFound);
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
        (!uploads()).then_some(())
    });
    println!("given up after {:?}", dropped.elapsed());
    assert!(dropped.elapsed() < Duration::from_secs(15), "{:?}", dropped.elapsed());
    host.breaks("undrop", &[]);
    bench.creates(&bench.open(), &wanted);
    assert_eq!(sha256(&host.pool_files.join("base-large.raw")), large.sha256);
    assert_eq!(volumes(host).iter().filter(|file| file.starts_with("base-large")).count(), 2, "{:?}", volumes(host));
    bench.delete(&bench.open(), &mark()).unwrap();
}

/// Whether some thread of ours is at a transfer.
fn uploads() -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok()).any(|name| name.starts_with("virt-bulk"))
}

/// Bytes of the base that are written.
fn part(host: &Host) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(host.pool_files.join("base-large.raw")).map_or(0, |file| file.blocks() * 512)
}
