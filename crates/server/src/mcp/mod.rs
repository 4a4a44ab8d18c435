//! MCP in both eras of the protocol, over stdio and streamable HTTP, by the SDK behind one seam.
//!
//! Maps messages to calls and results to messages; decides nothing.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

mod hub;
mod search;
mod stdio;
mod wire;

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Json, Response};
use bytes::Bytes;
use rmcp::model::{
    CacheScope, CompleteRequestMethod, CompleteRequestParams, CompleteResult, CustomRequest,
    CustomResult, DiscoverResult, ErrorCode as RpcCode, Implementation, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ProtocolVersion, ServerCapabilities, ServerConfig,
    SubscriptionFilter, Tool, ToolAnnotations,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::conversation::Counterpart;
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::json;
use toolbooth_contracts::{
    CallContext, CallRequest, Caller, Conversation, ErrorCode, ToolCall, ToolResult,
};
use toolbooth_proxy::{View, Visible};

pub use stdio::serve_stdio;

use crate::http::{BODY_BYTES_MAX, Problem, read_json};
use crate::{House, Listing};
use hub::{Hub, Membership};

/// Tools of one page of a listing.
const PAGE: usize = 500;
/// How long clients may keep a listing, in milliseconds: they are told of changes.
const LIST_TTL_MS: u64 = 0;

tokio::task_local! {
    /// The caller of the request whose headers are being checked; see [`ServerHandler::get_tool`].
    static CALLER: Caller;
}

/// The MCP front door.
#[derive(Clone)]
pub struct McpDoor {
    house: House,
    hub: Hub,
    /// Where nothing else says who calls: the user of stdio.
    fallback: Option<Caller>,
    session: Arc<Mutex<Option<Membership>>>,
}

impl McpDoor {
    fn new(house: House, hub: Hub, fallback: Option<Caller>) -> Self {
        Self { house, hub, fallback, session: Arc::default() }
    }

    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        context
            .extensions
            .get::<http::request::Parts>()
            .and_then(|parts| parts.extensions.get::<Caller>())
            .or(self.fallback.as_ref())
            .cloned()
            .ok_or_else(|| ErrorData::internal_error("nobody was authenticated", None))
    }

    async fn call(
        &self,
        params: Option<&Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Value, ErrorData> {
        let mut carried =
            wire::uncarry(params).map_err(|message| invalid_params(message.into()))?;
        let caller = self.caller(context)?;
        let view = self.house.catalogue.view(&caller);
        if self.house.listing == Listing::Search {
            match carried.name.as_str() {
                search::SEARCH => {
                    // An index may have to be made first, which takes a while for many tools.
                    let searching = tokio::task::spawn_blocking(move || {
                        search::answer(&view, carried.arguments.as_deref())
                    });
                    let mut answer = searching
                        .await
                        .map_err(|_| ErrorData::internal_error("the search failed", None))?;
                    if let (true, Some(members)) = (is_modern(context), answer.as_object_mut()) {
                        members.insert("resultType".to_owned(), json!("complete"));
                    }
                    return Ok(answer);
                }
                search::CALL => {
                    carried = search::unwrap(carried.arguments.as_deref())
                        .map_err(|message| invalid_params(message.into()))?;
                }
                _ => (),
            }
        }
        let dialect = wire::own_meta(&context.meta.0.0, "dialect").and_then(Value::as_str);
        if dialect == Some(self.house.strict_dialect) {
            carried.arguments = narrowed(&view, &carried.name, carried.arguments);
        }
        let request = CallRequest {
            tool_id: view.tool_id(&carried.name).to_owned(),
            args: carried.arguments,
            context: call_context(context),
        };
        let (conversation, counterpart) = Conversation::pair(false);
        let running = self.house.proxy.call(ToolCall::new(request, caller), conversation);
        let result = while_running(context, counterpart, running).await;
        match result.error.as_ref().map(|error| error.code) {
            Some(code @ ErrorCode::UnregisteredTool) => Err(ErrorData::invalid_params(
                code.safe_sentence(),
                Some(json!({ "code": code.as_str() })),
            )),
            Some(_) if !carried.well_formed => {
                Err(invalid_params("`arguments` must be an object".into()))
            }
            _ => Ok(on_the_wire(result, is_modern(context))),
        }
    }
}

/// Arguments without the nulls that a strict declaration made possible. What cannot be read is
/// left to the guard, and so is everything of a tool that the caller does not see.
fn narrowed(view: &View, name: &str, arguments: Option<Box<RawValue>>) -> Option<Box<RawValue>> {
    let raw = arguments?;
    let (Some(visible), Ok(value)) = (view.find(name), json::parse(raw.get().as_bytes())) else {
        return Some(raw);
    };
    let schema = &visible.tool.contract().input_schema;
    let narrowed = without_widened_nulls(schema, value);
    Some(RawValue::from_string(narrowed.to_string()).unwrap_or(raw))
}

fn invalid_params(message: Cow<'static, str>) -> ErrorData {
    ErrorData::invalid_params(message, None)
}

fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

/// What the agent claims, from `_meta`; the client's own name where it names no agent.
fn call_context(context: &RequestContext<RoleServer>) -> CallContext {
    let meta = &context.meta.0.0;
    let text = |key: &str| wire::own_meta(meta, key).and_then(Value::as_str).map(str::to_owned);
    let client = if is_modern(context) {
        context.meta.client_info().map(|client| client.name)
    } else {
        context.client_info().map(|client| client.name)
    };
    CallContext {
        call_id: text("callId"),
        agent_id: text("agentId").or(client),
        turn_index: wire::own_meta(meta, "turnIndex").and_then(Value::as_u64),
        phase_id: text("phaseId"),
        epic_id: text("epicId"),
        idempotency_key: text("idempotencyKey"),
        deadline_ms: None,
    }
}

/// Passes progress on to the client and its cancellation on to the tool, until the call ends.
async fn while_running(
    context: &RequestContext<RoleServer>,
    counterpart: Counterpart,
    running: impl Future<Output = ToolResult>,
) -> ToolResult {
    let token = context.meta.get_progress_token();
    tokio::pin!(running);
    let mut cancelled = false;
    loop {
        tokio::select! {
            biased;
            Ok(progress) = counterpart.progress.recv(), if token.is_some() => {
                let Some(token) = token.clone() else { continue };
                let mut param = ProgressNotificationParam::new(token, progress.progress);
                if let Some(total) = progress.total {
                    param = param.with_total(total);
                }
                if let Some(message) = progress.message {
                    param = param.with_message(message);
                }
                // A client that is gone is told by its own cancellation.
                let _ = context.peer.notify_progress(param).await;
            }
            result = &mut running => return result,
            () = context.ct.cancelled(), if !cancelled => {
                cancelled = true;
                counterpart.cancel.cancel();
            }
        }
    }
}

/// A result as `CallToolResult`.
fn on_the_wire(result: ToolResult, modern: bool) -> Value {
    let mut out = Map::new();
    out.insert("content".to_owned(), serde_json::to_value(&result.content).unwrap_or_default());
    if let Some(structured) = result.structured_content {
        out.insert("structuredContent".to_owned(), structured);
    }
    out.insert("isError".to_owned(), json!(result.is_error));
    let mut meta = result.meta.unwrap_or_default();
    let mut tell = |key: &str, value: Value| meta.insert(format!("toolbooth/{key}"), value);
    tell("callId", json!(result.call_id));
    tell("replayed", json!(result.replayed));
    if let Some(receipt_id) = result.receipt_id {
        tell("receiptId", json!(receipt_id));
    }
    if let Some(error) = result.error {
        tell("errorCode", json!(error.code));
        if !error.details.is_empty() {
            tell("details", Value::Object(error.details));
        }
    }
    if let Some(after) = result.retry_after_ms {
        tell("retryAfterMs", json!(after));
    }
    if !result.warnings.is_empty() {
        tell("warnings", json!(result.warnings));
    }
    out.insert("_meta".to_owned(), Value::Object(meta));
    if modern {
        out.insert("resultType".to_owned(), json!("complete"));
    }
    Value::Object(out)
}

fn object(value: &Value) -> Arc<Map<String, Value>> {
    Arc::new(value.as_object().cloned().unwrap_or_default())
}

fn listed(visible: &Visible) -> Tool {
    let declaration = toolbooth_proxy::declaration(visible);
    let description = declaration.description.map(Cow::Owned);
    let mut tool =
        Tool::new_with_raw(declaration.wire_name, description, object(&declaration.parameters));
    if let Some(title) = declaration.title {
        tool = tool.with_title(title);
    }
    // A schema that is no object says nothing that a client could use.
    if let Some(schema) = declaration.output_schema.filter(Value::is_object) {
        tool = tool.with_raw_output_schema(object(&schema));
    }
    let hints = declaration.annotations.map(Value::Object);
    if let Some(hints) =
        hints.and_then(|hints| serde_json::from_value::<ToolAnnotations>(hints).ok())
    {
        tool = tool.with_annotations(hints);
    }
    tool
}

/// Methods that the protocol knows; one of them that arrives here had malformed parameters.
const KNOWN_METHODS: [&str; 3] = ["tools/list", "initialize", "server/discover"];

impl ServerHandler for McpDoor {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("toolbooth", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "Tools behind Toolbooth: each call is checked, contained and receipted. A refusal \
                 says why; `_meta` holds `toolbooth/receiptId` and `toolbooth/errorCode`.",
            )
            .with_protocol_version(ProtocolVersion::V_2025_11_25)
    }

    async fn discover(
        &self,
        _context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        let versions = self.supported_protocol_versions().into_owned();
        Ok(DiscoverResult::from_server_info(versions, self.get_info())
            .with_ttl_ms(60_000)
            .with_cache_scope(CacheScope::Private))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        if self.house.listing == Listing::Search
            && let Some(tool) = search::tools().into_iter().find(|tool| tool.name == name)
        {
            return Some(tool);
        }
        // Only headers are checked against it, for the caller whose request it is.
        let caller = CALLER.try_with(Clone::clone).ok()?;
        self.house.catalogue.view(&caller).find(name).as_ref().map(listed)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller = self.caller(&context)?;
        let view = self.house.catalogue.view(&caller);
        // A cursor is the id to go on after; an empty one is the beginning.
        let cursor = request.and_then(|params| params.cursor).filter(|cursor| !cursor.is_empty());
        if let Some(cursor) = &cursor
            && toolbooth_contracts::ToolId::try_from(cursor.as_str()).is_err()
        {
            return Err(invalid_params("the cursor is not one of this server".into()));
        }
        let mut result = match self.house.listing {
            Listing::Search => ListToolsResult::with_all_items(search::tools()),
            Listing::All => {
                let (tools, next) = view.listed(cursor.as_deref(), PAGE);
                let mut result =
                    ListToolsResult::with_all_items(tools.iter().map(listed).collect());
                result.next_cursor = next;
                result
            }
        };
        if is_modern(&context) {
            result = result.with_ttl_ms(LIST_TTL_MS).with_cache_scope(CacheScope::Private);
        }
        Ok(result)
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        match request.method.as_str() {
            wire::CALL => self.call(request.params.as_ref(), &context).await.map(CustomResult::new),
            known if KNOWN_METHODS.contains(&known) => {
                Err(invalid_params("the parameters are malformed".into()))
            }
            _ => Err(ErrorData::new(RpcCode::METHOD_NOT_FOUND, request.method, None)),
        }
    }

    async fn list_prompts(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>())
    }

    async fn complete(
        &self,
        _request: CompleteRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let membership = self.hub.session(context.peer);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(membership);
    }

    fn accepted_subscription_filter(
        &self,
        wanted: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(wanted.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let _membership = self.hub.stream(context.sink().clone());
        context.cancelled().await;
        Ok(())
    }
}

/// The MCP endpoint for a router: the service itself, to be put behind authentication.
pub(crate) fn service(
    house: House,
    ending: &CancellationToken,
) -> StreamableHttpService<McpDoor, LocalSessionManager> {
    let hub = Hub::default();
    tokio::spawn(hub.clone().follow(Arc::clone(&house.catalogue)));
    let config = StreamableHttpServerConfig::default()
        .with_max_request_body_bytes(BODY_BYTES_MAX * 2)
        .with_sse_keep_alive(Some(Duration::from_secs(15)))
        .with_sse_retry(None)
        .with_cancellation_token(ending.child_token());
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(Duration::from_secs(3_600));
    let door = move || Ok(McpDoor::new(house.clone(), hub.clone(), None));
    StreamableHttpService::new(door, Arc::new(sessions), config)
}

/// Carries calls through the SDK, and makes the caller known where headers are checked.
pub(crate) async fn carry_calls(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned();
    let mut message = None;
    let request = if request.method() == Method::POST {
        let (mut parts, body) = request.into_parts();
        let bytes = match read_json(&parts.headers, body).await {
            Ok(bytes) => bytes,
            Err(problem) => return problem.into_response(),
        };
        let body = match wire::carry(&bytes) {
            Some(carried) => {
                parts.headers.remove(http::header::CONTENT_LENGTH);
                // A call may run for long, and needs no second copy of its arguments.
                message = Some(Bytes::from_static(b"{}"));
                Body::from(carried)
            }
            None => {
                message = Some(bytes.clone());
                Body::from(bytes)
            }
        };
        Request::from_parts(parts, body)
    } else {
        request
    };
    let response = match caller {
        Some(caller) => CALLER.scope(caller, next.run(request)).await,
        None => next.run(request).await,
    };
    match message {
        // The type was checked above, so that the SDK means the message itself.
        Some(message) if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            (StatusCode::BAD_REQUEST, Json(wire::unreadable(&message))).into_response()
        }
        _ => response,
    }
}

/// Which caller made which session: one caller's session is never another's.
#[derive(Clone, Default)]
pub(crate) struct SessionOwners(Arc<Mutex<std::collections::HashMap<String, Caller>>>);

/// Most sessions that are remembered; the SDK forgets idle ones by itself.
const SESSIONS_MAX: usize = 10_000;

/// Binds sessions of the legacy era to the caller that made them.
pub(crate) async fn bind_sessions(
    State(owners): State<SessionOwners>,
    request: Request,
    next: Next,
) -> Response {
    const SESSION: &str = "mcp-session-id";
    let lock = || owners.0.lock().unwrap_or_else(PoisonError::into_inner);
    let caller = request.extensions().get::<Caller>().cloned();
    let session =
        request.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let ends = request.method() == Method::DELETE;
    // A session that nobody is known to have made is nobody's; its client begins anew.
    if let Some(session) = &session
        && lock().get(session) != caller.as_ref()
    {
        let title = "there is no such session".to_owned();
        return Problem::new(404, "not-found", title).into_response();
    }
    let response = next.run(request).await;
    let fresh = response.headers().get(SESSION).and_then(|value| value.to_str().ok());
    match (session, fresh, caller) {
        (None, Some(fresh), Some(caller)) => {
            let mut owners = lock();
            if owners.len() >= SESSIONS_MAX
                && let Some(one) = owners.keys().next().cloned()
            {
                owners.remove(&one);
            }
            owners.insert(fresh.to_owned(), caller);
        }
        (Some(session), ..)
            if (ends && response.status().is_success())
                || response.status() == StatusCode::NOT_FOUND =>
        {
            lock().remove(&session);
        }
        _ => (),
    }
    response
}
