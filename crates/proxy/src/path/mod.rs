//! The call path, stage by stage, from top to bottom.
//!
//! Each stage accepts the result of the one before by value, and returns a result that only its own module can
//! construct, by a private member: `Entered`, `SourceVerified`, `Resolved`, `Guarded`, `Authorized`, `ClaimedCall`,
//! `Executed`, `Screened`. Skipping or reordering a stage therefore does not compile. Up to the claim, a call waits
//! only for the source, a duplicate and an approval, and an error means that the call did nothing. From
//! dispatch on, an error is an outcome, not an early return.
//!
//! Path: 2, 3, 4, 5, 6, 7, 8, 9. Doc: call-path.md#stages

mod answers;
mod approval;
mod authorize;
mod claim;
mod enter;
mod execute;
mod guard;
mod history;
mod keys;
mod resolve;
mod screen;
mod settle;

use std::sync::Arc;
use std::time::Duration;

use toolbooth_contracts::{Conversation, ToolCall, ToolResult};

pub(crate) use answers::{FIRST_BY_ANOTHER, RESULT_NOT_KEPT, broken, outcome_of, refused};
pub(crate) use enter::CallOptions;
pub(crate) use keys::DedupKey;

use crate::aside;
use crate::state::ProxyState;
use crate::world::World;
use claim::{ClaimedCall, NotClaimed, Stop};

/// The report of one stage of a call, for operators.
#[derive(Debug, Clone, serde::Serialize, schemars::JsonSchema)]
pub struct StageReport {
    /// The stage.
    pub stage: String,
    /// The duration in milliseconds.
    pub ms: f64,
    /// The finding of the stage.
    pub note: String,
}

/// The result of a call.
pub(crate) struct Walked {
    pub(crate) result: ToolResult,
    /// The world that judged the call; `None` if it was refused.
    pub(crate) world: Option<Arc<World>>,
    /// The reports of the stages, if requested.
    pub(crate) reports: Vec<StageReport>,
}

/// Runs the whole path. Every way through it writes exactly one agent log and one terminal event.
/// Exceptions: the store is unavailable, or refusals of one caller are too frequent.
pub(crate) async fn walk(
    state: Arc<ProxyState>,
    call: ToolCall,
    conversation: Conversation,
    options: CallOptions,
) -> Walked {
    let mut trace = Trace::begin(&state, options.explain);
    let (result, world) = match up_to_claim(&state, call, conversation, options, &mut trace).await {
        Ok(claimed) => {
            let world = Arc::clone(&claimed.found.world);
            let executed = execute::execute(&state, claimed).await;
            trace.stage(&state, "execute", executed.outcome.description());
            let result_bytes = executed.result_bytes();
            let own = Arc::clone(&state);
            let screening = move || screen::screen(&own, executed);
            let screened = aside::judge_result(result_bytes, screening).await;
            trace.stage(&state, "guard-result", screened.description());
            let result = settle::settle(&state, screened).await;
            trace.stage(&state, "settle", result.receipt_id.as_deref().unwrap_or("unrecorded"));
            (result, Some(world))
        }
        Err(Stop::Refused(refused)) => {
            trace.stage(&state, "refused", refused.code.as_str());
            (answers::refuse(&state, refused).await, None)
        }
        Err(Stop::Replayed(replayed)) => {
            trace.stage(&state, "replayed", &replayed.receipt.receipt_id);
            let world = Arc::clone(&replayed.world);
            (answers::replay(&state, *replayed).await, Some(world))
        }
    };
    let code = result.error.as_ref().map(|error| error.code.as_str());
    // For debugging only: calls are in the records.
    tracing::debug!(
        call.id = result.call_id,
        tool.id = result.tool_id,
        status = result.status.as_str(),
        error.code = code,
        replayed = result.replayed,
        duration_ms = result.duration_ms,
        "call"
    );
    Walked { result, world, reports: trace.reports }
}

async fn up_to_claim(
    state: &Arc<ProxyState>,
    call: ToolCall,
    conversation: Conversation,
    mut options: CallOptions,
    trace: &mut Trace,
) -> Result<ClaimedCall, Stop> {
    let worker = options.worker.take();
    let mut entered = enter::enter(state, call, conversation, options)?;
    trace.stage(state, "enter", &entered.trail.call_id);
    // Until when the call waits for its approval; known once it needs one.
    let mut patience = None;
    loop {
        let verified = enter::verify_source(state, entered).await?;
        let resolved = resolve::resolve(verified)?;
        trace.stage(state, "resolve", resolved.found.tool.target_owner());
        let bytes = resolved.found.entered.trail.input.bytes();
        let own = Arc::clone(state);
        let guarded = aside::judge_arguments(bytes, move || guard::guard(&own, resolved)).await?;
        trace.stage(state, "guard", "arguments fit");
        let own = Arc::clone(state);
        let authorizing = move || authorize::authorize(&own, guarded);
        let authorized = aside::judge_arguments(bytes, authorizing).await?;
        trace.stage(state, "authorize", authorized.permit.rule());
        let unapproved = match claim::claim(state, authorized).await {
            Ok(claimed) => {
                trace.stage(state, "claim", claimed.claim.receipt_id());
                return Ok(claimed);
            }
            Err(NotClaimed::Unapproved(unapproved)) => unapproved,
            Err(NotClaimed::Stopped(stop)) => return Err(stop),
        };
        // What is in force when the approval is decided judges the call again.
        let until = patience.get_or_insert_with(|| approval::patience(state));
        entered = unapproved.wait(state, *until, worker.as_ref()).await?;
        trace.stage(state, "wait", "the approval is decided");
    }
}

/// The reports of the stages, with their times.
struct Trace {
    wanted: bool,
    last: Duration,
    reports: Vec<StageReport>,
}

impl Trace {
    fn begin(state: &ProxyState, wanted: bool) -> Self {
        Self { wanted, last: state.parts.clock.monotonic(), reports: Vec::new() }
    }

    fn stage(&mut self, state: &ProxyState, stage: &str, note: &str) {
        if !self.wanted {
            return;
        }
        let now = state.parts.clock.monotonic();
        let ms = crate::port::milliseconds(now.saturating_sub(self.last));
        self.last = now;
        self.reports.push(StageReport { stage: stage.to_owned(), ms, note: note.to_owned() });
    }
}
