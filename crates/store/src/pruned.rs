//! Decides which events pruning may remove from a log, for all stores.
//!
//! Doc: records.md#retention

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use toolbooth_audit::backend::merkle::Hash;
use toolbooth_audit::backend::pruning::{self, Gone};
use toolbooth_audit::checkpoint::Checkpoint;
use toolbooth_audit::reads::PrunedLog;
use toolbooth_contracts::event::AuditEventKind;

/// The members of an event that decide whether it may be removed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    event: AuditEventKind,
    time: String,
    #[serde(default)]
    receipt_id: Option<String>,
    #[serde(default)]
    receipt_digest: Option<String>,
    #[serde(default)]
    facts: Option<Value>,
}

impl Told {
    /// `None` if the event cannot be parsed: it is evidence, and stays.
    pub(crate) fn of(event: &str) -> Option<Self> {
        serde_json::from_str(event).ok()
    }

    /// Whether the event is older than `before` and of a kind that pruning may remove.
    pub(crate) fn may_go(&self, before: &str) -> bool {
        self.time.as_str() < before && !pruning::stays(self.event)
    }

    /// Whether the event is a checkpoint that names the end of one of these logs, which have ended:
    /// writers and sizes. Nothing else vouches for that end.
    pub(crate) fn names_end(&self, ended: &BTreeMap<String, u64>) -> bool {
        let heads = self.facts.as_ref().filter(|_| self.event == AuditEventKind::Checkpoint);
        let heads = heads.and_then(|facts| facts.get("heads")?.as_array());
        heads.into_iter().flatten().any(|head| {
            let writer = head.get("writer").and_then(Value::as_str).unwrap_or_default();
            let size = head.get("size").and_then(Value::as_u64);
            ended.get(writer).is_some_and(|end| Some(*end) == size)
        })
    }

    /// The id of the receipt that the event accounts for.
    pub(crate) fn receipt(&self) -> Option<&str> {
        self.receipt_digest.as_ref().and(self.receipt_id.as_deref())
    }
}

/// The time and the checkpoint of a `CHECKPOINT` event; `None` for other events and invalid notes.
pub(crate) fn checkpoint(event: &str) -> Option<(String, Checkpoint)> {
    let told = Told::of(event).filter(|told| told.event == AuditEventKind::Checkpoint)?;
    let event: Value = serde_json::from_str(event).ok()?;
    let note = event.pointer("/facts/note")?.as_str()?;
    Some((told.time, Checkpoint::of_note(note).ok()?))
}

/// The removed subtrees of a log whose beginning an earlier version pruned. `None` if the peaks do
/// not match the size.
pub(crate) fn parts(log: &PrunedLog) -> Option<Vec<Gone>> {
    let (mut seq, mut parts) = (0, Vec::new());
    let mut sizes = (0..u64::BITS).rev().map(|bit| 1 << bit).filter(|size| log.size & size != 0);
    for peak in &log.peaks {
        let size = sizes.next()?;
        parts.push(Gone { seq, size, root: Hash::parse(peak)? });
        seq += size;
    }
    sizes.next().is_none().then_some(parts)
}
