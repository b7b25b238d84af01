//! x

mod documents;
mod manifests;
mod wording;
