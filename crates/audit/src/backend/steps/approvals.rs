//! Approvals and charges: consumed by a claim, and refunded for a call that did not start.
//!
//! Path: 6, 9. Doc: policy.md#approval

use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::Receipt;

use super::{place, plain};
use crate::backend::working::{ApprovalName, Changes, Needs, WorkingSet};
use crate::charges::{BudgetRow, DAY_MS, Taken, day_of};
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

/// Charges the limits: checks all, then takes all. Returns the charges that were taken, or the response
/// to the caller if a limit is reached. `changes` are written in both cases; the next event accounts
/// for them.
pub(super) fn charge(
    set: &WorkingSet,
    request: &ClaimRequest,
    changes: &mut Changes,
) -> Result<Result<Vec<Taken>, Claimed>, LedgerError> {
    let now_ms = set.clock_ms.unwrap_or(request.at.epoch_ms);
    let (mut taken, mut rates, mut budgets) = (Vec::new(), Vec::new(), Vec::new());
    for charge in &request.charges {
        match charge {
            Charge::Slots { max } => {
                if set.running(&request.tool_id)? >= *max {
                    return Ok(Err(Claimed::TooManyInFlight));
                }
            }
            Charge::Rate { per_min } => {
                let name = (request.tool_id.clone(), request.caller.clone());
                match claim::rate(set.rate(&name)?, now_ms, *per_min) {
                    Ok(next) => rates.push((name, next)),
                    Err(early) => {
                        changes.rates.extend(early.corrected.map(|tat_ms| (name, tat_ms)));
                        let retry_after_ms = early.retry_after_ms;
                        return Ok(Err(Claimed::RateLimited { retry_after_ms }));
                    }
                }
                taken.push(Taken::Rate { per_min: *per_min });
            }
            Charge::Budget { key, units, limit } => {
                let row = set.budget(key)?;
                let (today, retry_after_ms) = day_of(now_ms);
                let used = BudgetRow::used(row, &today).saturating_add(*units);
                if used > *limit {
                    return Ok(Err(Claimed::BudgetExceeded { retry_after_ms }));
                }
                let day = row.map_or(today.clone(), |row| row.day.clone().max(today));
                let changed_by = place(set, changes.events.len());
                taken.push(Taken::Budget { key: key.clone(), day: day.clone(), units: *units });
                budgets.push((key.clone(), BudgetRow { day, units: used, changed_by }));
            }
        }
    }
    changes.rates.extend(rates);
    if !budgets.is_empty() {
        // By the clock and not by a row, so that a row of a wrong day removes no other.
        changes.budgets_before = Some(day_of(now_ms.saturating_sub(DAY_MS)).0);
    }
    changes.budgets.extend(budgets);
    Ok(Ok(taken))
}

/// Adds the records that are needed to take charges.
pub(super) fn needs_of(request: &ClaimRequest, needs: &mut Needs) {
    for charge in &request.charges {
        match charge {
            Charge::Rate { .. } => {
                needs.rates.insert((request.tool_id.clone(), request.caller.clone()));
            }
            Charge::Slots { .. } => drop(needs.running.insert(request.tool_id.clone())),
            Charge::Budget { key, .. } => drop(needs.budgets.insert(key.clone())),
        }
    }
}

/// Adds the records that are needed to give charges back.
pub(super) fn needs_of_refund(taken: &[Taken], (tool, caller): (&str, &str), needs: &mut Needs) {
    for taken in taken {
        match taken {
            Taken::Rate { .. } => drop(needs.rates.insert((tool.to_owned(), caller.to_owned()))),
            Taken::Budget { key, .. } => drop(needs.budgets.insert(key.clone())),
        }
    }
}

/// Refunds the charges of a call that did not start; the next event accounts for the refund.
/// Returns the digest of the refunded approval for that event, if there is one.
pub(super) fn refund(
    set: &WorkingSet,
    receipt: &Receipt,
    taken: &[Taken],
    changes: &mut Changes,
) -> Result<Option<String>, LedgerError> {
    for taken in taken {
        match taken {
            Taken::Rate { per_min } => {
                let name = (receipt.tool_id.clone(), receipt.caller.clone());
                let per_min = i64::try_from(*per_min).ok().filter(|n| *n > 0);
                if let (Some(per_min), Some(tat)) = (per_min, set.rate(&name)?) {
                    let interval = (60_000 / per_min).max(1);
                    changes.rates.push((name, tat.saturating_sub(interval)));
                }
            }
            // A charge of an earlier day counts for nothing any more.
            Taken::Budget { key, day, units } => {
                if let Some(row) = set.budget(key)?.filter(|row| row.day == *day) {
                    let changed_by = place(set, changes.events.len());
                    let units = row.units.saturating_sub(*units);
                    let row = BudgetRow { day: day.clone(), units, changed_by };
                    changes.budgets.push((key.clone(), row));
                }
            }
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
