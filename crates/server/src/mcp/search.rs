//! Implements the listing mode for large registries: agents find and call tools by two tools.
//!
//! `search_tools` is a tool of the gateway, and passes the proxy like all tools. `call_tool` is
//! unwrapped at the door, so that policy and records see the tool inside.
//!
//! Path: 1. Doc: front-doors.md#search-listing

use serde_json::{Value, json};
use toolbooth_proxy::{DocumentForm, SEARCH_TOOLS, View};

use super::declared::tool_document;

/// The name of the tool that calls a tool from the search results.
pub(super) const CALL: &str = "call_tool";

/// Whether the caller may search.
pub(super) fn is_possible(view: &View) -> bool {
    view.find(SEARCH_TOOLS).is_some()
}

/// Returns the documents of the two tools.
pub(super) fn tools(view: &View, form: DocumentForm) -> Vec<Value> {
    let about = "Calls a tool that search_tools has found, with arguments for its inputSchema.";
    let call = json!({
        "name": CALL,
        "description": about,
        "inputSchema": {
            "type": "object",
            "properties": {
                "name": {
                    "type": "string",
                    "description": "The tool's name, as search_tools gives it",
                },
                "arguments": { "type": "object", "description": "What its inputSchema asks for" },
            },
            "required": ["name"],
            "additionalProperties": false,
        },
    });
    let search = view.find(SEARCH_TOOLS).map(|visible| tool_document(&visible, form));
    search.into_iter().chain([call]).collect()
}
