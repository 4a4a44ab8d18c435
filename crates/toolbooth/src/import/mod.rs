//! Takes over what other programs know: MCP clients' servers, and OpenAPI operations.
//!
//! Doc: importing.md

pub(crate) mod allowed;
mod clients;
pub(crate) mod containment;
mod draft;
mod install;
pub(crate) mod openapi;
pub(crate) mod secrets;
pub(crate) mod trial;
mod values;

pub(crate) use clients::{Client, read};
pub(crate) use draft::{Section, into_configuration};
pub(crate) use install::{Backup, Installed, Replaced, install, undo};
