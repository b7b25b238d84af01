//! The real binary on a host that stalls: it ends when it is told to, and a pool that hangs is not asked to death.

use std::time::{Duration, Instant};

use super::{Quick, domains, is_bare};
use crate::kit::eventually;
use crate::kit::operator::Site;

/// A Proxy whose machine is gone stays for the settle time, a minute.
const AMPLE: Duration = Duration::from_mins(3);

/// `terminationGracePeriodSeconds` in `config/manager/deployment.yaml`.
const GRACE: Duration = Duration::from_secs(60);

/// A libvirtd that answers at all answers in a moment; this machine is busy.
const VIRSH_WITHIN: Duration = Duration::from_secs(5);

/// Proxies that want something of the pool that hangs.
const RETRYING: usize = 100;

#[test]
fn an_operator_that_is_told_to_end_while_its_host_stalls_ends_within_its_grace() {
    let Some(quick) = Quick::new() else { return };
    let host = quick.host;
    for (stalls, goes_on) in [
        ("stop-libvirtd", "cont-libvirtd"),
        ("stop-sshd", "cont-sshd"),
        ("drop", "undrop"),
        ("freeze-pool", "thaw-pool"),
    ] {
        let site = Site::new(&quick.entry);
        let operator = site.start(host);
        site.apply("first", "provider: quick");
        eventually(AMPLE, "a machine is made", || (!domains(host).is_empty()).then_some(()));
        host.breaks(stalls, &[]);
        site.remove("first");
        for n in 0..10 {
            site.apply(&format!("more-{n}"), "provider: quick");
        }
        eventually(AMPLE, "they are wanted", || operator.proxy("more-9"));
        let (status, took) = operator.ends(GRACE);
        println!("{stalls}: ended after {took:?} with {status}");
        assert!(status.success() && took < GRACE, "{stalls}: {status} after {took:?}");
        host.breaks(goes_on, &[]);
        host.breaks("wipe", &[]);
    }
}

#[test]
fn a_pool_that_is_frozen_under_a_hundred_retrying_proxies_leaves_libvirtd_answering() {
    frozen_for(Duration::from_secs(30));
}

#[test]
#[ignore = "twelve minutes; run by `make lab-long`"]
fn a_pool_that_is_frozen_for_ten_minutes_under_a_hundred_retrying_proxies_leaves_libvirtd_answering() {
    frozen_for(Duration::from_mins(10));
}

fn frozen_for(how_long: Duration) {
    let Some(quick) = Quick::new() else { return };
    let (host, site) = (quick.host, &quick.site);
    let operator = site.start(host);
    site.apply("first", "provider: quick");
    // A start that is under way as the pool freezes holds its domain, and with it `virsh list`: libvirt's own.
    eventually(AMPLE, "a machine runs", || {
        (!host.virsh(&["list", "--state-running", "--name"]).trim().is_empty()).then_some(())
    });
    host.breaks("freeze-pool", &[]);
    site.remove("first");
    for n in 0..RETRYING {
        site.apply(&format!("p{n}"), "provider: quick");
    }
    let (begun, mut longest, mut asked) = (Instant::now(), Duration::ZERO, 0);
    while begun.elapsed() < how_long {
        let asking = Instant::now();
        host.virsh(&["list", "--all"]);
        let took = asking.elapsed();
        (longest, asked) = (longest.max(took), asked + 1);
        assert!(took < VIRSH_WITHIN, "`virsh list` took {took:?}, {:?} into the freeze", begun.elapsed());
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("{asked} times `virsh list`, at most {longest:?}, while the pool was frozen for {how_long:?}");
    for n in 0..RETRYING {
        site.remove(&format!("p{n}"));
    }
    host.breaks("thaw-pool", &[]);
    eventually(AMPLE, "all goes on, and away", || (operator.is_empty() && is_bare(host)).then_some(()));
}
