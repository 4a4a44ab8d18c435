//! JSON Schemas, compiled once: offline, formats asserted, linear regular expressions, masked
//! messages.
//!
//! Path: 4. Doc: contract.md#schemas

use std::fmt;

use jsonschema::error::ValidationErrorKind;
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Value, json};

use crate::id::nearest;
use crate::json::{Step, dotted};
use crate::result::ArgumentError;
use crate::schema_graph::{SchemaGraph, examine};

/// Maximum number of errors that one check reports.
pub const ERRORS_MAX: usize = 100;
/// Maximum memory of one compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A fault of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaFault {
    /// The place in the schema.
    pub path: Vec<Step>,
    /// The expected form, in one sentence.
    pub message: String,
}

impl fmt::Display for SchemaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", dotted(&self.path), self.message)
    }
}

impl std::error::Error for SchemaFault {}

/// Compiles the schemas that schemas are judged by, for a thread that runs beside others, so that the first
/// schema does not wait as long.
pub fn prepare() {
    // Its result has no use: only what is compiled once for all schemas has.
    let _ = CompiledSchema::compile(&json!({ "type": "object" }));
}

/// A compiled schema that judges values.
pub struct CompiledSchema {
    /// `None` for `{}` and `true`, which accept everything: most results have such a schema.
    validator: Option<Validator>,
    /// Names of the root's properties, for hints.
    properties: Box<[String]>,
    /// Counts the cost of an instance, if the schema recurses or has many paths.
    graph: Option<Box<SchemaGraph>>,
}

impl fmt::Debug for CompiledSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledSchema")
            .field("trivial", &self.validator.is_none())
            .finish_non_exhaustive()
    }
}

impl CompiledSchema {
    /// Compiles `schema`: draft 2020-12 unless its `$schema` names another known draft. Nothing is
    /// fetched.
    ///
    /// # Errors
    /// A [`SchemaFault`] where it is not a schema, a pattern is not linear or too large, a reference
    /// leaves the document, or references double or are cyclic.
    pub fn compile(schema: &Value) -> Result<Self, SchemaFault> {
        let trivial = match schema {
            Value::Bool(true) => true,
            Value::Object(members) => members.is_empty(),
            _ => false,
        };
        if trivial {
            return Ok(Self { validator: None, properties: Box::default(), graph: None });
        }
        let graph = examine(schema).map_err(|objection| SchemaFault {
            path: objection.path,
            message: objection.message,
        })?;
        let validator = jsonschema::options()
            .offline()
            .should_validate_formats(true)
            .with_pattern_options(
                PatternOptions::regex()
                    .size_limit(PATTERN_BYTES_MAX)
                    .dfa_size_limit(PATTERN_BYTES_MAX),
            )
            .build(schema)
            .map_err(|error| SchemaFault {
                path: steps(schema, error.instance_path().as_str()),
                message: match error.kind() {
                    ValidationErrorKind::Referencing(_) => {
                        format!("a reference cannot be followed: {error}")
                    }
                    _ => error.masked().to_string(),
                },
            })?;
        let properties = schema
            .get("properties")
            .and_then(Value::as_object)
            .map(|properties| properties.keys().cloned().collect())
            .unwrap_or_default();
        Ok(Self { validator: Some(validator), properties, graph: graph.map(Box::new) })
    }

    /// Whether the schema accepts everything.
    #[must_use]
    pub fn accepts_everything(&self) -> bool {
        self.validator.is_none()
    }

    /// Returns the errors of `value`, at most [`ERRORS_MAX`], sorted by place. Messages mask values and
    /// contain only names of the schema's own properties.
    #[must_use]
    pub fn errors(&self, value: &Value) -> Vec<ArgumentError> {
        if self.graph.as_ref().is_some_and(|graph| !graph.can_judge(value)) {
            return vec![ArgumentError {
                path: String::new(),
                keyword: "$ref".to_owned(),
                message: "nested so deeply that the schema cannot be judged within bounds"
                    .to_owned(),
            }];
        }
        let Some(validator) = self.validator.as_ref().filter(|own| !own.is_valid(value)) else {
            return Vec::new();
        };
        let mut errors: Vec<ArgumentError> =
            validator.iter_errors(value).take(ERRORS_MAX).map(|error| self.tell(&error)).collect();
        errors.sort_by(|a, b| {
            (&a.path, &a.keyword, &a.message).cmp(&(&b.path, &b.keyword, &b.message))
        });
        errors.dedup();
        errors
    }

    fn tell(&self, error: &ValidationError<'_>) -> ArgumentError {
        let mut path = error.instance_path().as_str().to_owned();
        let keyword = error.kind().keyword().to_owned();
        let message = match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected }
            | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
                // Names may be repeated, because the agent itself wrote them.
                let name = unexpected.first().map_or("", String::as_str);
                path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                let known = nearest(name, self.properties.iter().map(String::as_str));
                let told = match known {
                    Some(known) => format!("no such property, did you mean `{known}`?"),
                    None => "no such property".to_owned(),
                };
                match unexpected.len().saturating_sub(1) {
                    0 => told,
                    others => format!("{told} ({others} more of its kind)"),
                }
            }
            ValidationErrorKind::PropertyNames { .. } => {
                "a property name is not allowed".to_owned()
            }
            _ => error.masked().to_string(),
        };
        ArgumentError { path, keyword, message }
    }
}

/// Returns the steps of a JSON Pointer in `value`.
fn steps(value: &Value, pointer: &str) -> Vec<Step> {
    let mut here = Some(value);
    let mut out = Vec::new();
    for token in pointer.split('/').skip(1) {
        let key = token.replace("~1", "/").replace("~0", "~");
        match (here, key.parse::<usize>()) {
            (Some(Value::Array(items)), Ok(index)) => {
                here = items.get(index);
                out.push(Step::Index(index));
            }
            (other, _) => {
                here = other.and_then(|value| value.get(&key));
                out.push(Step::Key(key));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::parse;

    fn schema(text: &str) -> Result<CompiledSchema, SchemaFault> {
        CompiledSchema::compile(&parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn all_errors_are_told_and_values_are_masked() {
        let schema = schema(
            r#"{"type":"object","required":["b"],"properties":{"a":{"type":"integer","maximum":5},"mail":{"type":"string","format":"email"}},"additionalProperties":false}"#,
        )
        .unwrap();
        let value = parse(br#"{"a":77777,"mail":"hunter2","maul":1}"#).unwrap();
        let errors = schema.errors(&value);
        let told: Vec<(&str, &str)> =
            errors.iter().map(|e| (e.path.as_str(), e.keyword.as_str())).collect();
        assert_eq!(
            told,
            [
                ("", "required"),
                ("/a", "maximum"),
                ("/mail", "format"),
                ("/maul", "additionalProperties")
            ]
        );
        let all = format!("{errors:?}");
        assert!(!all.contains("hunter2") && !all.contains("77777"), "{all}");
        assert!(all.contains("did you mean `mail`"), "{all}");
    }

    #[test]
    fn numbers_are_exact() {
        let exact = schema(r#"{"maximum":9007199254740992}"#).unwrap();
        assert_eq!(exact.errors(&parse(b"9007199254740993").unwrap()).len(), 1);
        let exact = schema(r#"{"const":18446744073709551615}"#).unwrap();
        assert!(exact.errors(&parse(b"18446744073709551615").unwrap()).is_empty());
        assert_eq!(exact.errors(&parse(b"18446744073709551614").unwrap()).len(), 1);
    }

    #[test]
    fn unsafe_schemas_are_refused() {
        for text in [
            r#"{"$ref":"https://example.com/s.json"}"#,
            r##"{"$ref":"#/$defs/none"}"##,
            r#"{"pattern":"("}"#,
            r#"{"pattern":"(?=a)b"}"#,
            r#"{"pattern":"(a{1000}){1000}"}"#,
            r#"{"$schema":"https://example.com/other"}"#,
            r#"{"type":"strin"}"#,
        ] {
            assert!(schema(text).is_err(), "{text}");
        }
    }
}
