//! Reads the tables of a store page by page.
//!
//! Doc: records.md#verification

use super::records::Records;
use crate::LedgerReads;
use crate::charges::RawBudget;
use crate::documents::RawDocument;
use crate::ledger::LedgerError;
use crate::queue::RawCall;
use crate::reads::DamagedRow;

/// The number of rows per read.
pub(super) const PAGE: usize = 1_000;

/// Checks that approvals match the events that account for them, and that every requested approval
/// still exists.
pub(super) async fn approvals(
    reads: &dyn LedgerReads,
    records: &mut Records<'_>,
) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reads.approval_page(after.clone(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let next = Some(last.id.clone());
        progress("approvals", &after, &next)?;
        after = next;
        page.iter().for_each(|raw| records.approval(raw));
    }
}

/// Checks that the orders of operators match the newest events about them, and that each still
/// exists.
pub(super) async fn orders(
    reads: &dyn LedgerReads,
    records: &mut Records<'_>,
) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reads.order_page(after.clone(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let next = Some(last.order_name());
        progress("orders", &after, &next)?;
        after = next;
        page.iter().for_each(|raw| records.order(raw));
    }
}

/// Calls `each` for every budget.
pub(super) async fn budgets(
    reads: &dyn LedgerReads,
    mut each: impl FnMut(&RawBudget),
) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reads.budget_page(after.clone(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let next = Some(last.key.clone());
        progress("budgets", &after, &next)?;
        after = next;
        page.iter().for_each(&mut each);
    }
}

/// Calls `each` for every document.
pub(super) async fn documents(
    reads: &dyn LedgerReads,
    mut each: impl FnMut(&RawDocument),
) -> Result<(), LedgerError> {
    /// Documents of a page, which can be large.
    const PAGE: usize = 8;
    let mut after = None;
    loop {
        let page = reads.document_page(after.clone(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let next = Some(last.digest.clone());
        progress("documents", &after, &next)?;
        after = next;
        page.iter().for_each(&mut each);
    }
}

/// Calls `each` for every asynchronous call.
pub(super) async fn calls(
    reads: &dyn LedgerReads,
    mut each: impl FnMut(&RawCall),
) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = reads.call_page(after.clone(), PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let next = Some((last.call.caller.clone(), last.call.call_id.clone()));
        progress("queue", &after, &next)?;
        after = next;
        page.iter().for_each(&mut each);
    }
}

/// Checks that pages advance; a store that returns the same page again would prevent verification
/// from ending.
pub(super) fn progress<T: PartialEq + std::fmt::Debug>(
    table: &str,
    before: &Option<T>,
    next: &Option<T>,
) -> Result<(), LedgerError> {
    if before.is_none() || before != next {
        return Ok(());
    }
    Err(LedgerError::Damaged(DamagedRow {
        table: table.to_owned(),
        row: format!("{next:?}"),
        reason: "the store gives the same page again".to_owned(),
    }))
}
