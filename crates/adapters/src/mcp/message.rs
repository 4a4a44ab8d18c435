//! What a server sends: answers, notifications and requests.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

use super::results::RpcResult;

/// Messages of one batch.
pub(super) const BATCH_MAX: usize = 1_024;

/// What a server sent.
#[derive(Debug)]
pub(super) enum Message {
    /// An answer to the request `id`; `None` = it names no request.
    Answer { id: Option<u64>, reply: Reply },
    /// A notification.
    Notification { method: String, params: Option<Box<RawValue>> },
    /// A request of the server to its client.
    Request { id: Box<RawValue>, method: String },
    /// An answer that cannot be read, to the request `id` where that much could be found.
    Unreadable { id: Option<u64>, reason: String },
    /// Text that was never meant to be a message.
    Noise,
}

/// An answer.
#[derive(Debug)]
pub(super) enum Reply {
    /// The result.
    Result(RpcResult),
    /// An error.
    Refused(Refusal),
}

/// An error that a server answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Box<Value>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}
