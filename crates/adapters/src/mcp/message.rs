//! Messages of a server: responses, notifications and requests.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::fmt;

use serde_json::Value;
use serde_json::value::RawValue;

use super::results::RpcResult;

/// Maximum number of messages in a batch.
pub(super) const BATCH_MAX: usize = 1_024;

/// A message of a server.
#[derive(Debug)]
pub(super) enum Message {
    /// A response to the request `id`; `None` = it has no id.
    Answer { id: Option<u64>, reply: Reply },
    /// A notification.
    Notification { method: String, params: Option<Box<RawValue>> },
    /// A request of the server to its client.
    Request { id: Box<RawValue>, method: String },
    /// A response that cannot be read; `id` is its request if it was found.
    Unreadable { id: Option<u64>, reason: String },
    /// Text that is not a message.
    Noise,
}

/// A response.
#[derive(Debug)]
pub(super) enum Reply {
    /// The result.
    Result(RpcResult),
    /// An error.
    Refused(Refusal),
}

/// An error response of a server.
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
