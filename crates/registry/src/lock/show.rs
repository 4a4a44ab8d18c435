//! Renders differences as text for operators, with marked words and escaped invisible characters.
//!
//! Doc: registry.md#what-changed

use std::fmt::Write as _;

use serde_json::Value;

use super::change::{Compatibility, FieldChange, WordChange};
use super::diff::{Change, ToolDiff};
use super::locked_id;
use crate::suspicion::visible;

/// Number of digits of a source digest that are shown.
const DIGEST_SHOWN: usize = 16;
/// Maximum length of a shown value, in characters.
const VALUE_MAX: usize = 160;

/// Renders the differences, one tool after the other. Removed words are in `[-…-]`, added words in
/// `{+…+}`. The text contains no terminal control sequences.
#[must_use]
pub fn text(diffs: &[ToolDiff]) -> String {
    let mut out = String::new();
    for diff in diffs {
        let what = match diff.change {
            Change::New => "new".to_owned(),
            Change::Removed => "removed".to_owned(),
            Change::Moved => "comes from another source now".to_owned(),
            // Only tools have calls that a change can break.
            Change::Changed if locked_id(&diff.tool_id).is_some() => "changed".to_owned(),
            Change::Changed => match diff.verdict {
                Compatibility::Compatible => "changed, calls stay right".to_owned(),
                Compatibility::Breaking => "changed, breaking".to_owned(),
            },
        };
        let id = one_line(&diff.tool_id);
        let _ = writeln!(out, "{id} ({}): {what}", one_line(&diff.source));
        if let Some(digest) = &diff.source_digest {
            let prefix: String = digest.chars().take(DIGEST_SHOWN).collect();
            let _ = writeln!(out, "  approve exactly this: {id}@{prefix}");
        }
        for change in &diff.changes {
            field(change, &mut out);
        }
        for suspicion in &diff.suspicious {
            let _ = writeln!(out, "  ! suspicious: {}", one_line(&suspicion.to_string()));
        }
    }
    out
}

fn field(change: &FieldChange, out: &mut String) {
    let location = one_line(&format!("{}{}", change.field, change.path));
    let verdict = match change.verdict {
        Compatibility::Compatible => "",
        Compatibility::Breaking => "  BREAKING",
    };
    if !change.words.is_empty() {
        let words: Vec<String> = change
            .words
            .iter()
            .map(|word| match word.change {
                WordChange::Kept => visible(&word.text),
                WordChange::Added => format!("{{+{}+}}", visible(&word.text)),
                WordChange::Removed => format!("[-{}-]", visible(&word.text)),
            })
            .collect();
        let _ = writeln!(out, "  ~ {location}{verdict}\n      {}", words.join(" "));
        return;
    }
    let line = match (&change.before, &change.after) {
        (None, Some(after)) => format!("  + {location}: {}", value(after)),
        (Some(before), None) => format!("  - {location}: {}", value(before)),
        (before, after) => {
            let shown = |side: &Option<Value>| side.as_ref().map(value).unwrap_or_default();
            format!("  ~ {location}: {} -> {}", shown(before), shown(after))
        }
    };
    let _ = writeln!(out, "{line}{verdict}\n      {}", one_line(&change.reason));
}

/// The text on one line: line breaks and tabs are escaped.
fn one_line(text: &str) -> String {
    visible(text).replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
}

fn value(value: &Value) -> String {
    let text = visible(&value.to_string());
    if text.chars().count() <= VALUE_MAX {
        return text;
    }
    let head: String = text.chars().take(VALUE_MAX).collect();
    format!("{head}…")
}
