//! The queue of asynchronous calls, which a caller submits and a worker runs later.
//!
//! A row is one call. Its id, caller and arguments are fixed when it is enqueued. The whole call
//! path decides on the call when it runs. A row that is delivered again finds its own claim.
//!
//! Path: 2. Doc: records.md#the-queue

mod transitions;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolbooth_contracts::Identity;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::AuditPlace;

pub use self::transitions::{CallEvent, is_left, step};
use crate::digest::Digester;
use crate::error::LedgerError;
use crate::moment::Moment;

/// Maximum number of deliveries of a row. A row that crashes its worker each time is then
/// abandoned.
pub const DELIVERIES_MAX: u32 = 5;

/// A caller and the id of its call.
pub type CallName = (String, String);

/// The state of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// The call waits for a worker.
    Queued,
    /// A worker runs the call.
    Running,
    /// The call is done.
    Done,
}

impl QueueState {
    /// Returns the text form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
        }
    }

    /// Parses the text form of a state.
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
    /// The name of the caller.
    pub caller: String,
    /// The whole identity of the caller, JSON; absent where the name alone states it.
    pub identity: Option<String>,
    /// The request as received, JSON.
    pub request: String,
    /// The state.
    pub state: QueueState,
    /// The time when it was enqueued, RFC 3339 UTC.
    pub enqueued_at: String,
    /// The time when it was finished.
    pub finished_at: Option<String>,
    /// The writer of the worker that runs the call.
    pub worker: Option<String>,
    /// The number of deliveries to a worker.
    pub deliveries: u32,
    /// Whether cancellation was requested.
    pub cancel: bool,
    /// The progress that the tool reports.
    pub progress: Option<Value>,
    /// The result, JSON.
    pub result: Option<String>,
    /// The audit event that accounts for the request.
    pub queued_by: Option<AuditPlace>,
    /// The audit event that accounts for the result.
    pub finished_by: Option<AuditPlace>,
    /// The MAC over the fields that no event accounts for, as computed by [`QueuedCall::mac_of`];
    /// absent until the call is written.
    pub mac: Option<String>,
}

/// A call as stored, and the events that it names as its accounting events.
#[derive(Debug, Clone, PartialEq)]
pub struct RawCall {
    /// The call.
    pub call: QueuedCall,
    /// The state in its row.
    pub state: String,
    /// The event of its request.
    pub queued: Option<String>,
    /// The event of its result.
    pub finished: Option<String>,
}

/// Returns the digest with which an event accounts for the request or the result of a call.
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
        // A store that cannot store NUL in a name replaces it with U+FFFD.
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

    /// Whether an event accounts for the request.
    #[must_use]
    pub fn is_asked(&self, digester: &Digester) -> bool {
        let asked = (&self.call, self.call.request.as_str());
        Self::says(self.queued.as_ref(), AuditEventKind::CallQueued, digester, asked)
    }

    /// Whether an event accounts for the result, or there is no result.
    #[must_use]
    pub fn is_answered(&self, digester: &Digester) -> bool {
        self.call.result.as_ref().is_none_or(|result| {
            let answered = (&self.call, result.as_str());
            Self::says(self.finished.as_ref(), AuditEventKind::CallFinished, digester, answered)
        })
    }
}

impl QueuedCall {
    /// Returns a waiting call.
    #[must_use]
    pub fn new(call_id: String, caller: &Identity, request: String, at: &Moment) -> Self {
        Self {
            call_id,
            caller: caller.name.clone(),
            // Where the name states it all, a replica of an earlier version can run the call too.
            identity: (!caller.is_name_only())
                .then(|| serde_json::to_string(caller).unwrap_or_default()),
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

    /// Computes the MAC over the queue fields of the call, such as worker, deliveries, cancellation
    /// and progress, and over the identity of the caller. The caller and the call id bind it to the
    /// call.
    #[must_use]
    pub fn mac_of(&self, digester: &Digester) -> String {
        // A store that cannot store NUL in a name replaces it with U+FFFD.
        let name = |name: &str| name.replace('\0', "\u{fffd}");
        let mut fields = serde_json::json!([
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
        // Calls of earlier versions have no identity, and their MACs do not cover one.
        if let (Some(identity), Some(fields)) = (&self.identity, fields.as_array_mut()) {
            fields.push(identity.clone().into());
        }
        digester.of_parts(&["queued call", &fields.to_string()])
    }

    /// Returns the identity of the caller. `None` if it cannot be read or is that of another
    /// caller. Without it, the name states the identity.
    #[must_use]
    pub fn caller_identity(&self) -> Option<Identity> {
        match &self.identity {
            Some(text) => {
                let identity: Identity = serde_json::from_str(text).ok()?;
                (identity.name == self.caller).then_some(identity)
            }
            None => Identity::named(&self.caller),
        }
    }

    /// Whether the MAC matches the stored call under any key of the store.
    #[must_use]
    pub fn is_whole(&self, digester: &Digester) -> bool {
        self.mac.as_ref().is_some_and(|mac| digester.all().any(|own| self.mac_of(own) == *mac))
    }
}

/// The result of submitting a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Enqueued {
    /// The call was enqueued.
    New,
    /// The call is a duplicate of a submitted call.
    Known(Box<QueuedCall>),
    /// The caller has a different call with this id.
    Conflict,
    /// Too many calls wait, or too many of this caller.
    Full,
}

/// The response to a worker's heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// The worker can continue.
    Go,
    /// Cancellation of the call was requested.
    Cancel,
    /// The row no longer belongs to this worker.
    Lost,
}

/// The queue of asynchronous calls, in order of arrival. Each method is one durable step.
#[async_trait]
pub trait CallQueue: Send + Sync {
    /// Enqueues a call if fewer than `waiting_max` calls wait, and fewer than half as many of this caller.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`]; the same for all methods.
    async fn enqueue(&self, call: QueuedCall, waiting_max: usize) -> Result<Enqueued, LedgerError>;

    /// Takes the oldest call with a lost worker, else the oldest waiting call. `running` lists the
    /// calls (caller and id) that this process runs. Other calls that are recorded as its own were
    /// taken by a step of which the answer was lost.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn take(&self, running: Vec<(String, String)>)
    -> Result<Option<QueuedCall>, LedgerError>;

    /// Returns a call to the queue that was taken and could not run; it does not count as
    /// delivered.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn release(&self, caller: &str, call_id: &str) -> Result<(), LedgerError>;

    /// Reports the progress of a call, and returns whether to continue.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn heartbeat(
        &self,
        caller: &str,
        call_id: &str,
        progress: Option<Value>,
    ) -> Result<Heartbeat, LedgerError>;

    /// Stores the result of a call.
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

    /// Requests cancellation of a call; returns `false` if no such call can be cancelled.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn cancel(&self, caller: &str, call_id: &str) -> Result<bool, LedgerError>;

    /// Returns one call.
    ///
    /// # Errors
    /// As [`CallQueue::enqueue`].
    async fn queued(&self, caller: &str, call_id: &str) -> Result<Option<QueuedCall>, LedgerError>;
}

#[cfg(test)]
mod tests;
