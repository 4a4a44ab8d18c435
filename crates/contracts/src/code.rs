//! Status, effect and error codes of a call. Each code has a status, an HTTP status and a safe sentence,
//! and most have an audit event.
//!
//! The list is append-only and pinned by a golden file.
//!
//! Doc: call-path.md#codes

use std::fmt;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event_kind::AuditEventKind as Event;

/// How a call ended. Every terminal outcome is exactly one of the four.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The tool ran and answered.
    Succeeded,
    /// The call did not return a result.
    Failed,
    /// A setting or a target that the tool needs is not configured.
    NotConfigured,
    /// The call is not allowed.
    Denied,
}

impl Status {
    /// Returns the status as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::NotConfigured => "not_configured",
            Self::Denied => "denied",
        }
    }
}

/// The known effect of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The tool was not started by this call.
    NotStarted,
    /// The tool ran to its end.
    Completed,
    /// The tool was started, and its progress is unknown.
    Unknown,
}

impl Effect {
    /// Returns the effect as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
        }
    }
}

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident $code:literal $status:ident $http:literal $event:expr, $safe:literal;)+) => {
        /// The reason why a call did not succeed; stable, in kebab-case.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "schemars", derive(JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        #[non_exhaustive]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ErrorCode {
            /// All codes, in the order of the reference.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the code as it is written.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)+ }
            }

            /// Returns the status of a call that ends with this code.
            #[must_use]
            pub fn status(self) -> Status {
                match self { $(Self::$name => Status::$status,)+ }
            }

            /// Returns the HTTP status of a response with this code (RFC 9110; 499 = the client closed
            /// the request).
            #[must_use]
            pub fn http_status(self) -> u16 {
                match self { $(Self::$name => $http,)+ }
            }

            /// Returns the terminal audit event that this code writes, if it writes one.
            #[must_use]
            pub fn event(self) -> Option<Event> {
                match self { $(Self::$name => $event,)+ }
            }

            /// Returns the sentence that an agent may see.
            #[must_use]
            pub fn safe_sentence(self) -> &'static str {
                match self { $(Self::$name => $safe,)+ }
            }
        }
    };
}

codes! {
    /// The flag `mcp_tools` is off.
    ToolsDisabled "tools-disabled" Denied 403 Some(Event::PolicyDenied), "tool calls are switched off";
    /// Not in the registry, or hidden from this caller.
    UnregisteredTool "unregistered-tool" Denied 404 Some(Event::UnknownTool), "ACCESS_DENIED: no such tool is available to you";
    /// A rule of the policy denies the call.
    PolicyDenied "policy-denied" Denied 403 Some(Event::PolicyDenied), "the policy denies this call";
    /// The tool no longer matches its approved version.
    QuarantinedTool "quarantined-tool" Denied 403 Some(Event::PolicyDenied), "the tool is quarantined until an operator has reviewed it";
    /// An operator paused the tool, its server or the caller.
    Paused "paused" Denied 403 Some(Event::PolicyDenied), "an operator has paused this";
    /// Too many calls in a minute.
    RateLimited "rate-limited" Denied 429 Some(Event::QuotaDenied), "too many calls of this tool, try again later";
    /// A budget is used up.
    BudgetExceeded "budget-exceeded" Denied 429 Some(Event::QuotaDenied), "the budget for calls is used up";
    /// Too many calls of the tool at once.
    TooManyInFlight "too-many-in-flight" Denied 429 Some(Event::QuotaDenied), "too many calls of this tool run at the moment, try again later";
    /// The gateway has no free slot.
    Overloaded "overloaded" Denied 503 Some(Event::QuotaDenied), "the gateway is busy, try again later";
    /// An operator must approve the call first.
    ApprovalRequired "approval-required" Denied 403 Some(Event::ApprovalRequired), "a person has to approve this call first";
    /// An operator rejected the approval.
    ApprovalRejected "approval-rejected" Denied 403 Some(Event::ApprovalRejected), "the approval of this call was refused";
    /// The arguments do not fit the tool's input schema.
    InvalidArgs "invalid-args" Failed 400 Some(Event::ToolArgValidationFailure), "the arguments do not fit the tool's input schema";
    /// A keyed tool was called without its key.
    MissingIdempotencyKey "missing-idempotency-key" Failed 400 Some(Event::ToolArgValidationFailure), "the argument that is this tool's idempotency key is missing";
    /// The key was used before with other arguments.
    IdempotencyConflict "idempotency-conflict" Failed 422 Some(Event::ToolArgValidationFailure), "this key was used before with other arguments";
    /// The first call with this key still runs.
    CallInFlight "call-in-flight" Failed 409 Some(Event::ToolCallInFlight), "the first call with this key still runs";
    /// The first call's outcome is unknown.
    CallInDoubt "call-in-doubt" Failed 409 Some(Event::ToolCallInDoubt), "the outcome of the first call with this key is unknown, it is not run again";
    /// The plan cannot be run as it is.
    InvalidPlan "invalid-plan" Failed 400 None, "the plan is not valid";
    /// The server, endpoint or runtime is not configured.
    UnknownAdapter "unknown-adapter" NotConfigured 501 Some(Event::ToolNotConfigured), "the tool's target is not configured";
    /// A setting is missing.
    NotConfigured "not-configured" NotConfigured 501 Some(Event::ToolNotConfigured), "the tool is not configured";
    /// The store cannot record the claim; the tool is not run.
    RecordUnavailable "record-unavailable" Failed 503 None, "the call cannot be recorded, so it was not made";
    /// A primitive that the sandbox profile requires is missing.
    SandboxUnavailable "sandbox-unavailable" Failed 502 Some(Event::ToolExecutionError), "the sandbox that this tool requires is not available";
    /// The sandbox denied an action of the tool.
    SandboxDenied "sandbox-denied" Failed 502 Some(Event::ToolExecutionError), "the sandbox refused the tool";
    /// The tool itself returned an error.
    ToolError "tool-error" Failed 502 Some(Event::ToolExecutionError), "the tool answered with an error";
    /// The tool's process, connection or server failed.
    AdapterFailed "adapter-failed" Failed 502 Some(Event::ToolExecutionError), "the tool failed to run";
    /// The tool did not answer in time.
    Timeout "timeout" Failed 504 Some(Event::ToolExecutionTimeout), "the tool did not answer in time";
    /// The call was cancelled.
    Cancelled "cancelled" Failed 499 Some(Event::ToolExecutionCancelled), "the call was cancelled";
    /// The tool returned no result.
    MissingToolResult "missing-tool-result" Failed 502 Some(Event::ToolExecutionError), "the tool gave no result";
    /// The result does not have the required form.
    InvalidToolResult "invalid-tool-result" Failed 502 Some(Event::ToolExecutionError), "the tool's result is not valid";
    /// The result belongs to another tool.
    ToolIdMismatch "tool-id-mismatch" Failed 502 Some(Event::ToolExecutionError), "the result belongs to another tool";
    /// The result is over the size limit.
    ResultTooLarge "result-too-large" Failed 502 Some(Event::ToolExecutionError), "the tool's result is too large";
    /// The tool ran, and the record could not be written yet.
    OutcomeUnrecorded "outcome-unrecorded" Failed 503 None, "the tool ran, but its outcome is not recorded yet";
}

impl ErrorCode {
    /// Returns the code that is written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_agree_with_serde() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
            assert_eq!(ErrorCode::parse(code.as_str()), Some(*code));
        }
    }

    #[test]
    fn golden_list_of_codes_only_grows() {
        let now: Vec<String> = ErrorCode::ALL
            .iter()
            .map(|code| {
                let event = code.event().map_or("-", Event::as_str);
                format!("{} {} {} {event}", code.as_str(), code.status(), code.http_status())
            })
            .collect();
        let golden = include_str!("../golden/error-codes.txt");
        for line in golden.lines() {
            assert!(now.iter().any(|code| code == line), "`{line}` has gone or changed");
        }
        assert_eq!(now.len(), golden.lines().count(), "add the new code to golden/error-codes.txt");
    }
}
