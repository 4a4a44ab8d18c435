//! What a ledger does inside one transaction, over any place that keeps records.
//!
//! Stores bring the transaction and the places; the order of look-ups and writes is here, once.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::convert::Infallible;

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::{AuditEvent, AuditEventKind, EventBody};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt, ReceiptKey};
use toolbooth_contracts::{Effect, ErrorCode};

use crate::claim::{self, Held, Transition};
use crate::digest::of_record;
use crate::ledger::{
    Claim, ClaimRequest, Claimed, LedgerError, Moment, Refusal, Settlement, Swept,
};

/// A receipt with what only the store knows of it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The receipt.
    pub receipt: Receipt,
    /// The fence of the claim.
    pub fence: u64,
    /// Whether the writer that owns it is lost.
    pub owner_lost: bool,
}

/// A place that keeps records, inside one transaction.
pub trait Records {
    /// The writer.
    fn writer(&self) -> &str;
    /// The id of the store's digest key.
    fn key_id(&self) -> &str;
    /// The receipt that holds a key.
    ///
    /// # Errors
    /// Where the store fails; the same for all methods.
    fn held(&mut self, key: &str) -> Result<Option<Stored>, LedgerError>;
    /// A receipt by its id.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn stored(&mut self, receipt_id: &str) -> Result<Option<Stored>, LedgerError>;
    /// Writes a receipt, new or changed.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn put(&mut self, receipt: &Receipt, fence: u64, at: &Moment) -> Result<(), LedgerError>;
    /// Lets a receipt hold a key.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn hold(&mut self, key: &str, receipt_id: &str) -> Result<(), LedgerError>;
    /// Frees the keys that a receipt holds.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn free(&mut self, receipt_id: &str) -> Result<(), LedgerError>;
    /// The arrival time kept for a tool and caller, in milliseconds.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn rate(&mut self, tool: &str, caller: &str) -> Result<Option<i64>, LedgerError>;
    /// Keeps it.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn set_rate(&mut self, tool: &str, caller: &str, tat_ms: i64) -> Result<(), LedgerError>;
    /// How many calls of a tool run, by live writers.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn running(&mut self, tool: &str) -> Result<u64, LedgerError>;
    /// The newest approval for exactly this call that is not spent.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn approval(&mut self, request: &ClaimRequest) -> Result<Option<Approval>, LedgerError>;
    /// An approval by its id.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn approval_by_id(&mut self, id: &str) -> Result<Option<Approval>, LedgerError>;
    /// Writes an approval, new or changed.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn put_approval(&mut self, approval: &Approval) -> Result<(), LedgerError>;
    /// Gives an event its place in the writer's log; only the head moves.
    fn place(&mut self, body: EventBody) -> AuditEvent;
    /// The place that the next event gets.
    fn next_seq(&self) -> u64;
    /// Writes an event.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn put_event(&mut self, event: &AuditEvent) -> Result<(), LedgerError>;
    /// Writes an agent log that the event at `seq` of this writer accounts for.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn put_log(&mut self, log: &AgentLog, seq: u64) -> Result<(), LedgerError>;
    /// Running claims whose writers are lost.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn lost(&mut self) -> Result<Vec<Stored>, LedgerError>;
}

fn append(records: &mut impl Records, body: EventBody) -> Result<(), LedgerError> {
    let event = records.place(body);
    records.put_event(&event)
}

/// What [`claim`] found; the store adds how to wait for a twin.
pub type ClaimStep = Claimed;

/// Stage 6: the earlier outcome for a key; else the approval, the charges and the claim.
///
/// # Errors
/// Where the store fails; the transaction must be rolled back then.
pub fn claim(
    records: &mut impl Records,
    request: &ClaimRequest,
    watch: impl FnOnce(&str) -> Option<async_channel::Receiver<Infallible>>,
) -> Result<ClaimStep, LedgerError> {
    let mut again = None;
    for key in &request.keys {
        let Some(stored) = records.held(key)? else {
            continue;
        };
        let held = Held {
            state: stored.receipt.state,
            same_args: stored.receipt.args_digest == request.args_digest,
            owner_lost: stored.owner_lost,
        };
        let receipt_id = stored.receipt.receipt_id.clone();
        match claim::next(request.rules, held) {
            Transition::Replay { arguments_differ } => {
                let receipt = Box::new(stored.receipt);
                return Ok(Claimed::Replay { receipt, arguments_differ });
            }
            Transition::InFlight => {
                let settled = watch(&receipt_id);
                return Ok(Claimed::InFlight { receipt_id, settled });
            }
            Transition::InDoubt => return Ok(Claimed::InDoubt { receipt_id }),
            Transition::Conflict => return Ok(Claimed::Conflict { receipt_id }),
            Transition::Redispatch => {
                again = Some(stored);
                break;
            }
        }
    }
    // A claim that is taken over has spent its approval already.
    let approved = match (&request.approval_rule, &again) {
        (Some(_), None) => match spend_approval(records, request)? {
            Ok(approval_id) => Some(approval_id),
            Err(refused) => return Ok(refused),
        },
        _ => None,
    };
    if let Some(refused) = charge(records, request)? {
        return Ok(refused);
    }
    if let Some(mut approval) = approved.clone() {
        approval.state = ApprovalState::Spent;
        records.put_approval(&approval)?;
    }
    let (receipt, fence) = match again {
        Some(stored) => {
            let mut receipt = stored.receipt;
            receipt.state = ClaimState::InFlight;
            receipt.attempt += 1;
            receipt.status = None;
            receipt.effect = Effect::Unknown;
            receipt.error_code = None;
            receipt.result = None;
            receipt.result_digest = None;
            receipt.settled_at = None;
            receipt.audit_seq = None;
            receipt.writer = records.writer().to_owned();
            receipt.policy_version.clone_from(&request.policy_version);
            (receipt, stored.fence + 1)
        }
        None => {
            let approval_id = approved.map(|approval| approval.approval_id);
            (fresh(records, request, approval_id), 1)
        }
    };
    records.put(&receipt, fence, &request.at)?;
    for key in &request.keys {
        records.hold(key, &receipt.receipt_id)?;
    }
    let mut dispatched = request.dispatched.clone();
    dispatched.receipt_id = Some(receipt.receipt_id.clone());
    append(records, dispatched)?;
    Ok(Claimed::Fresh(Claim::granted(receipt.receipt_id, fence, receipt.attempt)))
}

fn fresh(records: &impl Records, request: &ClaimRequest, approval_id: Option<String>) -> Receipt {
    let key_digest = request.keys.first().cloned();
    Receipt {
        receipt_id: request.receipt_id.clone(),
        call_id: request.call_id.clone(),
        tool_id: request.tool_id.clone(),
        contract_digest: request.contract_digest.clone(),
        caller: request.caller.clone(),
        idempotency: ReceiptKey {
            mode: request.mode,
            key_id: key_digest.as_ref().map(|_| records.key_id().to_owned()),
            key_digest,
        },
        args_digest: request.args_digest.clone(),
        state: ClaimState::InFlight,
        status: None,
        effect: Effect::Unknown,
        error_code: None,
        fields: serde_json::Map::new(),
        result_digest: None,
        result: None,
        attempt: 1,
        started_at: request.at.text.clone(),
        settled_at: None,
        duration_ms: None,
        writer: records.writer().to_owned(),
        policy_version: request.policy_version.clone(),
        sandbox_digest: None,
        approval_id,
        audit_seq: None,
    }
}

fn spend_approval(
    records: &mut impl Records,
    request: &ClaimRequest,
) -> Result<Result<Approval, Claimed>, LedgerError> {
    match records.approval(request)? {
        Some(approval) if approval.state == ApprovalState::Granted => Ok(Ok(approval)),
        Some(Approval { approval_id, state: ApprovalState::Rejected, .. }) => {
            Ok(Err(Claimed::ApprovalRejected { approval_id }))
        }
        Some(Approval { approval_id, .. }) => Ok(Err(Claimed::ApprovalRequired { approval_id })),
        None => {
            let approval = Approval {
                approval_id: request.approval_id.clone(),
                tool_id: request.tool_id.clone(),
                caller: request.caller.clone(),
                args_digest: request.args_digest.clone(),
                contract_digest: request.contract_digest.clone(),
                state: ApprovalState::Pending,
                requested_at: request.at.text.clone(),
            };
            records.put_approval(&approval)?;
            Ok(Err(Claimed::ApprovalRequired { approval_id: approval.approval_id }))
        }
    }
}

fn charge(
    records: &mut impl Records,
    request: &ClaimRequest,
) -> Result<Option<Claimed>, LedgerError> {
    if let Some(max) = request.concurrency_max
        && records.running(&request.tool_id)? >= max
    {
        return Ok(Some(Claimed::TooManyInFlight));
    }
    if let Some(per_min) = request.rate_per_min {
        let tat = records.rate(&request.tool_id, &request.caller)?;
        match claim::rate(tat, request.at.epoch_ms, per_min) {
            Ok(next) => records.set_rate(&request.tool_id, &request.caller, next)?,
            Err(retry_after_ms) => return Ok(Some(Claimed::RateLimited { retry_after_ms })),
        }
    }
    Ok(None)
}

/// Stage 9: receipt, agent log and audit events of a dispatched call.
///
/// # Errors
/// [`LedgerError::Stale`] where the claim was taken over; else where the store fails.
pub fn settle(records: &mut impl Records, settlement: &Settlement) -> Result<Receipt, LedgerError> {
    let id = settlement.claim.receipt_id();
    let stored = records.stored(id)?.ok_or_else(|| LedgerError::NotFound(id.to_owned()))?;
    let own = stored.fence == settlement.claim.fence();
    if own && stored.receipt.settled_at.is_some() {
        // The same settlement again: its first answer was lost on the way.
        return Ok(stored.receipt);
    }
    let late = stored.receipt.state == ClaimState::InDoubt;
    if !own || !(late || stored.receipt.state == ClaimState::InFlight) {
        return Err(LedgerError::Stale);
    }
    // A second dispatch that did not start says nothing of what the first one did.
    let effect = match settlement.effect {
        Effect::NotStarted if stored.receipt.attempt > 1 => Effect::Unknown,
        known => known,
    };
    let outcome = claim::settled(settlement.mode, effect, settlement.error_code);
    let mut receipt = stored.receipt;
    receipt.state = outcome.state;
    receipt.status = Some(settlement.status);
    receipt.effect = effect;
    receipt.error_code = settlement.error_code;
    receipt.fields = settlement.fields.clone();
    receipt.result_digest.clone_from(&settlement.result_digest);
    receipt.result.clone_from(&settlement.result);
    receipt.sandbox_digest.clone_from(&settlement.sandbox_digest);
    receipt.settled_at = Some(settlement.at.text.clone());
    receipt.duration_ms = Some(settlement.duration_ms);
    for body in &settlement.events {
        append(records, body.clone())?;
    }
    if late {
        let mut body = EventBody::new(AuditEventKind::ToolSettledLate, settlement.at.text.clone());
        body.tool_name = Some(receipt.tool_id.clone());
        body.call_id = Some(receipt.call_id.clone());
        body.receipt_id = Some(receipt.receipt_id.clone());
        append(records, body)?;
    }
    let writer = records.writer().to_owned();
    receipt.audit_seq = Some(AuditPlace { writer, seq: records.next_seq() });
    if !outcome.holds_key {
        records.free(id)?;
    }
    if effect == Effect::NotStarted {
        give_back(records, &receipt, settlement.rate_per_min)?;
    }
    records.put(&receipt, stored.fence, &settlement.at)?;
    let mut log = settlement.log.clone();
    log.receipt_id = Some(receipt.receipt_id.clone());
    log.attempt = receipt.attempt;
    let mut terminal = settlement.terminal.clone();
    terminal.receipt_id = Some(receipt.receipt_id.clone());
    terminal.effect = Some(effect);
    terminal.receipt_digest = Some(of_record(&receipt));
    write_terminal(records, &log, terminal)?;
    Ok(receipt)
}

/// What a call that did not start took from limits comes back.
fn give_back(
    records: &mut impl Records,
    receipt: &Receipt,
    rate_per_min: Option<u64>,
) -> Result<(), LedgerError> {
    if let Some(per_min) = rate_per_min.and_then(|n| i64::try_from(n).ok()).filter(|n| *n > 0)
        && let Some(tat) = records.rate(&receipt.tool_id, &receipt.caller)?
    {
        let interval = (60_000 / per_min).max(1);
        records.set_rate(&receipt.tool_id, &receipt.caller, tat.saturating_sub(interval))?;
    }
    if let Some(id) = &receipt.approval_id
        && let Some(mut approval) = records.approval_by_id(id)?
    {
        approval.state = ApprovalState::Granted;
        records.put_approval(&approval)?;
    }
    Ok(())
}

/// Agent log and audit event of a call that was refused or replayed.
///
/// # Errors
/// Where the store fails.
pub fn refuse(records: &mut impl Records, refusal: &Refusal) -> Result<(), LedgerError> {
    write_terminal(records, &refusal.log, refusal.terminal.clone())
}

fn write_terminal(
    records: &mut impl Records,
    log: &AgentLog,
    mut terminal: EventBody,
) -> Result<(), LedgerError> {
    terminal.log_digest = Some(of_record(log));
    let event = records.place(terminal);
    records.put_event(&event)?;
    records.put_log(log, event.seq)
}

/// Events that are no calls.
///
/// # Errors
/// Where the store fails.
pub fn note(records: &mut impl Records, events: &[EventBody]) -> Result<(), LedgerError> {
    events.iter().try_for_each(|body| append(records, body.clone()))
}

/// Marks the running claims of lost writers as in doubt. The fence stays, so that an outcome
/// that still arrives is taken.
///
/// # Errors
/// Where the store fails.
pub fn sweep(records: &mut impl Records, at: &Moment) -> Result<Vec<Swept>, LedgerError> {
    let mut swept = Vec::new();
    for mut stored in records.lost()? {
        stored.receipt.state = ClaimState::InDoubt;
        stored.receipt.error_code = Some(ErrorCode::CallInDoubt);
        records.put(&stored.receipt, stored.fence, at)?;
        let mut body = EventBody::new(AuditEventKind::ToolCallInDoubt, at.text.clone());
        body.tool_name = Some(stored.receipt.tool_id.clone());
        body.caller = Some(stored.receipt.caller.clone());
        body.call_id = Some(stored.receipt.call_id.clone());
        body.receipt_id = Some(stored.receipt.receipt_id.clone());
        body.effect = Some(Effect::Unknown);
        append(records, body)?;
        swept.push(Swept { receipt_id: stored.receipt.receipt_id });
    }
    Ok(swept)
}
