//! One change of one field of a definition: of a text by words, of any other field by values.
//!
//! Doc: registry.md#what-changed

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

/// Whether calls that were valid before a change are still valid.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Compatibility {
    /// All of them are.
    Compatible,
    /// Some are not, or the effect of the change is unknown.
    Breaking,
}

/// The kind of change of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WordChange {
    /// Unchanged.
    Kept,
    /// Added.
    Added,
    /// Removed.
    Removed,
}

/// Consecutive words with the same kind of change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Word {
    /// The kind of change.
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
    /// JSON Pointer into the field; empty for the field itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The approved value; absent if the value is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The current value; absent if it was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// For text, the change by words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
    /// Whether calls stay valid.
    pub verdict: Compatibility,
    /// The reason for the verdict, or the nature of the change.
    pub reason: String,
}

/// Maximum number of words of both texts together for a comparison by words.
const WORDS_MAX: usize = 10_000;

/// Compares two texts by words; `None` if only white space differs.
pub(super) fn words(before: &str, after: &str) -> Option<Vec<Word>> {
    if before.split_whitespace().eq(after.split_whitespace()) {
        return None;
    }
    let (before, after): (Vec<&str>, Vec<&str>) =
        (before.split_whitespace().collect(), after.split_whitespace().collect());
    if before.len() + after.len() > WORDS_MAX {
        // A comparison of long texts by words is not readable, so they are shown whole.
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

/// The change of a text; `None` if only white space differs.
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
