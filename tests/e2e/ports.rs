//! Free ports, below those that the kernel hands out to outgoing connections, and each given once in this process.

use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::sync::Mutex;

const ALL: std::ops::Range<u16> = 20_000..31_000;

/// Where the next look begins. At random first, as other test processes run beside this one.
static NEXT: Mutex<Option<u16>> = Mutex::new(None);

/// This many free ports in a row.
pub(crate) fn free(count: u16) -> RangeInclusive<u16> {
    let mut next = NEXT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut first = next.unwrap_or_else(|| rand::random_range(ALL));
    for _ in 0..2 * ALL.len() {
        if first + count > ALL.end {
            first = ALL.start;
        }
        let ports = first..=first + count - 1;
        match ports.clone().find(|&port| TcpListener::bind(("127.0.0.1", port)).is_err()) {
            None => {
                *next = Some(first + count);
                return ports;
            }
            Some(taken) => first = taken + 1,
        }
    }
    panic!("there are no {count} free ports in a row in {ALL:?}");
}

/// One free port.
pub(crate) fn one() -> u16 {
    *free(1).start()
}
