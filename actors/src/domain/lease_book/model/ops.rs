//! What may happen to a book, as values that proptest makes up and shrinks.

use proptest::prelude::*;
use proptest::sample::Index;

use super::{KINDS, NAMES, SELECTORS, TARGETS};
use crate::domain::lease_book::{Absence, Outcome};

/// A Proxy as the operations name it: uids of one name are its incarnations.
#[derive(Debug, Clone)]
pub(super) struct Who {
    pub(super) name: usize,
    pub(super) uid: u8,
}

#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) selectors: Vec<usize>,
    pub(super) target: Option<usize>,
    pub(super) ttl: u64,
    pub(super) exclude: Vec<usize>,
    pub(super) count: usize,
    pub(super) partial: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Op {
    Offer { who: Who, kind: usize, capacity: u32, port: u16, exit: Option<u8>, domain: u8 },
    Announce { who: Who, kind: usize, absence: Absence },
    Withdraw(Who, Absence),
    Cordon(Who, bool),
    EndLeases(Who),
    Remove(Who),
    Retain(Vec<usize>),
    Grant(Wanted),
    Renew { lease: Index, ttl: u64, generation: Option<bool> },
    Report { lease: Index, outcome: Outcome, target: Option<usize>, release: bool },
    Release(Index),
    Wait(u64),
    Expire,
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = || (0..NAMES.len(), prop_oneof![9 => Just(1_u8), 1 => 2_u8..4]).prop_map(|(name, uid)| Who { name, uid });
    let absence = || prop_oneof![Just(Absence::Provisioning), Just(Absence::Unhealthy)];
    let target = || proptest::option::of(0..TARGETS.len());
    let wanted = (
        proptest::collection::vec(0..SELECTORS.len(), 0..3),
        target(),
        1_u64..90,
        prop_oneof![3 => Just(Vec::new()), 1 => proptest::collection::vec(0..NAMES.len(), 1..3)],
        prop_oneof![3 => Just(1_usize), 1 => 2_usize..6],
        any::<bool>(),
    )
        .prop_map(|(selectors, target, ttl, exclude, count, partial)| Wanted {
            selectors,
            target,
            ttl,
            exclude,
            count,
            partial,
        });
    let offer = (
        who(),
        0..KINDS.len(),
        1_u32..4,
        prop_oneof![4 => Just(1_u16), 1 => Just(2)],
        proptest::option::of(0_u8..2),
        0_u8..3,
    )
        .prop_map(|(who, kind, capacity, port, exit, domain)| Op::Offer {
            who,
            kind,
            capacity,
            port,
            exit,
            domain,
        });
    let lease = any::<Index>;
    let op = prop_oneof![
        6 => offer,
        1 => (who(), 0..KINDS.len(), absence()).prop_map(|(who, kind, absence)| Op::Announce { who, kind, absence }),
        1 => (who(), absence()).prop_map(|(who, absence)| Op::Withdraw(who, absence)),
        1 => (who(), any::<bool>()).prop_map(|(who, on)| Op::Cordon(who, on)),
        1 => who().prop_map(Op::EndLeases),
        1 => who().prop_map(Op::Remove),
        1 => proptest::collection::vec(0..NAMES.len(), 3..8).prop_map(Op::Retain),
        12 => wanted.prop_map(Op::Grant),
        3 => (lease(), 1_u64..90, proptest::option::of(any::<bool>()))
            .prop_map(|(lease, ttl, generation)| Op::Renew { lease, ttl, generation }),
        5 => (lease(), proptest::sample::select(&Outcome::ALL[..]), target(), any::<bool>())
            .prop_map(|(lease, outcome, target, release)| Op::Report { lease, outcome, target, release }),
        3 => lease().prop_map(Op::Release),
        4 => (0_u64..40).prop_map(Op::Wait),
        1 => Just(Op::Wait(130)),
        2 => Just(Op::Expire),
    ];
    proptest::collection::vec(op, 1..120)
}
