//! Counts how often texts are read and trees are built, for tests of how often a payload is read.

use std::cell::RefCell;

thread_local! {
    /// `None` until a test begins to count.
    static READINGS: RefCell<Option<Vec<Reading>>> = const { RefCell::new(None) };
}

/// One operation on a text on this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// A pass over a text with this number of bytes, or over a part of it.
    Pass(usize),
    /// The building of a tree from a text with this number of bytes; its pass is counted separately.
    Tree(usize),
}

/// Begins to count the readings on this thread.
pub fn begin() {
    READINGS.set(Some(Vec::new()));
}

/// Ends the counting and returns the readings on this thread since it began.
#[must_use]
pub fn end() -> Vec<Reading> {
    READINGS.take().unwrap_or_default()
}

pub(super) fn count(reading: Reading) {
    READINGS.with_borrow_mut(|readings| {
        if let Some(readings) = readings {
            readings.push(reading);
        }
    });
}
