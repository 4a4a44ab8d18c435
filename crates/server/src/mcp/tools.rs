//! Calls of tools: from a message to a call, and from a result to a message.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbooth_contracts::declaration::without_widened_nulls;
use toolbooth_contracts::json;
use toolbooth_contracts::{CallRequest, Conversation, ErrorCode, ToolCall, ToolResult};
use toolbooth_proxy::View;

use super::client::Client;
use super::codec::{Request, RpcError};
use super::wire::code::MISSING_CAPABILITY;
use super::{headers, search};
use crate::{House, Listing};

/// A call as it came. Questions are not asked, so that nothing else of it counts.
#[derive(Deserialize)]
pub(super) struct Call {
    pub(super) name: String,
    /// The arguments' text, where there are any; `null` too.
    #[serde(default, deserialize_with = "there")]
    pub(super) arguments: Option<Box<RawValue>>,
}

fn there<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Deserialize::deserialize(from).map(Some)
}

/// The arguments of a call, for looking at; nothing where they cannot be read.
pub(super) fn arguments(request: &Request) -> Value {
    let call = request.params.read::<Call>().ok().and_then(|call| call.arguments);
    call.and_then(|raw| json::parse(raw.get().as_bytes()).ok()).unwrap_or_default()
}

/// The call inside `call_tool`, its arguments still the bytes that came; a sentence where there
/// is none.
fn unwrap(arguments: Option<&RawValue>) -> Result<Call, String> {
    let text = arguments.map_or("{}", RawValue::get);
    serde_json::from_str(text)
        .map_err(|error| format!("call_tool takes `name` and `arguments`: {error}"))
}

/// Answers `tools/call`.
pub(super) async fn call(
    house: &House,
    view: View,
    client: &Client,
    request: Request,
    meta: &Map<String, Value>,
    conversation: Conversation,
) -> Result<Value, RpcError> {
    let mut call: Call = request.params.read()?;
    // Its arguments are held once from here on.
    drop(request);
    if house.listing == Listing::Search && call.name == search::CALL {
        call = unwrap(call.arguments.as_deref()).map_err(RpcError::invalid_params)?;
    }
    let dialect = meta.get("toolbooth/dialect").and_then(Value::as_str);
    let strict = dialect == Some(house.strict_dialect);
    call.arguments = narrowed(&view, &call.name, call.arguments, strict);
    let well_formed = call.arguments.as_ref().is_none_or(|raw| raw.get().starts_with('{'));
    let asked = CallRequest {
        tool_id: view.tool_id(&call.name).to_owned(),
        args: call.arguments,
        context: client.context(meta),
    };
    let asked = ToolCall::new(asked, client.caller.clone()).within(client.toolset.clone());
    let result = house.proxy.call(asked, conversation).await;
    match result.error.as_ref().map(|error| error.code) {
        Some(code @ ErrorCode::UnregisteredTool) => {
            let data = json!({ "code": code.as_str() });
            Err(RpcError::invalid_params(code.safe_sentence()).with_data(data))
        }
        Some(_) if lacks_capability(client, &result) => Err(missing_capability(result)),
        Some(_) if !well_formed => Err(RpcError::invalid_params("`arguments` must be an object")),
        _ => Ok(on_the_wire(house.proxy.shortened(&view, result), client)),
    }
}

/// Arguments without the nulls that stand for absent ones: those that a strict declaration made
/// possible, where the request says that there was one, and those of arguments that are repeated in
/// headers. What cannot be read is left to the guard, and so is everything of a tool that the
/// caller does not see.
fn narrowed(
    view: &View,
    name: &str,
    arguments: Option<Box<RawValue>>,
    strict: bool,
) -> Option<Box<RawValue>> {
    let raw = arguments?;
    if !raw.get().contains("null") {
        return Some(raw);
    }
    let Some(visible) = view.find(name) else { return Some(raw) };
    let schema = &visible.tool.contract().input_schema;
    if !strict && !headers::is_annotated(schema) {
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

/// Whether the tool's server wants a capability that the client itself does not have. What the
/// client has and the gateway does not pass on is no fault of the client's.
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
fn on_the_wire(result: ToolResult, client: &Client) -> Value {
    let mut out = Map::new();
    out.insert("content".to_owned(), serde_json::to_value(&result.content).unwrap_or_default());
    // Before 2026-07-28 structured content is an object.
    let structured = result.structured_content;
    if let Some(structured) = structured.filter(|data| client.is_modern() || data.is_object()) {
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
    out.insert("_meta".to_owned(), Value::Object(meta));
    Value::Object(out)
}
