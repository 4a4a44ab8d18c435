#![doc = include_str!("../README.md")]

pub mod auth;
pub mod http;
pub mod mcp;
pub mod peer;

use std::sync::Arc;

use toolbooth_proxy::{AsyncCalls, Catalogue, RecordRoom, ToolProxy};

/// What the front doors open onto.
#[derive(Clone)]
pub struct House {
    /// The way to tools.
    pub proxy: ToolProxy,
    /// Calls that are handed over now and run later.
    pub calls: AsyncCalls,
    /// What was written down, for operators.
    pub records: RecordRoom,
    /// What callers may see.
    pub catalogue: Arc<Catalogue>,
    /// What MCP clients are listed.
    pub listing: Listing,
    /// The words by which a request says that its model was given strict declarations; nulls that
    /// these made possible are dropped then.
    pub strict_dialect: &'static str,
}

/// What MCP clients are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Listing {
    /// Every tool that the caller may see.
    #[default]
    All,
    /// Two tools, by which agents find and call the others.
    Search,
}
