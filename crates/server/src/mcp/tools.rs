//! Turns `tools/call` messages into calls, and results into messages.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::json::{self, JsonText};
use toolbooth_contracts::{ContentBlock, Conversation, ErrorCode, ToolCall, ToolName, ToolResult};
use toolbooth_proxy::View;

use super::client::Client;
use super::codec::{Params, Request, RpcError};
use super::wire::code::MISSING_CAPABILITY;
use super::{headers, search};
use crate::{Gateway, Listing};

/// The parameters of a call. Answers to questions are ignored, because the gateway asks none.
#[derive(Deserialize)]
struct Call {
    name: String,
    /// The raw arguments, if present, even `null`.
    #[serde(default, deserialize_with = "there")]
    arguments: Option<Box<RawValue>>,
}

fn there<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

impl Call {
    fn of(mut params: Params) -> Result<Self, RpcError> {
        if let Params::Whole(_) = params {
            return params.read();
        }
        match params.member("name")? {
            Some(name) => Ok(Self { name, arguments: params.take("arguments") }),
            None => params.read(),
        }
    }
}

/// A parsed copy of a call's arguments; `null` if they are absent or malformed.
pub(super) fn arguments(request: &Request) -> Value {
    let arguments: Option<Box<RawValue>> = request.params.member("arguments").ok().flatten();
    arguments.and_then(|raw| json::parse(raw.get().as_bytes()).ok()).unwrap_or_default()
}

/// The call inside `call_tool`, with raw arguments. The error is a sentence.
fn unwrap(arguments: Option<&RawValue>) -> Result<Call, String> {
    let text = arguments.map_or("{}", RawValue::get);
    serde_json::from_str(text)
        .map_err(|error| format!("call_tool takes `name` and `arguments`: {error}"))
}

/// Answers `tools/call`.
pub(super) async fn call(
    gateway: &Gateway,
    view: View,
    client: &Client,
    request: Request,
    meta: &Map<String, Value>,
    conversation: Conversation,
) -> Result<CallResult, RpcError> {
    // Consumes the parameters, so that the arguments are in memory only once.
    let mut call = Call::of(request.params)?;
    if gateway.listing == Listing::Search && call.name == search::CALL {
        call = unwrap(call.arguments.as_deref()).map_err(RpcError::invalid_params)?;
    }
    let dialect = meta.get("toolbooth/dialect").and_then(Value::as_str);
    let strict = dialect == Some(gateway.strict_dialect);
    call.arguments = narrowed(&view, &call.name, call.arguments, strict);
    let well_formed = call.arguments.as_ref().is_none_or(|raw| raw.get().starts_with('{'));
    let asked = ToolCall {
        tool: ToolName::Wire(call.name),
        args: call.arguments,
        context: client.context(meta),
        caller: client.caller.clone(),
        toolset: client.toolset.clone(),
    };
    let result = gateway.proxy.call(asked, conversation).await;
    match result.error.as_ref().map(|error| error.code) {
        Some(code @ ErrorCode::UnregisteredTool) => {
            let data = json!({ "code": code.as_str() });
            Err(RpcError::invalid_params(code.safe_sentence()).with_data(data))
        }
        Some(_) if lacks_capability(client, &result) => Err(missing_capability(result)),
        Some(_) if !well_formed => Err(RpcError::invalid_params("`arguments` must be an object")),
        _ => Ok(on_the_wire(gateway.proxy.shortened(&view, result), client)),
    }
}

/// Removes nulls that stand for absent arguments.
///
/// These are the nulls of arguments that headers repeat and, with `strict`, those that a strict
/// declaration made possible. Malformed arguments, and those of a tool that the caller does not
/// see, stay as they are; the proxy rejects them.
fn narrowed(
    view: &View,
    name: &str,
    arguments: Option<Box<RawValue>>,
    strict: bool,
) -> Option<Box<RawValue>> {
    let raw = arguments?;
    let Some(visible) = view.find(name) else { return Some(raw) };
    let schema = &visible.tool.contract().input_schema;
    // Most calls need no parsing here.
    if !(strict || headers::is_annotated(schema)) || !raw.get().contains("null") {
        return Some(raw);
    }
    let Ok(mut value) = json::parse(raw.get().as_bytes()) else { return Some(raw) };
    headers::drop_nulls(schema, &mut value);
    if strict {
        value = without_widened_nulls(schema, value);
    }
    Some(RawValue::from_string(value.to_string()).unwrap_or(raw))
}

/// The error by which a tool's server refused the call.
fn upstream(result: &ToolResult) -> Option<&Map<String, Value>> {
    result.error.as_ref()?.details.get("upstream")?.as_object()
}

/// Whether the tool's server requires a capability that the client lacks. If the client has it, the
/// gateway is the one that lacks it, and the client gets a failed call.
fn lacks_capability(client: &Client, result: &ToolResult) -> bool {
    let Some(said) = upstream(result) else { return false };
    said.get("code").and_then(Value::as_i64) == Some(MISSING_CAPABILITY)
        && client.lacks(said.get("data"))
}

fn missing_capability(result: ToolResult) -> RpcError {
    let data = upstream(&result).and_then(|said| said.get("data")).cloned().map(Box::new);
    let message = result.error.map(|error| error.message).unwrap_or_default();
    RpcError { code: MISSING_CAPABILITY, message, data, upstream: true }
}

/// A result as `CallToolResult`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CallResult {
    content: Vec<ContentBlock>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<JsonText>,
    is_error: bool,
    #[serde(rename = "_meta")]
    meta: Meta,
    /// Present in every result of the modern era.
    #[serde(skip_serializing_if = "Option::is_none")]
    result_type: Option<&'static str>,
}

/// The `_meta` of a result: members of the tool and of the gateway, which take precedence.
#[derive(Debug)]
struct Meta {
    tool: Option<JsonText>,
    own: Map<String, Value>,
}

impl Serialize for Meta {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        for (name, member) in self.tool.iter().flat_map(JsonText::members) {
            if !self.own.contains_key(name.as_ref()) {
                members.serialize_entry(&name, &member)?;
            }
        }
        for (name, member) in &self.own {
            members.serialize_entry(name, member)?;
        }
        members.end()
    }
}

fn on_the_wire(result: ToolResult, client: &Client) -> CallResult {
    let mut own = Map::new();
    let mut tell = |key: &str, value: Value| own.insert(format!("toolbooth/{key}"), value);
    tell("callId", json!(result.call_id));
    tell("replayed", json!(result.replayed));
    if let Some(receipt_id) = result.receipt_id {
        tell("receiptId", json!(receipt_id));
    }
    if let Some(error) = result.error {
        tell("errorCode", json!(error.code));
        tell("effect", json!(result.effect));
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
    // Before 2026-07-28 structured content is an object.
    let shown = |data: &JsonText| client.is_modern() || data.is_object();
    CallResult {
        content: result.content,
        structured_content: result.structured_content.filter(shown),
        is_error: result.is_error,
        meta: Meta { tool: result.meta, own },
        result_type: client.is_modern().then_some("complete"),
    }
}
