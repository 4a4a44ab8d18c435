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

pub use batch::{Batch, Moved};
pub use changes::{Changes, Entry, Named, Put, RecordText, Upkeep, WrittenLog};
pub use needs::{ApprovalName, CallName, Earlier, Needs, OtherHead, RateName, Survey, Surveyed};
pub use set::{Stored, WorkingSet, is_vouched};
