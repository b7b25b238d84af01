//! The check of a host beside what is stuck there, and hosts beside each other.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::Limits;

use crate::kit::backend::{AMPLE, Bench, LIMIT, SOON, boot_sector, mark, mark_of, opened, refresh, short, spec, works};
use crate::kit::{Behavior, Host, Lab, eventually};

/// The processes of sshd that serve somebody.
fn sessions(host: &Host) -> Vec<String> {
    let all = host.inside(&["pgrep", "-x", "sshd"]);
    all.split_whitespace().map(str::to_owned).collect()
}

/// (24, K1, K2, Q8)
#[test]
fn a_check_that_a_frozen_pool_holds_up_holds_up_nobody_and_dropping_it_breaks_no_connection() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open_with(short());
    bench.creates(&backend, &spec("p", 1, "blank"));
    eventually(AMPLE, "only the link is left", || (sessions(host).len() == 3).then_some(()));
    let before = sessions(host);
    host.breaks("freeze-pool", &[]);
    refresh(&bench.runtime, &backend, &host.pool).unwrap_err();

    let of = mark();
    let begun = Instant::now();
    let checked = bench.runtime.block_on(async {
        let looks = async {
            for _ in 0..20 {
                let begun = Instant::now();
                assert_eq!(backend.get(&of).await.unwrap().state, InstanceState::Running);
                assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
            }
        };
        let checks = futures::future::join_all((0..3).map(|_| backend.check()));
        tokio::join!(checks, looks).0
    });
    for checked in checked {
        let error = checked.unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::Timeout), "{error:?}");
        assert!(error.detail.contains(&host.pool), "{error:?}");
    }
    assert!(begun.elapsed() < SOON + LIMIT, "{:?}", begun.elapsed());
    host.breaks("thaw-pool", &[]);
    eventually(AMPLE, "the check passes", || bench.check(&backend).ok());

    // Dropped at any time, beside calls that go on.
    for after in [1, 5, 20, 40, 60, 80, 120] {
        bench.runtime.block_on(async {
            let dropped = tokio::time::timeout(Duration::from_millis(after), backend.check());
            let (_, got) = tokio::join!(dropped, backend.get(&of));
            assert_eq!(got.unwrap().state, InstanceState::Running, "{after}");
        });
    }
    eventually(AMPLE, "the connections are those from before", || (sessions(host) == before).then_some(()));
    bench.delete(&backend, &mark()).unwrap();
}

/// (14, 15, K7)
#[test]
#[ignore = "ten seconds of deadlines; run by `make lab-long`"]
fn a_check_with_its_own_limits_ends_within_fifteen_seconds_whatever_is_silent() {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let (frozen, dark) = (lab.host(0), lab.host(1));
    let mut bench = Bench::new(&[frozen, dark]);
    bench.also("mute");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    bench.entry.hosts[2].address = "127.0.0.1".to_owned();
    bench.entry.hosts[2].port = silent.local_addr().unwrap().port();
    frozen.breaks("stop-libvirtd", &[]);
    dark.breaks("drop", &[]);
    let all = [0, 1, 2].map(|at| opened(&bench.runtime, &bench.entry, at, &bench.means, Limits::default()));
    let begun = Instant::now();
    let checked = bench.runtime.block_on(futures::future::join_all(all.iter().map(Backend::check)));
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    for checked in checked {
        assert_eq!(checked.unwrap_err().class, Class::Transient);
    }
}

/// (24, T8)
#[test]
fn a_host_with_everything_stuck_costs_another_host_of_the_same_entry_nothing() {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let (stuck, well) = (lab.host(0), lab.host(1));
    let mut bench = Bench::new(&[stuck, well]);
    let large = boot_sector(bench.dir.path(), "large.img", &[0xf4, 0xeb, 0xfd], 8 << 20);
    bench.serves(&large);
    bench.files.answers("/large", Behavior::Stall(large.path.clone(), 2 << 20));
    bench.entry.image_idle_timeout = Duration::from_secs(20);
    let limits = Limits { image_wait: Duration::from_millis(200), ..short() };
    let open = |at| opened(&bench.runtime, &bench.entry, at, &bench.means, limits.clone());
    let (here, beside) = (open(0), open(1));
    works(&bench.runtime, &here);
    bench.creates(&beside, &spec("b", 2, "blank"));
    bench.delete(&beside, &mark_of("b", 2)).unwrap();
    // An image that does not come, a daemon that does not answer, and as many calls as may wait.
    let error = bench.create(&here, &spec("a", 1, "large")).unwrap_err();
    assert_eq!(error.reason, Reason::ImageFetching, "{error:?}");
    stuck.breaks("stop-libvirtd", &[]);
    let of = mark();
    bench.runtime.block_on(async {
        let waiting = futures::future::join_all((0..80).map(|_| here.get(&of)));
        let works = async {
            for n in 2..5 {
                let begun = Instant::now();
                let wanted = spec("b", n, "blank");
                beside.create(&wanted).await.unwrap();
                assert_eq!(beside.get(&wanted.mark).await.unwrap().state, InstanceState::Running);
                beside.delete(&wanted.mark).await.unwrap();
                println!("made and removed in {:?}", begun.elapsed());
                assert!(begun.elapsed() < AMPLE / 3, "{:?}", begun.elapsed());
            }
        };
        let (waited, ()) = tokio::join!(waiting, works);
        assert!(waited.into_iter().all(|answer| answer.unwrap_err().class == Class::Transient));
    });
    stuck.breaks("cont-libvirtd", &[]);
    bench.files.answers("/large", Behavior::File(large.path.clone()));
    bench.creates(&here, &spec("a", 1, "large"));
    bench.delete(&here, &mark_of("a", 1)).unwrap();
}
