//! Windows of the policy over earlier calls: the entries of a claim, and the judgement of rules that read
//! them.
//!
//! Path: 6, 9. Doc: policy.md#history

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolbooth_contracts::event::DecisionSummary;
use toolbooth_contracts::history::{Amount, HistoryEntry};
pub use toolbooth_contracts::history::{
    CountedIn, DeclaredWindow, History, WindowName, WindowSeen, seen,
};
use toolbooth_contracts::receipt::Receipt;

/// The fact of a dispatch event that lists the windows that its rules have read.
pub(crate) const HISTORY: &str = "history";

/// Returns the entry of a claim that is made at `now_ms`.
pub(crate) fn entry(counted: &CountedIn, now_ms: i64) -> HistoryEntry {
    HistoryEntry {
        key: counted.key.clone(),
        amount: counted.amount,
        at_ms: now_ms,
        until_ms: now_ms.saturating_add(counted.length_ms),
    }
}

/// The calls in a window, without the one that is judged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowTotals {
    /// The beginning of the window, in milliseconds since 1970-01-01 UTC: calls that were claimed later
    /// are in it.
    pub after_ms: i64,
    /// The number of calls.
    pub count: u64,
    /// The sum of their amounts, in ten thousandths.
    pub sum: i128,
    /// When the last of them was claimed, in milliseconds since 1970-01-01 UTC.
    pub last_ms: Option<i64>,
    /// When the one before it was claimed; also `None` if that is not known.
    pub second_last_ms: Option<i64>,
    /// A time before which none of them was claimed; `None` if that is not known.
    pub none_before_ms: Option<i64>,
}

impl WindowTotals {
    /// Returns the calls as rules see them at a time, without the one that is judged.
    #[must_use]
    pub fn seen(&self, now_ms: i64) -> WindowSeen {
        let since_ms = self.last_ms.map(|last_ms| now_ms.saturating_sub(last_ms).max(0));
        WindowSeen { count: self.count, sum: self.sum, since_ms }
    }

    /// Adds an entry, if it is in the window.
    pub(crate) fn add(&mut self, entry: &HistoryEntry) {
        if entry.at_ms <= self.after_ms {
            return;
        }
        self.count = self.count.saturating_add(1);
        self.sum = self.sum.saturating_add(ten_thousandths(entry.amount));
        let at_ms = Some(entry.at_ms);
        self.none_before_ms = self.none_before_ms.min(at_ms);
        self.second_last_ms = self.second_last_ms.max(at_ms.min(self.last_ms));
        self.last_ms = self.last_ms.max(at_ms);
    }

    /// Removes an entry that is in the window. If it is one of the last two, the second-last call becomes unknown.
    pub(crate) fn take(&mut self, entry: &HistoryEntry) {
        if entry.at_ms <= self.after_ms {
            return;
        }
        self.count = self.count.saturating_sub(1);
        self.sum = self.sum.saturating_sub(ten_thousandths(entry.amount));
        if self.last_ms == Some(entry.at_ms) {
            self.last_ms = self.second_last_ms.take();
        } else if self.second_last_ms == Some(entry.at_ms) {
            self.second_last_ms = None;
        }
    }
}

fn ten_thousandths(amount: Option<Amount>) -> i128 {
    amount.map_or(0, |amount| amount.ten_thousandths().into())
}

/// The judgement of a call by rules that read windows. It is pure: the same windows give the same
/// judgement. It is made in the claim's transaction, and again if that must be repeated.
pub trait HistoryJudge: std::fmt::Debug + Send + Sync {
    /// Judges the call.
    fn judge(&self, history: &History) -> HistoryVerdict;
}

/// The judgement of a call whose windows are known. Its reasons stay with the judge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HistoryVerdict {
    /// The call is permitted.
    Permit {
        /// The rule.
        decision: DecisionSummary,
        /// The digest of the rule that asks for an approval, if one does.
        approval: Option<String>,
        /// What rules in shadow would have decided.
        shadow: Option<DecisionSummary>,
    },
    /// The call is denied.
    Deny,
}

/// The windows that the rules of a call read, and the judge.
#[derive(Debug, Clone)]
pub struct HistoryQuestion {
    /// The windows, by their names in rules.
    pub windows: BTreeMap<String, WindowName>,
    /// The judge.
    pub judge: Arc<dyn HistoryJudge>,
}

/// Adds the windows that rules have read to the facts of an event.
pub(crate) fn add_facts(facts: &mut Option<Map<String, Value>>, history: &History) {
    if history.is_empty() {
        return;
    }
    facts.get_or_insert_default().insert(HISTORY.to_owned(), json!(history));
}

/// Returns the form in which entries are compared with the rows of a store: key, time, amount in ten
/// thousandths and end.
#[must_use]
pub fn row_text(key: &str, at_ms: i64, amount: Option<i64>, until_ms: i64) -> String {
    let amount = amount.map_or_else(|| "-".to_owned(), |amount| amount.to_string());
    format!("{key} {at_ms} {amount} {until_ms}")
}

/// Returns until when a window may count a receipt; `None` if none does.
pub(crate) fn counted_until_ms(receipt: &Receipt) -> Option<u64> {
    receipt.history.iter().filter_map(|entry| u64::try_from(entry.until_ms).ok()).max()
}

/// Returns the time until which a receipt must not be pruned; `None` if it never counted. A declared window
/// keeps its entries, even if the window was shorter when the call was claimed.
#[must_use]
pub fn kept_until_ms(receipt: &Receipt, windows: &[DeclaredWindow]) -> Option<i64> {
    let counting = windows.iter().filter(|window| window.tool.selects(&receipt.tool_id));
    let longest_ms = counting.map(|window| window.length_ms).max();
    let until = |entry: &HistoryEntry| match longest_ms {
        Some(longest_ms) => entry.until_ms.max(entry.at_ms.saturating_add(longest_ms)),
        None => entry.until_ms,
    };
    receipt.history.iter().map(until).max()
}

/// Returns the row that an entry must have in a store.
pub(crate) fn row_of(entry: &HistoryEntry) -> String {
    let amount = entry.amount.map(Amount::ten_thousandths);
    row_text(&entry.key, entry.at_ms, amount, entry.until_ms)
}
