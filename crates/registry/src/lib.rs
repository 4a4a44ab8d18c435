#![doc = include_str!("../README.md")]

pub mod coverage;
pub mod digest;
pub mod discovered;
pub mod file;
mod registry;
mod tool;
pub mod wire;

pub use registry::{Registered, Replaced, Shadowed, ToolRegistry};
pub use tool::{RegisteredTool, Source};
pub use wire::WireNames;
