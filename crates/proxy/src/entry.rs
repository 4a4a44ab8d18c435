//! The stages that calls and requests share: entry, verification of the source, and refusal.
//!
//! Only this module constructs the results of these stages, so no stage can be left out.
//!
//! Path: 2, 9. Doc: call-path.md#stages

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};
use toolbooth_audit::LedgerError;
use toolbooth_audit::redact;
use toolbooth_contracts::{CallContext, CallId, Caller, Conversation, Effect, ErrorCode};
use toolbooth_policy::{Denial, DenialRule};

use crate::catalogue::{Catalogue, Verification};
use crate::ending::Ending;
use crate::kept_documents::JudgedBy;
use crate::refusal_limits::RefusalKind;
use crate::state::ProxyState;
use crate::trail::{CallTrail, NAME_BYTES_MAX};
use crate::world::World;

/// When a caller can try again after a record could not be written, in milliseconds.
pub(crate) const RECORD_RETRY_MS: u64 = 1_000;

/// A call or a request as it arrives at a front door, before any check.
pub(crate) struct Arrival<A> {
    /// The requested operation.
    pub(crate) asked: A,
    /// The requested name as received; records contain it until the name is resolved.
    pub(crate) name: String,
    pub(crate) context: CallContext,
    pub(crate) caller: Caller,
    /// The tool set of the door.
    pub(crate) toolset: Option<Arc<str>>,
    pub(crate) conversation: Conversation,
}

/// Stage 2 passed: the call or request has an id, a deadline and a slot, and is not too large.
pub(crate) struct Entered<A> {
    pub(crate) trail: Box<CallTrail>,
    /// `None` while a call waits for its duplicate, an approval or an answer, and at shutdown.
    pub(crate) slot: Option<OwnedSemaphorePermit>,
    pub(crate) conversation: Conversation,
    /// When the caller stops waiting, on the monotonic clock.
    pub(crate) deadline: Option<Duration>,
    /// The tool set of the door.
    pub(crate) toolset: Option<Arc<str>>,
    /// The requested operation.
    pub(crate) asked: A,
    _stage: (),
}

impl<A> Entered<A> {
    /// Returns the call with the slot that it holds again, after it has waited.
    pub(crate) fn with_slot(self, slot: OwnedSemaphorePermit) -> Self {
        Self { slot: Some(slot), ..self }
    }

    /// Returns how long the caller still waits, if it set a deadline.
    pub(crate) fn time_left(&self, state: &ProxyState) -> Option<Duration> {
        self.deadline.map(|at| at.saturating_sub(state.parts.clock.monotonic()))
    }
}

/// The end of stage 2: the source was listed again if that was required before the call. Contains the
/// world that judges the call from here on.
pub(crate) struct SourceVerified<A> {
    entered: Entered<A>,
    world: Arc<World>,
}

impl<A> SourceVerified<A> {
    /// Begins stage 3: returns the call and the world that judges it. `name` puts the name of the target into the
    /// trail, if it is known before any look-up.
    ///
    /// # Errors
    /// A refusal, where tools are switched off. This flag is checked before the look-up. Otherwise the response would
    /// reveal what exists.
    pub(crate) fn begin(
        self,
        name: impl FnOnce(&World, &mut Entered<A>),
    ) -> Result<(Entered<A>, Arc<World>), Refused> {
        let Self { mut entered, world } = self;
        name(&world, &mut entered);
        entered.trail.policy_version = world.policy.version().to_owned();
        if let Err(denial) = world.policy.enabled() {
            entered.trail.judge_by(JudgedBy { world, tool: None, item: None });
            return Err(Refused::denied(entered.trail, denial));
        }
        Ok((entered, world))
    }
}

/// A call or a request that ended before anything was dispatched or sent.
pub(crate) struct Refused {
    pub(crate) trail: Box<CallTrail>,
    pub(crate) code: ErrorCode,
    pub(crate) reason: Box<Reason>,
}

/// A refusal that is recorded, as far as the record is wanted.
pub(crate) struct Recorded {
    pub(crate) trail: Box<CallTrail>,
    pub(crate) code: ErrorCode,
    /// The sentence for the caller.
    pub(crate) message: String,
    pub(crate) reason: Box<Reason>,
}

/// The parts of a refusal in addition to its code.
#[derive(Default)]
pub(crate) struct Reason {
    /// A safe sentence in place of the code's own.
    pub(crate) message: Option<String>,
    /// Facts for a program.
    pub(crate) details: Map<String, Value>,
    /// When to try again, in milliseconds.
    pub(crate) retry_after_ms: Option<u64>,
    /// The full cause, for operators.
    pub(crate) internal: Option<String>,
}

impl Refused {
    pub(crate) fn new(trail: Box<CallTrail>, code: ErrorCode) -> Self {
        Self { trail, code, reason: Box::default() }
    }

    pub(crate) fn saying(mut self, message: impl Into<String>) -> Self {
        self.reason.message = Some(message.into());
        self
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.reason.details.insert(name.to_owned(), value.into());
        self
    }

    /// Refuses arguments that are too large.
    pub(crate) fn too_large(trail: Box<CallTrail>, bytes: usize, most: usize) -> Self {
        let message = format!("the arguments have {bytes} bytes, at most {most} are taken");
        Self::new(trail, ErrorCode::InvalidArgs).saying(message).with("bytesMax", most)
    }

    /// Refuses because the store does not take a record without which nothing runs.
    pub(crate) fn unrecorded(trail: Box<CallTrail>, error: &LedgerError) -> Self {
        let refused = Self::new(trail, ErrorCode::RecordUnavailable);
        refused.retry_after(RECORD_RETRY_MS).because(error.to_string())
    }

    pub(crate) fn retry_after(mut self, ms: u64) -> Self {
        self.reason.retry_after_ms = Some(ms);
        self
    }

    pub(crate) fn because(mut self, internal: impl Into<String>) -> Self {
        self.reason.internal = Some(internal.into());
        self
    }

    /// Refuses because of the policy. A hidden tool or item is answered and recorded exactly like an
    /// unknown one. Nothing distinguishes them, not even the time to write the record.
    pub(crate) fn denied(mut trail: Box<CallTrail>, denial: Denial) -> Self {
        if denial.code == ErrorCode::UnregisteredTool {
            return Self::new(trail, denial.code);
        }
        if denial.rule == DenialRule::Whitelist {
            tracing::warn!(tool.id = trail.tool_id, caller = %trail.caller, "blocked by whitelist");
        }
        trail.decision = Some(denial.summary());
        trail.is_denied = true;
        let refused = Self::new(trail, denial.code);
        let refused = refused.saying(denial.reason).with("rule", denial.rule.as_str());
        let refused = match denial.cause {
            Some(cause) => refused.because(cause),
            None => refused,
        };
        if denial.missing.is_empty() { refused } else { refused.with("missing", denial.missing) }
    }

    /// Records the refusal with the sentence that the caller gets: its own, or that of its code. Above a number per
    /// minute, refusals of a kind are counted together. A record that cannot be written is counted too.
    pub(crate) async fn record(
        mut self,
        state: &ProxyState,
        sentence: fn(ErrorCode) -> &'static str,
    ) -> Recorded {
        let own = self.reason.message.take();
        let message = own.unwrap_or_else(|| sentence(self.code).to_owned());
        self.write(state, &message).await;
        let Self { trail, code, reason } = self;
        Recorded { trail, code, message, reason }
    }

    async fn write(&self, state: &ProxyState, sentence: &str) {
        let Self { trail, code, reason } = self;
        let internal = reason.internal.clone();
        let Some(kind) = code.event() else {
            // Only `record-unavailable` has no event: the store cannot record it.
            return state.count_gap(&LedgerError::unavailable(internal.unwrap_or_default()));
        };
        let at = state.parts.clock.now();
        if !state.is_single(trail.caller.name(), RefusalKind::Call(*code), &at) {
            tracing::debug!(code = code.as_str(), "a refusal is counted with others");
            return;
        }
        let end = Ending {
            code: Some(*code),
            sentence: Some(redact::sentence(sentence, &state.parts.shapes)),
            internal,
            ..Ending::new(kind, code.status(), Effect::NotStarted)
        };
        if let Err(error) = trail.record(state, &at, end).await {
            state.count_gap(&error);
        }
    }
}

/// Runs stage 2: assigns an id, a deadline and a slot, and limits the length of names. `examine` checks
/// the requested operation.
pub(crate) fn enter<A>(
    state: &ProxyState,
    arrival: Arrival<A>,
    examine: impl FnOnce(&mut A, Box<CallTrail>) -> Result<Box<CallTrail>, Refused>,
) -> Result<Entered<A>, Refused> {
    let Arrival { mut asked, name, context, caller, toolset, conversation } = arrival;
    let (call_id, bad_id) = match context.call_id.clone().map(CallId::try_from) {
        None => (state.parts.ids.next(), None),
        Some(Ok(id)) => (String::from(id), None),
        Some(Err(error)) => (state.parts.ids.next(), Some(error.to_string())),
    };
    let too_long = too_long(&context);
    // A retry that has lost its key must not run again unnoticed.
    let is_blank = context.idempotency_key.as_ref().is_some_and(|key| key.trim().is_empty());
    let trail = Box::new(CallTrail::begin(state, name, call_id, caller, context));
    if let Some(name) = too_long {
        let message = format!("`{name}` has more than {NAME_BYTES_MAX} bytes");
        return Err(Refused::new(trail, ErrorCode::InvalidArgs).saying(message));
    }
    if is_blank {
        let message = "the idempotency key must not be blank";
        return Err(Refused::new(trail, ErrorCode::InvalidArgs).saying(message));
    }
    let trail = examine(&mut asked, trail)?;
    if let Some(message) = bad_id {
        return Err(Refused::new(trail, ErrorCode::InvalidArgs)
            .with("errors", json!([{"path": "", "keyword": "callId", "message": message}]))
            .saying(message));
    }
    if state.orders.are_overdue(&*state.parts.clock) {
        return Err(Refused::new(trail, ErrorCode::RecordUnavailable)
            .saying("the orders of operators cannot be read: the tool may be paused")
            .retry_after(1_000));
    }
    let deadline = trail.context.deadline_ms.map(|ms| trail.began + Duration::from_millis(ms));
    let slot = match Arc::clone(&state.slots).try_acquire_owned() {
        Ok(slot) => Some(slot),
        Err(TryAcquireError::NoPermits) => {
            return Err(Refused::new(trail, ErrorCode::Overloaded).retry_after(1_000));
        }
        Err(TryAcquireError::Closed) => {
            return Err(
                Refused::new(trail, ErrorCode::Overloaded).saying("the gateway is shutting down")
            );
        }
    };
    Ok(Entered { trail, slot, conversation, deadline, toolset, asked, _stage: () })
}

/// Returns the first name from the agent's context that is too long to be stored.
fn too_long(context: &CallContext) -> Option<&'static str> {
    [
        ("agentId", context.agent_id.as_ref()),
        ("phaseId", context.phase_id.as_ref()),
        ("epicId", context.epic_id.as_ref()),
        ("sessionId", context.session_id.as_ref()),
        ("idempotencyKey", context.idempotency_key.as_ref()),
    ]
    .into_iter()
    .find(|(_, text)| text.is_some_and(|text| text.len() > NAME_BYTES_MAX))
    .map(|(name, _)| name)
}

/// Ends stage 2. Lists the source first if that is required before the call (decision 0005), and then
/// takes the world with the result. A caller that cannot wait is refused; the listing continues without
/// it.
pub(crate) async fn verify_source<A>(
    state: &ProxyState,
    entered: Entered<A>,
    needed: impl Fn(&Catalogue, &World, &Entered<A>) -> Option<Verification>,
) -> Result<SourceVerified<A>, Refused> {
    let Some(catalogue) = state.parts.catalogue.as_ref() else {
        return Ok(SourceVerified { entered, world: state.parts.worlds.now() });
    };
    let needed = loop {
        let world = state.parts.worlds.now();
        match needed(catalogue, &world, &entered) {
            Some(needed) => break needed,
            // The listing may have been published in between: it is not needed any more, but `world`
            // lacks it.
            None if state.parts.worlds.is_now(&world) => {
                return Ok(SourceVerified { entered, world });
            }
            None => (),
        }
    };
    let catalogue = Arc::clone(catalogue);
    let bound = entered.time_left(state).map_or(needed.bound, |left| left.min(needed.bound));
    let asking = tokio::spawn(async move { catalogue.verify(needed).await });
    let code = tokio::select! {
        asked = asking => match asked {
            Ok(()) => return Ok(SourceVerified { entered, world: state.parts.worlds.now() }),
            Err(_) => ErrorCode::AdapterFailed,
        },
        () = entered.conversation.cancelled() => ErrorCode::Cancelled,
        () = tokio::time::sleep(bound) => ErrorCode::Timeout,
    };
    let reason = "the source was not checked in time against its approved definitions";
    Err(Refused::new(entered.trail, code).because(reason))
}
