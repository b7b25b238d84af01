//! libvirt's XML: what we define, and what we read out of what it says.
//!
//! Written with a writer that escapes, read into a small tree that keeps local names. A text that XML cannot hold is an
//! error before libvirt sees it (faults 39, 60).

mod domain;
mod read;
mod tree;
mod volume;
pub(super) mod write;

pub use domain::{DomainSpec, domain};
pub use read::{Backing, DomainFacts, Interface, VolumeInfo, domain_facts, pool_target_path, volume_info};
pub use tree::Element;
pub use volume::{overlay_volume, volume};

/// Why a text could not be written or read. No values of secrets are ever in these documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum XmlError {
    #[error("`{what}` holds a control character or another one that XML forbids")]
    Forbidden { what: String },
    #[error("the XML of the {document} cannot be read: {why}")]
    Malformed { document: &'static str, why: String },
    #[error("the XML of the {document} has no `{what}`")]
    Missing { document: &'static str, what: &'static str },
    #[error("the XML of the {document} has an invalid `{what}`: {given}")]
    Invalid { document: &'static str, what: &'static str, given: String },
}

#[cfg(test)]
mod tests;
