//! The ports that outsiders implement: ways to reach a tool, sources of tools, declaration formats.
//!
//! Path: 7. Doc: execution.md#executors

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::arguments::GuardedArguments;
use crate::call::Caller;
use crate::code::{Effect, ErrorCode};
use crate::contract::ToolContract;
use crate::conversation::Conversation;
use crate::coverage::Readiness;
use crate::declaration::{Declaration, RenderedDeclarations};
use crate::execution_log::ExecutionLog;
use crate::id::CallId;
use crate::json::{JsonFault, JsonText};
use crate::payload::Payload;
pub use crate::upstream::{Ask, CompletionReference, Notice, Upstream, UpstreamError};

/// What an executor is handed: one call that has been guarded, authorized and claimed.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// The tool.
    pub contract: Arc<ToolContract>,
    /// The arguments that were guarded and judged; only a guard makes them.
    pub arguments: GuardedArguments,
    /// The call.
    pub call_id: CallId,
    /// Who called; for credentials that are the caller's own.
    pub caller: Caller,
    /// The tool set within which the caller came; `None` = everything that it may see.
    pub toolset: Option<Arc<str>>,
    /// The longest that the tool has; the proxy cuts it off then in any case, and a tool that tells
    /// no progress earlier.
    pub timeout: Duration,
    /// The key that travels with the call, equal on every attempt.
    pub idempotency_key: Option<String>,
    /// Which dispatch of the claim this is, from 1.
    pub attempt: u32,
    /// Where the executor notes what belongs in the records, whatever the outcome.
    pub execution_log: ExecutionLog,
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
    /// The answer.
    pub payload: Payload,
    /// Whether the tool calls its answer an error.
    pub is_error: bool,
    /// Why the answer cannot be passed on, where it cannot: it does not pass the gate.
    pub fault: Option<String>,
    /// What operators should know, such as the tool's diagnostics.
    pub internal: Option<String>,
}

impl ToolOutput {
    /// An answer.
    #[must_use]
    pub fn new(payload: Payload) -> Self {
        Self { payload, ..Self::default() }
    }

    /// An answer of one text block.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::new(Payload::text(text))
    }

    /// An answer of data, and of the same data as text for callers that read text only.
    #[must_use]
    pub fn data(data: &Value) -> Self {
        Self::of(JsonText::of(data).map(Payload::data))
    }

    /// An answer of data beside a text that says it otherwise.
    #[must_use]
    pub fn text_and_data(text: impl AsRef<str>, data: &Value) -> Self {
        Self::of(
            JsonText::of(data)
                .map(|data| Payload { structured_content: Some(data), ..Payload::text(text) }),
        )
    }

    /// An answer, or one that cannot be passed on.
    #[must_use]
    pub fn of(payload: Result<Payload, JsonFault>) -> Self {
        let told =
            |fault: JsonFault| format!("the result at {}: {}", fault.pointer(), fault.message);
        payload.map_or_else(|fault| Self::unfit(told(fault)), Self::new)
    }

    /// An answer that cannot be passed on.
    #[must_use]
    pub fn unfit(fault: impl Into<String>) -> Self {
        Self { fault: Some(fault.into()), ..Self::default() }
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

/// Why the sandbox profile of a contract does not hold for what an executor runs; for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxMismatch {
    /// The executor contains nothing.
    #[error("this way to reach a tool has no sandbox")]
    NoSandbox,
    /// What it runs is on another machine.
    #[error("its server is not on this machine")]
    Elsewhere,
    /// What it runs is not there.
    #[error("{0}")]
    Missing(String),
    /// What it runs is granted more than the contract grants.
    #[error("its {what} has more than the contract grants: {}", more.join("; "))]
    Wider {
        /// What runs: a server, a handler.
        what: &'static str,
        /// What it has more.
        more: Vec<String>,
    },
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
    /// [`SandboxMismatch`]: why it does not. Where the profile is required, the tool is not run then.
    fn satisfies_sandbox(
        &self,
        _contract: &ToolContract,
        _profile: &crate::sandbox::SandboxProfile,
    ) -> Result<(), SandboxMismatch> {
        Err(SandboxMismatch::NoSandbox)
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
    /// Everything else that the source lists of it: icons, metadata, how it is executed.
    pub extra: Map<String, Value>,
}

/// What a source lists beside tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemKind {
    /// A prompt, known by its name.
    Prompt,
    /// A resource, known by its URI.
    Resource,
    /// A resource template, known by its URI template (RFC 6570).
    Template,
}

impl ItemKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Prompt, Self::Resource, Self::Template];

    /// The kind as records and commands write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "template",
        }
    }

    /// The member of an item's document that holds its key.
    #[must_use]
    pub fn key_member(self) -> &'static str {
        match self {
            Self::Prompt => "name",
            Self::Resource => "uri",
            Self::Template => "uriTemplate",
        }
    }
}

impl std::fmt::Display for ItemKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A prompt, a resource or a resource template, as its source lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoveredItem {
    /// What it is known by over there: a prompt's name, a resource's URI, a template's URI template.
    pub key: String,
    /// The whole item.
    pub document: Map<String, Value>,
}

/// What a source can do beside tools, as it declares it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offers {
    /// It has prompts.
    pub prompts: bool,
    /// It has resources.
    pub resources: bool,
    /// It tells when a resource changes.
    pub subscribe: bool,
    /// It completes arguments.
    pub completions: bool,
    /// It sends log lines.
    pub logging: bool,
}

/// What a source lists: tools and the rest, and what is wrong with the items that are none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The tools.
    pub tools: Vec<DiscoveredTool>,
    /// The prompts.
    pub prompts: Vec<DiscoveredItem>,
    /// The resources.
    pub resources: Vec<DiscoveredItem>,
    /// The resource templates.
    pub templates: Vec<DiscoveredItem>,
    /// What else the source can do.
    pub offers: Offers,
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

/// Renders declarations for one provider.
pub trait DeclarationFormat: Send + Sync {
    /// The word by which people choose the format.
    fn name(&self) -> &str;
    /// Renders all declarations as one document.
    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations;
}
