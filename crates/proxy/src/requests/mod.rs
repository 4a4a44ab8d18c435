//! The second lane: what is asked of a server beside calls of tools. Resolve, authorize, forward,
//! screen, record; there is no claim, since nothing of it is run twice by accident.
//!
//! Path: 2, 3, 5, 7, 8, 9. Doc: call-path.md#requests
#![expect(
    clippy::result_large_err,
    reason = "a refusal carries the trail of its request, and is moved once on its way out"
)]

mod answer;
mod forward;
mod records;
pub(crate) mod subscriptions;
mod target;
pub(crate) mod updates;
mod upstreams;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};
use toolbooth_contracts::contract::GATEWAY_RUNTIME;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::json::{check_value, hazardous_keys};
use toolbooth_contracts::port::{Ask, CompletionReference, UpstreamError};
use toolbooth_contracts::{CallContext, CallId, Caller, Conversation, ErrorCode};
use toolbooth_policy::{Denial, DenialRule, ToolStatus};
use toolbooth_registry::KEY_BYTES_MAX;

pub use subscriptions::{SubscribeRequest, Subscription};
pub use updates::ResourceUpdate;
pub use upstreams::{UpstreamEntry, Upstreams};

use crate::own_tools::READ_RESULT;
use crate::path::records::CallTrail;
use crate::path::screen::bytes;
use crate::path::{NAME_BYTES_MAX, too_long_claim};
use crate::proxy::ProxyState;
use crate::world::World;
use target::Target;

/// What a caller asks of a server, with names and URIs as they are on the wire.
#[derive(Debug, Clone)]
pub struct ServerRequest {
    /// What is asked.
    pub ask: Ask,
    /// What the agent claims.
    pub context: CallContext,
    /// Who asks.
    pub caller: Caller,
    /// The tool set of the door, by name.
    pub within: Option<Arc<str>>,
}

/// What a server said where it refused.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamRefusal {
    /// The server, by its name in configuration.
    pub server: String,
    /// The protocol's error code.
    pub code: i64,
    /// The server's sentence, screened.
    pub message: String,
    /// What it said beside that, where it is small.
    pub data: Option<Value>,
}

/// Why a request has no answer, as the agent may see it.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestError {
    /// The stable code.
    pub code: ErrorCode,
    /// A safe sentence.
    pub message: String,
    /// Facts for a program.
    pub details: Map<String, Value>,
    /// When to try again, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The server's own error, where it is the server that refused.
    pub upstream: Option<UpstreamRefusal>,
    /// The request's id in the records.
    pub call_id: String,
}

impl RequestError {
    /// The proxy itself broke.
    pub(crate) fn broken(call_id: String) -> Self {
        Self {
            code: ErrorCode::AdapterFailed,
            message: sentence(ErrorCode::AdapterFailed).to_owned(),
            details: Map::new(),
            retry_after_ms: None,
            upstream: None,
            call_id,
        }
    }
}

/// What a code means where no tool is called.
fn sentence(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnregisteredTool => {
            "ACCESS_DENIED: no such prompt or resource is available to you"
        }
        ErrorCode::InvalidArgs => "the request is not valid",
        ErrorCode::AdapterFailed => "the server cannot be reached",
        ErrorCode::Timeout => "the server did not answer in time",
        ErrorCode::Cancelled => "the request was cancelled",
        ErrorCode::ToolError => "the server answered with an error",
        ErrorCode::InvalidToolResult => "the server's answer is not valid",
        ErrorCode::ResultTooLarge => "the server's answer is too large",
        ErrorCode::RecordUnavailable => "the answer cannot be recorded, so it is withheld",
        other => other.safe_sentence(),
    }
}

/// Stage 2: the request has an id, a deadline and a slot, and is not too large.
struct Entered {
    trail: CallTrail,
    slot: OwnedSemaphorePermit,
    ask: Ask,
    toolset: Option<Arc<str>>,
    conversation: Conversation,
    /// When the caller stops waiting, on the monotonic clock.
    deadline: Option<Duration>,
}

/// Stages 3 and 5: the server and its own names are known, and the policy permits.
struct Permitted {
    entered: Entered,
    target: Target,
    uris: toolbooth_registry::uris::ResourceUris,
}

/// A request that ends without an answer.
struct Refused {
    trail: CallTrail,
    code: ErrorCode,
    message: Option<String>,
    details: Map<String, Value>,
    retry_after_ms: Option<u64>,
    upstream: Option<UpstreamRefusal>,
    internal: Option<String>,
    /// Whether the server was asked.
    forwarded: bool,
    /// Whether it is written down; answers of some kinds are not.
    recorded: bool,
}

impl Refused {
    fn new(trail: CallTrail, code: ErrorCode) -> Self {
        Self {
            trail,
            code,
            message: None,
            details: Map::new(),
            retry_after_ms: None,
            upstream: None,
            internal: None,
            forwarded: false,
            recorded: true,
        }
    }

    fn saying(self, message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    fn denied(mut trail: CallTrail, denial: Denial) -> Self {
        // A hidden item is answered and recorded exactly like an unknown one.
        if denial.code == ErrorCode::UnregisteredTool {
            return Self::new(trail, denial.code);
        }
        trail.decision = Some(denial.note());
        let mut refused = Self::new(trail, denial.code).saying(denial.reason);
        refused.details.insert("rule".to_owned(), denial.rule.as_str().into());
        if !denial.missing.is_empty() {
            refused.details.insert("missing".to_owned(), denial.missing.into());
        }
        refused
    }
}

/// Walks the whole lane.
pub(crate) async fn walk(
    inner: Arc<ProxyState>,
    request: ServerRequest,
    conversation: Conversation,
) -> Result<Value, RequestError> {
    let (kind, event) = (kind(&request.ask), event(&request.ask));
    let caller = request.caller.clone();
    let told = tell(&inner, event, run(&inner, request, conversation).await).await;
    tell_log(kind, &caller, told.as_ref().err());
    told
}

/// The one line of a request in the log. Its names may be payload, so they are not in it.
fn tell_log(kind: &str, caller: &Caller, error: Option<&RequestError>) {
    tracing::info!(
        request = kind,
        %caller,
        call.id = error.map(|error| error.call_id.as_str()),
        error.code = error.map(|error| error.code.as_str()),
        "request"
    );
}

async fn run(
    inner: &Arc<ProxyState>,
    request: ServerRequest,
    conversation: Conversation,
) -> Result<(CallTrail, Value), Refused> {
    if matches!(request.ask, Ask::Subscribe { .. } | Ask::Unsubscribe { .. }) {
        let entered = enter(inner, request, conversation)?;
        let message = "subscriptions are not asked for this way";
        return Err(Refused::new(entered.trail, ErrorCode::InvalidArgs).saying(message));
    }
    let entered = enter(inner, request, conversation)?;
    let entered = verify_source(inner, entered).await?;
    let permitted = resolve(inner, entered)?;
    let answered = forward::forward(inner, permitted).await?;
    answer::screen(inner, answered)
}

/// Stage 9 and the reply: one durable step before the answer leaves.
async fn tell(
    inner: &Arc<ProxyState>,
    event: Option<AuditEventKind>,
    done: Result<(CallTrail, Value), Refused>,
) -> Result<Value, RequestError> {
    match done {
        Ok((trail, value)) => match records::answered(inner, &trail, event, &value).await {
            Ok(()) => Ok(value),
            Err(error) => {
                inner.count_gap(&error);
                Err(withheld(trail.call_id))
            }
        },
        Err(refused) => Err(refuse(inner, refused).await),
    }
}

fn withheld(call_id: String) -> RequestError {
    let code = ErrorCode::RecordUnavailable;
    RequestError {
        code,
        message: sentence(code).to_owned(),
        retry_after_ms: Some(1_000),
        ..RequestError::broken(call_id)
    }
}

/// Records a refusal and answers it. What a server said is withheld where it cannot be recorded.
async fn refuse(inner: &ProxyState, refused: Refused) -> RequestError {
    if refused.recorded
        && let Err(error) = records::refused(inner, &refused).await
    {
        inner.count_gap(&error);
        if refused.forwarded {
            return withheld(refused.trail.call_id);
        }
    }
    let Refused { trail, code, message, details, retry_after_ms, upstream, .. } = refused;
    RequestError {
        code,
        message: message.unwrap_or_else(|| sentence(code).to_owned()),
        details,
        retry_after_ms,
        upstream,
        call_id: trail.call_id,
    }
}

/// What is asked, in a word.
fn kind(ask: &Ask) -> &'static str {
    match ask {
        Ask::ReadResource { .. } => "read-resource",
        Ask::GetPrompt { .. } => "get-prompt",
        Ask::Complete { .. } => "complete",
        Ask::Subscribe { .. } => "subscribe",
        Ask::Unsubscribe { .. } => "unsubscribe",
    }
}

/// The event of an answer; `None` where answers of its kind are not recorded.
fn event(ask: &Ask) -> Option<AuditEventKind> {
    match ask {
        Ask::ReadResource { .. } => Some(AuditEventKind::ResourceRead),
        Ask::GetPrompt { .. } => Some(AuditEventKind::PromptGet),
        Ask::Complete { .. } | Ask::Subscribe { .. } | Ask::Unsubscribe { .. } => None,
    }
}

/// The name or URI that is asked for.
fn name(ask: &Ask) -> &str {
    match ask {
        Ask::ReadResource { uri } | Ask::Subscribe { uri } | Ask::Unsubscribe { uri } => uri,
        Ask::GetPrompt { name, .. } => name,
        Ask::Complete { reference, .. } => match reference {
            CompletionReference::Prompt(name) | CompletionReference::Resource(name) => name,
        },
    }
}

/// What goes with the name.
fn arguments(ask: &Ask) -> Value {
    match ask {
        Ask::GetPrompt { arguments, .. } => json!(arguments),
        Ask::Complete { argument, context, .. } => json!([argument, context]),
        _ => Value::Null,
    }
}

/// Stage 2. An id, a deadline, a slot; names and arguments of bounded size.
fn enter(
    inner: &Arc<ProxyState>,
    request: ServerRequest,
    conversation: Conversation,
) -> Result<Entered, Refused> {
    let parts = &inner.parts;
    let ServerRequest { ask, context, caller, within } = request;
    let (call_id, bad_id) = match context.call_id.clone().map(CallId::try_from) {
        None => (parts.ids.next(), None),
        Some(Ok(id)) => (String::from(id), None),
        Some(Err(error)) => (parts.ids.next(), Some(error.to_string())),
    };
    let too_long = too_long_claim(&context);
    let mut trail = CallTrail::begin(inner, String::new(), call_id, caller, context);
    records::name(inner, &mut trail, name(&ask));
    let invalid =
        |trail, message: String| Err(Refused::new(trail, ErrorCode::InvalidArgs).saying(message));
    if let Some(claim) = too_long {
        return invalid(trail, format!("`{claim}` has more than {NAME_BYTES_MAX} bytes"));
    }
    if let Some(message) = bad_id {
        return invalid(trail, message);
    }
    // Longer than any name can be on the wire: no such thing is there.
    if name(&ask).len() > KEY_BYTES_MAX * 2 {
        return Err(Refused::new(trail, ErrorCode::UnregisteredTool));
    }
    let given = arguments(&ask);
    let most = parts.limits.argument_bytes_max;
    let size = bytes(&given);
    if size > most {
        return invalid(
            trail,
            format!("the arguments have {size} bytes, at most {most} are taken"),
        );
    }
    if let Err(fault) = check_value(&given) {
        return invalid(trail, fault.message);
    }
    if !hazardous_keys(&given).is_empty() {
        return invalid(trail, "a key of the arguments is not allowed".to_owned());
    }
    let slot = match Arc::clone(&inner.slots).try_acquire_owned() {
        Ok(slot) => slot,
        Err(reason) => {
            let refused = Refused::new(trail, ErrorCode::Overloaded);
            return Err(match reason {
                TryAcquireError::NoPermits => Refused { retry_after_ms: Some(1_000), ..refused },
                TryAcquireError::Closed => refused.saying("the gateway is shutting down"),
            });
        }
    };
    let deadline = trail.context.deadline_ms.map(|ms| trail.began + Duration::from_millis(ms));
    Ok(Entered { trail, slot, ask, toolset: within, conversation, deadline })
}

/// The end of stage 2: a server that is to be asked what it lists before that is used is asked.
async fn verify_source(inner: &ProxyState, entered: Entered) -> Result<Entered, Refused> {
    let Some(catalogue) = inner.parts.catalogue.clone() else { return Ok(entered) };
    let world = inner.parts.worlds.now();
    let Some(target) = Target::find(inner, &world, &entered.ask) else { return Ok(entered) };
    // For whom it is hidden, nothing may take longer than for what is not there.
    let may = world.shows_item(entered.toolset.as_ref(), &target.item())
        && world.policy.lists_item(&entered.trail.caller, &target.item(), &ToolStatus::Active);
    let bound = catalogue.server_verification_bound(&target.server).filter(|_| may);
    let Some(bound) = bound else { return Ok(entered) };
    let left = entered.deadline.map(|at| at.saturating_sub(inner.parts.clock.monotonic()));
    let bound = left.map_or(bound, |left| left.min(bound));
    let asking = tokio::spawn(async move { catalogue.verify_server(&target.server).await });
    let code = tokio::select! {
        asked = asking => match asked {
            Ok(()) => return Ok(entered),
            Err(_) => ErrorCode::AdapterFailed,
        },
        () = entered.conversation.cancelled() => ErrorCode::Cancelled,
        () = tokio::time::sleep(bound) => ErrorCode::Timeout,
    };
    let reason = "the server was not asked in time whether it lists what was approved";
    Err(Refused { internal: Some(reason.to_owned()), ..Refused::new(entered.trail, code) })
}

/// Stages 3 and 5, in one world: the flag, the item, whether the caller may know it, whether it
/// stands, whether it is permitted.
fn resolve(inner: &ProxyState, mut entered: Entered) -> Result<Permitted, Refused> {
    let world = inner.parts.worlds.now();
    entered.trail.policy_version = world.policy.version().to_owned();
    if let Err(denial) = world.policy.enabled() {
        return Err(Refused::denied(entered.trail, denial));
    }
    let Some(target) = Target::find(inner, &world, &entered.ask) else {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    };
    if target.server == GATEWAY_RUNTIME {
        return resolve_kept_result(inner, &world, entered, target);
    }
    let item = target.item();
    let shown = world.shows_item(entered.toolset.as_ref(), &item);
    if !shown || world.policy.hides_item(&entered.trail.caller, &item) {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    }
    let trail = &mut entered.trail;
    let status = target.status(&world);
    match world.policy.permit_item(&trail.caller, &item, status, &trail.context) {
        Ok(permit) => {
            records::name(inner, trail, &target.id);
            trail.decision = Some(permit.note());
            trail.args_digest = Some(inner.parts.ledger.digester().of(&json!([
                kind(&target.ask),
                name(&target.ask),
                arguments(&target.ask),
            ])));
            Ok(Permitted { entered, target, uris: world.uris.clone() })
        }
        Err(denial) if denial.code == ErrorCode::UnregisteredTool => {
            Err(Refused::denied(entered.trail, denial))
        }
        Err(denial) => {
            records::name(inner, trail, &target.id);
            if denial.rule == DenialRule::Whitelist {
                tracing::warn!(tool.id = trail.tool_id, caller = %trail.caller, "blocked by whitelist");
            }
            Err(Refused::denied(entered.trail, denial))
        }
    }
}

/// As [`resolve`], for a kept result: whoever may call the tool that reads it may read it as a
/// resource.
fn resolve_kept_result(
    inner: &ProxyState,
    world: &World,
    mut entered: Entered,
    target: Target,
) -> Result<Permitted, Refused> {
    let tool = world.registry.get(READ_RESULT);
    let shown = world.shows_tool(entered.toolset.as_ref(), READ_RESULT);
    let Some(tool) = tool.filter(|_| shown) else {
        return Err(Refused::new(entered.trail, ErrorCode::UnregisteredTool));
    };
    let trail = &mut entered.trail;
    let contract = tool.contract();
    let arguments = json!({ "result": name(&target.ask) });
    let access = world.policy.access(&trail.caller, contract, world.status(tool));
    let permit = access.and_then(|access| {
        world.policy.authorize(access, &trail.caller, contract, &arguments, &trail.context)
    });
    match permit {
        Ok(permit) if permit.approval().is_none() => {
            records::name(inner, trail, &target.id);
            trail.decision = Some(permit.note());
            trail.args_digest = Some(inner.parts.ledger.digester().of(&arguments));
            Ok(Permitted { entered, target, uris: world.uris.clone() })
        }
        // Only calls can be approved.
        Ok(_) => Err(Refused::new(entered.trail, ErrorCode::PolicyDenied)),
        Err(denial) => Err(Refused::denied(entered.trail, denial)),
    }
}

/// The code of a request that a server did not serve.
fn code_of(error: &UpstreamError) -> ErrorCode {
    match error {
        UpstreamError::Unreachable(_) => ErrorCode::AdapterFailed,
        UpstreamError::Refused { .. } => ErrorCode::ToolError,
        UpstreamError::Timeout => ErrorCode::Timeout,
        UpstreamError::Cancelled => ErrorCode::Cancelled,
        UpstreamError::Unreadable(_) => ErrorCode::InvalidToolResult,
    }
}
