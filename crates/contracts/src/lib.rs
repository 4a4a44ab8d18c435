#![doc = include_str!("../README.md")]

pub mod agent_log;
pub mod approval;
pub mod arguments;
pub mod call;
pub mod caller;
pub mod causes;
pub mod charge;
pub mod code;
pub mod contract;
pub mod conversation;
pub mod coverage;
pub mod decision;
pub mod declaration;
pub mod error;
pub mod event;
mod event_kind;
pub mod execution_log;
pub mod finding;
pub mod guard;
pub mod history;
pub mod id;
pub mod json;
pub mod named_members;
pub mod order;
pub mod payload;
pub mod plan;
pub mod port;
pub mod receipt;
pub mod reserved;
pub mod result;
pub mod sandbox;
#[cfg(feature = "schema")]
pub mod schema;
pub mod schema_dialect;
#[cfg(feature = "schema")]
mod schema_graph;
pub mod secret;
pub mod secret_location;
pub mod trust;
pub mod upstream;

pub use arguments::{Arguments, GuardedArguments};
pub use call::{CallContext, CallRequest, ToolCall, ToolName};
pub use caller::{Caller, CallerKind, Identity};
pub use code::{Effect, ErrorCode, Status};
pub use contract::ToolContract;
pub use conversation::Conversation;
pub use execution_log::ExecutionLog;
pub use finding::{ContractCode, ContractError, ContractFinding, Severity};
pub use guard::Guard;
pub use id::{CallId, ToolId, ToolPattern};
pub use payload::{ContentBlock, Payload};
pub use port::{Dispatch, Executor, Outcome, ToolOutput};
pub use result::ToolResult;
