//! Verifies that each approval is as its newest event says.
//!
//! Doc: records.md#verification

use toolbooth_contracts::event::AuditEventKind;

use super::event_fields::{EventFields, Read, fits};
use super::revisions::{Revisions, number};
use crate::approvals::{
    APPROVAL, APPROVAL_EXPIRES, APPROVAL_REVISION, RawApproval, has_accounting_event, is_earlier,
};

/// Approvals as far as their events were read.
#[derive(Debug, Default)]
pub(super) struct Approvals(pub(super) Revisions);

impl Approvals {
    /// Registers the approval that an event accounts for.
    pub(super) fn event(&mut self, read: &Read, fields: &EventFields) {
        let Some(id) = fields.fact(APPROVAL) else { return };
        let revision = number(fields, APPROVAL_REVISION);
        // Requests of earlier versions have no revision. Other events only mention an approval.
        if revision.is_some() || fields.event == AuditEventKind::ApprovalRequested {
            let until = fields.fact(APPROVAL_EXPIRES).unwrap_or(&fields.time);
            self.0.event(id, revision.unwrap_or_default(), read, until);
        }
    }

    /// Whether an event accounts for a stored approval, and no event that was read names a newer state.
    /// `pruned`: whether its own event was pruned.
    pub(super) fn accounts_for(&mut self, raw: &RawApproval, pruned: bool) -> bool {
        let newest = self.0.take(&raw.id);
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
            && newest.is_none_or(|newest| newest <= approval.revision)
            && (pruned && is_earlier(&approval)
                || has_accounting_event(&approval, raw.event.as_deref()))
    }
}
