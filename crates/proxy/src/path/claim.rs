//! Stage 6: one durable step that returns the earlier outcome, or checks the approval, charges the limits
//! and claims the call.
//!
//! Path: 6. Doc: call-path.md#stages

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use toolbooth_audit::claim::KeyRules;
use toolbooth_audit::ledger::{Claim, ClaimRequest, Claimed};
use toolbooth_contracts::charge::Charge;
use toolbooth_contracts::contract::{IdempotencyMode, OnDifferentArgs};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::{Conversation, ErrorCode, GuardedArguments, ToolContract};
use toolbooth_policy::Permit;
use toolbooth_registry::RegisteredTool;

use super::approval::{self, Unapproved};
use super::authorize::Authorized;
use super::history::CallJudge;
use super::keys;
use super::resolve::FoundTool;
use crate::entry::Refused;
use crate::payload_retention::Intent;
use crate::port::ApprovalNotice;
use crate::shadow;
use crate::state::ProxyState;
use crate::trail::CallTrail;
use crate::world::World;

/// How often a call that waits for its duplicate asks the store again, if the duplicate may run in
/// another process.
const DUPLICATE_POLL: Duration = Duration::from_millis(100);

/// The same, if the duplicate runs in this process and signals its end.
const DUPLICATE_CHECK: Duration = Duration::from_secs(1);

/// The warning of a call whose key has no effect.
pub(super) const KEY_IGNORED: &str = "key-ignored";

/// A granted claim, durable unless it is relaxed: the tool can be dispatched once. Only this stage
/// constructs it.
pub(super) struct ClaimedCall {
    pub(super) found: FoundTool,
    pub(super) claim: Claim,
    /// The guarded and judged arguments, and nothing else.
    pub(super) arguments: GuardedArguments,
    pub(super) forwarded_key: Option<String>,
    _stage: (),
}

/// A call that gets an earlier outcome.
pub(super) struct Replayed {
    pub(super) trail: Box<CallTrail>,
    pub(super) world: Arc<World>,
    pub(super) receipt: Box<Receipt>,
    pub(super) arguments_differ: bool,
}

/// Why a call is not dispatched.
pub(super) enum Stop {
    Refused(Refused),
    Replayed(Box<Replayed>),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Why there is no claim.
pub(super) enum NotClaimed {
    Stopped(Stop),
    /// The call can wait for its approval.
    Unapproved(Box<Unapproved>),
}

impl<S: Into<Stop>> From<S> for NotClaimed {
    fn from(stop: S) -> Self {
        Self::Stopped(stop.into())
    }
}

/// Claims a call. If a duplicate is still running, the call waits for its outcome without a slot.
pub(super) async fn claim(
    state: &Arc<ProxyState>,
    authorized: Authorized,
) -> Result<ClaimedCall, NotClaimed> {
    let Authorized { mut found, permit, arguments, natural_key, .. } = authorized;
    found.entered.trail = shadow::record(state, found.entered.trail).await?;
    let contract = Arc::clone(found.tool.contract());
    let digester = state.parts.ledger.digester();
    let keys = keys::of_call(
        digester,
        &contract,
        &found.entered.trail,
        natural_key,
        found.entered.asked.dedup_key.as_ref(),
    );
    let is_new = |warning: &String| warning != KEY_IGNORED;
    if keys.ignored && found.entered.trail.warnings.iter().all(is_new) {
        found.entered.trail.warnings.push(KEY_IGNORED.to_owned());
    }
    let permit = Arc::new(permit);
    let judge = permit.windows().map(|_| CallJudge::new(&found.world, &permit));
    let mut need = permit.approval().cloned();
    let patience = Duration::from_millis(contract.policy.timeout_ms);
    let until = found.entered.deadline.unwrap_or_else(|| state.parts.clock.monotonic() + patience);
    loop {
        if found.entered.conversation.is_cancelled() {
            return Err(Refused::new(found.entered.trail, ErrorCode::Cancelled).into());
        }
        if state.parts.clock.monotonic() >= until {
            return Err(Refused::new(found.entered.trail, ErrorCode::Timeout).into());
        }
        let trail = &found.entered.trail;
        let mut request = claim_request(state, trail, &found.tool, &permit, &keys);
        request.approval =
            need.as_ref().map(|need| approval::request(state, need, &arguments, &request.at));
        request.history = judge.as_ref().zip(permit.windows()).map(|(j, own)| j.question(own));
        let notice = approval::notice(state, &request);
        let is_relaxed = request.relaxed;
        let claimed = state.parts.ledger.claim(request).await;
        state.claim_health.record(&claimed, is_relaxed, state.parts.clock.monotonic());
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => return Err(Refused::unrecorded(found.entered.trail, &error).into()),
        };
        let trail = &mut found.entered.trail;
        let judged = judge.as_ref().and_then(|judge| judge.take(trail));
        if let Some(Ok(permit)) = &judged {
            trail.decision = Some(permit.summary());
        }
        let (receipt_id, settled) = match claimed {
            Claimed::Fresh(claim) => {
                let forwarded_key = claim.key().map(str::to_owned).or(keys.forwarded);
                return Ok(ClaimedCall { found, claim, arguments, forwarded_key, _stage: () });
            }
            Claimed::InFlight { receipt_id, settled } => (receipt_id, settled),
            Claimed::Denied | Claimed::OtherApproval => match judged {
                // Asked again with the approval that the windows call for.
                Some(Ok(permit)) => {
                    need = permit.approval().cloned();
                    continue;
                }
                Some(Err(denial)) => {
                    return Err(Refused::denied(found.entered.trail, denial).into());
                }
                None => {
                    let trail = found.entered.trail;
                    return Err(Refused::new(trail, ErrorCode::PolicyDenied).into());
                }
            },
            Claimed::ApprovalRequired { approval_id } => {
                // Those who decide are told once.
                let is_new = |notice: &ApprovalNotice| notice.approval_id == approval_id;
                if let (Some(notice), Some(notifier)) =
                    (notice.filter(is_new), &state.parts.notifier)
                {
                    notifier.requested(notice);
                }
                let approvers = need.map(|need| need.by).unwrap_or_default();
                let unapproved = Unapproved { entered: found.entered, approval_id, approvers };
                return Err(NotClaimed::Unapproved(Box::new(unapproved)));
            }
            other => return Err(stopped(found, &permit, other).into()),
        };
        // A call that waits holds no slot: duplicates could take all of them.
        found.entered.slot = None;
        let left = until.saturating_sub(state.parts.clock.monotonic());
        let waited = wait_for_duplicate(state, settled, &found.entered.conversation);
        match tokio::time::timeout(left, waited).await {
            Ok(Ok(slot)) => found.entered.slot = Some(slot),
            Ok(Err(code)) => return Err(Refused::new(found.entered.trail, code).into()),
            Err(_) => {
                let trail = found.entered.trail;
                let refused = Refused::new(trail, ErrorCode::CallInFlight).retry_after(1_000);
                return Err(refused.with("receiptId", receipt_id).into());
            }
        }
    }
}

/// Waits until the duplicate may be settled, and for a slot.
async fn wait_for_duplicate(
    state: &ProxyState,
    settled: Option<async_channel::Receiver<std::convert::Infallible>>,
    conversation: &Conversation,
) -> Result<OwnedSemaphorePermit, ErrorCode> {
    let told = async {
        match settled {
            // Another process may have settled it meanwhile, so the store is asked from time to time.
            Some(settled) => drop(tokio::time::timeout(DUPLICATE_CHECK, settled.recv()).await),
            None => tokio::time::sleep(DUPLICATE_POLL).await,
        }
    };
    tokio::select! {
        () = told => (),
        () = conversation.cancelled() => return Err(ErrorCode::Cancelled),
    }
    Arc::clone(&state.slots).acquire_owned().await.map_err(|_| ErrorCode::Overloaded)
}

fn claim_request(
    state: &ProxyState,
    trail: &CallTrail,
    tool: &RegisteredTool,
    permit: &Permit,
    keys: &keys::Keys,
) -> ClaimRequest {
    let parts = &state.parts;
    let contract = tool.contract();
    let idempotency = &contract.idempotency;
    let keyed = idempotency.mode == IdempotencyMode::Keyed;
    let at = parts.clock.now();
    let rerunnable = is_rerunnable(contract);
    ClaimRequest {
        receipt_id: parts.ids.next(),
        call_id: trail.call_id.clone(),
        tool_id: trail.tool_id.clone(),
        contract_digest: tool.contract_digest().to_owned(),
        caller: trail.caller.name().to_owned(),
        mode: idempotency.mode,
        keys: keys.digests.clone(),
        rules: KeyRules {
            refuse_different_args: !keyed
                || idempotency.on_different_args == Some(OnDifferentArgs::Refuse),
            rerunnable,
        },
        args_digest: trail.args_digest.clone().unwrap_or_default(),
        older_args_digests: trail.older_args_digests.clone(),
        charges: permit.charges().to_vec(),
        approval: None,
        counted: permit.counted().to_vec(),
        history: None,
        policy_version: trail.policy_version.clone(),
        dispatched: trail.event(AuditEventKind::ToolDispatched, &at),
        at,
        sync: must_last(contract),
        // Only if the operator set it, and only if the operator also marked the tool `readOnly`.
        relaxed: contract.policy.read_only == Some(true)
            && parts.retention.intent(&trail.tool_id) == Intent::Relaxed,
    }
}

/// Whether a tool can be dispatched again after a dispatch with an unknown outcome.
fn is_rerunnable(contract: &ToolContract) -> bool {
    contract.idempotency.mode == IdempotencyMode::SafeRetry
        || contract.idempotency.accepts_idempotency_key == Some(true)
}

/// Whether a call's records must survive a loss of power even if the store would allow less. This
/// applies to tools that change something and must not simply be run again.
pub(super) fn must_last(contract: &ToolContract) -> bool {
    contract.policy.read_only != Some(true) && !is_rerunnable(contract)
}

/// Returns the code and the sentence of a call that no limit will ever let pass: trying again does not help.
fn never_fits(permit: &Permit, claimed: &Claimed) -> Option<(ErrorCode, &'static str)> {
    let mut charges = permit.charges().iter();
    match claimed {
        Claimed::RateLimited { .. } => charges
            .any(|charge| matches!(charge, Charge::Rate { per_min: 0 }))
            .then_some((ErrorCode::RateLimited, "the tool's contract allows no call")),
        Claimed::BudgetExceeded { .. } => charges
            .any(|charge| matches!(charge, Charge::Budget { units, limit, .. } if units > limit))
            .then_some((
                ErrorCode::BudgetExceeded,
                "one call of this tool costs more than the whole budget of a day",
            )),
        _ => None,
    }
}

/// Converts a response of the ledger other than a fresh claim.
fn stopped(found: FoundTool, permit: &Permit, claimed: Claimed) -> Stop {
    if let Some((code, sentence)) = never_fits(permit, &claimed) {
        return Refused::new(found.entered.trail, code).saying(sentence).into();
    }
    let FoundTool { entered, world, .. } = found;
    let trail = entered.trail;
    let refused = |trail, code| Refused::new(trail, code);
    let at_receipt =
        |trail, code, receipt_id: String| Refused::new(trail, code).with("receiptId", receipt_id);
    let refused = match claimed {
        Claimed::Replay { receipt, arguments_differ } => {
            return Stop::Replayed(Box::new(Replayed { trail, world, receipt, arguments_differ }));
        }
        Claimed::InDoubt { receipt_id } => at_receipt(trail, ErrorCode::CallInDoubt, receipt_id),
        Claimed::Conflict { receipt_id } => {
            at_receipt(trail, ErrorCode::IdempotencyConflict, receipt_id)
        }
        // These have stops of their own.
        Claimed::Denied | Claimed::OtherApproval => refused(trail, ErrorCode::PolicyDenied),
        Claimed::ApprovalRequired { approval_id } => {
            refused(trail, ErrorCode::ApprovalRequired).with("approvalId", approval_id)
        }
        Claimed::ApprovalRejected { approval_id } => {
            refused(trail, ErrorCode::ApprovalRejected).with("approvalId", approval_id)
        }
        Claimed::RateLimited { retry_after_ms } => {
            refused(trail, ErrorCode::RateLimited).retry_after(retry_after_ms)
        }
        Claimed::BudgetExceeded { retry_after_ms } => {
            refused(trail, ErrorCode::BudgetExceeded).retry_after(retry_after_ms)
        }
        Claimed::TooManyInFlight => refused(trail, ErrorCode::TooManyInFlight).retry_after(1_000),
        Claimed::InFlight { receipt_id, .. } => {
            at_receipt(trail, ErrorCode::CallInFlight, receipt_id).retry_after(1_000)
        }
        // A fresh claim never arrives here; if it did, nothing is dispatched.
        Claimed::Fresh(claim) => {
            at_receipt(trail, ErrorCode::RecordUnavailable, claim.receipt_id().to_owned())
        }
    };
    refused.into()
}
