//! The records that a batch of steps reads and changes: loaded before, changed in memory, written
//! after.
//!
//! A step states the records it needs, and decides from these alone. Its decision is a list of
//! changes, which are applied completely or not applied.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

mod batch;
mod changes;
mod needs;
mod set;
mod stored;

pub use batch::{Batch, ReceiptChange, WindowChange};
pub use changes::{
    BegunClaim, Changes, CheckpointWrite, NewEvent, ReceiptWrite, RecordText, Upkeep, WrittenLog,
};
pub use needs::{
    ApprovalName, CallName, Earlier, Needs, OtherHead, PendingName, RateName, StoreFindings,
    StoreQuery,
};
pub use set::{APPROVALS_LOADED, WorkingSet};
pub use stored::Stored;
