#![doc = include_str!("../README.md")]

mod authorizer;
mod caller;
mod caller_sets;
mod charges;
mod denial;
mod engine;
mod error;
mod flags;
mod items;
mod pauses;
mod toolset;
mod whitelist;

pub use authorizer::{Access, ApprovalNeed, Authorizer, Permit, ToolStatus};
pub use caller::{Budget, CallerRights, Grant, Operator};
pub use caller_sets::{CallerPattern, CallerSets};
pub use denial::{Denial, DenialRule};
pub use engine::{ItemQuestion, PolicyEngine, Question, Verdict};
pub use error::{EngineError, SettingError};
pub use flags::FeatureFlags;
pub use items::{Item, ItemPermit};
pub use pauses::Pauses;
pub use toolset::ToolSet;
pub use whitelist::Whitelist;
