//! Serves MCP over streamable HTTP, both eras on one endpoint.
//!
//! Path: 1, 10. Doc: front-doors.md#mcp

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, Request as HttpRequest, State};
use axum::response::{IntoResponse, Response};
use http::header::ALLOW;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbooth_contracts::Caller;
use toolbooth_mcp::Era;
use toolbooth_mcp::{code, header, version};

use super::client::{self, Client};
use super::codec::{self, Fault, Incoming, Message, Notification, Request};
use super::door::Door;
use super::exchange;
use super::greeting;
use super::headers;
use super::listen;
use super::notifications::Lists;
use super::outgoing::OUTGOING_MAX;
use super::reply::{self, Accepted};
use super::request_future::RequestFuture;
use super::rpc_error::RpcError;
use super::sessions::{BATCHES, Initialize, NO_BATCHES, Session, SessionLimits, Sessions};
use crate::error::NoSession;
use crate::http::{Held, ValidFor, read_json};

/// The MCP endpoint: the door and its sessions.
pub(crate) struct Endpoint {
    door: Door,
    sessions: Sessions,
    /// Cancelled when streams are to end.
    ending: CancellationToken,
}

impl Endpoint {
    pub(crate) fn new(
        gateway: crate::Gateway,
        limits: SessionLimits,
        ending: &CancellationToken,
    ) -> Self {
        let sessions = Sessions::new(limits);
        tokio::spawn(sessions.clone().maintain(ending.clone()));
        Self { door: Door::new(gateway), sessions, ending: ending.clone() }
    }
}

/// Serves `/mcp`.
pub(crate) async fn everything(
    State(endpoint): State<Arc<Endpoint>>,
    Extension(caller): Extension<Caller>,
    request: HttpRequest,
) -> Response {
    serve(endpoint, caller, None, request).await
}

/// Serves `/mcp/NAME`, a tool set.
pub(crate) async fn toolset(
    State(endpoint): State<Arc<Endpoint>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: HttpRequest,
) -> Response {
    let name: Arc<str> = name.into();
    serve(endpoint, caller, Some(name), request).await
}

async fn serve(
    endpoint: Arc<Endpoint>,
    caller: Caller,
    toolset: Option<Arc<str>>,
    request: HttpRequest,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let held = parts.extensions.remove::<Held>();
    let valid_for = parts.extensions.remove::<ValidFor>().and_then(|ValidFor(time)| time);
    let visit = Visit { endpoint, caller, valid_for, toolset, headers: parts.headers, held };
    let served = match parts.method {
        Method::POST | Method::GET | Method::DELETE if visit.is_of_no_toolset() => {
            visit.no_toolset(body).await
        }
        Method::POST => visit.post(body).await,
        Method::GET => visit.get(),
        Method::DELETE => visit.delete(),
        _ => Err(method_not_allowed()),
    };
    served.unwrap_or_else(|refused| *refused)
}

type Served = Result<Response, Box<Response>>;

fn method_not_allowed() -> Box<Response> {
    let error = RpcError::new(code::INVALID_REQUEST, "the endpoint does not take this HTTP method");
    let mut response = reply::refusal(StatusCode::METHOD_NOT_ALLOWED, None, &error);
    response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("POST, GET, DELETE"));
    Box::new(response)
}

fn refuse(status: StatusCode, request: Option<&Request>, error: &RpcError) -> Box<Response> {
    Box::new(reply::refusal(status, request.map(|request| &request.id), error))
}

fn bad(request: Option<&Request>, code: i64, message: &str) -> Box<Response> {
    refuse(StatusCode::BAD_REQUEST, request, &RpcError::new(code, message))
}

/// One HTTP request.
struct Visit {
    endpoint: Arc<Endpoint>,
    caller: Caller,
    /// The remaining time of the caller's credentials, if they expire.
    valid_for: Option<Duration>,
    toolset: Option<Arc<str>>,
    headers: HeaderMap,
    /// Holds the request's bytes in the budget of the HTTP door.
    held: Option<Held>,
}

impl Visit {
    /// Returns the value of a header, if present; an error for several values, or one that is not
    /// text.
    fn header(&self, name: &str) -> Result<Option<&str>, Box<Response>> {
        let mut values = self.headers.get_all(name).iter();
        match (values.next().map(|value| value.to_str()), values.next()) {
            (None, _) => Ok(None),
            (Some(Ok(text)), None) => Ok(Some(text)),
            _ => {
                let message = format!("the header `{name}` must be there once, as text");
                Err(bad(None, code::INVALID_REQUEST, &message))
            }
        }
    }

    /// Whether the path names a tool set that does not exist.
    fn is_of_no_toolset(&self) -> bool {
        let catalogue = &self.endpoint.door.gateway.catalogue;
        self.toolset.as_deref().is_some_and(|name| !catalogue.has_toolset(name))
    }

    /// Answers 404 for an unknown tool set, with the request's id if the body can be read.
    async fn no_toolset(self, body: Body) -> Served {
        let read = read_json(&self.headers, body).await.ok().map(|bytes| codec::read(&bytes));
        let request = match read {
            Some(Ok(Incoming::One(Message::Request(request)))) => Some(request),
            _ => None,
        };
        let message = "there is no such tool set; the setting is `[toolsets.NAME]`";
        let data = serde_json::json!({ "code": "not-found" });
        let error = RpcError::new(code::INVALID_REQUEST, message).with_data(data);
        Err(refuse(StatusCode::NOT_FOUND, request.as_ref(), &error))
    }

    /// Returns the protocol version that the head states, if any.
    /// Returns the version in the head.
    fn stated_version(&self, request: Option<&Request>) -> Result<Option<&str>, Box<Response>> {
        self.header(header::VERSION).map_err(|_| {
            let message = format!("the header `{}` must be there once, as text", header::VERSION);
            bad(request, code::HEADER_MISMATCH, &message)
        })
    }

    fn is_modern_head(&self) -> Result<bool, Box<Response>> {
        let stated = self.stated_version(None)?;
        Ok(stated.is_some_and(|version| !version::legacy().iter().any(|known| known == version)))
    }

    /// Returns the session that the head names; it must be of the same caller and tool set.
    fn session(&self, request: Option<&Request>) -> Result<Arc<Session>, Box<Response>> {
        let Some(id) = self.header(header::SESSION)? else {
            let message =
                "the header `Mcp-Session-Id` is missing; a session begins with `initialize`";
            return Err(bad(request, code::INVALID_REQUEST, message));
        };
        let found = self.endpoint.sessions.find(id, &self.caller);
        found.filter(|session| session.client.toolset == self.toolset).ok_or_else(|| {
            let message = "there is no such session; begin anew with `initialize`";
            let error = RpcError::new(code::SESSION_NOT_FOUND, message);
            refuse(StatusCode::NOT_FOUND, request, &error)
        })
    }

    async fn post(self, body: Body) -> Served {
        let accepted = Accepted::by(&self.headers);
        if !accepted.json && !accepted.events {
            let message = "a client accepts `application/json` and `text/event-stream`";
            let error = RpcError::new(code::INVALID_REQUEST, message);
            return Err(refuse(StatusCode::NOT_ACCEPTABLE, None, &error));
        }
        let bytes = match read_json(&self.headers, body).await {
            Ok(bytes) => bytes,
            Err(problem) => return Err(Box::new(reply::of_problem(*problem))),
        };
        let incoming = codec::read(&bytes);
        drop(bytes);
        match incoming {
            Err(fault) => Err(Box::new(reply::fault(&fault))),
            Ok(Incoming::One(Message::Request(request))) => self.request(request, accepted).await,
            Ok(Incoming::One(Message::Notification(notification))) => {
                self.notification(&notification)
            }
            Ok(Incoming::One(Message::Answer)) => {
                if !self.is_modern_head()? {
                    self.session(None)?;
                }
                Ok(StatusCode::ACCEPTED.into_response())
            }
            Ok(Incoming::Batch(messages)) => self.batch(messages).await,
        }
    }

    fn notification(&self, notification: &Notification) -> Served {
        if self.is_modern_head()? {
            // Nothing else to do: in this era a client cancels by closing its stream.
            headers::check_notification(&self.headers, &notification.method)
                .map_err(|error| refuse(StatusCode::BAD_REQUEST, None, &error))?;
        } else {
            let session = self.session(None)?;
            session.notified(notification);
        }
        Ok(StatusCode::ACCEPTED.into_response())
    }

    async fn request(self, request: Request, accepted: Accepted) -> Served {
        let meta = match request.params.meta() {
            Ok(meta) => meta,
            Err(error) => {
                return Err(refuse(StatusCode::BAD_REQUEST, Some(&request), &error));
            }
        };
        let head = self.stated_version(Some(&request))?;
        match client::era(head, &request.method, &meta) {
            Ok(Era::Modern) => self.modern(request, meta, accepted).await,
            Ok(Era::Legacy) => self.legacy(request, meta, accepted).await,
            Err(error) => Err(refuse(StatusCode::BAD_REQUEST, Some(&request), &error)),
        }
    }

    async fn modern(
        self,
        request: Request,
        meta: Map<String, Value>,
        accepted: Accepted,
    ) -> Served {
        let refuse = |error: &RpcError| {
            let status = match reply::status(Era::Modern, Some(error.code)) {
                // These errors concern the transport, so they are not answered with 200.
                StatusCode::OK => StatusCode::BAD_REQUEST,
                status => status,
            };
            refuse(status, Some(&request), error)
        };
        if let Some(version) = client::stated_version(&meta)
            && self.stated_version(Some(&request))? != Some(version)
        {
            let message = format!("the header `{}` disagrees with `_meta`", header::VERSION);
            return Err(refuse(&RpcError::new(code::HEADER_MISMATCH, message)));
        }
        let stated = client::stated(&meta).map_err(|error| refuse(&error))?;
        let client = Client {
            param_headers: Some(headers::params(&self.headers)),
            page_bytes: accepted.page_bytes(),
            ..Client::modern(self.caller.clone(), stated, self.toolset.clone())
        };
        let door = &self.endpoint.door;
        let listens = request.method == listen::METHOD;
        if !listens && !door.answers(&request.method, &client) {
            return Err(refuse(&RpcError::unknown_method(&request.method)));
        }
        self.check_headers(&request).map_err(|error| refuse(&error))?;
        let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        if listens {
            let filter = listen::filter(&request).map_err(|error| refuse(&error))?;
            if !accepted.events {
                let message = "a stream is taken as `text/event-stream` only";
                let error = RpcError::new(code::INVALID_REQUEST, message);
                return Err(Box::new(reply::refusal(
                    StatusCode::NOT_ACCEPTABLE,
                    Some(&request.id),
                    &error,
                )));
            }
            let (door, ending) = (door.clone(), self.endpoint.ending.clone());
            let valid_for = self.valid_for;
            tokio::spawn(async move {
                tokio::select! {
                    () = door.credentials_ended(&client.caller, valid_for) => (),
                    () = listen::run(&door, &client, &request, filter, stop, ending, outgoing) => (),
                }
            });
            return Ok(reply::stream(receiver, Some(guard)));
        }
        let wants_notices = client.log_level.is_some() || exchange::progress_token(&meta).is_some();
        let (endpoint, held) = (Arc::clone(&self.endpoint), self.held);
        let running = RequestFuture::new(async move {
            exchange::run(&endpoint.door, &client, request, meta, stop, None, outgoing).await;
            drop(held);
        });
        let reply =
            reply::reply(Era::Modern, accepted, wants_notices, running, receiver, Some(guard));
        Ok(reply.await)
    }

    /// Compares the head with the body. The headers that repeat arguments are compared when the tool is
    /// known.
    fn check_headers(&self, request: &Request) -> Result<(), RpcError> {
        let name = headers::name(request)?;
        headers::check_standard(&self.headers, version::modern(), &request.method, name.as_deref())
    }

    async fn legacy(
        self,
        request: Request,
        meta: Map<String, Value>,
        accepted: Accepted,
    ) -> Served {
        if request.method == "initialize" {
            return self.initialize(&request);
        }
        let session = self.session(Some(&request))?;
        let running = match session.in_flight.begin(&request.id) {
            Ok(running) => running,
            Err(error) => {
                let status = reply::status(Era::Legacy, Some(error.code));
                return Err(refuse(status, Some(&request), &error));
            }
        };
        let client = Client { page_bytes: accepted.page_bytes(), ..session.client() };
        let wants_notices = client.log_level.is_some() || exchange::progress_token(&meta).is_some();
        let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
        // In the legacy era a closed connection does not cancel the request.
        let (endpoint, held) = (Arc::clone(&self.endpoint), self.held);
        let running = RequestFuture::new(async move {
            session.run(&endpoint.door, client, request, meta, running, outgoing).await;
            drop(held);
        });
        Ok(reply::reply(Era::Legacy, accepted, wants_notices, running, receiver, None).await)
    }

    fn initialize(&self, request: &Request) -> Served {
        let asked = request.params.read::<Initialize>();
        let asked = asked.map_err(|error| refuse(StatusCode::OK, Some(request), &error))?;
        let version = asked.version();
        let lists = Lists::ALL;
        let toolset = self.toolset.clone();
        let membership =
            self.endpoint.door.notifications.join(&self.caller, toolset.as_ref(), lists);
        let id = self.endpoint.door.new_id();
        let made = self.endpoint.sessions.make(
            id,
            &self.caller,
            asked.name(),
            &version,
            membership,
            toolset,
        );
        let session = made.map_err(|error| {
            let status = match error {
                NoSession::TooMany => StatusCode::TOO_MANY_REQUESTS,
                NoSession::Full => StatusCode::SERVICE_UNAVAILABLE,
            };
            let error = RpcError::new(code::SERVER_ERROR, error.to_string());
            refuse(status, Some(request), &error)
        })?;
        let result = greeting::initialized(&version);
        let message = codec::answer(&request.id, Ok(result.into()));
        let mut response = reply::document(StatusCode::OK, message);
        if let Ok(id) = session.id.parse() {
            response.headers_mut().insert(header::SESSION, id);
        }
        Ok(response)
    }

    /// Answers a batch, which only the revision 2025-03-26 allows.
    async fn batch(self, messages: Vec<Result<Message, Fault>>) -> Served {
        if self.is_modern_head()? {
            return Err(bad(None, code::INVALID_REQUEST, NO_BATCHES));
        }
        let session = self.session(None)?;
        if session.version != BATCHES {
            return Err(bad(None, code::INVALID_REQUEST, NO_BATCHES));
        }
        let answers = session.batch(&self.endpoint.door, messages, self.held.as_ref()).await;
        if answers.is_empty() {
            return Ok(StatusCode::ACCEPTED.into_response());
        }
        Ok(reply::document(StatusCode::OK, codec::batch(&answers)))
    }

    fn get(self) -> Served {
        if self.is_modern_head()? {
            return Err(method_not_allowed());
        }
        let session = self.session(None)?;
        if !Accepted::by(&self.headers).events {
            let message = "a stream is taken as `text/event-stream` only";
            let error = RpcError::new(code::INVALID_REQUEST, message);
            return Err(refuse(StatusCode::NOT_ACCEPTABLE, None, &error));
        }
        let (outgoing, receiver) = mpsc::channel(OUTGOING_MAX);
        let stop = session.take_stream();
        let guard = stop.clone().drop_guard();
        let (door, caller, valid_for) =
            (self.endpoint.door.clone(), self.caller.clone(), self.valid_for);
        tokio::spawn(async move {
            let ended = door.credentials_ended(&caller, valid_for);
            session.stream(&stop, ended, outgoing).await;
            session.leave_stream(&stop);
        });
        Ok(reply::stream(receiver, Some(guard)))
    }

    fn delete(self) -> Served {
        if self.is_modern_head()? {
            return Err(method_not_allowed());
        }
        let session = self.session(None)?;
        self.endpoint.sessions.end(&session);
        Ok(StatusCode::NO_CONTENT.into_response())
    }
}
