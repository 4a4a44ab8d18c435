//! How a command fails: a code, a sentence, a place and what to do, on one exit code.
//!
//! Doc: formats.md#exit-codes

use serde_json::{Map, Value, json};

/// The call or check failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// Store or server out of reach.
pub(crate) const OUT_OF_REACH: u8 = 3;

/// Why a command ends without success.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) exit: u8,
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) path: Option<String>,
    pub(crate) hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: u8, code: &'static str, message: impl Into<String>) -> Self {
        Self { exit, code, message: message.into(), path: None, hint: None }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    /// Wrong configuration.
    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(USAGE, "invalid-configuration", message)
    }

    /// The store cannot be used.
    pub(crate) fn store(message: impl Into<String>) -> Self {
        let hint = "see `toolbooth doctor`";
        Self::new(OUT_OF_REACH, "store-unavailable", message).hint(hint)
    }

    /// Ends with an exit code alone: what there is to say was said.
    pub(crate) fn silent(exit: u8) -> Self {
        Self::new(exit, "", "")
    }

    /// Whether there is nothing more to say.
    pub(crate) fn is_silent(&self) -> bool {
        self.code.is_empty()
    }

    pub(crate) fn at(mut self, path: impl Into<String>) -> Self {
        self.path = Some(path.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn json(&self) -> Value {
        let mut error = Map::new();
        error.insert("code".to_owned(), json!(self.code));
        error.insert("message".to_owned(), json!(self.message));
        if let Some(path) = &self.path {
            error.insert("path".to_owned(), json!(path));
        }
        if let Some(hint) = &self.hint {
            error.insert("hint".to_owned(), json!(hint));
        }
        json!({ "error": error })
    }

    pub(crate) fn text(&self) -> String {
        let mut out = format!("error: {}", self.message);
        if let Some(path) = &self.path {
            out = format!("{out}\n  at: {path}");
        }
        if let Some(hint) = &self.hint {
            out = format!("{out}\n  help: {hint}");
        }
        out
    }
}
