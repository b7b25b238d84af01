//! For tests: a whole operator on scripted ports, and the suite that every backend passes.

pub mod world;

pub mod wishes;

pub mod backend;
pub mod network;
pub mod store;
pub mod told;
