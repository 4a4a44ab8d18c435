//! The listing mode for large registries: two tools, by which agents find and call the others.
//!
//! `call_tool` is unwrapped here, so that policy and records see the tool inside.
//!
//! Path: 1. Doc: front-doors.md#search-listing

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolbooth_proxy::View;

use super::wire::Carried;

/// Finds tools.
pub(super) const SEARCH: &str = "search_tools";
/// Calls one of them.
pub(super) const CALL: &str = "call_tool";

/// Tools of one answer, where the agent says nothing.
const LIMIT_DEFAULT: usize = 10;
const LIMIT_MAX: usize = 50;

/// The two tools.
pub(super) fn tools() -> Vec<Tool> {
    let object = |schema: Value| Arc::new(schema.as_object().cloned().unwrap_or_default());
    let search = object(json!({
        "type": "object",
        "properties": {
            "query": { "type": "string", "description": "What the tool should do, in a few words" },
            "limit": { "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT },
        },
        "required": ["query"],
        "additionalProperties": false,
    }));
    let call = object(json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "description": "The tool's name, as search_tools gives it" },
            "arguments": { "type": "object", "description": "What its inputSchema asks for" },
        },
        "required": ["name"],
        "additionalProperties": false,
    }));
    let about_search = "Finds tools by what they do. Gives their names, descriptions and input \
                        schemas; call one with call_tool.";
    let about_call =
        "Calls a tool that search_tools has found, with arguments for its inputSchema.";
    vec![
        Tool::new_with_raw(SEARCH, Some(Cow::Borrowed(about_search)), search),
        Tool::new_with_raw(CALL, Some(Cow::Borrowed(about_call)), call),
    ]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Search {
    query: String,
    limit: Option<usize>,
}

/// The answer to `search_tools`; a sentence where its arguments are wrong.
pub(super) fn answer(view: &View, arguments: Option<&RawValue>) -> Value {
    let text = arguments.map_or("{}", RawValue::get);
    let (text, structured) = match serde_json::from_str::<Search>(text) {
        Err(error) => {
            let sentence = format!("search_tools takes `query` and `limit`: {error}");
            return json!({ "content": [{ "type": "text", "text": sentence }], "isError": true });
        }
        Ok(search) => {
            let limit = search.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX);
            let tools: Vec<Value> = view
                .search(&search.query, limit)
                .iter()
                .map(|visible| {
                    let declared = toolbooth_proxy::declaration(visible);
                    let mut out = Map::new();
                    out.insert("name".to_owned(), json!(declared.wire_name));
                    for (name, text) in
                        [("title", declared.title), ("description", declared.description)]
                    {
                        if let Some(text) = text {
                            out.insert(name.to_owned(), json!(text));
                        }
                    }
                    out.insert("inputSchema".to_owned(), declared.parameters);
                    Value::Object(out)
                })
                .collect();
            let found = json!({ "tools": tools });
            (found.to_string(), found)
        }
    };
    json!({
        "content": [{ "type": "text", "text": text }],
        "structuredContent": structured,
        "isError": false,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    name: String,
    arguments: Option<Box<RawValue>>,
}

/// The call inside `call_tool`, its arguments still the bytes that came; a sentence where there
/// is none.
pub(super) fn unwrap(arguments: Option<&RawValue>) -> Result<Carried, String> {
    let text = arguments.map_or("{}", RawValue::get);
    let call: Call = serde_json::from_str(text)
        .map_err(|error| format!("call_tool takes `name` and `arguments`: {error}"))?;
    let well_formed =
        call.arguments.as_ref().is_none_or(|raw| raw.get().trim_start().starts_with('{'));
    Ok(Carried { name: call.name, arguments: call.arguments, well_formed })
}
