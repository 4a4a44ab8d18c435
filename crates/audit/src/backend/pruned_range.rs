//! A range of a log that was pruned.
//!
//! Doc: records.md#retention

use crate::backend::merkle::Hash;

/// Events that are gone: a whole subtree of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrunedRange {
    /// The place of the first.
    pub seq: u64,
    /// How many: a power of two, which divides the place.
    pub size: u64,
    /// The root over them.
    pub root: Hash,
}
