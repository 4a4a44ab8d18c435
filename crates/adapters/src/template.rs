//! Texts with placeholders for arguments: `{name}`, `{name?}` for an optional one, `{{` and `}}`
//! for braces.
//!
//! Path: 7. Doc: execution.md#templates

use serde_json::Value;

use crate::error::{FillError, TemplateError};

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(pub(crate) Vec<Piece>);

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Literal text.
    Text(String),
    /// A placeholder.
    Placeholder(Placeholder),
}

/// A placeholder for an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placeholder {
    /// The member names that lead to the argument.
    path: Vec<String>,
    optional: bool,
}

impl Template {
    /// Parses a text.
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, after) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = after.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = after.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else {
                let placeholder = after.strip_prefix('{').and_then(|after| after.split_once('}'));
                let (inner, after) =
                    placeholder.ok_or_else(|| TemplateError::LoneBrace(text.to_owned()))?;
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(Piece::Placeholder(Placeholder::parse(inner, text)?));
                rest = after;
            }
        }
        plain.push_str(rest);
        if !plain.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self(pieces))
    }

    /// Returns the placeholder, if the text consists of it alone.
    pub(crate) fn alone(&self) -> Option<&Placeholder> {
        match self.0.as_slice() {
            [Piece::Placeholder(placeholder)] => Some(placeholder),
            _ => None,
        }
    }

    /// Returns the placeholders of the text.
    pub(crate) fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Placeholder(placeholder) => Some(placeholder),
            Piece::Text(_) => None,
        })
    }

    /// Returns the text with the arguments that `fill` writes; it gets the text so far. `None` if an optional
    /// argument is missing.
    pub(crate) fn fill(
        &self,
        arguments: &Value,
        mut fill: impl FnMut(&str, &str, &Placeholder) -> Result<String, FillError>,
    ) -> Result<Option<String>, FillError> {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Placeholder(placeholder) => {
                    let Some(value) = placeholder.look_up(arguments)? else { return Ok(None) };
                    let text = fill(&out, &placeholder.text(value)?, placeholder)?;
                    out.push_str(&text);
                }
            }
        }
        Ok(Some(out))
    }
}

impl Placeholder {
    fn parse(inner: &str, text: &str) -> Result<Self, TemplateError> {
        let (name, optional) = match inner.strip_suffix('?') {
            Some(name) => (name, true),
            None => (inner, false),
        };
        let path: Vec<String> = name.split('.').map(str::to_owned).collect();
        if path.iter().any(String::is_empty) {
            return Err(TemplateError::NamelessPlaceholder(text.to_owned()));
        }
        Ok(Self { path, optional })
    }

    /// Whether the argument is optional.
    #[cfg(feature = "endpoint")]
    pub(crate) fn is_optional(&self) -> bool {
        self.optional
    }

    /// Returns the path of the argument in the form in which an operator writes it.
    pub(crate) fn shown(&self) -> String {
        self.path.join(".")
    }

    /// Returns the top-level member that contains the argument.
    #[cfg(feature = "endpoint")]
    pub(crate) fn member(&self) -> &str {
        self.path.first().map_or("", String::as_str)
    }

    /// Returns the argument; `None` if it is optional and missing.
    pub(crate) fn look_up<'v>(&self, arguments: &'v Value) -> Result<Option<&'v Value>, FillError> {
        let mut value = Some(arguments);
        for name in &self.path {
            value = value.and_then(|value| value.get(name));
        }
        match value.filter(|value| !value.is_null()) {
            None if !self.optional => Err(FillError::Missing(self.shown())),
            found => Ok(found),
        }
    }

    /// Returns an argument as text.
    pub(crate) fn text(&self, value: &Value) -> Result<String, FillError> {
        match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(_) | Value::Bool(_) => Ok(value.to_string()),
            _ => Err(FillError::NoText(self.shown())),
        }
    }
}
