//! The gateway's own tools: they search the tools that the caller can see, and read stored results.
//! They pass through the proxy like all tools.
//!
//! Path: 7. Doc: execution.md#the-gateways-own-tools

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use toolbooth_audit::LedgerReads;
use toolbooth_contracts::contract::{GATEWAY_RUNTIME, ToolContract};
use toolbooth_contracts::coverage::Readiness;
use toolbooth_contracts::error::UpstreamError;
use toolbooth_contracts::json::read_as;
use toolbooth_contracts::port::{Ask, ExecutionError, Notice, Upstream};
use toolbooth_contracts::{
    Caller, ContentBlock, Conversation, Dispatch, Effect, Executor, Outcome, Payload, ToolOutput,
};

use crate::catalogue::Catalogue;
use crate::large_results::{Link, RESULT_URI, ResultPart, Wanted};
use crate::view::declaration;

/// The tool that finds tools by their function.
pub const SEARCH_TOOLS: &str = "search_tools";
/// The tool that reads a result that was too large to be shown.
pub const READ_RESULT: &str = "read_result";

/// Stored texts that are searched at once.
const READING_MAX: usize = 2;
/// The protocol's error code for a resource that does not exist.
const NOT_FOUND: i64 = -32_002;
/// Tools in one response: the default if the agent sets no limit, and the maximum.
const FOUND: usize = 10;
const FOUND_MAX: usize = 50;

/// Returns the registry entries of the gateway's own tools that are enabled.
#[must_use]
pub fn own_tools(reading: bool, searching: bool) -> Vec<Value> {
    let entry = |name: &str, description: &str, input: Value| {
        json!({
            "toolId": name,
            "description": description,
            "category": "function",
            "inputSchema": input,
            "outputSchema": {},
            "capabilities": {},
            "execution": { "localRuntimeId": GATEWAY_RUNTIME },
            "policy": { "timeoutMs": 30_000, "trustLevel": "builtin", "readOnly": true },
            "idempotency": { "mode": "on-key" },
        })
    };
    let about = "Reads a result, or a part of it, that was too large to be shown whole. Give the \
                 link that stands in the shortened result.";
    let read = json!({
        "type": "object",
        "properties": {
            "result": {
                "type": "string",
                "description": format!("The link, {RESULT_URI}…, or the receipt's id"),
            },
            "offset": { "type": "integer", "minimum": 0, "description": "The first byte" },
            "length": { "type": "integer", "minimum": 1, "description": "How many bytes" },
            "line": { "type": "integer", "minimum": 1, "description": "The first line, from 1" },
            "lines": { "type": "integer", "minimum": 1, "description": "How many lines" },
            "pointer": {
                "type": "string",
                "description": "A place in a result that is JSON, such as /items/0/name",
            },
        },
        "required": ["result"],
        "additionalProperties": false,
    });
    let mut tools = Vec::new();
    if reading {
        tools.push(entry(READ_RESULT, about, read));
    }
    if searching {
        let about = "Finds tools by what they do. Gives their names, descriptions and input \
                     schemas; call one with call_tool.";
        let search = json!({
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": "What the tool should do, in a few words",
                },
                "limit": {
                    "type": "integer", "minimum": 1, "maximum": FOUND_MAX, "default": FOUND,
                },
            },
            "required": ["query"],
            "additionalProperties": false,
        });
        tools.push(entry(SEARCH_TOOLS, about, search));
    }
    tools
}

/// The executor of the gateway's own tools, and the server of stored results.
pub(crate) struct OwnTools {
    catalogue: Arc<Catalogue>,
    reads: Arc<dyn LedgerReads>,
    /// Limits how many stored texts are read, and how many searches run, at once.
    reading: Semaphore,
    /// Never contains a notice, because stored results do not change.
    notices: (async_channel::Sender<Notice>, async_channel::Receiver<Notice>),
}

impl OwnTools {
    /// Creates tools that search the callers' views of `catalogue` and read stored results from
    /// `reads`.
    pub(crate) fn new(catalogue: Arc<Catalogue>, reads: Arc<dyn LedgerReads>) -> Self {
        let notices = async_channel::bounded(1);
        Self { catalogue, reads, reading: Semaphore::new(READING_MAX), notices }
    }

    async fn search(&self, dispatch: &Dispatch, wanted: Search) -> Result<ToolOutput, String> {
        let view = self.catalogue.view(&dispatch.caller).within(dispatch.toolset.clone());
        let limit = wanted.limit.unwrap_or(FOUND).clamp(1, FOUND_MAX);
        let found = view.search_aside(wanted.query, limit).await;
        let found = found.ok_or_else(|| "the tools cannot be searched".to_owned())?;
        let found = found.into_iter().map(|visible| {
            let declared = declaration(&visible);
            let mut tool = Map::new();
            tool.insert("name".to_owned(), json!(declared.wire_name));
            for (name, text) in [("title", declared.title), ("description", declared.description)] {
                if let Some(text) = text {
                    tool.insert(name.to_owned(), json!(text));
                }
            }
            tool.insert("inputSchema".to_owned(), declared.parameters);
            Value::Object(tool)
        });
        Ok(ToolOutput::data(&json!({ "tools": found.collect::<Vec<_>>() })))
    }

    async fn read(&self, dispatch: &Dispatch, wanted: Wanted) -> Result<ToolOutput, String> {
        let toolset = dispatch.toolset.clone();
        let kept = self.kept(&dispatch.caller, toolset, &wanted.result).await?;
        match kept {
            ResultPart::Text { text, .. } => {
                // A large text takes long, and other calls must be answered meanwhile.
                let _permit = self.reading.acquire().await.map_err(|error| error.to_string())?;
                let reading = tokio::task::spawn_blocking(move || wanted.of(&text));
                let piece = reading.await.map_err(|_| "the result cannot be read".to_owned())?;
                let piece = piece.map_err(|error| error.to_string())?;
                Ok(blocks(vec![ContentBlock::text(piece.text), ContentBlock::text(piece.extent)]))
            }
            ResultPart::Blob { mime_type, base64 } => {
                let kind = if mime_type.starts_with("audio/") { "audio" } else { "image" };
                let block = if mime_type.starts_with("image/") || kind == "audio" {
                    json!({ "type": kind, "data": base64, "mimeType": mime_type })
                } else {
                    let uri = &wanted.result;
                    json!({ "type": "resource",
                            "resource": { "uri": uri, "mimeType": mime_type, "blob": base64 } })
                };
                let block = ContentBlock::of(&block).map_err(|fault| fault.to_string())?;
                Ok(blocks(vec![block]))
            }
            ResultPart::Other(block) => Ok(blocks(vec![block])),
        }
    }

    /// Returns a stored part as the contents of a resource, or a sentence for the agent if it is
    /// missing.
    async fn resource(
        &self,
        caller: &Caller,
        toolset: Option<Arc<str>>,
        uri: &str,
    ) -> Result<Value, String> {
        let kept = self.kept(caller, toolset, uri).await?;
        Ok(kept.as_resource(uri))
    }

    /// Returns the part that `text` links to. The result must be the caller's, of a tool that it still
    /// sees. The result of another caller is treated as missing.
    async fn kept(
        &self,
        caller: &Caller,
        toolset: Option<Arc<str>>,
        text: &str,
    ) -> Result<ResultPart, String> {
        let link = Link::parse(text).ok_or_else(no_such_result)?;
        let receipt = self.reads.receipt(&link.receipt_id).await.map_err(|error| {
            tracing::error!(%error, "a kept result cannot be read");
            "the records cannot be read at the moment".to_owned()
        })?;
        let receipt =
            receipt.filter(|receipt| receipt.caller == caller.name()).ok_or_else(no_such_result)?;
        if self.catalogue.view(caller).within(toolset).find(&receipt.tool_id).is_none() {
            return Err(no_such_result());
        }
        let result = receipt.result.ok_or_else(no_such_result)?;
        ResultPart::of(&result, &link).ok_or_else(no_such_result)
    }
}

fn blocks(content: Vec<ContentBlock>) -> ToolOutput {
    ToolOutput::new(Payload { content: Some(content), ..Payload::default() })
}

fn no_such_result() -> String {
    "there is no such result of yours, or it is kept no longer".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    query: String,
    limit: Option<usize>,
}

#[async_trait]
impl Executor for OwnTools {
    async fn execute(&self, dispatch: Dispatch, _conversation: Conversation) -> Outcome {
        let arguments = dispatch.arguments.tree();
        let answered = match dispatch.contract.tool_id.as_str() {
            SEARCH_TOOLS => match read_as::<Search>(arguments) {
                Ok(wanted) => self.search(&dispatch, wanted).await,
                Err(error) => Err(error.to_string()),
            },
            READ_RESULT => match read_as::<Wanted>(arguments) {
                Ok(wanted) => self.read(&dispatch, wanted).await,
                Err(error) => Err(error.to_string()),
            },
            other => {
                let reason = format!("the gateway has no tool `{other}` of its own");
                return Outcome::Failed(ExecutionError::adapter(Effect::NotStarted, reason));
            }
        };
        Outcome::Done(match answered {
            Ok(output) => output,
            Err(sentence) => ToolOutput::text(sentence).into_error(),
        })
    }

    async fn readiness(&self, _contract: &ToolContract, _probe: bool) -> Readiness {
        Readiness::Ready
    }
}

#[async_trait]
impl Upstream for OwnTools {
    fn name(&self) -> &str {
        GATEWAY_RUNTIME
    }

    async fn request(
        &self,
        ask: Ask,
        caller: &Caller,
        conversation: Conversation,
    ) -> Result<Value, UpstreamError> {
        self.request_within(ask, caller, None, conversation).await
    }

    async fn request_within(
        &self,
        ask: Ask,
        caller: &Caller,
        within: Option<&Arc<str>>,
        _conversation: Conversation,
    ) -> Result<Value, UpstreamError> {
        let refused = |message| UpstreamError::Refused { code: NOT_FOUND, message, data: None };
        match ask {
            Ask::ReadResource { uri } => {
                self.resource(caller, within.cloned(), &uri).await.map_err(refused)
            }
            _ => Err(refused("the gateway's own resources can only be read".to_owned())),
        }
    }

    fn notices(&self) -> async_channel::Receiver<Notice> {
        self.notices.1.clone()
    }
}
