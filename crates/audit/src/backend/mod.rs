//! What a store implements and uses: a writer with its backend, the working set, the steps, logs and
//! their trees, pruning. Nobody else needs it.
//!
//! Doc: records.md#the-ledger

pub mod chain;
pub mod gone;
pub mod merkle;
pub mod pruning;
pub mod recorder;
pub mod room;
pub mod steps;
pub mod watch;
pub mod working;
pub mod writer;
