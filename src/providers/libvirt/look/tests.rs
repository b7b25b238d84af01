use super::State::{Crashed, Paused, PausedByIoError, Running, ShutOff, ShuttingDown, StartingUp, Suspended};
use super::*;

/// All of `virDomainState`, and the reasons that count: what is I1's table in the design of this provider.
#[test]
fn each_state_that_libvirt_knows_is_one_of_ours_and_only_what_has_ended_is_over() {
    for (state, reason, wanted) in [
        (0, 0, State::Unknown),
        (1, 1, Running),
        (1, 5, Running),
        (2, 0, Running),
        (3, 0, Paused),
        (3, 1, Paused),
        (3, 2, Paused),
        (3, 5, PausedByIoError),
        (3, 10, Paused),
        (3, 11, StartingUp),
        (4, 1, ShuttingDown),
        (5, 1, ShutOff),
        (5, 2, ShutOff),
        (5, 3, ShutOff),
        (5, 5, ShutOff),
        (5, 6, ShutOff),
        (6, 0, Crashed),
        (7, 0, Suspended),
        (8, 0, State::Unknown),
        (u32::MAX, -1, State::Unknown),
    ] {
        assert_eq!(State::of((state, reason)), wanted, "{state}, {reason}");
    }
    for state in [Running, Paused, PausedByIoError, StartingUp, ShuttingDown, Suspended] {
        assert!(state.is_active(), "{state:?}");
    }
    for state in [ShutOff, Crashed] {
        assert!(!state.is_active(), "{state:?}");
    }
}
