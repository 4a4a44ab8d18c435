//! Stage 6: returns the earlier outcome for a key; otherwise judges by windows, checks the approval,
//! charges the limits and makes the claim.
//!
//! Path: 6. Doc: call-path.md#idempotency

use toolbooth_contracts::Effect;
use toolbooth_contracts::event::{AuditEventKind, DecisionSummary, EventBody};
use toolbooth_contracts::history::HistoryEntry;
use toolbooth_contracts::receipt::{Receipt, ReceiptKey};

use super::{Step, account, approvals, move_to, place, plain, snapshot};
use crate::approvals::account_for;
use crate::backend::working::{BegunClaim, Changes, Needs, Stored, WorkingSet};
use crate::charges::{CHARGED, add_facts};
use crate::claim::{self, ClaimEvent, ClaimSnapshot, Transition};
use crate::history::{self, History, HistoryVerdict, seen};
use crate::ledger::{Claim, ClaimRequest, Claimed, LedgerError};

impl Step for ClaimRequest {
    type Answer = Claimed;

    fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        needs.keys.extend(self.keys.iter().cloned());
        approvals::needs_of(self, &mut needs);
        if let Some(needed) = &self.approval {
            needs.approvals.insert(needed.name(self));
            needs.pending.insert(needed.pending(self));
        }
        needs.counting.extend(self.counted.iter().map(|counted| counted.key.clone()));
        needs.clock = !self.counted.is_empty();
        needs.digest_keys = compares_digests(self);
        if let Some(question) = &self.history {
            let windows = question.windows.values().cloned();
            needs.windows.extend(windows.map(|window| (window, self.at.epoch_ms)));
            needs.clock = true;
        }
        needs
    }

    fn sync(&self) -> bool {
        // Later calls are judged by what is counted.
        self.sync || !self.counted.is_empty()
    }

    fn is_early(&self, claimed: &Claimed) -> bool {
        // Who spends an approval must know that it is spent.
        self.relaxed
            && self.keys.is_empty()
            && self.approval.is_none()
            && self.counted.is_empty()
            && self.history.is_none()
            && matches!(claimed, Claimed::Fresh(_))
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Claimed, Changes), LedgerError> {
        if compares_digests(self) {
            set.check_key_ids()?;
        }
        let mut again = None;
        for key in &self.keys {
            let Some(stored) = set.held(key)? else { continue };
            match earlier(self, set, stored) {
                Ok(snapshot) => {
                    again = Some((Receipt::clone(&stored.receipt), snapshot));
                    break;
                }
                Err(claimed) => return Ok((claimed, Changes::default())),
            }
        }
        set.disk_space().check()?;
        let now_ms = set.clock_ms.unwrap_or(self.at.epoch_ms);
        let before = again.as_ref().map_or(&[][..], |(receipt, _)| &receipt.history);
        let judged = match judge(self, set, before, now_ms)? {
            Ok(judged) => judged,
            Err(claimed) => return Ok((claimed, Changes::default())),
        };
        // A claim that is taken over has already spent its approval, if it was for the same call and rule.
        let spent =
            again.as_ref().and_then(|(receipt, _)| set.spent(receipt.approval_id.as_ref()?));
        let approved = match &self.approval {
            Some(needed) if !spent.is_some_and(|spent| needed.name(self).names(spent)) => {
                match approvals::spend(set, self, needed)? {
                    Ok(approval) => Some(approval),
                    Err(refused) => return Ok(refused),
                }
            }
            _ => None,
        };
        let mut changes = Changes::default();
        let taken = match approvals::charge(set, self, &mut changes)? {
            Ok(taken) => taken,
            Err(refused) => return Ok((refused, changes)),
        };
        let approval_id = approved.as_ref().map(|approval| approval.approval_id.clone());
        let mut dispatched = self.dispatched.clone();
        if let Some(approved) = &approved {
            account_for(&mut dispatched, approved);
        }
        add_facts(&mut dispatched.facts, CHARGED, taken.iter());
        changes.approvals.extend(approved);
        let shadow = judged.and_then(|judged| judged.account_in(&mut dispatched));
        let entries = entries(self, before, now_ms);
        let windows: Vec<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        let (mut receipt, fence) = match again {
            Some((receipt, snapshot)) => {
                (run_again(self, set, receipt, snapshot, approval_id), snapshot.fence)
            }
            None if set.receipt(&self.receipt_id).is_ok_and(|known| known.is_some()) => {
                return Err(LedgerError::used_receipt_id(&self.receipt_id));
            }
            None => (fresh(self, set, approval_id), ClaimSnapshot::FIRST.fence),
        };
        receipt.history = entries;
        let id = receipt.receipt_id.clone();
        let key = receipt.idempotency.key_digest.clone();
        let claim = Claim::granted(id.clone(), fence, receipt.attempt).under(key);
        let claim = claim.charged(taken.clone()).counted(windows.clone());
        let (receipt, digest) = changes.put_named(receipt, fence);
        changes.begun.push(BegunClaim {
            receipt_id: id.clone(),
            fence,
            tool_id: self.tool_id.clone(),
            caller: self.caller.clone(),
            at: self.at.clone(),
            taken,
            windows,
        });
        changes.held.extend(self.keys.iter().map(|key| (key.clone(), id.clone())));
        dispatched.receipt_id = Some(id);
        account(&mut dispatched, &receipt, digest);
        changes.events.push(plain(dispatched));
        changes.events.extend(shadow.map(plain));
        Ok((Claimed::Fresh(claim), changes))
    }
}

/// Whether a claim is compared with records that are found by a digest: earlier claims, approvals or windows.
fn compares_digests(request: &ClaimRequest) -> bool {
    !request.keys.is_empty()
        || request.approval.is_some()
        || !request.counted.is_empty()
        || request.history.is_some()
}

/// A call that rules with windows have permitted.
struct Judged {
    history: History,
    decision: DecisionSummary,
    /// What rules in shadow would have decided.
    shadow: Option<DecisionSummary>,
}

impl Judged {
    /// Adds the judgement to the dispatch event. Returns the event of a decision in shadow mode, if
    /// there is one.
    fn account_in(self, dispatched: &mut EventBody) -> Option<EventBody> {
        let shadow = self.shadow.map(|decision| EventBody {
            event: AuditEventKind::PolicyShadowDenied,
            decision: Some(decision),
            facts: None,
            ..dispatched.clone()
        });
        dispatched.decision = Some(self.decision);
        history::add_facts(&mut dispatched.facts, &self.history);
        shadow
    }
}

/// Judges a call by the windows that its rules read; `None` if they read none. `before` are the entries
/// of the claim that is taken over. Otherwise returns the response to the caller.
fn judge(
    request: &ClaimRequest,
    set: &WorkingSet,
    before: &[HistoryEntry],
    now_ms: i64,
) -> Result<Result<Option<Judged>, Claimed>, LedgerError> {
    let Some(question) = &request.history else { return Ok(Ok(None)) };
    let mut earlier_calls = History::new();
    for (name, window) in &question.windows {
        let mut totals = set.window(window)?;
        // The call counts once, however often it is dispatched.
        let earlier = before.iter().filter(|entry| entry.key == window.key);
        earlier.for_each(|entry| totals.take(entry));
        earlier_calls.insert(name.clone(), totals.seen(now_ms));
    }
    let history = seen(&question.windows, &request.counted, &earlier_calls);
    let asked = request.approval.as_ref().map(|needed| &needed.rule_digest);
    Ok(match question.judge.judge(&history) {
        HistoryVerdict::Deny => Err(Claimed::Denied),
        HistoryVerdict::Permit { approval, .. } if approval.as_ref() != asked => {
            Err(Claimed::OtherApproval)
        }
        HistoryVerdict::Permit { decision, shadow, .. } => {
            Ok(Some(Judged { history, decision, shadow }))
        }
    })
}

/// Returns the window entries of a claim that is made at `now_ms`. A claim that is taken over keeps
/// its entries in other windows.
fn entries(request: &ClaimRequest, before: &[HistoryEntry], now_ms: i64) -> Vec<HistoryEntry> {
    let mut entries: Vec<HistoryEntry> =
        request.counted.iter().map(|counted| history::entry(counted, now_ms)).collect();
    let others = before.iter().filter(|own| request.counted.iter().all(|new| new.key != own.key));
    entries.extend(others.cloned());
    entries
}

/// Returns the claim after it is taken over, or the response to the caller if an earlier claim
/// prevents that.
fn earlier(
    request: &ClaimRequest,
    set: &WorkingSet,
    stored: &Stored,
) -> Result<ClaimSnapshot, Claimed> {
    let receipt = &stored.receipt;
    let receipt_id = receipt.receipt_id.clone();
    let called = ClaimEvent::Called {
        rules: request.rules,
        same_args: receipt.args_digest == request.args_digest
            || request.older_args_digests.contains(&receipt.args_digest),
        owner_lost: stored.owner_lost,
    };
    match claim::step(snapshot(stored), called) {
        Transition::Dispatch(snapshot) => Ok(snapshot),
        Transition::Replay { arguments_differ } => {
            let receipt = Box::new(Receipt::clone(receipt));
            Err(Claimed::Replay { receipt, arguments_differ })
        }
        Transition::InFlight => {
            Err(Claimed::InFlight { receipt_id, settled: set.wait_for(stored) })
        }
        Transition::Conflict => Err(Claimed::Conflict { receipt_id }),
        // A call has no other transitions; if it had, nothing must be dispatched.
        Transition::InDoubt | Transition::Now { .. } | Transition::Already | Transition::Stale => {
            Err(Claimed::InDoubt { receipt_id })
        }
    }
}

fn run_again(
    request: &ClaimRequest,
    set: &WorkingSet,
    mut receipt: Receipt,
    snapshot: ClaimSnapshot,
    approval_id: Option<String>,
) -> Receipt {
    move_to(&mut receipt, snapshot, place(set, 0));
    let own = &mut receipt.idempotency;
    let others = request.keys.iter().filter(|key| !own.all().any(|known| known == *key));
    let others: Vec<String> = others.cloned().collect();
    own.more_key_digests.extend(others);
    Receipt {
        status: None,
        effect: Effect::Unknown,
        error_code: None,
        result: None,
        result_digest: None,
        settled_at: None,
        writer: set.writer().to_owned(),
        policy_version: request.policy_version.clone(),
        approval_id: approval_id.or(receipt.approval_id),
        ..receipt
    }
}

fn fresh(request: &ClaimRequest, set: &WorkingSet, approval_id: Option<String>) -> Receipt {
    let key_digest = request.keys.first().cloned();
    Receipt {
        receipt_id: request.receipt_id.clone(),
        call_id: request.call_id.clone(),
        tool_id: request.tool_id.clone(),
        contract_digest: request.contract_digest.clone(),
        caller: request.caller.clone(),
        idempotency: ReceiptKey {
            mode: request.mode,
            key_id: key_digest.as_ref().map(|_| set.digester().key_id().to_owned()),
            key_digest,
            more_key_digests: request.keys.iter().skip(1).cloned().collect(),
        },
        args_digest: request.args_digest.clone(),
        state: ClaimSnapshot::FIRST.state,
        status: None,
        effect: Effect::Unknown,
        error_code: None,
        fields: serde_json::Map::new(),
        result_digest: None,
        result: None,
        attempt: ClaimSnapshot::FIRST.attempt,
        started_at: request.at.text.clone(),
        settled_at: None,
        duration_ms: None,
        writer: set.writer().to_owned(),
        policy_version: request.policy_version.clone(),
        sandbox_digest: None,
        sandbox_missing: Vec::new(),
        egress: Vec::new(),
        approval_id,
        history: Vec::new(),
        audit_seq: Some(place(set, 0)),
        audit_count: Some(1),
        pruned_at: None,
    }
}
