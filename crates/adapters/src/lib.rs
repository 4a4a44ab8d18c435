#![doc = include_str!("../README.md")]

#[cfg(feature = "builtin")]
pub mod builtin;
mod client_tools;
#[cfg(feature = "command")]
pub mod command;
#[cfg(feature = "process")]
mod command_line;
#[cfg(feature = "declarations")]
pub mod declarations;
#[cfg(feature = "process")]
mod denials;
#[cfg(feature = "process")]
pub mod egress;
#[cfg(feature = "endpoint")]
pub mod endpoint;
mod error;
pub mod functions;
#[cfg(feature = "handlers")]
pub mod handlers;
#[cfg(feature = "process")]
pub mod launcher;
#[cfg(feature = "mcp")]
pub mod mcp;
#[cfg(feature = "process")]
mod mutex;
#[cfg(feature = "net-guard")]
pub mod net_guard;
#[cfg(feature = "process")]
mod outcome;
#[cfg(feature = "net-guard")]
mod own_doors;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "process")]
mod program_location;
#[cfg(feature = "process")]
mod project;
#[cfg(feature = "process")]
pub mod sandbox;
#[cfg(feature = "process")]
mod secret_paths;
#[cfg(feature = "secret-rules")]
pub mod secret_rules;
pub mod secrets;
#[cfg(feature = "process")]
mod setup;
#[cfg(any(feature = "command", feature = "endpoint"))]
mod template;
pub mod text;
#[cfg(any(feature = "mcp", feature = "builtin", feature = "endpoint", feature = "webhook"))]
mod tls;
#[cfg(feature = "process")]
mod toolchains;
#[cfg(any(feature = "endpoint", feature = "mcp"))]
mod tracked_body;
#[cfg(feature = "process")]
mod visible_paths;
#[cfg(feature = "webhook")]
pub mod webhook;

pub use client_tools::ClientTools;
#[cfg(feature = "process")]
pub use command_line::{CommandLine, findable};
#[cfg(feature = "net-guard")]
pub use error::AddressError;
#[cfg(feature = "handlers")]
pub use error::HandlerError;
pub use error::SecretFault;
#[cfg(feature = "webhook")]
pub use error::WebhookError;
#[cfg(any(feature = "command", feature = "endpoint"))]
pub use error::{FillError, TemplateError};
#[cfg(feature = "process")]
pub use error::{LeadsToSecret, NetworkRuleError, StartError, Unavailable};
#[cfg(feature = "endpoint")]
pub use error::{OpenApiError, RedirectError};
#[cfg(feature = "process")]
pub use outcome::ProgramEnd;
#[cfg(feature = "net-guard")]
pub use own_doors::OwnDoors;
#[cfg(feature = "process")]
pub use secret_paths::secret_path_of;
#[cfg(feature = "process")]
pub use toolchains::project_registries;
