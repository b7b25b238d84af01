//! For tests: a whole operator on scripted ports, and the suite that every backend passes.

pub mod world;
