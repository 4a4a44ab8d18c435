//! Pages of records, with the rows that could not be read.
//!
//! Doc: records.md#reading

use serde_json::{Map, Value, json};

use crate::error::{DamagedRow, LedgerError};

/// A page of query results.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The records.
    pub found: Vec<T>,
    /// Whether more follow.
    pub more: bool,
    /// Unreadable rows that may belong to the result; at most [`DAMAGED_MAX`].
    pub damaged: Vec<DamagedRow>,
}

/// Maximum number of damaged rows that one page lists.
pub const DAMAGED_MAX: usize = 100;

impl<T> Default for Page<T> {
    fn default() -> Self {
        Self { found: Vec::new(), more: false, damaged: Vec::new() }
    }
}

impl<T> Page<T> {
    /// Returns a page of these records without damaged rows.
    #[must_use]
    pub fn of(found: Vec<T>) -> Self {
        Self { found, ..Self::default() }
    }

    /// Adds a record if it passes; records an unreadable row.
    ///
    /// # Errors
    /// Any [`LedgerError`] except [`LedgerError::Damaged`].
    pub fn add(
        &mut self,
        read: Result<T, LedgerError>,
        passes: impl FnOnce(&T) -> bool,
    ) -> Result<(), LedgerError> {
        match read {
            Ok(record) => self.found.extend(Some(record).filter(|record| passes(record))),
            Err(LedgerError::Damaged(row)) => self.add_damaged([row]),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Records unreadable rows, each once.
    pub fn add_damaged(&mut self, rows: impl IntoIterator<Item = DamagedRow>) {
        for row in rows {
            if self.damaged.len() < DAMAGED_MAX && !self.damaged.contains(&row) {
                self.damaged.push(row);
            }
        }
    }

    /// Truncates the page to `limit` records, and records whether there were more.
    pub fn truncate(&mut self, limit: usize) {
        self.more = self.found.len() > limit;
        self.found.truncate(limit);
    }
}

impl<T: serde::Serialize> Page<T> {
    /// Returns the page as a document: the records under `name`, and any unreadable rows under
    /// `damaged`.
    #[must_use]
    pub fn document(&self, name: &str) -> Map<String, Value> {
        let mut out = Map::new();
        out.insert(name.to_owned(), json!(self.found));
        if !self.damaged.is_empty() {
            out.insert("damaged".to_owned(), json!(self.damaged));
        }
        out
    }
}
