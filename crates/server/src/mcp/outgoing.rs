//! Defines the messages to a client.
//!
//! Path: 10. Doc: front-doors.md#answers

use bytes::Bytes;

use super::answer_text::AnswerText;
use super::codec::{self, Body, Id};
use super::page::Page;
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
    pub(super) message: AnswerText,
    /// The code that decides the HTTP status: of the gateway's own error, or of a missing
    /// capability. `None` for a result and for other errors of a server.
    pub(super) error: Option<i64>,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Answered {
    /// A page of a listing.
    Page(Page),
    /// Any other result.
    Body(Body),
}

impl<B: Into<Body>> From<B> for Answered {
    fn from(body: B) -> Self {
        Self::Body(body.into())
    }
}

impl Answer {
    pub(super) fn new(id: &Id, answered: Result<Answered, RpcError>) -> Self {
        let error = answered.as_ref().err();
        let error = error.filter(|error| !error.upstream || error.is_of_transport());
        let error = error.map(|error| error.code);
        let message = match answered {
            Ok(Answered::Page(page)) => page.answer(id),
            Ok(Answered::Body(body)) => codec::answer(id, Ok(body)).into(),
            Err(error) => codec::answer(id, Err(error)).into(),
        };
        Self { message, error }
    }
}
