//! Reaches a server over streamable HTTP: one POST for each request, and separate event streams.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use toolbooth_contracts::causes::with_causes;
use toolbooth_mcp::header;

use super::envelope::{self, MESSAGE_BYTES_MAX};
use super::fault::{Answered, Fault, names_session};
use super::message::{Message, Reply};
use super::notifications::{Incoming, Origin};
use super::resolver::Resolver;
use super::sse::{Broken, Event, Events};
use crate::error::ConnectError;
use crate::own_doors::OwnDoors;
use crate::tracked_body;

/// Maximum concurrent requests of one connection; further ones wait within their own timeout.
const POSTS_MAX: usize = 256;
/// Maximum consecutive resumptions of a broken stream without a new event.
const RESUMES_MAX: u32 = 5;
/// First and maximum pause before a stream is opened again.
const REOPEN_FIRST: Duration = Duration::from_secs(1);
const REOPEN_MAX: Duration = Duration::from_secs(30);
/// How long the end of a stream is awaited after its response, and how many at once. The connection
/// can then be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const DRAINS_MAX: usize = 32;
/// Bytes at the beginning of a body that an error quotes at most.
const QUOTED_BYTES: usize = 800;
/// Bytes that are reserved before a body arrives, if the server states its length.
const RESERVED_BYTES: usize = 2 << 20;
/// Timeout for ending a session.
const DELETE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for a notification or a reply to the server.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum concurrent replies to the server's own requests; further requests get no reply.
const REPLIES_MAX: usize = 8;

type Body = BoxStream<'static, Result<Bytes, reqwest::Error>>;

/// The protocol headers of a connection's requests.
#[derive(Debug, Clone, Default)]
pub(super) struct SessionHeaders {
    all: HeaderMap,
    has_session: bool,
    /// All headers of a POST but those of the request alone, made for the first one. A connection has one endpoint.
    of_posts: OnceLock<HeaderMap>,
}

impl SessionHeaders {
    /// Returns the headers for a negotiated version and the session of a legacy server.
    pub(super) fn new(version: &str, session: Option<&str>) -> Self {
        let mut all = HeaderMap::new();
        let mut put = |name: &str, value: &str| {
            // The header names of the protocol are valid.
            if let (Ok(name), Ok(value)) =
                (name.parse::<http::HeaderName>(), HeaderValue::from_str(value))
            {
                all.insert(name, value);
            }
        };
        put(header::VERSION, version);
        if let Some(session) = session {
            put(header::SESSION, session);
        }
        Self { all, has_session: session.is_some(), of_posts: OnceLock::new() }
    }
}

/// A request to be sent.
pub(super) struct Post<'a> {
    pub(super) id: u64,
    pub(super) body: Vec<u8>,
    /// Headers of this request alone.
    pub(super) headers: HeaderMap,
    /// Whether it may have reached the server.
    pub(super) sent: &'a AtomicBool,
}

/// The response to a POST, and the session that it assigns.
pub(super) struct Posted {
    pub(super) answered: Answered,
    pub(super) session: Option<String>,
}

impl From<Fault> for Posted {
    fn from(fault: Fault) -> Self {
        Self { answered: Err(fault), session: None }
    }
}

/// The endpoint of a server.
#[derive(Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    url: String,
    parsed: Option<reqwest::Url>,
    headers: HeaderMap,
    posts: Semaphore,
    drains: Mutex<JoinSet<()>>,
    replies: Semaphore,
}

/// Whether a header is reserved for the protocol.
pub(super) fn is_reserved(name: &http::HeaderName) -> bool {
    [
        "accept",
        header::SESSION,
        header::LAST_EVENT_ID,
        header::VERSION,
        header::METHOD,
        header::NAME,
    ]
    .iter()
    .any(|reserved| name.as_str().eq_ignore_ascii_case(reserved))
}

fn is_event_stream(response: &reqwest::Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.is_some_and(|text| {
        text.trim_start().to_ascii_lowercase().starts_with(header::EVENT_STREAM)
    })
}

/// Takes the user and the password out of a URL, as a header of HTTP basic authentication (RFC 7617).
fn take_credentials(url: &mut reqwest::Url) -> Option<HeaderValue> {
    let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
    let mut pair = decoded(url.username());
    if pair.is_empty() && url.password().is_none() {
        return None;
    }
    pair.push(b':');
    pair.extend(decoded(url.password().unwrap_or_default()));
    // A URL with a host can have its user and password removed.
    let _ = (url.set_username(""), url.set_password(None));
    let mut header =
        HeaderValue::from_str(&format!("Basic {}", data_encoding::BASE64.encode(&pair))).ok()?;
    header.set_sensitive(true);
    Some(header)
}

impl Http {
    pub(super) fn new(
        url: String,
        mut headers: HeaderMap,
        doors: &OwnDoors,
    ) -> Result<Self, ConnectError> {
        let mut parsed: Option<reqwest::Url> = url.parse().ok();
        let resolver = Resolver::of(parsed.as_ref(), doors)?;
        let client = crate::tls::client()
            .dns_resolver(resolver)
            // The size limit applies to the bytes read, and compressed responses would evade it.
            .no_gzip()
            .no_deflate()
            .redirect(reqwest::redirect::Policy::none())
            .tcp_nodelay(true)
            .build()
            .map_err(ConnectError::Client)?;
        let (posts, replies) = (Semaphore::new(POSTS_MAX), Semaphore::new(REPLIES_MAX));
        if let Some(credentials) = parsed.as_mut().and_then(take_credentials) {
            headers.entry(AUTHORIZATION).or_insert(credentials);
        }
        Ok(Self { client, url, parsed, headers, posts, drains: Mutex::default(), replies })
    }

    /// Returns a request with the headers of the endpoint and of the connection.
    fn marked(&self, method: http::Method, speech: &SessionHeaders) -> reqwest::RequestBuilder {
        let mut all = self.headers.clone();
        all.extend(speech.all.clone());
        self.with_headers(method, all)
    }

    /// Returns a POST with all its headers.
    fn marked_post(&self, speech: &SessionHeaders, headers: HeaderMap) -> reqwest::RequestBuilder {
        let prepared = speech.of_posts.get_or_init(|| {
            let mut all = self.headers.clone();
            all.extend(speech.all.clone());
            let accepted = HeaderValue::from_static("application/json, text/event-stream");
            all.insert(ACCEPT, accepted);
            all.insert(CONTENT_TYPE, HeaderValue::from_static(header::JSON));
            all
        });
        let mut all = prepared.clone();
        all.extend(headers);
        self.with_headers(http::Method::POST, all)
    }

    fn with_headers(&self, method: http::Method, headers: HeaderMap) -> reqwest::RequestBuilder {
        match &self.parsed {
            Some(url) => {
                let mut request = reqwest::Request::new(method, url.clone());
                *request.headers_mut() = headers;
                reqwest::RequestBuilder::from_parts(self.client.clone(), request)
            }
            // The request fails, and its error tells why.
            None => self.client.request(method, &self.url).headers(headers),
        }
    }

    /// Sends a request and reads until its response; other messages are dispatched to `incoming`.
    pub(super) async fn post(
        &self,
        speech: &SessionHeaders,
        post: Post<'_>,
        incoming: &Incoming,
    ) -> Posted {
        // The wait counts towards the request's timeout, which may expire first.
        let Ok(_place) = self.posts.acquire().await else {
            return Fault::Lost("the connection is closed".to_owned()).into();
        };
        self.post_at_once(speech, post, incoming).await
    }

    /// Like [`post`](Self::post), for a request that stays open and does not count towards the
    /// limit.
    pub(super) async fn post_at_once(
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
    async fn take(
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

    /// Reads the response from a stream of events.
    async fn streamed(
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
    pub(super) async fn hear(
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

    /// Replies to a request of the server, unless too many replies are in progress.
    async fn reply(&self, speech: &SessionHeaders, body: Vec<u8>) {
        if let Ok(_place) = self.replies.try_acquire() {
            self.notify(speech, body, HeaderMap::new()).await;
        }
    }

    /// Sends a message that has no response.
    pub(super) async fn notify(&self, speech: &SessionHeaders, body: Vec<u8>, headers: HeaderMap) {
        let request = self.marked_post(speech, headers).body(body);
        let _ = tokio::time::timeout(NOTIFY_TIMEOUT, request.send()).await;
    }

    /// Ends a session.
    pub(super) async fn delete(&self, speech: &SessionHeaders) {
        if speech.has_session {
            let request = self.marked(http::Method::DELETE, speech);
            let _ = tokio::time::timeout(DELETE_TIMEOUT, request.send()).await;
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
    use super::super::message::Refusal;
    use super::*;

    #[test]
    fn credentials_of_a_url_become_a_header() {
        let sent = |url: &str, own: Option<&'static str>| {
            let own = own.map(|own| (AUTHORIZATION, HeaderValue::from_static(own)));
            let http =
                Http::new(url.to_owned(), own.into_iter().collect(), &OwnDoors::default()).unwrap();
            let speech = SessionHeaders::new("2025-11-25", None);
            let posted = http.marked_post(&speech, HeaderMap::new()).build().unwrap();
            let opened = http.marked(http::Method::GET, &speech).build().unwrap();
            assert_eq!(posted.url(), opened.url());
            assert_eq!(posted.headers().get(AUTHORIZATION), opened.headers().get(AUTHORIZATION));
            let header =
                posted.headers().get(AUTHORIZATION).map(|own| own.to_str().unwrap().to_owned());
            (posted.url().to_string(), header)
        };
        let basic =
            |pair: &str| Some(format!("Basic {}", data_encoding::BASE64.encode(pair.as_bytes())));
        let bare = "http://127.0.0.1:9/mcp".to_owned();
        for (url, own, header) in [
            ("http://127.0.0.1:9/mcp", None, None),
            ("http://ada:s%3Ac%40ret@127.0.0.1:9/mcp", None, basic("ada:s:c@ret")),
            ("http://ada@127.0.0.1:9/mcp", None, basic("ada:")),
            ("http://:s@127.0.0.1:9/mcp", None, basic(":s")),
            ("http://ada:s@127.0.0.1:9/mcp", Some("Bearer t"), Some("Bearer t".to_owned())),
        ] {
            assert_eq!(sent(url, own), (bare.clone(), header), "{url}");
        }
    }

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
