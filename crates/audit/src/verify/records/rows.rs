//! Verifies that the rows of approvals, orders and budgets, and the names of digest keys, match the events that account
//! for them.
//!
//! Doc: records.md#verification

use toolbooth_contracts::approval::Approval;
use toolbooth_contracts::receipt::AuditPlace;

use super::Records;
use crate::charges::RawBudget;
use crate::orders::RawOrder;
use crate::reads::RawApproval;

impl Records<'_> {
    pub(in crate::verify) fn approval(&mut self, raw: &RawApproval) {
        // The pruned event accounted for it when it was written.
        let pruned = |approval: &Approval| self.is_lacking(approval.audit_seq.as_ref());
        let pruned = raw.approval().is_some_and(|approval| pruned(&approval));
        if !self.approvals.accounts_for(raw, pruned) {
            let message = format!("no event accounts for approval {} as it is", raw.id);
            self.problems.add("approval-changed", "", None, message);
        }
    }

    pub(in crate::verify) fn order(&mut self, raw: &RawOrder) {
        if !self.orders.accounts_for(raw) {
            let message = format!("no event accounts for order {} as it is", raw.order_name());
            self.problems.add("order-changed", "", None, message);
        }
    }

    /// Checks a budget. `known`: whether the event of its last change is among the read events.
    pub(in crate::verify) fn budget(&mut self, raw: &RawBudget, known: bool) {
        let pruned = self.expected.pruned_day();
        if !self.budgets.accounts_for(raw, known, pruned.as_deref())
            && !self.expected.lacks_events()
        {
            let message = format!("the use of budget {} is not that of its events", raw.key);
            self.problems.add("budget-changed", "", None, message);
        }
    }

    /// Registers a budget whose last change no log contains.
    pub(in crate::verify) fn unknown_budget(&mut self, key: &str) {
        let message = format!("the last change of budget {key} is in no log");
        self.problems.add("budget-changed", "", None, message);
    }

    pub(super) fn is_lacking(&self, at: Option<&AuditPlace>) -> bool {
        at.is_some_and(|at| self.expected.is_lacking(&at.writer, at.seq))
    }

    /// Checks that the digest keys that the store records include every key that a log names.
    pub(in crate::verify) fn key_ids(&mut self, known: &[String]) {
        for (id, writer) in &self.expected.key_ids {
            if !known.contains(id) {
                let message = format!("the store does not know its digest key {id} any more");
                self.problems.add("key-missing", writer, None, message);
            }
        }
        // A gateway that failed to start may have left the key of its configuration.
        let Some(digester) = self.digester.clone().filter(|_| !self.expected.lacks_events()) else {
            return;
        };
        for id in known {
            let is_given = digester.all().any(|own| own.key_id() == id);
            if !is_given && !self.expected.key_ids.contains_key(id) {
                let message = format!("the store has a digest key {id}, which no log names");
                self.problems.add("key-unaccounted", "", None, message);
            }
        }
    }
}
