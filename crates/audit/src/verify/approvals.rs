//! Verifies that each approval is as its newest event says.
//!
//! Doc: records.md#verification

use std::cmp::Ordering;
use std::collections::BTreeMap;

use toolbooth_contracts::event::AuditEventKind;

use super::event_fields::{EventFields, Read, fits};
use crate::approvals::{
    APPROVAL, APPROVAL_REVISION, RawApproval, has_accounting_event, is_earlier,
};

/// The newest event about an approval.
#[derive(Debug)]
struct Newest {
    /// 0 in events of earlier versions.
    revision: u64,
    writer: String,
    seq: u64,
}

/// Approvals as far as their events were read. The events of one approval may be in several logs.
#[derive(Debug, Default)]
pub(super) struct Approvals {
    newest: BTreeMap<String, Newest>,
    /// Approvals with two events of one revision: a change was put back and made again.
    doubled: Vec<(String, String, u64)>,
}

impl Approvals {
    /// Registers the approval that an event accounts for.
    pub(super) fn event(&mut self, read: &Read, fields: &EventFields) {
        let Some(id) = fields.fact(APPROVAL) else { return };
        let revision = fields.facts.as_ref().and_then(|facts| facts.get(APPROVAL_REVISION));
        let revision = revision.and_then(serde_json::Value::as_u64);
        if revision.is_none() && fields.event != AuditEventKind::ApprovalRequested {
            return;
        }
        let revision = revision.unwrap_or_default();
        match self.newest.get(id).map(|known| known.revision.cmp(&revision)) {
            Some(Ordering::Greater) => (),
            Some(Ordering::Equal) => {
                self.doubled.push((id.to_owned(), read.writer.clone(), read.seq));
            }
            Some(Ordering::Less) | None => {
                let newest = Newest { revision, writer: read.writer.clone(), seq: read.seq };
                self.newest.insert(id.to_owned(), newest);
            }
        }
    }

    /// Whether an event accounts for a stored approval, and no event that was read names a newer state.
    /// `pruned`: whether its own event was pruned.
    pub(super) fn accounts_for(&mut self, raw: &RawApproval, pruned: bool) -> bool {
        let newest = self.newest.remove(&raw.id);
        let Some(approval) = raw.approval() else { return false };
        let own = [
            Some(approval.tool_id.as_str()),
            Some(approval.caller.as_str()),
            Some(approval.args_digest.as_str()),
            Some(approval.contract_digest.as_str()),
            Some(approval.state.as_str()),
        ];
        fits(&raw.columns, &own)
            && (approval.audit_seq.is_some() || newest.is_none())
            && newest.is_none_or(|newest| newest.revision <= approval.revision)
            && (pruned && is_earlier(&approval)
                || has_accounting_event(&approval, raw.event.as_deref()))
    }

    /// Returns the ids of approvals with two events of the same revision, and the places of the second.
    pub(super) fn doubled(&mut self) -> Vec<(String, String, u64)> {
        std::mem::take(&mut self.doubled)
    }

    /// Returns the ids of approvals that are not stored, and the places of their newest events.
    pub(super) fn missing(&mut self) -> Vec<(String, String, u64)> {
        let missing = std::mem::take(&mut self.newest).into_iter();
        missing.map(|(id, newest)| (id, newest.writer, newest.seq)).collect()
    }
}
