//! An operator that is killed while machines are made and removed.

use std::time::{Duration, Instant};

use super::{Quick, are_whole, is_bare};
use crate::kit::eventually;

/// A Proxy whose machine is gone stays for the settle time, a minute.
const AMPLE: Duration = Duration::from_mins(3);

const ROUNDS: usize = 5;

#[test]
#[ignore = "three minutes; run by `make lab-long`"]
fn an_operator_killed_at_any_moment_of_create_and_delete_leaves_one_machine_or_none() {
    let Some(quick) = Quick::new() else { return };
    let (host, site) = (quick.host, &quick.site);
    let mut operator = site.start(host);
    for round in 0..ROUNDS {
        let begun = Instant::now();
        let name = format!("k{round}");
        site.apply(&name, "provider: quick");
        let first = later();
        operator.kill();
        operator = site.start(host);
        eventually(AMPLE, &format!("{name}, killed {first:?} into its create, is one machine"), || {
            are_whole(host, &[&name]).then_some(())
        });
        println!("round {round}: killed after {first:?}, made after {:?}", begun.elapsed());

        site.remove(&name);
        let second = later();
        operator.kill();
        operator = site.start(host);
        eventually(AMPLE, &format!("the machine of {name}, killed {second:?} into its delete, is gone"), || {
            is_bare(host).then_some(())
        });
        println!("round {round}: killed after {second:?}, gone after {:?}", begun.elapsed());
    }
    eventually(AMPLE, "the Proxies go", || operator.is_empty().then_some(()));
    assert!(is_bare(host), "something came back");
}

/// Some moment within what a create or delete takes: how long that was.
fn later() -> Duration {
    let span = Duration::from_millis(rand::random_range(0..2_500));
    std::thread::park_timeout(span);
    span
}
