//! Verifies logs and records: recomputes every digest and reports the first place of an error.
//!
//! It works as a stream, offline, over a store or an export, in steps. A survey of the milestones
//! of the logs (starts, checkpoints, pruning) determines the expectations. Every log is replayed
//! once, together with the records that its events name. Each part reports its mismatches.
//!
//! Doc: records.md#verification

mod approvals;
mod budgets;
mod chain;
mod documents;
mod event_fields;
mod export;
mod orders;
mod pages;
mod records;
mod report;
mod revisions;
mod store;
mod survey;

pub use export::export;
pub(crate) use export::{Ends, ExportedHead, PART, pruned_line};
pub use report::{PROBLEMS_MAX, Problem, VerifyReport};
pub(crate) use store::PrunedPages;
pub use store::store;

use std::collections::BTreeMap;

use crate::digest::Digester;
use crate::note;

/// The trusted input of the verifier.
#[derive(Debug, Clone, Default)]
pub struct TrustAnchors {
    /// Keys that must sign the checkpoints; if empty, the keys that the logs name are trusted.
    pub keys: Vec<note::PublicKey>,
    /// Signed checkpoints that were stored outside.
    pub notes: Vec<String>,
    /// The store's digest key, with which asynchronous calls are compared with their events.
    pub digester: Option<Digester>,
    /// First-use pins, by id: the source digests that events must have approved.
    pub pins: BTreeMap<String, String>,
}
