//! The Cedar schema of callers, tools and items, in which the rules are validated.
//!
//! Path: 5. Doc: policy.md#rules

use std::collections::BTreeSet;

use cedar_policy::Schema;
use serde_json::{Map, Value, json};
use toolbooth_contracts::contract::ToolContract;

use super::arguments::ArgumentTypes;
use super::history::{HISTORY, HistoryWindows};
use super::scope::{Group, READ_RESOURCES, TOOL, USE_PROMPTS, action_of};
use crate::error::EngineError;

/// The action of a tool of which nothing is known.
const ANY_TOOL: &str = "*";

/// Returns the schema for the rules that name one tool. `mentioned` are the names of all actions in them.
pub(super) fn of_tool(
    contract: &ToolContract,
    arguments: &ArgumentTypes,
    windows: &HistoryWindows,
    mentioned: &BTreeSet<String>,
) -> Result<Schema, EngineError> {
    let groups =
        mentioned.iter().filter(|name| Group::parse(name).is_some_and(|group| group.has(contract)));
    let mut context = context_of_tools(windows);
    context.insert("args".to_owned(), arguments.record.cedar());
    let own = action(groups, &["Tool"], context);
    compose(mentioned, [(action_of(contract.tool_id.as_str()), own)])
}

/// Returns the schema for rules that name no tool, in which a tool is in every group or in none. Their
/// context has no arguments.
pub(super) fn of_any(
    windows: &HistoryWindows,
    mentioned: &BTreeSet<String>,
    in_groups: bool,
) -> Result<Schema, EngineError> {
    let groups = mentioned.iter().filter(|name| in_groups && Group::parse(name).is_some());
    let none = || std::iter::empty::<&String>();
    compose(
        mentioned,
        [
            (ANY_TOOL.to_owned(), action(groups, &[TOOL], context_of_tools(windows))),
            (USE_PROMPTS.to_owned(), action(none(), &["Prompt"], context())),
            (READ_RESOURCES.to_owned(), action(none(), &["Resource"], context())),
        ],
    )
}

/// Returns the parts of the context that every question has.
fn context() -> Map<String, Value> {
    let text = || json!({ "type": "String", "required": false });
    let claimed = json!({
        "type": "Record",
        "attributes": {
            "agentId": text(), "phaseId": text(), "epicId": text(),
            "turnIndex": { "type": "Long", "required": false },
        },
    });
    let time = json!({ "type": "Extension", "name": "datetime" });
    Map::from_iter([("claimed".to_owned(), claimed), ("time".to_owned(), time)])
}

/// Returns the parts of the context that every question about a tool has.
fn context_of_tools(windows: &HistoryWindows) -> Map<String, Value> {
    let mut context = context();
    if !windows.is_empty() {
        context.insert(HISTORY.to_owned(), windows.cedar());
    }
    context
}

fn action<'g>(
    groups: impl Iterator<Item = &'g String>,
    resources: &[&str],
    context: Map<String, Value>,
) -> Value {
    let groups: Vec<Value> = groups.map(|id| json!({ "id": id })).collect();
    json!({
        "memberOf": groups,
        "appliesTo": {
            "principalTypes": ["Caller"],
            "resourceTypes": resources,
            "context": { "type": "Record", "attributes": context },
        },
    })
}

fn compose<const N: usize>(
    mentioned: &BTreeSet<String>,
    own: [(String, Value); N],
) -> Result<Schema, EngineError> {
    let text = || json!({ "type": "String" });
    let texts = || json!({ "type": "Set", "element": { "type": "String" } });
    let record =
        |attributes: Value| json!({ "shape": { "type": "Record", "attributes": attributes } });
    let caller = json!({
        "memberOfTypes": ["Group"],
        "shape": {
            "type": "Record",
            "attributes": { "name": text(), "kind": text(), "scopes": texts(), "grants": texts() },
        },
    });
    // Every other action in the rules applies to nothing here.
    let mut actions: Map<String, Value> =
        mentioned.iter().map(|name| (name.clone(), json!({}))).collect();
    actions.extend(own);
    Schema::from_json_value(json!({
        "": {
            "entityTypes": {
                "Caller": caller,
                "Group": {},
                "Tool": record(json!({
                    "id": text(), "category": text(), "permissions": texts(), "trust": text(),
                    "source": text(), "readOnly": { "type": "Boolean" },
                })),
                "Prompt": record(json!({ "id": text(), "server": text() })),
                "Resource": record(json!({ "id": text(), "server": text() })),
            },
            "actions": actions,
        },
    }))
    .map_err(|error| EngineError(error.to_string()))
}
