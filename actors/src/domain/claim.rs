//! Who leads: client-go's election, as a value that is told what happened and says what comes next.
//!
//! One record in the cluster names the holder. The holder replaces it again and again, each time against the version that
//! it saw last; a challenger takes it when it has not changed for the record's own lease duration, *measured by the
//! challenger's clock from the moment at which it saw the latest change*. Wall clocks are never compared.
//!
//! Why no two lead at once: the holder counts its claim from the instant *before* it sent the write and for no longer than
//! the renew deadline; a challenger counts from an instant *after* the write took effect, for the lease duration, which is
//! longer. Between them lie drifting clocks and the time from a test of the claim to the effect of what it allowed. A write
//! that was not acknowledged proves nothing to its sender, and a late one meets another version.
//!
//! Two deviations from client-go (docs/adr/0011): a challenger's clock starts anew at its first successful read after a
//! failed call, so that an outage of the API server does not depose a living holder; and a holder that lets go keeps its
//! name in the record with a lease of one second, which is taken at once by anybody.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::clock::Now;

/// What a record with a lease this short says: its holder has let go. Nobody elects with such a lease.
pub const LET_GO: Duration = Duration::from_secs(1);

/// The claim as everybody reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimState {
    /// Another replica leads, or nobody is known to.
    Standby,
    /// Ours until the instant; `None` while nothing can take it away.
    Leading { epoch: u32, until: Option<Instant> },
    /// Ours lastly, and expired: no writes, no mutations, no new grants; nothing is forgotten.
    Suspended { epoch: u32 },
}

impl ClaimState {
    /// True while the claim is provably ours: tested at each use, as nobody may have been awake to publish its end.
    pub fn leads(self, now: Instant) -> bool {
        match self {
            Self::Leading { until, .. } => until.is_none_or(|until| now < until),
            Self::Standby | Self::Suspended { .. } => false,
        }
    }

    /// The epoch of the claim that is, or was lastly, ours.
    pub const fn epoch(self) -> Option<u32> {
        match self {
            Self::Standby => None,
            Self::Leading { epoch, .. } | Self::Suspended { epoch } => Some(epoch),
        }
    }

    /// For people and logs.
    pub const fn role(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Leading { .. } => "leading",
            Self::Suspended { .. } => "suspended",
        }
    }
}

/// The record that all candidates share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRecord {
    /// Empty: nobody. We never write that, others' tools do.
    pub holder: Arc<str>,
    /// Whole seconds: how long the record stands without a change.
    pub lease: Duration,
    pub acquired_at: SystemTime,
    pub renewed_at: SystemTime,
    /// How often the holder became another one. Under a claim it is the epoch.
    pub transitions: u32,
}

impl ClaimRecord {
    /// Free for everybody: its holder let go after it had stopped, or there is none.
    pub fn is_free(&self) -> bool {
        self.holder.is_empty() || self.lease <= LET_GO
    }
}

/// The record and the store's version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub record: ClaimRecord,
    pub version: Arc<str>,
}

/// A write that is only right if nothing happened since the record was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimWrite {
    Create(ClaimRecord),
    Replace(ClaimRecord, Arc<str>),
}

/// The rhythm of the election: `lease` > `renew_deadline` > `retry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimSettings {
    /// A challenger waits so long without a change.
    pub lease: Duration,
    /// A holder leads so long after it sent its latest renewal. What is left of the lease is for clocks that drift, and
    /// for what was allowed in the last moment to take its effect.
    pub renew_deadline: Duration,
    pub retry: Duration,
    /// What an earlier process of the same name granted is known to this one (a journal). If not, taking back one's own
    /// record is a transition too, or generations would be counted from the start again under the same epoch.
    pub remembers: bool,
    /// A holder that ends lets go, and is there to answer until another one has taken its place, but no longer than this.
    /// Who has just started leaves what was let go, for as long, to those who stand already: it may not be ready to take
    /// that place. None: nobody finds the holder by its mark.
    pub hand_over: Option<Duration>,
}

impl Default for ClaimSettings {
    /// client-go's own.
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { lease: secs(15), renew_deadline: secs(10), retry: secs(2), remembers: false, hand_over: None }
    }
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Wait(Instant),
    Read,
    Write(ClaimWrite),
}

/// The record as it was seen lastly.
#[derive(Debug, Clone)]
struct Seen {
    record: ClaimRecord,
    /// None: it was there, and is gone.
    version: Option<Arc<str>>,
    /// When, by our clock, it was seen to change.
    changed_at: Instant,
}

/// A claim that was acknowledged to us.
#[derive(Debug, Clone, Copy)]
struct Held {
    epoch: u32,
    until: Instant,
}

#[derive(Debug, Clone, Copy)]
enum Turn {
    Read,
    /// Right after the read that showed that it may.
    Take,
    /// Without a read, as long as the claim is ours.
    Renew,
}

/// One candidate. Tells nothing and reads no clock.
#[derive(Debug, Clone)]
pub struct Candidate {
    me: Arc<str>,
    settings: ClaimSettings,
    seen: Option<Seen>,
    held: Option<Held>,
    /// A call failed since the latest successful one: whether the holder could renew meanwhile is not known.
    doubted: bool,
    /// Until then what was let go is for others.
    defers_until: Instant,
    /// Overtaken just before: once more and it waits.
    hasty: bool,
    turn: Turn,
    at: Instant,
}

impl Candidate {
    /// A candidate that goes on from what was published before it, by an earlier incarnation in the same process.
    pub fn new(me: Arc<str>, settings: ClaimSettings, before: ClaimState, now: Instant) -> Self {
        let held = match before {
            ClaimState::Standby => None,
            ClaimState::Leading { epoch, until } => Some(Held { epoch, until: until.unwrap_or(now) }),
            ClaimState::Suspended { epoch } => Some(Held { epoch, until: now }),
        };
        let defers_until = now + settings.hand_over.unwrap_or_default();
        Self { me, settings, seen: None, held, doubted: false, defers_until, hasty: false, turn: Turn::Read, at: now }
    }

    pub fn state(&self, now: Instant) -> ClaimState {
        match self.held {
            None => ClaimState::Standby,
            Some(Held { epoch, until }) if now < until => ClaimState::Leading { epoch, until: Some(until) },
            Some(Held { epoch, .. }) => ClaimState::Suspended { epoch },
        }
    }

    /// Who leads, as far as it was seen.
    pub fn holder(&self) -> Option<&Arc<str>> {
        self.seen
            .as_ref()
            .filter(|seen| seen.version.is_some() && !seen.record.is_free())
            .map(|seen| &seen.record.holder)
    }

    pub fn next(&self, now: Now) -> Next {
        if now.mono < self.at {
            return Next::Wait(self.at);
        }
        match self.turn {
            Turn::Read => Next::Read,
            // Who slept past its claim looks first: another may have it, and this would be a write without a claim.
            Turn::Renew if !self.state(now.mono).leads(now.mono) => Next::Read,
            Turn::Take | Turn::Renew => Next::Write(self.write(now.wall)),
        }
    }

    fn write(&self, wall: SystemTime) -> ClaimWrite {
        let Some(Seen { record, version, .. }) = &self.seen else {
            return ClaimWrite::Create(self.record(0, wall, wall));
        };
        // Each renewal changes the record, whatever the wall clock does: a change is what challengers look for.
        let renewed_at = wall.max(record.renewed_at + Duration::from_micros(1));
        let resumed = self.held.is_some_and(|held| held.epoch == record.transitions) || self.settings.remembers;
        let mine = if record.holder == self.me && resumed {
            self.record(record.transitions, record.acquired_at, renewed_at)
        } else {
            self.record(record.transitions.saturating_add(1), wall, renewed_at)
        };
        match version {
            Some(version) => ClaimWrite::Replace(mine, version.clone()),
            None => ClaimWrite::Create(mine),
        }
    }

    fn record(&self, transitions: u32, acquired_at: SystemTime, renewed_at: SystemTime) -> ClaimRecord {
        let (holder, lease) = (self.me.clone(), self.settings.lease);
        ClaimRecord { holder, lease, acquired_at, renewed_at, transitions }
    }

    /// The record was read; none: on evidence, it is not there.
    pub fn on_read(&mut self, found: Option<Stored>, now: Instant) {
        match (found, &mut self.seen) {
            (Some(Stored { record, version }), seen) => {
                let same = seen.as_ref().filter(|seen| seen.version.is_some() && seen.record == record);
                let changed_at = same.filter(|_| !self.doubted).map_or(now, |seen| seen.changed_at);
                *seen = Some(Seen { record, version: Some(version), changed_at });
            }
            // Somebody removed it: its holder leads on until its claim ends, as it does after its latest renewal.
            (None, Some(seen)) => {
                if seen.version.take().is_some() || self.doubted {
                    seen.changed_at = now;
                }
            }
            (None, None) => {}
        }
        self.doubted = false;
        let (may_take, expires_at) = match &self.seen {
            None => (true, now),
            Some(seen) => {
                let is_free = seen.record.is_free();
                let expires_at = if is_free { self.defers_until } else { seen.changed_at + seen.record.lease };
                let ours = seen.record.holder == self.me;
                if !ours {
                    self.held = None;
                }
                (ours || now >= expires_at, expires_at)
            }
        };
        if may_take {
            (self.turn, self.at) = (Turn::Take, now);
        } else {
            self.hasty = false;
            (self.turn, self.at) = (Turn::Read, expires_at.min(now + self.settings.retry));
        }
    }

    /// Our write, sent at that instant, is in the store.
    pub fn on_written(&mut self, stored: Stored, sent_at: Instant, now: Instant) {
        let until = sent_at + self.settings.renew_deadline;
        let epoch = stored.record.transitions;
        self.seen = Some(Seen { record: stored.record, version: Some(stored.version), changed_at: now });
        (self.doubted, self.hasty) = (false, false);
        if self.held.is_none() && now >= until {
            // It was ours, and is not any more before we heard of it: nothing began with it.
            (self.turn, self.at) = (Turn::Read, now);
            return;
        }
        self.held = Some(Held { epoch, until });
        (self.turn, self.at) = (Turn::Renew, sent_at + self.settings.retry);
    }

    /// The record was another than the one that the write was against.
    pub fn on_overtaken(&mut self, now: Instant) {
        let at = if self.hasty { now + self.settings.retry } else { now };
        (self.turn, self.at, self.hasty) = (Turn::Read, at, !self.hasty);
    }

    /// A call failed, or did not end in time. A write may have its effect all the same: the next read shows it.
    pub fn on_failed(&mut self, now: Instant) {
        (self.doubted, self.hasty) = (true, false);
        (self.turn, self.at) = (Turn::Read, now + self.settings.retry);
    }
}

/// What lets the claim go, so that the next one starts at once; none if it is not ours to let go. Written only by who has
/// stopped.
pub fn let_go(me: &str, found: &Stored, wall: SystemTime) -> Option<ClaimWrite> {
    let record = &found.record;
    (*record.holder == *me && !record.is_free()).then(|| {
        let renewed_at = wall.max(record.renewed_at + Duration::from_micros(1));
        ClaimWrite::Replace(ClaimRecord { lease: LET_GO, renewed_at, ..record.clone() }, found.version.clone())
    })
}

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
