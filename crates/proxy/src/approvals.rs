//! Approvals: reading them, and decisions of callers and operators.
//!
//! Doc: policy.md#approval

use toolbooth_audit::approvals::{ApprovalFilter, ApprovalName, ApprovalVerdict, Decided};
use toolbooth_audit::reads::{DamagedRow, Page};
use toolbooth_audit::{LedgerError, LedgerReads};
use toolbooth_contracts::Caller;
use toolbooth_contracts::approval::{Approval, ApprovalState};

use crate::error::OperationsError;
use crate::operations::Operations;
use crate::proxy::ToolProxy;

/// Maximum length of the reason of a decision, in bytes.
pub const APPROVAL_REASON_BYTES_MAX: usize = 500;

/// Reads the newest approvals that pass a filter. Rows that no event accounts for are damaged.
async fn page(
    reads: &dyn LedgerReads,
    filter: ApprovalFilter,
) -> Result<Page<Approval>, LedgerError> {
    let limit = filter.limit;
    let mut page = Page::default();
    for raw in reads.approvals(ApprovalFilter { limit: limit.saturating_add(1), ..filter }).await? {
        let read = raw.accounted().ok_or_else(|| {
            LedgerError::Damaged(DamagedRow {
                table: "approvals".to_owned(),
                row: raw.id.clone(),
                reason: "no event accounts for it".to_owned(),
            })
        });
        page.add(read, |_| true)?;
    }
    page.truncate(limit);
    Ok(page)
}

/// Returns the approval of a page that can have only one.
fn only(page: Page<Approval>) -> Result<Option<Approval>, LedgerError> {
    match page.damaged.into_iter().next() {
        Some(row) => Err(LedgerError::Damaged(row)),
        None => Ok(page.found.into_iter().next()),
    }
}

fn by_id(id: &str) -> ApprovalFilter {
    ApprovalFilter { id: Some(id.to_owned()), limit: 1, ..ApprovalFilter::default() }
}

impl Operations {
    /// Returns the newest approvals that pass a filter.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub async fn approvals(&self, filter: ApprovalFilter) -> Result<Page<Approval>, LedgerError> {
        page(self.reads(), filter).await
    }

    /// Returns an approval.
    ///
    /// # Errors
    /// [`LedgerError::Damaged`] if no event accounts for it; as [`Operations::approvals`].
    pub async fn approval(&self, id: &str) -> Result<Option<Approval>, LedgerError> {
        only(page(self.reads(), by_id(id)).await?)
    }
}

impl ToolProxy {
    /// Returns the newest approvals that pass a filter: all for an operator, otherwise those that the
    /// caller has requested.
    ///
    /// # Errors
    /// [`OperationsError::NoRecords`], [`OperationsError::Ledger`].
    pub async fn approvals(
        &self,
        caller: &Caller,
        mut filter: ApprovalFilter,
    ) -> Result<Page<Approval>, OperationsError> {
        if self.operator(caller).is_err() {
            let own = caller.name();
            if filter.caller.as_deref().is_some_and(|asked| asked != own) {
                return Ok(Page::default());
            }
            filter.caller = Some(own.to_owned());
        }
        let reads = self.state().parts.reads.as_ref().ok_or(OperationsError::NoRecords)?;
        Ok(page(&**reads, filter).await?)
    }

    /// Returns an approval, for operators and for the caller that has requested it.
    ///
    /// # Errors
    /// As [`ToolProxy::approvals`].
    pub async fn approval(
        &self,
        caller: &Caller,
        id: &str,
    ) -> Result<Option<Approval>, OperationsError> {
        Ok(only(self.approvals(caller, by_id(id)).await?)?)
    }

    /// Records the decision of a caller on an approval. Calls of this process that wait for it go on.
    ///
    /// # Errors
    /// As [`ToolProxy::approvals`].
    pub async fn decide_approval(
        &self,
        caller: &Caller,
        id: &str,
        grants: bool,
        reason: Option<String>,
    ) -> Result<Decided, OperationsError> {
        let Some(approval) = self.approval(caller, id).await? else { return Ok(Decided::Missing) };
        if approval.state == ApprovalState::Spent {
            return Ok(Decided::Already(Box::new(approval)));
        }
        let state = self.state();
        let at = state.parts.clock.now();
        let verdict = ApprovalVerdict {
            approval_id: id.to_owned(),
            name: ApprovalName::of(&approval),
            grants,
            by: caller.name().to_owned(),
            is_operator: self.operator(caller).is_ok(),
            reason: reason.map(|reason| state.parts.shapes.redact(&reason).into_owned()),
            expires_at: at.after(state.parts.limits.approval_expiry).text,
            at,
        };
        let decided = state.parts.ledger.decide_approval(verdict).await?;
        state.decisions.send_modify(|count| *count = count.wrapping_add(1));
        if matches!(decided, Decided::Expired) {
            // The call can have spent it since it was read.
            let now = self.approval(caller, id).await?;
            if let Some(spent) = now.filter(|own| own.state == ApprovalState::Spent) {
                return Ok(Decided::Already(Box::new(spent)));
            }
        }
        Ok(decided)
    }
}
