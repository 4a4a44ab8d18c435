//! Exchanges requests and responses over one transport, in the era of its server.
//!
//! It neither opens nor closes connections.
//!
//! Path: 7. Doc: execution.md#mcp-servers

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::HeaderMap;
use serde_json::{Map, Value};
use tokio::sync::watch;
use toolbooth_contracts::Conversation;
use toolbooth_contracts::conversation::LogLevel;
use toolbooth_mcp::Era;
use toolbooth_mcp::header_table::HeaderParam;

use super::calls::{Purpose, Ticket};
use super::envelope;
use super::fault::{Answered, Failure, Fault};
use super::greeting::Greeting;
use super::headers;
use super::http::{Http, Post, Posted, SessionHeaders};
use super::notifications::Incoming;
use super::request::{Request, RequestMeta};
use super::results::RpcResult;
use super::stdio::{Shared, Stdio};
/// Timeout for the notification that a request is cancelled.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for setting the log level of a server.
const LOG_LEVEL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long listing waits for the response to the subscription to changes. After that the lists are
/// read, and read again once the server has responded.
const LISTENING_TIMEOUT: Duration = Duration::from_millis(250);

/// The transport of messages.
#[derive(Debug)]
pub(super) enum Transport {
    Stdio(Stdio),
    Http(Arc<Http>),
}

/// A transport before the handshake with its server.
pub(super) struct Line {
    pub(super) transport: Transport,
    pub(super) incoming: Incoming,
}

impl Line {
    /// Sends one request and waits for its response.
    pub(super) async fn exchange(
        &self,
        ticket: &mut Ticket,
        request: &Request<'_>,
        meta: &RequestMeta,
        speech: &SessionHeaders,
        headers: HeaderMap,
    ) -> Posted {
        let body = request.bytes(ticket.id, meta);
        let stays_open = request.method == "subscriptions/listen";
        match &self.transport {
            Transport::Stdio(stdio) => {
                if let Err(fault) = stdio.send(ticket.id, body, &ticket.sent).await {
                    return fault.into();
                }
                Posted { answered: received((&mut ticket.answer).await), session: None }
            }
            Transport::Http(http) => {
                let post = Post { id: ticket.id, body, headers, sent: &ticket.sent };
                let posted = async {
                    if stays_open {
                        http.post_at_once(speech, post, &self.incoming).await
                    } else {
                        http.post(speech, post, &self.incoming).await
                    }
                };
                // A legacy server may respond on its standalone stream, and the connection may
                // close.
                tokio::select! {
                    biased;
                    posted = posted => posted,
                    answer = &mut ticket.answer => {
                        Posted { answered: received(answer), session: None }
                    }
                }
            }
        }
    }
}

fn received(answer: Result<Answered, tokio::sync::oneshot::error::RecvError>) -> Answered {
    answer.unwrap_or_else(|_| Err(Fault::Lost("the connection is closed".to_owned())))
}

/// A transport after the handshake with its server.
pub(super) struct Channel {
    pub(super) line: Line,
    pub(super) greeting: Greeting,
    pub(super) speech: SessionHeaders,
    log_level: tokio::sync::Mutex<Option<LogLevel>>,
    session_is_over: AtomicBool,
    /// Whether it is known if the server notifies of changes.
    listening: watch::Sender<bool>,
    /// Whether lists were read before that was known.
    listed_before: AtomicBool,
}

impl Channel {
    pub(super) fn new(line: Line, greeting: Greeting, speech: SessionHeaders) -> Self {
        Self {
            line,
            greeting,
            speech,
            log_level: tokio::sync::Mutex::default(),
            session_is_over: AtomicBool::new(false),
            listening: watch::Sender::new(false),
            listed_before: AtomicBool::new(false),
        }
    }

    /// Returns the child process of a stdio server.
    pub(super) fn child(&self) -> Option<&Shared> {
        match &self.line.transport {
            Transport::Stdio(stdio) => Some(&stdio.shared),
            Transport::Http(_) => None,
        }
    }

    /// Sends a request and reads its result within `timeout`, which progress of the server extends.
    /// `params` are the arguments of the called tool that headers repeat.
    pub(super) async fn request(
        &self,
        request: &Request<'_>,
        params: &[HeaderParam],
        timeout: Duration,
        conversation: Option<&Conversation>,
    ) -> Result<RpcResult, Failure> {
        let purpose = conversation.cloned().map_or(Purpose::Own, Purpose::Caller);
        let (mut ticket, mut patience) = self.line.incoming.calls.open(purpose);
        let meta = self.meta(ticket.id, request, conversation);
        let headers = self.headers(request, params);
        let id = ticket.id;
        let stopped = async {
            match conversation {
                Some(conversation) => conversation.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let exchange = async {
            if let Some(level) = conversation.and_then(Conversation::log_level) {
                self.want_log(level).await;
            }
            self.line.exchange(&mut ticket, request, &meta, &self.speech, headers).await
        };
        let posted = tokio::select! {
            biased;
            posted = exchange => posted,
            () = stopped => Fault::Cancelled.into(),
            () = patience.over(timeout) => Fault::Timeout.into(),
        };
        let fault = match posted.answered {
            Ok(result) => return Ok(result),
            Err(fault) => fault,
        };
        if ticket.was_sent() {
            match &fault {
                Fault::Cancelled => self.cancel(id, "the caller cancelled the request").await,
                Fault::Timeout => self.cancel(id, "the time is over").await,
                _ => (),
            }
        }
        let stderr = self.child().map(Shared::last_output).unwrap_or_default();
        Err(Failure { fault, sent: ticket.was_sent(), stderr })
    }

    /// Returns `_meta` of a request.
    fn meta(
        &self,
        id: u64,
        request: &Request<'_>,
        conversation: Option<&Conversation>,
    ) -> RequestMeta {
        let (mut own, mut prepared) = (Map::new(), "");
        if conversation.is_some() {
            own.insert("progressToken".to_owned(), Value::from(id));
        }
        if self.greeting.era == Era::Modern {
            prepared = toolbooth_mcp::greeting::client_meta_members();
            if let Some(level) = conversation.and_then(Conversation::log_level) {
                let level = Value::from(level.as_str());
                own.insert("io.modelcontextprotocol/logLevel".to_owned(), level);
            }
        }
        // These are the gateway's own, `toolbooth/…`.
        own.extend(request.meta.clone());
        RequestMeta { prepared, own }
    }

    fn headers(&self, request: &Request<'_>, params: &[HeaderParam]) -> HeaderMap {
        match (&self.line.transport, self.greeting.era) {
            (Transport::Http(_), Era::Modern) => headers::of(request, params),
            _ => HeaderMap::new(),
        }
    }

    /// Sets the log level of a legacy server. It applies to all requests of the connection.
    async fn want_log(&self, level: LogLevel) {
        if self.greeting.era == Era::Modern || !self.greeting.offers.logging {
            return;
        }
        let asking = async {
            let mut known = self.log_level.lock().await;
            if known.is_some_and(|known| known <= level) {
                return;
            }
            let mut request = Request { method: "logging/setLevel", ..Request::default() };
            request.params.insert("level".to_owned(), Value::from(level.as_str()));
            // Stored before the response, so that later calls do not repeat the request.
            *known = Some(level);
            let (mut ticket, _) = self.line.incoming.calls.open(Purpose::Own);
            let none = RequestMeta::default();
            let sent =
                self.line.exchange(&mut ticket, &request, &none, &self.speech, HeaderMap::new());
            if let Err(fault) = sent.await.answered {
                tracing::debug!(error = %fault, "a server does not set its log level");
            }
        };
        // After a timeout the call continues without log lines.
        let _ = tokio::time::timeout(LOG_LEVEL_TIMEOUT, asking).await;
    }

    /// Notifies the server that a request is cancelled. In the modern era over HTTP, the end of the
    /// stream already signals this.
    async fn cancel(&self, id: u64, reason: &str) {
        let mut params = Map::new();
        params.insert("requestId".to_owned(), Value::from(id));
        params.insert("reason".to_owned(), Value::from(reason));
        let method = "notifications/cancelled";
        let body = envelope::notification(method, &params);
        let telling = async {
            match &self.line.transport {
                Transport::Stdio(stdio) => stdio.notify(body).await,
                Transport::Http(_) if self.greeting.era == Era::Modern => (),
                Transport::Http(http) => http.notify(&self.speech, body, HeaderMap::new()).await,
            }
        };
        // A server that cannot be notified is gone, and the request with it.
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, telling).await;
    }

    /// Runs a subscription until it ends. `ready` receives its id and the filter that the server
    /// accepted. Dropping the future ends the subscription over HTTP; see
    /// [`end_subscription`](Self::end_subscription).
    pub(super) async fn listen(
        &self,
        params: Map<String, Value>,
        ready: impl FnOnce(u64, Value) + Send,
    ) -> Fault {
        let (mut ticket, _) = self.line.incoming.calls.open(Purpose::Subscription);
        let request = Request { method: "subscriptions/listen", params, ..Request::default() };
        let meta = self.meta(ticket.id, &request, None);
        let headers = self.headers(&request, &[]);
        let (id, acknowledged) = (ticket.id, ticket.acknowledged.take());
        let acknowledging = async {
            if let Some(acknowledged) = acknowledged
                && let Ok(filter) = acknowledged.await
            {
                ready(id, filter);
            }
            std::future::pending::<()>().await;
        };
        tokio::pin!(acknowledging);
        tokio::select! {
            biased;
            () = &mut acknowledging => Fault::Timeout,
            posted = self.line.exchange(&mut ticket, &request, &meta, &self.speech, headers) => {
                // A server that accepts and ends in one piece has accepted.
                let _ = acknowledging.now_or_never();
                match posted.answered {
                    Ok(_) => Fault::Lost("the server ended the subscription".to_owned()),
                    Err(fault) => fault,
                }
            }
        }
    }

    /// Ends a subscription after its future was dropped.
    pub(super) async fn end_subscription(&self, id: u64) {
        self.cancel(id, "the subscription is over").await;
    }

    /// Records that it is known whether the server notifies of changes. Lists that were read earlier
    /// are read again, since a change in between was not notified.
    pub(super) fn set_listening(&self) {
        self.listening.send_replace(true);
        if self.listed_before.swap(false, Ordering::SeqCst) {
            self.line.incoming.notifications.changes.list_changed();
        }
    }

    /// Waits briefly until it is known whether the server notifies of changes, before its lists are
    /// read.
    pub(super) async fn listening(&self) {
        let mut listening = self.listening.subscribe();
        let answered = listening.wait_for(|answered| *answered);
        if tokio::time::timeout(LISTENING_TIMEOUT, answered).await.is_err() {
            self.listed_before.store(true, Ordering::SeqCst);
        }
    }

    /// Records that the server does not know the session any more. The next request opens a new
    /// connection.
    pub(super) fn session_over(&self) {
        self.session_is_over.store(true, Ordering::Release);
    }

    /// Whether the server does not know the session any more.
    pub(super) fn is_session_over(&self) -> bool {
        self.session_is_over.load(Ordering::Acquire)
    }

    /// Reads the unsolicited messages of a legacy server over HTTP; see [`Http::hear`]. Returns
    /// `None` for other servers.
    pub(super) async fn hear(&self) -> Option<bool> {
        match (&self.line.transport, self.greeting.era) {
            (Transport::Http(http), Era::Legacy) => {
                let answered = || self.set_listening();
                Some(http.hear(&self.speech, &self.line.incoming, answered).await)
            }
            _ => None,
        }
    }
}
