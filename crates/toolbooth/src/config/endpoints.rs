//! The settings of HTTP endpoints.
//!
//! Doc: configuration.md

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::setting::Setting;

/// An HTTP endpoint: one request from a template, or the operations of an OpenAPI document.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Endpoint {
    /// The URL of the request, or the base URL for the paths of an OpenAPI document.
    pub(crate) url: Option<String>,
    /// The method; absent = `GET`, with a body `POST`.
    pub(crate) method: Option<String>,
    /// Query parameters.
    pub(crate) query: BTreeMap<String, String>,
    /// Headers.
    pub(crate) headers: BTreeMap<String, Setting>,
    /// The body: a JSON document in which `"{name}"` is replaced by an argument; absent = all arguments
    /// without another use, for methods with a body.
    pub(crate) body: Option<serde_json::Value>,
    /// An OpenAPI 3 document.
    pub(crate) openapi: Option<PathBuf>,
    /// Whether connections to addresses that are not public are allowed.
    pub(crate) allow_private: bool,
    /// Redirects that are followed.
    pub(crate) redirects: u32,
    /// Bytes of a response, decompressed.
    pub(crate) response_bytes_max: Option<usize>,
    /// Timeout of connecting, in milliseconds.
    pub(crate) connect_timeout_ms: Option<u64>,
    /// The header that carries the idempotency key; without it `Idempotency-Key`.
    pub(crate) idempotency_header: Option<String>,
    /// A PEM file with certificate authorities that are trusted in addition to those of the system.
    pub(crate) ca_file: Option<PathBuf>,
}
