//! The ports that outsiders implement: ways to reach a tool, sources of tools, declaration formats.
//!
//! Path: 7. Doc: execution.md#executors

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::call::Caller;
use crate::code::{Effect, ErrorCode};
use crate::contract::ToolContract;
use crate::conversation::Conversation;
use crate::coverage::Readiness;
use crate::declaration::{Declaration, RenderedDeclarations};
use crate::id::CallId;
use crate::result::ContentBlock;
use crate::witness::Witness;

/// What an executor is handed: one call that has been guarded, authorized and claimed.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// The tool.
    pub contract: Arc<ToolContract>,
    /// The guarded argument bytes, an object, to be sent as they are.
    pub arguments: Arc<RawValue>,
    /// The call.
    pub call_id: CallId,
    /// Who called; for credentials that are the caller's own.
    pub caller: Caller,
    /// How long the tool has; the proxy cuts it off after that in any case.
    pub timeout: Duration,
    /// The key that travels with the call, equal on every attempt.
    pub idempotency_key: Option<String>,
    /// Which dispatch of the claim this is, from 1.
    pub attempt: u32,
    /// Where the executor notes what belongs in the records, whatever the outcome.
    pub witness: Witness,
}

impl Dispatch {
    /// The tool's name at its target.
    #[must_use]
    pub fn target(&self) -> &str {
        let target = self.contract.execution.target.as_deref();
        target.unwrap_or_else(|| self.contract.tool_id.as_str())
    }
}

/// What an executor gives back.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The tool ran to its end; it may have answered an error.
    Done(ToolOutput),
    /// The tool did not run to its end.
    Failed(ExecutionError),
    /// The tool cannot go on without somebody's input.
    NeedsInput(InputNeeded),
}

/// What a tool answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolOutput {
    /// Which tool answered, where the answer says so.
    pub tool_id: Option<String>,
    /// The content blocks; `None` where the answer had none at all.
    pub content: Option<Vec<ContentBlock>>,
    /// The structured content.
    pub structured_content: Option<Value>,
    /// Whether the tool calls its answer an error.
    pub is_error: bool,
    /// Metadata of the answer.
    pub meta: Option<Map<String, Value>>,
    /// What operators should know, such as the tool's diagnostics.
    pub internal: Option<String>,
}

impl ToolOutput {
    /// An answer of one text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Some(vec![ContentBlock::text(text)]), ..Self::default() }
    }

    /// An answer of data, and of the same data as text for callers that read text only.
    #[must_use]
    pub fn data(data: Value) -> Self {
        Self { structured_content: Some(data.clone()), ..Self::text(data.to_string()) }
    }

    /// The same answer, called an error.
    #[must_use]
    pub fn into_error(self) -> Self {
        Self { is_error: true, ..self }
    }
}

/// Why a tool did not run to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionError {
    /// One of the codes of stage 7.
    pub code: ErrorCode,
    /// What is known about the effect.
    pub effect: Effect,
    /// What the agent may see; `None` = the code's own sentence.
    pub safe: Option<String>,
    /// The full cause, for operators.
    pub internal: String,
}

impl ExecutionError {
    /// The target's process, connection or server failed.
    #[must_use]
    pub fn adapter(effect: Effect, internal: impl Into<String>) -> Self {
        Self { code: ErrorCode::AdapterFailed, effect, safe: None, internal: internal.into() }
    }

    /// A setting is missing; the sentence says which, to agent and operator alike.
    #[must_use]
    pub fn not_configured(sentence: impl Into<String>) -> Self {
        let sentence = sentence.into();
        Self {
            code: ErrorCode::NotConfigured,
            effect: Effect::NotStarted,
            safe: Some(sentence.clone()),
            internal: sentence,
        }
    }

    /// The same error with a sentence that the agent may see.
    #[must_use]
    pub fn with_safe(self, safe: impl Into<String>) -> Self {
        Self { safe: Some(safe.into()), ..self }
    }
}

/// What a tool that cannot go on asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct InputNeeded {
    /// The requests, opaque.
    pub requests: Value,
    /// The target's own state, opaque; never shown to the agent unprotected.
    pub state: Option<String>,
}

/// A way to reach a tool. It never retries, never decides and never writes records.
///
/// An executor may be dropped in the middle of `execute` only when the gateway itself ends;
/// otherwise it is told by [`Conversation::cancelled`].
#[async_trait]
pub trait Executor: Send + Sync {
    /// Runs one call.
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome;

    /// Whether this executor could run the tool now; `probe` allows it to connect.
    async fn readiness(&self, contract: &ToolContract, probe: bool) -> Readiness;

    /// Whether the profile of a contract holds for what this executor runs.
    ///
    /// # Errors
    /// A sentence for operators: why it does not. Where the profile is required, the tool is not
    /// run then.
    fn contains(
        &self,
        _contract: &ToolContract,
        _profile: &crate::sandbox::SandboxProfile,
    ) -> Result<(), String> {
        Err("this way to reach a tool has no sandbox".to_owned())
    }

    /// Ends what the executor holds open: processes, connections, workers.
    async fn close(&self) {}
}

/// A tool as its source describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoveredTool {
    /// The name over there.
    pub name: String,
    /// A short name for people.
    pub title: Option<String>,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result.
    pub output_schema: Option<Value>,
    /// The tool's own hints.
    pub annotations: Option<Map<String, Value>>,
}

/// What a source lists: tools, and what is wrong with the items that are none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The tools.
    pub tools: Vec<DiscoveredTool>,
    /// Items that were left out, each with the reason.
    pub problems: Vec<String>,
}

/// Why a source could not list its tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

/// Lists the tools of one source, and tells when they change.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// The source, `command:NAME` or `mcp:NAME`.
    fn name(&self) -> &str;

    /// How long listing may take.
    fn timeout(&self) -> Duration;

    /// Lists all tools, all pages.
    ///
    /// # Errors
    /// Where the source does not answer, or not in its form.
    async fn list(&self) -> Result<Listing, SourceError>;

    /// Gives something whenever the tools may have changed; `None` for sources that cannot tell.
    fn changes(&self) -> Option<async_channel::Receiver<()>>;
}

/// What an upstream server offers beside tools. Requests and answers are opaque documents of the
/// protocol that the server speaks.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// The server.
    fn name(&self) -> &str;
    /// One page of resources.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn list_resources(&self, cursor: Option<String>) -> Result<Value, UpstreamError>;
    /// One page of resource templates.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn list_resource_templates(&self, cursor: Option<String>)
    -> Result<Value, UpstreamError>;
    /// Reads a resource.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn read_resource(&self, uri: String) -> Result<Value, UpstreamError>;
    /// One page of prompts.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn list_prompts(&self, cursor: Option<String>) -> Result<Value, UpstreamError>;
    /// Fetches a prompt.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn get_prompt(
        &self,
        name: String,
        arguments: Map<String, Value>,
    ) -> Result<Value, UpstreamError>;
    /// Completes an argument.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn complete(&self, request: Value) -> Result<Value, UpstreamError>;
    /// Starts to tell when a resource changes.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn subscribe(&self, uri: String) -> Result<(), UpstreamError>;
    /// Stops telling.
    ///
    /// # Errors
    /// Where the server does not answer or refuses.
    async fn unsubscribe(&self, uri: String) -> Result<(), UpstreamError>;
}

/// Why an upstream server did not serve a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UpstreamError {
    /// The server cannot be reached.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// The server refused, with its own code.
    #[error("the server refused with code {code}: {message}")]
    Refused {
        /// The protocol's error code.
        code: i64,
        /// The server's sentence.
        message: String,
    },
}

/// Renders declarations for one provider.
pub trait DeclarationFormat: Send + Sync {
    /// The word by which people choose the format.
    fn name(&self) -> &str;
    /// Renders all declarations as one document.
    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations;
}
