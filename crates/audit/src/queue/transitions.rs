//! Defines the transitions of an asynchronous call, and the events that cause them.
//!
//! Doc: records.md#the-queue

use serde_json::Value;
use toolbooth_contracts::receipt::AuditPlace;

use super::{QueueState, QueuedCall};

/// An event that affects a call in the queue.
#[derive(Debug, Clone, Copy)]
pub enum CallEvent<'e> {
    /// A writer takes the call.
    Taken {
        /// The writer.
        by: &'e str,
    },
    /// No event accounts for the stored call: it never runs.
    Disowned,
    /// A writer that could not run the call returns it to the queue.
    Released {
        /// The writer.
        by: &'e str,
    },
    /// A writer reports progress.
    Progressed {
        /// The writer.
        by: &'e str,
        /// The progress.
        progress: &'e Value,
    },
    /// Cancellation is requested.
    Cancelled,
    /// The call is finished.
    Finished {
        /// The result, JSON.
        result: &'e str,
        /// The current time.
        at: &'e str,
        /// The accounting event.
        accounted: &'e AuditPlace,
    },
}

/// Returns the call after an event; `None` if nothing changes. This is the only rule of queued
/// calls.
///
/// | | queued | running | done |
/// | --- | --- | --- | --- |
/// | taken | running, one delivery more | the same, by another writer or again | |
/// | disowned | done, without a result | done, without a result | |
/// | released by its writer | | queued, one delivery less | |
/// | progressed, by its writer | | running | |
/// | cancelled | queued | running | |
/// | finished | done | done | |
#[must_use]
pub fn step(call: &QueuedCall, event: CallEvent<'_>) -> Option<QueuedCall> {
    if call.state == QueueState::Done {
        return None;
    }
    let is_of = |by: &str| call.state == QueueState::Running && call.worker.as_deref() == Some(by);
    let mut next = call.clone();
    match event {
        CallEvent::Taken { by } => {
            next.state = QueueState::Running;
            next.worker = Some(by.to_owned());
            next.deliveries = call.deliveries.saturating_add(1);
        }
        CallEvent::Disowned => {
            next.state = QueueState::Done;
            next.finished_at = Some(call.enqueued_at.clone());
        }
        CallEvent::Released { by } if is_of(by) => {
            next.state = QueueState::Queued;
            next.worker = None;
            // A released call does not count as delivered.
            next.deliveries = call.deliveries.saturating_sub(1);
        }
        CallEvent::Progressed { by, progress } if is_of(by) => {
            next.progress = Some(progress.clone());
        }
        CallEvent::Released { .. } | CallEvent::Progressed { .. } => return None,
        CallEvent::Cancelled => next.cancel = true,
        CallEvent::Finished { result, at, accounted } => {
            next.state = QueueState::Done;
            next.result = Some(result.to_owned());
            next.finished_at = Some(at.to_owned());
            next.finished_by = Some(accounted.clone());
        }
    }
    Some(next)
}

/// Whether a running call with this worker must be taken again. This is the case if its writer is lost. It is also
/// the case if its writer is the asking one and does not run it, because the step that took it
/// failed. Such calls precede waiting calls. Each group is in order of arrival.
#[must_use]
pub fn is_left(
    worker: Option<&str>,
    asking: &str,
    has: impl FnOnce() -> bool,
    is_lost: impl FnOnce(&str) -> bool,
) -> bool {
    match worker {
        Some(worker) if worker == asking => !has(),
        Some(worker) => is_lost(worker),
        None => true,
    }
}
