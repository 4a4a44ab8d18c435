//! The limits of the call path, each with the reason for its default.
//!
//! Path: 2. Doc: call-path.md#limits

use std::time::Duration;

/// The treatment of a structured result that does not fit its schema.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputRule {
    /// A warning on the result and an event.
    #[default]
    Warn,
    /// The result is refused.
    Enforce,
}

/// The limits of the call path.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Calls that run at once; further ones are refused as `overloaded`.
    pub in_flight_max: usize,
    /// Bytes of arguments.
    pub argument_bytes_max: usize,
    /// Bytes of a result; a model does not read more.
    pub result_bytes_max: usize,
    /// How long a tool can take to clean up after it is cancelled.
    pub cancel_grace: Duration,
    /// The longest time that a tool of an MCP server can run if progress restarts its time; `None` = four times its own
    /// time, at most 30 minutes. Never less than its own time.
    pub progress_cap: Option<Duration>,
    /// How long a response waits for its record before it is returned as `outcome-unrecorded`.
    pub settle_patience: Duration,
    /// How long a tool's question waits for its answer.
    pub input_patience: Duration,
    /// How long a requested approval can be decided, and a decision holds.
    pub approval_expiry: Duration,
    /// How long a call waits for its approval before it is refused; zero = not at all. At most
    /// `in_flight_max` calls wait at once, and as many asynchronous ones.
    pub approval_wait: Duration,
    /// Asynchronous calls that can wait, half as many of one caller; further ones are refused as `overloaded`.
    pub queued_max: usize,
    /// Steps of a plan.
    pub plan_steps_max: usize,
    /// The treatment of a result that does not fit its schema.
    pub output: OutputRule,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight_max: 512,
            argument_bytes_max: 4 << 20,
            result_bytes_max: 10 << 20,
            cancel_grace: Duration::from_secs(2),
            progress_cap: None,
            settle_patience: Duration::from_secs(5),
            input_patience: Duration::from_secs(600),
            approval_expiry: Duration::from_secs(3_600),
            approval_wait: Duration::ZERO,
            queued_max: 10_000,
            plan_steps_max: 256,
            output: OutputRule::Warn,
        }
    }
}
