#![doc = include_str!("../README.md")]

mod authorizer;
mod bundle;
mod caller;
mod caller_sets;
mod charges;
mod denial;
mod engine;
mod error;
mod explain;
mod flags;
mod item;
mod items;
mod pauses;
mod permit;
mod rehearse;
mod rule_finding;
#[cfg(feature = "cedar")]
pub mod rules;
mod toolset;
mod whitelist;

pub use authorizer::{Access, Authorizer, RuleFit, ToolStatus};
pub use caller::{Budget, CallerRights, Grant, Operator};
pub use caller_sets::{CallerPattern, CallerSets};
pub use denial::{Denial, DenialRule};
pub use engine::{
    ApprovalNeed, Binding, DependentVerdict, EngineTool, ItemQuestion, PolicyEngine, Question,
    Uncountable, Verdict,
};
#[cfg(feature = "cedar")]
pub use error::RecordedRulesError;
pub use error::{EngineError, SettingError, UnrecordedWindow};
pub use explain::{ExplainedStep, Explanation, StepResult};
pub use flags::FeatureFlags;
pub use item::Item;
pub use items::ItemPermit;
pub use pauses::Pauses;
pub use permit::{AskedCall, Permit};
pub use rehearse::{Decision, Rehearsed};
pub use rule_finding::{Location, RuleCode, RuleFinding, RuleSeverity};
pub use toolset::ToolSet;
pub use whitelist::Whitelist;
