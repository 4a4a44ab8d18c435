//! Verifies that each order of an operator is the newest one that events name.
//!
//! Doc: records.md#verification

use super::event_fields::{EventFields, Read};
use super::revisions::{Revisions, number};
use crate::orders::{ORDER, REVISION, RawOrder, is_order_event};

/// Orders as far as their events were read.
#[derive(Debug, Default)]
pub(super) struct Orders(pub(super) Revisions);

impl Orders {
    /// Registers the order that an event names.
    pub(super) fn event(&mut self, read: &Read, fields: &EventFields) {
        if let Some(name) = fields.fact(ORDER).filter(|_| is_order_event(fields.event)) {
            self.0.event(name, number(fields, REVISION).unwrap_or_default(), read, &fields.time);
        }
    }

    /// Whether an event accounts for a stored order, and no event that was read names a newer one.
    pub(super) fn accounts_for(&mut self, raw: &RawOrder) -> bool {
        let newest = self.0.take(&raw.order_name().to_string());
        // An order that is newer than the events that were read has its own event.
        raw.accounted().is_some_and(|order| newest.is_none_or(|newest| newest <= order.revision))
    }
}
