//! Holds the pending change notifications of one client, each at most once.
//!
//! Doc: front-doors.md#changes

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, mpsc};

use super::codec::{self, Id};
use super::outgoing::Outgoing;

/// The member of `_meta` that names the subscription of a message.
pub(super) const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// A listing that can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum List {
    Tools,
    Prompts,
    Resources,
}

impl List {
    fn method(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }
}

#[derive(Debug, Default)]
struct Waiting {
    lists: BTreeSet<List>,
    resources: BTreeSet<String>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

/// The pending notifications of one client. Clones share one state. Its size is bounded by the
/// number of listings and of the client's subscriptions.
#[derive(Debug, Clone, Default)]
pub(super) struct Outbox(Arc<Shared>);

impl Outbox {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a listing has changed.
    pub(super) fn list_changed(&self, list: List) {
        self.waiting().lists.insert(list);
        self.0.changed.notify_one();
    }

    /// Notes that a resource has changed.
    pub(super) fn resource_updated(&self, uri: &str) {
        self.waiting().resources.insert(uri.to_owned());
        self.0.changed.notify_one();
    }

    /// Closes the outbox; pending notifications are still sent.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.0.changed.notify_one();
    }

    /// Sends notifications as they arrive, until the receiver is dropped or the outbox is closed
    /// and empty. Notifications that were not sent stay pending for the next receiver. With
    /// `subscription`, each notification carries its id.
    pub(super) async fn send_to(
        &self,
        outgoing: &mpsc::Sender<Outgoing>,
        subscription: Option<&Id>,
    ) {
        loop {
            // Reserves a place first, so that no notification is taken that cannot be sent.
            let Ok(permit) = outgoing.reserve().await else { return };
            let taken = tokio::select! {
                taken = self.take(subscription) => taken,
                () = outgoing.closed() => return,
            };
            match taken {
                Some(message) => permit.send(Outgoing::Notice(message)),
                None => return,
            }
        }
    }

    /// Waits for a notification and removes it from the outbox; `None` once the outbox is closed
    /// and empty.
    async fn take(&self, subscription: Option<&Id>) -> Option<Bytes> {
        loop {
            let changed = self.0.changed.notified();
            {
                let mut waiting = self.waiting();
                if let Some(list) = waiting.lists.pop_first() {
                    return Some(tagged(list.method(), Map::new(), subscription));
                }
                if let Some(uri) = waiting.resources.pop_first() {
                    let uri = Map::from_iter([("uri".to_owned(), Value::String(uri))]);
                    return Some(tagged("notifications/resources/updated", uri, subscription));
                }
                if waiting.closed {
                    return None;
                }
            }
            changed.await;
        }
    }
}

/// Returns a notification, with the id of its subscription if it has one.
pub(super) fn tagged(
    method: &str,
    mut params: Map<String, Value>,
    subscription: Option<&Id>,
) -> Bytes {
    if let Some(id) = subscription {
        let meta = json!({ SUBSCRIPTION_ID: id.value() });
        params.insert("_meta".to_owned(), meta);
    }
    codec::notification(method, (!params.is_empty()).then_some(Value::Object(params)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_change_is_told_once() {
        let outbox = Outbox::default();
        for _ in 0..1_000 {
            outbox.list_changed(List::Tools);
            outbox.resource_updated("a:b");
        }
        let told = outbox.take(None).await.unwrap();
        assert_eq!(told, r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#);
        assert!(outbox.take(None).await.is_some() && outbox.waiting().lists.is_empty());
        let id = Id::of(&json!(7)).unwrap();
        outbox.resource_updated("a:b");
        let told = outbox.take(Some(&id)).await.unwrap();
        let message: Value = serde_json::from_slice(&told).unwrap();
        assert_eq!(message["params"]["uri"], "a:b");
        assert_eq!(message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 7);
        outbox.list_changed(List::Prompts);
        outbox.close();
        assert!(outbox.take(None).await.is_some());
        assert_eq!(outbox.take(None).await, None);
    }

    #[tokio::test]
    async fn what_a_reader_does_not_take_waits_for_the_next() {
        let outbox = Outbox::default();
        let (outgoing, mut first) = mpsc::channel(1);
        outbox.list_changed(List::Tools);
        outbox.resource_updated("a:b");
        let sending = outbox.clone();
        let sent = tokio::spawn(async move { sending.send_to(&outgoing, None).await });
        assert!(first.recv().await.is_some());
        drop(first);
        sent.await.unwrap();
        // At most the notification in the channel is lost; a closed receiver gets no further ones.
        outbox.list_changed(List::Prompts);
        let (outgoing, mut second) = mpsc::channel(4);
        let sending = outbox.clone();
        let sent = tokio::spawn(async move { sending.send_to(&outgoing, None).await });
        let Some(Outgoing::Notice(message)) = second.recv().await else { panic!("a notice") };
        assert!(String::from_utf8_lossy(&message).contains("prompts"), "{message:?}");
        outbox.close();
        sent.await.unwrap();
    }
}
