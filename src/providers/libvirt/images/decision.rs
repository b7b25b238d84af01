//! What to do next about one base in one pool. Pure: takes what was seen and the time, returns a step.
//!
//! ```text
//! base + good marker, agrees      -> Ready
//! base + good marker, disagrees   -> Refuse (never deleted)
//! base without, growing           -> Wait: another writer is at it
//! base without, not grown for the idle deadline -> Remove, unless overlays stand on it
//! marker without base             -> Remove the marker: a base that comes must not find it
//! nothing                         -> Fetch: creating the volume is the lock
//! ```

use std::time::Duration;

use egress_actors::domain::error::OpError;
use tokio::time::Instant;

use super::marker::{self, Marked};
use super::store::VolumeFacts;
use super::{Base, Wanted};
use crate::config::providers::ImageFormat;

/// A base of the wanted image, in one of the formats, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub format: ImageFormat,
    pub base: Option<VolumeFacts>,
    pub marked: Marked,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Ready(Base),
    Refuse(OpError),
    /// Somebody else writes to it; look again after this long.
    Wait(Duration),
    /// A part that nobody goes on with: delete the marker first, then the base.
    Remove {
        marker: Option<String>,
        base: Option<VolumeFacts>,
    },
    Fetch,
}

/// Since when a part has been as it is.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    last: Option<(Fingerprint, Instant)>,
}

/// What changes while somebody writes. Either number may stand still alone: the one of a raw volume is its size from
/// the start, the other of a filesystem that compresses.
type Fingerprint = Vec<(String, u64, u64, bool)>;

impl Watch {
    /// How long the parts have been as they are now, by our own looks.
    fn unchanged_for(&mut self, parts: &[&Seen], now: Instant) -> Duration {
        let print: Fingerprint = parts
            .iter()
            .filter_map(|seen| seen.base.as_ref().map(|base| (base, &seen.marked)))
            .map(|(base, marked)| (base.name.clone(), base.allocation, base.physical, *marked == Marked::Broken))
            .collect();
        match &self.last {
            Some((known, since)) if *known == print => now.saturating_duration_since(*since),
            _ => {
                self.last = Some((print, now));
                Duration::ZERO
            }
        }
    }
}

/// The names under which the wanted base may be.
pub fn names(wanted: &Wanted) -> impl Iterator<Item = (ImageFormat, String)> + '_ {
    [ImageFormat::Qcow2, ImageFormat::Raw]
        .into_iter()
        .filter(|format| wanted.format.is_none_or(|only| only == *format))
        .map(|format| (format, name(wanted, format)))
}

pub fn name(wanted: &Wanted, format: ImageFormat) -> String {
    format!("{}.{}", wanted.stem, format.as_str())
}

pub fn marker_name(base: &str) -> String {
    format!("{base}{}", marker::ENDING)
}

/// `stale_after`: a part that nobody wrote to for this long is nobody's.
pub fn next(seen: &[Seen], wanted: &Wanted, watch: &mut Watch, stale_after: Duration, now: Instant) -> Step {
    let mut refused = None;
    for one in seen {
        if let (Some(base), Marked::Good(marker)) = (&one.base, &one.marked) {
            match marker.disagrees(wanted, base, one.format) {
                Some(error) => refused = refused.or(Some(error)),
                None => {
                    return Step::Ready(Base {
                        name: base.name.clone(),
                        path: base.path.clone(),
                        format: one.format,
                        virtual_size: marker.virtual_size(),
                    });
                }
            }
        }
    }
    if let Some(error) = refused {
        return Step::Refuse(error);
    }
    let parts: Vec<&Seen> = seen.iter().filter(|one| one.base.is_some()).collect();
    let unchanged = watch.unchanged_for(&parts, now);
    if let Some(part) = parts.first() {
        if unchanged < stale_after {
            return Step::Wait(look_again_after(stale_after).min(stale_after.saturating_sub(unchanged)));
        }
        let marker = (part.marked != Marked::No).then(|| marker_name(&name(wanted, part.format)));
        return Step::Remove { marker, base: part.base.clone() };
    }
    match seen.iter().find(|one| one.marked != Marked::No) {
        Some(orphan) => Step::Remove { marker: Some(marker_name(&name(wanted, orphan.format))), base: None },
        None => Step::Fetch,
    }
}

/// Often enough to see a short deadline pass, seldom enough for pools with thousands of volumes (fault 40).
fn look_again_after(stale_after: Duration) -> Duration {
    (stale_after / 6).clamp(Duration::from_millis(50), Duration::from_secs(5))
}
