//! Upstream MCP servers, as child processes or over HTTP, in both eras of the protocol.
//!
//! One connection per server, multiplexed over many calls, opened when it is first needed and
//! again after it was lost. Results pass as they came.
//!
//! Path: 3, 7. Doc: execution.md#mcp-servers

mod callers;
mod connection;
mod http;
mod stdio;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rmcp::model::{ErrorCode as RpcCode, RequestId};
use rmcp::service::ServiceError;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbooth_contracts::contract::ToolContract;
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::port::{
    DiscoveredTool, ExecutionError, Listing, SourceError, ToolSource, Upstream, UpstreamError,
};
use toolbooth_contracts::sandbox::SandboxProfile;
use toolbooth_contracts::{
    ContentBlock, Conversation, Dispatch, Effect, ErrorCode, Executor, Outcome, ToolOutput, Witness,
};

use callers::CallerLinks;
pub use callers::{CallerSettings, Credentials};
use connection::Link;

use crate::launcher::Launcher;
use crate::process::CommandLine;
use crate::sandbox;
use crate::secrets::Setting;

/// Pages of a listing; a server whose cursor never ends is cut off there.
const PAGES_MAX: usize = 1_000;

/// Tools of one server.
const TOOLS_MAX: usize = 20_000;

/// Bytes of the texts that one server may list.
const LISTING_BYTES_MAX: usize = 32 << 20;

/// About how many bytes a document has.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| size(item) + 1).sum(),
        Value::Object(members) => members.iter().map(|(key, own)| key.len() + size(own) + 2).sum(),
        _ => 8,
    }
}

/// A server that is a child process.
#[derive(Debug, Clone)]
pub struct Child {
    /// The command.
    pub line: CommandLine,
    /// How it is contained; `None` = it runs as the gateway does.
    pub profile: Option<SandboxProfile>,
}

/// How a server is reached.
#[derive(Debug, Clone)]
pub enum Reach {
    /// A child process that speaks over its standard input and output.
    Stdio(Box<Child>),
    /// Streamable HTTP.
    Http {
        /// The URL of the endpoint.
        url: Setting,
        /// Headers, credentials included.
        headers: Vec<(String, Setting)>,
    },
}

/// A configured server.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The name in configuration.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
    /// How long connecting may take.
    pub startup_timeout: Duration,
    /// Whether each caller has a connection of its own.
    pub callers: Option<CallerSettings>,
}

/// A server: a source of tools, an executor, and what else it offers.
pub struct McpServer {
    id: String,
    link: Arc<Link>,
    callers: Option<CallerLinks>,
}

impl McpServer {
    /// A server that is not connected yet; ways out that it is refused are noted with `refusals`.
    #[must_use]
    pub fn new(settings: ServerSettings, launcher: Launcher, refusals: Witness) -> Arc<Self> {
        let id = format!("mcp:{}", settings.name);
        let callers = settings.callers.clone().map(CallerLinks::new);
        Arc::new(Self { id, link: Arc::new(Link::new(settings, launcher, refusals)), callers })
    }

    async fn ask(&self, method: &str, params: Value) -> Result<Value, UpstreamError> {
        let unreachable = |error: String| UpstreamError::Unreachable(error);
        let connection = self.link.connection().await.map_err(unreachable)?;
        let timeout = self.link.settings().startup_timeout;
        match connection.request(method, params, Map::new(), timeout).await {
            Ok(result) => Ok(result),
            Err(failure) => Err(match failure.error {
                ServiceError::McpError(error) => UpstreamError::Refused {
                    code: error.code.0.into(),
                    message: self.link.conceal(&error.message),
                },
                other => UpstreamError::Unreachable(self.link.conceal(&other.to_string())),
            }),
        }
    }
}

#[async_trait]
impl ToolSource for McpServer {
    fn name(&self) -> &str {
        &self.id
    }

    fn timeout(&self) -> Duration {
        // Connecting and listing each have the server's own.
        self.link.settings().startup_timeout * 2 + Duration::from_secs(1)
    }

    async fn list(&self) -> Result<Listing, SourceError> {
        let mut listing = Listing::default();
        let mut bytes = 0usize;
        let mut cursor: Option<String> = None;
        let mut seen = std::collections::HashSet::new();
        for _ in 0..PAGES_MAX {
            let params =
                cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let page = self
                .ask("tools/list", params)
                .await
                .map_err(|error| SourceError(error.to_string()))?;
            let tools = page
                .get("tools")
                .and_then(Value::as_array)
                .ok_or_else(|| SourceError("the server listed no tools".to_owned()))?;
            if listing.tools.len() + tools.len() > TOOLS_MAX {
                return Err(SourceError(format!("the server lists more than {TOOLS_MAX} tools")));
            }
            bytes += tools.iter().map(size).sum::<usize>();
            if bytes > LISTING_BYTES_MAX {
                let message = format!("the server lists more than {LISTING_BYTES_MAX} bytes");
                return Err(SourceError(message));
            }
            for tool in tools {
                match discovered(tool) {
                    Some(tool) => listing.tools.push(tool),
                    None => listing.problems.push("an item of the list has no `name`".to_owned()),
                }
            }
            match page.get("nextCursor").and_then(Value::as_str) {
                Some(next) if !seen.insert(next.to_owned()) => {
                    return Err(SourceError("the server's cursor goes in a circle".to_owned()));
                }
                Some(next) => cursor = Some(next.to_owned()),
                None => return Ok(listing),
            }
        }
        Err(SourceError(format!("the server lists more than {PAGES_MAX} pages")))
    }

    fn changes(&self) -> Option<async_channel::Receiver<()>> {
        self.link.changes()
    }
}

fn discovered(tool: &Value) -> Option<DiscoveredTool> {
    let text = |name: &str| tool.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(DiscoveredTool {
        name: text("name").filter(|name| !name.trim().is_empty())?,
        title: text("title"),
        description: text("description"),
        input_schema: tool.get("inputSchema").cloned().unwrap_or_else(|| json!({})),
        output_schema: tool.get("outputSchema").filter(|schema| !schema.is_null()).cloned(),
        annotations: tool.get("annotations").and_then(Value::as_object).cloned(),
    })
}

#[async_trait]
impl Executor for McpServer {
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome {
        let link = match &self.callers {
            Some(callers) => match callers.of(&dispatch.caller, &self.link).await {
                Ok(link) => link,
                Err(error) => return Outcome::Failed(error),
            },
            None => Arc::clone(&self.link),
        };
        let connected = tokio::select! {
            connected = link.connection() => connected,
            () = conversation.cancelled() => {
                return Outcome::Failed(cancelled(Effect::NotStarted));
            }
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(reason) => {
                let internal = format!("{}: {reason}", self.id);
                return Outcome::Failed(
                    ExecutionError::adapter(Effect::NotStarted, internal)
                        .with_safe("the tool's server cannot be reached"),
                );
            }
        };
        if let Some(sandbox) = connection.sandbox() {
            dispatch.witness.contained(sandbox);
        }
        let arguments: Value = match serde_json::from_str(dispatch.arguments.get()) {
            Ok(arguments) => arguments,
            Err(error) => {
                return Outcome::Failed(ExecutionError::adapter(
                    Effect::NotStarted,
                    error.to_string(),
                ));
            }
        };
        let params = json!({ "name": dispatch.target(), "arguments": arguments });
        let mut meta = Map::new();
        if let Some(key) = &dispatch.idempotency_key {
            meta.insert("toolbooth/idempotencyKey".to_owned(), json!(key));
        }
        // The proxy cuts at the tool's time; this one only keeps a lost answer from waiting for ever.
        let timeout = dispatch.timeout + Duration::from_secs(5);
        let printed = connection.printed();
        let called = connection.call(params, meta, timeout, &conversation).await;
        match called {
            Ok(Some(mut result)) => {
                // What the server was given in confidence it must not tell anybody.
                connection.secrets().conceal(&mut result);
                if result.get("isError") == Some(&Value::Bool(true)) {
                    let answer = result.get("content").map(texts).unwrap_or_default();
                    connection.explain(&answer, printed, &dispatch.witness);
                }
                Outcome::Done(output(result))
            }
            Ok(None) => Outcome::Failed(cancelled(Effect::Unknown)),
            Err(failure) => {
                connection.explain("", printed, &dispatch.witness);
                Outcome::Failed(self.failed(failure, &link))
            }
        }
    }

    async fn readiness(&self, _contract: &ToolContract, probe: bool) -> Readiness {
        if !probe {
            return match &self.link.settings().reach {
                Reach::Stdio(child) => child.line.readiness(),
                Reach::Http { url, headers } => {
                    let mut settings =
                        std::iter::once(url).chain(headers.iter().map(|(_, value)| value));
                    let missing = settings.find_map(|setting| setting.resolve().err());
                    missing.map_or(Readiness::Ready, |error| {
                        Readiness::NotConfigured(error.to_string())
                    })
                }
            };
        }
        match self.link.connection().await {
            Ok(_) => Readiness::Ready,
            Err(reason) => Readiness::Unhealthy(reason),
        }
    }

    fn contains(&self, _contract: &ToolContract, profile: &SandboxProfile) -> Result<(), String> {
        let Reach::Stdio(child) = &self.link.settings().reach else {
            return Err("its server is not on this machine".to_owned());
        };
        let more = sandbox::exceeds(child.profile.as_ref(), profile);
        if more.is_empty() {
            return Ok(());
        }
        Err(format!("its server has more than the contract grants: {}", more.join("; ")))
    }

    async fn close(&self) {
        if let Some(callers) = &self.callers {
            callers.close().await;
        }
        self.link.close().await;
    }
}

/// A request that was not answered.
#[derive(Debug)]
struct Failure {
    error: ServiceError,
    /// Whether the request may have reached the server.
    sent: bool,
    stderr: String,
}

impl McpServer {
    fn failed(&self, failure: Failure, link: &Link) -> ExecutionError {
        let Failure { error, sent, stderr } = failure;
        let mut internal = format!("{}: {error}", self.id);
        if !stderr.trim().is_empty() {
            internal = format!("{internal}\nstderr: {stderr}");
        }
        let internal = link.conceal(&internal);
        match error {
            // The server answered: it did not run the tool, or it says that the tool failed.
            ServiceError::McpError(error) => {
                let refused = error.code == RpcCode::INVALID_PARAMS
                    || error.code == RpcCode::METHOD_NOT_FOUND
                    || error.code == RpcCode::INVALID_REQUEST;
                let unstarted = refused || !sent;
                let effect = if unstarted { Effect::NotStarted } else { Effect::Unknown };
                ExecutionError::adapter(effect, internal)
                    .with_safe("the tool's server refused the call")
            }
            ServiceError::Timeout { .. } => ExecutionError {
                code: ErrorCode::Timeout,
                effect: Effect::Unknown,
                safe: None,
                internal,
            },
            _ => {
                let effect = if sent { Effect::Unknown } else { Effect::NotStarted };
                ExecutionError::adapter(effect, internal)
            }
        }
    }
}

/// The text of content blocks.
fn texts(content: &Value) -> String {
    let blocks = content.as_array().into_iter().flatten();
    let texts: Vec<&str> =
        blocks.filter_map(|block| block.get("text").and_then(Value::as_str)).collect();
    texts.join("\n")
}

fn cancelled(effect: Effect) -> ExecutionError {
    ExecutionError {
        code: ErrorCode::Cancelled,
        effect,
        safe: None,
        internal: "the call was told to stop".to_owned(),
    }
}

/// The server's result, as it came.
fn output(result: Value) -> ToolOutput {
    let Value::Object(mut members) = result else { return ToolOutput::default() };
    let content = match members.shift_remove("content") {
        Some(Value::Array(blocks)) => Some(blocks.into_iter().map(ContentBlock).collect()),
        // Not a list: stage 8 says so.
        Some(other) => Some(vec![ContentBlock(other)]),
        None => None,
    };
    ToolOutput {
        tool_id: None,
        content,
        structured_content: members
            .shift_remove("structuredContent")
            .filter(|value| !value.is_null()),
        is_error: members.get("isError") == Some(&Value::Bool(true)),
        meta: match members.shift_remove("_meta") {
            Some(Value::Object(meta)) => Some(
                // What the protocol says of itself belongs to this connection alone.
                meta.into_iter()
                    .filter(|(key, _)| !key.starts_with("io.modelcontextprotocol/"))
                    .collect(),
            ),
            _ => None,
        }
        .filter(|meta: &Map<String, Value>| !meta.is_empty()),
        internal: None,
    }
}

#[async_trait]
impl Upstream for McpServer {
    fn name(&self) -> &str {
        &self.link.settings().name
    }

    async fn list_resources(&self, cursor: Option<String>) -> Result<Value, UpstreamError> {
        self.ask("resources/list", page(cursor)).await
    }

    async fn list_resource_templates(
        &self,
        cursor: Option<String>,
    ) -> Result<Value, UpstreamError> {
        self.ask("resources/templates/list", page(cursor)).await
    }

    async fn read_resource(&self, uri: String) -> Result<Value, UpstreamError> {
        self.ask("resources/read", json!({ "uri": uri })).await
    }

    async fn list_prompts(&self, cursor: Option<String>) -> Result<Value, UpstreamError> {
        self.ask("prompts/list", page(cursor)).await
    }

    async fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
    ) -> Result<Value, UpstreamError> {
        self.ask("prompts/get", json!({ "name": name, "arguments": arguments })).await
    }

    async fn complete(&self, request: Value) -> Result<Value, UpstreamError> {
        self.ask("completion/complete", request).await
    }

    async fn subscribe(&self, uri: String) -> Result<(), UpstreamError> {
        self.ask("resources/subscribe", json!({ "uri": uri })).await.map(drop)
    }

    async fn unsubscribe(&self, uri: String) -> Result<(), UpstreamError> {
        self.ask("resources/unsubscribe", json!({ "uri": uri })).await.map(drop)
    }
}

fn page(cursor: Option<String>) -> Value {
    cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }))
}

/// The id of a request, for telling whether it was sent.
type Sent = std::collections::HashSet<RequestId>;

/// The id and the result of a message, where it is an answer.
fn answer(message: &[u8]) -> serde_json::Result<Option<(RequestId, &RawValue)>> {
    #[derive(Deserialize)]
    struct Shallow<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
        method: Option<&'a RawValue>,
        result: Option<&'a RawValue>,
    }
    let shallow: Shallow<'_> = serde_json::from_slice(message)?;
    match (shallow.id, shallow.method, shallow.result) {
        (Some(id), None, Some(result)) => Ok(Some((serde_json::from_str(id.get())?, result))),
        _ => Ok(None),
    }
}
