//! Reads event streams: that of a request, and that of unsolicited messages.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use toolbooth_mcp::header;

use super::super::envelope::{self, MESSAGE_BYTES_MAX};
use super::super::fault::{Answered, Fault};
use super::super::message::{Message, Reply};
use super::super::notifications::{Incoming, Origin};
use super::super::sse::{Broken, Event, Events};
use super::{Http, SessionHeaders};

/// Maximum consecutive resumptions of a broken stream without a new event.
const RESUMES_MAX: u32 = 5;
/// First and maximum pause before a stream is opened again.
const REOPEN_FIRST: Duration = Duration::from_secs(1);
const REOPEN_MAX: Duration = Duration::from_secs(30);
/// How long the end of a stream is awaited after its response, and how many at once. The connection
/// can then be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const DRAINS_MAX: usize = 32;

type Body = BoxStream<'static, Result<Bytes, reqwest::Error>>;

pub(super) fn is_event_stream(response: &reqwest::Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| {
        text.trim_start().to_ascii_lowercase().starts_with(header::EVENT_STREAM)
    })
}

impl Http {
    /// Reads the response from a stream of events.
    pub(super) async fn streamed(
        &self,
        speech: &SessionHeaders,
        response: reqwest::Response,
        id: u64,
        incoming: &Incoming,
    ) -> Answered {
        let mut events = Events::new(response.bytes_stream().boxed(), MESSAGE_BYTES_MAX);
        let (mut last, mut pause, mut resumes) = (None, REOPEN_FIRST, 0);
        loop {
            let broken = match events.next().await {
                Ok(Some(Event { data, id: event, retry })) => {
                    last = event.or(last);
                    pause = retry.map_or(pause, |ms| Duration::from_millis(ms).min(REOPEN_MAX));
                    resumes = 0;
                    let mut answered = None;
                    for message in envelope::read(data) {
                        if let Some(answer) = self.take(speech, message, id, incoming).await {
                            answered.get_or_insert(answer);
                        }
                    }
                    if let Some(answered) = answered {
                        self.drain(events.into_rest());
                        return answered;
                    }
                    continue;
                }
                Ok(None) => "the stream ended without an answer".to_owned(),
                Err(Broken::TooLarge) => return Err(Fault::TooLarge(MESSAGE_BYTES_MAX)),
                Err(Broken::Lost(reason)) => format!("the stream broke: {reason}"),
            };
            // A server that numbers its events stores the remaining ones and resends them after the
            // last received id. The request itself is not sent again.
            let Some(known) = last.as_deref().filter(|_| resumes < RESUMES_MAX) else {
                return Err(Fault::Lost(broken));
            };
            resumes += 1;
            tokio::time::sleep(pause).await;
            match self.open_stream(speech, Some(known)).await {
                Ok(body) => events = Events::new(body, MESSAGE_BYTES_MAX),
                Err(_) => return Err(Fault::Lost(broken)),
            }
        }
    }

    /// Reads the rest of a stream, so that its connection can be reused.
    fn drain(&self, mut rest: Body) {
        // Mostly the end has arrived with the response.
        if matches!(rest.next().now_or_never(), Some(None | Some(Err(_)))) {
            return;
        }
        let mut drains = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
        while drains.try_join_next().is_some() {}
        if drains.len() < DRAINS_MAX {
            drains.spawn(async move {
                let end = async { while let Some(Ok(_)) = rest.next().await {} };
                let _ = tokio::time::timeout(DRAIN_TIMEOUT, end).await;
            });
        }
    }

    /// Opens the stream of unsolicited messages of the server, after the event `last`.
    ///
    /// # Errors
    /// The status, if the server returned one.
    async fn open_stream(
        &self,
        speech: &SessionHeaders,
        last: Option<&str>,
    ) -> Result<Body, Option<StatusCode>> {
        let mut request =
            self.marked(http::Method::GET, speech).header(ACCEPT, header::EVENT_STREAM);
        if let Some(Ok(last)) = last.map(HeaderValue::from_str) {
            request = request.header(header::LAST_EVENT_ID, last);
        }
        let response = request.send().await.map_err(|_| None)?;
        if response.status().is_success() && is_event_stream(&response) {
            return Ok(response.bytes_stream().boxed());
        }
        Err(Some(response.status()))
    }

    /// Reads the unsolicited messages of a legacy server as long as it offers the stream. Returns
    /// `true` if the server does not know the session any more. `answered` is called each time the
    /// server has accepted or refused the stream.
    pub(in crate::mcp) async fn hear(
        &self,
        speech: &SessionHeaders,
        incoming: &Incoming,
        answered: impl Fn(),
    ) -> bool {
        let (mut last, mut pause, mut opened) = (None, REOPEN_FIRST, false);
        loop {
            let stream = self.open_stream(speech, last.as_deref()).await;
            if !matches!(stream, Err(None)) {
                answered();
            }
            match stream {
                Ok(body) => {
                    opened = true;
                    let mut events = Events::new(body, MESSAGE_BYTES_MAX);
                    while let Ok(Some(Event { data, id, retry })) = events.next().await {
                        last = id.or(last);
                        pause = retry.map_or(REOPEN_FIRST, Duration::from_millis);
                        for message in envelope::read(data) {
                            match message {
                                // After a request's own stream broke, its response may arrive here.
                                Message::Answer { id: Some(id), reply } => {
                                    let answered = match reply {
                                        Reply::Result(result) => Ok(result),
                                        Reply::Refused(refusal) => Err(Fault::Refused(refusal)),
                                    };
                                    incoming.calls.answer(id, answered);
                                }
                                Message::Unreadable { id: Some(id), reason } => {
                                    incoming.calls.answer(id, Err(Fault::Unreadable(reason)));
                                }
                                other => {
                                    if let Some(reply) = incoming.take(other, Origin::Stream) {
                                        self.reply(speech, reply).await;
                                    }
                                }
                            }
                        }
                    }
                }
                // The server does not offer the stream, or has ended the session.
                Err(Some(status)) if status.is_client_error() => {
                    let unknown = matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST);
                    return opened && unknown && speech.has_session;
                }
                Err(_) => (),
            }
            tokio::time::sleep(pause.clamp(REOPEN_FIRST / 10, REOPEN_MAX)).await;
            pause = (pause * 2).clamp(REOPEN_FIRST, REOPEN_MAX);
        }
    }
}
