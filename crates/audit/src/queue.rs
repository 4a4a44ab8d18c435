//! The queue of asynchronous calls: what a caller has handed over and a worker runs later.
//!
//! A row is one call: its id, its caller and its arguments are fixed when it is enqueued. What it
//! may do is judged when it runs, through the whole path; a row that is delivered again meets its
//! own claim.
//!
//! Path: 2. Doc: records.md#the-queue

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::AuditPlace;

use crate::digest::Digester;
use crate::error::LedgerError;
use crate::moment::Moment;

/// How often a row is delivered at most: one that ends its worker each time is given up.
pub const DELIVERIES_MAX: u32 = 5;

/// A caller and the id of its call.
pub type CallName = (String, String);

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// Waits for a worker.
    Queued,
    /// A worker has it.
    Running,
    /// It has its result.
    Done,
}

impl QueueState {
    /// As it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
        }
    }

    /// The state that is written as `text`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Queued, Self::Running, Self::Done].into_iter().find(|state| state.as_str() == text)
    }
}

/// One asynchronous call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueuedCall {
    /// The call's id; unique among the calls of its caller.
    pub call_id: String,
    /// Who calls.
    pub caller: String,
    /// The request as it came, JSON.
    pub request: String,
    /// Where it stands.
    pub state: QueueState,
    /// When it was enqueued, RFC 3339 UTC.
    pub enqueued_at: String,
    /// When it got its result.
    pub finished_at: Option<String>,
    /// The writer whose worker has it.
    pub worker: Option<String>,
    /// How often it was handed to a worker.
    pub deliveries: u32,
    /// Whether somebody wants it to stop.
    pub cancel: bool,
    /// How far the tool says it has come.
    pub progress: Option<Value>,
    /// The result, JSON.
    pub result: Option<String>,
    /// The audit event that accounts for the request.
    pub queued_by: Option<AuditPlace>,
    /// The audit event that accounts for the result.
    pub finished_by: Option<AuditPlace>,
    /// The MAC over what no event accounts for, as [`QueuedCall::mac_of`] makes it; absent until the
    /// call is written.
    pub mac: Option<String>,
}

/// A call as it is stored, and the events that it says account for it.
#[derive(Debug, Clone, PartialEq)]
pub struct RawCall {
    /// The call.
    pub call: QueuedCall,
    /// Its state, as its row has it.
    pub state: String,
    /// The event of its request.
    pub queued: Option<String>,
    /// The event of its result.
    pub finished: Option<String>,
}

/// The digest by which an event accounts for the request or the result of a call.
#[must_use]
pub fn digest_of(digester: &Digester, text: &str) -> String {
    digester.of_bytes(text.as_bytes())
}

impl RawCall {
    fn says(
        event: Option<&String>,
        kind: AuditEventKind,
        digester: &Digester,
        (call, text): (&QueuedCall, &str),
    ) -> bool {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields {
            event: AuditEventKind,
            caller: String,
            call_id: String,
            args_digest: Option<String>,
            result_digest: Option<String>,
        }
        // Where a store cannot keep NUL in a name, U+FFFD stands there.
        let is = |fields: &str, name: &str| {
            fields.replace('\0', "\u{fffd}") == name.replace('\0', "\u{fffd}")
        };
        let fields = event.and_then(|event| serde_json::from_str::<Fields>(event).ok());
        let own = |fields: &Fields| {
            fields.event == kind
                && is(&fields.caller, &call.caller)
                && is(&fields.call_id, &call.call_id)
        };
        fields.filter(own).is_some_and(|fields| {
            let digest = match kind {
                AuditEventKind::CallQueued => fields.args_digest,
                _ => fields.result_digest,
            };
            digester.all().any(|own| digest == Some(digest_of(own, text)))
        })
    }

    /// Whether an event accounts for what was asked.
    #[must_use]
    pub fn is_asked(&self, digester: &Digester) -> bool {
        let asked = (&self.call, self.call.request.as_str());
        Self::says(self.queued.as_ref(), AuditEventKind::CallQueued, digester, asked)
    }

    /// Whether an event accounts for the result, where there is one.
    #[must_use]
    pub fn is_answered(&self, digester: &Digester) -> bool {
        self.call.result.as_ref().is_none_or(|result| {
            let answered = (&self.call, result.as_str());
            Self::says(self.finished.as_ref(), AuditEventKind::CallFinished, digester, answered)
        })
    }
}

impl QueuedCall {
    /// A call that waits.
    #[must_use]
    pub fn new(call_id: String, caller: String, request: String, at: &Moment) -> Self {
        Self {
            call_id,
            caller,
            request,
            state: QueueState::Queued,
            enqueued_at: at.text.clone(),
            finished_at: None,
            worker: None,
            deliveries: 0,
            cancel: false,
            progress: None,
            result: None,
            queued_by: None,
            finished_by: None,
            mac: None,
        }
    }

    /// The MAC over who has the call, how often it was taken, whether somebody wants it to stop and
    /// how far it has come, bound to the call.
    #[must_use]
    pub fn mac_of(&self, digester: &Digester) -> String {
        // Where a store cannot keep NUL in a name, U+FFFD stands there.
        let name = |name: &str| name.replace('\0', "\u{fffd}");
        let fields = serde_json::json!([
            name(&self.caller),
            name(&self.call_id),
            self.state,
            self.enqueued_at,
            self.finished_at,
            self.worker,
            self.deliveries,
            self.cancel,
            self.progress,
            self.queued_by,
            self.finished_by,
        ]);
        digester.of_parts(&["queued call", &fields.to_string()])
    }

    /// Whether the MAC is that of the call as it is, by a key of the store.
    #[must_use]
    pub fn is_whole(&self, digester: &Digester) -> bool {
        self.mac.as_ref().is_some_and(|mac| digester.all().any(|own| self.mac_of(own) == *mac))
    }
}

/// What happens to a call in the queue.
#[derive(Debug, Clone, Copy)]
pub enum CallEvent<'e> {
    /// A writer takes it.
    Taken {
        /// The writer.
        by: &'e str,
    },
    /// No event accounts for it as it is: it never runs.
    Disowned,
    /// A writer that could not run it puts it back.
    Released {
        /// The writer.
        by: &'e str,
    },
    /// A writer says how far it has come.
    Progressed {
        /// The writer.
        by: &'e str,
        /// How far.
        progress: &'e Value,
    },
    /// Somebody wants it to stop.
    Cancelled,
    /// It gets its result.
    Finished {
        /// The result, JSON.
        result: &'e str,
        /// Now.
        at: &'e str,
        /// The event that accounts for it.
        accounted: &'e AuditPlace,
    },
}

/// The one rule of queued calls: how a call stands after something has happened; `None` where that
/// changes nothing.
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
            // This was no delivery.
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

/// Whether a running call is to be taken again: its writer is lost, or is the one that asks and does
/// not have it, since the step that took it failed. Such calls come before those that wait, each
/// in the order in which they came.
#[must_use]
pub fn is_left(
    call: &QueuedCall,
    asking: &str,
    has: impl FnOnce() -> bool,
    is_lost: impl FnOnce(&str) -> bool,
) -> bool {
    call.state == QueueState::Running
        && match call.worker.as_deref() {
            Some(worker) if worker == asking => !has(),
            Some(worker) => is_lost(worker),
            None => true,
        }
}

/// What became of a call that was handed over.
#[derive(Debug, Clone, PartialEq)]
pub enum Enqueued {
    /// It waits.
    New,
    /// The same call was handed over before.
    Known(Box<QueuedCall>),
    /// The caller has another call with this id.
    Conflict,
    /// Too many calls wait.
    Full,
}

/// What a worker learns when it says that it is still at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// Go on.
    Go,
    /// Somebody wants the call to stop.
    Cancel,
    /// The row is no longer this worker's.
    Lost,
}

/// Asynchronous calls, in the order in which they came. Each method is one durable step.
#[async_trait]
pub trait CallQueue: Send + Sync {
    /// Hands a call over, where fewer than `waiting_max` wait.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; the same for all methods.
    async fn enqueue(&self, call: QueuedCall, waiting_max: usize) -> Result<Enqueued, LedgerError>;

    /// Takes the oldest call that waits, or whose worker is lost. `running` are the calls (caller
    /// and id) that this process has: others that are said to be its own were taken by a step
    /// whose answer was lost.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn take(&self, running: Vec<(String, String)>)
    -> Result<Option<QueuedCall>, LedgerError>;

    /// Puts a call back that was taken and could not be run; this was no delivery.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn release(&self, caller: &str, call_id: &str) -> Result<(), LedgerError>;

    /// Says how far a call has come, and learns whether it is to go on.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn heartbeat(
        &self,
        caller: &str,
        call_id: &str,
        progress: Option<Value>,
    ) -> Result<Heartbeat, LedgerError>;

    /// Gives a call its result.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn finish(
        &self,
        caller: &str,
        call_id: &str,
        result: String,
        at: Moment,
    ) -> Result<(), LedgerError>;

    /// Wants a call to stop; `false` where there is none that could.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn cancel(&self, caller: &str, call_id: &str) -> Result<bool, LedgerError>;

    /// One call.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError>;
}

#[cfg(test)]
mod tests;
