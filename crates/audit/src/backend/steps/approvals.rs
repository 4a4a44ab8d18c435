//! Approvals and rate charges: consumed by a claim, and refunded for a call that did not start.
//!
//! Path: 6, 9. Doc: policy.md#approval

use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::Receipt;

use super::{place, plain};
use crate::backend::working::{ApprovalName, Changes, WorkingSet};
use crate::claim;
use crate::digest::of_record;
use crate::ledger::{ClaimRequest, Claimed, LedgerError};

impl ClaimRequest {
    pub(super) fn approval_name(&self) -> ApprovalName {
        ApprovalName {
            tool: self.tool_id.clone(),
            caller: self.caller.clone(),
            args_digest: self.args_digest.clone(),
            contract_digest: self.contract_digest.clone(),
        }
    }
}

/// Returns the approval that the call spends; otherwise the response to the caller and the changes
/// to write.
pub(super) fn spend(
    set: &WorkingSet,
    request: &ClaimRequest,
) -> Result<Result<Approval, (Claimed, Changes)>, LedgerError> {
    let mut changes = Changes::default();
    let refused = match set.approval(&request.approval_name())? {
        Some(approval) if approval.state == ApprovalState::Granted => {
            // The dispatch event accounts for it.
            let audit_seq = Some(place(set, 0));
            let state = ApprovalState::Spent;
            return Ok(Ok(Approval { state, audit_seq, ..approval.clone() }));
        }
        Some(Approval { approval_id, state: ApprovalState::Rejected, .. }) => {
            Claimed::ApprovalRejected { approval_id: approval_id.clone() }
        }
        Some(Approval { approval_id, .. }) => {
            Claimed::ApprovalRequired { approval_id: approval_id.clone() }
        }
        None => {
            let approval_id = request.approval_id.clone();
            let approval = Approval {
                approval_id: approval_id.clone(),
                tool_id: request.tool_id.clone(),
                caller: request.caller.clone(),
                args_digest: request.args_digest.clone(),
                contract_digest: request.contract_digest.clone(),
                state: ApprovalState::Pending,
                requested_at: request.at.text.clone(),
                audit_seq: Some(place(set, 0)),
            };
            changes.events.push(plain(requested(request, &approval)));
            changes.approvals.push(approval);
            Claimed::ApprovalRequired { approval_id }
        }
    };
    Ok(Err((refused, changes)))
}

/// Returns the event of an approval request.
fn requested(request: &ClaimRequest, approval: &Approval) -> EventBody {
    let mut body = EventBody::new(AuditEventKind::ApprovalRequested, request.at.text.clone());
    body.tool_name = Some(request.tool_id.clone());
    body.caller = Some(request.caller.clone());
    body.call_id = Some(request.call_id.clone());
    body.args_digest = Some(request.args_digest.clone());
    body.approval_digest = Some(of_record(approval));
    let mut facts = serde_json::Map::new();
    facts.insert("approvalId".to_owned(), approval.approval_id.clone().into());
    body.facts = Some(facts);
    body
}

/// Charges the limits; returns the response to the caller if a limit is reached. `changes` are
/// written in both cases.
pub(super) fn charge(
    set: &WorkingSet,
    request: &ClaimRequest,
    changes: &mut Changes,
) -> Result<Option<Claimed>, LedgerError> {
    if let Some(max) = request.concurrency_max
        && set.running(&request.tool_id)? >= max
    {
        return Ok(Some(Claimed::TooManyInFlight));
    }
    if let Some(per_min) = request.rate_per_min {
        let name = (request.tool_id.clone(), request.caller.clone());
        let now_ms = set.clock_ms.unwrap_or(request.at.epoch_ms);
        match claim::rate(set.rate(&name)?, now_ms, per_min) {
            Ok(next) => changes.rates.push((name, next)),
            Err(early) => {
                changes.rates.extend(early.corrected.map(|tat_ms| (name, tat_ms)));
                return Ok(Some(Claimed::RateLimited { retry_after_ms: early.retry_after_ms }));
            }
        }
    }
    Ok(None)
}

/// Refunds the charges of a call that did not start; the next event accounts for the refund.
/// Returns the digest of the refunded approval for that event, if there is one.
pub(super) fn refund(
    set: &WorkingSet,
    receipt: &Receipt,
    rate_per_min: Option<u64>,
    changes: &mut Changes,
) -> Result<Option<String>, LedgerError> {
    if let Some(per_min) = rate_per_min.and_then(|n| i64::try_from(n).ok()).filter(|n| *n > 0) {
        let name = (receipt.tool_id.clone(), receipt.caller.clone());
        if let Some(tat) = set.rate(&name)? {
            let interval = (60_000 / per_min).max(1);
            changes.rates.push((name, tat.saturating_sub(interval)));
        }
    }
    let Some(spent) = receipt.approval_id.as_ref().and_then(|id| set.spent(id)) else {
        return Ok(None);
    };
    let audit_seq = Some(place(set, changes.events.len()));
    let approval = Approval { state: ApprovalState::Granted, audit_seq, ..spent.clone() };
    let digest = of_record(&approval);
    changes.approvals.push(approval);
    Ok(Some(digest))
}
