//! Reports what is left after all events were read: records that are missing, changed, or not accounted for.
//!
//! Doc: records.md#verification

use super::Records;
use crate::reads::Unaccounted;
use crate::verify::report::Problems;

impl Records<'_> {
    /// Finishes: reports records that no event accounts for, and missing approvals.
    pub(in crate::verify) fn finish(mut self, records: &Unaccounted) -> Problems {
        for (id, digest) in &self.pins {
            let approved = self.approved.get(id).and_then(|(_, approved)| approved.as_ref());
            if approved != Some(digest) {
                let message = format!("no event approves the pin of {id} as it is");
                self.problems.add("pin-unaccounted", "", None, message);
            }
        }
        for (id, writer, seq) in self.approvals.0.doubled() {
            let message = format!("approval {id} was put back to an earlier state");
            self.problems.add("approval-changed", &writer, seq, message);
        }
        for (id, writer, seq) in self.approvals.0.missing(self.expected.approvals_before.as_ref()) {
            let message = format!("approval {id} is missing");
            self.problems.add("approval-missing", &writer, seq, message);
        }
        for (name, writer, seq) in self.orders.0.doubled() {
            let message = format!("order {name} was put back to an earlier decision");
            self.problems.add("order-changed", &writer, seq, message);
        }
        for (name, writer, seq) in self.orders.0.missing(None) {
            let message = format!("order {name} is missing");
            self.problems.add("order-missing", &writer, seq, message);
        }
        let pruned = self.expected.pruned_day();
        for key in self.budgets.missing(pruned.as_deref()) {
            // Pruned events may have given everything back.
            if !self.expected.lacks_events() {
                let message = format!("budget {key} is missing");
                self.problems.add("budget-missing", "", None, message);
            }
        }
        // A pruned event may have finished the call.
        for (call, writer, seq) in self.queue.lost().filter(|_| !self.expected.lacks_events()) {
            let message = format!("queued call {call} is missing");
            self.problems.add("call-missing", writer, seq, message);
        }
        for (id, fence) in std::mem::take(&mut self.fences) {
            let words = self.resolved.get(&id).copied().unwrap_or_default();
            if fence.words != Some(words) && !self.expected.lacks_events() {
                let message = format!("the fence of receipt {id} was changed");
                self.problems.add("receipt-changed", &fence.writer, fence.seq, message);
            }
        }
        for id in &records.logs {
            let message = format!("no event accounts for agent log {id}");
            self.problems.add("log-unaccounted", "", None, message);
        }
        for place in &records.milestones {
            let message =
                format!("{place} is listed as a milestone, but the event there is not one");
            self.problems.add("changed", "", None, message);
        }
        for row in &records.damaged {
            self.problems.add("changed", "", None, row.to_string());
        }
        for id in &records.receipts {
            let message = format!("no event accounts for receipt {id}");
            self.problems.add("receipt-unaccounted", "", None, message);
        }
        for id in &records.history {
            let message = format!("a window counts receipt {id}, which does not exist");
            self.problems.add("history-changed", "", None, message);
        }
        for key in &records.windows {
            let message = format!(
                "the stored sums of the window {key} are not those of its calls; delete them, and they are computed again"
            );
            self.problems.add("history-changed", "", None, message);
        }
        for key in &records.keys {
            let message = format!("no receipt holds the key {key}");
            self.problems.add("key-unaccounted", "", None, message);
        }
        let (dispatched, unresolved) =
            (std::mem::take(&mut self.dispatched), std::mem::take(&mut self.unresolved));
        for unresolved in unresolved.into_iter().filter(|_| !self.expected.lacks_events()) {
            // The receipt runs again: each dispatch must have an event.
            if unresolved.attempt < 2
                || dispatched.get(&unresolved.receipt_id) != Some(&unresolved.attempt)
            {
                self.changed(&unresolved.receipt_id, &unresolved.writer, unresolved.seq);
            }
        }
        self.problems
    }
}
