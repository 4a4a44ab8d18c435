//! The form of a result that an agent gets.
//!
//! Path: 10. Doc: execution.md#large-results

use std::sync::Arc;

use toolbooth_contracts::{Caller, ToolResult};

use crate::large_results::truncate_large_texts;
use crate::own_tools::{READ_RESULT, SEARCH_TOOLS};
use crate::path::FIRST_BY_ANOTHER;
use crate::payload_retention::{PayloadRetention, Results};
use crate::world::World;

/// Shortens large texts that the receipt stores, if this caller can read them there. A tool that
/// declares its output is shown whole, because clients require the declared part.
pub(crate) fn shown(
    retention: &PayloadRetention,
    world: &World,
    caller: &Caller,
    toolset: Option<&Arc<str>>,
    result: ToolResult,
) -> ToolResult {
    let id = result.tool_id.as_str();
    let inline_bytes = retention.inline_bytes(id);
    let of_another = result.warnings.iter().any(|warning| warning == FIRST_BY_ANOTHER);
    // A replay has content only if the receipt stores it.
    let is_kept = result.replayed || retention.results(id) == Results::Keep;
    if inline_bytes == 0 || !is_kept || of_another || [READ_RESULT, SEARCH_TOOLS].contains(&id) {
        return result;
    }
    let knows = |tool| world.knows(caller, toolset, tool, world.status(tool));
    let visible = |id| world.registry.get(id).filter(|tool| knows(tool));
    if visible(id).is_none_or(|tool| tool.declares_output()) || visible(READ_RESULT).is_none() {
        return result;
    }
    truncate_large_texts(result, inline_bytes)
}
