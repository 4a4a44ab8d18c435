#![doc = include_str!("../README.md")]

#[cfg(feature = "builtin")]
pub mod builtin;
#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "declarations")]
pub mod declarations;
pub mod functions;
#[cfg(feature = "handlers")]
pub mod handlers;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "process")]
pub mod process;
pub mod secrets;
pub mod text;
