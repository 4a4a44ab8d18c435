//! Compares approved claims with the current claims of a source.
//!
//! Text is compared by words, ignoring white space; schemas are compared by structure.
//!
//! Doc: registry.md#what-changed

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::change::{Compatibility, FieldChange, text_change};
use super::schema::{self, Direction};
use super::{LockFile, Objection};
use crate::source_claims::SourceClaims;
use crate::suspicion::Suspicion;
use crate::tool::{RegisteredTool, Source};

/// The kind of difference of a tool or item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The lock has no approval of it.
    New,
    /// The claims of its source changed.
    Changed,
    /// Another source lists it.
    Moved,
    /// Its source no longer lists it.
    Removed,
}

/// All changes of one tool or item. Every change needs approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolDiff {
    /// The id of the tool, or of an item with its kind: `prompt:ID`, `resource:ID`, `template:ID`.
    pub tool_id: String,
    /// Its current source; the approved one if it was removed.
    pub source: String,
    /// The kind of difference.
    pub change: Change,
    /// The current source digest; absent if the tool was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    /// The worst verdict of its changes.
    pub verdict: Compatibility,
    /// The changes.
    pub changes: Vec<FieldChange>,
    /// Unapproved suspicious text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspicious: Vec<Suspicion>,
}

/// As [`compare`]. If it shows no change although the claims differ, the schemas or extra members
/// that differ are reported whole.
pub(super) fn changes(before: &SourceClaims, after: &SourceClaims) -> Vec<FieldChange> {
    let mut changes = compare(before, after);
    if changes.is_empty() && before.spaced() != after.spaced() {
        for (field, one, two) in [
            ("inputSchema", &before.input_schema, &after.input_schema),
            ("outputSchema", &before.output_schema, &after.output_schema),
        ] {
            if one != two {
                changes.push(FieldChange {
                    field: field.to_owned(),
                    path: String::new(),
                    before: Some(one.clone()),
                    after: Some(two.clone()),
                    words: Vec::new(),
                    verdict: Compatibility::Breaking,
                    reason: "something that is not understood is different".to_owned(),
                });
            }
        }
        if changes.is_empty() && before.extra != after.extra {
            let whole = |said: &SourceClaims| Some(Value::Object(said.extra.clone()));
            changes.push(plain_change("extra", String::new(), whole(before), whole(after)));
        }
        // An empty value instead of none, or white space in the text of a hint.
        let whole = |claims: &SourceClaims| {
            [
                ("title", claims.title.clone().map(Value::from)),
                ("description", claims.description.clone().map(Value::from)),
                ("annotations", claims.annotations.clone().map(Value::Object)),
            ]
        };
        for ((field, one), (_, two)) in whole(before).into_iter().zip(whole(after)) {
            if changes.is_empty() && one != two {
                changes.push(plain_change(field, String::new(), one, two));
            }
        }
    }
    changes
}

/// All changes from approved to current claims that are understood; empty if only white space of
/// texts differs.
#[must_use]
pub fn compare(before: &SourceClaims, after: &SourceClaims) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    if before.name != after.name {
        changes.push(FieldChange {
            field: "name".to_owned(),
            path: String::new(),
            before: Some(Value::from(before.name.as_str())),
            after: Some(Value::from(after.name.as_str())),
            words: Vec::new(),
            verdict: Compatibility::Breaking,
            reason: "another tool of the source stands under this id".to_owned(),
        });
    }
    for (field, before, after) in [
        ("title", &before.title, &after.title),
        ("description", &before.description, &after.description),
    ] {
        changes.extend(text_change(field, "", before.as_deref(), after.as_deref()));
    }
    schema::compare(
        "inputSchema",
        Direction::Input,
        &before.input_schema,
        &after.input_schema,
        &mut changes,
    );
    schema::compare(
        "outputSchema",
        Direction::Output,
        &before.output_schema,
        &after.output_schema,
        &mut changes,
    );
    let empty = Map::new();
    let hints = |said: &'_ Option<Map<String, Value>>| said.clone().unwrap_or_default();
    let (one, two) = (hints(&before.annotations), hints(&after.annotations));
    members("annotations", &one, &two, &mut changes);
    for key in
        before.extra.keys().chain(after.extra.keys().filter(|key| !before.extra.contains_key(*key)))
    {
        let inner = |said: &SourceClaims| said.extra.get(key).and_then(Value::as_object).cloned();
        match (inner(before), inner(after)) {
            (None, None) => {
                let of = |said: &SourceClaims| said.extra.get(key).cloned();
                if of(before) != of(after) {
                    changes.push(plain_change(key, String::new(), of(before), of(after)));
                }
            }
            (one, two) => members(
                key,
                one.as_ref().unwrap_or(&empty),
                two.as_ref().unwrap_or(&empty),
                &mut changes,
            ),
        }
    }
    changes
}

/// A compatible change that is shown whole, not by words.
fn plain_change(
    field: &str,
    path: String,
    before: Option<Value>,
    after: Option<Value>,
) -> FieldChange {
    FieldChange {
        field: field.to_owned(),
        path,
        before,
        after,
        words: Vec::new(),
        verdict: Compatibility::Compatible,
        reason: "what the tool says of itself is different; nothing of it loosens anything"
            .to_owned(),
    }
}

/// Appends the changes between the members of two objects.
fn members(
    field: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    changes: &mut Vec<FieldChange>,
) {
    let fresh = after.keys().filter(|key| !before.contains_key(*key));
    for key in before.keys().chain(fresh) {
        let (one, two) = (before.get(key), after.get(key));
        if one == two {
            continue;
        }
        let path = format!("/{}", key.replace('~', "~0").replace('/', "~1"));
        if let (Some(Value::String(one)), Some(Value::String(two))) = (one, two) {
            changes.extend(text_change(field, &path, Some(one), Some(two)));
            continue;
        }
        changes.push(plain_change(field, path, one.cloned(), two.cloned()));
    }
}

/// The changes in one sentence, for records and error messages: the verdict and the field names, no
/// values.
pub(super) fn summary(changes: &[FieldChange]) -> String {
    // Members of a listing have names that the source chose.
    let mut fields: Vec<String> =
        changes.iter().map(|change| change.field.escape_debug().to_string()).collect();
    fields.dedup();
    let breaking = changes.iter().any(|change| change.verdict == Compatibility::Breaking);
    let verdict = if breaking { "breaking" } else { "compatible" };
    format!("changed since it was approved ({verdict}): {}", fields.join(", "))
}

/// The differences between the lock and the registry, sorted by id. `answered` returns whether a
/// source has listed its tools. A missing tool of any other source does not count as removed.
#[must_use]
pub fn diff<'t>(
    lock: &LockFile,
    tools: impl Iterator<Item = &'t RegisteredTool>,
    objections: &std::collections::HashMap<String, Objection>,
    answered: impl Fn(&Source) -> bool,
) -> Vec<ToolDiff> {
    let mut out = Vec::new();
    let mut present = HashSet::new();
    // An approved tool for which the operator wrote a contract is not removed.
    let mut adopted = HashSet::new();
    for tool in tools {
        let id = tool.id().as_str();
        if !tool.source().is_discovered() {
            adopted.insert((format!("mcp:{}", tool.target_owner()), tool.target().to_owned()));
            continue;
        }
        present.insert(id.to_owned());
        let after = SourceClaims::of(tool.contract());
        let (change, changes) = match lock.of_tool(tool) {
            None => (Change::New, Vec::new()),
            Some((approved, locked)) => {
                present.insert(approved.to_owned());
                let changes = changes(&locked.claims(), &after);
                if locked.source != tool.source().to_string() {
                    (Change::Moved, changes)
                } else if changes.is_empty() {
                    continue;
                } else {
                    (Change::Changed, changes)
                }
            }
        };
        let worst = changes.iter().map(|change| change.verdict).max();
        let least = if change == Change::Moved {
            Compatibility::Breaking
        } else {
            Compatibility::Compatible
        };
        let suspicious =
            objections.get(id).map(|objection| objection.suspicions.clone()).unwrap_or_default();
        out.push(ToolDiff {
            tool_id: id.to_owned(),
            source: tool.source().to_string(),
            source_digest: Some(tool.source_digest().to_owned()),
            change,
            verdict: worst.map_or(least, |worst| worst.max(least)),
            changes,
            suspicious,
        });
    }
    for (id, locked) in lock.iter().filter(|(id, _)| !present.contains(*id)) {
        if adopted.contains(&(locked.source.clone(), locked.name.clone())) {
            continue;
        }
        let gone = Source::parse(&locked.source).is_none_or(|source| answered(&source));
        if gone {
            out.push(ToolDiff {
                tool_id: id.to_owned(),
                source: locked.source.clone(),
                source_digest: None,
                change: Change::Removed,
                verdict: Compatibility::Breaking,
                changes: Vec::new(),
                suspicious: Vec::new(),
            });
        }
    }
    out.sort_by(|a, b| a.tool_id.cmp(&b.tool_id));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims() -> SourceClaims {
        SourceClaims {
            name: "add".to_owned(),
            title: None,
            description: Some("Adds.".to_owned()),
            input_schema: json!({}),
            output_schema: json!({}),
            annotations: None,
            extra: Map::new(),
        }
    }

    #[test]
    fn claims_that_differ_always_show_a_change() {
        let hint = |text: &str| json!({ "title": text }).as_object().cloned();
        for (one, two, field) in [
            (claims(), SourceClaims { annotations: Some(Map::new()), ..claims() }, "annotations"),
            (claims(), SourceClaims { title: Some(String::new()), ..claims() }, "title"),
            (
                SourceClaims { annotations: hint("a b"), ..claims() },
                SourceClaims { annotations: hint("a  b"), ..claims() },
                "annotations",
            ),
        ] {
            assert_ne!(one.spaced(), two.spaced());
            let changes = changes(&one, &two);
            assert_eq!(changes.len(), 1, "{changes:?}");
            assert_eq!(changes[0].field, field);
        }
        assert!(changes(&claims(), &claims()).is_empty());
    }

    #[test]
    fn names_that_a_source_chose_are_escaped() {
        let extra = json!({ "a\u{202e}b\n": 1 }).as_object().cloned().unwrap_or_default();
        let summary = summary(&changes(&claims(), &SourceClaims { extra, ..claims() }));
        assert!(!summary.contains('\u{202e}') && !summary.contains('\n'), "{summary}");
    }
}
