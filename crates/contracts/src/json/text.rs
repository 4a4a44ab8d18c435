//! JSON text that has passed the gate: stored, compared and written unchanged, and parsed into a tree
//! only on request.
//!
//! Doc: contract.md#json-safe

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "schemars")]
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::canonical::plain_length;
use super::read::{Kind, Reader};
use super::rewrite::{Rewrite, Unchanged, Unwritable, rewrite, write_rewritten};
use super::{DEPTH_MAX, JsonFault, check_value};

/// JSON text that has passed the gate, without white space between its tokens. Cheap to clone: clones
/// share the source text.
#[derive(Clone)]
pub struct JsonText {
    source: Arc<String>,
    range: Range<usize>,
    depth: usize,
}

impl JsonText {
    /// Parses a whole document through the gate.
    ///
    /// # Errors
    /// The first [`JsonFault`] in reading order.
    pub fn parse(text: impl Into<String>) -> Result<Self, JsonFault> {
        let source = Arc::new(text.into());
        let mut reader = Reader::of_source(&source);
        let text = reader.json()?;
        reader.end()?;
        Ok(text)
    }

    /// Returns the text of a tree.
    ///
    /// # Errors
    /// Where a tree contains a value that the gate rejects: numbers out of range, reserved keys, too
    /// many levels.
    pub fn of(value: &Value) -> Result<Self, JsonFault> {
        Self::of_rewritten(value, &mut Unchanged)
    }

    /// Returns the text of a tree with the changes of `rules`.
    ///
    /// # Errors
    /// As [`JsonText::of`].
    pub fn of_rewritten(tree: &Value, rules: &mut impl Rewrite) -> Result<Self, JsonFault> {
        let mut out = String::new();
        match write_rewritten(tree, rules, &mut out, DEPTH_MAX) {
            Ok(depth) => Ok(Self::checked(out, depth)),
            Err(Unwritable) => Err(check_value(tree).err().unwrap_or_else(JsonFault::unknown)),
        }
    }

    /// Returns the JSON text of a string.
    #[must_use]
    pub fn of_text(text: &str) -> Self {
        let mut out = String::with_capacity(text.len() + 2);
        // Writing to a `String` does not fail.
        let _ = super::canonical::write_text(text, &mut out);
        Self::checked(out, 0)
    }

    /// Returns the JSON text of a count.
    #[must_use]
    pub fn of_count(count: usize) -> Self {
        Self::checked(count.to_string(), 0)
    }

    /// Creates an object of these members.
    #[must_use]
    pub fn object<'m>(members: impl IntoIterator<Item = (&'m str, Self)>) -> Self {
        let (mut out, mut depth) = (String::from("{"), 0);
        for (name, member) in members {
            if out.len() > 1 {
                out.push(',');
            }
            // Writing to a `String` does not fail.
            let _ = super::canonical::write_text(name, &mut out);
            out.push(':');
            out.push_str(member.as_str());
            depth = depth.max(member.depth);
        }
        out.push('}');
        Self::checked(out, depth + 1)
    }

    /// Creates an array of these items.
    #[must_use]
    pub fn array(items: impl IntoIterator<Item = Self>) -> Self {
        let (mut out, mut depth) = (String::from("["), 0);
        for item in items {
            if out.len() > 1 {
                out.push(',');
            }
            out.push_str(item.as_str());
            depth = depth.max(item.depth);
        }
        out.push(']');
        Self::checked(out, depth + 1)
    }

    /// Wraps text that has passed the gate and has no white space between tokens.
    pub(crate) fn checked(text: String, depth: usize) -> Self {
        let range = 0..text.len();
        Self { source: Arc::new(text), range, depth }
    }

    /// Returns a part of a source; a part with white space is copied without it.
    pub(super) fn part(
        source: &Arc<String>,
        range: Range<usize>,
        depth: usize,
        blanks: bool,
    ) -> Self {
        match blanks {
            true => Self::checked(compact(source.get(range).unwrap_or_default()), depth),
            false => Self { source: Arc::clone(source), range, depth },
        }
    }

    /// Returns a part of this text; `range` is relative to it.
    pub(crate) fn within(&self, range: Range<usize>, depth: usize) -> Self {
        let range = self.range.start + range.start..self.range.start + range.end;
        Self { source: Arc::clone(&self.source), range, depth }
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.source.get(self.range.clone()).unwrap_or("null")
    }

    /// Returns the length of the text, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.as_str().len()
    }

    /// Returns the nesting depth; a text or a number is 0.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Whether it is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.as_str().starts_with('{')
    }

    /// Whether it is an array.
    #[must_use]
    pub fn is_array(&self) -> bool {
        self.as_str().starts_with('[')
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.as_str() == "null"
    }

    /// Builds a new tree of the text at each call.
    #[must_use]
    pub fn tree(&self) -> Value {
        // Text that has passed the gate is always readable.
        Reader::new(self.as_str()).tree().unwrap_or_default()
    }

    /// Returns the value of a JSON string; `None` for another value.
    #[must_use]
    pub fn as_text(&self) -> Option<Cow<'_, str>> {
        let mut reader = Reader::new(self.as_str());
        if reader.kind() == Kind::Text { reader.text().ok() } else { None }
    }

    /// Returns the document with the changes of `rules`; `None` if nothing changes.
    #[must_use]
    pub fn rewritten(&self, rules: &mut impl Rewrite) -> Option<Self> {
        // Text that has passed the gate is always readable.
        let text = rewrite(self.as_str(), rules).ok()??;
        Some(Self::checked(text, self.depth))
    }

    /// Returns the members of an object in their order; empty for another value.
    #[must_use]
    pub fn members(&self) -> Vec<(Cow<'_, str>, Self)> {
        let mut all = Vec::new();
        let mut reader = Reader::new(self.as_str());
        if reader.kind() == Kind::Object {
            // Text that has passed the gate is always readable.
            let _ = reader.members(|reader, name| {
                let (range, depth) = reader.skip_measured()?;
                all.push((name.clone(), self.within(range, depth)));
                Ok(())
            });
        }
        all
    }

    /// Returns the items of an array; empty for another value.
    #[must_use]
    pub fn items(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut reader = Reader::new(self.as_str());
        if reader.kind() == Kind::Array {
            // Text that has passed the gate is always readable.
            let _ = reader.items(|reader| {
                let (range, depth) = reader.skip_measured()?;
                all.push(self.within(range, depth));
                Ok(())
            });
        }
        all
    }
}

/// Returns `text`, which is JSON, without white space between its tokens.
fn compact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c == '"' || c.is_ascii_whitespace()) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let length = match from.starts_with('"') {
            true => text_length(from),
            false => 0,
        };
        out.push_str(from.get(..length).unwrap_or_default());
        rest = from.get(length.max(1)..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Returns the length, in bytes, of the quoted text at the beginning of `from`.
fn text_length(from: &str) -> usize {
    let bytes = from.as_bytes();
    let mut at = 1;
    loop {
        at += plain_length(bytes.get(at..).unwrap_or_default());
        match bytes.get(at) {
            Some(b'\\') => at += 2,
            Some(_) => return at + 1,
            None => return bytes.len(),
        }
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for JsonText {}

/// Compares by value: the order of members and the escapes of texts are ignored. Numbers are equal if
/// their digits are equal, so `1.0` and `1.00` differ.
impl PartialEq<Value> for JsonText {
    fn eq(&self, other: &Value) -> bool {
        self.tree() == *other
    }
}

/// The name by which `serde_json` recognises text that it must write unchanged. Its `RawValue` cannot be
/// created from text without another pass. A test checks that the name is unchanged.
const VERBATIM: &str = "$serde_json::private::RawValue";

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut verbatim = serializer.serialize_struct(VERBATIM, 1)?;
        verbatim.serialize_field(VERBATIM, self.as_str())?;
        verbatim.end()
    }
}

impl<'de> Deserialize<'de> for JsonText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Self::parse(Box::<str>::from(raw)).map_err(D::Error::custom)
    }
}

#[cfg(feature = "schemars")]
impl JsonSchema for JsonText {
    fn schema_name() -> Cow<'static, str> {
        Value::schema_name()
    }
    fn schema_id() -> Cow<'static, str> {
        Value::schema_id()
    }
    fn inline_schema() -> bool {
        Value::inline_schema()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Value::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::depth;
    use super::*;

    #[test]
    fn text_goes_out_as_it_came_in() {
        #[derive(Serialize, Deserialize, PartialEq, Debug)]
        struct Record {
            before: u8,
            text: Option<JsonText>,
            after: Vec<JsonText>,
        }
        let text =
            r#"{"before":1,"text":{"b":1.0,"a":"\u00e4\/"},"after":[9007199254740993,null]}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        let value = serde_json::to_value(&record).unwrap();
        assert_eq!(value["text"], json!({"b": 1.0, "a": "ä/"}));
        assert_eq!(
            serde_json::from_value::<Record>(value).unwrap().text.unwrap().as_str(),
            r#"{"b":1.0,"a":"ä/"}"#
        );
        assert_eq!(serde_json::to_string(&JsonText::of_text("a\"\n")).unwrap(), r#""a\"\n""#);
    }

    #[test]
    fn blanks_between_tokens_go_and_those_within_texts_stay() {
        let text = JsonText::parse(" { \"a \\\" b\" : [ 1 ,\n2 ] ,\t\"c\" : \" \" } ").unwrap();
        assert_eq!(text.as_str(), r#"{"a \" b":[1,2],"c":" "}"#);
        assert_eq!((text.depth(), text.members().len()), (2, 2));
        assert_eq!(text.members()[0].1.items()[1].as_str(), "2");
        assert_eq!(JsonText::parse(" 1 ").unwrap().as_str(), "1");
    }

    #[test]
    fn what_the_gate_refuses_is_no_text() {
        for text in [r#"{"a":1,"a":2}"#, "[1e400]", r#""\ud800""#, "[1] 2", ""] {
            assert!(JsonText::parse(text).is_err(), "{text}");
            assert!(serde_json::from_str::<JsonText>(text).is_err(), "{text}");
        }
        let deep = "[".repeat(129) + &"]".repeat(129);
        assert!(JsonText::parse(deep).is_err());
        let large: Value = serde_json::from_str("[1, {\"a\": 1e400}]").unwrap();
        assert_eq!(JsonText::of(&large).unwrap_err().pointer(), "/1/a");
        let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        assert_eq!(JsonText::of(&nested(128)).unwrap().depth(), 128);
        assert!(JsonText::of(&nested(129)).is_err());
        assert!(JsonText::of(&json!({ VERBATIM: "[" })).is_err());
    }

    proptest::proptest! {
        #[test]
        fn the_text_has_the_value_of_what_it_was_read_from(text in r#"[\[\]{}",:0-9eE.\- a\\u\n]{0,24}"#) {
            if let Ok(value) = super::super::parse(text.as_bytes()) {
                let kept = JsonText::parse(text).unwrap();
                proptest::prop_assert_eq!(kept.tree(), value.clone());
                proptest::prop_assert_eq!(kept.depth(), depth(&value));
                let again = JsonText::of(&value).unwrap();
                proptest::prop_assert_eq!(again.as_str(), value.to_string());
                proptest::prop_assert_eq!(again.depth(), kept.depth());
                proptest::prop_assert_eq!(compact(kept.as_str()), kept.as_str());
            }
        }
    }
}
