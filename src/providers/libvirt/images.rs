//! Base images: from an HTTP source into a host's pool, once for each host and image.
//!
//! Owns the way from a URL to a volume that overlays may stand on. Spoken to by creates, through [`Images::base`].
//! Never knows libvirt: the pool is an [`ImageStore`], which the link implements. Never boots anything, never makes
//! overlays, and never deletes a base that any stand on (fault 36).
//!
//! ```text
//! policy    which URL and which address may be asked
//! source    one URL as a stream of pieces with a known length (fault 28)
//! format    what the first bytes are (fault 35)
//! marker    the record beside a base that says that it is whole (fault 30)
//! decision  what to do next about one base in one pool: pure
//! store     what a pool can do, as a trait
//! fetch     does what the decision says, until the base is there or cannot be had
//! progress  how far a transfer is
//! flights   one fetch for each host and image, however many ask
//! ```

use std::sync::Arc;
use std::time::Duration;

use egress_actors::domain::error::OpError;
use url::Url;

use crate::config::providers::ImageFormat;

pub mod decision;
pub mod fetch;
pub mod flights;
pub mod format;
pub mod marker;
pub mod policy;
pub mod progress;
pub mod source;
pub mod store;

#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;

use fetch::{Fetch, Limits};
use flights::{Flights, Site};
use policy::Policy;
use source::Source;
use store::ImageStore;

/// The image that an instance is to boot from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The base's name without its ending: `base-<key>` or `base-<entry>-<key>`. The format is known only from the
    /// source's first bytes, so this module adds `.qcow2` or `.raw`, and `.ok` for the marker.
    pub stem: String,
    /// As people know it, for messages: the key of `images`, or the URL without its query.
    pub called: String,
    /// The entry that asks; only written into the marker.
    pub entry: String,
    pub url: Url,
    pub sha256: Option<[u8; 32]>,
    pub format: Option<ImageFormat>,
    pub policy: Policy,
}

/// A base that is whole: overlays may stand on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// Of the volume in the pool.
    pub name: String,
    /// On the host.
    pub path: String,
    pub format: ImageFormat,
    /// Bytes of the disk that a guest sees: an overlay is at least as large.
    pub virtual_size: u64,
}

/// The image side of all hosts. One for the process, or one for each entry: flights are keyed by entry and host.
#[derive(Debug)]
pub struct Images {
    source: Arc<Source>,
    flights: Flights,
}

impl Images {
    pub fn new(source: Source, flights: Flights) -> Self {
        Self { source: Arc::new(source), flights }
    }

    /// The base, once it is in the pool. Waits up to `wait` and then says how far it is, as a transient error; the
    /// transfer goes on by itself, and ends when nobody asked for some time.
    ///
    /// Errors: those of [`Source::open`], of [`format::recognise`] and of the store; `ImageDigestMismatch`, permanent,
    /// if a whole base is there and is another image, or if the source gives another one.
    pub async fn base(
        &self,
        site: Site,
        store: Arc<dyn ImageStore>,
        wanted: Wanted,
        limits: Limits,
        wait: Duration,
    ) -> Result<Base, OpError> {
        let source: Arc<dyn source::Open> = self.source.clone();
        let begin = move |wanted: Wanted, cabin| Fetch { store, source, wanted, limits, cabin }.run();
        self.flights.base(site, wanted, wait, begin).await
    }

    /// Stops what runs, so that no partial volume is left behind; what has not stopped after `within` is cut.
    pub async fn stop(&self, within: Duration) {
        self.flights.stop(within).await;
    }
}
