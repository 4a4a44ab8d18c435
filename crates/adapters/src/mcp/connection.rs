//! A live connection to one server, and what runs beside its requests.
//!
//! It is never mended; one that is lost is replaced by its link.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;
use toolbooth_contracts::ExecutionLog;
use toolbooth_contracts::execution_log::AppliedSandbox;

use super::channel::{Channel, Transport};
use super::stdio::Shared;
use crate::secrets::KnownSecrets;

/// A connection over which the server was greeted.
pub(super) struct Connection {
    pub(super) channel: Arc<Channel>,
    secrets: KnownSecrets,
    /// What runs beside the requests; ended with the connection.
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Connection {
    pub(super) fn new(channel: Channel, secrets: KnownSecrets) -> Self {
        Self { channel: Arc::new(channel), secrets, tasks: Mutex::default() }
    }

    /// Ends `task` with the connection.
    pub(super) fn keep(&self, task: JoinHandle<()>) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// Ends what runs beside the requests.
    pub(super) fn end_tasks(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.drain(..).for_each(|task| task.abort());
    }

    /// Whether the connection is over.
    pub(super) fn is_closed(&self) -> bool {
        self.channel.line.incoming.calls.is_closed()
    }

    /// How the server is contained.
    pub(super) fn sandbox(&self) -> Option<AppliedSandbox> {
        self.channel.child().and_then(|child| child.sandbox.clone())
    }

    /// Bytes that the server has printed on standard error so far.
    pub(super) fn printed(&self) -> u64 {
        self.channel.child().map(Shared::printed).unwrap_or_default()
    }

    /// Notes what a rule of the server's sandbox stopped in a call that failed with `answer`, before
    /// which the server had printed so many bytes.
    pub(super) fn explain(&self, answer: &str, printed: u64, execution_log: &ExecutionLog) {
        if let Some(child) = self.channel.child() {
            child.explain(answer, printed, execution_log);
        }
    }

    /// What the server was given in confidence.
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
