//! The settings of the built-in tools: `[builtin]`.
//!
//! Doc: configuration.md

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// The built-in tools.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Builtin {
    /// Folders from which files can be read; absent = the working directory.
    pub(crate) roots: Option<Vec<PathBuf>>,
    /// Web search.
    pub(crate) web_search: WebSearch,
}

/// The web search endpoint.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebSearch {
    /// The URL of an endpoint that responds in the SearXNG JSON format.
    pub(crate) endpoint: Option<String>,
    /// Timeout of a response, in milliseconds.
    pub(crate) timeout_ms: Option<u64>,
}
