//! An HTTP client for streamable HTTP that hands results on as they came.
//!
//! Everything but custom requests is the SDK's own; those are posted here, and their results
//! travel through the SDK as text.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, CustomResult, RequestId, ServerJsonRpcMessage,
    ServerResult,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use serde_json::{Value, json};
use sse_stream::{Sse, SseStream};

use super::answer;
use crate::tracked_body;

/// Bytes of one answer.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Where the text of a result travels inside a typed one; it never leaves this process.
const RAW: &str = "toolbooth/raw";

#[derive(Debug, Clone)]
pub(super) struct RawHttp {
    client: reqwest::Client,
    untaken: Untaken,
}

/// Requests that the server cannot have taken, until they are asked for.
#[derive(Debug, Clone, Default)]
pub(super) struct Untaken(Arc<Mutex<HashSet<RequestId>>>);

impl Untaken {
    fn note(&self, id: RequestId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Whether the server cannot have taken a request; forgets it.
    pub(super) fn take(&self, id: &RequestId) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }
}

type Error = StreamableHttpError<reqwest::Error>;

/// An answer whose result the SDK passes through as text. A listing stays typed, because the SDK
/// learns from it which headers a call needs, and carries its text beside.
fn rewrite(text: &str, request: &RequestId, listing: bool) -> Option<String> {
    let (id, result) = answer(text.as_bytes()).ok()??;
    if id != *request {
        return None;
    }
    let passed = if listing {
        let mut typed: Value = serde_json::from_str(result.get()).ok()?;
        let meta = typed.as_object_mut()?.entry("_meta").or_insert_with(|| json!({}));
        meta.as_object_mut()?.insert(RAW.to_owned(), json!(result.get()));
        typed
    } else {
        Value::String(result.get().to_owned())
    };
    Some(json!({ "jsonrpc": "2.0", "id": request, "result": passed }).to_string())
}

/// A body of events, which ends where one event is over the limit.
fn bounded(
    response: reqwest::Response,
) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static {
    let mut since = 0usize;
    response.bytes_stream().map(move |chunk| {
        let chunk = chunk.map_err(std::io::Error::other)?;
        // An event ends at a blank line; a chunk without one adds to the event before.
        since = match chunk.windows(2).rposition(|pair| pair == b"\n\n" || pair == b"\r\r") {
            Some(at) => chunk.len() - at,
            None if chunk.windows(4).any(|four| four == b"\r\n\r\n") => chunk.len(),
            None => since.saturating_add(chunk.len()),
        };
        if since > BODY_BYTES_MAX {
            return Err(std::io::Error::other("an event is over the limit"));
        }
        Ok(chunk)
    })
}

/// The result as it came, whichever way it travelled.
pub(super) fn unwrap(result: ServerResult) -> serde_json::Result<Value> {
    let mut value = match result {
        ServerResult::CustomResult(CustomResult(Value::String(text))) => {
            return serde_json::from_str(&text);
        }
        ServerResult::CustomResult(CustomResult(value)) => value,
        other => serde_json::to_value(other)?,
    };
    let raw = value.get_mut("_meta").and_then(|meta| meta.get_mut(RAW)).map(Value::take);
    match raw {
        Some(Value::String(text)) => serde_json::from_str(&text),
        _ => Ok(value),
    }
}

impl RawHttp {
    pub(super) fn new() -> Result<Self, reqwest::Error> {
        crate::functions::install_tls();
        let client = reqwest::Client::builder()
            // What comes compressed could not be bounded by what is read.
            .no_gzip()
            .no_deflate()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .build()?;
        Ok(Self { client, untaken: Untaken::default() })
    }

    /// The requests that the server cannot have taken.
    pub(super) fn untaken(&self) -> Untaken {
        self.untaken.clone()
    }

    #[expect(clippy::too_many_arguments, reason = "the SDK's own method has as many")]
    async fn post_raw(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        request: RequestId,
        listing: bool,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let had_session = session.is_some();
        let mut post = self.client.post(uri);
        for (name, value) in headers {
            post = post.header(name, value);
        }
        if let Some(auth) = auth {
            post = post.bearer_auth(auth);
        }
        if let Some(session) = session {
            post = post.header("Mcp-Session-Id", session.as_ref());
        }
        let post = post
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json");
        let body = serde_json::to_vec(message).map_err(|error| {
            StreamableHttpError::UnexpectedServerResponse(Cow::Owned(error.to_string()))
        })?;
        let (post, sent) = tracked_body::attach(post, body);
        let response = match post.send().await {
            Ok(response) => response,
            Err(error) => {
                if error.is_connect() || error.is_builder() || !sent.is_whole() {
                    self.untaken.note(request);
                }
                return Err(error.into());
            }
        };
        let status = response.status();
        if tracked_body::says_not_taken(status) {
            self.untaken.note(request.clone());
        }
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        if let (StatusCode::UNAUTHORIZED, Some(challenge)) = (status, header("www-authenticate")) {
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
        }
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let session = header("mcp-session-id");
        let content_type = header("content-type").unwrap_or_default();
        if status.is_success() && content_type.starts_with("text/event-stream") {
            let events = SseStream::from_bytes_stream(bounded(response)).map(move |event| {
                event.map(|mut event| {
                    let data = event.data.as_deref();
                    if let Some(data) = data.and_then(|data| rewrite(data, &request, listing)) {
                        event.data = Some(data);
                    }
                    event
                })
            });
            return Ok(StreamableHttpPostResponse::Sse(events.boxed(), session));
        }
        let mut body = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(chunk) = stream.next().await {
            body.extend_from_slice(&chunk?);
            if body.len() > BODY_BYTES_MAX {
                return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: BODY_BYTES_MAX });
            }
        }
        let text = String::from_utf8_lossy(&body);
        if content_type.starts_with("application/json") {
            let rewritten = rewrite(&text, &request, listing);
            let parsed = serde_json::from_str(rewritten.as_deref().unwrap_or(&text));
            if let Ok(message) = parsed
                && (status.is_success() || matches!(message, ServerJsonRpcMessage::Error(_)))
            {
                return Ok(StreamableHttpPostResponse::Json(message, session));
            }
        }
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            return Err(HttpStatusError::new(status.as_u16(), None).into());
        }
        let start: String = text.chars().take(200).collect();
        let told = format!("HTTP {status}: {start}");
        Err(StreamableHttpError::UnexpectedServerResponse(Cow::Owned(told)))
    }
}

impl StreamableHttpClient for RawHttp {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Error> {
        let custom = match &message {
            ClientJsonRpcMessage::Request(request) => match &request.request {
                ClientRequest::CustomRequest(custom) => {
                    Some((request.id.clone(), custom.method == "tools/list"))
                }
                _ => None,
            },
            _ => None,
        };
        match custom {
            Some((id, listing)) => {
                self.post_raw(&uri, &message, id, listing, session, auth, headers).await
            }
            None => self.client.post_message(uri, message, session, auth, headers).await,
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Error> {
        self.client.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Error> {
        self.client.get_stream(uri, session, last_event, auth, headers).await
    }
}
