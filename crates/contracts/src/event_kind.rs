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

            /// Returns the kind as it is written.
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
    /// An earlier outcome was replayed.
    ToolReplayed "TOOL_REPLAYED";
    /// A call of a tool that does not exist, or is hidden.
    UnknownTool "UNKNOWN_TOOL";
    /// Flags, whitelist, permissions, quarantine, pause or a rule denied the call.
    PolicyDenied "POLICY_DENIED";
    /// A rate limit, a budget or a concurrency limit denied the call.
    QuotaDenied "QUOTA_DENIED";
    /// An approval of a call was requested.
    ApprovalRequested "APPROVAL_REQUESTED";
    /// An operator must approve the call.
    ApprovalRequired "APPROVAL_REQUIRED";
    /// The approval of a call was rejected, or a call was refused for that.
    ApprovalRejected "APPROVAL_REJECTED";
    /// The arguments did not pass the guard.
    ToolArgValidationFailure "TOOL_ARG_VALIDATION_FAILURE";
    /// The first call with the key still runs.
    ToolCallInFlight "TOOL_CALL_IN_FLIGHT";
    /// The first call's outcome is unknown.
    ToolCallInDoubt "TOOL_CALL_IN_DOUBT";
    /// The tool's target is not configured.
    ToolNotConfigured "TOOL_NOT_CONFIGURED";
    /// The tool, its process or its result failed.
    ToolExecutionError "TOOL_EXECUTION_ERROR";
    /// The tool did not answer in time.
    ToolExecutionTimeout "TOOL_EXECUTION_TIMEOUT";
    /// The call was cancelled.
    ToolExecutionCancelled "TOOL_EXECUTION_CANCELLED";
    /// A claim was made durable; the tool is about to run.
    ToolDispatched "TOOL_DISPATCHED";
    /// A running call waits for input.
    ToolParked "TOOL_PARKED";
    /// The input arrived; the call continues.
    ToolResumed "TOOL_RESUMED";
    /// The structured result does not fit the output schema.
    ToolOutputMismatch "TOOL_OUTPUT_MISMATCH";
    /// An outcome arrived after the call was abandoned.
    ToolSettledLate "TOOL_SETTLED_LATE";
    /// A tool was registered in place of another one.
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
    /// The approval of a call was granted by a person; a second one may have to grant it too.
    ApprovalGranted "APPROVAL_GRANTED";
    /// A host that is not on the list was refused.
    EgressDenied "EGRESS_DENIED";
    /// An authentication failed.
    AuthDenied "AUTH_DENIED";
    /// A resource was read.
    ResourceRead "RESOURCE_READ";
    /// A prompt was fetched.
    PromptGet "PROMPT_GET";
    /// An asynchronous call was submitted.
    CallQueued "CALL_QUEUED";
    /// An asynchronous call has its result.
    CallFinished "CALL_FINISHED";
    /// An operator resolved an unknown outcome.
    ReceiptResolved "RECEIPT_RESOLVED";
    /// Old receipts were removed.
    ReceiptsPruned "RECEIPTS_PRUNED";
    /// Agent logs were removed for lack of space.
    PayloadsDropped "PAYLOADS_DROPPED";
    /// An API key was created.
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
