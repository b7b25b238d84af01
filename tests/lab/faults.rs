//! Faults that were seen in the field, each made to happen on hosts of the lab. Numbers in brackets are those of the
//! collection that the design began with.

mod agent;
mod checks;
mod daemon;
mod definitions;
mod doors;
mod files;
mod instances;
mod pools;
mod silence;
