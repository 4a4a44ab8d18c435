//! Operator decisions: resolves a claim with an unknown outcome.
//!
//! Path: 9. Doc: records.md#receipts

use std::sync::Arc;

use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::{ErrorCode, Status};

use super::{Step, about, move_to, place, snapshot};
use crate::backend::working::{Changes, Needs, WorkingSet};
use crate::claim::{self, ClaimEvent, Transition};
use crate::ledger::{LedgerError, Resolution};

impl Step for Resolution {
    type Answer = Arc<Receipt>;

    fn needs(&self) -> Needs {
        Needs::of_receipt(&self.receipt_id)
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Arc<Receipt>, Changes), LedgerError> {
        let stored = set.require(&self.receipt_id)?;
        let mode = stored.receipt.idempotency.mode;
        let said = ClaimEvent::Resolved { mode, succeeded: self.succeeded };
        let Transition::Now { snapshot: now, effect, holds_keys, .. } =
            claim::step(snapshot(stored), said)
        else {
            return Err(LedgerError::Stale);
        };
        let mut receipt = Receipt::clone(&stored.receipt);
        let code = (!self.succeeded).then_some(ErrorCode::ToolError);
        receipt.status = Some(code.map_or(Status::Succeeded, ErrorCode::status));
        receipt.effect = effect;
        receipt.error_code = code;
        receipt.result = Some(self.result.clone());
        receipt.result_digest.clone_from(&self.result_digest);
        receipt.settled_at = Some(self.at.text.clone());
        move_to(&mut receipt, now, place(set, 0));
        let mut changes = Changes::default();
        if !holds_keys {
            changes.free_keys(&receipt);
        }
        let mut body = about(&receipt, AuditEventKind::ReceiptResolved, &self.at);
        let mut facts = serde_json::Map::new();
        facts.insert("by".to_owned(), self.by.clone().into());
        body.facts = Some(facts);
        let receipt = changes.put_with(receipt, now.fence, body);
        Ok((receipt, changes))
    }
}
