//! The path of one call, stage by stage: the security argument of the house, from top to bottom.
//!
//! Each stage takes the one before by value and gives the next: skipping or reordering a stage
//! does not compile. Up to the claim nothing waits and an error means that the call did nothing;
//! from dispatch on an error is an outcome, not an early return.
//!
//! Path: 2, 3, 4, 5, 6, 7, 8, 9. Doc: call-path.md#stages
#![expect(
    clippy::result_large_err,
    reason = "a refusal carries the story of its call, and is moved once on its way out"
)]

mod execute;
mod keys;
pub(crate) mod records;
pub(crate) mod screen;

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};
use toolbooth_audit::LedgerError;
use toolbooth_audit::claim::KeyRules;
use toolbooth_audit::ledger::{Claim, ClaimRequest, Claimed};
use toolbooth_contracts::contract::{IdempotencyMode, OnDifferentArgs};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::json::{self, pointer};
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::witness::{Seen, Witness};
use toolbooth_contracts::{
    CallContext, CallId, CallRequest, Conversation, Effect, ErrorCode, ToolCall, ToolContract,
    ToolResult,
};
use toolbooth_policy::{Access, Denial, Permit};
use toolbooth_registry::RegisteredTool;

use crate::keeping::Intent;
use crate::proxy::{Inner, StageNote};
use crate::world::World;
use records::Story;
use screen::Screened;

/// The warning of a replay whose first call was another caller's.
pub(crate) const FIRST_BY_ANOTHER: &str = "first-by-another-caller";

/// How often a call that waits for its twin asks the store again, where the twin may run in
/// another process.
const TWIN_POLL: Duration = Duration::from_millis(100);

/// The same, where the twin runs in this process and tells when it ends.
const TWIN_LOOK: Duration = Duration::from_secs(1);

/// Stage 2: the call has an id, a deadline and a slot, and is not too large.
struct Entered {
    story: Story,
    /// `None` only while the call waits for its twin.
    slot: Option<OwnedSemaphorePermit>,
    arguments: Arc<RawValue>,
    conversation: Conversation,
    /// When the caller stops waiting, on the monotonic clock.
    deadline: Option<Duration>,
    own_key: Option<String>,
    /// What the door shows.
    toolset: Option<Arc<str>>,
}

/// The tool that the call is about, in the world that judges it.
struct Known {
    entered: Entered,
    world: Arc<World>,
    tool: Arc<RegisteredTool>,
}

/// Stage 3: the tool is known to the caller and stands, in one world.
struct Resolved {
    known: Known,
    access: Access,
}

/// Stage 4: the arguments fit. They are final from here on.
struct Guarded {
    known: Known,
    access: Access,
    value: Value,
    natural_key: Option<String>,
}

/// Stage 5: the policy permits the call with these arguments.
struct Authorized {
    known: Known,
    permit: Permit,
    natural_key: Option<String>,
}

/// Stage 6: the claim is durable; the tool may be dispatched once.
struct ClaimedCall {
    known: Known,
    permit: Permit,
    claim: Claim,
    travelling_key: Option<String>,
}

/// Stage 7: the tool has run, or is known not to have been started.
struct Executed {
    claimed: ClaimedCall,
    outcome: execute::Ended,
    seen: Seen,
    execute_ms: f64,
}

/// A call that ends before its dispatch.
struct Refused {
    story: Story,
    code: ErrorCode,
    message: Option<String>,
    details: Map<String, Value>,
    retry_after_ms: Option<u64>,
    receipt_id: Option<String>,
    internal: Option<String>,
}

/// A call that gets an earlier outcome.
struct Replayed {
    story: Story,
    receipt: Box<Receipt>,
    arguments_differ: bool,
}

/// Why a call does not go on to its dispatch.
enum Stop {
    Refused(Box<Refused>),
    Replayed(Box<Replayed>),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl Refused {
    fn new(story: Story, code: ErrorCode) -> Self {
        Self {
            story,
            code,
            message: None,
            details: Map::new(),
            retry_after_ms: None,
            receipt_id: None,
            internal: None,
        }
    }

    fn saying(self, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    fn retry_after(self, ms: u64) -> Self {
        Self { retry_after_ms: Some(ms), ..self }
    }

    fn denied(mut story: Story, denial: Denial) -> Self {
        // A hidden tool is answered and recorded exactly like an unknown one: nothing of it, not
        // even how long its record takes to write, tells them apart.
        if denial.code == ErrorCode::UnregisteredTool {
            return Self::new(story, denial.code);
        }
        story.decision = Some(denial.note());
        let refused = Self::new(story, denial.code);
        let refused = refused.saying(denial.reason).with("rule", denial.rule);
        if denial.missing.is_empty() { refused } else { refused.with("missing", denial.missing) }
    }
}

/// Walks the whole path. Every way through it writes exactly one agent log and one terminal
/// event, unless the store is away.
pub(crate) async fn walk(
    inner: Arc<Inner>,
    call: ToolCall,
    conversation: Conversation,
    own_key: Option<String>,
    explain: bool,
) -> (ToolResult, Vec<StageNote>) {
    let mut trace = Trace::begin(&inner, explain);
    let result = match up_to_claim(&inner, call, conversation, own_key, &mut trace).await {
        Ok(claimed) => {
            let executed = execute(&inner, claimed).await;
            trace.stage(&inner, "execute", executed.outcome.note());
            let screened = screen::screen(&inner, executed);
            trace.stage(&inner, "guard-result", screened.note());
            let result = settle(&inner, screened).await;
            trace.stage(&inner, "settle", result.receipt_id.as_deref().unwrap_or("unrecorded"));
            result
        }
        Err(Stop::Refused(refused)) => {
            trace.stage(&inner, "refused", refused.code.as_str());
            records::refuse(&inner, *refused).await
        }
        Err(Stop::Replayed(replayed)) => {
            trace.stage(&inner, "replayed", &replayed.receipt.receipt_id);
            records::replay(&inner, *replayed).await
        }
    };
    let code = result.error.as_ref().map(|error| error.code.as_str());
    tracing::info!(
        call.id = result.call_id,
        tool.id = result.tool_id,
        status = result.status.as_str(),
        error.code = code,
        replayed = result.replayed,
        duration_ms = result.duration_ms,
        "call"
    );
    (result, trace.notes)
}

async fn up_to_claim(
    inner: &Arc<Inner>,
    call: ToolCall,
    conversation: Conversation,
    own_key: Option<String>,
    trace: &mut Trace,
) -> Result<ClaimedCall, Stop> {
    let entered = enter(inner, call, conversation, own_key)?;
    trace.stage(inner, "enter", &entered.story.call_id);
    let entered = freshen(inner, entered).await?;
    let resolved = resolve(inner, entered)?;
    trace.stage(inner, "resolve", resolved.known.tool.target_owner());
    let guarded = guard(inner, resolved)?;
    trace.stage(inner, "guard", "arguments fit");
    let authorized = authorize(guarded)?;
    trace.stage(inner, "authorize", authorized.permit.rule());
    let claimed = claim(inner, authorized).await?;
    trace.stage(inner, "claim", claimed.claim.receipt_id());
    Ok(claimed)
}

/// Stage 2. Gives the call an id, a deadline and a slot, and bounds its size.
fn enter(
    inner: &Arc<Inner>,
    call: ToolCall,
    conversation: Conversation,
    own_key: Option<String>,
) -> Result<Entered, Refused> {
    let parts = &inner.parts;
    let toolset = call.toolset().cloned();
    let (request, caller) = call.into_parts();
    let (call_id, bad_id) = match request.context.call_id.clone() {
        None => (parts.ids.next(), None),
        Some(text) => match CallId::try_from(text) {
            Ok(id) => (String::from(id), None),
            Err(error) => (parts.ids.next(), Some(error.to_string())),
        },
    };
    let too_long = too_long(&request);
    let mut story = Story::begin(inner, request.tool_id, call_id, caller, request.context);
    if let Some(name) = too_long {
        story.shorten();
        // An id that no tool can have is unknown; anything else is the caller's slip.
        if name == "toolId" {
            return Err(Refused::new(story, ErrorCode::UnregisteredTool));
        }
        let message = format!("`{name}` has more than {NAME_BYTES_MAX} bytes");
        return Err(Refused::new(story, ErrorCode::InvalidArgs).saying(message));
    }
    // Absent arguments are `{}`; a `null` that was sent is not an object, and the guard says so.
    let arguments: Arc<RawValue> = match request.args {
        Some(raw) => Arc::from(raw),
        None => empty_object(),
    };
    let size = arguments.get().len();
    if size > parts.limits.argument_bytes_max {
        let most = parts.limits.argument_bytes_max;
        let message = format!("the arguments have {size} bytes, at most {most} are taken");
        return Err(Refused::new(story, ErrorCode::InvalidArgs)
            .saying(message)
            .with("bytesMax", most));
    }
    story.raw_input = Some(Arc::clone(&arguments));
    if let Some(message) = bad_id {
        return Err(Refused::new(story, ErrorCode::InvalidArgs)
            .with("errors", json!([{"path": "", "keyword": "callId", "message": message}]))
            .saying(message));
    }
    let deadline = story.context.deadline_ms.map(|ms| story.began + Duration::from_millis(ms));
    let slot = match Arc::clone(&inner.slots).try_acquire_owned() {
        Ok(slot) => Some(slot),
        Err(TryAcquireError::NoPermits) => {
            return Err(Refused::new(story, ErrorCode::Overloaded).retry_after(1_000));
        }
        Err(TryAcquireError::Closed) => {
            return Err(
                Refused::new(story, ErrorCode::Overloaded).saying("the gateway is shutting down")
            );
        }
    };
    Ok(Entered { story, slot, arguments, conversation, deadline, own_key, toolset })
}

/// Longest name that a caller may give anything, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 512;

/// The first name of a request that is too long to be kept.
fn too_long(request: &CallRequest) -> Option<&'static str> {
    let tool_id = (request.tool_id.len() > NAME_BYTES_MAX).then_some("toolId");
    tool_id.or_else(|| too_long_claim(&request.context))
}

/// The first name that an agent claims that is too long to be kept.
pub(crate) fn too_long_claim(context: &CallContext) -> Option<&'static str> {
    [
        ("agentId", context.agent_id.as_ref()),
        ("phaseId", context.phase_id.as_ref()),
        ("epicId", context.epic_id.as_ref()),
        ("idempotencyKey", context.idempotency_key.as_ref()),
    ]
    .into_iter()
    .find(|(_, text)| text.is_some_and(|text| text.len() > NAME_BYTES_MAX))
    .map(|(name, _)| name)
}

/// The end of stage 2. Before the world is taken, a source that is to be asked before the call is
/// asked (decision 0005); what it says is in the world then. The asking goes on by itself; a call
/// that cannot wait for it any longer is refused.
async fn freshen(inner: &Inner, entered: Entered) -> Result<Entered, Refused> {
    let Some(catalogue) = inner.parts.catalogue.clone() else { return Ok(entered) };
    let (tool_id, caller) = (entered.story.tool_id.clone(), entered.story.caller.clone());
    let toolset = entered.toolset.clone();
    let Some(bound) = catalogue.verification_bound(&tool_id, &caller, toolset.as_ref()) else {
        return Ok(entered);
    };
    let left = entered.deadline.map(|at| at.saturating_sub(inner.parts.clock.monotonic()));
    let bound = left.map_or(bound, |left| left.min(bound));
    let asking = tokio::spawn(async move {
        catalogue.verify(&tool_id, &caller, toolset.as_ref()).await;
    });
    let code = tokio::select! {
        asked = asking => match asked {
            Ok(()) => return Ok(entered),
            Err(_) => ErrorCode::AdapterFailed,
        },
        () = entered.conversation.cancelled() => ErrorCode::Cancelled,
        () = tokio::time::sleep(bound) => ErrorCode::Timeout,
    };
    let reason = "the tool's source was not asked in time whether the tool is what was approved";
    Err(Refused { internal: Some(reason.to_owned()), ..Refused::new(entered.story, code) })
}

/// Stage 3. In one world: the flag, the tool, whether the caller may know it, whether it stands.
fn resolve(inner: &Inner, mut entered: Entered) -> Result<Resolved, Refused> {
    let world = inner.parts.worlds.now();
    entered.story.policy_version = world.policy.version().to_owned();
    // The flag comes before the look-up, or its answer would tell which tools there are.
    if let Err(denial) = world.policy.enabled() {
        return Err(Refused::denied(entered.story, denial));
    }
    // What the door does not show is not there.
    let shown = world.shows_tool(entered.toolset.as_ref(), &entered.story.tool_id);
    let tool = world.registry.get(&entered.story.tool_id).filter(|_| shown).cloned();
    let Some(tool) = tool else {
        return Err(Refused::new(entered.story, ErrorCode::UnregisteredTool));
    };
    match world.policy.access(&entered.story.caller, tool.contract(), world.standing(&tool)) {
        Ok(access) => Ok(Resolved { known: Known { entered, world, tool }, access }),
        Err(denial) => {
            if denial.rule == "whitelist" {
                tracing::warn!(tool.id = %tool.id(), caller = %entered.story.caller, "blocked by whitelist");
            }
            Err(Refused::denied(entered.story, denial))
        }
    }
}

/// Stage 4. Hygiene, the compiled input schema, size, and the key of a keyed tool.
fn guard(inner: &Inner, resolved: Resolved) -> Result<Guarded, Refused> {
    let Resolved { mut known, access } = resolved;
    let contract = Arc::clone(known.tool.contract());
    let bytes = known.entered.arguments.get().len();
    let value = match json::parse(known.entered.arguments.get().as_bytes()) {
        Ok(value) => value,
        Err(fault) => {
            let error = hygiene(fault.pointer(), &fault.message);
            return Err(invalid_arguments(known.entered.story, &[error]));
        }
    };
    let story = &mut known.entered.story;
    let digester = inner.parts.ledger.digester();
    story.args_digest = Some(digester.of(&value));
    story.older_args_digests = digester.older().iter().map(|own| own.of(&value)).collect();
    story.input = Some(value.clone());
    if !value.is_object() {
        let error = hygiene(String::new(), "arguments must be an object");
        return Err(invalid_arguments(known.entered.story, &[error]));
    }
    let mut errors: Vec<ArgumentError> = json::hazardous_keys(&value)
        .iter()
        .map(|path| hygiene(pointer(path), "this key is not allowed"))
        .collect();
    if let Some(most) = contract.capabilities.asset_bytes_max()
        && bytes > most
    {
        let message = format!("the tool takes at most {most} bytes");
        let keyword = "maxAssetBytes".to_owned();
        errors.push(ArgumentError { path: String::new(), keyword, message });
    }
    errors.extend(known.tool.argument_errors(&value));
    if !errors.is_empty() {
        return Err(invalid_arguments(known.entered.story, &errors));
    }
    match keys::natural(&contract, &value) {
        Ok(natural_key) => Ok(Guarded { known, access, value, natural_key }),
        Err(field) => Err(Refused::new(known.entered.story, ErrorCode::MissingIdempotencyKey)
            .saying(format!(
                "the argument `{field}` is this tool's idempotency key: it must be a text that is \
                 not blank, a number or a boolean"
            ))
            .with("keyField", field)),
    }
}

fn hygiene(path: String, message: &str) -> ArgumentError {
    ArgumentError { path, keyword: "hygiene".to_owned(), message: message.to_owned() }
}

fn invalid_arguments(story: Story, errors: &[ArgumentError]) -> Refused {
    let told: Vec<String> = errors
        .iter()
        .map(|error| match error.path.as_str() {
            "" => error.message.clone(),
            path => format!("{path}: {}", error.message),
        })
        .collect();
    let sentence = ErrorCode::InvalidArgs.safe_sentence();
    Refused::new(story, ErrorCode::InvalidArgs)
        .saying(format!("{sentence}: {}", told.join("; ")))
        .with("errors", serde_json::to_value(errors).unwrap_or_default())
}

/// Stage 5. The policy over the final arguments.
fn authorize(guarded: Guarded) -> Result<Authorized, Refused> {
    let Guarded { mut known, access, value, natural_key } = guarded;
    let story = &mut known.entered.story;
    let contract = known.tool.contract();
    match known.world.policy.authorize(access, &story.caller, contract, &value, &story.context) {
        Ok(permit) => {
            story.decision = Some(permit.note());
            Ok(Authorized { known, permit, natural_key })
        }
        Err(denial) => Err(Refused::denied(known.entered.story, denial)),
    }
}

/// Stage 6. One durable step: the earlier outcome, or approval, charges and the claim. A call
/// whose twin still runs waits for its outcome, without a slot.
async fn claim(inner: &Arc<Inner>, authorized: Authorized) -> Result<ClaimedCall, Stop> {
    let Authorized { mut known, permit, natural_key } = authorized;
    let contract = Arc::clone(known.tool.contract());
    let digester = inner.parts.ledger.digester();
    let keys = keys::of_call(
        digester,
        &contract,
        &known.entered.story,
        natural_key,
        known.entered.own_key.take(),
    );
    if keys.ignored {
        known.entered.story.warnings.push("key-ignored".to_owned());
    }
    let patience = Duration::from_millis(contract.policy.timeout_ms);
    let until = known.entered.deadline.unwrap_or_else(|| inner.parts.clock.monotonic() + patience);
    loop {
        if known.entered.conversation.is_cancelled() {
            return Err(Refused::new(known.entered.story, ErrorCode::Cancelled).into());
        }
        if inner.parts.clock.monotonic() >= until {
            return Err(Refused::new(known.entered.story, ErrorCode::Timeout).into());
        }
        let request = claim_request(inner, &known.entered.story, &known.tool, &permit, &keys);
        let claimed = match inner.parts.ledger.claim(request).await {
            Ok(claimed) => claimed,
            Err(error) => return Err(unrecorded(known.entered.story, &error).into()),
        };
        let (receipt_id, settled) = match claimed {
            Claimed::Fresh(claim) => {
                let travelling_key = claim.key().map(str::to_owned).or(keys.travelling);
                return Ok(ClaimedCall { known, permit, claim, travelling_key });
            }
            Claimed::InFlight { receipt_id, settled } => (receipt_id, settled),
            other => return Err(stopped(known.entered.story, other)),
        };
        // A call that waits holds no slot, or twins could fill the house.
        known.entered.slot = None;
        let left = until.saturating_sub(inner.parts.clock.monotonic());
        let waited = wait_for_twin(inner, settled, &known.entered.conversation);
        match tokio::time::timeout(left, waited).await {
            Ok(Ok(slot)) => known.entered.slot = Some(slot),
            Ok(Err(code)) => return Err(Refused::new(known.entered.story, code).into()),
            Err(_) => {
                let story = known.entered.story;
                let refused = Refused::new(story, ErrorCode::CallInFlight).retry_after(1_000);
                return Err(Refused { receipt_id: Some(receipt_id), ..refused }.into());
            }
        }
    }
}

/// Waits until the twin may be settled, and for a slot.
async fn wait_for_twin(
    inner: &Inner,
    settled: Option<async_channel::Receiver<std::convert::Infallible>>,
    conversation: &Conversation,
) -> Result<OwnedSemaphorePermit, ErrorCode> {
    let told = async {
        match settled {
            // Another process may have settled it meanwhile: the store is asked now and then.
            Some(settled) => drop(tokio::time::timeout(TWIN_LOOK, settled.recv()).await),
            None => tokio::time::sleep(TWIN_POLL).await,
        }
    };
    tokio::select! {
        () = told => (),
        () = conversation.cancelled() => return Err(ErrorCode::Cancelled),
    }
    Arc::clone(&inner.slots).acquire_owned().await.map_err(|_| ErrorCode::Overloaded)
}

fn claim_request(
    inner: &Inner,
    story: &Story,
    tool: &RegisteredTool,
    permit: &Permit,
    keys: &keys::Keys,
) -> ClaimRequest {
    let parts = &inner.parts;
    let contract = tool.contract();
    let idempotency = &contract.idempotency;
    let keyed = idempotency.mode == IdempotencyMode::Keyed;
    let at = parts.clock.now();
    let rerunnable = is_rerunnable(contract);
    ClaimRequest {
        receipt_id: parts.ids.next(),
        call_id: story.call_id.clone(),
        tool_id: story.tool_id.clone(),
        contract_digest: tool.contract_digest().to_owned(),
        caller: story.caller.name().to_owned(),
        mode: idempotency.mode,
        keys: keys.digests.clone(),
        rules: KeyRules {
            refuse_different_args: !keyed
                || idempotency.on_different_args == Some(OnDifferentArgs::Refuse),
            rerunnable,
        },
        args_digest: story.args_digest.clone().unwrap_or_default(),
        older_args_digests: story.older_args_digests.clone(),
        rate_per_min: permit.charges().rate_per_min,
        concurrency_max: permit.charges().concurrency_max,
        approval_rule: permit.approval().map(|need| need.rule.clone()),
        approval_id: permit.approval().map_or_else(String::new, |_| parts.ids.next()),
        policy_version: story.policy_version.clone(),
        dispatched: story.event(AuditEventKind::ToolDispatched, &at),
        at,
        sync: must_last(contract),
        // Only by an operator's word, and only where the operator also says that nothing changes.
        relaxed: contract.policy.read_only == Some(true)
            && parts.keeping.intent(&story.tool_id) == Intent::Relaxed,
    }
}

/// Whether a tool may be dispatched again where nobody knows what the first dispatch did.
fn is_rerunnable(contract: &ToolContract) -> bool {
    contract.idempotency.mode == IdempotencyMode::SafeRetry
        || contract.idempotency.accepts_idempotency_key == Some(true)
}

/// Whether a call's records have to survive the loss of power also where the store would allow
/// less: for tools that change something and may not simply be run again.
fn must_last(contract: &ToolContract) -> bool {
    contract.policy.read_only != Some(true) && !is_rerunnable(contract)
}

fn unrecorded(story: Story, error: &LedgerError) -> Refused {
    Refused {
        internal: Some(error.to_string()),
        ..Refused::new(story, ErrorCode::RecordUnavailable).retry_after(1_000)
    }
}

/// What the ledger found instead of a fresh claim.
fn stopped(story: Story, claimed: Claimed) -> Stop {
    let refused = |story, code| Refused::new(story, code);
    let at_receipt = |story, code, receipt_id: String| Refused {
        receipt_id: Some(receipt_id),
        ..Refused::new(story, code)
    };
    let refused = match claimed {
        Claimed::Replay { receipt, arguments_differ } => {
            return Stop::Replayed(Box::new(Replayed { story, receipt, arguments_differ }));
        }
        Claimed::InDoubt { receipt_id } => at_receipt(story, ErrorCode::CallInDoubt, receipt_id),
        Claimed::Conflict { receipt_id } => {
            at_receipt(story, ErrorCode::IdempotencyConflict, receipt_id)
        }
        Claimed::ApprovalRequired { approval_id } => {
            refused(story, ErrorCode::ApprovalRequired).with("approvalId", approval_id)
        }
        Claimed::ApprovalRejected { approval_id } => {
            refused(story, ErrorCode::ApprovalRejected).with("approvalId", approval_id)
        }
        Claimed::RateLimited { retry_after_ms } => {
            refused(story, ErrorCode::RateLimited).retry_after(retry_after_ms)
        }
        Claimed::TooManyInFlight => refused(story, ErrorCode::TooManyInFlight).retry_after(1_000),
        Claimed::InFlight { receipt_id, .. } => {
            at_receipt(story, ErrorCode::CallInFlight, receipt_id).retry_after(1_000)
        }
        // A fresh claim is never handed here; were it, nothing is dispatched.
        Claimed::Fresh(claim) => {
            at_receipt(story, ErrorCode::RecordUnavailable, claim.receipt_id().to_owned())
        }
    };
    refused.into()
}

/// Stage 7. The tool runs, in a task of its own, under its time.
async fn execute(inner: &Arc<Inner>, mut claimed: ClaimedCall) -> Executed {
    let began = inner.parts.clock.monotonic();
    let witness = Witness::default();
    let outcome = execute::run(inner, &mut claimed, &witness).await;
    let spent = inner.parts.clock.monotonic().saturating_sub(began);
    let seen = witness.take();
    Executed { claimed, outcome, seen, execute_ms: crate::port::milliseconds(spent) }
}

/// Stage 9. Receipt, agent log and events in one durable step, before the answer leaves.
async fn settle(inner: &Arc<Inner>, screened: Screened) -> ToolResult {
    let (settlement, result) = records::settlement(inner, screened);
    let settlement = Arc::new(settlement);
    let recorded = tokio::time::timeout(
        inner.parts.limits.settle_patience,
        records::settle_until_done(inner, &settlement),
    );
    match recorded.await {
        Ok(Ok(receipt)) => {
            if inner.gap.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                inner.tell_gap().await;
            }
            ToolResult {
                receipt_id: Some(receipt.receipt_id.clone()),
                effect: receipt.effect,
                ..result
            }
        }
        Ok(Err(error)) => {
            tracing::error!(%error, receipt.id = settlement.claim.receipt_id(), "an outcome is not recorded");
            records::outcome_unrecorded(result, settlement.claim.receipt_id())
        }
        Err(_) => {
            let receipt_id = settlement.claim.receipt_id().to_owned();
            let later = Arc::clone(inner);
            inner.tasks.spawn(async move {
                let ending = later.ending.clone();
                tokio::select! {
                    done = records::settle_until_done(&later, &settlement) => {
                        if let Err(error) = done {
                            tracing::error!(%error, "an outcome is not recorded");
                        }
                    }
                    () = ending.cancelled() => (),
                }
            });
            records::outcome_unrecorded(result, &receipt_id)
        }
    }
}

/// The answer where the proxy itself broke: nothing is known of the effect.
pub(crate) fn broken(tool_id: String, call_id: String) -> ToolResult {
    refused(tool_id, call_id, ErrorCode::AdapterFailed, Effect::Unknown)
}

/// The answer to a call whose outcome has become known since it ended.
pub(crate) fn outcome_of(receipt: Receipt, call_id: &str) -> ToolResult {
    records::outcome_of(receipt, call_id)
}

/// An answer without a result, outside the path.
pub(crate) fn refused(
    tool_id: String,
    call_id: String,
    code: ErrorCode,
    effect: Effect,
) -> ToolResult {
    records::failed_result(tool_id, call_id, code, effect, code.safe_sentence().to_owned())
}

/// What each stage did, with its time.
struct Trace {
    wanted: bool,
    last: Duration,
    notes: Vec<StageNote>,
}

impl Trace {
    fn begin(inner: &Inner, wanted: bool) -> Self {
        Self { wanted, last: inner.parts.clock.monotonic(), notes: Vec::new() }
    }

    fn stage(&mut self, inner: &Inner, stage: &str, note: &str) {
        if !self.wanted {
            return;
        }
        let now = inner.parts.clock.monotonic();
        let ms = crate::port::milliseconds(now.saturating_sub(self.last));
        self.last = now;
        self.notes.push(StageNote { stage: stage.to_owned(), ms, note: note.to_owned() });
    }
}

fn empty_object() -> Arc<RawValue> {
    static EMPTY: std::sync::LazyLock<Arc<RawValue>> = std::sync::LazyLock::new(|| {
        let text = RawValue::from_string("{}".to_owned());
        Arc::from(text.unwrap_or_else(|_| RawValue::NULL.to_owned()))
    });
    Arc::clone(&EMPTY)
}
