//! The windows of the policy: the calls that count in them, and their sums.
//!
//! The sums of a window are those of its rows in `history` from a time on. Each transaction that reads them, or changes
//! the calls, locks the window before. Pruning leaves the calls whose windows others have locked.
//!
//! Path: 6. Doc: policy.md#history, records.md#stores

use std::collections::{BTreeMap, BTreeSet};

use toolbooth_audit::backend::working::{Batch, Needs, WindowChange};
use toolbooth_audit::history::{WindowName, WindowTotals};
use toolbooth_audit::{LedgerError, backend::writer::Failure};
use toolbooth_contracts::history::{Amount, HistoryEntry};

use super::rows::{given, number};
use super::statements::Parameters;

/// The windows that a transaction has locked and read.
#[derive(Debug, Default)]
pub(super) struct LockedWindows {
    keys: BTreeSet<String>,
    /// Windows whose sums are stored.
    stored: BTreeSet<WindowName>,
    /// Windows of which many calls were read, with their sums.
    due: BTreeMap<WindowName, WindowTotals>,
}

/// A window that was read.
pub(super) struct WindowRead {
    pub(super) name: WindowName,
    pub(super) totals: WindowTotals,
    /// Whether its sums are stored.
    pub(super) is_stored: bool,
    /// The calls that were read for it.
    pub(super) calls: u64,
}

/// Calls in a window from which on its sums are stored: fewer are read as fast.
const STORED_FROM: u64 = 10;
/// Windows that a step of pruning locks, at most: the database server has a table for all locks.
pub(super) const PRUNED_MAX: usize = 256;

/// Sums of windows by key and length.
type Sums<'b> = BTreeMap<(&'b str, i64), WindowTotals>;

impl LockedWindows {
    /// The keys that a transaction with these needs locks, before it has read anything.
    pub(super) fn of(needs: &Needs) -> Self {
        let read = needs.windows.keys().map(|name| &name.key);
        Self { keys: read.chain(&needs.counting).cloned().collect(), ..Self::default() }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.keys.iter()
    }

    /// Adds a key that is locked later, without waiting.
    pub(super) fn add_key(&mut self, key: &str) {
        self.keys.insert(key.to_owned());
    }

    pub(super) fn add(&mut self, window: &WindowRead) {
        let WindowRead { name, totals, is_stored, calls } = window;
        if *is_stored {
            self.stored.insert(name.clone());
        }
        if *calls >= STORED_FROM {
            self.due.insert(name.clone(), *totals);
        }
    }

    /// Returns the sums to store with a batch: those of windows that it has read and changed, and those of
    /// windows for which it has read many calls. The next batch then reads few calls.
    ///
    /// # Errors
    /// [`LedgerError::Defect`], if the batch changes a window that is not locked.
    pub(super) fn sums<'b>(&'b self, batch: &'b Batch) -> Result<Sums<'b>, Failure> {
        if batch.windows.keys().any(|key| !self.keys.contains(key)) {
            let defect = LedgerError::Defect("a window changes that is not locked".to_owned());
            return Err(Failure::Refused(defect));
        }
        let due = self.due.iter();
        let due = due.map(|(name, sums)| ((name.key.as_str(), name.length_ms), *sums));
        let changed = batch.windows.iter().flat_map(|(key, change)| {
            change.totals.iter().map(move |(length_ms, sums)| ((key.as_str(), *length_ms), *sums))
        });
        let mut sums: Sums<'b> = due.chain(changed).collect();
        sums.retain(|(key, length_ms), sums| {
            let name = || WindowName { key: (*key).to_owned(), length_ms: *length_ms };
            sums.count >= STORED_FROM || self.stored.contains(&name())
        });
        Ok(sums)
    }
}

/// Returns sums of windows, column by column.
pub(super) fn sum_columns<'b>(all: &Sums<'b>) -> Parameters<'b> {
    let keys: Vec<&str> = all.keys().map(|(key, _)| *key).collect();
    let lengths: Vec<i64> = all.keys().map(|(_, length_ms)| *length_ms).collect();
    let after: Vec<i64> = all.values().map(|sums| sums.after_ms).collect();
    let calls: Vec<i64> = all.values().map(|sums| number(sums.count)).collect();
    let amounts: Vec<String> = all.values().map(|sums| sums.sum.to_string()).collect();
    given![keys, lengths, after, calls, amounts]
}

/// Returns the calls that count in windows, and those that no longer do, column by column.
pub(super) fn change_columns(windows: &BTreeMap<String, WindowChange>) -> Parameters<'_> {
    let changes = || {
        windows.iter().flat_map(|(key, WindowChange { counted, uncounted, .. })| {
            let signed = counted.iter().map(|entry| (1, entry));
            let signed = signed.chain(uncounted.iter().map(|entry| (-1, entry)));
            signed.map(move |(sign, entry): (i64, &HistoryEntry)| (key.as_str(), sign, entry))
        })
    };
    let keys: Vec<&str> = changes().map(|(key, ..)| key).collect();
    let times: Vec<i64> = changes().map(|(.., entry)| entry.at_ms).collect();
    let signs: Vec<i64> = changes().map(|(_, sign, _)| sign).collect();
    let amounts =
        changes().map(|(_, sign, entry)| sign * entry.amount.map_or(0, Amount::ten_thousandths));
    let amounts: Vec<i64> = amounts.collect();
    given![keys, times, signs, amounts]
}

/// Returns the entries of receipts in windows, column by column.
pub(super) fn history_columns(history: &BTreeMap<String, Vec<HistoryEntry>>) -> Parameters<'_> {
    let entries = || {
        let all = history.iter();
        all.flat_map(|(id, entries)| entries.iter().map(move |entry| (id.as_str(), entry)))
    };
    let keys: Vec<&str> = entries().map(|(_, entry)| entry.key.as_str()).collect();
    let times: Vec<i64> = entries().map(|(_, entry)| entry.at_ms).collect();
    let ids: Vec<&str> = entries().map(|(id, _)| id).collect();
    let amounts = entries().map(|(_, entry)| entry.amount.map(Amount::ten_thousandths));
    let amounts: Vec<Option<i64>> = amounts.collect();
    let ends: Vec<i64> = entries().map(|(_, entry)| entry.until_ms).collect();
    given![keys, times, ids, amounts, ends]
}
