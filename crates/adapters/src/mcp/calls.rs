//! Tracks the requests of one connection that wait for their responses.
//!
//! It assigns ids and progress tokens. Progress and log lines of a request are forwarded in the
//! order in which they are read.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use toolbooth_contracts::Conversation;
use toolbooth_contracts::conversation::{LogLevel, LogLine, Progress};

use super::envelope;
use super::fault::{Answered, Fault};
use crate::secrets::KnownSecrets;

/// Maximum bytes of a progress message.
const PROGRESS_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of a log line.
const LOG_BYTES_MAX: usize = 64 << 10;
/// Maximum extension of a request's timeout by progress notifications.
const PROGRESS_EXTENDS_MAX: Duration = Duration::from_secs(3600);

/// The purpose of a request.
#[derive(Debug, Clone)]
pub(super) enum Purpose {
    /// A caller's request, with the conversation that receives its progress and log lines.
    Caller(Conversation),
    /// A request of the connection itself.
    Own,
    /// A subscription, which stays open.
    Subscription,
}

#[derive(Debug)]
struct PendingRequest {
    answer: oneshot::Sender<Answered>,
    purpose: Purpose,
    acknowledged: Option<oneshot::Sender<Value>>,
    heard: watch::Sender<Instant>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<u64, PendingRequest>,
    last: u64,
    closed: Option<String>,
}

/// The table of pending requests.
#[derive(Debug, Default)]
pub(super) struct Calls {
    state: Mutex<State>,
    secrets: KnownSecrets,
}

/// A request that waits for its response; dropping it removes the request from the table.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) id: u64,
    pub(super) answer: oneshot::Receiver<Answered>,
    /// The filter of a subscription that the server accepted.
    pub(super) acknowledged: Option<oneshot::Receiver<Value>>,
    /// Whether the request may have reached the server.
    pub(super) sent: Arc<AtomicBool>,
    calls: Arc<Calls>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.calls.lock().entries.remove(&self.id);
    }
}

impl Ticket {
    pub(super) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Acquire)
    }
}

/// The deadline of a request: its timeout after the request was made, or after the last progress
/// notification.
#[derive(Debug)]
pub(super) struct RequestDeadline {
    began: Instant,
    heard: watch::Receiver<Instant>,
}

impl RequestDeadline {
    /// Resolves when the deadline has passed.
    pub(super) async fn over(&mut self, timeout: Duration) {
        loop {
            let heard = *self.heard.borrow();
            let until = (heard + timeout).min(self.began + timeout + PROGRESS_EXTENDS_MAX);
            tokio::time::sleep_until(until).await;
            if *self.heard.borrow() == heard {
                return;
            }
            if Instant::now() >= self.began + timeout + PROGRESS_EXTENDS_MAX {
                return;
            }
        }
    }
}

#[derive(Deserialize)]
struct ProgressParams {
    #[serde(rename = "progressToken")]
    token: Value,
    progress: f64,
    #[serde(default)]
    total: Option<f64>,
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize)]
struct LogParams {
    level: String,
    #[serde(default)]
    logger: Option<String>,
    #[serde(default)]
    data: Value,
}

fn cut(mut text: String, bytes_max: usize) -> String {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}

impl Calls {
    /// Creates an empty table; `secrets` are concealed in forwarded messages.
    pub(super) fn new(secrets: KnownSecrets) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), secrets })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new request. On a closed connection it already has an error as its response.
    pub(super) fn open(self: &Arc<Self>, purpose: Purpose) -> (Ticket, RequestDeadline) {
        let (tell, answer) = oneshot::channel();
        let (acknowledge, acknowledged) = match purpose {
            Purpose::Subscription => {
                let (tell, told) = oneshot::channel();
                (Some(tell), Some(told))
            }
            _ => (None, None),
        };
        let began = Instant::now();
        let (heard, hears) = watch::channel(began);
        let mut state = self.lock();
        state.last += 1;
        let id = state.last;
        match &state.closed {
            Some(reason) => {
                let _ = tell.send(Err(Fault::Lost(reason.clone())));
            }
            None => {
                let entry =
                    PendingRequest { answer: tell, purpose, acknowledged: acknowledge, heard };
                state.entries.insert(id, entry);
            }
        }
        drop(state);
        let patience = RequestDeadline { began, heard: hears };
        let sent = Arc::default();
        let ticket = Ticket { id, answer, acknowledged, sent, calls: Arc::clone(self) };
        (ticket, patience)
    }

    /// Whether a request still waits for its response.
    pub(super) fn waits(&self, id: u64) -> bool {
        self.lock().entries.contains_key(&id)
    }

    /// Delivers the response of a request. A duplicate, or a response to no request, is ignored.
    pub(super) fn answer(&self, id: u64, answered: Answered) {
        match self.lock().entries.remove(&id) {
            Some(entry) => {
                let _ = entry.answer.send(answered);
            }
            None => tracing::debug!(id, "an answer to no request of this connection"),
        }
    }

    /// Returns the request in flight if there is exactly one. Subscriptions do not count.
    pub(super) fn sole(&self) -> Option<u64> {
        let state = self.lock();
        let in_flight = |entry: &PendingRequest| !matches!(entry.purpose, Purpose::Subscription);
        let mut ids = state.entries.iter().filter(|(_, entry)| in_flight(entry));
        match (ids.next(), ids.next()) {
            (Some((id, _)), None) => Some(*id),
            _ => None,
        }
    }

    /// Ends all requests in flight and all later ones.
    pub(super) fn close(&self, reason: &str) {
        let mut state = self.lock();
        state.closed.get_or_insert_with(|| reason.to_owned());
        for (_, entry) in state.entries.drain() {
            let _ = entry.answer.send(Err(Fault::Lost(reason.to_owned())));
        }
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// Forwards a progress notification.
    pub(super) fn progress(&self, params: Option<&RawValue>) {
        let read = params.map(|raw| serde_json::from_str::<ProgressParams>(raw.get()));
        let Some(Ok(told)) = read else { return };
        let Some(id) = envelope::own_id_of(&told.token) else { return };
        let state = self.lock();
        // A completed request has no progress.
        let Some(entry) = state.entries.get(&id) else { return };
        entry.heard.send_replace(Instant::now());
        if let Purpose::Caller(conversation) = &entry.purpose {
            // A truncated secret would not be recognised.
            let concealed = told.message.map(|text| self.secrets.conceal_text(&text));
            let message = concealed.map(|text| cut(text, PROGRESS_BYTES_MAX));
            conversation.progress(Progress { progress: told.progress, total: told.total, message });
        }
    }

    /// Forwards a log line to a request.
    pub(super) fn log(&self, params: Option<&RawValue>, id: u64) {
        let Some(params) = params.filter(|raw| raw.get().len() <= LOG_BYTES_MAX) else { return };
        let Ok(mut told) = serde_json::from_str::<LogParams>(params.get()) else { return };
        let Some(level) = LogLevel::parse(&told.level) else { return };
        self.secrets.conceal(&mut told.data);
        let logger = told.logger.map(|name| self.secrets.conceal_text(&name));
        let state = self.lock();
        if let Some(PendingRequest { purpose: Purpose::Caller(conversation), .. }) =
            state.entries.get(&id)
        {
            conversation.log(LogLine { level, logger, data: told.data });
        }
    }

    /// Records that a subscription was accepted.
    pub(super) fn acknowledge(&self, params: Option<&RawValue>) {
        let Some(Ok(told)) = params.map(|raw| serde_json::from_str::<Value>(raw.get())) else {
            return;
        };
        let id = told.pointer("/_meta/io.modelcontextprotocol~1subscriptionId");
        let Some(id) = id.and_then(envelope::own_id_of) else { return };
        let mut state = self.lock();
        let waiting = state.entries.get_mut(&id).and_then(|entry| entry.acknowledged.take());
        if let Some(waiting) = waiting {
            let _ = waiting.send(told.get("notifications").cloned().unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use toolbooth_contracts::json::Reader;

    use super::super::results::RpcResult;
    use super::*;
    use crate::secrets::Setting;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    fn result(text: &str) -> RpcResult {
        RpcResult::read(&mut Reader::new(text)).unwrap()
    }

    #[test]
    fn a_second_answer_and_one_to_nothing_are_ignored() {
        let calls = Calls::new(KnownSecrets::default());
        let (mut first, second) = (calls.open(Purpose::Own).0, calls.open(Purpose::Own).0);
        calls.answer(99, Ok(result("0")));
        calls.answer(first.id, Ok(result("1")));
        calls.answer(first.id, Ok(result("2")));
        assert_eq!(first.answer.try_recv().unwrap().unwrap().tree(), 1);
        assert_eq!(calls.sole(), Some(second.id));
        drop(second);
        assert_eq!(calls.sole(), None);
        calls.close("gone");
        let (mut late, _) = calls.open(Purpose::Own);
        assert_eq!(late.answer.try_recv().unwrap().unwrap_err(), Fault::Lost("gone".to_owned()));
    }

    #[test]
    fn secrets_are_concealed_before_anything_is_cut() {
        let secret = Setting::Template("${TOOLBOOTH_NO_TOKEN:-hunter2}".to_owned());
        let calls = Calls::new(Setting::known(std::iter::once(("", &secret))));
        let (conversation, hears) = Conversation::pair(false);
        let conversation = conversation.with_log_level(Some(LogLevel::Info));
        let (ticket, _patience) = calls.open(Purpose::Caller(conversation));
        let message = format!("{}hunter2", "x".repeat(PROGRESS_BYTES_MAX - 4));
        let params = json!({ "progressToken": ticket.id, "progress": 1, "message": message });
        calls.progress(Some(&raw(&params.to_string())));
        let told = hears.progress.try_recv().unwrap().message.unwrap();
        assert!(told.ends_with("x${TO") && told.len() <= PROGRESS_BYTES_MAX, "{told}");
        let line = json!({ "level": "info", "logger": "of hunter2", "data": { "hunter2": 1 } });
        calls.log(Some(&raw(&line.to_string())), ticket.id);
        let told = hears.log.try_recv().unwrap();
        assert_eq!(told.logger.as_deref(), Some("of ${TOOLBOOTH_NO_TOKEN}"));
        assert_eq!(told.data, json!({ "${TOOLBOOTH_NO_TOKEN}": 1 }));
    }

    #[test]
    fn progress_and_log_lines_find_their_request() {
        let calls = Calls::new(KnownSecrets::default());
        let pair = || Conversation::pair(false);
        let ((one, hears_one), (two, hears_two)) = (pair(), pair());
        let (first, _) = calls.open(Purpose::Caller(one.with_log_level(Some(LogLevel::Info))));
        let line = raw(r#"{"level":"info","data":"x"}"#);
        assert_eq!(calls.sole(), Some(first.id), "the only one in flight");
        calls.log(Some(&line), first.id);
        let (second, _) = calls.open(Purpose::Caller(two.with_log_level(Some(LogLevel::Info))));
        assert_eq!(calls.sole(), None);
        calls.log(Some(&line), second.id);
        assert_eq!((hears_one.log.len(), hears_two.log.len()), (1, 1));
        let progress = |id: u64| raw(&format!(r#"{{"progressToken":{id},"progress":1.5}}"#));
        calls.progress(Some(&progress(second.id)));
        calls.progress(Some(&raw("{}")));
        assert_eq!((hears_one.progress.len(), hears_two.progress.len()), (0, 1));
        let id = first.id;
        drop(first);
        calls.progress(Some(&progress(id)));
        assert!(hears_one.progress.is_empty(), "it is over");
    }
}
