//! What a daemon is left with when it goes on taking connections, and something in it is held.

use std::time::Duration;

use egress_actors::domain::reason::Reason;
use egress_actors::ports::Backend as _;
use egress_operator::providers::libvirt::Limits;
use egress_operator::providers::libvirt::link::{LaneKind, LinkError};

use crate::kit::libvirtd::calls;
use crate::kit::{About, Mood, alone, eventually};
use crate::scripted::{Rig, mark};

const LIMIT: Duration = Duration::from_millis(100);
const AMPLE: Duration = Duration::from_secs(30);

/// Calls that a host may be left with, and the one list by which it is seen to be well.
const HELD: usize = 4 + 1;

fn limits() -> Limits {
    Limits { control: LIMIT, list: LIMIT, storage: LIMIT, ..Limits::default() }
}

/// A domain that is being started or ended on storage that hangs is locked, and whoever lists domains waits for it; who
/// opens a connection does not.
#[test]
fn a_daemon_of_which_a_domain_is_held_is_left_with_four_calls_though_it_takes_new_connections() {
    let _alone = alone();
    let rig = Rig::start(&limits());
    let operator = mark("a").operator;
    let list = || rig.runtime.block_on(rig.backend.list(&operator, None));
    eventually(AMPLE, "the host answers", || list().is_ok().then_some(()));
    rig.daemon.set(About::Call(calls::LIST_DOMAINS), Mood::Silent);
    let mut refused = 0;
    for n in 0..200 {
        let error = if n % 2 == 0 {
            list().map(drop).unwrap_err()
        } else {
            rig.runtime.block_on(rig.backend.get(&mark("a"))).map(drop).unwrap_err()
        };
        assert!(matches!(error.reason, Reason::Timeout | Reason::Wedged | Reason::Unreachable), "{n}: {error:?}");
        refused += usize::from(error.reason == Reason::Wedged);
        assert!(rig.daemon.held() <= HELD, "{n}: {} calls are left there", rig.daemon.held());
    }
    assert!(refused > 150 && rig.backend.link().standing().is_wedged, "{refused}");
    rig.daemon.heal();
    eventually(AMPLE, "it is used again", || list().is_ok().then_some(()));
    eventually(AMPLE, "nothing is counted", || (rig.backend.link().standing().outstanding == 0).then_some(()));
}

/// Its connection may go first, as sshd closes a channel on which nothing is said (fault 13): the call goes on there.
#[test]
fn calls_to_a_pool_whose_connections_break_under_them_are_counted_and_the_pool_rests() {
    let _alone = alone();
    let rig = Rig::start(&limits());
    let touch = || {
        rig.runtime.block_on(rig.backend.link().call(LaneKind::Storage, "virStoragePoolRefresh", AMPLE, |libvirt| {
            let pool = libvirt.rpc("virStoragePoolLookupByName", "", |c| c.lookup_storage_pool_by_name("default"))?;
            libvirt.rpc("virStoragePoolRefresh", "", |_| pool.refresh(0)).map(drop)
        }))
    };
    touch().unwrap();
    let asked = rig.daemon.asked(calls::POOL_BY_NAME) + rig.daemon.asked(calls::POOL_REFRESH);
    rig.daemon.set(About::Pool, Mood::Closes);
    let errors: Vec<_> = (0..50).map(|_| touch().unwrap_err()).collect();
    assert_eq!(errors[49], LinkError::PoolStuck);
    let asked = rig.daemon.asked(calls::POOL_BY_NAME) + rig.daemon.asked(calls::POOL_REFRESH) - asked;
    assert!(asked <= 2 * 4, "{asked} calls went there");
    rig.daemon.heal();
    eventually(AMPLE * 2, "the pool is tried again after half a minute", || touch().is_ok().then_some(()));
    assert!(!rig.backend.link().standing().is_pool_stuck);
}
