//! Flags and files, parsed once into what the rest may rely on.

pub mod providers;
