//! The marker `<base>.ok`: the record beside a base that says that it is whole, and what it is (faults 30, 31).
//!
//! It is written after the last byte of the base, and only by who made the base. JSON, of one version. A marker that
//! does not read is none: its writer died in the middle, or is at it.

use egress_actors::domain::error::OpError;
use egress_actors::domain::reason::Reason;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use url::Url;

use super::Wanted;
use super::store::VolumeFacts;
use crate::config::providers::ImageFormat;

/// Behind a base's name.
pub const ENDING: &str = ".ok";
const VERSION: u32 = 1;

/// What a marker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    version: u32,
    /// Where it came from, without user, query and fragment: those may hold secrets (S2).
    url: String,
    /// Of the file, in hex.
    sha256: String,
    /// Bytes of the file.
    size: u64,
    format: String,
    virtual_size: u64,
    /// The entry that fetched it, and what it called it.
    entry: String,
    image: String,
    at: Timestamp,
}

/// What is known about a base's marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marked {
    /// There is none.
    No,
    /// There is one that does not read.
    Broken,
    Good(Marker),
}

impl Marked {
    pub fn read(bytes: Option<&[u8]>) -> Self {
        let Some(bytes) = bytes else { return Self::No };
        // A volume may be longer than what was written to it.
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        match serde_json::from_slice::<Marker>(&bytes[..end]) {
            Ok(marker) if marker.version == VERSION && marker.sha256.len() == 64 => Self::Good(marker),
            _ => Self::Broken,
        }
    }
}

impl Marker {
    pub fn of(wanted: &Wanted, sha256: [u8; 32], size: u64, format: ImageFormat, virtual_size: u64) -> Self {
        Self {
            version: VERSION,
            url: origin(&wanted.url),
            sha256: hex(sha256),
            size,
            format: format.as_str().to_owned(),
            virtual_size,
            entry: wanted.entry.clone(),
            image: wanted.called.clone(),
            at: Timestamp::now(),
        }
    }

    pub fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers serialize")
    }

    /// But for the time.
    pub fn says_the_same(&self, other: &Self) -> bool {
        Self { at: other.at, ..self.clone() } == *other
    }

    pub const fn virtual_size(&self) -> u64 {
        self.virtual_size
    }

    /// Why the base with this marker is not what is wanted: permanent, and never resolved by deleting.
    pub fn disagrees(&self, wanted: &Wanted, base: &VolumeFacts, format: ImageFormat) -> Option<OpError> {
        let way_out = format!(
            "it is not replaced: give the image another key, or remove `{0}` and `{0}{ENDING}` by hand once nothing \
             uses them",
            base.name
        );
        let refuse = |what: String| Some(OpError::permanent(Reason::ImageDigestMismatch, format!("{what}; {way_out}")));
        let Self { size, .. } = *self;
        match wanted.sha256.map(hex) {
            Some(digest) if digest != self.sha256 => {
                return refuse(format!(
                    "volume `{}` holds the image with sha256 {}, and image `{}` is to have {digest}",
                    base.name, self.sha256, wanted.called
                ));
            }
            None if self.url != origin(&wanted.url) => {
                return refuse(format!(
                    "volume `{}` holds the image from {}, and image `{}` is to come from {}",
                    base.name,
                    self.url,
                    wanted.called,
                    origin(&wanted.url)
                ));
            }
            _ => {}
        }
        if self.format != format.as_str() {
            return refuse(format!("volume `{}` is marked as {}", base.name, self.format));
        }
        if base.physical != 0 && base.physical < size {
            return refuse(format!("volume `{}` has {} bytes, and {size} were written", base.name, base.physical));
        }
        None
    }
}

/// A URL without what may be secret.
pub fn origin(url: &Url) -> String {
    let mut bare = url.clone();
    bare.set_query(None);
    bare.set_fragment(None);
    let _ = bare.set_username("");
    let _ = bare.set_password(None);
    bare.into()
}

pub fn hex(digest: [u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
