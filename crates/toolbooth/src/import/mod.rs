//! Takes over what other programs know: MCP clients' servers, and OpenAPI operations.
//!
//! Doc: importing.md

mod clients;
mod draft;
mod install;
pub(crate) mod openapi;

pub(crate) use clients::{Client, read};
pub(crate) use draft::into_configuration;
pub(crate) use install::{install, undo};
