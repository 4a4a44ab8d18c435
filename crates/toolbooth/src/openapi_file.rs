//! Reads OpenAPI documents from JSON or YAML files.
//!
//! Doc: importing.md#openapi

use std::path::Path;

use serde_json::Value;
use toolbooth_contracts::causes::with_causes;
use toolbooth_import::{ImportError, openapi};

use crate::failure::Failure;
use crate::files;

/// The largest accepted document, in bytes.
const BYTES_MAX: u64 = 32 << 20;

/// Reads the document that a configuration names, which must be a regular file.
pub(crate) fn configured(path: &Path) -> Result<Value, Failure> {
    document(path, files::read_within(path, BYTES_MAX), Failure::configuration)
}

/// Reads the document that a user names, which can be a pipe.
pub(crate) fn named(path: &Path) -> Result<Value, Failure> {
    document(path, files::read_any_within(path, BYTES_MAX), Failure::usage)
}

fn document(
    path: &Path,
    text: std::io::Result<Vec<u8>>,
    failure: impl Fn(String) -> Failure,
) -> Result<Value, Failure> {
    let text = text.map_err(|error| {
        failure(format!("the file cannot be read: {error}")).at(path.display().to_string())
    })?;
    openapi::document(&text).map_err(|error| {
        let location = match error {
            ImportError::JsonAt { line, column, .. } => {
                format!("{}:{line}:{column}", path.display())
            }
            _ => path.display().to_string(),
        };
        failure(with_causes(&error)).at(location)
    })
}
