//! Operator decisions: resolves a claim with an unknown outcome, and records orders.
//!
//! Path: 9. Doc: records.md#receipts, records.md#orders

use std::sync::Arc;

use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::order::{Order, OrderSubject};
use toolbooth_contracts::receipt::Receipt;
use toolbooth_contracts::{ErrorCode, Status};

use super::{Step, about, move_to, place, plain, snapshot};
use crate::backend::working::{Changes, Needs, WorkingSet};
use crate::claim::{self, ClaimEvent, Transition};
use crate::digest::of_record;
use crate::ledger::{LedgerError, Resolution};
use crate::orders::{ORDER, ORDER_DIGEST, ORDERS_MAX, OrderRequest, Ordered, PAUSES_MAX, REVISION};

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

/// Notes when API keys were used last. A hint for operators: nothing else follows from it, so it has no
/// event.
#[derive(Debug)]
pub struct RecordUses(pub Vec<(String, String)>);

impl Step for RecordUses {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn sync(&self) -> bool {
        false
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        set.disk_space().check()?;
        Ok(((), Changes { key_uses: self.0.clone(), ..Changes::default() }))
    }
}

impl Step for OrderRequest {
    type Answer = Ordered;

    fn needs(&self) -> Needs {
        Needs { orders: true, ..Needs::default() }
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Ordered, Changes), LedgerError> {
        let name = self.change.name();
        let before = set.order(&name)?;
        let mut changes = Changes::default();
        let subject = match self.change.decide(before, &self.at) {
            Ok(subject) => subject,
            Err(ordered) => return Ok((*ordered, changes)),
        };
        // Keys do not use up the places of pauses.
        let most = if name.kind == "key" { ORDERS_MAX } else { PAUSES_MAX };
        if before.is_none() && set.order_count(&name.kind)? >= most {
            return Ok((Ordered::Full, changes));
        }
        set.disk_space().check()?;
        let order = Order {
            subject,
            revision: before.map_or(1, |before| before.revision.saturating_add(1)),
            by: self.by.clone(),
            at: self.at.text.clone(),
            audit_seq: place(set, 0),
        };
        let mut body = EventBody::new(self.change.event(), self.at.text.clone());
        body.caller = Some(self.by.clone());
        let mut facts = serde_json::Map::new();
        facts.insert(ORDER.to_owned(), name.to_string().into());
        facts.insert(REVISION.to_owned(), order.revision.into());
        facts.insert(ORDER_DIGEST.to_owned(), of_record(&order).into());
        match &order.subject {
            OrderSubject::Key(key) => {
                facts.insert("groups".to_owned(), key.groups.clone().into());
                let expires =
                    key.expires_at.clone().map(|end| ("expiresAt".to_owned(), end.into()));
                facts.extend(expires);
            }
            OrderSubject::Pause(pause) => {
                let reason = pause.reason.clone().map(|text| ("reason".to_owned(), text.into()));
                facts.extend(reason);
                if pause.cancels_running {
                    facts.insert("cancelsRunning".to_owned(), true.into());
                }
            }
        }
        body.facts = Some(facts);
        changes.events.push(plain(body));
        changes.orders.push(order.clone());
        Ok((Ordered::Done(order), changes))
    }
}
