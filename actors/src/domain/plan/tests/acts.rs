//! What can happen in the small world of the property tests.

use proptest::prelude::*;

/// How an operation ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Good,
    Transient,
    Permanent,
    /// Done, and nobody saw it.
    UnknownDone,
    /// It lands this many seconds later: less than the settle time.
    UnknownLate(u8),
    UnknownNever,
    /// Not handed to the backend at all.
    Cancelled,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Act {
    Wait(u16),
    WaitForWake,
    EndOnHost(End),
    EndAside(End),
    /// The actor sees the object as it is.
    Show,
    /// The status that was planned last is written.
    Write,
    List,
    Probe(bool),
    /// The actor loses everything; what it had running lands later, or never.
    Crash(Option<u8>),
    Stop,
    Vanish,
    Leases(u8),
    Delete,
    SkipCleanup,
    Recreate(u8),
    Pause(bool),
    Drain(bool),
    Secret,
    /// Somebody takes our finalizer away.
    TakeFinalizer,
    Claim(bool),
    Provider(u8),
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        6 => Just(End::Good),
        2 => Just(End::Transient),
        1 => Just(End::Permanent),
        1 => Just(End::UnknownDone),
        2 => (0_u8..20).prop_map(End::UnknownLate),
        1 => Just(End::UnknownNever),
        1 => Just(End::Cancelled),
    ]
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0_u16..90).prop_map(Act::Wait),
        6 => Just(Act::WaitForWake),
        16 => end().prop_map(Act::EndOnHost),
        12 => end().prop_map(Act::EndAside),
        10 => Just(Act::Show),
        6 => Just(Act::Write),
        4 => Just(Act::List),
        6 => any::<bool>().prop_map(Act::Probe),
        2 => prop::option::of(0_u8..20).prop_map(Act::Crash),
        1 => Just(Act::Stop),
        1 => Just(Act::Vanish),
        2 => (0_u8..3).prop_map(Act::Leases),
        1 => Just(Act::Delete),
        1 => Just(Act::SkipCleanup),
        1 => (0_u8..3).prop_map(Act::Recreate),
        1 => any::<bool>().prop_map(Act::Pause),
        1 => any::<bool>().prop_map(Act::Drain),
        1 => Just(Act::Secret),
        1 => Just(Act::TakeFinalizer),
        1 => any::<bool>().prop_map(Act::Claim),
        1 => (0_u8..4).prop_map(Act::Provider),
    ]
}
