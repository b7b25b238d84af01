//! What hangs or breaks below a [`LibvirtBackend`], and that every call ends, nothing piles up, and all goes on afterwards.

use std::time::Instant;

use egress_actors::domain::error::Class;
use egress_actors::domain::instance::InstanceState;
use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::link::LinkError;

use crate::kit::backend::{
    AMPLE, Bench, LIMIT, SOON, backend, count, files, mark, refresh, runtime, short, spec, timed, works,
};
use crate::kit::{Lab, eventually};

#[test]
fn a_stopped_libvirtd_costs_each_call_its_deadline_the_other_host_nothing_and_leaves_no_thread_or_descriptor() {
    let Some(lab) = Lab::up(2) else { return };
    let _alone = lab.alone();
    let (runtime, host) = (runtime(), lab.host(0));
    let (here, other) = (backend(&runtime, host), backend(&runtime, lab.host(1)));
    works(&runtime, &here);
    works(&runtime, &other);
    let (threads, files) = (count("/proc/self/task"), count("/proc/self/fd"));
    for round in 0..20 {
        host.breaks("stop-libvirtd", &[]);
        let (error, took) = timed(&runtime, &here);
        assert_eq!(error.class, Class::Transient, "{round}: {error:?}");
        assert!(matches!(error.reason, Reason::Timeout | Reason::Wedged) && took < SOON, "{round}: {took:?} {error:?}");
        let (error, took) = timed(&runtime, &other);
        assert!(error.class == Class::NotFound && took < LIMIT, "{round}: {took:?} {error:?}");
        host.breaks("cont-libvirtd", &[]);
        works(&runtime, &here);
    }
    eventually(AMPLE, "threads and descriptors are as before", || {
        (count("/proc/self/task") <= threads + 2 && count("/proc/self/fd") <= files + 2).then_some(())
    });
}

#[test]
fn calls_cut_by_a_stopped_libvirtd_wedge_the_host_until_it_answers() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (runtime, host) = (runtime(), lab.host(0));
    let backend = backend(&runtime, host);
    works(&runtime, &backend);
    host.breaks("stop-libvirtd", &[]);
    // A call may end while the connection that it waits for is still being opened, and that is counted a moment later.
    for _ in 0..12 {
        if backend.link().standing().is_wedged {
            break;
        }
        timed(&runtime, &backend);
    }
    assert!(backend.link().standing().is_wedged, "{:?}", backend.link().standing());
    let (error, took) = timed(&runtime, &backend);
    assert!(error.reason == Reason::Wedged && took < LIMIT / 3, "{took:?} {error:?}");
    host.breaks("cont-libvirtd", &[]);
    works(&runtime, &backend);
    assert_eq!(backend.link().standing().outstanding, 0);
}

#[test]
fn a_frozen_pool_takes_one_call_refuses_the_rest_at_once_and_leaves_the_domains_alone() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (runtime, host) = (runtime(), lab.host(0));
    let backend = backend(&runtime, host);
    refresh(&runtime, &backend, &host.pool).unwrap();
    host.breaks("freeze-pool", &[]);
    let begun = Instant::now();
    let error = refresh(&runtime, &backend, &host.pool).unwrap_err();
    assert!(matches!(error, LinkError::Unanswered(..)) && begun.elapsed() < SOON, "{:?} {error:?}", begun.elapsed());
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(refresh(&runtime, &backend, &host.pool), Err(LinkError::PoolStuck));
    }
    assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
    assert_eq!(backend.link().standing().outstanding, 1);
    let error = runtime.block_on(backend.check()).unwrap_err();
    assert!(error.reason == Reason::Timeout && error.detail.contains(&host.pool), "{error:?}");
    assert_eq!(timed(&runtime, &backend).0.class, Class::NotFound);
    host.virsh(&["list"]);
    host.breaks("thaw-pool", &[]);
    eventually(SOON, "the pool answers again", || refresh(&runtime, &backend, &host.pool).is_ok().then_some(()));
    assert_eq!(backend.link().standing().outstanding, 0);
}

/// libvirtd holds a domain while it gives a disk back, and whoever lists domains waits for that one.
#[test]
fn a_machine_that_is_removed_while_its_pool_hangs_runs_on_and_the_daemon_answers_everybody() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let host = lab.host(0);
    let bench = Bench::new(&[host]);
    let backend = bench.open_with(short());
    bench.creates(&backend, &spec("p", 1, "blank"));
    host.breaks("freeze-pool", &[]);
    for n in 0..3 {
        let error = bench.delete(&backend, &mark()).unwrap_err();
        assert_eq!((error.class, error.reason), (Class::Transient, Reason::Timeout), "{error:?}");
        assert!(error.detail.contains(if n == 0 { "virStorageVolGetXMLDesc" } else { &host.pool }), "{error:?}");
    }
    let begun = Instant::now();
    host.virsh(&["list", "--all"]);
    assert!(begun.elapsed() < AMPLE / 6, "{:?}", begun.elapsed());
    assert_eq!(bench.state(&backend, &mark()), InstanceState::Running);
    assert_eq!(backend.link().standing().outstanding, 1, "the one look by which the pool is seen to be back");
    host.breaks("thaw-pool", &[]);
    eventually(AMPLE, "it is removed", || bench.delete(&backend, &mark()).is_ok().then_some(()));
    assert_eq!(files(&host.pool_files), ["base-blank.raw", "base-blank.raw.ok"]);
}

#[test]
fn sessions_that_are_killed_and_a_daemon_that_restarts_cost_no_more_than_one_call() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (runtime, host) = (runtime(), lab.host(0));
    let backend = backend(&runtime, host);
    for verb in ["kill-sessions", "restart-libvirtd", "kill-sessions"] {
        works(&runtime, &backend);
        host.breaks(verb, &[]);
        let (first, _) = timed(&runtime, &backend);
        assert!(matches!(first.class, Class::NotFound | Class::Transient), "{verb}: {first:?}");
        works(&runtime, &backend);
    }
}

#[test]
fn a_check_that_is_dropped_while_libvirtd_is_stopped_is_counted() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (runtime, host) = (runtime(), lab.host(0));
    let backend = backend(&runtime, host);
    host.breaks("stop-libvirtd", &[]);
    let dropped = runtime.block_on(async { tokio::time::timeout(LIMIT / 2, backend.check()).await });
    assert!(dropped.is_err());
    eventually(AMPLE, "it is counted", || (backend.link().standing().outstanding == 1).then_some(()));
    host.breaks("cont-libvirtd", &[]);
    eventually(AMPLE, "the check works", || runtime.block_on(backend.check()).is_ok().then_some(()));
}

#[test]
fn a_hundred_links_that_come_and_go_leave_no_thread_or_descriptor() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (runtime, host) = (runtime(), lab.host(0));
    works(&runtime, &backend(&runtime, host));
    let (threads, files) = (count("/proc/self/task"), count("/proc/self/fd"));
    for _ in 0..100 {
        works(&runtime, &backend(&runtime, host));
    }
    eventually(AMPLE, "threads and descriptors are as before", || {
        (count("/proc/self/task") <= threads + 2 && count("/proc/self/fd") <= files + 2).then_some(())
    });
}
