//! The steps of the queue of asynchronous calls.
//!
//! Path: 2. Doc: records.md#the-queue

use std::collections::BTreeSet;

use serde_json::Value;
use toolbooth_contracts::event::{AuditEventKind, EventBody};

use super::{Step, place, plain};
use crate::backend::working::{CallName, Changes, Needs, StoreQuery, WorkingSet};
use crate::ledger::{LedgerError, Moment};
use crate::queue::{self, CallEvent, Enqueued, Heartbeat, QueuedCall, digest_of};

fn changed(call: QueuedCall) -> Changes {
    Changes { calls: vec![call], ..Changes::default() }
}

/// Returns the changes of an event to a call.
fn happens(call: &QueuedCall, event: CallEvent<'_>) -> Changes {
    queue::step(call, event).map(changed).unwrap_or_default()
}

/// Enqueues a call if fewer than `waiting_max` calls wait, and fewer than half as many of this caller.
#[derive(Debug)]
pub struct Enqueue {
    /// The call.
    pub call: QueuedCall,
    /// The digest of its request.
    pub digest: String,
    /// Maximum number of waiting calls.
    pub waiting_max: usize,
}

impl Step for Enqueue {
    type Answer = Enqueued;

    fn needs(&self) -> Needs {
        Needs {
            waiting: true,
            digest_keys: true,
            ..Needs::of_call(&self.call.caller, &self.call.call_id)
        }
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Enqueued, Changes), LedgerError> {
        set.check_key_ids()?;
        let Self { call, digest, waiting_max } = self;
        if let Some(known) = set.call(&call.caller, &call.call_id)? {
            let same = known.request == call.request;
            let enqueued = match same {
                true => Enqueued::Known(Box::new(known.clone())),
                false => Enqueued::Conflict,
            };
            return Ok((enqueued, Changes::default()));
        }
        set.disk_space().check()?;
        let waiting = set.waiting()?;
        let of_caller = waiting.get(&call.caller).copied().unwrap_or_default();
        let is_full = |waiting: u64, most: usize| usize::try_from(waiting).is_ok_and(|n| n >= most);
        if is_full(waiting.values().sum(), *waiting_max)
            || is_full(of_caller, waiting_max.div_ceil(2))
        {
            return Ok((Enqueued::Full, Changes::default()));
        }
        let mut call = call.clone();
        call.queued_by = Some(place(set, 0));
        let mut event = event(AuditEventKind::CallQueued, &call, call.enqueued_at.clone());
        event.args_digest = Some(digest.clone());
        let mut changes = changed(call);
        changes.events.push(plain(event));
        Ok((Enqueued::New, changes))
    }
}

fn event(kind: AuditEventKind, call: &QueuedCall, time: String) -> EventBody {
    let mut event = EventBody::new(kind, time);
    event.caller = Some(call.caller.clone());
    event.call_id = Some(call.call_id.clone());
    event
}

/// Adopts calls that an earlier version enqueued or finished without events: they are accounted for
/// from now on.
pub(super) fn adopt(set: &WorkingSet, calls: &[QueuedCall], at: &Moment, changes: &mut Changes) {
    let digester = set.digester();
    for call in calls {
        let mut call = call.clone();
        if call.queued_by.is_some() {
            // It has its events and lacks only its MAC.
            changes.calls.push(call);
            continue;
        }
        let mut queued = event(AuditEventKind::CallQueued, &call, at.text.clone());
        queued.args_digest = Some(digest_of(digester, &call.request));
        queued.facts = Some(since(&call.enqueued_at));
        call.queued_by = Some(place(set, changes.events.len()));
        changes.events.push(plain(queued));
        if let Some(result) = &call.result {
            let mut finished = event(AuditEventKind::CallFinished, &call, at.text.clone());
            finished.result_digest = Some(digest_of(digester, result));
            finished.facts = call.finished_at.as_ref().map(|at| since(at));
            call.finished_by = Some(place(set, changes.events.len()));
            changes.events.push(plain(finished));
        }
        changes.calls.push(call);
    }
}

/// The fact of an event about an earlier version's call: the time when it was enqueued or finished.
pub(crate) const CALL_SINCE: &str = "since";

fn since(time: &str) -> serde_json::Map<String, Value> {
    serde_json::Map::from_iter([(CALL_SINCE.to_owned(), time.into())])
}

/// Takes the oldest call with a lost worker, else the oldest waiting call.
#[derive(Debug)]
pub struct TakeCall {
    /// The calls that this process runs.
    pub running: BTreeSet<CallName>,
}

impl Step for TakeCall {
    type Answer = Option<QueuedCall>;

    fn needs(&self) -> Needs {
        let next = StoreQuery::NextCall(self.running.clone());
        Needs { digest_keys: true, ..Needs::of(next) }
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Option<QueuedCall>, Changes), LedgerError> {
        set.check_key_ids()?;
        let Some(next) = &set.surveyed.call else { return Ok((None, Changes::default())) };
        let call = &next.call;
        if !(next.is_asked(set.digester()) && call.is_whole(set.digester())) {
            let (caller, id) = (&call.caller, &call.call_id);
            tracing::error!(caller, call.id = id, "a queued call was changed; it is not run");
            return Ok((None, happens(call, CallEvent::Disowned)));
        }
        let taken = queue::step(call, CallEvent::Taken { by: set.writer() });
        Ok((taken.clone(), taken.map(changed).unwrap_or_default()))
    }
}

/// Returns a call to the queue that was taken and could not run; it does not count as delivered.
#[derive(Debug)]
pub struct ReleaseCall(pub CallName);

impl Step for ReleaseCall {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of_call(&self.0.0, &self.0.1)
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let call = set.call(&self.0.0, &self.0.1)?;
        let released = CallEvent::Released { by: set.writer() };
        Ok(((), call.map(|call| happens(call, released)).unwrap_or_default()))
    }
}

/// Reports the progress of a call, and returns whether to continue.
#[derive(Debug)]
pub struct HeartbeatCall {
    /// The call.
    pub call: CallName,
    /// The progress, if reported.
    pub progress: Option<Value>,
}

impl Step for HeartbeatCall {
    type Answer = Heartbeat;

    fn needs(&self) -> Needs {
        Needs::of_call(&self.call.0, &self.call.1)
    }

    fn sync(&self) -> bool {
        false
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Heartbeat, Changes), LedgerError> {
        let own = set.call(&self.call.0, &self.call.1)?;
        let Some(call) = own.filter(|call| call.worker.as_deref() == Some(set.writer())) else {
            return Ok((Heartbeat::Lost, Changes::default()));
        };
        let heartbeat = if call.cancel { Heartbeat::Cancel } else { Heartbeat::Go };
        let told = |progress| happens(call, CallEvent::Progressed { by: set.writer(), progress });
        let changes = self.progress.as_ref().map(told).unwrap_or_default();
        Ok((heartbeat, changes))
    }
}

/// Stores the result of a call.
#[derive(Debug)]
pub struct FinishCall {
    /// The call.
    pub call: CallName,
    /// The result, JSON.
    pub result: String,
    /// The digest of the result.
    pub digest: String,
    /// The current time.
    pub at: Moment,
}

impl Step for FinishCall {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of_call(&self.call.0, &self.call.1)
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        // A call that has run keeps its result even if its row was changed meanwhile.
        let open = set.call_as_stored(&self.call.0, &self.call.1)?;
        let accounted = place(set, 0);
        let finished =
            CallEvent::Finished { result: &self.result, at: &self.at.text, accounted: &accounted };
        let Some(call) = open.and_then(|call| queue::step(call, finished)) else {
            return Ok(((), Changes::default()));
        };
        let mut event = event(AuditEventKind::CallFinished, &call, self.at.text.clone());
        event.result_digest = Some(self.digest.clone());
        let mut changes = changed(call);
        changes.events.push(plain(event));
        Ok(((), changes))
    }
}

/// Requests cancellation of a call; `false` if no such call can be cancelled.
#[derive(Debug)]
pub struct CancelCall(pub CallName);

impl Step for CancelCall {
    type Answer = bool;

    fn needs(&self) -> Needs {
        Needs::of_call(&self.0.0, &self.0.1)
    }

    fn decide(&self, set: &WorkingSet) -> Result<(bool, Changes), LedgerError> {
        let call = set.call(&self.0.0, &self.0.1)?;
        let cancelled = call.and_then(|call| queue::step(call, CallEvent::Cancelled));
        Ok((cancelled.is_some(), cancelled.map(changed).unwrap_or_default()))
    }
}
