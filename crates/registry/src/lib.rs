#![doc = include_str!("../README.md")]

pub mod coverage;
pub mod digest;
pub mod discovered;
pub mod file;
pub mod lock;
mod registry;
pub mod said;
pub mod search;
pub mod suspicion;
mod tool;
pub mod wire;

pub use registry::{Registered, Replaced, Shadowed, ToolRegistry};
pub use tool::{RegisteredTool, Source};
pub use wire::WireNames;
