//! Approvals and charges: decided by people, consumed by a claim, and refunded for a call that did not start.
//!
//! Path: 6, 9. Doc: policy.md#approval

use std::collections::BTreeSet;

use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::Receipt;

use super::{Step, place, plain};
use crate::approvals::{
    ApprovalName, ApprovalRequest, ApprovalVerdict, Decided, PENDING_MAX, PendingName, account_for,
};
use crate::backend::working::{Changes, Needs, WorkingSet};
use crate::charges::{BudgetRow, DAY_MS, Taken, day_of};
use crate::claim;
use crate::ledger::{ClaimRequest, Claimed, LedgerError};

/// When a caller with too many undecided requests tries again, in milliseconds.
const PENDING_RETRY_MS: u64 = 60_000;

impl ApprovalRequest {
    /// Returns the name of the undecided requests of the caller.
    pub(super) fn pending(&self, call: &ClaimRequest) -> PendingName {
        (call.caller.clone(), self.open_after.clone())
    }

    /// Returns the call and rule to which the approval is bound.
    pub(super) fn name(&self, call: &ClaimRequest) -> ApprovalName {
        ApprovalName {
            tool: call.tool_id.clone(),
            caller: call.caller.clone(),
            args_digest: call.args_digest.clone(),
            contract_digest: call.contract_digest.clone(),
            rule_digest: Some(self.rule_digest.clone()),
        }
    }
}

/// Returns an approval after a change, for the event after `events` others of the same step.
fn changed(set: &WorkingSet, approval: Approval, events: usize) -> Approval {
    let revision = approval.revision.saturating_add(1);
    Approval { revision, audit_seq: Some(place(set, events)), ..approval }
}

/// Returns the approval that the call spends; otherwise the response to the caller and the changes
/// to write.
pub(super) fn spend(
    set: &WorkingSet,
    request: &ClaimRequest,
    needed: &ApprovalRequest,
) -> Result<Result<Approval, (Claimed, Changes)>, LedgerError> {
    let mut changes = Changes::default();
    let refused = match deciding(set, request, needed)? {
        Some(approval) if approval.state == ApprovalState::Granted => {
            // The dispatch event accounts for it.
            let spent = Approval { state: ApprovalState::Spent, ..approval.clone() };
            return Ok(Ok(changed(set, spent, 0)));
        }
        Some(Approval { approval_id, state: ApprovalState::Rejected, .. }) => {
            Claimed::ApprovalRejected { approval_id: approval_id.clone() }
        }
        Some(Approval { approval_id, .. }) => {
            Claimed::ApprovalRequired { approval_id: approval_id.clone() }
        }
        None if set.pending(&needed.pending(request))? >= PENDING_MAX => {
            Claimed::RateLimited { retry_after_ms: PENDING_RETRY_MS }
        }
        None => {
            let approval = requested(request, needed);
            let approval = changed(set, approval, 0);
            let mut body =
                EventBody::new(AuditEventKind::ApprovalRequested, request.at.text.clone());
            body.tool_name = Some(request.tool_id.clone());
            body.caller = Some(request.caller.clone());
            body.call_id = Some(request.call_id.clone());
            body.args_digest = Some(request.args_digest.clone());
            let version = Some(&request.policy_version).filter(|version| !version.is_empty());
            body.policy_version = version.cloned();
            account_for(&mut body, &approval);
            changes.events.push(plain(body));
            let approval_id = approval.approval_id.clone();
            changes.approvals.push(approval);
            Claimed::ApprovalRequired { approval_id }
        }
    };
    Ok(Err((refused, changes)))
}

/// Returns the approval that decides on a call: the newest one if it is rejected, else one that is
/// granted, else the newest. One that asked fewer persons than are needed now does not count.
fn deciding<'s>(
    set: &'s WorkingSet,
    request: &ClaimRequest,
    needed: &ApprovalRequest,
) -> Result<Option<&'s Approval>, LedgerError> {
    let name = needed.name(request);
    let counts = |approval: &&Approval| {
        !approval.has_expired(&request.at.text) && approval.approvers >= needed.approvers
    };
    let known: Vec<&Approval> = set.approvals(&name)?.filter(counts).collect();
    let is = |state| move |approval: &&&Approval| approval.state == state;
    let newest = known.first();
    let rejected = newest.filter(is(ApprovalState::Rejected));
    let granted = known.iter().find(is(ApprovalState::Granted));
    Ok(rejected.or(granted).or(newest).copied())
}

/// Returns a new approval, before its first revision.
fn requested(request: &ClaimRequest, needed: &ApprovalRequest) -> Approval {
    Approval {
        approval_id: needed.approval_id.clone(),
        tool_id: request.tool_id.clone(),
        caller: request.caller.clone(),
        args_digest: request.args_digest.clone(),
        contract_digest: request.contract_digest.clone(),
        rule: Some(needed.rule.clone()),
        rule_digest: Some(needed.rule_digest.clone()),
        approvers: needed.approvers,
        state: ApprovalState::Pending,
        requested_at: request.at.text.clone(),
        expires_at: Some(needed.expires_at.clone()),
        call_id: Some(request.call_id.clone()),
        arguments: needed.arguments.clone(),
        decisions: Vec::new(),
        revision: 0,
        audit_seq: None,
    }
}

impl Step for ApprovalVerdict {
    type Answer = Decided;

    fn needs(&self) -> Needs {
        Needs { approvals: BTreeSet::from([self.name.clone()]), ..Needs::default() }
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Decided, Changes), LedgerError> {
        let mut changes = Changes::default();
        let of_id = |approval: &&Approval| approval.approval_id == self.approval_id;
        let Some(before) = set.approvals(&self.name)?.find(of_id) else {
            return Ok((Decided::Expired, changes));
        };
        let after = match self.decide(before) {
            Ok(after) => changed(set, after, 0),
            Err(decided) => return Ok((decided, changes)),
        };
        set.disk_space().check()?;
        let mut body = EventBody::new(self.event(), self.at.text.clone());
        body.tool_name = Some(after.tool_id.clone());
        body.caller = Some(self.by.clone());
        body.args_digest = Some(after.args_digest.clone());
        let facts = body.facts.get_or_insert_default();
        facts.insert("state".to_owned(), after.state.as_str().into());
        facts.extend(self.reason.clone().map(|reason| ("reason".to_owned(), reason.into())));
        account_for(&mut body, &after);
        changes.events.push(plain(body));
        changes.approvals.push(after.clone());
        Ok((Decided::Done(Box::new(after)), changes))
    }
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
/// Returns the refunded approval for that event, if there is one.
pub(super) fn refund(
    set: &WorkingSet,
    receipt: &Receipt,
    taken: &[Taken],
    changes: &mut Changes,
) -> Result<Option<Approval>, LedgerError> {
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
    let spent = receipt.approval_id.as_ref().and_then(|id| set.spent(id));
    let Some(spent) = spent.filter(|known| known.state == ApprovalState::Spent) else {
        return Ok(None);
    };
    let granted = Approval { state: ApprovalState::Granted, ..spent.clone() };
    let granted = changed(set, granted, changes.events.len());
    changes.approvals.push(granted.clone());
    Ok(Some(granted))
}
