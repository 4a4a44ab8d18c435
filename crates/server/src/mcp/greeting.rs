//! Builds the first messages by which the gateway describes itself.
//!
//! Doc: front-doors.md#mcp

use serde_json::Value;
use toolbooth_mcp::greeting;

/// The instructions that agents get from the gateway.
const INSTRUCTIONS: &str = "Tools behind Toolbooth: each call is checked, contained and receipted. A \
                            refusal says why; `_meta` holds `toolbooth/receiptId` and \
                            `toolbooth/errorCode`.";

/// Returns the answer to `initialize`.
pub(super) fn initialized(version: &str) -> Value {
    greeting::initialized(version, INSTRUCTIONS)
}

/// Returns the answer to `server/discover`.
pub(super) fn discovered() -> Value {
    greeting::discovered(INSTRUCTIONS)
}
