#![doc = include_str!("../README.md")]

mod client;
mod error;
pub mod hooks;
mod keeper;
pub mod openapi;
pub mod permissions;
mod rewrite;
mod section;
mod server_ids;
pub mod servers;
mod values;

pub use client::Client;
pub use error::ImportError;
pub use hooks::{HookCall, HookClient, HookError};
pub use keeper::not_copied;
pub use rewrite::{Replaced, with_gateway};
pub use section::{Extended, Literal, Section, Sections, into_configuration};
