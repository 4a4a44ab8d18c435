//! The path of one call, stage by stage: the security argument of the house, from top to bottom.
//!
//! Each stage takes the one before by value and gives the next: skipping or reordering a stage
//! does not compile. Up to the claim nothing waits and an error means that the call did nothing;
//! from dispatch on an error is an outcome, not an early return.
//!
//! Path: 2, 3, 4, 5, 6, 7, 8, 9. Doc: call-path.md#stages
#![expect(
    clippy::result_large_err,
    reason = "a refusal carries the trail of its call, and is moved once on its way out"
)]

mod execute;
mod keys;
pub(crate) mod records;
pub(crate) mod screen;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};
use toolbooth_audit::LedgerError;
use toolbooth_audit::claim::KeyRules;
use toolbooth_audit::ledger::{Claim, ClaimRequest, Claimed};
use toolbooth_contracts::arguments::{Unfit, UnfitArguments};
use toolbooth_contracts::contract::{IdempotencyMode, OnDifferentArgs};
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::execution_log::{ExecutionLog, Observations};
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::result::ArgumentError;
use toolbooth_contracts::{
    Arguments, CallContext, CallId, Conversation, Effect, ErrorCode, GuardedArguments, ToolCall,
    ToolContract, ToolName, ToolResult,
};
use toolbooth_policy::{Access, Denial, DenialRule, Permit};
use toolbooth_registry::RegisteredTool;

use crate::payload_retention::Intent;
use crate::proxy::{ProxyState, StageNote};
use crate::world::World;
use records::{CallTrail, Input};
use screen::Screened;

/// The warning of a replay whose first call was another caller's.
pub(crate) const FIRST_BY_ANOTHER: &str = "first-by-another-caller";

/// How often a call that waits for its duplicate asks the store again, where the duplicate may run in
/// another process.
const DUPLICATE_POLL: Duration = Duration::from_millis(100);

/// The same, where the duplicate runs in this process and tells when it ends.
const DUPLICATE_CHECK: Duration = Duration::from_secs(1);

/// Stage 2: the call has an id, a deadline and a slot, and is not too large.
struct Entered {
    trail: Box<CallTrail>,
    /// `None` only while the call waits for its duplicate.
    slot: Option<OwnedSemaphorePermit>,
    conversation: Conversation,
    /// When the caller stops waiting, on the monotonic clock.
    deadline: Option<Duration>,
    dedup_key: Option<String>,
    tool: ToolName,
    /// What the door shows.
    toolset: Option<Arc<str>>,
}

/// The end of stage 2: the tool's source was asked again, where it is to be asked before the call.
struct SourceVerified {
    entered: Entered,
}

/// The tool that the call is about, in the world that judges it.
struct FoundTool {
    entered: Entered,
    world: Arc<World>,
    tool: Arc<RegisteredTool>,
}

/// Stage 3: the tool is known to the caller and stands, in one world.
struct Resolved {
    found: FoundTool,
    access: Access,
}

/// Stage 4: the arguments fit. They are final from here on.
struct Guarded {
    found: FoundTool,
    access: Access,
    arguments: GuardedArguments,
    natural_key: Option<String>,
}

/// Stage 5: the policy permits the call with these arguments.
struct Authorized {
    found: FoundTool,
    permit: Permit,
    arguments: GuardedArguments,
    natural_key: Option<String>,
}

/// Stage 6: the claim is durable; the tool may be dispatched once.
struct ClaimedCall {
    found: FoundTool,
    permit: Permit,
    claim: Claim,
    /// What was guarded and judged, and nothing else.
    arguments: GuardedArguments,
    forwarded_key: Option<String>,
}

/// Stage 7: the tool has run, or is known not to have been started.
struct Executed {
    claimed: ClaimedCall,
    outcome: execute::Ended,
    observed: Observations,
    execute_ms: f64,
}

/// A call that ends before its dispatch.
struct Refused {
    trail: Box<CallTrail>,
    code: ErrorCode,
    message: Option<String>,
    details: Map<String, Value>,
    retry_after_ms: Option<u64>,
    receipt_id: Option<String>,
    internal: Option<String>,
}

/// A call that gets an earlier outcome.
struct Replayed {
    trail: Box<CallTrail>,
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
    fn new(trail: Box<CallTrail>, code: ErrorCode) -> Self {
        Self {
            trail,
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

    fn denied(mut trail: Box<CallTrail>, denial: Denial) -> Self {
        // A hidden tool is answered and recorded exactly like an unknown one: nothing of it, not
        // even how long its record takes to write, tells them apart.
        if denial.code == ErrorCode::UnregisteredTool {
            return Self::new(trail, denial.code);
        }
        trail.decision = Some(denial.note());
        let refused = Self::new(trail, denial.code);
        let refused = refused.saying(denial.reason).with("rule", denial.rule.as_str());
        if denial.missing.is_empty() { refused } else { refused.with("missing", denial.missing) }
    }
}

/// Walks the whole path. Every way through it writes exactly one agent log and one terminal
/// event, unless the store is away.
pub(crate) async fn walk(
    inner: Arc<ProxyState>,
    call: ToolCall,
    conversation: Conversation,
    dedup_key: Option<String>,
    explain: bool,
) -> (ToolResult, Vec<StageNote>) {
    let mut trace = Trace::begin(&inner, explain);
    let result = match up_to_claim(&inner, call, conversation, dedup_key, &mut trace).await {
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
    inner: &Arc<ProxyState>,
    call: ToolCall,
    conversation: Conversation,
    dedup_key: Option<String>,
    trace: &mut Trace,
) -> Result<ClaimedCall, Stop> {
    let entered = enter(inner, call, conversation, dedup_key)?;
    trace.stage(inner, "enter", &entered.trail.call_id);
    let verified = verify_source(inner, entered).await?;
    let resolved = resolve(inner, verified)?;
    trace.stage(inner, "resolve", resolved.found.tool.target_owner());
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
    inner: &Arc<ProxyState>,
    call: ToolCall,
    conversation: Conversation,
    dedup_key: Option<String>,
) -> Result<Entered, Refused> {
    let parts = &inner.parts;
    let ToolCall { tool, args, context, caller, toolset } = call;
    let (call_id, bad_id) = match context.call_id.clone() {
        None => (parts.ids.next(), None),
        Some(text) => match CallId::try_from(text) {
            Ok(id) => (String::from(id), None),
            Err(error) => (parts.ids.next(), Some(error.to_string())),
        },
    };
    let too_long = too_long(&tool, &context);
    // For the records of a call that comes no further; what the name stands for is found in stage 3.
    let tool_id = parts.worlds.now().tool_id(&tool).to_owned();
    let mut trail = Box::new(CallTrail::begin(inner, tool_id, call_id, caller, context));
    if let Some(name) = too_long {
        trail.shorten();
        // An id that no tool can have is unknown; anything else is the caller's slip.
        if name == "toolId" {
            return Err(Refused::new(trail, ErrorCode::UnregisteredTool));
        }
        let message = format!("`{name}` has more than {NAME_BYTES_MAX} bytes");
        return Err(Refused::new(trail, ErrorCode::InvalidArgs).saying(message));
    }
    // Absent arguments are `{}`; a `null` that was sent is not an object, and the guard says so.
    let size = args.as_ref().map_or(2, |raw| raw.get().len());
    if size > parts.limits.argument_bytes_max {
        let most = parts.limits.argument_bytes_max;
        let message = format!("the arguments have {size} bytes, at most {most} are taken");
        return Err(Refused::new(trail, ErrorCode::InvalidArgs)
            .saying(message)
            .with("bytesMax", most));
    }
    trail.input = match args {
        Some(raw) => Input::Raw(raw),
        None => Input::Judged(Arguments::default()),
    };
    if let Some(message) = bad_id {
        return Err(Refused::new(trail, ErrorCode::InvalidArgs)
            .with("errors", json!([{"path": "", "keyword": "callId", "message": message}]))
            .saying(message));
    }
    let deadline = trail.context.deadline_ms.map(|ms| trail.began + Duration::from_millis(ms));
    let slot = match Arc::clone(&inner.slots).try_acquire_owned() {
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
    Ok(Entered { trail, slot, conversation, deadline, dedup_key, tool, toolset })
}

/// Longest name that a caller may give anything, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 512;

/// The first name of a request that is too long to be kept.
fn too_long(tool: &ToolName, context: &CallContext) -> Option<&'static str> {
    let tool_id = (tool.as_str().len() > NAME_BYTES_MAX).then_some("toolId");
    tool_id.or_else(|| too_long_claim(context))
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
async fn verify_source(inner: &ProxyState, entered: Entered) -> Result<SourceVerified, Refused> {
    let Some(catalogue) = inner.parts.catalogue.clone() else {
        return Ok(SourceVerified { entered });
    };
    let (tool, toolset) = (&entered.tool, entered.toolset.as_ref());
    let Some(bound) = catalogue.verification_bound(tool, &entered.trail.caller, toolset) else {
        return Ok(SourceVerified { entered });
    };
    let (tool, caller) = (entered.tool.clone(), entered.trail.caller.clone());
    let toolset = entered.toolset.clone();
    let left = entered.deadline.map(|at| at.saturating_sub(inner.parts.clock.monotonic()));
    let bound = left.map_or(bound, |left| left.min(bound));
    let asking = tokio::spawn(async move {
        catalogue.verify(&tool, &caller, toolset.as_ref()).await;
    });
    let code = tokio::select! {
        asked = asking => match asked {
            Ok(()) => return Ok(SourceVerified { entered }),
            Err(_) => ErrorCode::AdapterFailed,
        },
        () = entered.conversation.cancelled() => ErrorCode::Cancelled,
        () = tokio::time::sleep(bound) => ErrorCode::Timeout,
    };
    let reason = "the tool's source was not asked in time whether the tool is what was approved";
    Err(Refused { internal: Some(reason.to_owned()), ..Refused::new(entered.trail, code) })
}

/// Stage 3. In one world: the flag, the tool, whether the caller may know it, whether it stands.
fn resolve(inner: &ProxyState, verified: SourceVerified) -> Result<Resolved, Refused> {
    let SourceVerified { mut entered } = verified;
    let world = inner.parts.worlds.now();
    world.tool_id(&entered.tool).clone_into(&mut entered.trail.tool_id);
    entered.trail.policy_version = world.policy.version().to_owned();
    // The flag comes before the look-up, or its answer would tell which tools there are.
    if let Err(denial) = world.policy.enabled() {
        return Err(Refused::denied(entered.trail, denial));
    }
    // What the door does not show is not there.
    let shown = world.shows_tool(entered.toolset.as_ref(), &entered.trail.tool_id);
    let tool = world.registry.get(&entered.trail.tool_id).filter(|_| shown).cloned();
    let Some(tool) = tool else {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    };
    match world.policy.access(&entered.trail.caller, tool.contract(), world.status(&tool)) {
        Ok(access) => Ok(Resolved { found: FoundTool { entered, world, tool }, access }),
        Err(denial) => {
            if denial.rule == DenialRule::Whitelist {
                tracing::warn!(tool.id = %tool.id(), caller = %entered.trail.caller, "blocked by whitelist");
            }
            Err(Refused::denied(entered.trail, denial))
        }
    }
}

/// Stage 4. Hygiene, the compiled input schema, size, and the key of a keyed tool.
fn guard(inner: &ProxyState, resolved: Resolved) -> Result<Guarded, Refused> {
    let Resolved { mut found, access } = resolved;
    let contract = Arc::clone(found.tool.contract());
    let trail = &mut found.entered.trail;
    let digester = inner.parts.ledger.digester();
    let judged = match std::mem::replace(&mut trail.input, Input::None) {
        Input::Raw(text) => Arguments::parse(text),
        Input::Judged(arguments) => Ok(arguments),
        Input::None => Ok(Arguments::default()),
    };
    let tree = match &judged {
        Ok(arguments) => Some(arguments.tree()),
        Err(UnfitArguments { reason: Unfit::NoObject(tree), .. }) => Some(tree),
        Err(UnfitArguments { reason: Unfit::Json(_), .. }) => None,
    };
    if let Some(tree) = tree {
        let (digest, older) = digester.of_all(tree);
        trail.args_digest = Some(digest);
        trail.older_args_digests = older;
    }
    let arguments = match judged {
        Ok(arguments) => arguments,
        Err(UnfitArguments { text, reason }) => {
            trail.input = Input::Raw(text);
            return Err(invalid_arguments(found.entered.trail, &[reason.to_error()]));
        }
    };
    trail.input = Input::Judged(arguments.clone());
    let arguments = match found.tool.guard(arguments) {
        Ok(arguments) => arguments,
        Err(errors) => return Err(invalid_arguments(found.entered.trail, &errors)),
    };
    match keys::natural(&contract, arguments.tree()) {
        Ok(natural_key) => Ok(Guarded { found, access, arguments, natural_key }),
        Err(field) => Err(Refused::new(found.entered.trail, ErrorCode::MissingIdempotencyKey)
            .saying(format!(
                "the argument `{field}` is this tool's idempotency key: it must be a text that is \
                 not blank, a number or a boolean"
            ))
            .with("keyField", field)),
    }
}

fn invalid_arguments(trail: Box<CallTrail>, errors: &[ArgumentError]) -> Refused {
    let told: Vec<String> = errors
        .iter()
        .map(|error| match error.path.as_str() {
            "" => error.message.clone(),
            path => format!("{path}: {}", error.message),
        })
        .collect();
    let sentence = ErrorCode::InvalidArgs.safe_sentence();
    Refused::new(trail, ErrorCode::InvalidArgs)
        .saying(format!("{sentence}: {}", told.join("; ")))
        .with("errors", serde_json::to_value(errors).unwrap_or_default())
}

/// Stage 5. The policy over the final arguments.
fn authorize(guarded: Guarded) -> Result<Authorized, Refused> {
    let Guarded { mut found, access, arguments, natural_key } = guarded;
    let trail = &mut found.entered.trail;
    let contract = found.tool.contract();
    let tree = arguments.tree();
    match found.world.policy.authorize(access, &trail.caller, contract, tree, &trail.context) {
        Ok(permit) => {
            trail.decision = Some(permit.note());
            Ok(Authorized { found, permit, arguments, natural_key })
        }
        Err(denial) => Err(Refused::denied(found.entered.trail, denial)),
    }
}

/// Stage 6. One durable step: the earlier outcome, or approval, charges and the claim. A call
/// whose duplicate still runs waits for its outcome, without a slot.
async fn claim(inner: &Arc<ProxyState>, authorized: Authorized) -> Result<ClaimedCall, Stop> {
    let Authorized { mut found, permit, arguments, natural_key } = authorized;
    let contract = Arc::clone(found.tool.contract());
    let digester = inner.parts.ledger.digester();
    let keys = keys::of_call(
        digester,
        &contract,
        &found.entered.trail,
        natural_key,
        found.entered.dedup_key.take(),
    );
    if keys.ignored {
        found.entered.trail.warnings.push("key-ignored".to_owned());
    }
    let patience = Duration::from_millis(contract.policy.timeout_ms);
    let until = found.entered.deadline.unwrap_or_else(|| inner.parts.clock.monotonic() + patience);
    loop {
        if found.entered.conversation.is_cancelled() {
            return Err(Refused::new(found.entered.trail, ErrorCode::Cancelled).into());
        }
        if inner.parts.clock.monotonic() >= until {
            return Err(Refused::new(found.entered.trail, ErrorCode::Timeout).into());
        }
        let request = claim_request(inner, &found.entered.trail, &found.tool, &permit, &keys);
        let claimed = match inner.parts.ledger.claim(request).await {
            Ok(claimed) => claimed,
            Err(error) => return Err(unrecorded(found.entered.trail, &error).into()),
        };
        let (receipt_id, settled) = match claimed {
            Claimed::Fresh(claim) => {
                let forwarded_key = claim.key().map(str::to_owned).or(keys.forwarded);
                return Ok(ClaimedCall { found, permit, claim, arguments, forwarded_key });
            }
            Claimed::InFlight { receipt_id, settled } => (receipt_id, settled),
            other => return Err(stopped(found.entered.trail, other)),
        };
        // A call that waits holds no slot: duplicates could take all of them.
        found.entered.slot = None;
        let left = until.saturating_sub(inner.parts.clock.monotonic());
        let waited = wait_for_duplicate(inner, settled, &found.entered.conversation);
        match tokio::time::timeout(left, waited).await {
            Ok(Ok(slot)) => found.entered.slot = Some(slot),
            Ok(Err(code)) => return Err(Refused::new(found.entered.trail, code).into()),
            Err(_) => {
                let trail = found.entered.trail;
                let refused = Refused::new(trail, ErrorCode::CallInFlight).retry_after(1_000);
                return Err(Refused { receipt_id: Some(receipt_id), ..refused }.into());
            }
        }
    }
}

/// Waits until the duplicate may be settled, and for a slot.
async fn wait_for_duplicate(
    inner: &ProxyState,
    settled: Option<async_channel::Receiver<std::convert::Infallible>>,
    conversation: &Conversation,
) -> Result<OwnedSemaphorePermit, ErrorCode> {
    let told = async {
        match settled {
            // Another process may have settled it meanwhile: the store is asked now and then.
            Some(settled) => drop(tokio::time::timeout(DUPLICATE_CHECK, settled.recv()).await),
            None => tokio::time::sleep(DUPLICATE_POLL).await,
        }
    };
    tokio::select! {
        () = told => (),
        () = conversation.cancelled() => return Err(ErrorCode::Cancelled),
    }
    Arc::clone(&inner.slots).acquire_owned().await.map_err(|_| ErrorCode::Overloaded)
}

fn claim_request(
    inner: &ProxyState,
    trail: &CallTrail,
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
        rate_per_min: permit.charges().rate_per_min,
        concurrency_max: permit.charges().concurrency_max,
        approval_rule: permit.approval().map(|need| need.rule.clone()),
        approval_id: permit.approval().map_or_else(String::new, |_| parts.ids.next()),
        policy_version: trail.policy_version.clone(),
        dispatched: trail.event(AuditEventKind::ToolDispatched, &at),
        at,
        sync: must_last(contract),
        // Only by an operator's word, and only where the operator also says that nothing changes.
        relaxed: contract.policy.read_only == Some(true)
            && parts.retention.intent(&trail.tool_id) == Intent::Relaxed,
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

fn unrecorded(trail: Box<CallTrail>, error: &LedgerError) -> Refused {
    Refused {
        internal: Some(error.to_string()),
        ..Refused::new(trail, ErrorCode::RecordUnavailable).retry_after(1_000)
    }
}

/// What the ledger found instead of a fresh claim.
fn stopped(trail: Box<CallTrail>, claimed: Claimed) -> Stop {
    let refused = |trail, code| Refused::new(trail, code);
    let at_receipt = |trail, code, receipt_id: String| Refused {
        receipt_id: Some(receipt_id),
        ..Refused::new(trail, code)
    };
    let refused = match claimed {
        Claimed::Replay { receipt, arguments_differ } => {
            return Stop::Replayed(Box::new(Replayed { trail, receipt, arguments_differ }));
        }
        Claimed::InDoubt { receipt_id } => at_receipt(trail, ErrorCode::CallInDoubt, receipt_id),
        Claimed::Conflict { receipt_id } => {
            at_receipt(trail, ErrorCode::IdempotencyConflict, receipt_id)
        }
        Claimed::ApprovalRequired { approval_id } => {
            refused(trail, ErrorCode::ApprovalRequired).with("approvalId", approval_id)
        }
        Claimed::ApprovalRejected { approval_id } => {
            refused(trail, ErrorCode::ApprovalRejected).with("approvalId", approval_id)
        }
        Claimed::RateLimited { retry_after_ms } => {
            refused(trail, ErrorCode::RateLimited).retry_after(retry_after_ms)
        }
        Claimed::TooManyInFlight => refused(trail, ErrorCode::TooManyInFlight).retry_after(1_000),
        Claimed::InFlight { receipt_id, .. } => {
            at_receipt(trail, ErrorCode::CallInFlight, receipt_id).retry_after(1_000)
        }
        // A fresh claim is never handed here; were it, nothing is dispatched.
        Claimed::Fresh(claim) => {
            at_receipt(trail, ErrorCode::RecordUnavailable, claim.receipt_id().to_owned())
        }
    };
    refused.into()
}

/// Stage 7. The tool runs, in a task of its own, under its time.
async fn execute(inner: &Arc<ProxyState>, mut claimed: ClaimedCall) -> Executed {
    let began = inner.parts.clock.monotonic();
    let execution_log = ExecutionLog::default();
    let outcome = execute::run(inner, &mut claimed, &execution_log).await;
    let spent = inner.parts.clock.monotonic().saturating_sub(began);
    let observed = execution_log.take();
    Executed { claimed, outcome, observed, execute_ms: crate::port::milliseconds(spent) }
}

/// Stage 9. Receipt, agent log and events in one durable step, before the answer leaves.
async fn settle(inner: &Arc<ProxyState>, screened: Screened) -> ToolResult {
    let (settlement, result) = records::settlement(inner, screened);
    let recorded = tokio::time::timeout(
        inner.parts.limits.settle_patience,
        records::settle_until_done(inner, &settlement),
    );
    match recorded.await {
        Ok(Ok(receipt)) => {
            if inner.gap.load(std::sync::atomic::Ordering::Relaxed) > 0 {
                inner.record_gap().await;
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
    fn begin(inner: &ProxyState, wanted: bool) -> Self {
        Self { wanted, last: inner.parts.clock.monotonic(), notes: Vec::new() }
    }

    fn stage(&mut self, inner: &ProxyState, stage: &str, note: &str) {
        if !self.wanted {
            return;
        }
        let now = inner.parts.clock.monotonic();
        let ms = crate::port::milliseconds(now.saturating_sub(self.last));
        self.last = now;
        self.notes.push(StageNote { stage: stage.to_owned(), ms, note: note.to_owned() });
    }
}
