//! Periodic steps of a writer: lease renewal, claims of lost writers, pruning of old records.
//!
//! Path: 9. Doc: records.md#retention

use std::sync::Arc;

use toolbooth_contracts::ErrorCode;
use toolbooth_contracts::event::{AuditEventKind, EventBody};
use toolbooth_contracts::receipt::Receipt;

use super::{Step, about, log, move_to, place, snapshot};
use crate::backend::pruning::Removal;
use crate::backend::working::{Changes, Needs, StoreQuery, Upkeep, WorkingSet};
use crate::claim::{self, ClaimEvent, Transition};
use crate::history::kept_until_ms;
use crate::ledger::{LedgerError, Moment, Prune, PruneKind, Pruned, Swept};
use crate::note::Signer;

/// Renews the writer's lease.
#[derive(Debug)]
pub struct Renew(pub Moment);

impl Step for Renew {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn sync(&self) -> bool {
        false
    }

    fn decide(&self, _: &WorkingSet) -> Result<((), Changes), LedgerError> {
        Ok((
            (),
            Changes {
                upkeep: Upkeep { renewed: Some(self.0.clone()), ..Upkeep::default() },
                ..Changes::default()
            },
        ))
    }
}

/// Marks the running claims of lost writers as in doubt. The fence does not change, so that a late
/// outcome is accepted.
#[derive(Debug)]
pub struct Sweep(pub Moment);

impl Step for Sweep {
    type Answer = Vec<Swept>;

    fn needs(&self) -> Needs {
        Needs::of(StoreQuery::Lost)
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Vec<Swept>, Changes), LedgerError> {
        let (mut swept, mut changes) = (Vec::new(), Changes::default());
        for stored in &set.surveyed.lost {
            let now = claim::step(snapshot(stored), ClaimEvent::OwnerLost);
            let Transition::Now { snapshot, effect, .. } = now else { continue };
            let mut receipt = Receipt::clone(&stored.receipt);
            receipt.effect = effect;
            receipt.error_code = Some(ErrorCode::CallInDoubt);
            move_to(&mut receipt, snapshot, place(set, changes.events.len()));
            let body = about(&receipt, AuditEventKind::ToolCallInDoubt, &self.0);
            swept.push(Swept { receipt_id: receipt.receipt_id.clone() });
            changes.put_with(receipt, snapshot.fence, body);
        }
        Ok((swept, changes))
    }
}

/// Maximum number of records that one pruning step examines.
pub const PRUNE_MAX: usize = 2_000;

/// Removes agent logs if space runs short, and signs a checkpoint over the removal event.
#[derive(Debug)]
pub struct FreeSpace {
    /// The signer.
    pub signer: Signer,
    /// The current time.
    pub at: Moment,
}

impl Step for FreeSpace {
    /// The result of pruning, and the note of the checkpoint.
    type Answer = (Pruned, Option<String>);

    fn needs(&self) -> Needs {
        Needs::of(StoreQuery::DroppableLogs(PRUNE_MAX))
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Self::Answer, Changes), LedgerError> {
        let surveyed = &set.surveyed;
        let removed = surveyed.removal.count();
        let pruned = Pruned { removed, tombstones: 0, more: surveyed.more };
        let mut changes = Changes::default();
        if removed > 0 {
            changes.upkeep.pruned = Some(surveyed.removal.clone());
        }
        let Some(dropped) = &surveyed.dropped else { return Ok(((pruned, None), changes)) };
        let mut body = EventBody::new(AuditEventKind::PayloadsDropped, self.at.text.clone());
        let kind = if dropped.refusals { "refusals" } else { "logs" };
        let facts = [
            ("kind", kind.into()),
            ("count", pruned.removed.into()),
            ("writer", dropped.writer.clone().into()),
            ("until", dropped.until.into()),
        ];
        body.facts =
            Some(facts.map(|(name, value)| (name.to_owned(), value)).into_iter().collect());
        let note = log::sign_at_once(set, vec![body], &self.signer, &self.at, &mut changes);
        Ok(((pruned, Some(note)), changes))
    }
}

/// Removes old records, and signs a checkpoint over the removal event.
#[derive(Debug)]
pub struct PruneRecords {
    /// The records to remove.
    pub prune: Prune,
    /// The signer.
    pub signer: Signer,
}

impl PruneRecords {
    /// Limits the time to now. Otherwise pruning could remove its own records, and its event could
    /// excuse the removal of later ones.
    fn before(&self) -> String {
        self.prune.before.clone().min(self.prune.at.text.clone())
    }
}

impl Step for PruneRecords {
    /// The result of pruning, and the note of the checkpoint.
    type Answer = (Pruned, Option<String>);

    fn needs(&self) -> Needs {
        let before = self.before();
        Needs::of(match self.prune.kind {
            PruneKind::Receipts => {
                let now_ms = self.prune.at.epoch_ms;
                let windows = self.prune.windows.clone();
                StoreQuery::PrunableReceipts { before, now_ms, windows, limit: PRUNE_MAX }
            }
            PruneKind::Logs => StoreQuery::PrunableLogs(before, PRUNE_MAX),
            PruneKind::Events => StoreQuery::PrunableEvents(before),
            PruneKind::Calls => StoreQuery::PrunableCalls(before, PRUNE_MAX),
            PruneKind::Approvals => StoreQuery::PrunableApprovals(before, PRUNE_MAX),
            PruneKind::Documents => StoreQuery::PrunableDocuments(before, PRUNE_MAX),
        })
    }

    /// A receipt that holds a key leaves a tombstone, so that its key never silently runs again.
    fn decide(&self, set: &WorkingSet) -> Result<(Self::Answer, Changes), LedgerError> {
        let Prune { kind, at, windows, .. } = &self.prune;
        let (mut pruned, mut changes) = (Pruned::default(), Changes::default());
        for (stored, holds) in &set.surveyed.prunable {
            // The rows of the windows should have excluded it.
            if kept_until_ms(&stored.receipt, windows).is_some_and(|until| until > at.epoch_ms) {
                let id = &stored.receipt.receipt_id;
                tracing::warn!(receipt.id = %id, "a receipt lacks rows of windows; run `audit verify`");
                continue;
            }
            if *holds {
                let receipt = Receipt {
                    result: None,
                    fields: serde_json::Map::new(),
                    history: Vec::new(),
                    pruned_at: Some(at.text.clone()),
                    ..Receipt::clone(&stored.receipt)
                };
                changes.put(receipt, stored.fence);
                pruned.tombstones += 1;
            } else {
                changes.removed.push(Arc::clone(&stored.receipt));
                pruned.removed += 1;
            }
        }
        let removal = &set.surveyed.removal;
        if *removal != Removal::default() {
            changes.upkeep.pruned = Some(removal.clone());
        }
        pruned.removed += removal.count();
        // A step that removes nothing must not be repeated for ever.
        let is_progress =
            pruned.removed + pruned.tombstones > 0 || set.surveyed.prunable.is_empty();
        pruned.more = set.surveyed.more && is_progress;
        if pruned.removed + pruned.tombstones == 0 {
            return Ok(((pruned, None), changes));
        }
        let mut facts = serde_json::Map::new();
        if let Some((writer, cut)) = &removal.events {
            facts.insert("writer".to_owned(), writer.clone().into());
            facts.insert("left".to_owned(), serde_json::to_value(&cut.left).unwrap_or_default());
        }
        facts.insert("records".to_owned(), kind.as_str().into());
        facts.insert("before".to_owned(), self.before().into());
        facts.insert("removed".to_owned(), pruned.removed.into());
        facts.insert("tombstones".to_owned(), pruned.tombstones.into());
        let mut body = EventBody::new(AuditEventKind::ReceiptsPruned, at.text.clone());
        body.facts = Some(facts);
        let note = log::sign_at_once(set, vec![body], &self.signer, at, &mut changes);
        Ok(((pruned, Some(note)), changes))
    }
}
