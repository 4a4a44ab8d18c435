//! Distributes the resource updates of servers to all listeners.
//!
//! Path: 7. Doc: call-path.md#subscriptions

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolbooth_contracts::port::Notice;

use super::upstreams::Upstreams;
use crate::worlds::Worlds;

/// Updates that can wait for one listener; further ones displace the oldest.
const UPDATES_MAX: usize = 1_024;

/// A notice that a resource has changed, or may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceUpdate {
    /// Its URI on the wire.
    pub uri: String,
    /// The caller, if the notice came over that caller's own connection; `None` = for every caller.
    pub caller: Option<String>,
}

/// Distributes the notices of servers.
pub(crate) struct Updates {
    sender: broadcast::Sender<ResourceUpdate>,
    started: AtomicBool,
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Default for Updates {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(UPDATES_MAX),
            started: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }
}

impl Updates {
    /// Returns the updates from now on. The first call starts listening to the servers.
    pub(crate) fn listen(
        &self,
        upstreams: &Upstreams,
        worlds: &Arc<Worlds>,
    ) -> broadcast::Receiver<ResourceUpdate> {
        let receiver = self.sender.subscribe();
        if self.started.swap(true, Ordering::SeqCst) {
            return receiver;
        }
        for (server, entry) in upstreams.iter() {
            let notices = entry.upstream.notices();
            let (server, sender) = (server.clone(), self.sender.clone());
            let (worlds, closing) = (Arc::clone(worlds), self.closing.clone());
            self.tasks.spawn(async move {
                loop {
                    let notice = tokio::select! {
                        notice = notices.recv() => notice,
                        () = closing.cancelled() => return,
                    };
                    let Ok(Notice::ResourceUpdated { uri, caller }) = notice else { return };
                    let uri = worlds.now().uris.to_wire(&server, &uri);
                    // There may be no listener at the moment.
                    let _ = sender.send(ResourceUpdate { uri, caller });
                }
            });
        }
        receiver
    }

    /// Stops listening to the servers.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
