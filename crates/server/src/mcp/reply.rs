//! Writes answers over HTTP, as one JSON document or as a stream of events.
//!
//! A stream begins with the first notification before the answer (MCP streamable HTTP; WHATWG
//! server-sent events).
//!
//! Path: 10. Doc: front-doors.md#answers

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::DropGuard;
use toolbooth_mcp::Era;
use toolbooth_mcp::code;

use super::codec::{Fault, Id, error_answer};
use super::outgoing::{Answer, Outgoing};
use super::page::{DOCUMENT_PAGE_BYTES, EVENT_PAGE_BYTES};
use super::request_future::RequestFuture;
use super::rpc_error::RpcError;
use crate::http::Problem;

/// The longest silence on a connection, so that intermediaries do not close it as dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Asks proxies not to buffer events.
const NO_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The media types that a client accepts for an answer (RFC 9110, 12.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepted {
    pub(super) fn by(headers: &HeaderMap) -> Self {
        let mut accepted = Self { json: false, events: false };
        let mut values = headers.get_all(ACCEPT).iter().peekable();
        if values.peek().is_none() {
            return Self { json: true, events: true };
        }
        for range in values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','))
        {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let refused = parts.any(|part| {
                part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>().is_ok_and(|q| q <= 0.0))
            });
            if refused {
                continue;
            }
            accepted.json |= matches!(kind.as_str(), "*/*" | "application/*" | "application/json");
            accepted.events |= matches!(kind.as_str(), "*/*" | "text/*" | "text/event-stream");
        }
        accepted
    }

    /// Returns how many bytes of tools fit on one page of a listing.
    pub(super) fn page_bytes(self) -> usize {
        if self.json { DOCUMENT_PAGE_BYTES } else { EVENT_PAGE_BYTES }
    }
}

/// Returns the HTTP status for an error of the gateway. In the legacy era it is 200 for all errors
/// except `-32700` and `-32600`.
pub(super) fn status(era: Era, error: Option<i64>) -> StatusCode {
    match (era, error) {
        (_, Some(code::PARSE_ERROR | code::INVALID_REQUEST)) => StatusCode::BAD_REQUEST,
        (Era::Modern, Some(code::METHOD_NOT_FOUND)) => StatusCode::NOT_FOUND,
        (
            Era::Modern,
            Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY | code::UNSUPPORTED_VERSION),
        ) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

/// Returns a response with a JSON document.
pub(super) fn document(status: StatusCode, message: Bytes) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], message).into_response()
}

/// Returns a response with a JSON-RPC error.
pub(super) fn refusal(status: StatusCode, id: Option<&Id>, error: &RpcError) -> Response {
    document(status, error_answer(id, error))
}

/// Turns a problem into a JSON-RPC error with the same status and headers.
pub(super) fn of_problem(problem: Problem) -> Response {
    let data = json!({ "code": problem.code });
    let error = RpcError::new(code::INVALID_REQUEST, problem.title.clone()).with_data(data);
    let (mut parts, _) = problem.into_response().into_parts();
    let body = error_answer(None, &error);
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Body::from(body))
}

/// Returns the response to a rejected message.
pub(super) fn fault(fault: &Fault) -> Response {
    document(StatusCode::BAD_REQUEST, fault.answer())
}

/// Answers with the messages of `outgoing`, which `running` sends. A response that is dropped before its
/// answer drops `guard`.
pub(super) async fn reply(
    era: Era,
    accepted: Accepted,
    wants_notices: bool,
    mut running: RequestFuture,
    mut outgoing: mpsc::Receiver<Outgoing>,
    guard: Option<DropGuard>,
) -> Response {
    let quiet = sleep(KEEP_ALIVE);
    tokio::pin!(quiet);
    loop {
        tokio::select! {
            biased;
            first = outgoing.recv() => match first {
                Some(Outgoing::Answer(Answer { message, error })) => {
                    drop(guard.map(DropGuard::disarm));
                    let status = status(era, error);
                    // A stream of events always has status 200, so it cannot carry another status.
                    return if accepted.json || status != StatusCode::OK {
                        let body = Body::new(message);
                        (status, [(CONTENT_TYPE, "application/json")], body).into_response()
                    } else {
                        events(Stream::ended(event(&message.whole())))
                    };
                }
                Some(Outgoing::Notice(message)) if accepted.events => {
                    return events(Stream::begun(Form::Events, event(&message), outgoing, guard));
                }
                // A client that does not accept events gets only the answer.
                Some(Outgoing::Notice(_)) => (),
                None => {
                    let error = RpcError::new(code::INTERNAL_ERROR, "the request was not answered");
                    return refusal(StatusCode::INTERNAL_SERVER_ERROR, None, &error);
                }
            },
            () = running.end() => (),
            () = &mut quiet => {
                if accepted.json && !(wants_notices && accepted.events) {
                    // White space before a JSON document is insignificant (RFC 8259, 2).
                    let stream = Stream::begun(Form::Json, Bytes::from_static(b" "), outgoing, guard);
                    let body = Body::new(stream);
                    return ([(CONTENT_TYPE, "application/json")], body).into_response();
                }
                let heartbeat = Bytes::from_static(HEARTBEAT);
                return events(Stream::begun(Form::Events, heartbeat, outgoing, guard));
            }
        }
    }
}

/// Returns a stream of events that begins at once.
pub(super) fn stream(outgoing: mpsc::Receiver<Outgoing>, guard: Option<DropGuard>) -> Response {
    events(Stream::begun(Form::Events, Bytes::from_static(HEARTBEAT), outgoing, guard))
}

fn events(stream: Stream) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform")),
        (NO_BUFFERING, HeaderValue::from_static("no")),
    ];
    (headers, Body::new(stream)).into_response()
}

/// A comment, which clients skip.
const HEARTBEAT: &[u8] = b": \n\n";

/// Frames a message as an event. Messages are compact JSON without line breaks, so one `data` line
/// is enough.
fn event(message: &[u8]) -> Bytes {
    let mut event = BytesMut::with_capacity(message.len() + 24);
    event.put_slice(b"event: message\ndata: ");
    event.put_slice(message);
    event.put_slice(b"\n\n");
    event.freeze()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Events,
}

/// A body that is sent message by message.
struct Stream {
    form: Form,
    first: Option<Bytes>,
    outgoing: Option<mpsc::Receiver<Outgoing>>,
    quiet: Pin<Box<Sleep>>,
    guard: Option<DropGuard>,
}

impl Stream {
    fn begun(
        form: Form,
        first: Bytes,
        outgoing: mpsc::Receiver<Outgoing>,
        guard: Option<DropGuard>,
    ) -> Self {
        let quiet = Box::pin(sleep(KEEP_ALIVE));
        Self { form, first: Some(first), outgoing: Some(outgoing), quiet, guard }
    }

    fn ended(first: Bytes) -> Self {
        let quiet = Box::pin(sleep(KEEP_ALIVE));
        Self { form: Form::Events, first: Some(first), outgoing: None, quiet, guard: None }
    }

    /// Returns the bytes of a message, if the form carries it. The answer ends the body.
    fn piece(&mut self, outgoing: Outgoing) -> Option<Bytes> {
        match (self.form, outgoing) {
            (Form::Json, Outgoing::Notice(_)) => None,
            (Form::Events, Outgoing::Notice(message)) => Some(event(&message)),
            (form, Outgoing::Answer(Answer { message, .. })) => {
                self.outgoing = None;
                if let Some(guard) = self.guard.take() {
                    drop(guard.disarm());
                }
                let message = message.whole();
                Some(if form == Form::Json { message } else { event(&message) })
            }
        }
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            let Some(outgoing) = &mut this.outgoing else { return Poll::Ready(None) };
            match outgoing.poll_recv(context) {
                Poll::Ready(None) => {
                    this.outgoing = None;
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(one)) => {
                    if let Some(piece) = this.piece(one) {
                        this.quiet.as_mut().reset(Instant::now() + KEEP_ALIVE);
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                Poll::Pending => break,
            }
        }
        if this.quiet.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        this.quiet.as_mut().reset(Instant::now() + KEEP_ALIVE);
        // The next poll registers the waker for the new deadline.
        context.waker().wake_by_ref();
        let heartbeat = if this.form == Form::Json { &b" "[..] } else { HEARTBEAT };
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(heartbeat)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_forms_are_read_as_http_has_them() {
        let by = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT, value.parse().unwrap());
            }
            let Accepted { json, events } = Accepted::by(&headers);
            (json, events)
        };
        assert_eq!(by(&[]), (true, true));
        assert_eq!(by(&["application/json, text/event-stream"]), (true, true));
        assert_eq!(by(&["application/json", "text/event-stream"]), (true, true));
        assert_eq!(by(&["*/*"]), (true, true));
        assert_eq!(by(&["application/json"]), (true, false));
        assert_eq!(by(&["text/event-stream;q=0.5, application/json;q=0"]), (false, true));
        assert_eq!(by(&["text/html"]), (false, false));
    }

    /// Returns the next piece of a body, as text.
    async fn piece(body: &mut Body) -> Option<String> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        let bytes = frame?.unwrap().into_data().unwrap();
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_request_is_kept_alive() {
        let both = Accepted { json: true, events: true };
        let events_only = Accepted { json: false, events: true };
        for (accepted, wants_notices, heartbeat) in
            [(both, false, " "), (both, true, ": \n\n"), (events_only, false, ": \n\n")]
        {
            let (outgoing, receiver) = mpsc::channel(1);
            // Without a message, the head is sent when `KEEP_ALIVE` has passed.
            let running = RequestFuture::new(std::future::pending());
            let response =
                reply(Era::Modern, accepted, wants_notices, running, receiver, None).await;
            let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            let is_json = accepted.json && !wants_notices;
            assert_eq!(kind, if is_json { "application/json" } else { "text/event-stream" });
            let mut body = response.into_body();
            for _ in 0..3 {
                assert_eq!(piece(&mut body).await.unwrap(), heartbeat);
            }
            let answer = Answer { message: Bytes::from_static(b"{}").into(), error: None };
            outgoing.send(Outgoing::Answer(answer)).await.unwrap();
            let last = piece(&mut body).await.unwrap();
            assert_eq!(last, if is_json { "{}" } else { "event: message\ndata: {}\n\n" });
            assert_eq!(piece(&mut body).await, None);
        }
    }

    #[test]
    fn statuses_differ_by_era() {
        assert_eq!(status(Era::Modern, Some(-32_601)), StatusCode::NOT_FOUND);
        assert_eq!(status(Era::Legacy, Some(-32_601)), StatusCode::OK);
        assert_eq!(status(Era::Modern, Some(-32_020)), StatusCode::BAD_REQUEST);
        assert_eq!(status(Era::Modern, None), StatusCode::OK);
    }
}
