//! What servers tell by themselves, for everybody who listens.
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

/// Updates that may wait for one listener; further ones push out the oldest.
const UPDATES_MAX: usize = 1_024;

/// A resource has changed, or may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceUpdate {
    /// Its URI on the wire.
    pub uri: String,
    /// The caller whose own connection told it; `None` = it concerns every caller.
    pub caller: Option<String>,
}

/// Passes on what servers tell.
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
    /// What is told from now on. The first listener starts the listening to servers.
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
                    // Nobody may listen at the moment.
                    let _ = sender.send(ResourceUpdate { uri, caller });
                }
            });
        }
        receiver
    }

    /// Ends the listening.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
