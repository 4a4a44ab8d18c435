//! Verifies that asynchronous calls match the events of their requests and results.
//!
//! Doc: records.md#verification

use std::collections::BTreeMap;

use serde::Deserialize;
use toolbooth_contracts::event::AuditEventKind;
use toolbooth_contracts::receipt::AuditPlace;

use super::{Records, is_before};
use crate::backend::steps::CALL_SINCE;
use crate::backend::working::CallName;
use crate::queue::{QueueState, RawCall};
use crate::verify::event_fields::{EventFields, Read, is_name};

/// Asynchronous calls as their events state them. The events of one call may be in several logs,
/// which are read one after the other.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Calls that exist.
    kept: BTreeMap<CallName, CallTrail>,
    /// Missing calls without a result event: time and place of their requests.
    open: BTreeMap<CallName, (String, String, u64)>,
    /// The result times of calls for which no request was read yet; the request may have been
    /// pruned.
    early: BTreeMap<CallName, String>,
    /// Missing calls that were finished and not pruned: the places of their results.
    gone: Vec<(String, String, u64)>,
}

/// The places and times of the requests and results of a call. The same name can be used again
/// after a finished call was pruned.
#[derive(Debug, Default)]
struct CallTrail {
    asked: Vec<(AuditPlace, String)>,
    answered: Vec<(AuditPlace, String)>,
}

/// Returns the name of a call in a form that every store can store.
fn named(caller: &str, call_id: &str) -> CallName {
    (caller.replace('\0', "\u{fffd}"), call_id.replace('\0', "\u{fffd}"))
}

impl Queue {
    pub(super) fn event(
        &mut self,
        read: &Read,
        fields: &EventFields,
        pruned_before: Option<&String>,
    ) {
        let asks = match fields.event {
            AuditEventKind::CallQueued => true,
            AuditEventKind::CallFinished => false,
            _ => return,
        };
        let (Some(caller), Some(call_id)) = (&fields.caller, &fields.call_id) else { return };
        let name = named(caller, call_id);
        if let Some(story) = self.kept.get_mut(&name) {
            let at = AuditPlace { writer: read.writer.clone(), seq: read.seq };
            let list = if asks { &mut story.asked } else { &mut story.answered };
            let time = fields.fact(CALL_SINCE).unwrap_or(&fields.time);
            list.push((at, time.to_owned()));
            return;
        }
        let time = fields.time.clone();
        if !asks {
            let since = fields.fact(CALL_SINCE).unwrap_or(&time);
            if !is_before(since, pruned_before) {
                self.gone.push((call_id.clone(), read.writer.clone(), read.seq));
            }
            if self.open.remove(&name).is_none() {
                self.early.insert(name, time);
            }
        } else if self.early.get(&name).is_none_or(|answered| *answered < time) {
            self.open.insert(name, (time, read.writer.clone(), read.seq));
        }
    }

    /// Whether the row of a call matches its events.
    pub(super) fn fits(&self, raw: &RawCall) -> bool {
        let call = &raw.call;
        // A call that did not exist at the start of verification is newer.
        let Some(story) = self.kept.get(&named(&call.caller, &call.call_id)) else { return true };
        let at = |list: &[(AuditPlace, String)], place: &Option<AuditPlace>| {
            let found = list.iter().find(|(at, _)| Some(at) == place.as_ref());
            found.map(|(_, time)| time.clone())
        };
        let Some(asked) = at(&story.asked, &call.queued_by) else { return false };
        let answered = at(&story.answered, &call.finished_by);
        // The name may have been used before: a result from that time is older than this request.
        let has_ended = answered.is_some() || story.answered.iter().any(|(_, time)| *time >= asked);
        let fits = if has_ended {
            call.state == QueueState::Done
                && call.result.is_some()
                && answered.is_some()
                && call.finished_at == answered
        } else {
            call.state != QueueState::Done
                && call.finished_at.is_none()
                && call.finished_by.is_none()
                && call.result.is_none()
                && (call.worker.is_some() == (call.state == QueueState::Running))
        };
        raw.state == call.state.as_str() && call.enqueued_at == asked && fits
    }

    /// Returns the missing calls that were not finished or not pruned.
    pub(super) fn lost(&self) -> impl Iterator<Item = (&String, &String, u64)> {
        let open = self.open.iter().map(|((_, call), (_, writer, seq))| (call, writer, *seq));
        open.chain(self.gone.iter().map(|(call, writer, seq)| (call, writer, *seq)))
    }
}

impl Records<'_> {
    /// Checks a call. With the store's key, its digests are compared; without it, only whether its
    /// events belong to this call.
    ///
    /// `known`: whether its events are among the read events.
    pub(in crate::verify) fn call(&mut self, raw: &RawCall, known: bool) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Of {
            event: AuditEventKind,
            caller: Option<String>,
            call_id: Option<String>,
        }
        let call = &raw.call;
        let is_of = |event: &Option<String>, kind| {
            let of = event.as_ref().and_then(|event| serde_json::from_str::<Of>(event).ok());
            let is = |fields: Option<String>, row: &str| {
                fields.is_some_and(|fields| is_name(&fields, row) || is_name(row, &fields))
            };
            of.is_some_and(|of| {
                of.event == kind && is(of.caller, &call.caller) && is(of.call_id, &call.call_id)
            })
        };
        let by = self.digester.as_ref();
        let asked = self.is_lacking(call.queued_by.as_ref())
            || (is_of(&raw.queued, AuditEventKind::CallQueued)
                && by.is_none_or(|digester| raw.is_asked(digester)));
        let answered = (call.result.is_none() && call.finished_by.is_none())
            || self.is_lacking(call.finished_by.as_ref())
            || (is_of(&raw.finished, AuditEventKind::CallFinished)
                && by.is_none_or(|digester| raw.is_answered(digester)));
        let fits = !known || self.expected.lacks_events() || self.queue.fits(raw);
        let whole = by.is_none_or(|digester| call.is_whole(digester));
        if !(asked && answered && fits && whole) {
            let message = format!("no event accounts for queued call {} as it is", call.call_id);
            self.problems.add("call-changed", "", None, message);
        }
    }

    /// Registers an existing call before its events are read.
    pub(in crate::verify) fn kept_call(&mut self, caller: &str, call_id: &str) {
        self.queue.kept.entry(named(caller, call_id)).or_default();
    }
}
