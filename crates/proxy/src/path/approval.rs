//! The approval that a call needs: its request, and waiting for the decision.
//!
//! Path: 6. Doc: policy.md#approval

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use toolbooth_audit::approvals::{ApprovalFilter, ApprovalRequest};
use toolbooth_audit::ledger::{ClaimRequest, Moment};
use toolbooth_contracts::approval::{ApprovalState, Approvers};
use toolbooth_contracts::{Conversation, ErrorCode, GuardedArguments};
use toolbooth_policy::ApprovalNeed;

use super::enter::AskedTool;
use crate::entry::{Entered, Refused};
use crate::port::ApprovalNotice;
use crate::state::ProxyState;
use crate::trail::shown_arguments;
use crate::worker_slot::WorkerSlot;

/// When a caller asks again whether its call is approved, in milliseconds.
const APPROVAL_RETRY_MS: u64 = 5_000;

/// How often a call that waits for its approval asks the store, because another process can decide.
const DECISION_POLL: Duration = Duration::from_secs(1);

/// Returns the request of the approval that a call needs.
pub(super) fn request(
    state: &ProxyState,
    need: &ApprovalNeed,
    arguments: &GuardedArguments,
    at: &Moment,
) -> ApprovalRequest {
    let parts = &state.parts;
    ApprovalRequest {
        approval_id: parts.ids.next(),
        rule: need.rule.clone(),
        rule_digest: need.rule_digest.clone(),
        approvers: need.by,
        expires_at: at.after(parts.limits.approval_expiry).text,
        arguments: Some(shown_arguments(arguments, &parts.shapes)),
        open_after: first_id(at.epoch_ms, parts.limits.approval_expiry),
    }
}

/// Returns the time on the monotonic clock until which a call waits for its approval; `None` = it does not.
pub(super) fn patience(state: &ProxyState) -> Option<Duration> {
    let wait = state.parts.limits.approval_wait;
    (!wait.is_zero()).then(|| state.parts.clock.monotonic() + wait)
}

/// Returns the notice of the approval that a call may request; `None` without a notifier.
pub(super) fn notice(state: &ProxyState, request: &ClaimRequest) -> Option<ApprovalNotice> {
    let needed = request.approval.as_ref().filter(|_| state.parts.notifier.is_some())?;
    Some(ApprovalNotice {
        approval_id: needed.approval_id.clone(),
        tool_id: request.tool_id.clone(),
        caller: request.caller.clone(),
        call_id: request.call_id.clone(),
        rule: needed.rule.clone(),
        approvers: needed.approvers,
        arguments: needed.arguments.clone(),
        requested_at: request.at.text.clone(),
        expires_at: needed.expires_at.clone(),
    })
}

/// Returns the text before all ids (UUIDv7, RFC 9562) that were made within a time before a moment.
fn first_id(epoch_ms: i64, within: Duration) -> String {
    let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
    let first = epoch_ms.saturating_sub(within).max(0);
    let digits = format!("{first:012x}");
    let (head, tail) = digits.split_at_checked(8).unwrap_or((&digits, ""));
    format!("{head}-{tail}")
}

fn left(state: &ProxyState, until: Duration) -> Duration {
    until.saturating_sub(state.parts.clock.monotonic())
}

/// Waits until an approval is decided, at most until a time on the monotonic clock.
///
/// # Errors
/// `approval-required` if it was not decided in time, `cancelled`.
async fn decided(
    state: &ProxyState,
    approval_id: &str,
    until: Duration,
    conversation: &Conversation,
) -> Result<(), ErrorCode> {
    let mut decisions = state.decisions.subscribe();
    loop {
        let left = left(state, until);
        // A call that waits does not hold up the end of the proxy.
        if left.is_zero() || state.slots.is_closed() {
            return Err(ErrorCode::ApprovalRequired);
        }
        if let Some(reads) = &state.parts.reads {
            let id = Some(approval_id.to_owned());
            let filter = ApprovalFilter { id, limit: 1, ..ApprovalFilter::default() };
            let found = reads.approvals(filter).await.ok().and_then(|mut found| found.pop());
            let state = found.and_then(|raw| raw.approval()).map(|approval| approval.state);
            if state.is_some_and(|state| state != ApprovalState::Pending) {
                return Ok(());
            }
        }
        tokio::select! {
            _ = decisions.changed() => (),
            () = tokio::time::sleep(left.min(DECISION_POLL)) => (),
            () = conversation.cancelled() => return Err(ErrorCode::Cancelled),
        }
    }
}

/// Waits until a call that has left its slot, and its place of a queued call, can go on.
async fn slot_again(
    state: &ProxyState,
    worker: Option<&WorkerSlot>,
) -> Result<OwnedSemaphorePermit, ErrorCode> {
    if let Some(worker) = worker
        && !worker.take_again().await
    {
        return Err(ErrorCode::Overloaded);
    }
    let slot = Arc::clone(&state.slots).acquire_owned().await;
    slot.map_err(|_| ErrorCode::ApprovalRequired)
}

/// A call that needs an approval which is not granted yet.
pub(super) struct Unapproved {
    pub(super) entered: Entered<AskedTool>,
    pub(super) approval_id: String,
    pub(super) approvers: Approvers,
}

impl Unapproved {
    /// Waits until the approval can be decided, without a slot, and returns the call with a new one, to be
    /// judged again. `until` is a time on the monotonic clock; `None` = the call does not wait. `worker` is the
    /// place of a queued call.
    pub(super) async fn wait(
        self,
        state: &ProxyState,
        until: Option<Duration>,
        worker: Option<&WorkerSlot>,
    ) -> Result<Entered<AskedTool>, Refused> {
        let Self { mut entered, approval_id, approvers } = self;
        let until = until.map(|until| entered.deadline.map_or(until, |at| at.min(until)));
        // Queued calls have a bound of their own.
        let permit = worker.is_none().then(|| state.waiting.try_acquire()).transpose();
        let may_wait = permit.is_ok() && until.is_some();
        let may_wait = may_wait && worker.is_none_or(WorkerSlot::leave);
        let decided = match until.filter(|_| may_wait) {
            Some(until) => {
                entered.slot = None;
                let conversation = &entered.conversation;
                match decided(state, &approval_id, until, conversation).await {
                    Ok(()) => tokio::select! {
                        slot = slot_again(state, worker) => slot,
                        () = conversation.cancelled() => Err(ErrorCode::Cancelled),
                        () = tokio::time::sleep(left(state, until)) => Err(ErrorCode::Overloaded),
                    },
                    Err(code) => Err(code),
                }
            }
            None => Err(ErrorCode::ApprovalRequired),
        };
        drop(permit);
        match decided {
            Ok(slot) => {
                // Another process may have ended the caller's key meanwhile, or paused the tool.
                if state.orders.are_read()
                    && let Err(error) = state.refresh_orders().await
                {
                    let refused = Refused::unrecorded(entered.trail, &error);
                    return Err(refused.retry_after(APPROVAL_RETRY_MS));
                }
                let caller = entered.trail.caller.identity();
                if let Err(ended) = state.orders.check(caller, &*state.parts.clock) {
                    let refused = Refused::new(entered.trail, ErrorCode::PolicyDenied);
                    return Err(refused.because(ended.to_string()).with("approvalId", approval_id));
                }
                // What is in force now judges it, and may do so before its arguments count.
                entered.trail.judged = None;
                entered.trail.decision = None;
                Ok(entered.with_slot(slot))
            }
            Err(code) => {
                let refused = Refused::new(entered.trail, code);
                let refused = match code {
                    ErrorCode::ApprovalRequired => refused
                        .saying(format!("{}: approval {approval_id}", code.safe_sentence()))
                        .with("approvers", approvers.as_str())
                        .retry_after(APPROVAL_RETRY_MS),
                    _ => refused,
                };
                Err(refused.with("approvalId", approval_id))
            }
        }
    }
}
