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
    let (structured_content, left_out) = match result.structured_content {
        Some(data) if is_modern || data.is_object() => (Some(data), None),
        other => (None, other),
    };
    let mut content = result.content;
    if let (true, Some(data)) = (content.is_empty(), left_out) {
        // Otherwise the agent would get nothing.
        content.push(ContentBlock::text(data.as_str()));
    }
    CallResult {
        content,
        structured_content,
        is_error: result.is_error,
        meta: Meta { tool: result.meta, own },
        result_type: is_modern.then_some("complete"),
    }
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::{CallId, Effect, Status};

    use super::*;

    #[test]
    fn data_that_an_era_does_not_know_is_text_where_nothing_else_is_left() {
        let shown = |content: &[ContentBlock], data: Value, is_modern: bool| {
            let result = ToolResult {
                tool_id: "a.b".to_owned(),
                call_id: String::from(CallId::try_from("c".to_owned()).unwrap()),
                status: Status::Succeeded,
                is_error: false,
                effect: Effect::Completed,
                content: content.to_vec(),
                structured_content: Some(JsonText::of(&data).unwrap()),
                meta: None,
                error: None,
                replayed: false,
                warnings: Vec::new(),
                receipt_id: None,
                retry_after_ms: None,
                duration_ms: 0.0,
                execute_ms: None,
            };
            let shown = serde_json::to_value(on_the_wire(result, is_modern)).unwrap();
            (shown["content"].clone(), shown["structuredContent"].clone())
        };
        let list = json!([1, 2]);
        let text = |text: &str| json!([{ "type": "text", "text": text }]);
        assert_eq!(shown(&[], list.clone(), true), (json!([]), list.clone()));
        assert_eq!(shown(&[], list.clone(), false), (text("[1,2]"), Value::Null));
        let own = [ContentBlock::text("own")];
        assert_eq!(shown(&own, list, false), (text("own"), Value::Null));
        assert_eq!(shown(&[], json!({}), false), (json!([]), json!({})));
    }
}
