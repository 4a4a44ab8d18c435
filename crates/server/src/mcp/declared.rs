//! Builds the document of a tool for `tools/list`.
//!
//! Path: 10. Doc: front-doors.md#listings

use serde_json::{Map, Value, json};
use toolbooth_proxy::{DocumentForm, Visible};

/// Returns the document of a tool in a listing.
pub(super) fn tool_document(visible: &Visible, form: DocumentForm) -> Value {
    let declared = toolbooth_proxy::declaration(visible);
    let mut tool = Map::new();
    tool.insert("name".to_owned(), json!(declared.wire_name));
    for (name, text) in [("title", declared.title), ("description", declared.description)] {
        if let Some(text) = text {
            tool.insert(name.to_owned(), json!(text));
        }
    }
    let input = if declared.parameters.is_object() { declared.parameters } else { json!({}) };
    tool.insert("inputSchema".to_owned(), with_object_type(input));
    if let Some(output) = declared.output_schema.filter(|schema| is_listed(schema, form)) {
        tool.insert("outputSchema".to_owned(), output);
    }
    if let Some(hints) = declared.annotations {
        tool.insert("annotations".to_owned(), Value::Object(hints));
    }
    for (name, value) in declared.extra {
        tool.entry(name).or_insert(value);
    }
    Value::Object(tool)
}

/// Adds `type: object` to an input schema, because MCP requires it.
fn with_object_type(mut schema: Value) -> Value {
    if let Some(members) = schema.as_object_mut() {
        members.entry("type").or_insert_with(|| json!("object"));
    }
    schema
}

/// Whether an output schema is listed. Legacy clients accept only output schemas of objects. The
/// schemas `true` and `false` are useless to every client.
fn is_listed(schema: &Value, form: DocumentForm) -> bool {
    schema.is_object()
        && (form == DocumentForm::Modern
            || schema.get("type").and_then(Value::as_str) == Some("object"))
}
