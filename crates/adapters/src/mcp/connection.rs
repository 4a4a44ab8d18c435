//! A live connection to one server, with its background tasks.
//!
//! A lost connection is not repaired; its link replaces it.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use toolbooth_contracts::ExecutionLog;
use toolbooth_contracts::execution_log::AppliedSandbox;

use super::channel::{Channel, Transport};
use super::stdio::Shared;
use crate::secrets::KnownSecrets;

/// A connection after the handshake with the server.
pub(super) struct Connection {
    pub(super) channel: Arc<Channel>,
    secrets: KnownSecrets,
    /// Background tasks, which end with the connection.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Connection {
    pub(super) fn new(channel: Channel, secrets: KnownSecrets) -> Self {
        Self { channel: Arc::new(channel), secrets, tasks: Mutex::default() }
    }

    /// Registers `task` to end with the connection.
    pub(super) fn keep(&self, task: JoinHandle<()>) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Ends the background tasks.
    pub(super) fn end_tasks(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.drain(..).for_each(|task| task.abort());
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.channel.line.incoming.calls.is_closed()
    }

    /// Returns the sandbox of the server.
    pub(super) fn sandbox(&self) -> Option<AppliedSandbox> {
        self.channel.child().and_then(|child| child.sandbox.clone())
    }

    /// Returns the number of bytes that the server has printed on standard error so far.
    pub(super) fn printed(&self) -> u64 {
        self.channel.child().map(Shared::printed).unwrap_or_default()
    }

    /// Records the sandbox denials of a call that failed with `answer`. `printed` is the number of
    /// bytes that the server had printed before the call.
    pub(super) fn explain(&self, answer: &str, printed: u64, execution_log: &ExecutionLog) {
        if let Some(child) = self.channel.child() {
            child.explain(answer, printed, execution_log);
        }
    }

    /// Returns the secrets given to the server.
    pub(super) fn secrets(&self) -> &KnownSecrets {
        &self.secrets
    }

    /// Ends the connection.
    pub(super) async fn close(&self) {
        self.end_tasks();
        self.channel.line.incoming.calls.close("the connection is closed");
        match &self.channel.line.transport {
            Transport::Stdio(stdio) => stdio.close().await,
            Transport::Http(http) => http.delete(&self.channel.speech).await,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end_tasks();
    }
}
