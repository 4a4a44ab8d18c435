//! A pruned range of a log.
//!
//! Doc: records.md#retention

use crate::backend::merkle::Hash;

/// Pruned events: a whole subtree of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrunedRange {
    /// The place of the first event.
    pub seq: u64,
    /// The number of events: a power of two that divides the place.
    pub size: u64,
    /// The root of the subtree.
    pub root: Hash,
}
