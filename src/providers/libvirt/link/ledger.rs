//! What is still running on a host after we gave up waiting for it.
//!
//! A cut frees us, not the host: an abandoned call keeps its worker in libvirtd until its cause ends, and some 20 of them
//! hang the daemon for everybody (faults.md, (i)). So they are counted, and with [`MOST`] of them nothing more is begun
//! until there is a sign that one ended.
//!
//! Pure: time is passed in.

use std::time::{Duration, Instant};

/// Most abandoned calls that a host may be left with.
pub const MOST: usize = 4;

/// libvirtd itself gives up waiting for a busy domain after 30 s, so that a call which was abandoned behind one is over
/// by then. One that waits for a domain's lock does not: then a list of the domains waits as well.
const PROVEN: Duration = Duration::from_secs(60);

/// With the agent's own timeout set, libvirtd ends a call to it long before.
const AGENT: Duration = Duration::from_secs(30);

/// How long nothing is sent to a pool of which too many calls were lost sight of: at first, and at most. Doubled from turn
/// to turn, so that a pool that is back rests no longer than it was away.
const POOL_REST: (Duration, Duration) = (Duration::from_secs(30), Duration::from_hours(1));

/// What an abandoned call was waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// The daemon, or a domain.
    Daemon,
    /// A guest agent.
    Agent,
    /// The pool.
    Pool,
}

/// Why nothing is begun just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many abandoned calls still run on the host.
    Wedged,
    /// A call to the pool has not come back.
    PoolStuck,
    /// Calls to guest agents have not come back a moment ago.
    AgentsStuck,
}

#[derive(Debug, Default)]
pub struct Ledger {
    /// Calls that nobody sees any more: what they waited for, and when they were given up.
    lost: Vec<(Awaited, Instant)>,
    /// A late call to the pool that is left uncut: it comes back when the pool does.
    canary: Option<u64>,
    /// Nothing is begun until somebody found the daemon answering again.
    wedged: bool,
    /// When the pool may be tried again though too many calls to it were lost, and how long it rests then.
    pool_rests: Option<(Instant, Duration)>,
}

impl Ledger {
    /// Whether a call that waits for this may begin, and it does: of a pool that rests, one may at a time.
    pub fn admit(&mut self, awaited: Awaited, now: Instant) -> Result<(), Refusal> {
        self.lost.retain(|lost| lost.0 != Awaited::Agent || is_with_its_agent(lost, now));
        self.would_admit(awaited, now)?;
        if awaited == Awaited::Pool
            && let Some((until, rest)) = &mut self.pool_rests
        {
            (*until, *rest) = (now + *rest, (*rest * 2).min(POOL_REST.1));
        }
        Ok(())
    }

    /// The same for a call that is not begun yet: it takes nobody's turn.
    pub fn would_admit(&self, awaited: Awaited, now: Instant) -> Result<(), Refusal> {
        if self.wedged {
            return Err(Refusal::Wedged);
        }
        // The agents' lane has two threads, so that two are lost sight of at most, and agents alone never keep anybody
        // from the domains.
        if awaited == Awaited::Agent && self.lost.iter().any(|lost| is_with_its_agent(lost, now)) {
            return Err(Refusal::AgentsStuck);
        }
        if awaited == Awaited::Pool {
            if self.canary.is_some() {
                return Err(Refusal::PoolStuck);
            }
            if self.pool_rests.is_some_and(|(until, _)| now < until) {
                return Err(Refusal::PoolStuck);
            }
        }
        Ok(())
    }

    /// A call was given up and cut. True if this wedges the host.
    pub fn lose(&mut self, awaited: Awaited, now: Instant) -> bool {
        self.lost.retain(|lost| lost.0 != Awaited::Agent || is_with_its_agent(lost, now));
        self.lost.push((awaited, now));
        if self.count(Awaited::Pool) >= MOST && self.pool_rests.is_none() {
            self.pool_rests = Some((now + POOL_REST.0, POOL_REST.0 * 2));
        }
        let others = self.lost.len() - self.count(Awaited::Pool);
        let wedges = !self.wedged && others >= MOST;
        self.wedged |= wedges;
        wedges
    }

    /// A late call to the pool stays, uncut: until it is back nothing goes to that pool.
    pub fn leave_as_canary(&mut self, call: u64) {
        self.canary = Some(call);
    }

    /// A call came back, late or not: of itself, or as its connection broke (`seen` is false then, and it may still run).
    /// True if this was the canary and the pool answers again.
    pub fn came_back(&mut self, call: u64, seen: bool, now: Instant) -> bool {
        if self.canary != Some(call) {
            return false;
        }
        self.canary = None;
        if seen {
            self.pool_answers();
        } else {
            self.lose(Awaited::Pool, now);
        }
        seen
    }

    /// A call to the pool was answered: what was lost before it has ended.
    pub fn pool_answers(&mut self) {
        self.lost.retain(|(what, _)| *what != Awaited::Pool);
        self.pool_rests = None;
    }

    /// The daemon listed its domains: it holds none of them, and who waits in there gives up by itself.
    pub fn daemon_answers(&mut self, now: Instant) {
        self.lost.retain(|(what, at)| *what != Awaited::Daemon || now < *at + PROVEN);
    }

    /// A list of the domains that was asked for while the host was wedged, and left uncut, was answered.
    pub fn unwedge(&mut self) {
        self.wedged = false;
        self.lost.retain(|(what, _)| *what == Awaited::Pool);
    }

    pub fn is_wedged(&self) -> bool {
        self.wedged
    }

    pub fn is_pool_stuck(&self) -> bool {
        self.canary.is_some() || self.pool_rests.is_some()
    }

    /// Calls that may still run on the host without us.
    pub fn outstanding(&self) -> usize {
        self.lost.len() + usize::from(self.canary.is_some())
    }

    fn count(&self, awaited: Awaited) -> usize {
        self.lost.iter().filter(|(what, _)| *what == awaited).count()
    }
}

fn is_with_its_agent((what, at): &(Awaited, Instant), now: Instant) -> bool {
    *what == Awaited::Agent && now < *at + AGENT
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn four_calls_that_were_cut_wedge_the_host_until_the_daemon_is_found_answering() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        for n in 1..MOST {
            assert!(!ledger.lose(Awaited::Daemon, now), "{n}");
            assert_eq!(ledger.admit(Awaited::Daemon, now), Ok(()));
        }
        assert!(ledger.lose(Awaited::Agent, now));
        for awaited in [Awaited::Daemon, Awaited::Agent, Awaited::Pool] {
            assert_eq!(ledger.admit(awaited, now + 3600 * SECOND), Err(Refusal::Wedged));
        }
        ledger.unwedge();
        assert_eq!((ledger.outstanding(), ledger.admit(Awaited::Daemon, now)), (0, Ok(())));
    }

    #[test]
    fn agents_that_never_answer_are_left_alone_and_keep_nobody_from_the_domains() {
        let (mut ledger, begun) = (Ledger::default(), Instant::now());
        let mut asked = 0;
        for second in 0..300 {
            let now = begun + second * SECOND;
            assert_eq!(ledger.admit(Awaited::Daemon, now), Ok(()), "{second}");
            match ledger.admit(Awaited::Agent, now) {
                Ok(()) => {
                    asked += 1;
                    assert!(!ledger.lose(Awaited::Agent, now), "{second}");
                }
                Err(refusal) => assert_eq!(refusal, Refusal::AgentsStuck),
            }
            assert!(ledger.outstanding() <= 1);
        }
        assert_eq!(asked, 10, "one each half minute");
    }

    #[test]
    fn a_stuck_pool_takes_one_call_and_nothing_more_until_that_comes_back() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.leave_as_canary(7);
        assert_eq!(ledger.admit(Awaited::Pool, now + 3600 * SECOND), Err(Refusal::PoolStuck));
        assert_eq!(ledger.admit(Awaited::Daemon, now), Ok(()));
        assert!(!ledger.came_back(8, true, now), "another call");
        assert!(ledger.came_back(7, true, now));
        assert_eq!((ledger.outstanding(), ledger.admit(Awaited::Pool, now)), (0, Ok(())));
    }

    #[test]
    fn canaries_that_die_with_their_connection_use_up_four_workers_and_then_one_more_as_time_doubles() {
        let (mut ledger, begun) = (Ledger::default(), Instant::now());
        let mut tried = 0;
        for second in 0..3600 {
            let now = begun + second * SECOND;
            // Each call asks twice: before it waits for a connection, and when it begins.
            if ledger.would_admit(Awaited::Pool, now).is_ok() && ledger.admit(Awaited::Pool, now).is_ok() {
                tried += 1;
                ledger.leave_as_canary(tried);
                ledger.came_back(tried, false, now);
            }
            assert!(!ledger.is_wedged(), "domains go on");
        }
        assert_eq!(tried, 4 + 6);
        ledger.pool_answers();
        assert_eq!((ledger.outstanding(), ledger.is_pool_stuck()), (0, false));
    }

    #[test]
    fn what_was_cut_is_forgotten_once_the_daemon_has_answered_for_a_minute_and_agents_by_themselves() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.lose(Awaited::Daemon, now);
        ledger.lose(Awaited::Agent, now);
        ledger.daemon_answers(now + 59 * SECOND);
        assert_eq!(ledger.outstanding(), 2);
        ledger.daemon_answers(now + 60 * SECOND);
        ledger.admit(Awaited::Daemon, now + 60 * SECOND).unwrap();
        assert_eq!(ledger.outstanding(), 0);
    }
}
