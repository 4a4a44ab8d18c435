//! Defines the messages to a client.
//!
//! Path: 10. Doc: front-doors.md#answers

use bytes::Bytes;

use super::codec::{self, Body, Id};
use super::rpc_error::RpcError;

/// Messages that may wait for a slow client; further progress waits in the conversation.
pub(super) const OUTGOING_MAX: usize = 16;

/// A message to the client.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// A notification before the answer.
    Notice(Bytes),
    /// The answer, which is the last message.
    Answer(Answer),
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) message: Bytes,
    /// The code that decides the HTTP status: of the gateway's own error, or of a missing
    /// capability. `None` for a result and for other errors of a server.
    pub(super) error: Option<i64>,
}

impl Answer {
    pub(super) fn new(id: &Id, answered: Result<Body, RpcError>) -> Self {
        let error = answered.as_ref().err();
        let error = error.filter(|error| !error.upstream || error.is_of_transport());
        let error = error.map(|error| error.code);
        Self { message: codec::answer(id, answered), error }
    }
}
