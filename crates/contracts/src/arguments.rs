//! The arguments of a call: the text as it came, and the tree that the gate made of it.
//!
//! They are parsed once. What was judged is, by its type, what an executor gets.
//!
//! Path: 4, 7. Doc: contract.md#json-safe

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{JsonFault, Reader, parse_text};

/// The arguments of a call, an object. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Arguments(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    text: Box<RawValue>,
    tree: Value,
    line_breaks: bool,
}

/// Text that is no arguments.
#[derive(Debug, Clone)]
pub struct UnfitArguments {
    /// The text as it came.
    pub text: Box<RawValue>,
    /// Why they are none.
    pub reason: Unfit,
}

/// Why a text is no arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum Unfit {
    /// It does not pass the gate.
    Json(JsonFault),
    /// It is another value than an object.
    NoObject(Value),
}

impl Arguments {
    /// Takes a text through the gate.
    ///
    /// # Errors
    /// [`UnfitArguments`], with the text.
    pub fn parse(text: Box<RawValue>) -> Result<Self, UnfitArguments> {
        let mut reader = Reader::new(text.get());
        let reason = match parse_text(&mut reader) {
            Ok(tree) if tree.is_object() => {
                let line_breaks = reader.has_line_breaks();
                return Ok(Self(Arc::new(Parsed { text, tree, line_breaks })));
            }
            Ok(other) => Unfit::NoObject(other),
            Err(fault) => Unfit::Json(fault),
        };
        Err(UnfitArguments { text, reason })
    }

    /// The text as it came.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.text.get()
    }

    /// The text on one line: line breaks between tokens, the only ones that JSON can have, are blanks.
    #[must_use]
    pub fn on_one_line(&self) -> Cow<'_, str> {
        match self.0.line_breaks {
            true => Cow::Owned(self.as_str().replace(['\n', '\r'], " ")),
            false => Cow::Borrowed(self.as_str()),
        }
    }

    /// The tree, an object.
    #[must_use]
    pub fn tree(&self) -> &Value {
        &self.0.tree
    }

    /// Bytes of the text.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.as_str().len()
    }
}

impl Default for Arguments {
    /// No arguments: `{}`.
    fn default() -> Self {
        let text = RawValue::from_string("{}".to_owned());
        Self(Arc::new(Parsed {
            text: text.unwrap_or_else(|_| RawValue::NULL.to_owned()),
            tree: Value::Object(serde_json::Map::new()),
            line_breaks: false,
        }))
    }
}

/// From a text, for tests and programs that make calls themselves.
impl std::str::FromStr for Arguments {
    type Err = JsonFault;

    fn from_str(text: &str) -> Result<Self, JsonFault> {
        let mut reader = Reader::new(text);
        reader.skip()?;
        reader.end()?;
        let raw = RawValue::from_string(text.to_owned());
        let raw = raw.unwrap_or_else(|_| RawValue::NULL.to_owned());
        Self::parse(raw).map_err(|unfit| match unfit.reason {
            Unfit::Json(fault) => fault,
            Unfit::NoObject(_) => JsonFault::no_object(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn text_and_tree_are_of_one_reading() {
        let text = "{ \"b\": 1e2,\n \"a\": 18446744073709551616 }";
        let arguments = Arguments::parse(raw(text)).unwrap();
        assert_eq!(arguments.as_str(), text);
        assert_eq!(arguments.on_one_line(), "{ \"b\": 1e2,  \"a\": 18446744073709551616 }");
        assert_eq!(arguments.tree()["a"].to_string(), "18446744073709551616");
        assert_eq!(Arguments::default().tree(), &json!({}));
        assert!("[1]".parse::<Arguments>().is_err() && "{".parse::<Arguments>().is_err());
    }

    #[test]
    fn what_is_unfit_is_given_back() {
        let unfit = Arguments::parse(raw(r#"{"a":1,"a":2}"#)).unwrap_err();
        assert_eq!(unfit.text.get(), r#"{"a":1,"a":2}"#);
        assert!(matches!(unfit.reason, Unfit::Json(_)));
        let unfit = Arguments::parse(raw("[1]")).unwrap_err();
        assert_eq!(unfit.reason, Unfit::NoObject(json!([1])));
    }
}
