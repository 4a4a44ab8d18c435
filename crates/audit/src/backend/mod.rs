//! The modules for implementing a store: a writer with its backend, the working set, the steps,
//! logs and their trees, and pruning. Other code does not need them.
//!
//! Doc: records.md#the-ledger

pub mod chain;
pub mod disk_space;
pub mod merkle;
pub mod pruned_range;
pub mod pruning;
pub mod recorder;
pub mod steps;
pub mod working;
pub mod writer;
pub mod writer_status;
