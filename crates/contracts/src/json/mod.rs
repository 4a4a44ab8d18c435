//! The gate for external JSON: strict parsing with the place of each fault, and the canonical form for
//! digests.
//!
//! It is a separate parser because no maintained one reports duplicate keys, numbers beyond an IEEE
//! double and lone surrogates with their place. In addition, a JSON object with `serde_json`'s private
//! number key must not be parsed as a number.
//!
//! Path: 4. Doc: contract.md#json-safe

mod as_text;
mod canonical;
#[cfg(feature = "counting")]
pub mod counting;
mod plain;
mod read;
mod rewrite;
mod text;

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde_json::Value;

pub(crate) use canonical::CanonicalObject;
pub use canonical::{canonical, write_canonical, write_text};
pub use plain::read_as;
use read::Observed;
pub use read::{Kind, Reader};
pub use rewrite::{Rewrite, rewrite};
pub use text::JsonText;

/// Maximum nesting depth; deeper documents are rejected.
pub const DEPTH_MAX: usize = 128;

/// Maximum number of faults after which one reading continues.
pub const FAULTS_MAX: usize = 1_000;

/// The prefix of keys that `serde_json` uses internally. A document with such a key is rejected, because
/// it would be read as a different value.
const PRIVATE_PREFIX: &str = "$serde_json::private::";

/// One step of the path from the root of a document to a place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A member of an object.
    Key(String),
    /// An element of an array, from 0.
    Index(usize),
}

/// The kind of a fault in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonFaultKind {
    /// Not JSON by RFC 8259.
    Syntax,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// An object contains a key twice.
    DuplicateKey,
    /// A number that an IEEE double cannot hold, such as `1e400`.
    NumberTooLarge,
    /// Half of a surrogate pair.
    LoneSurrogate,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// A key that is reserved by the JSON library.
    ReservedKey,
}

/// A fault of a rejected document, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonFault {
    /// The kind.
    pub kind: JsonFaultKind,
    /// The path to the place, from the root.
    pub path: Vec<Step>,
    /// Byte offset of the place.
    pub offset: usize,
    /// A sentence for operators and users; it contains key names, but no value of the document.
    pub message: String,
}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.message, self.offset)
    }
}

impl std::error::Error for JsonFault {}

impl JsonFault {
    /// Returns the place as an RFC 6901 JSON Pointer.
    #[must_use]
    pub fn pointer(&self) -> String {
        pointer(&self.path)
    }

    /// Returns the fault of a rejected value in which no fault was found again.
    pub(crate) fn unknown() -> Self {
        let message = "the value does not pass the gate".to_owned();
        Self { kind: JsonFaultKind::Syntax, path: Vec::new(), offset: 0, message }
    }

    /// Returns the fault that a whole document is not an object.
    pub(crate) fn no_object() -> Self {
        let message = "an object is expected".to_owned();
        Self { kind: JsonFaultKind::Syntax, path: Vec::new(), offset: 0, message }
    }

    /// Returns the place as a dotted path, `root` for the document itself.
    #[must_use]
    pub fn dotted(&self) -> String {
        dotted(&self.path)
    }
}

/// Returns an RFC 6901 JSON Pointer for `path`.
#[must_use]
pub fn pointer(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) => {
                out.push('/');
                out.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Step::Index(index) => {
                let _ = write!(out, "/{index}");
            }
        }
    }
    out
}

/// Returns a dotted path such as `capabilities.locales[1]`; the empty path is `root`.
#[must_use]
pub fn dotted(path: &[Step]) -> String {
    if path.is_empty() {
        return "root".to_owned();
    }
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(key);
            }
            Step::Index(index) => {
                let _ = write!(out, "[{index}]");
            }
        }
    }
    out
}

/// Returns line and column of a byte offset, both from 1; the column counts characters.
#[must_use]
pub fn line_column(text: &[u8], offset: usize) -> (usize, usize) {
    let before = text.get(..offset.min(text.len())).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let tail = before.get(start..).unwrap_or_default();
    (line, String::from_utf8_lossy(tail).chars().count() + 1)
}

/// Parses a whole document through the gate.
///
/// # Errors
/// The first [`JsonFault`] in reading order.
pub fn parse(text: &[u8]) -> Result<Value, JsonFault> {
    parse_text(&mut Reader::of_bytes(text)?)
}

/// As [`parse`], from a reader at the beginning of the document.
pub(crate) fn parse_text(reader: &mut Reader<'_>) -> Result<Value, JsonFault> {
    let value = reader.tree()?;
    reader.end()?;
    Ok(value)
}

/// As [`parse`], but an object may contain a key twice, and the last value is used. It is for the
/// inspection of rejected documents, and not for use.
///
/// # Errors
/// As [`parse`].
pub fn parse_with_doubles(text: &str) -> Result<Value, JsonFault> {
    parse_text(&mut Reader::new(text).with_doubles())
}

/// A callback for each member and element. Its parameters are the path, the offset of the key (or of the
/// value in an array), and the offset of the value.
pub type Observer<'o> = dyn FnMut(&[Step], usize, usize) + 'o;

/// As [`parse`]; reports the place of each member to `observer`.
///
/// # Errors
/// As [`parse`].
pub fn parse_observed(text: &[u8], observer: &mut Observer<'_>) -> Result<Value, JsonFault> {
    let mut reader = Reader::of_bytes(text)?;
    let value = reader.watched_tree(&mut Observed { observer, path: Vec::new() })?;
    reader.end()?;
    Ok(value)
}

/// As [`parse_observed`], but continues after faults that leave the rest readable, at most
/// [`FAULTS_MAX`], and returns them. These are duplicate keys, numbers out of range, lone surrogates and
/// reserved keys. With faults, the value is for inspection, and not for use.
///
/// # Errors
/// The first fault that leaves the rest unreadable, with those before it.
pub fn parse_all_faults(
    text: &[u8],
    observer: &mut Observer<'_>,
) -> Result<(Value, Vec<JsonFault>), Vec<JsonFault>> {
    let mut reader = Reader::of_bytes(text).map_err(|fault| vec![fault])?.tolerant();
    let read = reader.watched_tree(&mut Observed { observer, path: Vec::new() });
    let read = read.and_then(|value| reader.end().map(|()| value));
    let mut faults = reader.take_faults();
    match read {
        Ok(value) => Ok((value, faults)),
        Err(fault) => {
            faults.push(fault);
            Err(faults)
        }
    }
}

/// Maximum nesting depth of a payload in a record. A record may wrap 16 more levels around it and can
/// still be read back.
pub const WRAPPED_DEPTH_MAX: usize = DEPTH_MAX - 16;

/// Whether a value is nested at most `most` levels; a text or a number has none.
#[must_use]
pub fn is_within(value: &Value, most: usize) -> bool {
    let nested = |item: &Value| most > 0 && is_within(item, most - 1);
    match value {
        Value::Array(items) => most > 0 && items.iter().all(nested),
        Value::Object(members) => most > 0 && members.values().all(nested),
        _ => true,
    }
}

/// Returns the nesting depth of a value; a text or a number is 0.
#[cfg(test)]
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Checks an already parsed value: number range, depth and reserved keys.
///
/// # Errors
/// The first fault in reading order; its offset is 0.
pub fn check_value(value: &Value) -> Result<(), JsonFault> {
    fn fault(kind: JsonFaultKind, path: &[Step], message: &str) -> JsonFault {
        JsonFault { kind, path: path.to_vec(), offset: 0, message: message.to_owned() }
    }
    fn walk(value: &Value, path: &mut Vec<Step>, depth: usize) -> Result<(), JsonFault> {
        match value {
            Value::Number(number) if overflows(&number.to_string()) => {
                Err(fault(JsonFaultKind::NumberTooLarge, path, NUMBER_TOO_LARGE))
            }
            Value::Array(_) | Value::Object(_) if depth > DEPTH_MAX => {
                Err(fault(JsonFaultKind::TooDeep, path, "nested deeper than 128 levels"))
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    walk(item, path, depth + 1)?;
                    path.pop();
                }
                Ok(())
            }
            Value::Object(members) => {
                for (key, member) in members {
                    path.push(Step::Key(key.clone()));
                    if key.starts_with(PRIVATE_PREFIX) {
                        return Err(fault(JsonFaultKind::ReservedKey, path, RESERVED_KEY));
                    }
                    walk(member, path, depth + 1)?;
                    path.pop();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
    walk(value, &mut Vec::new(), 1)
}

const NUMBER_TOO_LARGE: &str = "a number beyond the range of an IEEE double";
const RESERVED_KEY: &str = "a key that is reserved by the JSON library";

fn overflows(literal: &str) -> bool {
    let long = literal.len() > 300;
    let exponent = literal.bytes().any(|byte| matches!(byte, b'e' | b'E'));
    (long || exponent) && literal.parse::<f64>().map_or(true, f64::is_infinite)
}

/// Returns the byte offset of the member or element at `path`. This is the offset of its key if it has
/// one and `key` is set, else of its value. `None` if the document has no such place.
#[must_use]
pub fn locate(text: &[u8], path: &[Step], key: bool) -> Option<usize> {
    let mut found = None;
    // The first fault ends the scan, but the members before it have been observed.
    let _ = parse_observed(text, &mut |at, key_at, value_at| {
        if at == path {
            found = Some(if key { key_at } else { value_at });
        }
    });
    found
}

/// Object keys that scripting languages do not treat as data.
const HAZARDOUS_KEYS: [&str; 3] = ["__proto__", "constructor", "prototype"];

/// Returns the places of keys that scripting languages do not treat as data.
#[must_use]
pub fn hazardous_keys(value: &Value) -> Vec<Vec<Step>> {
    fn walk(value: &Value, path: &mut Vec<Step>, out: &mut Vec<Vec<Step>>) {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(Step::Index(index));
                    walk(item, path, out);
                    path.pop();
                }
            }
            Value::Object(members) => {
                for (key, member) in members {
                    path.push(Step::Key(key.clone()));
                    if HAZARDOUS_KEYS.contains(&key.as_str()) {
                        out.push(path.clone());
                    }
                    walk(member, path, out);
                    path.pop();
                }
            }
            _ => (),
        }
    }
    let mut out = Vec::new();
    walk(value, &mut Vec::new(), &mut out);
    out
}

/// Returns the first item that is a duplicate of an earlier one; used where a list must not contain
/// duplicates.
pub(crate) fn first_duplicate<'v>(items: impl Iterator<Item = &'v str>) -> Option<&'v str> {
    let mut seen = HashSet::new();
    items.into_iter().find(|item| !seen.insert(*item))
}

#[cfg(test)]
mod tests;
