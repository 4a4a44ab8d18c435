#![doc = include_str!("../README.md")]

pub mod auth;
mod error;
pub mod http;
pub mod mcp;
mod message_size;
pub mod operator_socket;
pub mod peer;
mod toolset_path;

use std::sync::Arc;

use toolbooth_proxy::{AsyncCalls, Catalogue, ToolProxy};

/// The services behind the front doors.
#[derive(Clone)]
pub struct Gateway {
    /// The proxy that every call passes.
    pub proxy: ToolProxy,
    /// The queue of asynchronous calls.
    pub calls: AsyncCalls,
    /// The tools, prompts and resources that callers may see.
    pub catalogue: Arc<Catalogue>,
    /// The listing mode of `tools/list`.
    pub listing: Listing,
    /// Bytes of one message over stdio.
    pub message_bytes_max: usize,
    /// The `toolbooth/dialect` in `_meta` of a model with strict declarations. Nulls that only
    /// these declarations allow are then removed from its arguments.
    pub strict_dialect: &'static str,
}

pub use error::ServeError;

/// The listing mode of `tools/list`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Listing {
    /// Every tool that the caller may see.
    #[default]
    All,
    /// `search_tools` and `call_tool`, which find and call the other tools.
    Search,
}
