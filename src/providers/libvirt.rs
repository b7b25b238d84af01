//! Providers `kvm` and `kvm2`: a virtual machine per Proxy on libvirt hosts that are reached over SSH.

pub mod addresses;
mod errors;
pub mod images;
pub mod link;
pub mod metadata;
pub mod names;
pub mod seed;
pub mod xml;
