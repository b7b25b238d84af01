//! A libvirtd that comes and goes while machines are made and removed (fault 23).

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::{Quick, are_whole, is_bare};
use crate::kit::{Host, eventually};

const AMPLE: Duration = Duration::from_mins(3);

/// Less than a create takes.
const UP_FOR: Duration = Duration::from_secs(2);

/// So many times in each half.
const RESTARTS: usize = 4;

#[test]
#[ignore = "three minutes; run by `make lab-long`"]
fn five_machines_made_and_removed_under_a_libvirtd_that_restarts_are_each_one_and_then_none() {
    let Some(quick) = Quick::new() else { return };
    let (host, site) = (quick.host, &quick.site);
    let operator = site.start(host);
    let begun = Instant::now();
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        site.apply(name, "provider: quick");
    }
    restarts(host);
    eventually(AMPLE, "there are five machines", || are_whole(host, &names).then_some(()));
    println!("five after {:?}", begun.elapsed());

    for name in names {
        site.remove(name);
    }
    restarts(host);
    eventually(AMPLE, "all are gone", || (operator.is_empty() && is_bare(host)).then_some(()));
    println!("none after {:?}", begun.elapsed());
}

fn restarts(host: &Host) {
    let (_held, over) = channel::<()>();
    for _ in 0..RESTARTS {
        host.breaks("restart-libvirtd", &[]);
        assert_eq!(over.recv_timeout(UP_FOR), Err(RecvTimeoutError::Timeout));
    }
}
