//! Converts the result of a call to `CallToolResult` of MCP.
//!
//! Path: 10. Doc: front-doors.md#mcp

use serde::Serialize;
use serde::ser::SerializeMap;
use serde_json::{Map, Value, json};
use toolbooth_contracts::json::JsonText;
use toolbooth_contracts::{ContentBlock, ToolResult, payload};

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

impl CallResult {
    /// Returns the size of content and structured content as JSON, in bytes.
    pub(super) fn bytes(&self) -> usize {
        payload::size(&self.content, self.structured_content.as_ref())
    }
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

pub(super) fn on_the_wire(result: ToolResult, is_modern: bool) -> CallResult {
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
    // Before the revision 2026-07-28, structured content must be an object.
    let shown = |data: &JsonText| is_modern || data.is_object();
    CallResult {
        content: result.content,
        structured_content: result.structured_content.filter(shown),
        is_error: result.is_error,
        meta: Meta { tool: result.meta, own },
        result_type: is_modern.then_some("complete"),
    }
}
