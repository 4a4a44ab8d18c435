//! The recorded state of an earlier dispatch of a redelivered queued call.
//!
//! Path: 6. Doc: call-path.md#asynchronous-calls

use serde_json::Value;
use toolbooth_audit::LedgerReads;
use toolbooth_audit::queue::QueuedCall;
use toolbooth_audit::reads::ReceiptFilter;
use toolbooth_contracts::{Effect, ErrorCode, ToolResult};

/// Adds the state of the earlier claim to the refusal of a redelivered call.
pub(crate) async fn with_receipt(
    reads: &dyn LedgerReads,
    result: ToolResult,
    call: &QueuedCall,
) -> ToolResult {
    if call.deliveries <= 1 {
        return result;
    }
    let filter = ReceiptFilter {
        call: Some(call.call_id.clone()),
        caller: Some(call.caller.clone()),
        limit: 1,
        ..ReceiptFilter::default()
    };
    match reads.receipts(filter).await {
        Ok(receipts) if receipts.found.is_empty() && receipts.damaged.is_empty() => result,
        Ok(receipts) => {
            let receipt = receipts.found.into_iter().next();
            let effect = receipt.as_ref().map_or(Effect::Unknown, |receipt| receipt.effect);
            let receipt_id = receipt.map(|receipt| receipt.receipt_id);
            ToolResult { effect, receipt_id, ..result }
        }
        Err(error) => {
            tracing::warn!(%error, "the claim of a queued call is not known");
            ToolResult { effect: Effect::Unknown, ..result }
        }
    }
}

/// Marks the effect of a redelivered call as unknown, if it finds a claim with an unknown outcome. The
/// claim is its own: the tool was dispatched before.
pub(crate) fn own_doubt(result: ToolResult, call: &QueuedCall) -> ToolResult {
    let doubt = result.error.as_ref().filter(|error| error.code == ErrorCode::CallInDoubt);
    let Some(error) = doubt.filter(|_| call.deliveries > 1) else { return result };
    let receipt_id = error.details.get("receiptId").and_then(Value::as_str).map(str::to_owned);
    ToolResult { effect: Effect::Unknown, receipt_id, ..result }
}
