//! Verification: re-computes every digest and names the first place where something is wrong.
//!
//! Works in a stream, offline, over a store or an export, in steps that follow from each other: a
//! survey of what logs say of themselves (beginnings, checkpoints, pruning) gives what must be found;
//! every log is replayed once, with the records that its events name; each part gives what does not
//! fit.
//!
//! Doc: records.md#verification

mod chain;
mod event_fields;
mod export;
mod records;
mod report;
mod store;
mod survey;

pub use export::export;
pub(crate) use export::{Ends, ExportedHead, PART, gone_line};
pub use report::{PROBLEMS_MAX, Problem, VerifyReport};
pub(crate) use store::GonePages;
pub use store::store;

use std::collections::BTreeMap;

use crate::digest::Digester;
use crate::note;

/// What the verifier brings along.
#[derive(Debug, Clone, Default)]
pub struct TrustAnchors {
    /// Keys by which checkpoints must be signed; where there are none, the keys that the logs
    /// themselves name are taken.
    pub keys: Vec<note::PublicKey>,
    /// Signed checkpoints that were kept outside.
    pub notes: Vec<String>,
    /// The store's digest key, by which asynchronous calls are compared with their events.
    pub digester: Option<Digester>,
    /// First-use pins, by id: the source digests that events must have approved.
    pub pins: BTreeMap<String, String>,
}
