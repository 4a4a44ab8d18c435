//! The tools that come with the gateway: `[builtin]`.
//!
//! Doc: configuration.md

use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

/// The tools that are compiled in.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Builtin {
    /// Folders that files are read beneath; absent = the working directory.
    pub(crate) roots: Option<Vec<PathBuf>>,
    /// Where searches go.
    pub(crate) web_search: WebSearch,
}

/// Where searches go.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebSearch {
    /// A URL that answers in the SearXNG JSON form.
    pub(crate) endpoint: Option<String>,
    /// How long an answer may take, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
}
