//! What a running tool and its caller say to each other: progress, log, questions, cancellation.
//!
//! A struct of bounded channels that needs no particular async runtime. It decides nothing and
//! keeps nothing.
//!
//! Path: 7. Doc: execution.md#conversation

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender, TrySendError};
use serde::Serialize;
use serde_json::Value;

/// Messages of one kind that may wait; further ones are dropped, oldest kept.
pub const CONVERSATION_CAPACITY: usize = 64;

/// How far a tool has come.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// Done so far.
    pub progress: f64,
    /// All there is to do, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// A sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A line that a tool logs for its caller.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// A syslog level word.
    pub level: String,
    /// What it says.
    pub data: Value,
}

/// A question that a tool asks its caller while it runs.
#[derive(Debug)]
pub struct Question {
    /// The request, opaque.
    pub request: Value,
    reply: Sender<Value>,
}

impl Question {
    /// Answers; an answer that nobody waits for any more is dropped.
    pub fn answer(self, answer: Value) {
        let _ = self.reply.try_send(answer);
    }
}

/// The tool's side.
#[derive(Debug, Clone)]
pub struct Conversation {
    progress: Sender<Progress>,
    log: Sender<LogLine>,
    ask: Option<Sender<Question>>,
    cancelled: Cancelled,
}

/// The caller's side.
#[derive(Debug)]
pub struct Counterpart {
    /// Progress of the tool.
    pub progress: Receiver<Progress>,
    /// Log lines of the tool.
    pub log: Receiver<LogLine>,
    /// Questions of the tool.
    pub questions: Receiver<Question>,
    /// Tells the tool to stop.
    pub cancel: CancelHandle,
}

/// Tells a tool to stop. Dropping it says nothing.
#[derive(Debug, Clone)]
pub struct CancelHandle {
    channel: Sender<std::convert::Infallible>,
    /// Set before the channel closes: a handle that was merely dropped is no cancel.
    told: Arc<AtomicBool>,
}

impl CancelHandle {
    /// Tells the tool to stop; it is given a grace to do so.
    pub fn cancel(&self) {
        self.told.store(true, Ordering::SeqCst);
        self.channel.close();
    }

    fn pair() -> (Self, Cancelled) {
        let (channel, closed) = async_channel::bounded(1);
        let told = Arc::new(AtomicBool::new(false));
        (Self { channel, told: Arc::clone(&told) }, Cancelled { closed, told })
    }
}

/// The tool's end of a [`CancelHandle`].
#[derive(Debug, Clone)]
struct Cancelled {
    closed: Receiver<std::convert::Infallible>,
    told: Arc<AtomicBool>,
}

/// Why a question got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The caller cannot be asked.
    #[error("the caller cannot be asked")]
    NotPossible,
    /// The caller went away.
    #[error("the caller went away")]
    Gone,
}

impl Conversation {
    /// Both sides; `can_ask` says whether the caller answers questions.
    #[must_use]
    pub fn pair(can_ask: bool) -> (Self, Counterpart) {
        let (progress, progress_out) = async_channel::bounded(CONVERSATION_CAPACITY);
        let (log, log_out) = async_channel::bounded(CONVERSATION_CAPACITY);
        let (ask, questions) = async_channel::bounded(1);
        let (cancel, cancelled) = CancelHandle::pair();
        let tool = Self { progress, log, ask: can_ask.then_some(ask), cancelled };
        (tool, Counterpart { progress: progress_out, log: log_out, questions, cancel })
    }

    /// A conversation with nobody: progress and log are dropped, and it can be cancelled only by
    /// the handle that comes with it.
    #[must_use]
    pub fn detached() -> (Self, CancelHandle) {
        let (tool, counterpart) = Self::pair(false);
        (tool, counterpart.cancel)
    }

    /// The same conversation with a cancellation of its own, for whoever stands between a caller
    /// and a tool.
    #[must_use]
    pub fn with_own_cancel(&self) -> (Self, CancelHandle) {
        let (cancel, cancelled) = CancelHandle::pair();
        (Self { cancelled, ..self.clone() }, cancel)
    }

    /// The same conversation, whose questions go to whoever stands between a caller and a tool;
    /// there are none where the caller cannot be asked.
    #[must_use]
    pub fn with_own_questions(&self) -> (Self, Receiver<Question>) {
        let (ask, questions) = async_channel::bounded(1);
        (Self { ask: self.ask.as_ref().map(|_| ask), ..self.clone() }, questions)
    }

    /// Says how far the tool has come; dropped when nobody listens or too many wait.
    pub fn progress(&self, progress: Progress) {
        let _ = self.progress.try_send(progress);
    }

    /// Logs a line for the caller; dropped when nobody listens or too many wait.
    pub fn log(&self, line: LogLine) {
        let _ = self.log.try_send(line);
    }

    /// Asks the caller and waits for the answer.
    ///
    /// # Errors
    /// Where the caller cannot be asked, or went away.
    pub async fn ask(&self, request: Value) -> Result<Value, AskError> {
        let ask = self.ask.as_ref().ok_or(AskError::NotPossible)?;
        let (reply, answer) = async_channel::bounded(1);
        match ask.try_send(Question { request, reply }) {
            Ok(()) => answer.recv().await.map_err(|_| AskError::Gone),
            Err(TrySendError::Full(_)) => Err(AskError::NotPossible),
            Err(TrySendError::Closed(_)) => Err(AskError::Gone),
        }
    }

    /// Resolves when the caller wants the tool to stop. Cancel-safe.
    pub async fn cancelled(&self) {
        // The channel carries nothing; it only ever closes. A handle that was merely dropped
        // must not look like a cancel.
        match self.cancelled.closed.recv().await {
            Ok(never) => match never {},
            Err(_) if self.is_cancelled() => (),
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether the caller wants the tool to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.told.load(Ordering::SeqCst)
    }
}
