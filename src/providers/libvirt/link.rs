//! The links to one host: SSH connections, the lanes over them, and what is still running there.

pub mod known_hosts;
pub mod material;
pub mod ssh;
