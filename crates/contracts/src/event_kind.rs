//! The kinds of audit events.
//!
//! Doc: records.md#audit-events

use std::fmt;

#[cfg(feature = "schemars")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! events {
    ($($(#[doc = $doc:literal])+ $name:ident $wire:literal;)+) => {
        /// The kind of an audit event; append-only.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schemars", derive(JsonSchema))]
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        #[non_exhaustive]
        pub enum AuditEventKind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl AuditEventKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The kind as it is written.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $wire,)+ }
            }
        }
    };
}

events! {
    /// A tool ran and answered.
    ToolExecuted "TOOL_EXECUTED";
    /// An earlier outcome was given again.
    ToolReplayed "TOOL_REPLAYED";
    /// A call of a tool that is not there, or hidden.
    UnknownTool "UNKNOWN_TOOL";
    /// Flags, whitelist, permissions, quarantine, pause or a rule denied.
    PolicyDenied "POLICY_DENIED";
    /// A rate, a budget or a limit of concurrency denied.
    QuotaDenied "QUOTA_DENIED";
    /// Somebody is asked to agree to a call.
    ApprovalRequested "APPROVAL_REQUESTED";
    /// A person has to agree.
    ApprovalRequired "APPROVAL_REQUIRED";
    /// A person did not agree.
    ApprovalRejected "APPROVAL_REJECTED";
    /// The arguments did not pass the guard.
    ToolArgValidationFailure "TOOL_ARG_VALIDATION_FAILURE";
    /// The first call with the key still runs.
    ToolCallInFlight "TOOL_CALL_IN_FLIGHT";
    /// The first call's outcome is unknown.
    ToolCallInDoubt "TOOL_CALL_IN_DOUBT";
    /// The tool's target is not set up.
    ToolNotConfigured "TOOL_NOT_CONFIGURED";
    /// The tool, its process or its answer failed.
    ToolExecutionError "TOOL_EXECUTION_ERROR";
    /// The tool did not answer in time.
    ToolExecutionTimeout "TOOL_EXECUTION_TIMEOUT";
    /// The call was cancelled.
    ToolExecutionCancelled "TOOL_EXECUTION_CANCELLED";
    /// A claim was made durable; the tool is about to run.
    ToolDispatched "TOOL_DISPATCHED";
    /// A running call waits for somebody's input.
    ToolParked "TOOL_PARKED";
    /// The input has come; the call runs on.
    ToolResumed "TOOL_RESUMED";
    /// The structured result does not fit the output schema.
    ToolOutputMismatch "TOOL_OUTPUT_MISMATCH";
    /// An outcome arrived after the call was given up.
    ToolSettledLate "TOOL_SETTLED_LATE";
    /// A tool was registered over another one.
    ToolReplaced "TOOL_REPLACED";
    /// A tool no longer matches its lock.
    ToolQuarantined "TOOL_QUARANTINED";
    /// A change of a tool was approved.
    ToolApproved "TOOL_APPROVED";
    /// A registry was loaded.
    RegistryLoaded "REGISTRY_LOADED";
    /// A registry was refused.
    RegistryRejected "REGISTRY_REJECTED";
    /// A policy was loaded.
    PolicyLoaded "POLICY_LOADED";
    /// A policy was refused.
    PolicyRejected "POLICY_REJECTED";
    /// A rule in shadow mode would have denied.
    PolicyShadowDenied "POLICY_SHADOW_DENIED";
    /// A person agreed.
    ApprovalGranted "APPROVAL_GRANTED";
    /// A host that is not on the list was refused.
    EgressDenied "EGRESS_DENIED";
    /// Somebody could not be authenticated.
    AuthDenied "AUTH_DENIED";
    /// A resource was read.
    ResourceRead "RESOURCE_READ";
    /// A prompt was fetched.
    PromptGet "PROMPT_GET";
    /// An asynchronous call was handed over.
    CallQueued "CALL_QUEUED";
    /// An asynchronous call has its result.
    CallFinished "CALL_FINISHED";
    /// A person settled a doubt.
    ReceiptResolved "RECEIPT_RESOLVED";
    /// Old receipts were removed.
    ReceiptsPruned "RECEIPTS_PRUNED";
    /// Agent logs were removed, since room ran short.
    PayloadsDropped "PAYLOADS_DROPPED";
    /// An API key was made.
    KeyCreated "KEY_CREATED";
    /// An API key was revoked.
    KeyRevoked "KEY_REVOKED";
    /// Something was paused.
    Paused "PAUSED";
    /// Something was resumed.
    Resumed "RESUMED";
    /// Records could not be written for a while.
    AuditGap "AUDIT_GAP";
    /// A backup was restored.
    StoreRestored "STORE_RESTORED";
    /// A checkpoint was signed.
    Checkpoint "CHECKPOINT";
    /// A writer began its log.
    WriterStarted "WRITER_STARTED";
    /// A writer ended its log.
    WriterStopped "WRITER_STOPPED";
}

impl fmt::Display for AuditEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
