//! Loads the rows that a batch needs into its working set, and writes the rows that it changed.
//!
//! Path: 6, 9. Doc: records.md#stores

use std::borrow::Cow;

use serde_json::Value;
use tokio_postgres::Row;
use toolbooth_audit::LedgerError;
use toolbooth_audit::backend::working::Stored;
use toolbooth_audit::backend::writer::Failure;
use toolbooth_audit::charges::{BudgetRow, RawBudget};
use toolbooth_audit::history::{WindowName, WindowTotals};
use toolbooth_audit::orders::RawOrder;
use toolbooth_audit::queue::{QueueState, QueuedCall};
use toolbooth_audit::reads::{WriterHead, WriterRow};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt};

use super::clean;
use crate::result_reference::Part;
use crate::{Unreadable, body};

pub(super) fn unreadable(error: LedgerError) -> Failure {
    Failure::Refused(error)
}

pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Boxes the parameters of a statement.
macro_rules! given {
    ($($value:expr),* $(,)?) => {
        vec![$(Box::new($value) as Box<dyn tokio_postgres::types::ToSql + Sync + Send + '_>),*]
            as $crate::postgres::statements::Parameters<'_>
    };
}
pub(super) use given;

pub(super) fn head(row: &Row) -> WriterHead {
    WriterHead {
        writer: row.get(0),
        size: row.get::<_, i64>(1).unsigned_abs(),
        last_leaf: row.get(2),
        root: row.get(3),
        row: Some(WriterRow {
            started: row.get(4),
            stopped: row.get(5),
            named: row.get(6),
            checkpoint: row.get(7),
        }),
        pruned: None,
    }
}

pub(super) fn call(row: &Row) -> QueuedCall {
    let state: String = row.get(3);
    let progress: Option<String> = row.get(9);
    QueuedCall {
        call_id: row.get(0),
        caller: row.get(1),
        request: row.get(2),
        // An unknown state counts as done, so that the call is not run.
        state: QueueState::parse(&state).unwrap_or(QueueState::Done),
        enqueued_at: row.get(4),
        finished_at: row.get(5),
        worker: row.get(6),
        deliveries: row.get::<_, i32>(7).unsigned_abs(),
        cancel: row.get(8),
        // Progress that is not JSON is loaded as a string, and the MAC of the call does not match
        // it.
        progress: progress.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        result: row.get(10),
        queued_by: place_of(row.get(11)),
        finished_by: place_of(row.get(12)),
        mac: row.get(13),
        identity: row.get(14),
    }
}

/// Returns an order with the event that it names.
pub(super) fn raw_order(row: &Row) -> RawOrder {
    let event: Option<String> = row.get(3);
    RawOrder {
        kind: row.get(0),
        name: row.get(1),
        bytes: row.get(2),
        // An event that cannot be unpacked becomes an empty text, which accounts for nothing.
        event: event.map(|text| body::unpack(text, row.get(4)).unwrap_or_default()),
        used: row.get(5),
    }
}

/// Returns a budget with its name; no row if it cannot be read. Units are stored as a signed integer
/// with the same bits.
pub(super) fn raw_budget(row: &Row) -> RawBudget {
    let changed_by: String = row.get(3);
    let used = serde_json::from_str(&changed_by).ok().map(|changed_by| BudgetRow {
        day: row.get(1),
        units: row.get::<_, i64>(2).cast_unsigned(),
        changed_by,
    });
    RawBudget { key: row.get(0), row: used }
}

/// Returns the use of a budget. A row that cannot be read counts as used up.
pub(super) fn used_budget(row: &Row) -> BudgetRow {
    raw_budget(row).row.unwrap_or_else(BudgetRow::used_up)
}

/// Reads a window and the calls in it.
pub(super) fn window(row: &Row) -> Result<(WindowName, WindowTotals), LedgerError> {
    let (key, length_ms): (String, i64) = (row.get(0), row.get(1));
    // A sum of 64-bit numbers, which the database keeps as a number of any length.
    let sum: String = row.get(4);
    let sum = sum.parse().map_err(|error| Unreadable::of(error).at("history", &key))?;
    let count: i64 = row.get(3);
    let count =
        u64::try_from(count).map_err(|error| Unreadable::of(error).at("window_sums", &key))?;
    let totals = WindowTotals {
        after_ms: row.get(2),
        count,
        sum,
        last_ms: row.get(5),
        second_last_ms: row.get(6),
        none_before_ms: None,
    };
    Ok((WindowName { key, length_ms }, totals))
}

/// Parses a place. An unreadable place becomes one that no log has.
pub(super) fn place_of(text: Option<String>) -> Option<AuditPlace> {
    let nowhere = || AuditPlace { writer: String::new(), seq: u64::MAX };
    text.map(|text| serde_json::from_str(&text).unwrap_or_else(|_| nowhere()))
}

pub(super) fn text_of(place: Option<&AuditPlace>) -> Option<String> {
    place.and_then(|place| serde_json::to_string(place).ok())
}

pub(super) fn stored(row: &Row, lost: bool) -> Result<Stored, Failure> {
    let receipt: Receipt = body::read(row.get(1), row.get(2))
        .map_err(|damage| unreadable(damage.at("receipts", row.get::<_, String>(3))))?;
    let runs = matches!(receipt.state, ClaimState::InFlight | ClaimState::AwaitingInput);
    let fence = row.get::<_, i64>(0).unsigned_abs();
    Ok(Stored { fence, owner_lost: runs && lost, receipt: receipt.into() })
}

/// Returns the text of an agent log from its columns `body`, `zbody` and `shared`. `receipt`
/// returns the text of its call's receipt.
pub(super) fn log_text(
    (text, packed, shared): (String, Option<Vec<u8>>, Option<&str>),
    receipt: impl FnOnce() -> Result<Option<String>, Unreadable>,
) -> Result<String, Unreadable> {
    let rest = body::unpack(text, packed)?;
    let Some(shared) = shared else { return Ok(rest) };
    let numbers: Option<Vec<usize>> = shared.split(',').map(|text| text.parse().ok()).collect();
    let whole = match numbers.as_deref() {
        Some(&[own, given, len]) => {
            receipt()?.and_then(|receipt| Part { own, given, len }.given_to(rest, &receipt))
        }
        _ => None,
    };
    whole.ok_or_else(|| Unreadable::of("its receipt lacks what it shares with it"))
}

pub(super) fn cleaned<'n>(names: impl Iterator<Item = &'n String>) -> Vec<Cow<'n, str>> {
    names.map(|name| clean(name)).collect()
}
