//! The `NoCloud` seed of an instance: a small ISO image with what cloud-init reads at the first boot.
//!
//! Made in memory, as nothing may be written on a read-only root (fault 57). User data goes in byte for byte; nothing here
//! looks into it (fault 60, contract C10).

use std::io::Cursor;

use hadris_iso::joliet::JolietLevel;
use hadris_iso::read::PathSeparator;
use hadris_iso::rrip::RripOptions;
use hadris_iso::write::options::{BaseIsoLevel, CreationFeatures, IsoFormatOptions};
use hadris_iso::write::{InputEntry, InputMetadata, InputTree, IsoImageWriter};

mod vendor;

pub use vendor::vendor_data;

/// cloud-init looks for this label, all lower or all upper case (fault 56).
const LABEL: &str = "cidata";

/// The longest host name that Linux and DNS take as one label.
const LONGEST_HOSTNAME: usize = 63;

/// More than any Secret can hold; the image is made in memory.
pub const LARGEST_FILE: usize = 32 * 1024 * 1024;

/// What is in the root of the image.
#[derive(Clone, Copy)]
pub struct Seed<'a> {
    /// Required by cloud-init, so an absent one is an empty file (fault 56).
    pub user_data: &'a [u8],
    pub meta_data: &'a str,
    pub vendor_data: Option<&'a [u8]>,
}

impl std::fmt::Debug for Seed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seed({} bytes of user data)", self.user_data.len())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SeedError {
    #[error("`{file}` of cloud-init has {bytes} bytes, more than {LARGEST_FILE}")]
    TooLarge { file: &'static str, bytes: usize },
    #[error("the seed image cannot be made: {0}")]
    Image(String),
}

/// The image: label `cidata`, with Joliet and Rock Ridge, as plain ISO 9660 has no such names (fault 57).
/// It takes some milliseconds and twice its size of memory.
///
/// # Errors
/// [`SeedError::TooLarge`] above 32 MiB a file.
pub fn image(seed: &Seed<'_>) -> Result<Vec<u8>, SeedError> {
    let vendor = seed.vendor_data.map(|bytes| ("vendor-data", bytes));
    let files = [("meta-data", seed.meta_data.as_bytes()), ("user-data", seed.user_data)].into_iter().chain(vendor);
    let mut entries = Vec::new();
    for (name, bytes) in files {
        if bytes.len() > LARGEST_FILE {
            return Err(SeedError::TooLarge { file: name, bytes: bytes.len() });
        }
        let metadata = InputMetadata { mode: Some(0o444), uid: Some(0), gid: Some(0), ..InputMetadata::default() };
        entries.push(InputEntry::file(name, bytes).with_metadata(metadata));
    }
    let options = IsoFormatOptions {
        volume_name: LABEL.to_owned(),
        system_id: None,
        volume_set_id: None,
        publisher_id: None,
        preparer_id: None,
        application_id: None,
        sector_size: 2048,
        features: CreationFeatures {
            filenames: BaseIsoLevel::Level1 { supports_lowercase: false, supports_rrip: true },
            joliet: Some(JolietLevel::Level3),
            rock_ridge: Some(RripOptions::default()),
            ..CreationFeatures::default()
        },
        path_separator: PathSeparator::ForwardSlash,
        strict_charset: false,
    };
    let tree = InputTree::new(PathSeparator::ForwardSlash, entries);
    IsoImageWriter::create(Cursor::new(Vec::new()), tree, options)
        .map(Cursor::into_inner)
        .map_err(|error| SeedError::Image(error.to_string()))
}

/// `meta-data`. The instance-id decides what a first boot is, so it must be another one for each incarnation (fault 58).
pub fn meta_data(instance_id: &str, hostname: &str) -> String {
    // A JSON string is a YAML string, whatever is in it.
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    ["instance-id: ", &quoted(instance_id), "\nlocal-hostname: ", &quoted(hostname), "\n"].concat()
}

/// A host name out of a Proxy's name: one DNS label. cloud-init would take what follows a dot for the domain.
pub fn hostname(proxy_name: &str) -> String {
    let label: String = proxy_name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .skip_while(|c| *c == '-')
        .take(LONGEST_HOSTNAME)
        .collect();
    match label.trim_end_matches('-') {
        "" => "proxy".to_owned(),
        label => label.to_owned(),
    }
}

#[cfg(test)]
mod tests;
