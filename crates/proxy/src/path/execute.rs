//! Stage 7: runs the executor under the tool's time limit.
//!
//! Nothing is retried here. Cancelling is a signal with a grace period, never a dropped future.
//!
//! Path: 7. Doc: execution.md#executors

use std::sync::Arc;
use std::time::Duration;

use toolbooth_audit::LedgerError;
use toolbooth_contracts::contract::AdapterId;
use toolbooth_contracts::conversation::Question;
use toolbooth_contracts::execution_log::Observations;
use toolbooth_contracts::order::PauseTarget;
use toolbooth_contracts::port::{ExecutionError, ToolOutput};
use toolbooth_contracts::sandbox::Enforce;
use toolbooth_contracts::{
    CallId, Conversation, Dispatch, Effect, ErrorCode, ExecutionLog, Executor, Outcome,
};

use super::claim::ClaimedCall;
use crate::allowance::{self, Allowance};
use crate::inline_task::{InlineTask, TaskFailed};
use crate::state::ProxyState;
use crate::stops::{self, StopWatch};
use crate::supervision::{Signal, Supervision, next};

/// How the execution ended.
pub(super) enum Execution {
    /// The tool answered.
    Answered(ToolOutput),
    /// The tool did not answer.
    Failed(ExecutionError),
}

impl Execution {
    pub(super) fn description(&self) -> &'static str {
        match self {
            Self::Answered(output) if output.is_error => "the tool answered an error",
            Self::Answered(_) => "the tool answered",
            Self::Failed(error) => error.code.as_str(),
        }
    }
}

/// A tool that has run, or that is known not to have started. Only this stage constructs it.
pub(super) struct Executed {
    pub(super) claimed: ClaimedCall,
    pub(super) outcome: Execution,
    pub(super) observed: Observations,
    pub(super) execute_ms: f64,
    _stage: (),
}

impl Executed {
    /// Returns the bytes of a tool's result with its metadata; 0 if the call failed.
    pub(super) fn result_bytes(&self) -> usize {
        match &self.outcome {
            Execution::Answered(output) => {
                output.payload.parts().map(|part| part.as_str().len()).sum()
            }
            Execution::Failed(_) => 0,
        }
    }
}

pub(super) async fn execute(state: &Arc<ProxyState>, mut claimed: ClaimedCall) -> Executed {
    let began = state.parts.clock.monotonic();
    let execution_log = ExecutionLog::default();
    let outcome = match try_run(state, &mut claimed, &execution_log).await {
        Ok(output) => Execution::Answered(output),
        Err(error) => Execution::Failed(error),
    };
    let spent = state.parts.clock.monotonic().saturating_sub(began);
    let execute_ms = crate::port::milliseconds(spent);
    Executed { claimed, outcome, observed: execution_log.take(), execute_ms, _stage: () }
}

async fn try_run(
    state: &Arc<ProxyState>,
    claimed: &mut ClaimedCall,
    execution_log: &ExecutionLog,
) -> Result<ToolOutput, ExecutionError> {
    let stop_watch = state.stops.watch();
    // Sees the same stops while the call waits for an answer.
    let mut asking_watch = state.stops.watch();
    // A pause may have come into force since the call took its world. One that comes into force from
    // here on and stops running calls is seen by the watch.
    let trail = &claimed.found.entered.trail;
    if state.parts.worlds.now().is_paused(&claimed.found.tool, &trail.caller) {
        return Err(cut(ErrorCode::Paused, Effect::NotStarted, "it was paused before dispatch"));
    }
    let executor = ready(state, claimed)?;
    let found = &claimed.found;
    let contract = Arc::clone(found.tool.contract());
    let limit = Duration::from_millis(contract.policy.timeout_ms);
    let left = found.entered.time_left(state);
    let cap = allowance::cap(&state.parts.limits, limit);
    let timeout = match found.tool.adapter() {
        // Only servers report progress; the proxy ends other tools at their own time limit.
        AdapterId::Mcp(_) => left.map_or(cap, |left| left.min(cap)),
        _ => left.map_or(limit, |left| left.min(limit)),
    };
    if timeout.is_zero() {
        return Err(cut(
            ErrorCode::Timeout,
            Effect::NotStarted,
            "the deadline passed before dispatch",
        ));
    }
    let call_id = CallId::try_from(found.entered.trail.call_id.clone())
        .map_err(|error| cut(ErrorCode::AdapterFailed, Effect::NotStarted, &error.to_string()))?;
    let dispatch = Dispatch {
        contract: Arc::clone(&contract),
        arguments: claimed.arguments.clone(),
        call_id,
        caller: found.entered.trail.caller.clone(),
        toolset: found.entered.toolset.clone(),
        timeout,
        idempotency_key: claimed.forwarded_key.clone(),
        attempt: claimed.claim.attempt(),
        execution_log: execution_log.clone(),
    };
    let conversation = found.entered.conversation.clone();
    let (inner_conversation, cancel) = conversation.with_own_cancel();
    let (inner_conversation, questions) = inner_conversation.with_own_questions();
    let (inner_conversation, progress_signal) = match found.tool.adapter() {
        AdapterId::Mcp(_) => {
            let (conversation, progress_signal) = inner_conversation.with_progress_signal();
            (conversation, Some(progress_signal))
        }
        _ => (inner_conversation, None),
    };
    let (tool_id, adapter) = (contract.tool_id.clone(), found.tool.adapter().clone());
    let caller = found.entered.trail.caller.clone();
    let server = match &adapter {
        AdapterId::Mcp(server) => Some(server.as_str()),
        _ => None,
    };
    let concerned = |target: &PauseTarget| {
        stops::concerns(target, caller.name(), Some(tool_id.as_str()), server)
    };
    let allowance = Allowance::begin(limit, cap, left);
    let mut supervision =
        Supervision::begin(state, &conversation, allowance, stop_watch, concerned, progress_signal);
    let may_block = executor.may_block();
    let executing = async move { executor.execute(dispatch, inner_conversation).await };
    let mut task = InlineTask::new(&state.tasks, executing);
    if may_block {
        task.spawn();
    }
    let read_only = contract.policy.read_only == Some(true);
    let cause = loop {
        tokio::select! {
            biased;
            ended = &mut task => return outcome(ended),
            // The time for which a person is asked does not count as the tool's.
            question = next(questions.as_ref()) => {
                // It goes on while its caller is asked.
                task.spawn();
                let asked = state.parts.clock.monotonic();
                let suspended = suspend(state, claimed, &conversation, question, &mut asking_watch);
                if let Err(error) = suspended.await {
                    tracing::error!(%error, "a claim could not be taken up again");
                    break ErrorCode::AdapterFailed;
                }
                supervision.extend(state.parts.clock.monotonic().saturating_sub(asked));
            }
            signal = supervision.signal() => match signal {
                Signal::TimedOut => break ErrorCode::Timeout,
                Signal::Ending => break ErrorCode::Cancelled,
                Signal::Stopped => {
                    tracing::info!(tool.id = %tool_id, %caller, "an operator cancels a running call");
                    break ErrorCode::Cancelled;
                }
                Signal::Cancelled => {
                    // If the caller only disconnected, its tool may finish.
                    if !conversation.has_hung_up() {
                        cancel.cancel();
                    }
                    // A read-only tool is abandoned; others run until their effect is known.
                    if read_only {
                        break ErrorCode::Cancelled;
                    }
                }
            },
        }
    };
    cancel.cancel();
    // The grace period is for cleaning up. A result is too late now, but it can state that the tool was
    // never started.
    match tokio::time::timeout(state.parts.limits.cancel_grace, &mut task).await {
        Ok(ended) => match outcome(ended) {
            Err(error) if error.effect == Effect::NotStarted => {
                Err(ExecutionError { code: cause, safe: None, ..error })
            }
            Err(error) => Err(cut(cause, Effect::Unknown, &error.internal)),
            Ok(_) => Err(cut(cause, Effect::Unknown, "the tool answered after it was cancelled")),
        },
        Err(_) => {
            tracing::warn!(tool.id = %contract.tool_id, "a tool outlives its time");
            Err(cut(cause, Effect::Unknown, "the tool did not stop when it was told to"))
        }
    }
}

/// Passes the tool's question to its caller. During the wait the claim records it durably, and the call
/// holds no slot. A question that cannot be recorded is not asked.
async fn suspend(
    state: &Arc<ProxyState>,
    claimed: &mut ClaimedCall,
    conversation: &Conversation,
    question: Question,
    stop_watch: &mut StopWatch,
) -> Result<(), LedgerError> {
    let parts = &state.parts;
    let (id, fence) = (claimed.claim.receipt_id().to_owned(), claimed.claim.fence());
    if let Err(error) = parts.ledger.suspend(id.clone(), fence, parts.clock.now()).await {
        tracing::warn!(%error, "a tool's question is not asked");
        return Ok(());
    }
    claimed.found.entered.slot = None;
    let (tool, caller) = (&claimed.found.tool, &claimed.found.entered.trail.caller);
    let server = match tool.adapter() {
        AdapterId::Mcp(server) => Some(server.as_str()),
        _ => None,
    };
    // The loop of the call sees the same stop afterwards.
    let stopped = stop_watch
        .stopped(|target| stops::concerns(target, caller.name(), Some(tool.id().as_str()), server));
    let answer = tokio::select! {
        answer = conversation.ask(question.request.clone()) => answer.ok(),
        () = tokio::time::sleep(parts.limits.input_patience) => None,
        () = conversation.cancelled() => None,
        () = stopped => None,
        () = state.ending.cancelled() => None,
    };
    let slot = Arc::clone(&state.slots).acquire_owned();
    // During shutdown there are no slots; a running call is still settled.
    claimed.found.entered.slot = slot.await.ok();
    parts.ledger.resume(id, fence, parts.clock.now()).await?;
    // Without an answer the question is dropped, which signals this to the tool.
    if let Some(answer) = answer {
        question.answer(answer);
    }
    Ok(())
}

/// Returns the executor of the tool, if everything that the tool needs is configured.
fn ready(state: &ProxyState, claimed: &ClaimedCall) -> Result<Arc<dyn Executor>, ExecutionError> {
    let found = &claimed.found;
    let contract = found.tool.contract();
    if let Some(setting) = found.world.unmet(&found.tool) {
        return Err(ExecutionError::not_configured(format!(
            "the tool is not configured: `{setting}` is missing"
        )));
    }
    let adapter = found.tool.adapter();
    let executor = state.parts.executors.get(adapter).ok_or_else(|| {
        let setting = match adapter {
            AdapterId::Local(id) => format!("[runtimes.{id}]"),
            AdapterId::Mcp(id) => format!("[servers.{id}]"),
            AdapterId::Endpoint(id) => format!("[endpoints.{id}]"),
        };
        let sentence = format!("the tool's target is not configured: `{setting}` is missing");
        ExecutionError {
            code: ErrorCode::UnknownAdapter,
            ..ExecutionError::not_configured(sentence)
        }
    })?;
    if let Some(profile) = &contract.sandbox
        && profile.enforce == Enforce::Required
        && let Err(reason) = executor.satisfies_sandbox(contract, profile)
    {
        return Err(cut(ErrorCode::SandboxUnavailable, Effect::NotStarted, &reason.to_string()));
    }
    Ok(Arc::clone(executor))
}

fn cut(code: ErrorCode, effect: Effect, internal: &str) -> ExecutionError {
    ExecutionError { code, effect, safe: None, internal: internal.to_owned() }
}

fn outcome(ended: Result<Outcome, TaskFailed>) -> Result<ToolOutput, ExecutionError> {
    match ended {
        Ok(Outcome::Done(output)) => Ok(output),
        Ok(Outcome::Failed(error)) => Err(error),
        Ok(Outcome::NeedsInput(_)) => Err(ExecutionError::adapter(
            Effect::Unknown,
            "the tool asks for input, which this front door cannot pass on",
        )),
        Err(TaskFailed::Panicked(text)) => {
            Err(ExecutionError::adapter(Effect::Unknown, format!("the executor panicked: {text}")))
        }
        Err(TaskFailed::Aborted) => {
            Err(ExecutionError::adapter(Effect::Unknown, "the executor was aborted"))
        }
    }
}
