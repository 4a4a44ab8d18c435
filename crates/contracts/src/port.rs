//! The ports that external code implements: executors, sources of tools, declaration formats.
//!
//! Path: 7. Doc: execution.md#executors

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::arguments::GuardedArguments;
use crate::caller::Caller;
use crate::code::{Effect, ErrorCode};
use crate::contract::ToolContract;
use crate::conversation::Conversation;
use crate::coverage::Readiness;
use crate::declaration::{Declaration, RenderedDeclarations};
use crate::error::{SandboxMismatch, SourceError};
use crate::execution_log::ExecutionLog;
use crate::id::CallId;
use crate::json::{JsonFault, JsonText};
use crate::payload::Payload;
pub use crate::upstream::{Ask, CompletionReference, Notice, Upstream};

/// The input of an executor: one call that has been guarded, authorized and claimed. Its arguments cannot be made from text
/// or a value outside of a guard.
///
/// ```
/// use toolbooth_contracts::Dispatch;
///
/// fn again(dispatch: &Dispatch) -> Dispatch {
///     Dispatch { arguments: dispatch.arguments.clone(), ..dispatch.clone() }
/// }
/// ```
///
/// ```compile_fail
/// use toolbooth_contracts::Dispatch;
///
/// fn forged(dispatch: &Dispatch) -> Dispatch {
///     Dispatch { arguments: serde_json::json!({}), ..dispatch.clone() }
/// }
/// ```
///
/// ```compile_fail
/// use toolbooth_contracts::Dispatch;
///
/// fn forged(dispatch: &Dispatch) -> Dispatch {
///     Dispatch { arguments: "{}".to_owned().into(), ..dispatch.clone() }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// The tool.
    pub contract: Arc<ToolContract>,
    /// The guarded and judged arguments; only a guard creates them.
    pub arguments: GuardedArguments,
    /// The call.
    pub call_id: CallId,
    /// The caller, for its own credentials.
    pub caller: Caller,
    /// The tool set of the caller's front door; `None` = everything that the caller may see.
    pub toolset: Option<Arc<str>>,
    /// Maximum duration of the execution. The proxy answers then in any case, after it has cancelled the conversation
    /// and waited for a short time, and drops the future of the executor. Work that goes on elsewhere, such as in a
    /// blocking thread, is not ended by that, and is counted no longer. A tool of an MCP server has until then only if it
    /// reports progress.
    pub timeout: Duration,
    /// The idempotency key that is sent with the call, equal on every attempt.
    pub idempotency_key: Option<String>,
    /// The number of this dispatch of the claim, from 1.
    pub attempt: u32,
    /// The log for observations that are recorded for every outcome.
    pub execution_log: ExecutionLog,
}

impl Dispatch {
    /// Returns the tool's name at its target.
    #[must_use]
    pub fn target(&self) -> &str {
        let target = self.contract.execution.target.as_deref();
        target.unwrap_or_else(|| self.contract.tool_id.as_str())
    }
}

/// The outcome of an execution.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The tool ran to its end; it may have returned an error.
    Done(ToolOutput),
    /// The tool did not run to its end.
    Failed(ExecutionError),
    /// The tool cannot continue without input.
    NeedsInput(InputNeeded),
}

/// The output of a tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolOutput {
    /// The tool that the result specifies as its origin, if any.
    pub tool_id: Option<String>,
    /// The result.
    pub payload: Payload,
    /// Whether the tool marks its result as an error.
    pub is_error: bool,
    /// The reason why the result cannot be passed on: it does not pass the gate. `None` if it does.
    pub fault: Option<String>,
    /// Information for operators, such as the tool's diagnostics.
    pub internal: Option<String>,
}

impl ToolOutput {
    /// Creates an output of a payload.
    #[must_use]
    pub fn new(payload: Payload) -> Self {
        Self { payload, ..Self::default() }
    }

    /// Creates an output of one text block.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::new(Payload::text(text))
    }

    /// Creates an output of data, and of the same data as text for callers that read text only.
    #[must_use]
    pub fn data(data: &Value) -> Self {
        Self::of(JsonText::of(data).map(Payload::data))
    }

    /// Creates an output of data, and of a different text for the same content.
    #[must_use]
    pub fn text_and_data(text: impl AsRef<str>, data: &Value) -> Self {
        Self::of(
            JsonText::of(data)
                .map(|data| Payload { structured_content: Some(data), ..Payload::text(text) }),
        )
    }

    /// Creates an output of a payload, or one that cannot be passed on.
    #[must_use]
    pub fn of(payload: Result<Payload, JsonFault>) -> Self {
        let told =
            |fault: JsonFault| format!("the result at {}: {}", fault.pointer(), fault.message);
        payload.map_or_else(|fault| Self::unfit(told(fault)), Self::new)
    }

    /// Creates an output that cannot be passed on.
    #[must_use]
    pub fn unfit(fault: impl Into<String>) -> Self {
        Self { fault: Some(fault.into()), ..Self::default() }
    }

    /// Returns the same output, marked as an error.
    #[must_use]
    pub fn into_error(self) -> Self {
        Self { is_error: true, ..self }
    }
}

/// The reason why a tool did not run to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionError {
    /// One of the codes of stage 7.
    pub code: ErrorCode,
    /// The known effect.
    pub effect: Effect,
    /// The sentence that the agent may see; `None` = the code's own sentence.
    pub safe: Option<String>,
    /// The full cause, for operators.
    pub internal: String,
}

impl ExecutionError {
    /// Creates the error of a failed process, connection or server of the target.
    #[must_use]
    pub fn adapter(effect: Effect, internal: impl Into<String>) -> Self {
        Self { code: ErrorCode::AdapterFailed, effect, safe: None, internal: internal.into() }
    }

    /// Creates the error of a missing setting. Agent and operator both see the sentence, which names it.
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

    /// Returns the same error with a sentence that the agent may see.
    #[must_use]
    pub fn with_safe(self, safe: impl Into<String>) -> Self {
        Self { safe: Some(safe.into()), ..self }
    }
}

/// The input that a tool needs to continue.
#[derive(Debug, Clone, PartialEq)]
pub struct InputNeeded {
    /// The requests, opaque.
    pub requests: Value,
    /// The target's own state, opaque; never shown to the agent unprotected.
    pub state: Option<String>,
}

/// An executor of tool calls. It never retries, makes no decisions and writes no records.
///
/// An executor may be dropped in the middle of `execute` only when the gateway itself ends. Otherwise,
/// [`Conversation::cancelled`] tells it to stop.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Runs one call.
    async fn execute(&self, dispatch: Dispatch, conversation: Conversation) -> Outcome;

    /// Whether this executor could run the tool now; `probe` allows it to connect. The answer for one tool of an MCP
    /// server holds for all of them.
    async fn readiness(&self, contract: &ToolContract, probe: bool) -> Readiness;

    /// Checks that this executor satisfies the sandbox profile of a contract.
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

    /// Whether `execute` may block the thread that polls it, as functions of the host program may. If not,
    /// it is polled together with its time limit.
    fn may_block(&self) -> bool {
        true
    }

    /// Closes the executor's processes, connections and workers.
    async fn close(&self) {}
}

/// A tool as its source describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoveredTool {
    /// The name at the source.
    pub name: String,
    /// A short display name.
    pub title: Option<String>,
    /// The description.
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the structured result.
    pub output_schema: Option<Value>,
    /// The tool's own hints.
    pub annotations: Option<Map<String, Value>>,
    /// All other members that the source lists for the tool: icons, metadata, execution.
    pub extra: Map<String, Value>,
}

/// The kind of an item that a source lists in addition to tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ItemKind {
    /// A prompt, identified by its name.
    Prompt,
    /// A resource, identified by its URI.
    Resource,
    /// A resource template, identified by its URI template (RFC 6570).
    Template,
}

impl ItemKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Prompt, Self::Resource, Self::Template];

    /// Returns the kind as records and commands write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "template",
        }
    }

    /// Returns the member of an item's document that contains its key.
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
    /// The key at the source: a prompt's name, a resource's URI, a template's URI template.
    pub key: String,
    /// The whole item.
    pub document: Map<String, Value>,
}

/// Capabilities of a source in addition to tools, as it declares them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offers {
    /// It has prompts.
    pub prompts: bool,
    /// It has resources.
    pub resources: bool,
    /// It notifies about changes of resources.
    pub subscribe: bool,
    /// It completes arguments.
    pub completions: bool,
    /// It sends log lines.
    pub logging: bool,
}

/// The listing of a source: tools and items, and the reasons for those left out.
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
    /// Other capabilities of the source.
    pub offers: Offers,
    /// Entries that were left out, each with the reason.
    pub problems: Vec<String>,
}

/// A source of tools. It lists them and notifies about changes.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// Returns the source, `command:NAME` or `mcp:NAME`.
    fn name(&self) -> &str;

    /// Returns the time limit of a listing.
    fn timeout(&self) -> Duration;

    /// Lists all tools, all pages.
    ///
    /// # Errors
    /// Where the source does not answer, or not in its form.
    async fn list(&self) -> Result<Listing, SourceError>;

    /// Returns a receiver of signals that the tools may have changed; `None` if the source cannot report
    /// changes.
    fn changes(&self) -> Option<async_channel::Receiver<()>>;
}

/// A format of declarations for one provider.
pub trait DeclarationFormat: Send + Sync {
    /// Returns the name by which users select the format.
    fn name(&self) -> &str;
    /// Renders all declarations as one document.
    fn render(&self, declarations: &[Declaration]) -> RenderedDeclarations;
}
