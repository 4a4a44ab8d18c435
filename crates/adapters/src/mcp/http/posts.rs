//! Sends the requests of a connection, one POST for each, and reads their responses.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use toolbooth_contracts::causes::with_causes;
use toolbooth_mcp::header;

use super::super::envelope::{self, MESSAGE_BYTES_MAX};
use super::super::fault::{Answered, Fault, names_session};
use super::super::message::{Message, Reply};
use super::super::notifications::{Incoming, Origin};
use super::streams::is_event_stream;
use super::{Http, SessionHeaders};
use crate::tracked_body;

/// Bytes at the beginning of a body that an error quotes at most.
const QUOTED_BYTES: usize = 800;
/// Bytes that are reserved before a body arrives, if the server states its length.
const RESERVED_BYTES: usize = 2 << 20;

/// A request to be sent.
pub(in crate::mcp) struct Post<'a> {
    pub(in crate::mcp) id: u64,
    pub(in crate::mcp) body: Vec<u8>,
    /// Headers of this request alone.
    pub(in crate::mcp) headers: HeaderMap,
    /// Whether it may have reached the server.
    pub(in crate::mcp) sent: &'a AtomicBool,
}

/// The response to a POST, and the session that it assigns.
pub(in crate::mcp) struct Posted {
    pub(in crate::mcp) answered: Answered,
    pub(in crate::mcp) session: Option<String>,
}

impl From<Fault> for Posted {
    fn from(fault: Fault) -> Self {
        Self { answered: Err(fault), session: None }
    }
}

impl Http {
    /// Sends a request and reads until its response; other messages are dispatched to `incoming`.
    pub(in crate::mcp) async fn post(
        &self,
        speech: &SessionHeaders,
        post: Post<'_>,
        incoming: &Incoming,
    ) -> Posted {
        // The wait counts towards the request's timeout, which may expire first.
        let Ok(_permit) = self.posts.acquire().await else {
            return Fault::Lost("the connection is closed".to_owned()).into();
        };
        self.post_at_once(speech, post, incoming).await
    }

    /// Like [`post`](Self::post), for a request that stays open and does not count towards the
    /// limit.
    pub(in crate::mcp) async fn post_at_once(
        &self,
        speech: &SessionHeaders,
        post: Post<'_>,
        incoming: &Incoming,
    ) -> Posted {
        let Post { id, body, headers, sent } = post;
        let request = self.marked_post(speech, headers);
        let (request, handed) = tracked_body::attach(request, body);
        sent.store(true, Ordering::Release);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                if error.is_connect() || error.is_builder() || !handed.is_whole() {
                    sent.store(false, Ordering::Release);
                }
                return Fault::Lost(with_causes(&error)).into();
            }
        };
        let status = response.status();
        if tracked_body::says_not_taken(status) {
            sent.store(false, Ordering::Release);
        }
        let session = response.headers().get(header::SESSION);
        let session = session.and_then(|value| value.to_str().ok()).map(str::to_owned);
        if status.is_success() && is_event_stream(&response) {
            let answered = self.streamed(speech, response, id, incoming).await;
            return Posted { answered, session };
        }
        let answered = self.whole(speech, response, id, sent, incoming).await;
        Posted { answered, session }
    }

    /// Reads the response from a body that is not a stream.
    async fn whole(
        &self,
        speech: &SessionHeaders,
        response: reqwest::Response,
        id: u64,
        sent: &AtomicBool,
        incoming: &Incoming,
    ) -> Answered {
        let status = response.status();
        let stated = response.content_length().and_then(|bytes| usize::try_from(bytes).ok());
        let mut body = Vec::with_capacity(stated.unwrap_or_default().min(RESERVED_BYTES));
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(|error| Fault::Lost(with_causes(&error)))?);
            if body.len() > MESSAGE_BYTES_MAX {
                return Err(Fault::TooLarge(MESSAGE_BYTES_MAX));
            }
        }
        // What an error quotes.
        let start = body.get(..body.len().min(QUOTED_BYTES)).unwrap_or_default().to_vec();
        let start = || {
            let quoted: String = String::from_utf8_lossy(&start).chars().take(200).collect();
            format!("HTTP {status}: {quoted}")
        };
        let mut answered = None;
        for message in envelope::read(body) {
            if let Some(answer) = self.take(speech, message, id, incoming).await {
                answered.get_or_insert(answer);
            }
        }
        if speech.has_session && is_session_ended(status, answered.as_ref()) {
            sent.store(false, Ordering::Release);
            return Err(Fault::SessionEnded);
        }
        match answered {
            Some(Err(fault @ Fault::Refused(_))) => Err(fault),
            Some(Ok(result)) if status.is_success() => Ok(result),
            Some(Err(Fault::Unreadable(reason))) if status.is_success() => {
                Err(Fault::Unreadable(format!("{}: {reason}", start())))
            }
            _ if status.is_success() => Err(Fault::Unreadable(start())),
            _ => Err(Fault::Status(status.as_u16(), start())),
        }
    }

    /// Dispatches a message and returns the response to `id` if the message is that response.
    pub(super) async fn take(
        &self,
        speech: &SessionHeaders,
        message: Message,
        id: u64,
        incoming: &Incoming,
    ) -> Option<Answered> {
        match message {
            // A response without an id on a request's own stream belongs to that request.
            Message::Answer { id: own, reply } if own.is_none_or(|own| own == id) => {
                Some(match reply {
                    Reply::Result(result) => Ok(result),
                    Reply::Refused(refusal) => Err(Fault::Refused(refusal)),
                })
            }
            Message::Unreadable { id: own, reason } if own.is_none_or(|own| own == id) => {
                Some(Err(Fault::Unreadable(reason)))
            }
            Message::Noise => Some(Err(Fault::Unreadable("it is no message".to_owned()))),
            other => {
                if let Some(reply) = incoming.take(other, Origin::Request(id)) {
                    self.reply(speech, reply).await;
                }
                None
            }
        }
    }
}

/// Whether a response shows that the server does not know the session, and thus has not processed
/// the request. The protocol defines a 404; widespread servers return a 400 that mentions the
/// session.
fn is_session_ended(status: StatusCode, answered: Option<&Answered>) -> bool {
    match (status, answered) {
        (StatusCode::NOT_FOUND, _) => true,
        (StatusCode::BAD_REQUEST, Some(Err(Fault::Refused(refusal)))) => names_session(refusal),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::message::Refusal;
    use super::*;

    #[test]
    fn only_a_session_that_is_unknown_ends_it() {
        let refused = |message: &str| -> Answered {
            Err(Fault::Refused(Refusal { code: -32_000, message: message.to_owned(), data: None }))
        };
        let unknown = refused("Bad Request: No valid session ID provided");
        assert!(is_session_ended(StatusCode::NOT_FOUND, None));
        assert!(is_session_ended(StatusCode::BAD_REQUEST, Some(&unknown)));
        assert!(!is_session_ended(StatusCode::BAD_REQUEST, Some(&refused("no such city"))));
        assert!(!is_session_ended(StatusCode::BAD_REQUEST, None));
        assert!(!is_session_ended(StatusCode::OK, Some(&unknown)));
    }
}
