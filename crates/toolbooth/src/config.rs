//! The configuration: `toolbooth.toml`, the overrides from the environment, and the defaults.
//!
//! Doc: configuration.md

mod builtin;
mod document;
mod doors;
pub(crate) mod endpoints;
mod hooks;
mod load;
pub(crate) mod lock;
mod parse;
mod policy;
mod records;
mod runtimes;
pub(crate) mod sandbox;
mod servers;
mod setting;
pub(crate) mod toolsets;

pub(crate) use document::Config;
#[cfg(test)]
pub(crate) use doors::HttpTls;
pub(crate) use doors::{Http, LISTEN};
pub(crate) use hooks::Hook;
pub(crate) use load::{FILE, Loaded, LockUse, REGISTRY, configuration_path, draft, load, load_at};
pub(crate) use parse::parse;
pub(crate) use policy::{Budgets, Caller, Notify, RuleMode};
pub(crate) use records::DurabilitySetting;
pub(crate) use runtimes::{CommandPair, CommandText, Domains, RuntimeKind, RuntimeSection};
pub(crate) use servers::{Credentials, Isolation, Server, ToolDefaults, Verify};
pub(crate) use setting::Setting;
