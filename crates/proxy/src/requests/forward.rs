//! Sends the request to the server, with a time limit.
//!
//! Nothing is retried. Cancelling is a signal with a grace period, never a dropped future.
//!
//! Path: 7. Doc: call-path.md#requests

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::order::PauseTarget;
use toolbooth_contracts::port::Ask;
use toolbooth_contracts::{Caller, Conversation, ErrorCode};
use toolbooth_registry::uris::ResourceUris;

use super::refusal::refusal;
use super::request::{UpstreamRefusal, code_of, event};
use super::resolve::Permitted;
use super::target::Target;
use super::upstreams::UpstreamEntry;
use crate::allowance::{self, Allowance};
use crate::inline_task::InlineTask;
use crate::state::ProxyState;
use crate::stops;
use crate::supervision::{Signal, Supervision};
use crate::trail::CallTrail;

/// A server's response before it is screened.
pub(super) struct Answered {
    pub(super) trail: Box<CallTrail>,
    pub(super) server: String,
    pub(super) ask: Ask,
    pub(super) uris: ResourceUris,
    pub(super) value: Value,
    _stage: (),
}

/// A request that was sent to a server and has no response that can be shown.
pub(super) struct Unanswered {
    pub(super) trail: Box<CallTrail>,
    pub(super) code: ErrorCode,
    /// The server's own error, if the server refused.
    pub(super) upstream: Option<Box<UpstreamRefusal>>,
    /// The gateway's own sentence for the caller, where that of the code says too little.
    pub(super) sentence: Option<String>,
    /// The full cause, for operators.
    pub(super) internal: String,
    /// Whether it is recorded: failures are recorded for the requests with recorded responses.
    pub(super) recorded: bool,
}

impl Unanswered {
    /// Builds the failure from the error of a server, or of the connection to it.
    pub(super) fn of(
        state: &ProxyState,
        trail: Box<CallTrail>,
        error: &UpstreamError,
        target: &Target,
        uris: &ResourceUris,
    ) -> Self {
        let shapes = &state.parts.shapes;
        let sentence = match error {
            UpstreamError::NotConfigured(sentence) => Some(sentence.clone()),
            _ => None,
        };
        Self {
            trail,
            sentence,
            code: code_of(error),
            upstream: refusal(shapes, error, &target.server, &target.ask, uris).map(Box::new),
            internal: shapes.redact(&error.to_string()).into_owned(),
            recorded: event(&target.ask).is_some(),
        }
    }
}

/// Stage 7: sends the request.
pub(super) async fn forward(
    state: &Arc<ProxyState>,
    permitted: Permitted,
) -> Result<Answered, Unanswered> {
    let Permitted { entered, target, uris, .. } = permitted;
    let left = entered.time_left(state);
    let caller = entered.trail.caller.clone();
    let (entry, ask, toolset) = (&target.upstream, target.ask.clone(), entered.toolset.clone());
    let asked = send(state, entry, ask, caller, toolset, &entered.conversation, left).await;
    drop(entered.slot);
    let trail = entered.trail;
    match asked {
        Ok(value) => {
            let (server, ask) = (target.server, target.ask);
            Ok(Answered { trail, server, ask, uris, value, _stage: () })
        }
        Err(error) => Err(Unanswered::of(state, trail, &error, &target, &uris)),
    }
}

/// Sends once, and cancels the request if it takes too long or its caller cancels.
pub(super) async fn send(
    state: &Arc<ProxyState>,
    entry: &UpstreamEntry,
    ask: Ask,
    caller: Caller,
    within: Option<Arc<str>>,
    conversation: &Conversation,
    left: Option<Duration>,
) -> Result<Value, UpstreamError> {
    if left.is_some_and(|left| left.is_zero()) {
        return Err(UpstreamError::Timeout);
    }
    let cap = allowance::cap(&state.parts.limits, entry.timeout);
    let (own, cancel) = conversation.with_own_cancel();
    let (own, progress_signal) = own.with_progress_signal();
    let upstream = Arc::clone(&entry.upstream);
    let stop_watch = state.stops.watch();
    let (name, server) = (caller.clone(), upstream.name().to_owned());
    let concerned =
        |target: &PauseTarget| stops::concerns(target, name.name(), None, Some(server.as_str()));
    // A pause may have come into force since the request took its world.
    let world = state.parts.worlds.now();
    let pauses = world.policy.pauses();
    if pauses.has_server(upstream.name()) || pauses.has_caller(caller.name()) {
        return Err(UpstreamError::Cancelled);
    }
    let allowance = Allowance::begin(entry.timeout, cap, left);
    let mut supervision = Supervision::begin(
        state,
        conversation,
        allowance,
        stop_watch,
        concerned,
        Some(progress_signal),
    );
    let asking = async move { upstream.request_within(ask, &caller, within.as_ref(), own).await };
    let mut task = InlineTask::new(&state.tasks, asking);
    let signal = tokio::select! {
        biased;
        ended = &mut task => return ended.unwrap_or_else(|error| {
            tracing::error!(%error, "the task of a request to a server failed");
            Err(UpstreamError::Unreachable(ErrorCode::AdapterFailed.safe_sentence().to_owned()))
        }),
        signal = supervision.signal() => signal,
    };
    cancel.cancel();
    // A response from here on is too late.
    if tokio::time::timeout(state.parts.limits.cancel_grace, &mut task).await.is_err() {
        tracing::warn!(server = entry.upstream.name(), "a request outlives its time");
    }
    Err(match signal {
        Signal::TimedOut => UpstreamError::Timeout,
        Signal::Ending | Signal::Stopped | Signal::Cancelled => UpstreamError::Cancelled,
    })
}
