//! The records that a batch of steps works on: loaded before, changed in memory, written after.
//!
//! A step says what it needs to look at, and decides from that alone. What it decides is a list of
//! changes; they are applied whole or not at all.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

mod batch;
mod changes;
mod needs;
mod set;

pub use batch::{Batch, ReceiptChange};
pub use changes::{
    Changes, CheckpointWrite, NewEvent, ReceiptWrite, RecordText, Upkeep, WrittenLog,
};
pub use needs::{
    ApprovalName, CallName, Earlier, Needs, OtherHead, RateName, StoreFindings, StoreQuery,
};
pub use set::{Stored, WorkingSet, has_accounting_event};
