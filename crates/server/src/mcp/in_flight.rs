//! Tracks the requests of one client that are in progress.
//!
//! Cancellations find a request by its id, and an id that is in use is rejected.
//!
//! Doc: front-doors.md#cancellation

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use toolbooth_mcp::code;

use super::codec::{Id, Notification};
use super::rpc_error::RpcError;

/// Maximum requests of one client that are in progress at once.
const REQUESTS_MAX: usize = 1_024;

#[derive(Debug, Default)]
struct Table {
    requests: Mutex<HashMap<Id, CancellationToken>>,
    emptied: Notify,
}

/// The requests in progress. Clones share one table.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlight(Arc<Table>);

/// A request in progress; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    table: InFlight,
    id: Id,
    /// Cancelled when the request is to stop.
    pub(super) stop: CancellationToken,
}

impl InFlight {
    fn requests(&self) -> MutexGuard<'_, HashMap<Id, CancellationToken>> {
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that begins.
    ///
    /// # Errors
    /// `-32600` if its id is in use, `-32000` if too many are in progress.
    pub(super) fn begin(&self, id: &Id) -> Result<Running, RpcError> {
        let mut requests = self.requests();
        if requests.contains_key(id) {
            let message = format!("a request with the id {} is in progress", id.as_json());
            return Err(RpcError::new(code::INVALID_REQUEST, message));
        }
        if requests.len() >= REQUESTS_MAX {
            let message = format!("more than {REQUESTS_MAX} requests are in progress");
            return Err(RpcError::new(code::SERVER_ERROR, message));
        }
        let stop = CancellationToken::new();
        requests.insert(id.clone(), stop.clone());
        Ok(Running { table: self.clone(), id: id.clone(), stop })
    }

    /// Cancels a request; ids that are unknown or have ended are ignored.
    pub(super) fn cancel(&self, id: &Id) {
        if let Some(stop) = self.requests().get(id) {
            stop.cancel();
        }
    }

    /// Cancels all requests.
    pub(super) fn cancel_all(&self) {
        for stop in self.requests().values() {
            stop.cancel();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests().is_empty()
    }

    /// Resolves when no request is in progress.
    pub(super) async fn empty(&self) {
        loop {
            let emptied = self.0.emptied.notified();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut requests = self.table.requests();
        requests.remove(&self.id);
        if requests.is_empty() {
            self.table.0.emptied.notify_waiters();
        }
    }
}

/// Returns the id of the request that a notification cancels.
pub(super) fn cancelled(notification: &Notification) -> Option<Id> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Cancelled {
        request_id: Value,
    }
    if notification.method != "notifications/cancelled" {
        return None;
    }
    Id::of(&notification.params.read::<Cancelled>().ok()?.request_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn ids_are_in_use_until_their_request_ends() {
        let table = InFlight::default();
        let id = |value: serde_json::Value| Id::of(&value).unwrap();
        let running = table.begin(&id(json!(1))).unwrap();
        assert_eq!(table.begin(&id(json!(1))).unwrap_err().code, -32_600);
        let other = table.begin(&id(json!("1"))).unwrap();
        table.cancel(&id(json!(7)));
        table.cancel(&id(json!(1)));
        assert!(running.stop.is_cancelled() && !other.stop.is_cancelled());
        drop(running);
        assert!(table.begin(&id(json!(1))).is_ok());
        table.cancel_all();
        assert!(other.stop.is_cancelled());
        let waiting = tokio::spawn(async move { table.empty().await });
        drop(other);
        waiting.await.unwrap();
    }

    #[test]
    fn there_is_a_most() {
        let table = InFlight::default();
        let id = |number: usize| Id::of(&json!(number)).unwrap();
        let running: Vec<Running> =
            (0..REQUESTS_MAX).map(|number| table.begin(&id(number)).unwrap()).collect();
        assert_eq!(table.begin(&id(REQUESTS_MAX)).unwrap_err().code, -32_000);
        drop(running);
        assert!(table.is_empty());
    }
}
