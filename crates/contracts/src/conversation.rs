//! The conversation of a running tool with its caller: progress, log, questions, cancellation.
//!
//! It is a struct of bounded channels that needs no particular async runtime. It makes no decisions and
//! stores no records.
//!
//! Path: 7. Doc: execution.md#conversation

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_channel::{Receiver, Sender, TrySendError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::AskError;

/// Maximum number of waiting messages of one kind. A further message replaces the oldest, so that
/// messages arrive in order and the last is never lost.
pub const CONVERSATION_CAPACITY: usize = 64;

/// The progress of a tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Progress {
    /// The work done so far.
    pub progress: f64,
    /// The total work, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
    /// A sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The severity of a log line (RFC 5424), from the least severe on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Details for developers.
    Debug,
    /// Normal work.
    Info,
    /// Normal, but significant.
    Notice,
    /// Something may be wrong.
    Warning,
    /// Something is wrong.
    Error,
    /// A part does not work.
    Critical,
    /// An operator must act at once.
    Alert,
    /// Nothing works.
    Emergency,
}

impl LogLevel {
    /// Returns the level as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// Returns the level of a word; `None` if it is not a level.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [
            Self::Debug,
            Self::Info,
            Self::Notice,
            Self::Warning,
            Self::Error,
            Self::Critical,
            Self::Alert,
            Self::Emergency,
        ]
        .into_iter()
        .find(|level| level.as_str() == word)
    }
}

/// A line that a tool logs for its caller.
#[derive(Debug, Clone, PartialEq)]
pub struct LogLine {
    /// The severity.
    pub level: LogLevel,
    /// The part of the tool that logs, if the tool specifies it.
    pub logger: Option<String>,
    /// The logged data.
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
    /// Answers the question; an answer that is no longer awaited is dropped.
    pub fn answer(self, answer: Value) {
        let _ = self.reply.try_send(answer);
    }
}

/// The tool's side of a conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// `None` if there is no listener.
    progress: Option<Mailbox<Progress>>,
    log: Option<Mailbox<LogLine>>,
    log_level: Option<LogLevel>,
    ask: Option<Sender<Question>>,
    /// Signalled at each progress, for an intermediary between caller and tool.
    progress_signal: Option<Sender<()>>,
    cancelled: Cancelled,
}

/// Messages that wait for their reader; an empty mailbox uses no space for messages.
#[derive(Debug)]
struct Mailbox<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), receiver: self.receiver.clone() }
    }
}

impl<T> Mailbox<T> {
    fn new() -> Self {
        let (sender, receiver) = async_channel::unbounded();
        Self { sender, receiver }
    }

    /// Adds a message. If too many wait, the oldest is dropped.
    fn put(&self, message: T) {
        while self.sender.len() >= CONVERSATION_CAPACITY {
            if self.receiver.try_recv().is_err() {
                break;
            }
        }
        let _ = self.sender.try_send(message);
    }
}

/// The caller's side of a conversation.
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

/// A handle that tells a tool to stop. Dropping it does not cancel the tool.
#[derive(Debug, Clone)]
pub struct CancelHandle {
    channel: Sender<std::convert::Infallible>,
    state: Arc<CancelState>,
}

/// What a handle has requested. It is set before the channel closes, because a dropped handle also closes it and is not a
/// cancel.
#[derive(Debug, Default)]
struct CancelState {
    is_cancelled: AtomicBool,
    is_gone: AtomicBool,
}

impl CancelHandle {
    /// Tells the tool to stop; the tool has a grace period to do so.
    pub fn cancel(&self) {
        self.state.is_cancelled.store(true, Ordering::SeqCst);
        self.channel.close();
    }

    /// Signals that the caller disconnected without cancelling. A tool without effects ends; a tool that may have an
    /// effect runs until its effect is known.
    pub fn hang_up(&self) {
        self.state.is_gone.store(true, Ordering::SeqCst);
        self.cancel();
    }

    fn pair() -> (Self, Cancelled) {
        let (channel, closed) = async_channel::bounded(1);
        let state = Arc::<CancelState>::default();
        (Self { channel, state: Arc::clone(&state) }, Cancelled { closed, state })
    }
}

/// The tool's end of a [`CancelHandle`].
#[derive(Debug, Clone)]
struct Cancelled {
    closed: Receiver<std::convert::Infallible>,
    state: Arc<CancelState>,
}

impl Conversation {
    /// Returns both sides; `can_ask` states whether the caller answers questions.
    #[must_use]
    pub fn pair(can_ask: bool) -> (Self, Counterpart) {
        let (progress, log) = (Mailbox::new(), Mailbox::new());
        let heard = (progress.receiver.clone(), log.receiver.clone());
        let (ask, questions) = async_channel::bounded(1);
        let (own, cancel) = Self::detached();
        let ask = can_ask.then_some(ask);
        let tool = Self { progress: Some(progress), log: Some(log), ask, ..own };
        (tool, Counterpart { progress: heard.0, log: heard.1, questions, cancel })
    }

    /// Returns a conversation without a caller. Progress and log are dropped, and only the returned
    /// handle can cancel it.
    #[must_use]
    pub fn detached() -> (Self, CancelHandle) {
        let (cancel, cancelled) = CancelHandle::pair();
        let (progress, log, ask) = (None, None, None);
        (Self { progress, log, log_level: None, ask, progress_signal: None, cancelled }, cancel)
    }

    /// Returns the same conversation with log lines from `level` on. `None` = no log lines, as in a new
    /// conversation.
    #[must_use]
    pub fn with_log_level(self, level: Option<LogLevel>) -> Self {
        Self { log_level: level, ..self }
    }

    /// Returns the level of the least severe log lines that the caller requests; `None` = no log lines.
    #[must_use]
    pub fn log_level(&self) -> Option<LogLevel> {
        self.log_level
    }

    /// Returns the same conversation with its own cancellation, for an intermediary between caller and
    /// tool.
    #[must_use]
    pub fn with_own_cancel(&self) -> (Self, CancelHandle) {
        let (cancel, cancelled) = CancelHandle::pair();
        (Self { cancelled, ..self.clone() }, cancel)
    }

    /// Returns the same conversation with its own receiver of questions, for an intermediary between
    /// caller and tool. The receiver is `None` if the caller cannot be asked.
    #[must_use]
    pub fn with_own_questions(self) -> (Self, Option<Receiver<Question>>) {
        if self.ask.is_none() {
            return (self, None);
        }
        let (ask, questions) = async_channel::bounded(1);
        (Self { ask: Some(ask), ..self }, Some(questions))
    }

    /// Returns the same conversation and a signal. The signal is set if the tool has reported progress
    /// since the signal was last received. The progress itself is still sent to the caller.
    #[must_use]
    pub fn with_progress_signal(self) -> (Self, Receiver<()>) {
        let (progress_signal, signal) = async_channel::bounded(1);
        (Self { progress_signal: Some(progress_signal), ..self }, signal)
    }

    /// Reports the progress of the tool. If too many messages wait, the oldest is dropped.
    pub fn progress(&self, progress: Progress) {
        if let Some(mailbox) = &self.progress {
            mailbox.put(progress);
        }
        if let Some(progress_signal) = &self.progress_signal {
            let _ = progress_signal.try_send(());
        }
    }

    /// Logs a line for the caller; a line that the caller did not request is dropped. If too many lines
    /// wait, the oldest is dropped.
    pub fn log(&self, line: LogLine) {
        if let Some(mailbox) = &self.log
            && self.log_level.is_some_and(|wanted| line.level >= wanted)
        {
            mailbox.put(line);
        }
    }

    /// Asks the caller and waits for the answer.
    ///
    /// # Errors If the caller cannot be asked, or disconnected.
    pub async fn ask(&self, request: Value) -> Result<Value, AskError> {
        let ask = self.ask.as_ref().ok_or(AskError::NotPossible)?;
        let (reply, answer) = async_channel::bounded(1);
        match ask.try_send(Question { request, reply }) {
            Ok(()) => answer.recv().await.map_err(|_| AskError::Gone),
            Err(TrySendError::Full(_)) => Err(AskError::NotPossible),
            Err(TrySendError::Closed(_)) => Err(AskError::Gone),
        }
    }

    /// Resolves when the caller cancels the tool, or disconnects. Cancel-safe.
    pub async fn cancelled(&self) {
        // The channel carries no messages; it only closes. A dropped handle must not look like a cancel.
        match self.cancelled.closed.recv().await {
            Ok(never) => match never {},
            Err(_) if self.is_cancelled() => (),
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether the caller has cancelled the tool, or disconnected.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.state.is_cancelled.load(Ordering::SeqCst)
    }

    /// Whether the caller disconnected without cancelling.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        self.cancelled.state.is_gone.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_stays_in_order_and_keeps_its_last() {
        let (tool, counterpart) = Conversation::pair(false);
        for done in 0..1_000u32 {
            tool.progress(Progress { progress: done.into(), total: None, message: None });
        }
        let mut heard = Vec::new();
        while let Ok(progress) = counterpart.progress.try_recv() {
            heard.push(progress.progress);
        }
        assert_eq!(heard.len(), CONVERSATION_CAPACITY);
        assert!(heard.is_sorted() && heard.last() == Some(&999.0));
    }

    #[test]
    fn log_lines_come_from_the_wanted_level_on() {
        let line = |level| LogLine { level, logger: None, data: Value::Null };
        let (tool, counterpart) = Conversation::pair(false);
        tool.log(line(LogLevel::Emergency));
        assert!(counterpart.log.is_empty(), "log lines were not requested");
        let tool = tool.with_log_level(Some(LogLevel::Warning));
        tool.log(line(LogLevel::Info));
        tool.log(line(LogLevel::Error));
        assert_eq!(counterpart.log.try_recv().unwrap().level, LogLevel::Error);
        assert!(counterpart.log.is_empty());
        assert_eq!(LogLevel::parse("notice"), Some(LogLevel::Notice));
        assert_eq!(LogLevel::parse("loud"), None);
    }
}
