#![doc = include_str!("../README.md")]

pub mod coverage;
pub mod digest;
pub mod discovered;
mod error;
pub mod file;
mod items;
pub mod lock;
mod normal;
mod parallel;
mod registry;
pub mod search;
pub mod source_claims;
pub mod suspicion;
pub mod template;
mod tool;
pub mod uris;
pub mod wire;

pub use error::{ItemError, TemplateError};
pub use items::{ItemRegistry, KEY_BYTES_MAX, RegisteredItem, SourceItems, item_id};
pub use registry::{Registered, Replaced, Shadowed, ToolRegistry};
pub use tool::{RegisteredTool, Source};
pub use wire::WireNames;
