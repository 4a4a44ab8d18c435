//! What a ledger does inside one transaction, over any place that keeps records.
//!
//! Stores bring the transaction and the places; the order of look-ups and writes is here, once.
//!
//! Path: 6, 9. Doc: records.md#the-ledger

use std::convert::Infallible;

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::approval::{Approval, ApprovalState};
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::{AuditPlace, ClaimState, Receipt, ReceiptKey};
use toolbooth_contracts::{Effect, ErrorCode, Status};

use crate::chain::{Head, Placed};
use crate::checkpoint::{self, Due, HEADS_MAX};
use crate::claim::{self, Happening, Meaning, Standing};
use crate::digest::of_record;
use crate::ledger::{
    Claim, ClaimRequest, Claimed, LedgerError, Moment, Prune, PruneKind, Pruned, Refusal,
    Resolution, Settlement, Swept,
};
use crate::note::Signer;
use crate::reads::WriterHead;

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
    /// A claim has just been dispatched; should it turn out durable after its caller was told
    /// that it is not, it is given up by this fence.
    fn begun(&mut self, receipt_id: &str, fence: u64, at: &Moment);
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
    /// The writer's log.
    fn head(&mut self) -> &mut Head;
    /// Writes an event that has its place.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn put_event(&mut self, placed: &Placed) -> Result<(), LedgerError>;
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
    /// The ends of other writers' logs that no checkpoint has named for good, oldest first, at
    /// most so many.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn unnamed(&mut self, limit: usize) -> Result<Vec<OtherHead>, LedgerError>;
    /// The ends of all other writers' logs.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn all_heads(&mut self) -> Result<Vec<WriterHead>, LedgerError>;
    /// A checkpoint of this writer names the ends of these writers' logs, which grow no more.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn named(&mut self, writers: &[String], note: &str) -> Result<(), LedgerError>;
    /// Settled receipts from before a time that are whole, at most so many, and whether each
    /// holds a key.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn prunable(&mut self, before: &str, limit: usize) -> Result<Vec<(Stored, bool)>, LedgerError>;
    /// Removes a receipt.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn remove(&mut self, receipt_id: &str) -> Result<(), LedgerError>;
    /// Removes agent logs from before a time, at most so many; how many.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn remove_logs(&mut self, before: &str, limit: usize) -> Result<u64, LedgerError>;
    /// Removes the events of one writer up to its next checkpoint, where that is from before a
    /// time; of which writer, and how many.
    ///
    /// # Errors
    /// As [`Records::held`].
    fn remove_events(&mut self, before: &str) -> Result<Option<(String, u64)>, LedgerError>;
}

/// The end of another writer's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherHead {
    /// Where it ends.
    pub head: WriterHead,
    /// Whether the writer has ended or is lost, so that it grows no more.
    pub ended: bool,
}

fn append(records: &mut impl Records, body: EventBody) -> Result<(), LedgerError> {
    let placed = records.head().append(body);
    records.put_event(&placed)
}

fn standing(stored: &Stored) -> Standing {
    Standing {
        state: stored.receipt.state,
        fence: stored.fence,
        attempt: stored.receipt.attempt,
        settled: stored.receipt.settled_at.is_some(),
    }
}

/// A receipt goes to where the rules say, and the next event accounts for it.
fn move_to(records: &mut impl Records, receipt: &mut Receipt, to: Standing) {
    receipt.state = to.state;
    receipt.attempt = to.attempt;
    let writer = records.writer().to_owned();
    receipt.audit_seq = Some(AuditPlace { writer, seq: records.head().next_seq() });
}

/// An event about a receipt.
fn about(receipt: &Receipt, kind: AuditEventKind, at: &Moment) -> EventBody {
    let mut body = EventBody::new(kind, at.text.clone());
    body.tool_name = Some(receipt.tool_id.clone());
    body.caller = Some(receipt.caller.clone());
    body.call_id = Some(receipt.call_id.clone());
    body.receipt_id = Some(receipt.receipt_id.clone());
    body.status = receipt.status;
    body.error_code = receipt.error_code;
    body.effect = Some(receipt.effect);
    body.args_digest = Some(receipt.args_digest.clone());
    body.result_digest.clone_from(&receipt.result_digest);
    body
}

/// Writes a receipt and the event that accounts for it.
fn put_with(
    records: &mut impl Records,
    receipt: &Receipt,
    fence: u64,
    mut body: EventBody,
    at: &Moment,
) -> Result<(), LedgerError> {
    records.put(receipt, fence, at)?;
    body.receipt_digest = Some(of_record(receipt));
    append(records, body)
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
        let receipt_id = stored.receipt.receipt_id.clone();
        let called = Happening::Called {
            rules: request.rules,
            same_args: stored.receipt.args_digest == request.args_digest
                || request.older_args_digests.contains(&stored.receipt.args_digest),
            owner_lost: stored.owner_lost,
        };
        match claim::step(standing(&stored), called) {
            Meaning::Replay { arguments_differ } => {
                let receipt = Box::new(stored.receipt);
                return Ok(Claimed::Replay { receipt, arguments_differ });
            }
            Meaning::InFlight => {
                let settled = watch(&receipt_id);
                return Ok(Claimed::InFlight { receipt_id, settled });
            }
            Meaning::Conflict => return Ok(Claimed::Conflict { receipt_id }),
            Meaning::Dispatch(standing) => {
                again = Some((stored.receipt, standing));
                break;
            }
            // Nothing else comes of a call; were it to, nothing would be dispatched.
            Meaning::InDoubt | Meaning::Now { .. } | Meaning::Already | Meaning::Stale => {
                return Ok(Claimed::InDoubt { receipt_id });
            }
        }
    }
    // A claim that is taken over has spent its approval already, where it was for the same call.
    let spent = again.as_ref().is_some_and(|(receipt, _)| {
        receipt.approval_id.is_some()
            && receipt.caller == request.caller
            && receipt.contract_digest == request.contract_digest
    });
    let approved = match &request.approval_rule {
        Some(_) if !spent => match spend_approval(records, request)? {
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
        Some((mut receipt, standing)) => {
            receipt.state = standing.state;
            receipt.attempt = standing.attempt;
            receipt.status = None;
            receipt.effect = Effect::Unknown;
            receipt.error_code = None;
            receipt.result = None;
            receipt.result_digest = None;
            receipt.settled_at = None;
            receipt.audit_seq = None;
            receipt.writer = records.writer().to_owned();
            receipt.policy_version.clone_from(&request.policy_version);
            if let Some(approval) = approved {
                receipt.approval_id = Some(approval.approval_id);
            }
            (receipt, standing.fence)
        }
        None => {
            let approval_id = approved.map(|approval| approval.approval_id);
            let first = Standing::FIRST;
            (fresh(records, request, first, approval_id), first.fence)
        }
    };
    records.put(&receipt, fence, &request.at)?;
    records.begun(&receipt.receipt_id, fence, &request.at);
    for key in &request.keys {
        records.hold(key, &receipt.receipt_id)?;
    }
    let mut dispatched = request.dispatched.clone();
    dispatched.receipt_id = Some(receipt.receipt_id.clone());
    append(records, dispatched)?;
    let key = receipt.idempotency.key_digest;
    Ok(Claimed::Fresh(Claim::granted(receipt.receipt_id, fence, receipt.attempt).under(key)))
}

fn fresh(
    records: &impl Records,
    request: &ClaimRequest,
    first: Standing,
    approval_id: Option<String>,
) -> Receipt {
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
        state: first.state,
        status: None,
        effect: Effect::Unknown,
        error_code: None,
        fields: serde_json::Map::new(),
        result_digest: None,
        result: None,
        attempt: first.attempt,
        started_at: request.at.text.clone(),
        settled_at: None,
        duration_ms: None,
        writer: records.writer().to_owned(),
        policy_version: request.policy_version.clone(),
        sandbox_digest: None,
        sandbox_missing: Vec::new(),
        egress: Vec::new(),
        approval_id,
        audit_seq: None,
        pruned_at: None,
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
    let arrives = Happening::Settled {
        fence: settlement.claim.fence(),
        mode: settlement.mode,
        effect: settlement.effect,
        code: settlement.error_code,
    };
    let (now, effect, holds_keys, late) = match claim::step(standing(&stored), arrives) {
        Meaning::Now { standing, effect, holds_keys, late } => (standing, effect, holds_keys, late),
        // The same settlement again: its first answer was lost on the way.
        Meaning::Already => return Ok(stored.receipt),
        _ => return Err(LedgerError::Stale),
    };
    let mut receipt = stored.receipt;
    receipt.status = Some(settlement.status);
    receipt.effect = effect;
    receipt.error_code = settlement.error_code;
    receipt.fields = settlement.fields.clone();
    receipt.result_digest.clone_from(&settlement.result_digest);
    receipt.result.clone_from(&settlement.result);
    if let Some(sandbox) = &settlement.sandbox {
        receipt.sandbox_digest = Some(sandbox.digest.clone());
        receipt.sandbox_missing.clone_from(&sandbox.missing);
        receipt.egress.clone_from(&sandbox.reached);
    }
    receipt.settled_at = Some(settlement.at.text.clone());
    receipt.duration_ms = Some(settlement.duration_ms);
    for body in &settlement.events {
        append(records, body.clone())?;
    }
    if late {
        let body = about(&receipt, AuditEventKind::ToolSettledLate, &settlement.at);
        append(records, body)?;
    }
    move_to(records, &mut receipt, now);
    if !holds_keys {
        records.free(id)?;
    }
    if effect == Effect::NotStarted {
        give_back(records, &receipt, settlement.rate_per_min)?;
    }
    records.put(&receipt, now.fence, &settlement.at)?;
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
    let placed = records.head().append(terminal);
    records.put_event(&placed)?;
    records.put_log(log, placed.event.seq)
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
    for stored in records.lost()? {
        let now = claim::step(standing(&stored), Happening::OwnerLost);
        let Meaning::Now { standing, effect, .. } = now else { continue };
        let mut receipt = stored.receipt;
        receipt.effect = effect;
        receipt.error_code = Some(ErrorCode::CallInDoubt);
        move_to(records, &mut receipt, standing);
        let body = about(&receipt, AuditEventKind::ToolCallInDoubt, at);
        put_with(records, &receipt, standing.fence, body, at)?;
        swept.push(Swept { receipt_id: receipt.receipt_id });
    }
    Ok(swept)
}

/// A running claim waits for somebody's input, or runs on after it.
///
/// # Errors
/// [`LedgerError::NotFound`], [`LedgerError::Stale`]; else where the store fails.
pub fn wait_for_input(
    records: &mut impl Records,
    receipt_id: &str,
    happening: Happening,
    at: &Moment,
) -> Result<(), LedgerError> {
    let missing = || LedgerError::NotFound(receipt_id.to_owned());
    let stored = records.stored(receipt_id)?.ok_or_else(missing)?;
    match claim::step(standing(&stored), happening) {
        Meaning::Now { standing, .. } => {
            let mut receipt = stored.receipt;
            receipt.state = standing.state;
            records.put(&receipt, standing.fence, at)
        }
        Meaning::Already => Ok(()),
        _ => Err(LedgerError::Stale),
    }
}

/// Settles a doubt by a person's word.
///
/// # Errors
/// [`LedgerError::NotFound`], [`LedgerError::Stale`] where the claim is not in doubt; else where
/// the store fails.
pub fn resolve(
    records: &mut impl Records,
    resolution: &Resolution,
) -> Result<Receipt, LedgerError> {
    let id = &resolution.receipt_id;
    let stored = records.stored(id)?.ok_or_else(|| LedgerError::NotFound(id.clone()))?;
    let mode = stored.receipt.idempotency.mode;
    let said = Happening::Resolved { mode, succeeded: resolution.succeeded };
    let Meaning::Now { standing: now, effect, holds_keys, .. } =
        claim::step(standing(&stored), said)
    else {
        return Err(LedgerError::Stale);
    };
    let mut receipt = stored.receipt;
    let code = (!resolution.succeeded).then_some(ErrorCode::ToolError);
    receipt.status = Some(code.map_or(Status::Succeeded, ErrorCode::status));
    receipt.effect = effect;
    receipt.error_code = code;
    receipt.result = Some(resolution.result.clone());
    receipt.result_digest.clone_from(&resolution.result_digest);
    receipt.settled_at = Some(resolution.at.text.clone());
    move_to(records, &mut receipt, now);
    if !holds_keys {
        records.free(id)?;
    }
    let mut body = about(&receipt, AuditEventKind::ReceiptResolved, &resolution.at);
    let mut facts = serde_json::Map::new();
    facts.insert("by".to_owned(), resolution.by.clone().into());
    body.facts = Some(facts);
    put_with(records, &receipt, now.fence, body, &resolution.at)?;
    Ok(receipt)
}

/// Most records that one step of pruning looks at.
pub const PRUNE_MAX: usize = 2_000;

/// Removes a bounded number of old records. A receipt that holds a key leaves a tombstone, so
/// that its key never silently runs again.
///
/// # Errors
/// Where the store fails.
pub fn prune(records: &mut impl Records, prune: &Prune) -> Result<Pruned, LedgerError> {
    let mut pruned = Pruned::default();
    let mut facts = serde_json::Map::new();
    match prune.kind {
        PruneKind::Receipts => {
            for (stored, holds) in records.prunable(&prune.before, PRUNE_MAX)? {
                if holds {
                    let mut receipt = stored.receipt;
                    receipt.result = None;
                    receipt.fields = serde_json::Map::new();
                    receipt.pruned_at = Some(prune.at.text.clone());
                    records.put(&receipt, stored.fence, &prune.at)?;
                    pruned.tombstones += 1;
                } else {
                    records.remove(&stored.receipt.receipt_id)?;
                    pruned.removed += 1;
                }
            }
        }
        PruneKind::Logs => pruned.removed = records.remove_logs(&prune.before, PRUNE_MAX)?,
        PruneKind::Events => {
            if let Some((writer, removed)) = records.remove_events(&prune.before)? {
                facts.insert("writer".to_owned(), writer.into());
                pruned.removed = removed;
            }
        }
    }
    if pruned == Pruned::default() {
        return Ok(pruned);
    }
    facts.insert("records".to_owned(), prune.kind.as_str().into());
    facts.insert("before".to_owned(), prune.before.clone().into());
    facts.insert("removed".to_owned(), pruned.removed.into());
    facts.insert("tombstones".to_owned(), pruned.tombstones.into());
    let mut body = EventBody::new(AuditEventKind::ReceiptsPruned, prune.at.text.clone());
    body.facts = Some(facts);
    append(records, body)?;
    Ok(pruned)
}

/// Signs a checkpoint over the writer's log, where one is due; gives the note.
///
/// # Errors
/// Where the store fails.
pub fn checkpoint(
    records: &mut impl Records,
    signer: &Signer,
    due: Due,
    at: &Moment,
) -> Result<Option<String>, LedgerError> {
    if !records.head().is_due(due, at.epoch_ms) {
        return Ok(None);
    }
    let others = records.unnamed(HEADS_MAX)?;
    let heads: Vec<WriterHead> = others.iter().map(|other| other.head.clone()).collect();
    let body = checkpoint::event(records.head(), &heads, signer, at);
    let note = body.facts.as_ref().and_then(|facts| facts.get("note")?.as_str().map(str::to_owned));
    append(records, body)?;
    records.head().cover();
    let ended: Vec<String> =
        others.into_iter().filter(|other| other.ended).map(|other| other.head.writer).collect();
    let note = note.unwrap_or_default();
    records.named(&ended, &note)?;
    Ok(Some(note))
}

/// The first event of a writer's log: the key that signs it, the id of the store's digest key, and
/// where the log before ended.
#[must_use]
pub fn started(
    signer: &Signer,
    key_id: &str,
    before: Option<(WriterHead, Option<String>)>,
    at: &Moment,
) -> EventBody {
    let mut facts = serde_json::Map::new();
    facts.insert("signingKey".to_owned(), signer.verifier().to_string().into());
    facts.insert("digestKeyId".to_owned(), key_id.into());
    if let Some((head, checkpoint)) = before {
        facts.insert("before".to_owned(), head.writer.into());
        facts.insert("size".to_owned(), head.size.into());
        facts.insert("lastLeaf".to_owned(), head.last_leaf.into());
        if let Some(note) = checkpoint {
            facts.insert("checkpoint".to_owned(), note.into());
        }
    }
    let mut body = EventBody::new(AuditEventKind::WriterStarted, at.text.clone());
    body.facts = Some(facts);
    body
}

/// The last event of a writer's log: a checkpoint over all of it, and its end.
///
/// # Errors
/// Where the store fails.
pub fn stop(
    records: &mut impl Records,
    signer: &Signer,
    at: &Moment,
) -> Result<Option<String>, LedgerError> {
    let note = checkpoint(records, signer, Due::NOW, at)?;
    let mut facts = serde_json::Map::new();
    facts.insert("size".to_owned(), (records.head().next_seq() + 1).into());
    let mut body = EventBody::new(AuditEventKind::WriterStopped, at.text.clone());
    body.facts = Some(facts);
    append(records, body)?;
    Ok(note)
}

/// A person takes a restored database as it is: the log says where every log ends now, and which
/// checkpoint it lacks.
///
/// # Errors
/// Where the store fails.
pub fn accept_restored(
    records: &mut impl Records,
    lost: Option<(&str, u64)>,
    at: &Moment,
) -> Result<(), LedgerError> {
    let mut heads = Vec::new();
    for writer in records.all_heads()? {
        heads.push(serde_json::json!({
            "writer": writer.writer,
            "size": writer.size,
            "root": writer.root.unwrap_or_default(),
        }));
    }
    let mut facts = serde_json::Map::new();
    if let Some((writer, size)) = lost {
        // A log that is gone whole has no head of its own any more.
        if !heads.iter().any(|head| head.get("writer").and_then(|own| own.as_str()) == Some(writer))
        {
            heads.push(serde_json::json!({ "writer": writer, "size": 0, "root": "" }));
        }
        facts.insert("lacks".to_owned(), serde_json::json!({ "writer": writer, "size": size }));
    }
    facts.insert("heads".to_owned(), heads.into());
    let mut body = EventBody::new(AuditEventKind::StoreRestored, at.text.clone());
    body.facts = Some(facts);
    append(records, body)
}

/// A claim whose writer learnt too late that it was durable, and so never dispatched it, is freed.
///
/// # Errors
/// Where the store fails.
pub fn abandon(
    records: &mut impl Records,
    receipt_id: &str,
    fence: u64,
    at: &Moment,
) -> Result<(), LedgerError> {
    let Some(stored) = records.stored(receipt_id)? else { return Ok(()) };
    let own = stored.receipt.writer == records.writer();
    let gone = Happening::Settled {
        fence,
        mode: stored.receipt.idempotency.mode,
        effect: Effect::NotStarted,
        code: Some(ErrorCode::RecordUnavailable),
    };
    let Meaning::Now { standing: now, effect, holds_keys, .. } =
        claim::step(standing(&stored), gone)
    else {
        return Ok(());
    };
    // Another writer may have taken this one for lost meanwhile.
    let runs = matches!(stored.receipt.state, ClaimState::InFlight | ClaimState::InDoubt);
    if !own || !runs || stored.receipt.settled_at.is_some() {
        return Ok(());
    }
    let mut receipt = stored.receipt;
    receipt.status = Some(ErrorCode::RecordUnavailable.status());
    receipt.effect = effect;
    receipt.error_code = Some(ErrorCode::RecordUnavailable);
    receipt.settled_at = Some(at.text.clone());
    move_to(records, &mut receipt, now);
    if !holds_keys {
        records.free(receipt_id)?;
    }
    if effect == Effect::NotStarted {
        give_back(records, &receipt, None)?;
    }
    let body = about(&receipt, AuditEventKind::ToolSettledLate, at);
    put_with(records, &receipt, now.fence, body, at)
}
