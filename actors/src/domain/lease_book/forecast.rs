//! When the next Proxy of a pool is free again, if nobody renews.

use std::time::Instant;

use super::ask::Target;
use super::cooling::Cooling;
use super::register::Register;
use super::slots::SlotSet;
use super::stock::Stock;

/// So many coming ends are looked at in the order of time: nearly always enough.
const AHEAD: usize = 64;

/// So many Proxies are looked at one by one where that was not enough: a refusal must stay cheap, as it is what a crowd
/// of crawlers gets. In a larger pool the answer may be later than the truth, never earlier: who waits for it finds one.
const ONE_BY_ONE: usize = 512;

/// The earliest moment at which a Proxy of `pool` that is full or rests for the target is neither.
pub(super) fn next_free(
    stock: &Stock,
    register: &Register,
    cooling: &Cooling,
    pool: &SlotSet,
    target: Option<&Target>,
) -> Option<Instant> {
    let free_at = |slot: usize| {
        if !stock.is_grantable(slot) {
            return None;
        }
        let rested = cooling.until(slot, target);
        let emptied = stock.full.contains(slot).then(|| register.first_end(&stock.get(slot).leases)).flatten();
        rested.max(emptied)
    };
    let in_pool = |slot: usize| if pool.contains(slot) { free_at(slot) } else { None };
    let of_leases = register.ends.iter().map(|&(at, number)| (at, register.get(number).slot));
    let of_rests = cooling.resting(target).into_iter().flat_map(|resting| resting.ends.iter().copied());

    let (by_leases, leases_unseen) = soonest(of_leases, in_pool);
    let (by_rests, rests_unseen) = soonest(of_rests, in_pool);
    let best = [by_leases, by_rests].into_iter().flatten().min();
    let is_settled = |unseen: Option<Instant>| unseen.is_none_or(|after| best.is_some_and(|best| best <= after));
    if is_settled(leases_unseen) && is_settled(rests_unseen) {
        return best;
    }
    let one_by_one = pool.iter().take(ONE_BY_ONE).filter_map(free_at).min();
    [best, one_by_one].into_iter().flatten().min()
}

/// Walks along coming ends: what it found, and after which end it did not look. A Proxy is free at one of its ends or
/// later, so there is no need to go on once an end is later than the best that was found.
fn soonest(
    ends: impl Iterator<Item = (Instant, usize)>,
    free_at: impl Fn(usize) -> Option<Instant>,
) -> (Option<Instant>, Option<Instant>) {
    let mut found: Option<Instant> = None;
    for (count, (at, slot)) in ends.enumerate() {
        if found.is_some_and(|found| found <= at) {
            return (found, None);
        }
        if count == AHEAD {
            return (found, Some(at));
        }
        found = [found, free_at(slot)].into_iter().flatten().min();
    }
    (found, None)
}
