//! What changed between what was approved and what a source says now.
//!
//! Text is compared by words and without regard to white space, schemas by their structure.
//!
//! Doc: registry.md#what-changed

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};

use super::schema::{self, Direction};
use super::{LockFile, Objection};
use crate::said::Said;
use crate::suspicion::Suspicion;
use crate::tool::{RegisteredTool, Source};

/// Whether calls that were right before are right now.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Compatibility {
    /// They are.
    Compatible,
    /// Some are not, or it cannot be told.
    Breaking,
}

/// What happened to a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The lock does not name it.
    New,
    /// Its source says something else of it.
    Changed,
    /// Another source lists it.
    Moved,
    /// Its source does not list it any more.
    Removed,
}

/// What happened to a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WordChange {
    /// It stayed.
    Kept,
    /// It came.
    Added,
    /// It went.
    Removed,
}

/// Words that had the same fate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Word {
    /// What happened to them.
    pub change: WordChange,
    /// The words.
    pub text: String,
}

/// One change of one field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FieldChange {
    /// The field: `name`, `title`, `description`, `inputSchema`, `outputSchema`, `annotations`, or
    /// another one that the source lists.
    pub field: String,
    /// Where in a schema, as a JSON Pointer; empty for the field itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// What was approved; absent where there was nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What is said now; absent where there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// For text, the change by words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// Whether calls stay right.
    pub verdict: Compatibility,
    /// Why.
    pub reason: String,
}

/// Everything that changed of one tool. All of it needs approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ToolDiff {
    /// The tool; `prompt:`, `resource:` or `template:` and an id for what is none.
    pub tool_id: String,
    /// Its source now; the approved one where it is gone.
    pub source: String,
    /// What happened.
    pub change: Change,
    /// SHA-256 of what the source says now; absent where the tool is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    /// The worst verdict of its changes.
    pub verdict: Compatibility,
    /// The changes.
    pub changes: Vec<FieldChange>,
    /// Suspicious text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspicious: Vec<Suspicion>,
}

/// Words of two texts that are compared one by one.
const WORDS_MAX: usize = 10_000;

/// Compares two texts by words; `None` where only white space differs.
pub(super) fn words(before: &str, after: &str) -> Option<Vec<Word>> {
    if before.split_whitespace().eq(after.split_whitespace()) {
        return None;
    }
    let (before, after): (Vec<&str>, Vec<&str>) =
        (before.split_whitespace().collect(), after.split_whitespace().collect());
    if before.len() + after.len() > WORDS_MAX {
        // Nobody reads so long a text word by word; it is shown whole.
        let word = |change, words: &[&str]| Word { change, text: words.join(" ") };
        return Some(vec![word(WordChange::Removed, &before), word(WordChange::Added, &after)]);
    }
    let mut out: Vec<Word> = Vec::new();
    for change in TextDiff::from_slices(&before, &after).iter_all_changes() {
        let kind = match change.tag() {
            ChangeTag::Equal => WordChange::Kept,
            ChangeTag::Insert => WordChange::Added,
            ChangeTag::Delete => WordChange::Removed,
        };
        match out.last_mut() {
            Some(last) if last.change == kind => {
                last.text.push(' ');
                last.text.push_str(change.value());
            }
            _ => out.push(Word { change: kind, text: change.value().to_owned() }),
        }
    }
    Some(out)
}

/// A change of a text, where there is one beyond white space.
pub(super) fn text_change(
    field: &str,
    path: &str,
    before: Option<&str>,
    after: Option<&str>,
) -> Option<FieldChange> {
    let words = words(before.unwrap_or_default(), after.unwrap_or_default())?;
    Some(FieldChange {
        field: field.to_owned(),
        path: path.to_owned(),
        before: before.map(Value::from),
        after: after.map(Value::from),
        words,
        verdict: Compatibility::Compatible,
        reason: "the text that a model reads is different".to_owned(),
    })
}

/// As [`compare`], and at least one change where anything differs: what has no words and no place
/// in it is told all the same.
pub(super) fn changes(before: &Said, after: &Said) -> Vec<FieldChange> {
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
            let whole = |said: &Said| Some(Value::Object(said.extra.clone()));
            changes.push(plain_change("extra", String::new(), whole(before), whole(after)));
        }
    }
    changes
}

/// Every change between what was approved and what is said now, as far as it is understood; none
/// where only white space of texts differs.
#[must_use]
pub fn compare(before: &Said, after: &Said) -> Vec<FieldChange> {
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
        let inner = |said: &Said| said.extra.get(key).and_then(Value::as_object).cloned();
        match (inner(before), inner(after)) {
            (None, None) => {
                let of = |said: &Said| said.extra.get(key).cloned();
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

/// A change that is shown whole.
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

/// The changes between the members of two objects.
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

/// The changes in one sentence, for records and refusals; it repeats no text of the source.
pub(super) fn summary(changes: &[FieldChange]) -> String {
    let mut fields: Vec<&str> = changes.iter().map(|change| change.field.as_str()).collect();
    fields.dedup();
    let breaking = changes.iter().any(|change| change.verdict == Compatibility::Breaking);
    let verdict = if breaking { "breaking" } else { "compatible" };
    format!("changed since it was approved ({verdict}): {}", fields.join(", "))
}

/// What the lock and the registry do not agree on, sorted by id. `answered` tells whether a
/// source has listed its tools: what is missing of one that has not is not gone.
#[must_use]
pub fn diff<'t>(
    lock: &LockFile,
    tools: impl Iterator<Item = &'t RegisteredTool>,
    objections: &std::collections::HashMap<String, Objection>,
    answered: impl Fn(&Source) -> bool,
) -> Vec<ToolDiff> {
    let mut out = Vec::new();
    let mut present = HashSet::new();
    // Tools of servers for which an operator wrote contracts of his own are not gone.
    let mut adopted = HashSet::new();
    for tool in tools {
        let id = tool.id().as_str();
        if !tool.source().is_discovered() {
            adopted.insert((format!("mcp:{}", tool.target_owner()), tool.target().to_owned()));
            continue;
        }
        present.insert(id.to_owned());
        let after = Said::of(tool.contract());
        let (change, changes) = match lock.of_tool(tool) {
            None => (Change::New, Vec::new()),
            Some((approved, locked)) => {
                present.insert(approved.to_owned());
                let changes = changes(&locked.said(), &after);
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
        let standing = if change == Change::Moved {
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
            verdict: worst.map_or(standing, |worst| worst.max(standing)),
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
