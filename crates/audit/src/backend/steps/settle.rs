//! Stage 9: settles dispatched calls, and records calls that wait or were never dispatched.
//!
//! Path: 9. Doc: records.md#of-one-call

use std::sync::Arc;

use toolbooth_contracts::agent_log::AgentLog;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::{ClaimState, Receipt};
use toolbooth_contracts::{Effect, ErrorCode};

use super::{Step, about, account, approvals, move_to, place, plain, snapshot};
use crate::approvals::account_for;
use crate::backend::working::{
    BegunClaim, Changes, Needs, NewEvent, RecordText, WorkingSet, WrittenLog,
};
use crate::charges::{REFUNDED, add_facts};
use crate::claim::{self, ClaimEvent, ClaimSnapshot, Transition};
use crate::ledger::{LedgerError, Moment, Refusal, Settlement};

/// Settles a claim.
#[derive(Debug)]
pub struct Settle {
    settlement: Arc<Settlement>,
    log: Arc<WrittenLog>,
}

impl Settle {
    /// Returns the step with its log already serialized. The caller does this, so that the single
    /// writer does not.
    #[must_use]
    pub fn new(settlement: Arc<Settlement>) -> Self {
        let claim = &settlement.claim;
        let mut log = WrittenLog::of(&settlement.log, claim.receipt_id(), claim.attempt());
        log.documents.clone_from(&settlement.documents);
        Self { settlement, log: Arc::new(log) }
    }
}

impl WrittenLog {
    /// Serializes the log of a dispatch. The receipt id and attempt of the dispatch replace those
    /// in the log.
    fn of(log: &Arc<AgentLog>, receipt_id: &str, attempt: u32) -> Self {
        let mut log = Arc::clone(log);
        if log.receipt_id.as_deref() != Some(receipt_id) || log.attempt != attempt {
            let log = Arc::make_mut(&mut log);
            log.receipt_id = Some(receipt_id.to_owned());
            log.attempt = attempt;
        }
        Self { record: RecordText::of(&*log), log, documents: Vec::new() }
    }
}

impl Step for Settle {
    type Answer = Arc<Receipt>;

    fn needs(&self) -> Needs {
        let mut needs = Needs::of_receipt(self.settlement.claim.receipt_id());
        if self.settlement.effect == Effect::NotStarted {
            let Settlement { claim, log, .. } = &*self.settlement;
            let name = (log.tool_name.as_str(), log.caller.as_str());
            approvals::needs_of_refund(claim.taken(), name, &mut needs);
            needs_of_uncounted(claim.windows(), &mut needs);
        }
        needs
    }

    fn sync(&self) -> bool {
        self.settlement.sync
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Arc<Receipt>, Changes), LedgerError> {
        let id = self.settlement.claim.receipt_id();
        let stored = set.require(id)?;
        let arrives = ClaimEvent::Settled {
            fence: self.settlement.claim.fence(),
            mode: self.settlement.mode,
            effect: self.settlement.effect,
            code: self.settlement.error_code,
        };
        let (now, effect, holds_keys, late) = match claim::step(snapshot(stored), arrives) {
            Transition::Now { snapshot, effect, holds_keys, late } => {
                (snapshot, effect, holds_keys, late)
            }
            // The settlement is a duplicate: its first answer was lost.
            Transition::Already => return Ok((Arc::clone(&stored.receipt), Changes::default())),
            _ => return Err(LedgerError::Stale),
        };
        let mut changes = Changes::default();
        let mut receipt = settled(&self.settlement, &stored.receipt, effect);
        changes.events.extend(self.settlement.events.iter().cloned().map(plain));
        if late {
            let body = about(&receipt, AuditEventKind::ToolSettledLate, &self.settlement.at);
            changes.events.push(plain(body));
        }
        move_to(&mut receipt, now, place(set, changes.events.len()));
        if !holds_keys {
            changes.free_keys(&receipt);
        }
        let given_back = match effect {
            Effect::NotStarted => {
                receipt.history = Vec::new();
                approvals::refund(set, &receipt, self.settlement.claim.taken(), &mut changes)?
            }
            _ => None,
        };
        let (receipt, digest) = changes.put_named(receipt, now.fence);
        let mut terminal = self.settlement.terminal.clone();
        terminal.receipt_id = Some(id.to_owned());
        terminal.effect = Some(effect);
        account(&mut terminal, &receipt, digest);
        if let Some(given_back) = &given_back {
            account_for(&mut terminal, given_back);
        }
        if effect == Effect::NotStarted {
            add_facts(&mut terminal.facts, REFUNDED, self.settlement.claim.taken().iter());
        }
        changes.events.push(logged(&self.log, terminal));
        Ok((receipt, changes))
    }
}

/// Adds the needs of a step after which windows no longer count a claim.
fn needs_of_uncounted(windows: &[String], needs: &mut Needs) {
    needs.is_alone = !windows.is_empty();
    needs.counting.extend(windows.iter().cloned());
}

/// Returns the receipt of a claim with its outcome.
fn settled(settlement: &Settlement, before: &Receipt, effect: Effect) -> Receipt {
    let mut receipt = before.clone();
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
    receipt
}

/// Returns a terminal event with the agent log that it accounts for.
fn logged(log: &Arc<WrittenLog>, mut terminal: EventBody) -> NewEvent {
    terminal.log_digest = Some(log.record.digest.clone());
    NewEvent { body: terminal, log: Some(Arc::clone(log)) }
}

/// Records a call that was refused or replayed.
#[derive(Debug)]
pub struct Refuse {
    terminal: EventBody,
    log: Arc<WrittenLog>,
}

impl Refuse {
    /// Returns the step with its log already serialized.
    #[must_use]
    pub fn new(refusal: Refusal) -> Self {
        let Refusal { log, documents, terminal } = refusal;
        let log = WrittenLog { record: RecordText::of(&*log), log, documents };
        Self { terminal, log: Arc::new(log) }
    }
}

impl Step for Refuse {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn sync(&self) -> bool {
        false
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        set.disk_space().check()?;
        let mut changes = Changes::default();
        changes.events.push(logged(&self.log, self.terminal.clone()));
        Ok(((), changes))
    }
}

/// Marks a running claim as waiting for input, or as running again.
#[derive(Debug)]
pub struct Wait {
    /// The receipt id.
    pub receipt_id: String,
    /// [`ClaimEvent::Suspended`] or [`ClaimEvent::Resumed`].
    pub claim_event: ClaimEvent,
    /// The current time.
    pub at: Moment,
}

impl Step for Wait {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of_receipt(&self.receipt_id)
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let stored = set.require(&self.receipt_id)?;
        let mut changes = Changes::default();
        match claim::step(snapshot(stored), self.claim_event) {
            Transition::Now { snapshot, .. } => {
                let mut receipt = Receipt::clone(&stored.receipt);
                move_to(&mut receipt, snapshot, place(set, 0));
                let kind = match receipt.state {
                    ClaimState::AwaitingInput => AuditEventKind::ToolParked,
                    _ => AuditEventKind::ToolResumed,
                };
                let body = about(&receipt, kind, &self.at);
                changes.put_with(receipt, snapshot.fence, body);
                Ok(((), changes))
            }
            Transition::Already => Ok(((), changes)),
            _ => Err(LedgerError::Stale),
        }
    }
}

/// Frees a claim that was never dispatched, because its writer learned too late that it was
/// durable.
#[derive(Debug)]
pub struct Abandon(pub BegunClaim);

impl Step for Abandon {
    type Answer = ();

    fn needs(&self) -> Needs {
        let BegunClaim { receipt_id, tool_id, caller, taken, windows, .. } = &self.0;
        let mut needs = Needs::of_receipt(receipt_id);
        needs_of_uncounted(windows, &mut needs);
        approvals::needs_of_refund(taken, (tool_id, caller), &mut needs);
        needs
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let BegunClaim { receipt_id, at, taken, .. } = &self.0;
        let mut changes = Changes::default();
        let Some(stored) = set.receipt(receipt_id)? else { return Ok(((), changes)) };
        let Some((now, effect, holds_keys)) = self.given_up(set, stored) else {
            return Ok(((), changes));
        };
        let mut receipt = Receipt::clone(&stored.receipt);
        receipt.status = Some(ErrorCode::RecordUnavailable.status());
        receipt.effect = effect;
        receipt.error_code = Some(ErrorCode::RecordUnavailable);
        receipt.settled_at = Some(at.text.clone());
        move_to(&mut receipt, now, place(set, 0));
        if !holds_keys {
            changes.free_keys(&receipt);
        }
        let given_back = match effect {
            Effect::NotStarted => {
                receipt.history = Vec::new();
                approvals::refund(set, &receipt, taken, &mut changes)?
            }
            _ => None,
        };
        let mut body = about(&receipt, AuditEventKind::ToolSettledLate, at);
        if let Some(given_back) = &given_back {
            account_for(&mut body, given_back);
        }
        if effect == Effect::NotStarted {
            add_facts(&mut body.facts, REFUNDED, taken.iter());
        }
        changes.put_with(receipt, now.fence, body);
        Ok(((), changes))
    }
}

impl Abandon {
    /// Returns the claim after it is abandoned; `None` if another call has taken it over meanwhile.
    fn given_up(
        &self,
        set: &WorkingSet,
        stored: &crate::backend::working::Stored,
    ) -> Option<(ClaimSnapshot, Effect, bool)> {
        let receipt = &stored.receipt;
        let gone = ClaimEvent::Settled {
            fence: self.0.fence,
            mode: receipt.idempotency.mode,
            effect: Effect::NotStarted,
            code: Some(ErrorCode::RecordUnavailable),
        };
        // Another writer may have considered this writer lost meanwhile.
        let own = receipt.writer == set.writer();
        let runs = matches!(receipt.state, ClaimState::InFlight | ClaimState::InDoubt);
        match claim::step(snapshot(stored), gone) {
            Transition::Now { snapshot, effect, holds_keys, .. }
                if own && runs && receipt.settled_at.is_none() =>
            {
                Some((snapshot, effect, holds_keys))
            }
            _ => None,
        }
    }
}
