//! The queue of asynchronous calls.
//!
//! Path: 2. Doc: records.md#the-queue

use std::collections::BTreeSet;

use serde_json::Value;

use super::Step;
use crate::ledger::{LedgerError, Moment};
use crate::queue::{Beat, Enqueued, QueueState, QueuedCall};
use crate::working::{CallName, Changes, Needs, Survey, WorkingSet};

fn changed(call: QueuedCall) -> Changes {
    Changes { calls: vec![call], ..Changes::default() }
}

/// Hands a call over, where fewer than `waiting_max` wait.
#[derive(Debug)]
pub struct Enqueue {
    /// The call.
    pub call: QueuedCall,
    /// Most calls that may wait.
    pub waiting_max: usize,
}

impl Step for Enqueue {
    type Answer = Enqueued;

    fn needs(&self) -> Needs {
        Needs { waiting: true, ..Needs::of_call(&self.call.caller, &self.call.call_id) }
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Enqueued, Changes), LedgerError> {
        let Self { call, waiting_max } = self;
        if let Some(known) = set.call(&call.caller, &call.call_id)? {
            let same = known.request == call.request;
            let enqueued = match same {
                true => Enqueued::Known(Box::new(known.clone())),
                false => Enqueued::Conflict,
            };
            return Ok((enqueued, Changes::default()));
        }
        if usize::try_from(set.waiting()?).is_ok_and(|waiting| waiting >= *waiting_max) {
            return Ok((Enqueued::Full, Changes::default()));
        }
        Ok((Enqueued::New, changed(call.clone())))
    }
}

/// Takes the oldest call whose worker is lost, else the oldest that waits.
#[derive(Debug)]
pub struct TakeCall {
    /// The calls that this process has.
    pub running: BTreeSet<CallName>,
}

impl Step for TakeCall {
    type Answer = Option<QueuedCall>;

    fn needs(&self) -> Needs {
        Needs::of(Survey::NextCall(self.running.clone()))
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Option<QueuedCall>, Changes), LedgerError> {
        let Some(next) = &set.surveyed.call else { return Ok((None, Changes::default())) };
        let mut taken = next.clone();
        taken.state = QueueState::Running;
        taken.worker = Some(set.writer().to_owned());
        taken.deliveries += 1;
        Ok((Some(taken.clone()), changed(taken)))
    }
}

/// Puts a call back that was taken and could not be run; this was no delivery.
#[derive(Debug)]
pub struct ReleaseCall(pub CallName);

impl Step for ReleaseCall {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of_call(&self.0.0, &self.0.1)
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let own = set.call(&self.0.0, &self.0.1)?.filter(|call| {
            call.state == QueueState::Running && call.worker.as_deref() == Some(set.writer())
        });
        let Some(call) = own else { return Ok(((), Changes::default())) };
        let released = QueuedCall {
            state: QueueState::Queued,
            worker: None,
            deliveries: call.deliveries.saturating_sub(1),
            ..call.clone()
        };
        Ok(((), changed(released)))
    }
}

/// Says how far a call has come, and learns whether it is to go on.
#[derive(Debug)]
pub struct BeatCall {
    /// The call.
    pub call: CallName,
    /// How far it has come, where that is told.
    pub progress: Option<Value>,
}

impl Step for BeatCall {
    type Answer = Beat;

    fn needs(&self) -> Needs {
        Needs::of_call(&self.call.0, &self.call.1)
    }

    fn sync(&self) -> bool {
        false
    }

    fn decide(&self, set: &WorkingSet) -> Result<(Beat, Changes), LedgerError> {
        let own = set.call(&self.call.0, &self.call.1)?;
        let Some(call) = own.filter(|call| call.worker.as_deref() == Some(set.writer())) else {
            return Ok((Beat::Lost, Changes::default()));
        };
        let beat = if call.cancel { Beat::Cancel } else { Beat::Go };
        let changes = match &self.progress {
            Some(progress) => {
                changed(QueuedCall { progress: Some(progress.clone()), ..call.clone() })
            }
            None => Changes::default(),
        };
        Ok((beat, changes))
    }
}

/// Gives a call its result.
#[derive(Debug)]
pub struct FinishCall {
    /// The call.
    pub call: CallName,
    /// The result, JSON.
    pub result: String,
    /// Now.
    pub at: Moment,
}

impl Step for FinishCall {
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::of_call(&self.call.0, &self.call.1)
    }

    fn decide(&self, set: &WorkingSet) -> Result<((), Changes), LedgerError> {
        let open = set.call(&self.call.0, &self.call.1)?;
        let Some(call) = open.filter(|call| call.state != QueueState::Done) else {
            return Ok(((), Changes::default()));
        };
        let finished = QueuedCall {
            state: QueueState::Done,
            result: Some(self.result.clone()),
            finished_at: Some(self.at.text.clone()),
            ..call.clone()
        };
        Ok(((), changed(finished)))
    }
}

/// Wants a call to stop; `false` where there is none that could.
#[derive(Debug)]
pub struct CancelCall(pub CallName);

impl Step for CancelCall {
    type Answer = bool;

    fn needs(&self) -> Needs {
        Needs::of_call(&self.0.0, &self.0.1)
    }

    fn decide(&self, set: &WorkingSet) -> Result<(bool, Changes), LedgerError> {
        let open = set.call(&self.0.0, &self.0.1)?;
        let Some(call) = open.filter(|call| call.state != QueueState::Done) else {
            return Ok((false, Changes::default()));
        };
        Ok((true, changed(QueuedCall { cancel: true, ..call.clone() })))
    }
}

/// Removes calls that got their result before a time; how many.
#[derive(Debug)]
pub struct ForgetCalls(pub String);

impl Step for ForgetCalls {
    type Answer = u64;

    fn needs(&self) -> Needs {
        Needs::of(Survey::RemoveCalls(self.0.clone()))
    }

    fn sync(&self) -> bool {
        false
    }

    fn decide(&self, set: &WorkingSet) -> Result<(u64, Changes), LedgerError> {
        let removed = set.surveyed.removed;
        Ok((removed, Changes { swept_rows: removed > 0, ..Changes::default() }))
    }
}
