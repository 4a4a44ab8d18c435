//! Turns `tools/call` messages into calls, and results into messages.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbooth_contracts::{Conversation, ErrorCode, ToolCall, ToolContract, ToolName, ToolResult};
use toolbooth_mcp::code::MISSING_CAPABILITY;
use toolbooth_mcp::header_table::HeaderTables;

use super::call_result::{CallResult, on_the_wire};
use super::call_rules::CallRules;
use super::client::Client;
use super::codec::{Params, Request};
use super::rpc_error::RpcError;
use super::search;
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

/// Returns the call inside `call_tool`, with raw arguments. The error is a sentence.
fn unwrap(arguments: Option<&RawValue>) -> Result<Call, String> {
    let text = arguments.map_or("{}", RawValue::get);
    serde_json::from_str(text)
        .map_err(|error| format!("call_tool takes `name` and `arguments`: {error}"))
}

/// Answers `tools/call`.
pub(super) async fn call(
    gateway: &Gateway,
    client: &Client,
    request: Request,
    meta: &Map<String, Value>,
    conversation: Conversation,
    tables: Arc<HeaderTables<ToolContract>>,
) -> Result<CallResult, RpcError> {
    // Consumes the parameters, so that the arguments are in memory only once.
    let mut call = Call::of(request.params)?;
    let is_wrapped = gateway.listing == Listing::Search && call.name == search::CALL;
    if is_wrapped {
        call = unwrap(call.arguments.as_deref()).map_err(RpcError::invalid_params)?;
    }
    let dialect = meta.get("toolbooth/dialect").and_then(Value::as_str);
    let strict = dialect == Some(gateway.strict_dialect);
    // Headers repeat the arguments of the request, not those of the call inside `call_tool`.
    let headers = client.param_headers.clone().filter(|_| !is_wrapped);
    let rules = Arc::new(CallRules::new(strict, headers, tables));
    let well_formed = call.arguments.as_ref().is_none_or(|raw| raw.get().starts_with('{'));
    let asked = ToolCall {
        tool: ToolName::Wire(call.name),
        args: call.arguments,
        context: client.context(meta)?,
        caller: client.caller.clone(),
        toolset: client.toolset.clone(),
    };
    let result = gateway.proxy.call_shown(asked, conversation, Some(rules.clone())).await;
    if let Some(mismatch) = rules.mismatch() {
        return Err(mismatch);
    }
    match result.error.as_ref().map(|error| error.code) {
        Some(code @ ErrorCode::UnregisteredTool) => {
            let data = json!({ "code": code.as_str() });
            Err(RpcError::invalid_params(code.safe_sentence()).with_data(data))
        }
        Some(_) if lacks_capability(client, &result) => Err(missing_capability(result)),
        Some(_) if !well_formed => Err(RpcError::invalid_params("`arguments` must be an object")),
        _ => Ok(on_the_wire(result, client.is_modern())),
    }
}

/// Returns the error by which a tool's server refused the call.
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
