#![doc = include_str!("../README.md")]

mod authorizer;
mod caller;
mod engine;
mod flags;
pub mod port;
mod whitelist;

pub use authorizer::{Access, ApprovalNeed, Authorizer, Charges, Denial, Permit, Standing};
pub use caller::{CallerRights, Grant, Operator, set_of};
pub use engine::{EngineError, PolicyEngine, Question, Verdict};
pub use flags::FeatureFlags;
pub use whitelist::Whitelist;
