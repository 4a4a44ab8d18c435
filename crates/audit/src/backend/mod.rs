//! What a store implements and uses: a writer with its backend, the working set, the steps, logs and
//! their trees, pruning. Nobody else needs it.
//!
//! Doc: records.md#the-ledger

pub mod chain;
pub mod merkle;
pub mod pruned_range;
pub mod pruning;
pub mod recorder;
pub mod room;
pub mod steps;
pub mod working;
pub mod writer;
pub mod writer_status;
