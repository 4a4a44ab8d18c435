//! Writes arguments as the parameters of an operation, in the styles of OpenAPI 3.1 (4.8.12).
//!
//! Path: 7. Doc: execution.md#endpoints

use serde_json::Value;

use super::request::{encoded, is_json, segment};
use crate::error::FillError;

/// A parameter of the path or of the query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameter {
    /// The name of the argument.
    pub(super) argument: String,
    pub(super) name: String,
    pub(super) style: Style,
}

/// How a value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// A part of the path: `a,b`.
    Simple,
    /// A part of the path: `.a,b`, with `explode` `.a.b`.
    Label { explode: bool },
    /// A part of the path: `;name=a,b`, with `explode` `;name=a;name=b`.
    Matrix { explode: bool },
    /// A part of the path that is one JSON value.
    PathJson,
    /// Of the query: `name=a&name=b`; the members of an object are parameters.
    Exploded,
    /// Of the query: one parameter, with this text between items.
    Joined(&'static str),
    /// Of the query: `name[member]=a`.
    Deep,
    /// Of the query: one JSON value.
    QueryJson,
}

impl Style {
    /// Returns the style of a parameter of a document; `None` for headers and cookies.
    pub(super) fn of(parameter: &Value) -> Option<Self> {
        let text = |name: &str| parameter.get(name).and_then(Value::as_str);
        let explode = parameter.get("explode").and_then(Value::as_bool);
        let content = parameter.get("content").and_then(Value::as_object);
        let has_json = content.is_some_and(|types| types.keys().any(|kind| is_json(kind)));
        Some(match (text("in")?, text("style")) {
            ("path", _) if has_json => Self::PathJson,
            ("path", Some("label")) => Self::Label { explode: explode == Some(true) },
            ("path", Some("matrix")) => Self::Matrix { explode: explode == Some(true) },
            ("path", _) => Self::Simple,
            ("query", _) if has_json => Self::QueryJson,
            ("query", Some("deepObject")) => Self::Deep,
            ("query", Some("pipeDelimited")) if explode != Some(true) => Self::Joined("%7C"),
            ("query", Some("spaceDelimited")) if explode != Some(true) => Self::Joined("%20"),
            ("query", _) if explode == Some(false) => Self::Joined(","),
            ("query", _) => Self::Exploded,
            _ => return None,
        })
    }

    pub(super) fn is_of_path(self) -> bool {
        matches!(self, Self::Simple | Self::Label { .. } | Self::Matrix { .. } | Self::PathJson)
    }
}

impl Parameter {
    /// Returns the text of a parameter of the path.
    pub(super) fn in_path(&self, value: &Value) -> Result<String, FillError> {
        let items = || -> Result<Vec<String>, FillError> {
            let item = |item: &Value| segment(&self.scalar(item)?, &self.argument);
            match value {
                // An empty list is no part of a path.
                Value::Array(items) if items.is_empty() => {
                    Err(FillError::NoSegment(self.argument.clone()))
                }
                Value::Array(items) => items.iter().map(item).collect(),
                one => Ok(vec![item(one)?]),
            }
        };
        let named = |text: String| format!("{}={text}", encoded(&self.name));
        Ok(match self.style {
            Style::PathJson => encoded(&value.to_string()),
            Style::Label { explode } => {
                format!(".{}", items()?.join(if explode { "." } else { "," }))
            }
            Style::Matrix { explode: true } => {
                let items = items()?.into_iter().map(named);
                format!(";{}", items.collect::<Vec<_>>().join(";"))
            }
            Style::Matrix { explode: false } => format!(";{}", named(items()?.join(","))),
            _ => items()?.join(","),
        })
    }

    /// Adds the encoded pairs of a parameter of the query.
    pub(super) fn add_to_query(
        &self,
        value: &Value,
        pairs: &mut Vec<String>,
    ) -> Result<(), FillError> {
        let mut add = |name: &str, text: &str| pairs.push(format!("{}={text}", encoded(name)));
        match (self.style, value) {
            (Style::QueryJson, value) => add(&self.name, &encoded(&value.to_string())),
            (Style::Joined(between), Value::Array(items)) => {
                add(&self.name, &self.items(items)?.join(between));
            }
            (Style::Deep, Value::Object(members)) => {
                for (member, value) in members {
                    add(&format!("{}[{member}]", self.name), &encoded(&self.scalar(value)?));
                }
            }
            (Style::Exploded, Value::Object(members)) => {
                for (member, value) in members {
                    add(member, &encoded(&self.scalar(value)?));
                }
            }
            (Style::Exploded, Value::Array(items)) => {
                self.items(items)?.iter().for_each(|item| add(&self.name, item));
            }
            (Style::Deep, Value::Array(items)) => add(&self.name, &self.items(items)?.join(",")),
            (_, value) => add(&self.name, &encoded(&self.scalar(value)?)),
        }
        Ok(())
    }

    fn items(&self, items: &[Value]) -> Result<Vec<String>, FillError> {
        items.iter().map(|item| self.scalar(item).map(|text| encoded(&text))).collect()
    }

    fn scalar(&self, value: &Value) -> Result<String, FillError> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
            _ => Err(FillError::NoParameter(self.argument.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameter(document: &Value) -> Parameter {
        let style = Style::of(document).unwrap();
        Parameter { argument: "p".into(), name: "p".into(), style }
    }

    #[test]
    fn parameters_of_a_path_have_their_style() {
        let list = json!(["a,b", "c"]);
        for (style, explode, expected) in [
            ("simple", false, "a%2Cb,c"),
            ("simple", true, "a%2Cb,c"),
            ("label", false, ".a%2Cb,c"),
            ("label", true, ".a%2Cb.c"),
            ("matrix", false, ";p=a%2Cb,c"),
            ("matrix", true, ";p=a%2Cb;p=c"),
        ] {
            let own = parameter(&json!({"in": "path", "style": style, "explode": explode}));
            assert_eq!(own.in_path(&list).unwrap(), expected, "{style} {explode}");
        }
        let matrix = parameter(&json!({"in": "path", "style": "matrix"}));
        assert_eq!(matrix.in_path(&json!("M")).unwrap(), ";p=M");
        assert!(matrix.in_path(&json!([])).is_err());
        let simple = parameter(&json!({"in": "path"}));
        for wrong in [json!([]), json!(""), json!(".."), json!({"a": 1}), json!(["a", ".."])] {
            assert!(simple.in_path(&wrong).is_err(), "{wrong}");
        }
        let value = parameter(&json!({"in": "path", "content": {"application/json": {}}}));
        assert_eq!(value.in_path(&json!({"a": 1})).unwrap(), "%7B%22a%22%3A1%7D");
    }

    #[test]
    fn parameters_of_a_query_have_their_style() {
        let (list, object) = (json!(["a,b", "c d"]), json!({"x": 1, "y": "z"}));
        let json = json!({"application/json": {}});
        for (own, value, expected) in [
            (json!({"in": "query"}), &list, "p=a%2Cb&p=c%20d"),
            (json!({"in": "query"}), &object, "x=1&y=z"),
            (json!({"in": "query", "explode": false}), &list, "p=a%2Cb,c%20d"),
            (json!({"in": "query", "style": "pipeDelimited"}), &list, "p=a%2Cb%7Cc%20d"),
            (json!({"in": "query", "style": "spaceDelimited"}), &list, "p=a%2Cb%20c%20d"),
            (
                json!({"in": "query", "style": "pipeDelimited", "explode": true}),
                &list,
                "p=a%2Cb&p=c%20d",
            ),
            (json!({"in": "query", "style": "deepObject"}), &object, "p%5Bx%5D=1&p%5By%5D=z"),
            (
                json!({"in": "query", "content": json}),
                &object,
                "p=%7B%22x%22%3A1%2C%22y%22%3A%22z%22%7D",
            ),
        ] {
            let mut pairs = Vec::new();
            parameter(&own).add_to_query(value, &mut pairs).unwrap();
            assert_eq!(pairs.join("&"), expected, "{own}");
        }
        assert_eq!(Style::of(&json!({"in": "header"})), None);
    }
}
