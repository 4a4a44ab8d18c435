//! Detects text that a person and a model read differently.
//!
//! It finds invisible characters, control sequences, names that look like other names, and markup
//! that hides instructions. It judges text, not intent: an operator may approve a tool despite its
//! findings.
//!
//! Doc: registry.md#suspicious-text

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolbooth_contracts::json::{Step, pointer};
use unicode_security::MixedScript;
use unicode_security::confusable_detection::skeleton;

use crate::source_claims::SourceClaims;

/// Maximum number of findings about one tool or item; the rest is omitted.
const FINDINGS_MAX: usize = 20;
/// Characters before and after a finding that are shown with it.
const EXCERPT: usize = 24;
/// Maximum number of consecutive white-space characters; more of them push text out of view.
const WHITE_SPACE_MAX: usize = 40;

/// The kind of a suspicion.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum SuspicionKind {
    /// Unicode tag characters, which mirror ASCII invisibly.
    TagCharacter,
    /// Zero-width characters.
    ZeroWidth,
    /// Bidirectional controls, which reorder displayed text.
    Bidirectional,
    /// Variation selectors, except for the text or emoji style of a symbol.
    VariationSelector,
    /// Escape sequences of a terminal.
    AnsiEscape,
    /// Other control characters.
    ControlCharacter,
    /// A name that looks like another one.
    ConfusableName,
    /// Markup or phrases that address the model instead of the reader.
    HiddenInstruction,
    /// A run of white space that pushes text out of view.
    HiddenByWhiteSpace,
}

impl SuspicionKind {
    /// The kind as written in records and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TagCharacter => "tag-character",
            Self::ZeroWidth => "zero-width",
            Self::Bidirectional => "bidirectional",
            Self::VariationSelector => "variation-selector",
            Self::AnsiEscape => "ansi-escape",
            Self::ControlCharacter => "control-character",
            Self::ConfusableName => "confusable-name",
            Self::HiddenInstruction => "hidden-instruction",
            Self::HiddenByWhiteSpace => "hidden-by-white-space",
        }
    }
}

impl fmt::Display for SuspicionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One suspicious text in the claims of a source (code `suspicious-description`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Suspicion {
    /// The kind.
    pub kind: SuspicionKind,
    /// The field, with a JSON Pointer into it if it is not a text itself.
    pub place: String,
    /// The text around it, with invisible characters escaped.
    pub shown: String,
}

impl fmt::Display for Suspicion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}: {}", self.kind, self.place, self.shown)
    }
}

/// The kind of an invisible or control character; `None` for every other one.
fn kind_of(character: char, before: Option<char>, after: Option<char>) -> Option<SuspicionKind> {
    use SuspicionKind::{
        AnsiEscape, Bidirectional, ControlCharacter, TagCharacter, VariationSelector, ZeroWidth,
    };
    let joins = || {
        // Scripts and emoji use joiners between their own characters.
        let foreign = |c: Option<char>| c.is_some_and(|c| !c.is_ascii() && !c.is_whitespace());
        foreign(before) && foreign(after)
    };
    match character {
        '\n' | '\t' | '\r' => None,
        '\u{1b}' | '\u{9b}' => Some(AnsiEscape),
        c if c.is_control() => Some(ControlCharacter),
        '\u{e0000}'..='\u{e007f}' => Some(TagCharacter),
        '\u{200c}' | '\u{200d}' if joins() => None,
        '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{ad}' | '\u{34f}' => {
            Some(ZeroWidth)
        }
        '\u{180e}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}'
        | '\u{ffa0}' => Some(ZeroWidth),
        '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            Some(Bidirectional)
        }
        // Text or emoji style of a symbol or of a key cap.
        '\u{fe0e}' | '\u{fe0f}'
            if before.is_some_and(|c| !c.is_ascii() || matches!(c, '0'..='9' | '#' | '*')) =>
        {
            None
        }
        '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}' => Some(VariationSelector),
        _ => None,
    }
}

/// The text with invisible and control characters escaped, such as `⟨U+202E⟩`. Line breaks and tabs
/// stay.
#[must_use]
pub fn visible(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    shown(&characters, 0, characters.len())
}

fn shown(characters: &[char], from: usize, to: usize) -> String {
    let mut out = String::new();
    for index in from..to.min(characters.len()) {
        let Some(character) = characters.get(index).copied() else { break };
        let before = index.checked_sub(1).and_then(|index| characters.get(index)).copied();
        match kind_of(character, before, characters.get(index + 1).copied()) {
            Some(_) => {
                out.push_str(&format!("\u{27e8}U+{:04X}\u{27e9}", u32::from(character)));
            }
            None => out.push(character),
        }
    }
    out
}

/// Tags and phrases that address a model instead of the reader, in lower case.
const HIDDEN: [&str; 37] = [
    "<!--",
    "<important",
    "<system",
    "</system",
    "<instruction",
    "<hidden",
    "<secret",
    "<assistant",
    "<admin",
    "<|im_start|>",
    "<|system|>",
    "<<sys>>",
    "[inst]",
    "[system]",
    "ignore previous instructions",
    "ignore all previous",
    "ignore the previous",
    "ignore the above",
    "ignore any previous",
    "ignore all other tools",
    "disregard previous",
    "disregard all previous",
    "disregard the above",
    "forget previous instructions",
    "forget all previous",
    "override previous instructions",
    "do not tell the user",
    "don't tell the user",
    "do not inform the user",
    "do not mention this to the user",
    "do not mention this",
    "don't mention this",
    "never tell the user",
    "without telling the user",
    "without informing the user",
    "hide this from the user",
    "display:none",
];

/// All kinds of suspicion in a text, each once, with an excerpt around its first place.
fn in_text(text: &str) -> Vec<(SuspicionKind, String)> {
    let characters: Vec<char> = text.chars().collect();
    let mut found: Vec<(SuspicionKind, String)> = Vec::new();
    let mut tell = |kind: SuspicionKind, at: usize| {
        if found.iter().all(|(known, _)| *known != kind) {
            let excerpt = shown(&characters, at.saturating_sub(EXCERPT), at + EXCERPT);
            found.push((kind, excerpt.replace(['\n', '\r', '\t'], " ")));
        }
    };
    let mut white = 0;
    for (index, character) in characters.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|index| characters.get(index)).copied();
        if let Some(kind) = kind_of(*character, before, characters.get(index + 1).copied()) {
            tell(kind, index);
        }
        if character.is_whitespace() {
            white += 1;
        } else {
            if white > WHITE_SPACE_MAX {
                tell(SuspicionKind::HiddenByWhiteSpace, index);
            }
            white = 0;
        }
    }
    // Each run of white space becomes one blank; `indexes` has the original place of each byte.
    let (mut lowered, mut indexes) = (String::new(), Vec::new());
    for (index, character) in characters.iter().enumerate() {
        let folded = if character.is_whitespace() {
            if lowered.ends_with(' ') {
                continue;
            }
            ' '
        } else {
            character.to_lowercase().next().unwrap_or(*character)
        };
        indexes.extend(std::iter::repeat_n(index, folded.len_utf8()));
        lowered.push(folded);
    }
    for phrase in HIDDEN {
        if let Some(at) = lowered.find(phrase) {
            tell(SuspicionKind::HiddenInstruction, indexes.get(at).copied().unwrap_or(0));
        }
    }
    found
}

/// Whether a name mixes scripts, or looks like ASCII although it is of another script.
fn disguised(name: &str) -> bool {
    if name.is_ascii() {
        return false;
    }
    let letters: String = name.chars().filter(|c| c.is_alphanumeric()).collect();
    let looks_ascii = || skeleton(&letters).all(|c| c.is_ascii());
    !letters.is_empty() && !letters.is_ascii() && (!letters.is_single_script() || looks_ascii())
}

/// All suspicious text in the claims of a source about a tool.
#[must_use]
pub fn of(said: &SourceClaims) -> Vec<Suspicion> {
    let mut scan = Scan(Vec::new());
    scan.name(&said.name, "name");
    if let Some(title) = &said.title {
        scan.text(title, "title");
    }
    if let Some(description) = &said.description {
        scan.text(description, "description");
    }
    let schemas = [("inputSchema", &said.input_schema), ("outputSchema", &said.output_schema)];
    for (field, schema) in schemas {
        scan.value(schema, field, &mut Vec::new(), false);
    }
    if let Some(annotations) = &said.annotations {
        for (key, value) in annotations {
            scan.value(value, "annotations", &mut vec![Step::Key(key.clone())], false);
        }
    }
    for (key, value) in &said.extra {
        scan.value(value, key, &mut Vec::new(), false);
    }
    scan.0
}

/// All suspicious text in the document of a prompt, a resource or a template.
#[must_use]
pub fn of_document(document: &Map<String, Value>) -> Vec<Suspicion> {
    let mut scan = Scan(Vec::new());
    for (key, value) in document {
        match value {
            // URIs are checked as names: they percent-encode characters of other scripts.
            Value::String(name) if matches!(key.as_str(), "name" | "uri" | "uriTemplate") => {
                scan.name(name, key);
            }
            Value::Array(arguments) if key == "arguments" => {
                for (index, argument) in arguments.iter().enumerate() {
                    let field = format!("{key}/{index}");
                    if let Some(name) = argument.get("name").and_then(Value::as_str) {
                        scan.name(name, &format!("{field}/name"));
                    }
                    if let Some(members) = argument.as_object() {
                        for (member, value) in members.iter().filter(|(own, _)| *own != "name") {
                            scan.value(value, &format!("{field}/{member}"), &mut Vec::new(), false);
                        }
                    }
                }
            }
            other => scan.value(other, key, &mut Vec::new(), false),
        }
    }
    scan.0
}

/// Whether a name has only characters that need no check. Most names do.
fn plain_name(name: &str) -> bool {
    name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'$'))
}

struct Scan(Vec<Suspicion>);

impl Scan {
    fn push(&mut self, kind: SuspicionKind, field: &str, shown: String) {
        if self.0.len() < FINDINGS_MAX {
            self.0.push(Suspicion { kind, place: visible(field), shown });
        }
    }

    fn text(&mut self, text: &str, field: &str) {
        for (kind, shown) in in_text(text) {
            self.push(kind, field, shown);
        }
    }

    fn name(&mut self, name: &str, field: &str) {
        self.text(name, field);
        if disguised(name) {
            let codes: Vec<String> = name
                .chars()
                .filter(|c| !c.is_ascii())
                .take(8)
                .map(|c| format!("U+{:04X}", u32::from(c)))
                .collect();
            let shown = format!("`{}` has {}", visible(name), codes.join(" "));
            self.push(SuspicionKind::ConfusableName, field, shown);
        }
    }

    fn value(&mut self, value: &Value, field: &str, path: &mut Vec<Step>, names: bool) {
        match value {
            Value::String(text) => {
                for (kind, shown) in in_text(text) {
                    self.push(kind, &format!("{field}{}", pointer(path)), shown);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    self.value(item, field, path, false);
                    path.pop();
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    path.push(Step::Key(key.clone()));
                    // The path is rendered only for names that need the check.
                    if !plain_name(key) {
                        self.name(key, &format!("{field}{}", pointer(path)));
                    }
                    // The members of `properties` and `$defs` are names, and their values are
                    // schemas.
                    let holds_names = !names && matches!(key.as_str(), "properties" | "$defs");
                    self.value(member, field, path, holds_names);
                    path.pop();
                }
            }
            _ => (),
        }
    }
}

/// The appearance of a name, without letter case and separators. Names that look alike have the
/// same look. Names that differ only in case and separators have the same spelling.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Look {
    /// The skeleton of the spelling (Unicode Technical Standard 39).
    pub look: String,
    /// The letters and digits in lower case.
    pub spelling: String,
}

impl Look {
    /// The look of a name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let spelling: String =
            name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
        Self { look: skeleton(&spelling).collect(), spelling }
    }
}

#[cfg(test)]
mod tests;
