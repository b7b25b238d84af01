//! Stall after stall below one adapter: that each call ends, that the host is used again once it is well, and that what
//! the process has (threads, descriptors, memory) is then what it was.

use std::fs;
use std::time::{Duration, Instant};

use egress_actors::domain::error::{Class, OpError};
use egress_actors::ports::Backend;
use egress_operator::providers::libvirt::link::{LaneKind, LinkError};
use egress_operator::providers::libvirt::{LibvirtBackend, Limits};
use tokio::runtime::{Builder, Runtime};

use crate::kit::adapter::{Login, entry, means};
use crate::kit::{About, Host, Lab, Mood, Place, Relay, alone, backends, eventually};
use crate::scripted::{Rig, mark};

const AMPLE: Duration = Duration::from_secs(30);

/// Agents that were silent are left alone for half a minute.
const REST: Duration = Duration::from_mins(2);

/// What a call may take beyond its limit, on a busy machine.
const BEYOND: Duration = Duration::from_secs(1);

const ROUNDS: usize = 1_000;
const WARM_UP: usize = 100;

/// On the lab, where a script breaks and heals the host.
const LAB_ROUNDS: usize = 20;
const LAB_WARM_UP: usize = 3;

/// Connections to a daemon, each for a lane: control, agent, storage.
const LANES: usize = 3;

/// Beyond what there was: the allocator's own, and what a connection keeps of channels that are closed (4 kB each).
const MEMORY: u64 = 12 << 20;

fn short(limit: Duration) -> Limits {
    let mut limits = Limits { control: limit, storage: limit, agent: limit, ..Limits::default() };
    (limits.link.open, limits.link.channel) = (limit, limit * 4);
    limits.link.ssh.keepalive_interval = Duration::from_millis(300);
    limits.link.ssh.inactivity = Duration::from_millis(1200);
    limits
}

/// Threads, descriptors, bytes in RAM.
#[derive(Debug, Clone, Copy)]
struct Weight(usize, usize, u64);

fn weigh() -> Weight {
    let count = |of: &str| fs::read_dir(of).unwrap().count();
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let resident = pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096;
    Weight(count("/proc/self/task"), count("/proc/self/fd"), resident)
}

fn is_as_before(before: Weight) {
    let begun = Instant::now();
    let mut now = weigh();
    while now.0 > before.0 + 2 || now.1 > before.1 + 2 {
        assert!(begun.elapsed() < AMPLE, "{before:?} became {now:?}");
        std::thread::sleep(Duration::from_millis(50));
        now = weigh();
    }
    println!("before {before:?}, after {now:?}");
    assert!(now.2 < before.2 + MEMORY, "{before:?} became {now:?}");
}

fn timed<T>(runtime: &Runtime, work: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    (runtime.block_on(work), begun.elapsed())
}

/// A look at an instance that is there or not: either is the answer of a host that works.
fn look(runtime: &Runtime, backend: &LibvirtBackend, name: &str) -> (Result<(), OpError>, Duration) {
    let (result, took) = timed(runtime, backend.get(&mark(name)));
    let answered = match result {
        Err(error) if error.class == Class::NotFound => Ok(()),
        result => result.map(drop),
    };
    (answered, took)
}

fn touch_pool(runtime: &Runtime, backend: &LibvirtBackend, limit: Duration) -> (Result<(), LinkError>, Duration) {
    let call = backend.link().call(LaneKind::Storage, "virStoragePoolRefresh", limit, |libvirt| {
        let pool = libvirt.rpc("virStoragePoolLookupByName", "", |c| c.lookup_storage_pool_by_name("default"))?;
        libvirt.rpc("virStoragePoolRefresh", "", |_| pool.refresh(0)).map(drop)
    });
    timed(runtime, call)
}

#[test]
fn a_thousand_stalls_of_a_daemon_its_agents_and_its_pool_leave_threads_descriptors_and_memory_as_they_were() {
    let _alone = alone();
    let limit = Duration::from_millis(30);
    let limits = Limits { storage: Duration::from_millis(60), ..short(limit) };
    let rig = Rig::start(&Limits::default());
    rig.create("a").unwrap();
    let rig = rig.reopened(&limits);
    let (runtime, backend, daemon) = (&rig.runtime, &rig.backend, &rig.daemon);
    let round = |n: usize| {
        // A connection that has to be made first may take longer than the limit of the call: it is made all the same.
        eventually(AMPLE, "the daemon answers", || look(runtime, backend, "a").0.is_ok().then_some(()));
        eventually(AMPLE, "the pool answers", || touch_pool(runtime, backend, limits.storage).0.is_ok().then_some(()));
        let about = [About::All, About::Agent, About::Pool, About::All][n % 4];
        daemon.set(about, if n % 4 == 3 { Mood::Closes } else { Mood::Silent });
        let ((looked, took), (touched, touch_took)) =
            (look(runtime, backend, "a"), touch_pool(runtime, backend, limits.storage));
        assert!(took < limit * 2 + BEYOND && touch_took < limits.storage + BEYOND, "{n}: {took:?} {touch_took:?}");
        match n % 4 {
            0 => assert!(looked.is_err() && touched.is_err(), "{n}: {looked:?} {touched:?}"),
            // A guest's agent is not the host. On a busy machine 30 ms are over before anybody has looked at the leases.
            1 => eventually(AMPLE, "the leases tell", || look(runtime, backend, "a").0.is_ok().then_some(())),
            2 => assert!(touched.is_err(), "{n}: {touched:?}"),
            _ => assert!(looked.is_err() || touched.is_err(), "{n}: {looked:?} {touched:?}"),
        }
        assert!(daemon.held() <= 12, "{n}: {} calls are left at the daemon", daemon.held());
        daemon.heal();
    };
    // Its lanes are all open, and nothing is under way.
    let comes_to_rest = || {
        eventually(AMPLE, "the daemon goes on with all that it held", || (daemon.held() == 0).then_some(()));
        let mut well = 0;
        eventually(REST, "ten looks in a row are answered", || {
            let answered = look(runtime, backend, "a").0.is_ok() && touch_pool(runtime, backend, limit * 2).0.is_ok();
            well = if answered && daemon.clients() == LANES { well + 1 } else { 0 };
            (well == 10).then_some(())
        });
    };
    (0..WARM_UP).for_each(round);
    comes_to_rest();
    let (before, begun) = (weigh(), Instant::now());
    (0..ROUNDS).for_each(round);
    println!("{ROUNDS} rounds took {:?}", begun.elapsed());
    comes_to_rest();
    is_as_before(before);
}

/// A host of the lab, broken and healed again and again by its script. `stalls` says whether a look hangs then.
fn lab_rounds(lab: &Lab, verbs: [&str; 2], hangs: impl Fn(&Runtime, &LibvirtBackend) -> (bool, Duration)) {
    let (host, limit) = (lab.host(0), Duration::from_millis(500));
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let backend = open(&runtime, &Login::of(host), Place::of(host), limit);
    rounds(&runtime, &backend, limit, || host.breaks(verbs[0], &[]), hangs, || host.breaks(verbs[1], &[]));
}

fn open(runtime: &Runtime, login: &Login, place: Place, limit: Duration) -> LibvirtBackend {
    let entry = entry("scripted", login, &[place], &[("blank", "http://127.0.0.1:9/blank")]);
    let _inside = runtime.enter();
    backends(&entry, &means(runtime.handle().clone(), runtime.handle().clone()), &short(limit)).remove(0)
}

fn rounds(
    runtime: &Runtime,
    backend: &LibvirtBackend,
    limit: Duration,
    breaks: impl Fn(),
    hangs: impl Fn(&Runtime, &LibvirtBackend) -> (bool, Duration),
    heals: impl Fn(),
) {
    let works = || {
        eventually(AMPLE, "the host answers", || look(runtime, backend, "none").0.is_ok().then_some(()));
        eventually(AMPLE, "the pool answers", || touch_pool(runtime, backend, limit * 4).0.is_ok().then_some(()));
    };
    let round = |n: usize| {
        works();
        breaks();
        let (did_hang, took) = hangs(runtime, backend);
        heals();
        assert!(did_hang, "{n}: it answered");
        assert!(took < limit + BEYOND, "{n}: {took:?}");
    };
    (0..LAB_WARM_UP).for_each(round);
    works();
    let (before, begun) = (weigh(), Instant::now());
    (0..LAB_ROUNDS).for_each(round);
    works();
    println!("{LAB_ROUNDS} rounds took {:?}", begun.elapsed());
    is_as_before(before);
}

fn look_hangs(runtime: &Runtime, backend: &LibvirtBackend) -> (bool, Duration) {
    let (result, took) = look(runtime, backend, "none");
    (result.is_err(), took)
}

#[test]
fn twenty_stops_of_sshd_cost_each_call_its_deadline_and_leave_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    lab_rounds(lab, ["stop-sshd", "cont-sshd"], look_hangs);
}

#[test]
fn twenty_times_of_dropped_packets_cost_each_call_its_deadline_and_leave_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    lab_rounds(lab, ["drop", "undrop"], look_hangs);
}

#[test]
fn twenty_freezes_of_the_pool_cost_each_call_its_deadline_and_leave_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    lab_rounds(lab, ["freeze-pool", "thaw-pool"], |runtime, backend| {
        let (result, took) = touch_pool(runtime, backend, Duration::from_millis(500));
        assert!(look(runtime, backend, "none").0.is_ok(), "domains are looked at while the pool is frozen");
        (result.is_err(), took)
    });
}

#[test]
fn twenty_times_of_tcp_that_is_taken_in_and_silent_cost_each_call_its_deadline_and_leave_nothing() {
    let Some(lab) = Lab::up(1) else { return };
    let _alone = lab.alone();
    let (host, limit): (&Host, _) = (lab.host(0), Duration::from_millis(500));
    let relay = Relay::to((host.address.parse::<std::net::IpAddr>().unwrap(), host.port).into());
    let dir = tempfile::tempdir().unwrap();
    let known_hosts = dir.path().join("known_hosts");
    let lines = fs::read_to_string(&host.known_hosts).unwrap();
    let its = lines.lines().filter_map(|line| line.strip_prefix(&host.address));
    fs::write(&known_hosts, its.map(|key| format!("[127.0.0.1]:{}{key}\n", relay.port)).collect::<String>()).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let place = Place { address: "127.0.0.1".to_owned(), port: relay.port, ..Place::of(host) };
    let backend = open(&runtime, &Login { known_hosts, ..Login::of(host) }, place, limit);
    rounds(&runtime, &backend, limit, || relay.set_silent(true), look_hangs, || relay.set_silent(false));
}
