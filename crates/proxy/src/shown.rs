//! A result as an agent is shown it.
//!
//! Path: 10. Doc: execution.md#large-results

use std::sync::Arc;

use toolbooth_contracts::{Caller, ToolResult};

use crate::large_results::shorten;
use crate::own_tools::{READ_RESULT, SEARCH_TOOLS};
use crate::path::FIRST_BY_ANOTHER;
use crate::payload_retention::{PayloadRetention, Results};
use crate::world::World;

/// The result without the rest of large texts that its receipt keeps for this caller, where the caller
/// may read it there. A tool that declares its output is shown whole, because clients insist on the
/// declared part.
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
    // A replay has content only where it is kept.
    let is_kept = result.replayed || retention.results(id) == Results::Keep;
    if inline_bytes == 0 || !is_kept || of_another || [READ_RESULT, SEARCH_TOOLS].contains(&id) {
        return result;
    }
    let knows = |tool| world.knows(caller, toolset, tool, world.status(tool));
    let visible = |id| world.registry.get(id).filter(|tool| knows(tool));
    if visible(id).is_none_or(|tool| tool.declares_output()) || visible(READ_RESULT).is_none() {
        return result;
    }
    shorten(result, inline_bytes)
}
