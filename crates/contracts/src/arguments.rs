//! The arguments of a call: the received text, and the tree that the gate built from it.
//!
//! They are parsed once. By its type, an executor accepts only guarded arguments.
//!
//! Path: 4, 7. Doc: contract.md#json-safe

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{JsonFault, JsonText, Reader, parse_text};
#[cfg(feature = "schema")]
use crate::json::{hazardous_keys, pointer};
use crate::result::ArgumentError;
#[cfg(feature = "schema")]
use crate::schema::CompiledSchema;

/// The arguments of a call, an object. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Arguments(Arc<Parsed>);

#[derive(Debug)]
struct Parsed {
    text: Box<RawValue>,
    tree: Value,
    line_breaks: bool,
}

/// Text that is not valid as arguments.
#[derive(Debug, Clone)]
pub struct UnfitArguments {
    /// The received text.
    pub text: Box<RawValue>,
    /// The reason.
    pub reason: Unfit,
}

/// The reason why a text is not valid as arguments.
#[derive(Debug, Clone, PartialEq)]
pub enum Unfit {
    /// It does not pass the gate.
    Json(JsonFault),
    /// It is a value other than an object.
    NoObject(Value),
}

impl Unfit {
    /// Returns the reason as a finding for the agent; it contains the place and no value.
    #[must_use]
    pub fn to_error(&self) -> ArgumentError {
        match self {
            Self::Json(fault) => hygiene(fault.pointer(), &fault.message),
            Self::NoObject(_) => hygiene(String::new(), "arguments must be an object"),
        }
    }
}

fn hygiene(path: String, message: &str) -> ArgumentError {
    ArgumentError { path, keyword: "hygiene".to_owned(), message: message.to_owned() }
}

impl Arguments {
    /// Parses a text through the gate.
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

    /// Returns the received text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.text.get()
    }

    /// Returns the text on one line: line breaks are replaced by blanks. JSON can contain line breaks
    /// only between tokens.
    #[must_use]
    pub fn on_one_line(&self) -> Cow<'_, str> {
        match self.0.line_breaks {
            true => Cow::Owned(self.as_str().replace(['\n', '\r'], " ")),
            false => Cow::Borrowed(self.as_str()),
        }
    }

    /// Returns the tree, an object.
    #[must_use]
    pub fn tree(&self) -> &Value {
        &self.0.tree
    }

    /// Returns the length of the text, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.as_str().len()
    }

    /// Checks a tree by the gate; its text is the one that is written from it.
    ///
    /// # Errors
    /// The tree, where it does not pass the gate or is not an object.
    pub fn of(tree: Value) -> Result<Self, Value> {
        let text = JsonText::of(&tree).ok().filter(|_| tree.is_object());
        match text.and_then(|text| RawValue::from_string(text.to_string()).ok()) {
            Some(text) => Ok(Self(Arc::new(Parsed { text, tree, line_breaks: false }))),
            None => Err(tree),
        }
    }

    /// Returns the arguments with `change` applied to the tree; the same text if nothing changes. A
    /// changed tree that does not pass the gate, or is not an object, is discarded.
    #[must_use]
    pub fn changed(self, change: impl FnOnce(&mut Value)) -> Self {
        let mut tree = self.tree().clone();
        change(&mut tree);
        if tree == *self.tree() {
            return self;
        }
        Self::of(tree).unwrap_or(self)
    }
}

/// Arguments that have passed the guard of a call (stage 4). An executor receives only these, and only
/// the guard can create them.
///
/// ```
/// # use toolbooth_contracts::schema::CompiledSchema;
/// # use toolbooth_contracts::{Arguments, GuardedArguments};
/// let arguments: Arguments = "{}".parse().unwrap();
/// let anything = CompiledSchema::compile(&serde_json::json!({})).unwrap();
/// let guarded: GuardedArguments = GuardedArguments::guard(arguments, &anything, None).unwrap();
/// ```
///
/// ```compile_fail
/// # use toolbooth_contracts::{Arguments, GuardedArguments};
/// let arguments: Arguments = "{}".parse().unwrap();
/// let guarded: GuardedArguments = GuardedArguments(arguments);
/// ```
///
/// ```compile_fail
/// # use toolbooth_contracts::{Arguments, GuardedArguments};
/// let arguments: Arguments = "{}".parse().unwrap();
/// let guarded: GuardedArguments = arguments.into();
/// ```
///
/// ```compile_fail
/// # use toolbooth_contracts::{Arguments, GuardedArguments};
/// let guarded: GuardedArguments = "{}".parse().unwrap();
/// ```
///
/// ```compile_fail
/// # use toolbooth_contracts::{Arguments, GuardedArguments};
/// let guarded: GuardedArguments = serde_json::from_value(serde_json::json!({})).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct GuardedArguments(Arguments);

#[cfg(feature = "schema")]
impl GuardedArguments {
    /// Checks arguments by their keys, by `bytes_max`, and by the schema of the tool.
    ///
    /// # Errors
    /// Everything that is wrong with them; at least one finding.
    pub fn guard(
        arguments: Arguments,
        schema: &CompiledSchema,
        bytes_max: Option<usize>,
    ) -> Result<Self, Vec<ArgumentError>> {
        let tree = arguments.tree();
        let mut errors: Vec<ArgumentError> = hazardous_keys(tree)
            .iter()
            .map(|path| hygiene(pointer(path), "this key is not allowed"))
            .collect();
        if let Some(most) = bytes_max
            && arguments.bytes() > most
        {
            let message = format!("the tool takes at most {most} bytes");
            let keyword = "maxAssetBytes".to_owned();
            errors.push(ArgumentError { path: String::new(), keyword, message });
        }
        errors.extend(schema.errors(tree));
        if errors.is_empty() { Ok(Self(arguments)) } else { Err(errors) }
    }
}

impl Deref for GuardedArguments {
    type Target = Arguments;

    fn deref(&self) -> &Arguments {
        &self.0
    }
}

impl Default for Arguments {
    /// Returns empty arguments: `{}`.
    fn default() -> Self {
        let text = RawValue::from_string("{}".to_owned());
        Self(Arc::new(Parsed {
            text: text.unwrap_or_else(|_| RawValue::NULL.to_owned()),
            tree: Value::Object(serde_json::Map::new()),
            line_breaks: false,
        }))
    }
}

/// Parses a text, for tests and programs that make calls themselves.
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
    fn a_change_is_read_again_and_no_change_keeps_the_text() {
        let arguments: Arguments = r#"{ "a": null, "b": 1.0 }"#.parse().unwrap();
        let same = arguments.clone().changed(|_| ());
        assert_eq!(same.as_str(), arguments.as_str());
        let changed = arguments.clone().changed(|tree| {
            tree.as_object_mut().unwrap().shift_remove("a");
        });
        assert_eq!((changed.as_str(), changed.tree()), (r#"{"b":1.0}"#, &json!({"b": 1.0})));
        assert_eq!(
            arguments.changed(|tree| *tree = json!(7)).tree(),
            &json!({"a": null, "b": 1.0})
        );
    }

    #[cfg(feature = "schema")]
    #[test]
    fn all_that_is_wrong_is_told_and_only_then_there_are_none() {
        let schema = CompiledSchema::compile(&json!({"required": ["b"]})).unwrap();
        let guard = |text: &str, most| {
            let judged = GuardedArguments::guard(text.parse().unwrap(), &schema, most);
            judged
                .map(|guarded| guarded.as_str().to_owned())
                .map_err(|errors| errors.into_iter().map(|error| error.keyword).collect::<Vec<_>>())
        };
        assert_eq!(guard(r#"{"b": 1}"#, Some(8)), Ok(r#"{"b": 1}"#.to_owned()));
        let all = guard(r#"{"__proto__":{}}"#, Some(8)).unwrap_err();
        assert_eq!(all, ["hygiene", "maxAssetBytes", "required"]);
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
