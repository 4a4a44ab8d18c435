//! Forwards notifications of a server that its lists or resources have changed.
//!
//! Floods are bounded. After a first burst, changes are forwarded at most once a second, and a
//! resource waits at most once.
//!
//! Path: 3, 7. Doc: execution.md#mcp-servers

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::time::Instant;
use toolbooth_contracts::port::Notice;

use super::calls::Calls;
use super::envelope;
use super::message::Message;

/// Number of changes that are forwarded at once before the rate limit applies.
const CHANGES_AT_ONCE: u32 = 5;
/// Interval between changes after that.
const CHANGE_PACE: Duration = Duration::from_secs(1);
/// Maximum number of waiting notices; further ones are dropped.
const NOTICES_MAX: usize = 4_096;
/// Longest URI of a notice, in bytes.
const URI_BYTES_MAX: usize = 8 << 10;

/// The forwarder of list changes, at a limited rate.
#[derive(Debug)]
pub(super) struct Changes {
    sender: async_channel::Sender<()>,
    receiver: async_channel::Receiver<()>,
    pace: Mutex<Pace>,
}

#[derive(Debug)]
struct Pace {
    left: u32,
    refilled: Instant,
    /// Whether a change waits until the rate limit permits it.
    waiting: bool,
}

impl Changes {
    pub(super) fn new() -> Arc<Self> {
        let (sender, receiver) = async_channel::bounded(1);
        let pace = Pace { left: CHANGES_AT_ONCE, refilled: Instant::now(), waiting: false };
        Arc::new(Self { sender, receiver, pace: Mutex::new(pace) })
    }

    pub(super) fn receiver(&self) -> async_channel::Receiver<()> {
        self.receiver.clone()
    }

    /// Records that a list has changed.
    pub(super) fn list_changed(self: &Arc<Self>) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = pace.refilled.elapsed().as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX);
            pace.left = pace.left.saturating_add(more).min(CHANGES_AT_ONCE);
            pace.refilled = Instant::now();
        }
        if pace.left > 0 {
            pace.left -= 1;
            // A change that already waits has the same meaning.
            let _ = self.sender.try_send(());
        } else if !pace.waiting {
            pace.waiting = true;
            let later = Arc::downgrade(self);
            // At most one such task runs at a time, and it ends by itself.
            tokio::spawn(async move {
                tokio::time::sleep(CHANGE_PACE).await;
                if let Some(changes) = later.upgrade() {
                    let mut pace = changes.pace.lock().unwrap_or_else(PoisonError::into_inner);
                    (pace.waiting, pace.left, pace.refilled) = (false, 0, Instant::now());
                    let _ = changes.sender.try_send(());
                }
            });
        }
    }
}

/// The forwarder of notices; the same notice waits at most once.
#[derive(Debug)]
pub(super) struct Notices {
    sender: async_channel::Sender<Notice>,
    receiver: async_channel::Receiver<Notice>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    order: VecDeque<(String, Option<String>)>,
    known: HashSet<(String, Option<String>)>,
    /// Whether a task forwards them.
    served: bool,
}

impl Notices {
    pub(super) fn new() -> Arc<Self> {
        let (sender, receiver) = async_channel::bounded(1);
        Arc::new(Self { sender, receiver, waiting: Mutex::default() })
    }

    pub(super) fn receiver(&self) -> async_channel::Receiver<Notice> {
        self.receiver.clone()
    }

    /// Stops forwarding.
    pub(super) fn close(&self) {
        self.sender.close();
    }

    fn next(&self) -> Option<(String, Option<String>)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let next = waiting.order.pop_front();
        match &next {
            Some(next) => {
                waiting.known.remove(next);
            }
            None => waiting.served = false,
        }
        next
    }

    /// Records that a resource has changed.
    pub(super) fn tell(self: &Arc<Self>, uri: String, caller: Option<String>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.order.len() >= NOTICES_MAX || self.sender.is_closed() {
            tracing::debug!("a notice is dropped");
            return;
        }
        let notice = (uri, caller);
        if waiting.known.insert(notice.clone()) {
            waiting.order.push_back(notice);
        }
        if std::mem::replace(&mut waiting.served, true) {
            return;
        }
        let notices = Arc::clone(self);
        // The task ends when no notice waits or the receiver is closed.
        tokio::spawn(async move {
            while let Some((uri, caller)) = notices.next() {
                if notices.sender.send(Notice::ResourceUpdated { uri, caller }).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Where a message of a server arrived.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// In the stream of the response to this request.
    Request(u64),
    /// In a stream that belongs to no request.
    Stream,
    /// From a child process.
    Child,
}

/// The callers that have used a link.
#[derive(Debug, Default)]
pub(super) struct Users {
    first: OnceLock<String>,
    are_several: AtomicBool,
}

impl Users {
    pub(super) fn add(&self, caller: &str) {
        if self.first.get_or_init(|| caller.to_owned()) != caller {
            self.are_several.store(true, Ordering::Relaxed);
        }
    }

    fn are_several(&self) -> bool {
        self.are_several.load(Ordering::Relaxed)
    }
}

/// The destinations of server messages that are not responses.
#[derive(Debug, Clone)]
pub(super) struct Incoming {
    pub(super) calls: Arc<Calls>,
    pub(super) notifications: Notifications,
}

impl Incoming {
    /// Dispatches a message. Returns the reply to a request of the server.
    pub(super) fn take(&self, message: Message, origin: Origin) -> Option<Vec<u8>> {
        match message {
            Message::Notification { method, params } => {
                let params = params.as_deref();
                match method.as_str() {
                    "notifications/progress" => self.calls.progress(params),
                    "notifications/message" => self.log(params, origin),
                    "notifications/subscriptions/acknowledged" => self.calls.acknowledge(params),
                    method => self.notifications.hear(method, params),
                }
                None
            }
            Message::Request { id, method } => Some(envelope::reply(&id, &method)),
            Message::Answer { .. } | Message::Unreadable { .. } | Message::Noise => None,
        }
    }

    /// Forwards a log line to its request. A line of a child has no sign of it: it goes to the one in flight, unless
    /// it may be a late one of another caller.
    fn log(&self, params: Option<&RawValue>, origin: Origin) {
        let request = match origin {
            Origin::Request(id) => Some(id),
            Origin::Child if !self.notifications.users.are_several() => self.calls.sole(),
            Origin::Child | Origin::Stream => None,
        };
        match request {
            Some(id) => self.calls.log(params, id),
            None => tracing::debug!("a log line that belongs to no request"),
        }
    }
}

/// The notifications of one link.
#[derive(Debug, Clone)]
pub(super) struct Notifications {
    pub(super) changes: Arc<Changes>,
    pub(super) notices: Arc<Notices>,
    /// The caller of the link; `None` = all callers share it.
    pub(super) caller: Option<String>,
    pub(super) users: Arc<Users>,
}

impl Notifications {
    fn hear(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => self.changes.list_changed(),
            "notifications/resources/updated" => {
                let params: Option<Value> =
                    params.and_then(|raw| serde_json::from_str(raw.get()).ok());
                let uri = params.as_ref().and_then(|params| params.get("uri"));
                if let Some(uri) = uri.and_then(Value::as_str)
                    && uri.len() <= URI_BYTES_MAX
                {
                    self.updated(uri.to_owned());
                }
            }
            method => tracing::debug!(method, "a notification without a listener"),
        }
    }

    /// Records that a resource has changed or may have changed.
    pub(super) fn updated(&self, uri: String) {
        self.notices.tell(uri, self.caller.clone());
    }
}

#[cfg(test)]
mod tests {
    use toolbooth_contracts::Conversation;
    use toolbooth_contracts::conversation::LogLevel;

    use super::super::calls::Purpose;
    use super::*;
    use crate::secrets::KnownSecrets;

    #[tokio::test]
    async fn a_flood_of_changes_is_told_at_a_pace() {
        let changes = Changes::new();
        let told = changes.receiver();
        let mut heard = 0;
        for _ in 0..1_000 {
            changes.list_changed();
            heard += u32::from(told.try_recv().is_ok());
        }
        // A second may pass within the loop.
        assert!((CHANGES_AT_ONCE..CHANGES_AT_ONCE + 3).contains(&heard), "{heard}");
        told.recv().await.unwrap();
    }

    #[tokio::test]
    async fn a_resource_waits_once() {
        let notices = Notices::new();
        for number in 0..100 {
            notices.tell(format!("a:{}", number % 2), None);
        }
        let told = notices.receiver();
        let mut uris = Vec::new();
        for _ in 0..2 {
            let Notice::ResourceUpdated { uri, .. } = told.recv().await.unwrap();
            uris.push(uri);
        }
        assert_eq!(uris, ["a:0", "a:1"]);
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_late_log_line_of_one_caller_reaches_no_other() {
        let notifications = Notifications {
            changes: Changes::new(),
            notices: Notices::new(),
            caller: None,
            users: Arc::default(),
        };
        let incoming = Incoming { calls: Calls::new(KnownSecrets::default()), notifications };
        let line = || {
            let params = RawValue::from_string(r#"{"level":"info","data":"x"}"#.to_owned());
            let method = "notifications/message".to_owned();
            Message::Notification { method, params: params.ok() }
        };
        let (conversation, hears) = Conversation::pair(false);
        let conversation = conversation.with_log_level(Some(LogLevel::Info));
        let users = &incoming.notifications.users;
        users.add("key:alice");
        let (ticket, _patience) = incoming.calls.open(Purpose::Caller(conversation));
        incoming.take(line(), Origin::Child);
        assert_eq!(hears.log.len(), 1, "the link has one caller, with one request in flight");
        incoming.take(line(), Origin::Stream);
        users.add("key:bob");
        incoming.take(line(), Origin::Child);
        assert_eq!(hears.log.len(), 1, "it may be a late line of the other caller");
        incoming.take(line(), Origin::Request(ticket.id));
        assert_eq!(hears.log.len(), 2, "in the stream of its own request");
    }
}
