//! Counts how often texts are read and trees are built, for tests of how often a payload is read.

use std::cell::RefCell;

thread_local! {
    /// `None` until a test begins to count.
    static READINGS: RefCell<Option<Vec<Reading>>> = const { RefCell::new(None) };
}

/// What was done with a text on this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// A text of so many bytes was read, or a part of it.
    Pass(usize),
    /// A tree was built of a text of so many bytes; the pass for it is counted apart.
    Tree(usize),
}

/// Begins to count what is read on this thread.
pub fn begin() {
    READINGS.set(Some(Vec::new()));
}

/// What was read on this thread since the counting began; it ends.
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
