//! The failure of a command: a code, a message, a place, a hint and an exit code.
//!
//! Doc: formats.md#exit-codes

use serde_json::{Map, Value, json};

/// The call or check failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage or configuration.
pub(crate) const USAGE: u8 = 2;
/// The store or a server is unavailable.
pub(crate) const OUT_OF_REACH: u8 = 3;

/// The reason why a command fails.
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

    /// Returns a failure for wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    /// Returns a failure for a wrong configuration.
    pub(crate) fn configuration(message: impl Into<String>) -> Self {
        Self::new(USAGE, "invalid-configuration", message)
    }

    /// Returns a failure for a store that cannot be used.
    pub(crate) fn store(message: impl Into<String>) -> Self {
        let hint = "see `toolbooth doctor`";
        Self::new(OUT_OF_REACH, "store-unavailable", message).hint(hint)
    }

    /// Returns a failure that only sets the exit code, because the message was already printed.
    pub(crate) fn silent(exit: u8) -> Self {
        Self::new(exit, "", "")
    }

    /// Whether the failure has no message to print.
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
