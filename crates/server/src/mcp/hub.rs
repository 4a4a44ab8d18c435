//! Who wants to know when the list of tools changes: sessions of the legacy era, listen streams
//! of the modern one.
//!
//! Doc: front-doors.md#mcp

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::{Peer, SubscriptionSink};
use toolbooth_proxy::Catalogue;

/// How long a client may take to be told; a stalled one must not hold up the others.
const TELL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long further changes are waited for.
const DEBOUNCE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Members {
    next: u64,
    sessions: HashMap<u64, Peer<RoleServer>>,
    streams: HashMap<u64, SubscriptionSink>,
}

/// Everybody who wants to know.
#[derive(Clone, Default)]
pub(super) struct Hub(Arc<Mutex<Members>>);

/// A membership, which ends when it is dropped.
pub(super) struct Membership {
    hub: Hub,
    id: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut members = self.hub.members();
        members.sessions.remove(&self.id);
        members.streams.remove(&self.id);
    }
}

impl Hub {
    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, add: impl FnOnce(&mut Members, u64)) -> Membership {
        let mut members = self.members();
        members.next += 1;
        let id = members.next;
        add(&mut members, id);
        Membership { hub: self.clone(), id }
    }

    pub(super) fn session(&self, peer: Peer<RoleServer>) -> Membership {
        self.join(|members, id| drop(members.sessions.insert(id, peer)))
    }

    pub(super) fn stream(&self, sink: SubscriptionSink) -> Membership {
        self.join(|members, id| drop(members.streams.insert(id, sink)))
    }

    fn tell(&self) {
        let mut members = self.members();
        members.sessions.retain(|_, peer| !peer.is_transport_closed());
        for peer in members.sessions.values() {
            let peer = peer.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(TELL_TIMEOUT, peer.notify_tool_list_changed()).await;
            });
        }
        for sink in members.streams.values() {
            let sink = sink.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(TELL_TIMEOUT, sink.notify_tool_list_changed()).await;
            });
        }
    }

    /// Tells everybody whenever what they may see has really changed. Runs until it is dropped.
    pub(super) async fn follow(self, catalogue: Arc<Catalogue>) {
        let mut changes = catalogue.changes();
        let everything = || {
            let caller = crate::auth::local_user();
            let (tools, _) = catalogue.view(&caller).listed(None, usize::MAX);
            tools
                .iter()
                .map(|visible| {
                    (visible.wire_name.clone(), visible.tool.contract_digest().to_owned())
                })
                .collect::<Vec<_>>()
        };
        let mut known = everything();
        while changes.changed().await.is_ok() {
            tokio::time::sleep(DEBOUNCE).await;
            changes.mark_unchanged();
            let now = everything();
            if now != known {
                known = now;
                self.tell();
            }
        }
    }
}
