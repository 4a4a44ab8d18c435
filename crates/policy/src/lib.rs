#![doc = include_str!("../README.md")]

mod authorizer;
mod caller;
mod engine;
mod flags;
mod items;
pub mod port;
mod toolset;
mod whitelist;

pub use authorizer::{Access, ApprovalNeed, Authorizer, Charges, Denial, Permit, Standing};
pub use caller::{CallerRights, Grant, Operator, set_of};
pub use engine::{EngineError, ItemQuestion, PolicyEngine, Question, Verdict};
pub use flags::FeatureFlags;
pub use items::{Item, ItemPermit};
pub use toolset::ToolSet;
pub use whitelist::Whitelist;
